"""What the fusion study needs of a program."""

import abc
import dataclasses
from typing import Any, Generic, TypeVar

import hw_profiles
from hw_profiles import GpuProfile, RowConfig
from pallas_kernels.benchmark.ops.op import Function, Operands
from pallas_kernels.benchmark.ops.rowwise import RowsOp, RowsShape
from pallas_kernels.benchmark.ops.verdict import Verdict

O = TypeVar("O")  # noqa: E741


@dataclasses.dataclass(frozen=True)
class Program(abc.ABC):
  """One way to compute a result.

  Attributes:
    study: What it is compared within: "chain", "rms_norm" or "transpose".
    variant: Which way.
    shape: The problem.
    dtype: Of its operands.
    tile: The tile of its kernels; None: the planner's.
  """

  study: str
  variant: str
  shape: RowsShape
  dtype: str
  tile: RowConfig | None

  @property
  def name(self) -> str:
    """What `--program` calls it."""
    return f"{self.study}:{self.variant}"

  @property
  @abc.abstractmethod
  def traffic_bytes(self) -> int:
    """Bytes between the working buffers and the next tier, all kernels together."""

  @property
  @abc.abstractmethod
  def launches(self) -> int:
    """Steps that wait for each other, one kernel each in the course."""

  @property
  def kernels(self) -> int:
    """Kernels that the library launches for them."""
    return self.launches

  @property
  def peak_bytes(self) -> int | None:
    """Most bytes in memory at once, where tensors between kernels are what it is about."""
    return None

  @abc.abstractmethod
  def predict(self, profile: GpuProfile) -> tuple[float | None, str | None]:
    """Estimated time in microseconds, and what sets it."""

  @abc.abstractmethod
  def operands(self, rows: int) -> Operands:
    """Those of the first rows of the problem."""

  @abc.abstractmethod
  def call(self, implementation: str | None) -> Function:
    """The program as a function of its operands."""

  @abc.abstractmethod
  def peer(self) -> Function:
    """XLA's program for the same."""

  @property
  @abc.abstractmethod
  def peer_key(self) -> str:
    """Programs with the same key have the same peer."""

  @abc.abstractmethod
  def cut_result(self, result: Any, rows: int) -> Any:
    """The result of the first rows."""

  @abc.abstractmethod
  def check(self, actual: Any, operands: Operands, implementation: str | None) -> Verdict:
    """Holds the result of these operands against the float64 reference."""


@dataclasses.dataclass(frozen=True)
class OpProgram(Program, Generic[O]):
  """A program that is one of the library's ops.

  Attributes:
    op: The op.
    options: Its options.
  """

  op: RowsOp[O]
  options: O

  @property
  def problem(self) -> Any:
    """The planner's."""
    return self.op.problem(self.shape, self.dtype, self.options)

  def plan(self, profile: GpuProfile) -> hw_profiles.TilePlan | None:
    """The tile's plan, or that of the planner's tile; None where none fits."""
    if self.tile is not None:
      return hw_profiles.plan(self.problem, self.tile, profile)
    ranked = hw_profiles.rank(self.problem, profile, top=1)
    return ranked[0] if ranked and ranked[0].fits else None

  def predict(self, profile: GpuProfile) -> tuple[float | None, str | None]:
    """The plan's."""
    found = self.plan(profile)
    return (None, None) if found is None else (found.predicted_us, found.bound)

  def operands(self, rows: int) -> Operands:
    """See `Program`, as all others here."""
    part = dataclasses.replace(self.shape, rows=rows)
    return self.op.operands(part, self.dtype, self.options)

  def call(self, implementation: str | None) -> Function:
    """The public function."""
    return self.op.call(self.options, config=self.tile, implementation=implementation)

  def peer(self) -> Function:
    """The op's."""
    return self.op.peer("xla", self.options)

  @property
  def peer_key(self) -> str:
    """XLA splits no row, and has tiles of its own."""
    return f"{self.study} {self.shape}"

  def cut_result(self, result: Any, rows: int) -> Any:
    """The op's."""
    return self.op.cut_result(result, dataclasses.replace(self.shape, rows=rows))

  def check(self, actual: Any, operands: Operands, implementation: str | None) -> Verdict:
    """The op's."""
    return self.op.check(
      actual,
      operands,
      self.options,
      ran=str(implementation),
      config=self.tile,
      platform="cpu" if implementation == "interpret" else "gpu",
    )
