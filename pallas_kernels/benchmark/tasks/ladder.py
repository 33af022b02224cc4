"""`--task=ladder`: a matmul from one output a thread to the library's kernel, step by step.

Each step is checked against cuBLAS through XLA and timed beside it, on the
default problem or the one `--shape` and `--dtype` name.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

import hw_profiles
from hw_profiles import GpuProfile, MatmulProblem
from pallas_kernels.benchmark import environment, jobs, timing
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.ladder.steps import Step, steps
from pallas_kernels.benchmark.rows import FAILED, PASSED, Block, Report
from pallas_kernels.device import planning_profile, target_device

# float32 sums of K products in another order, then one rounding: both results
# lie within K·2^-23 of the exact sum's magnitude, and half an ulp
_ROUNDINGS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class LadderRow:
  """One step.

  Attributes:
    step: What it is.
    change: What is new against the step below.
    predicted_us: The model's time.
    bound: What sets it.
    measured_us: Median of the device timer; None where it did not run.
    tflops: 2·M·N·K over that time.
    share_of_cublas: XLA's time over this one.
    check: Against XLA's result.
    reason: Why it did not run.
  """

  step: str
  change: str
  predicted_us: float | None
  bound: str
  measured_us: float | None
  tflops: float | None
  share_of_cublas: float | None
  check: str
  reason: str | None

  def as_dict(self) -> dict[str, Any]:
    """The row as JSON holds it."""
    return dataclasses.asdict(self)


def run(options: Options) -> Report:
  """Runs, checks and times every step.

  Raises:
    UsageError: there is no Hopper GPU, or the problem is no plain matmul.
  """
  jobs.refuse_measuring_without_gpu(options)
  device = target_device()
  if not device.is_hopper:
    raise UsageError(f"--task=ladder: its upper steps need Hopper, and this is {device.kind!r}")
  if len(options.workloads) != 1 or options.workloads[0].op.name != "matmul":
    raise UsageError("--task=ladder: expected one --shape of --kernel=matmul")
  workload = options.workloads[0]
  problem = workload.problem()
  profile, _ = planning_profile(device)
  a, b = (
    jax.random.normal(jax.random.key(i), shape, jnp.dtype(problem.dtype))
    for i, shape in enumerate(((problem.m, problem.k), (problem.k, problem.n)))
  )
  expected = jnp.dot(a, b)
  cublas = timing.measure(
    jnp.dot, (a, b), iterations=options.iterations, timer="device", cold_l2=False
  )
  assert cublas is not None
  rows = tuple(
    _row(step, problem, profile, a, b, expected, cublas.median_us, options.iterations)
    for step in steps()
  )
  return Report(
    environment=environment.describe(with_device=True),
    rows=rows,
    blocks=(_block(rows, problem, profile, cublas.median_us),),
  )


def _row(
  step: Step,
  problem: MatmulProblem,
  profile: GpuProfile,
  a: jax.Array,
  b: jax.Array,
  expected: jax.Array,
  cublas_us: float,
  iterations: int,
) -> LadderRow:
  try:
    predicted_us, bound = step.predict(problem, profile)
  except hw_profiles.InfeasibleTileError as error:
    return LadderRow(
      step=step.name,
      change=step.change,
      predicted_us=None,
      bound="-",
      measured_us=None,
      tflops=None,
      share_of_cublas=None,
      check="not run",
      reason=str(error),
    )
  actual = jax.jit(step.run)(a, b)
  # slow steps need no many runs: theirs are long
  measured = timing.measure(step.run, (a, b), iterations=iterations, timer="device", cold_l2=False)
  us = None if measured is None else measured.median_us
  return LadderRow(
    step=step.name,
    change=step.change,
    predicted_us=predicted_us,
    bound=bound,
    measured_us=us,
    tflops=None if us is None else problem.flops / us / 1e6,
    share_of_cublas=None if us is None else cublas_us / us,
    check=PASSED if _agrees(actual, expected, a, b) else FAILED,
    reason=None,
  )


def _agrees(actual: jax.Array, expected: jax.Array, a: jax.Array, b: jax.Array) -> bool:
  """Whether two results differ by no more than their sums' and roundings' errors together."""
  magnitude = jnp.dot(jnp.abs(a).astype(jnp.float32), jnp.abs(b).astype(jnp.float32))
  sums = _ROUNDINGS * a.shape[1] * 2.0**-23 * magnitude
  rounding = _ROUNDINGS * jnp.finfo(actual.dtype).eps * jnp.abs(expected.astype(jnp.float32))
  difference = jnp.abs(actual.astype(jnp.float32) - expected.astype(jnp.float32))
  return bool(jnp.all(difference <= sums + rounding))


def _block(
  rows: tuple[LadderRow, ...], problem: MatmulProblem, profile: GpuProfile, cublas_us: float
) -> Block:
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
    lines=(
      f"cuBLAS through XLA takes {cublas_us:.1f} us in the same process. Medians of a device timer,"
      " random normal operands, warm L2.",
    ),
  )
