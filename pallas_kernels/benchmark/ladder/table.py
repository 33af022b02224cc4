"""The ladder as rows and as a table: what the model says of each step, and what was measured."""

import dataclasses
from collections.abc import Sequence

import hw_profiles
from hw_profiles import GpuProfile, MatmulProblem
from pallas_kernels.benchmark.ladder.steps import Step
from pallas_kernels.benchmark.rows import NOT_RUN, Block, Written

# `kernel` of the ladder's rows in a results file: its lowest steps are no op of the library.
KERNEL = "ladder"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LadderRow(Written):
  """One step.

  Attributes:
    step: What it is.
    change: What is new against the step below.
    predicted_us: The model's time, microseconds; None: the tile does not fit.
    bound: What sets it.
    measured_us: Median of the device timer, microseconds; None: it did not run.
    tflops: 2·M·N·K over that time, in 10^12 a second.
    share_of_cublas: XLA's time over this one.
    check: Against XLA's result.
    reason: Why it did not run.
  """

  step: str
  change: str
  predicted_us: float | None
  bound: str
  measured_us: float | None = None
  tflops: float | None = None
  share_of_cublas: float | None = None
  check: str = NOT_RUN
  reason: str | None = None


def predicted(step: Step, problem: MatmulProblem, profile: GpuProfile) -> LadderRow:
  """What the model says of a step; with a reason where its tile does not fit."""
  try:
    predicted_us, bound = step.predict(problem, profile)
  except hw_profiles.InfeasibleTileError as error:
    return LadderRow(
      step=step.name, change=step.change, predicted_us=None, bound="-", reason=str(error)
    )
  return LadderRow(step=step.name, change=step.change, predicted_us=predicted_us, bound=bound)


def measured(
  row: LadderRow,
  problem: MatmulProblem,
  *,
  measured_us: float | None,
  cublas_us: float,
  check: str,
) -> LadderRow:
  """The row with what running the step adds.

  Args:
    row: Of `predicted`.
    problem: The product.
    measured_us: The step's time, microseconds; None: the timer saw nothing.
    cublas_us: XLA's in the same process, microseconds.
    check: Against XLA's result.
  """
  if measured_us is None:
    return dataclasses.replace(row, check=check)
  return dataclasses.replace(
    row,
    measured_us=measured_us,
    tflops=problem.flops / measured_us / 1e6,
    share_of_cublas=cublas_us / measured_us,
    check=check,
  )


def block(
  rows: Sequence[LadderRow],
  problem: MatmulProblem,
  profile: GpuProfile,
  *,
  lines: tuple[str, ...] = (),
) -> Block:
  """The ladder's table.

  Args:
    rows: Lowest step first.
    problem: The product.
    profile: What the times were predicted for.
    lines: Sentences under it.
  """

  def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"

  return Block(
    title=f"{problem.m} x {problem.k} x {problem.n} {problem.dtype} on {profile.name}",
    header=(
      "step",
      "what changes",
      "predicted us",
      "bound",
      "measured us",
      "TFLOP/s",
      "of cuBLAS",
      "check",
    ),
    cells=tuple(
      (
        row.step,
        row.change,
        number(row.predicted_us, 0),
        row.bound,
        number(row.measured_us, 1),
        number(row.tflops, 1),
        "-" if row.share_of_cublas is None else f"{100 * row.share_of_cublas:.0f} %",
        row.check,
      )
      for row in rows
    ),
    numeric=frozenset({"predicted us", "measured us", "TFLOP/s", "of cuBLAS"}),
    lines=lines,
  )


def cublas_line(cublas_us: float) -> str:
  """The sentence about what the steps are measured beside."""
  return (
    f"cuBLAS through XLA takes {cublas_us:.1f} us in the same process. Medians of a device timer,"
    " random normal operands, warm L2."
  )
