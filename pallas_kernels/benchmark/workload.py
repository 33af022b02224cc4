"""One problem of the command line: an op, its sizes, its options."""

import dataclasses
from typing import Any

from pallas_kernels.benchmark.ops import op as ops


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
  """An op at one size.

  Attributes:
    op: The op.
    shape: Its sizes, an `op.shape_class`.
    dtype: Operand dtype.
    options: An `op.options_class`.
    tiles: The tiles named for it; None: the task's own choice.
  """

  op: ops.AnyOp
  shape: ops.Shape
  dtype: str
  options: Any
  tiles: tuple[Any, ...] | None

  @property
  def name(self) -> str:
    """Op, sizes, dtype and options, for people."""
    return " ".join([self.op.name, str(self.shape), self.dtype, *ops.option_flags(self.options)])

  def problem(self) -> Any:
    """The planner's description of it."""
    return self.op.problem(self.shape, self.dtype, self.options)

  def sample(self) -> ops.Shape:
    """The sizes of the part that stands for the rest."""
    sizes: ops.Shape = self.op.sample(self.shape)
    return sizes

  def describe_part(self, part: ops.Shape) -> str:
    """`all`, or which part of the result."""
    return "all" if part == self.shape else self.op.describe_part(part, self.shape)
