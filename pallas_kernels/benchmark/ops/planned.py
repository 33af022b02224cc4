"""An op that the benchmark only plans: it neither runs nor checks its kernels yet."""

from typing import Any, NoReturn, TypeVar

from pallas_kernels.benchmark.ops.op import Config, Function, Op, Operands, Shape
from pallas_kernels.benchmark.ops.verdict import Verdict

S = TypeVar("S", bound=Shape)
C = TypeVar("C", bound=Config)
O = TypeVar("O")  # noqa: E741


class PlannedOp(Op[S, C, O]):
  """An op for `--task=plan` alone; the command line refuses it for the others."""

  tasks = ("plan",)

  def _no_kernel(self) -> NoReturn:
    raise NotImplementedError(f"{self.name}: --task=plan is all that the benchmark does with it")

  def steps(self, shape: S, config: C) -> tuple[int, int]:
    """Raises NotImplementedError, as all below."""
    self._no_kernel()

  def operand_shapes(self, shape: S, options: O) -> tuple[tuple[int, ...] | None, ...]:
    """Raises NotImplementedError."""
    self._no_kernel()

  def sample(self, shape: S) -> S:
    """Raises NotImplementedError."""
    self._no_kernel()

  def cut(self, operands: Operands, part: S) -> Operands:
    """Raises NotImplementedError."""
    self._no_kernel()

  def describe_part(self, part: S, whole: S) -> str:
    """Raises NotImplementedError."""
    self._no_kernel()

  def explain(
    self, shape: S, dtype: str, options: O, *, config: C | None, implementation: str | None
  ) -> NoReturn:
    """Raises NotImplementedError."""
    self._no_kernel()

  def call(self, options: O, *, config: C | None, implementation: str | None) -> Function:
    """Raises NotImplementedError."""
    self._no_kernel()

  def check(
    self,
    actual: Any,
    operands: Operands,
    options: O,
    *,
    ran: str,
    config: C | None,
    platform: str,
  ) -> Verdict:
    """Raises NotImplementedError."""
    self._no_kernel()
