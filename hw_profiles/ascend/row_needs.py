"""UB that Huawei's compiler wants for the row-wise ops and the transpose."""

import dataclasses
from typing import Any

from hw_profiles import dtypes
from hw_profiles.arguments import ceil_div
from hw_profiles.ascend.targets import AscendTarget
from hw_profiles.rowwise.config import RowConfig
from hw_profiles.rowwise.problem import (
  QuantizeRowsProblem,
  RmsNormProblem,
  SwigluProblem,
  SwigluQuantizeProblem,
  TransposeProblem,
)


@dataclasses.dataclass(frozen=True)
class _Form:
  """Bytes for an element, a column and a row of the block, and beside."""

  element: int
  column: int = 0
  row: int = 0
  fixed: int = 0

  def bytes_of(self, rows: int, columns: int) -> int:
    return self.element * rows * columns + self.column * columns + self.row * rows + self.fixed


# Of blocks that hold whole rows, or whose op needs no row: by generation (is_950)
# and size of the operands.
_KEPT: dict[type[Any], dict[tuple[bool, int], _Form]] = {
  SwigluProblem: {
    (False, 2): _Form(24),
    (False, 4): _Form(24, fixed=32),
    (True, 2): _Form(4),
    (True, 4): _Form(8),
  },
  TransposeProblem: {
    (False, 2): _Form(4),
    (False, 4): _Form(8),
    (True, 2): _Form(4),
    (True, 4): _Form(8),
  },
  RmsNormProblem: {
    (False, 2): _Form(12, row=8),
    (False, 4): _Form(12, column=4, row=12),
    (True, 2): _Form(6, column=2, row=16),
    (True, 4): _Form(8, column=4, row=16),
  },
  QuantizeRowsProblem: {
    (False, 2): _Form(34, row=8),
    (False, 4): _Form(32, row=10),
    (True, 2): _Form(6),
    (True, 4): _Form(4, row=8),
  },
  SwigluQuantizeProblem: {
    (False, 2): _Form(40, row=8),
    (False, 4): _Form(44, row=8),
    (True, 2): _Form(8),
    (True, 4): _Form(8),
  },
}

# Of blocks that walk the row: one copy of what is loaded, and two.
_WALKED: dict[type[Any], dict[tuple[bool, int], tuple[_Form, _Form]]] = {
  RmsNormProblem: {
    (False, 2): (_Form(16, row=16), _Form(16, row=16)),
    (False, 4): (_Form(14, row=20), _Form(14, row=20)),
    (True, 2): (_Form(10, row=24), _Form(12, row=24)),
    (True, 4): (_Form(12, row=24), _Form(16, row=24)),
  },
  QuantizeRowsProblem: {
    (False, 2): (_Form(34, row=12), _Form(34, row=12)),
    (False, 4): (_Form(36, row=8), _Form(36, row=8)),
    (True, 2): (_Form(7, row=12), _Form(8, row=8)),
    (True, 4): (_Form(8, row=8), _Form(12, row=8)),
  },
  SwigluQuantizeProblem: {
    (False, 2): (_Form(48, row=12), _Form(48, row=12)),
    (False, 4): (_Form(48, column=4, row=12), _Form(48, column=4, row=12)),
    (True, 2): (_Form(8, row=8), _Form(12, row=8)),
    (True, 4): (_Form(12, row=8), _Form(20, row=8)),
  },
}
# Where a row is two blocks its walk is unrolled: nothing is double buffered, and
# more is alive at once.
_UNROLLED: dict[type[Any], dict[tuple[bool, int], _Form]] = {
  RmsNormProblem: {(False, 2): _Form(18, row=12), (True, 2): _Form(14, column=4)},
}
# A 910 converts to 8-bit codes in blocks of 32 rows of float32, three times over
# where a block has few rows.
_FEW_CODE_ROWS_910 = 16
_FEW_CODE_ROWS = _Form(36, column=3 * 32 * 4, fixed=64)
_BLOCK_BYTES = 32  # of UB: the least that a row of a transposed block takes


def _walked(problem: Any, config: RowConfig, key: tuple[bool, int]) -> _Form:
  kind, steps = type(problem), ceil_div(problem.columns, config.block_cols)
  one_copy, two_copies = _WALKED[kind][key]
  if steps == 2:
    return _UNROLLED.get(kind, {}).get(key, one_copy)
  return one_copy if config.num_stages == 1 else two_copies


def row_ub_bytes(problem: Any, config: RowConfig, target: AscendTarget) -> int:
  """Bytes of UB for a block.

  Raises:
    ValueError: there is no model of the op.
  """
  kind = type(problem)
  if kind not in _KEPT:
    raise ValueError(f"problem={problem!r}: no model of what the compiler wants for it")
  size = dtypes.size_bytes(problem.dtype)
  rows, columns = config.block_rows, config.block_cols
  if not target.is_950:
    if issubclass(kind, QuantizeRowsProblem) and rows < _FEW_CODE_ROWS_910:
      return _FEW_CODE_ROWS.bytes_of(rows, columns)
    if kind is TransposeProblem:
      rows, columns = (max(side, _BLOCK_BYTES // size) for side in (rows, columns))
  key = (target.is_950, size)
  walks = kind in _WALKED and columns < problem.columns
  form = _walked(problem, config, key) if walks else _KEPT[kind][key]
  return form.bytes_of(rows, columns)
