"""One kernel on one problem: run it, measure it on a GPU, hold it against float64."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import reference
from hw_profiles import MatmulConfig
from pallas_kernels.benchmark import kernels, operands, peers, rows, timing
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.operands import Operands, Part
from pallas_kernels.benchmark.parsing import Shape
from pallas_kernels.benchmark.progress import Progress, Step

NOT_MEASURED = (
  "measured_us is null: no GPU here, and an interpreter's wall time is no measurement of a kernel"
)

# First guesses, seconds, from a machine with two cores; finished steps correct
# them. Interpreted, a program of the kernel costs a copy of the arrays it works
# on (1.35 GB/s), a K step 60 us, and the products 16 GFLOP/s; compiling 1 s.
_COMPILE_S = 1.0
_INTERPRETED_BYTES_PER_S = 1.35e9
_INTERPRETED_STEP_S = 60e-6
_INTERPRETED_FLOP_PER_S = 16e9
# the Mosaic GPU interpreter runs every thread of a block in Python
_MOSAIC_INTERPRETED_FLOP_PER_S = 1e7
# two float64 products of the size of the kernel's own, 18 GFLOP/s
_REFERENCE_FLOP_PER_S = 18e9
_OPERANDS_PER_S = 30e6
# on a GPU: compiling twice (once to time), copying, warming up
_GPU_S = 4.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """What is to run.

  Attributes:
    shape: The whole problem.
    dtype: Operand dtype.
    part: The part of it that runs.
    tile: The tile asked for; None: the implementation's own choice.
    label: For people, on progress lines.
    choice: What runs, or why nothing does.
    peer: The name of a peer that runs instead of a kernel.
  """

  shape: Shape
  dtype: str
  part: Part
  tile: MatmulConfig | None
  label: str
  choice: kernels.Choice
  peer: str | None = None

  @property
  def sizes(self) -> Shape:
    """The sizes that run."""
    return self.part.of(self.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """What came of a job.

  Attributes:
    fields: Fields of the job's rows; `reason` where it was refused.
    details: Further fields: worst_bound_fraction, the largest error as a share
      of its element's bound, which is what passes or fails.
    measured_us: Median device time on a GPU, else None.
    timing: Further fields: what that time was taken from.
    notes: Lines to go with them.
  """

  fields: dict[str, Any]
  details: dict[str, Any] = dataclasses.field(default_factory=dict)
  measured_us: float | None = None
  timing: dict[str, Any] = dataclasses.field(default_factory=dict)
  notes: tuple[str, ...] = ()


def refuse_measuring_without_gpu(options: Options) -> None:
  """Flags that only a measurement reads need a GPU.

  Raises:
    UsageError: such a flag was given and JAX runs on something else.
  """
  platform = kernels.platform()
  if options.measuring and platform != "gpu":
    raise UsageError(
      f"--{options.measuring[0]}: nothing is measured on {platform}, this flag needs a GPU"
    )


def kernel_s(shape: Shape, dtype: str, tile: MatmulConfig | None, implementation: str) -> float:
  """A guess at the seconds one job's kernel takes, to order jobs and to announce them."""
  batch = 1 if shape.batch is None else shape.batch
  flops = 2 * batch * shape.m * shape.n * shape.k
  if implementation == "mosaic_gpu_interpret":
    return _COMPILE_S + flops / _MOSAIC_INTERPRETED_FLOP_PER_S
  if implementation != "interpret" and kernels.platform() == "gpu":
    return _GPU_S
  if implementation != "interpret" or tile is None:
    return _COMPILE_S + flops / _INTERPRETED_FLOP_PER_S
  programs = batch * -(-shape.m // tile.block_m) * -(-shape.n // tile.block_n)
  steps = programs * -(-shape.k // tile.block_k)
  size = operands.numpy_dtype(dtype).itemsize
  array_bytes = batch * size * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n)
  return (
    _COMPILE_S
    + flops / _INTERPRETED_FLOP_PER_S
    + steps * _INTERPRETED_STEP_S
    + programs * array_bytes / _INTERPRETED_BYTES_PER_S
  )


def reference_s(shape: Shape) -> float:
  """A guess at the seconds the float64 check takes."""
  batch = 1 if shape.batch is None else shape.batch
  return 4 * batch * shape.m * shape.n * shape.k / _REFERENCE_FLOP_PER_S


def execute(options: Options, jobs: Sequence[Job]) -> list[Outcome]:
  """Runs the jobs in order, with progress on stderr; one outcome for each."""
  steps = _steps(options, jobs)
  progress = Progress(steps, rates={step.kind: 1.0 for step in steps}, stream=sys.stderr)
  outcomes = []
  made: tuple[Shape, str] | None = None
  whole: Operands | None = None
  for job in jobs:
    if job.choice.reason is not None:
      outcomes.append(Outcome(fields={"reason": job.choice.reason}))
      continue
    if whole is None or made != (job.shape, job.dtype):
      with progress.next():
        whole = operands.make(job.shape, job.dtype, bias=options.bias)
      made = (job.shape, job.dtype)
    outcomes.append(_execute(options, job, whole.part(job.part), progress))
  return outcomes


def _steps(options: Options, jobs: Sequence[Job]) -> list[Step]:
  """The steps `execute` goes through, in the same order."""
  steps = []
  made: tuple[Shape, str] | None = None
  for job in jobs:
    if job.choice.reason is not None:
      continue
    if made != (job.shape, job.dtype):
      shape = job.shape
      elements = (shape.batch or 1) * shape.k * (shape.m + shape.n)
      label = f"drawing operands of {shape} {job.dtype}"
      steps.append(Step("operands", label, 0.1 + elements / _OPERANDS_PER_S))
      made = (job.shape, job.dtype)
    implementation = str(job.choice.implementation)
    seconds = kernel_s(job.sizes, job.dtype, job.choice.config, implementation)
    steps.append(Step(implementation, f"{job.label}: running", seconds))
    if options.check == "float64":
      label = f"{job.label}: comparing with float64"
      steps.append(Step("float64", label, 0.1 + reference_s(job.sizes)))
  return steps


def _execute(options: Options, job: Job, part: Operands, progress: Progress) -> Outcome:
  on_gpu = kernels.platform() == "gpu"
  call = (
    peers.xla(options)
    if job.peer == "xla"
    else kernels.function(options, job.tile, job.choice.implementation)
  )
  measurement = None
  with progress.next():
    actual = kernels.result(call, part)
    if on_gpu:
      measurement = timing.measure(
        *timing.on_device(call, part.a, part.b, part.bias),
        iterations=options.iterations,
        timer=options.timer,
        cold_l2=options.cold_l2,
      )
  fields: dict[str, Any] = {"implementation": job.choice.implementation}
  details: dict[str, Any] = {}
  notes = job.choice.notes
  if options.check == "float64":
    with progress.next():
      outcome = _check(options, job, part, actual)
    fields |= _check_fields(outcome, job.part.describe(job.shape))
    details["worst_bound_fraction"] = outcome.worst_bound_fraction
    notes += _check_notes(outcome)
  if measurement is None:
    return Outcome(fields=fields, details=details, notes=notes)
  return Outcome(
    fields=fields,
    details=details,
    measured_us=measurement.median_us,
    timing=_timing_details(job.sizes, measurement),
    notes=notes,
  )


def _timing_details(shape: Shape, measured: timing.Measurement) -> dict[str, Any]:
  """What the one measured number was taken from."""
  flops = 2 * (1 if shape.batch is None else shape.batch) * shape.m * shape.n * shape.k
  return {
    "measured_minimum_us": measured.minimum_us,
    "measured_maximum_us": measured.maximum_us,
    "measured_tflop_per_s": flops / measured.median_us * 1e-6,
    "iterations": measured.iterations,
    "timer": measured.timer,
    "cold_l2": measured.cold_l2,
  }


def _check(options: Options, job: Job, part: Operands, actual: np.ndarray) -> reference.MatmulCheck:
  on_gpu = kernels.platform() == "gpu"
  # The interpreted portable kernel finishes each block_k product before adding
  # it. An MMA accumulates in place, and XLA's order is its own.
  finishes_chunks = job.choice.implementation == "interpret" and job.choice.config is not None
  return kernels.check(
    options,
    actual,
    part,
    chunk=job.choice.config.block_k if finishes_chunks and job.choice.config else None,
    tensor_cores=on_gpu and part.a.dtype.itemsize == 2,
  )


def _check_fields(outcome: reference.MatmulCheck, checked: str) -> dict[str, Any]:
  """The fields of a row that a check fills in."""
  return {
    "max_ulp": outcome.max_ulp,
    "relative_error": outcome.relative_error,
    "error_bound": outcome.error_bound,
    "check": rows.PASSED if outcome.passed else rows.FAILED,
    "checked": checked,
  }


def _check_notes(outcome: reference.MatmulCheck) -> tuple[str, ...]:
  """Where a failed check failed, and what was not judged."""
  notes = []
  if not outcome.passed:
    where = ", ".join(str(index) for index in outcome.worst_index or ())
    notes.append(
      f"{outcome.failed_elements} of {outcome.elements} elements are past their bound; worst at "
      f"[{where}]: {outcome.worst_actual!r}, exact {outcome.worst_exact!r}, error "
      f"{outcome.worst_error:.3g}, bound {outcome.worst_bound:.3g}"
    )
  if outcome.unbounded_elements:
    notes.append(
      f"{outcome.unbounded_elements} of {outcome.elements} elements have no bound (their float32 "
      "sum may overflow) and were not judged"
    )
  return tuple(notes)
