"""The transpose of a matrix, as the benchmark sees it."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import hw_profiles
from hw_profiles import RowConfig
from pallas_kernels.benchmark import rows
from pallas_kernels.benchmark.ops.op import Function, Operands
from pallas_kernels.benchmark.ops.rowwise import QWEN_HIDDEN, RowsOp, RowsShape
from pallas_kernels.benchmark.ops.verdict import Verdict

if TYPE_CHECKING:
  import jax


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransposeOptions:
  """`pallas_kernels.transpose` has none."""


class Transpose(RowsOp[TransposeOptions]):
  """`pallas_kernels.transpose`."""

  name = "transpose"
  default_shape = QWEN_HIDDEN
  # the course's tiles, then a side of 128 B of 16-bit elements
  default_tiles = (RowConfig(16, 16, 1), RowConfig(32, 32, 1), RowConfig(64, 64, 1))
  options_class = TransposeOptions

  def problem(
    self, shape: RowsShape, dtype: str, options: TransposeOptions
  ) -> hw_profiles.TransposeProblem:
    """One matrix."""
    return hw_profiles.TransposeProblem(shape.rows, shape.columns, dtype)

  def cut_result(self, result: Any, part: RowsShape) -> Any:
    """The first rows of x are the first columns of its transpose."""
    return result[:, : part.rows]

  def describe_part(self, part: RowsShape, whole: RowsShape) -> str:
    """Columns."""
    return f"columns 0:{part.rows}"

  def arguments(
    self, operands: tuple[Any, ...], options: TransposeOptions
  ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """transpose(x)."""
    return operands, {}

  def xla(self, options: TransposeOptions) -> Function:
    """X.T."""

    def xla(x: "jax.Array") -> "jax.Array":
      return x.T

    return xla

  def judge(self, actual: Any, operands: Operands, options: TransposeOptions) -> Verdict:
    """`reference.check_transpose`: bit for bit."""
    import reference

    (x,) = operands
    assert x is not None
    found = reference.check_transpose(actual, x)
    if found.passed:
      return Verdict(
        check=rows.PASSED,
        max_ulp=0.0,
        relative_error=0.0,
        error_bound=0.0,
        worst_bound_fraction=0.0,
      )
    index = ", ".join(map(str, found.worst_index or ()))
    note = f"{found.failed_elements} of {found.elements} elements have other bits; first [{index}]"
    return Verdict(check=rows.FAILED, notes=(note,))


TRANSPOSE = Transpose()
