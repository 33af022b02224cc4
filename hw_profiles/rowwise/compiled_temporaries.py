"""UB of the row-wise ops and the transpose as Huawei's compiler fills it, value by value.

Each table has what is alive at the fullest moment, for operands of 2 and of 4
bytes. Names marked "untraced" are the rest of what the compiler reports: bytes that
were read off its overflow messages, and not followed through its passes.
"""

from typing import Any

from hw_profiles import dtypes
from hw_profiles.arguments import ceil_div
from hw_profiles.capacity.compiled import SELECT_910, Memories, Temporary
from hw_profiles.rowwise.config import RowConfig
from hw_profiles.rowwise.problem import (
  QuantizeRowsProblem,
  RmsNormProblem,
  SwigluProblem,
  SwigluQuantizeProblem,
  TransposeProblem,
)

Temporaries = tuple[Temporary, ...]
_BySize = dict[int, Temporaries]


def _rest(element: float = 0, column: int = 0, row: int = 0, fixed: int = 0) -> Temporaries:
  return (Temporary("temporaries, untraced", element, column, row, fixed),)


# --- 910: each operation has a block for its result

# A constant that an operation needs as an array fills a block, and the mask of a comparison
# with it takes that block over: at the first select of |x| four of codes' constants and masks
# are there, of which two serve later operations, and two that NaN and infinity are told by.
_CODE_CONSTANTS = tuple(
  Temporary(f"constant or mask: {name}", element=4)
  for name in ("zero", "least code", "largest code", "not a number", "infinity")
)
_KEPT_910: dict[type[Any], _BySize] = {
  SwigluProblem: {
    # the gate's own block is a gap by then
    2: (*SELECT_910, Temporary("up", element=2), Temporary("gate, its gap", element=2)),
    4: (
      *SELECT_910,
      Temporary("up", element=4),
      Temporary("scalars of the selects", fixed=32),
    ),
  },
  TransposeProblem: {
    2: (Temporary("x", element=2), Temporary("y", element=2)),
    4: (Temporary("x", element=4), Temporary("y", element=4)),
  },
  RmsNormProblem: {
    2: (
      Temporary("x in float32", element=4),
      Temporary("its square", element=4),
      Temporary("halves of the sum", element=2),
      Temporary("weight and gap", element=2),
      Temporary("numbers of a row", row=8),
    ),
    4: (
      Temporary("x", element=4),
      Temporary("its square", element=4),
      Temporary("halves of the sum", element=2),
      Temporary("gap", element=2),
      Temporary("weight", column=4),
      Temporary("numbers of a row", row=12),
    ),
  },
  QuantizeRowsProblem: {
    2: (
      *_CODE_CONSTANTS,
      Temporary("x in float32", element=4),
      Temporary("|x|", element=4),
      Temporary("selected |x|", element=4),
      Temporary("loaded x, its gap", element=2),
      Temporary("masks of a row", row=8),
    ),
    4: (
      *_CODE_CONSTANTS,
      Temporary("x", element=4),
      Temporary("|x|", element=4),
      Temporary("selected |x|", element=4),
      Temporary("masks of a row", row=10),
    ),
  },
  SwigluQuantizeProblem: {
    2: (
      *SELECT_910,
      *_CODE_CONSTANTS[:4],
      Temporary("up", element=2),
      Temporary("gate, its gap", element=2),
      Temporary("masks of a row", row=8),
    ),
    4: (
      *SELECT_910,
      *_CODE_CONSTANTS,
      Temporary("up", element=4),
      Temporary("masks of a row", row=8),
    ),
  },
}
_WALKED_910: dict[type[Any], _BySize] = {
  RmsNormProblem: {2: _rest(16, row=16), 4: _rest(14, row=20)},
  QuantizeRowsProblem: {2: _rest(34, row=12), 4: _rest(36, row=8)},
  SwigluQuantizeProblem: {2: _rest(48, row=12), 4: _rest(48, column=4, row=12)},
}
# Codes are converted in 32 rows of int32, their transpose in twice that, whatever
# rows the block has; with few rows that is more than anything else.
_FEW_CODE_ROWS = 16
_FEW_CODE_ROWS_910 = (
  Temporary("codes as int32, 32 rows of them", column=32 * 4),
  Temporary("their conversion", column=2 * 32 * 4),
  Temporary("constants and x, untraced", element=36, fixed=64),
)
# the least that a row of a transposed block takes
_BLOCK_BYTES = 32

# --- 950: operations run in registers between what is loaded, stored or reduced

_KEPT_950: dict[type[Any], _BySize] = {
  # the result lies where one operand was
  SwigluProblem: {
    2: (Temporary("gate", element=2), Temporary("up", element=2)),
    4: (Temporary("gate", element=4), Temporary("up", element=4)),
  },
  TransposeProblem: _KEPT_910[TransposeProblem],
  RmsNormProblem: {
    2: (
      Temporary("x in float32", element=4),
      Temporary("loaded x, later y", element=2),
      Temporary("weight", column=2),
      Temporary("numbers of a row", row=16),
    ),
    4: (
      Temporary("x", element=4),
      Temporary("y", element=4),
      Temporary("weight", column=4),
      Temporary("numbers of a row", row=16),
    ),
  },
  QuantizeRowsProblem: {
    2: (Temporary("x in float32", element=4), Temporary("loaded x, later codes", element=2)),
    4: (Temporary("x, later codes", element=4), Temporary("numbers of a row", row=8)),
  },
  SwigluQuantizeProblem: {
    2: (Temporary("z in float32", element=4), Temporary("gate and up", element=4)),
    4: (Temporary("gate", element=4), Temporary("up, later codes", element=4)),
  },
}
# A walk over blocks of a row holds one block of what it loads, or two.
_WALKED_950: dict[type[Any], dict[int, tuple[Temporaries, Temporaries]]] = {
  RmsNormProblem: {
    2: (_rest(10, row=24), _rest(12, row=24)),
    4: (_rest(12, row=24), _rest(16, row=24)),
  },
  QuantizeRowsProblem: {
    2: (_rest(7, row=12), _rest(8, row=8)),
    4: (_rest(8, row=8), _rest(12, row=8)),
  },
  SwigluQuantizeProblem: {
    2: (_rest(8, row=8), _rest(12, row=8)),
    4: (_rest(12, row=8), _rest(20, row=8)),
  },
}
# A row of two blocks is walked in no loop: nothing is double buffered, and more is alive at once.
_UNROLLED: dict[tuple[bool, type[Any], int], Temporaries] = {
  (False, RmsNormProblem, 2): _rest(18, row=12),
  (True, RmsNormProblem, 2): _rest(14, column=4),
  (True, QuantizeRowsProblem, 2): _rest(8, row=4),
  (True, QuantizeRowsProblem, 4): _rest(10, row=4),
}


def has_temporaries(problem: Any) -> bool:
  """Whether there is a table of the op."""
  return type(problem) in _KEPT_910


def _walked(problem: Any, config: RowConfig, *, is_950: bool) -> Temporaries:
  kind, size = type(problem), dtypes.size_bytes(problem.dtype)
  unrolled = _UNROLLED.get((is_950, kind, size))
  is_loop = ceil_div(problem.columns, config.block_cols) != 2
  if unrolled is not None and not is_loop:
    return unrolled
  if not is_950:
    return _WALKED_910[kind][size]
  one, two = _WALKED_950[kind][size]
  return two if config.num_stages > 1 and is_loop else one


def temporaries(
  problem: Any, config: RowConfig, memories: Memories
) -> tuple[Temporaries, int, int]:
  """What UB holds for a block, and the rows and columns it is held for."""
  kind, size = type(problem), dtypes.size_bytes(problem.dtype)
  rows, columns, is_950 = config.block_rows, config.block_cols, memories.has_l0c_to_ub
  if not is_950:
    if issubclass(kind, QuantizeRowsProblem) and rows < _FEW_CODE_ROWS:
      return _FEW_CODE_ROWS_910, rows, columns
    if kind is TransposeProblem:
      rows, columns = (max(side, _BLOCK_BYTES // size) for side in (rows, columns))
  if kind in _WALKED_910 and columns < problem.columns:
    return _walked(problem, config, is_950=is_950), rows, columns
  return (_KEPT_950 if is_950 else _KEPT_910)[kind][size], rows, columns
