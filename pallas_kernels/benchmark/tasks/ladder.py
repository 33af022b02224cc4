"""`--task=ladder`: a matmul from one output a thread to the library's kernel, step by step.

Each step is checked against cuBLAS through XLA and timed beside it, on the
default problem or the one `--shape` and `--dtype` name.
"""

import jax
import jax.numpy as jnp

from hw_profiles import GpuProfile, MatmulProblem
from pallas_kernels.benchmark import commands, environment, jobs, timing
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.ladder import table
from pallas_kernels.benchmark.ladder.steps import Step, steps
from pallas_kernels.benchmark.ladder.table import LadderRow
from pallas_kernels.benchmark.ops.op import option_flags
from pallas_kernels.benchmark.results import Result
from pallas_kernels.benchmark.rows import FAILED, PASSED, Report
from pallas_kernels.benchmark.workload import Workload
from pallas_kernels.device import planning_profile, target_device

# float32 sums of K products in another order, then one rounding: both results
# lie within K·2^-23 of the exact sum's magnitude, and half an ulp
_ROUNDINGS = 2


def run(options: Options) -> Report:
  """Runs, checks and times every step.

  Raises:
    UsageError: there is no Hopper GPU, or the problem is no plain matmul.
  """
  jobs.refuse_measuring_without_gpu(options)
  device = target_device()
  if not device.is_hopper:
    raise UsageError(f"--task=ladder: its upper steps need Hopper, and this is {device.kind!r}")
  workload = _workload(options)
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
  pairs = [
    (step, _row(step, problem, profile, a, b, expected, cublas.median_us, options.iterations))
    for step in steps()
  ]
  rows = tuple(row for _, row in pairs)
  line = table.cublas_line(cublas.median_us)
  return Report(
    environment=environment.describe(with_device=True),
    rows=rows,
    blocks=(table.block(rows, problem, profile, lines=(line,)),),
    results=tuple(
      _result(options, workload, step, row, row.measured_us, cublas.median_us)
      for step, row in pairs
      if row.measured_us is not None
    ),
  )


def _workload(options: Options) -> Workload:
  """The one problem that the ladder climbs.

  Raises:
    UsageError: there are several, or one that the lowest steps do not compute.
  """
  if len(options.workloads) != 1 or options.workloads[0].op.name != "matmul":
    raise UsageError("--task=ladder: expected one --shape of --kernel=matmul")
  (workload,) = options.workloads
  flags = option_flags(workload.options)
  if workload.problem().batch != 1:
    flags.append(f"--shape={workload.shape}")
  if flags:
    raise UsageError(f"{flags[0]}: --task=ladder is about one plain matmul, without it")
  return workload


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
  row = table.predicted(step, problem, profile)
  if row.reason is not None:
    return row
  actual = jax.jit(step.run)(a, b)
  # slow steps need no many runs: theirs are long
  measured = timing.measure(step.run, (a, b), iterations=iterations, timer="device", cold_l2=False)
  return table.measured(
    row,
    problem,
    measured_us=None if measured is None else measured.median_us,
    cublas_us=cublas_us,
    check=PASSED if _agrees(actual, expected, a, b) else FAILED,
  )


def _agrees(actual: jax.Array, expected: jax.Array, a: jax.Array, b: jax.Array) -> bool:
  """Whether two results differ by no more than their sums' and roundings' errors together."""
  magnitude = jnp.dot(jnp.abs(a).astype(jnp.float32), jnp.abs(b).astype(jnp.float32))
  sums = _ROUNDINGS * a.shape[1] * 2.0**-23 * magnitude
  rounding = _ROUNDINGS * jnp.finfo(actual.dtype).eps * jnp.abs(expected.astype(jnp.float32))
  difference = jnp.abs(actual.astype(jnp.float32) - expected.astype(jnp.float32))
  return bool(jnp.all(difference <= sums + rounding))


def _result(
  options: Options,
  workload: Workload,
  step: Step,
  row: LadderRow,
  measured_us: float,
  cublas_us: float,
) -> Result:
  """A row of a results file."""
  return Result(
    kernel=table.KERNEL,
    shape=str(workload.shape),
    dtype=workload.dtype,
    options=(),
    tile=None if step.config is None else step.config.describe(),
    implementation=step.implementation,
    measured_us=measured_us,
    peers={"xla": cublas_us},
    predicted_us=row.predicted_us,
    check=row.check,
    worst_bound_fraction=None,
    timer="device",
    iterations=options.iterations,
    cold_l2=False,
    arguments=commands.rerun(options, workload),
    details={"step": step.name},
  )
