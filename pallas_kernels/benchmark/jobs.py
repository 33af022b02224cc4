"""One kernel on one problem: run it, measure it on a GPU, hold it against float64."""

import dataclasses
import io
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from pallas_kernels.benchmark import memory, operand_data, rows, runner, timing
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.ops.op import Config, Function, Operands, Shape
from pallas_kernels.benchmark.progress import Progress, Step
from pallas_kernels.benchmark.workload import Workload

NOT_MEASURED = (
  "measured_us is null: no GPU here, and an interpreter's wall time is no measurement of a kernel"
)

# First guesses, seconds, from a machine with two cores; finished steps correct
# them. Interpreted, a program of the kernel costs a copy of the arrays it works
# on (1.35 GB/s), a loop step 60 us, and the arithmetic 16 GFLOP/s; compiling 1 s.
_COMPILE_S = 1.0
_INTERPRETED_BYTES_PER_S = 1.35e9
_INTERPRETED_STEP_S = 60e-6
_INTERPRETED_FLOP_PER_S = 16e9
# the Mosaic GPU interpreter runs every thread of a block in Python
_MOSAIC_INTERPRETED_FLOP_PER_S = 1e7
# float64
_REFERENCE_FLOP_PER_S = 18e9
# drawn in float32, rounded to 2 bytes each
_OPERAND_BYTES_PER_S = 60e6
# on a GPU: compiling twice (once to time), copying, warming up
_GPU_S = 4.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """What is to run.

  Attributes:
    workload: The whole problem.
    part: The sizes of the part of it that runs; all of it: `workload.shape`.
    tile: The tile asked for; None: the implementation's own choice.
    label: For people, on progress lines.
    selection: What runs, or why nothing does.
    peer: The name of a peer that runs instead of a kernel.
    data: The operands' kind, of `operand_data.KINDS`.
    timed: Whether it is measured, too, where there is a GPU.
  """

  workload: Workload
  part: Shape
  tile: Config | None
  label: str
  selection: runner.Selection
  peer: str | None = None
  data: str = operand_data.NORMAL
  timed: bool = True

  @property
  def ran(self) -> str:
    """The implementation or the peer."""
    return self.peer or str(self.selection.implementation)


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
  platform = runner.platform()
  if options.measuring and platform != "gpu":
    raise UsageError(
      f"--{options.measuring[0]}: nothing is measured on {platform}, this flag needs a GPU"
    )


def refuse_too_large(options: Options) -> None:
  """Problems that have no room in this machine's memory are refused before any is drawn.

  Raises:
    UsageError: with the shape and the bytes.
  """
  for workload in options.workloads:
    memory.refuse_too_large(workload, check=options.check == "float64")


def kernel_s(
  workload: Workload, part: Shape, tile: Config | None, implementation: str | None
) -> float:
  """A guess at the seconds one job's kernel takes, to order jobs and to announce them."""
  op = workload.op
  flops = op.flops(part)
  if implementation == "mosaic_gpu_interpret":
    return _COMPILE_S + flops / _MOSAIC_INTERPRETED_FLOP_PER_S
  if implementation != "interpret" and runner.platform() == "gpu":
    return _GPU_S
  if implementation != "interpret" or tile is None:
    return _COMPILE_S + flops / _INTERPRETED_FLOP_PER_S
  programs, steps = op.steps(part, tile)
  copied_bytes = programs * op.once_through_bytes(part, workload.dtype, workload.options)
  return (
    _COMPILE_S
    + flops / _INTERPRETED_FLOP_PER_S
    + programs * steps * _INTERPRETED_STEP_S
    + copied_bytes / _INTERPRETED_BYTES_PER_S
  )


def reference_s(workload: Workload, part: Shape) -> float:
  """A guess at the seconds the float64 check takes."""
  return workload.op.check_flops(part) / _REFERENCE_FLOP_PER_S


def execute(options: Options, jobs: Sequence[Job]) -> list[Outcome]:
  """Runs the jobs in order, with progress on stderr; one outcome for each."""
  steps = list(_steps(options, jobs))
  # None where the program was started with stderr closed: print() would take stdout then
  stream = sys.stderr or io.StringIO()
  progress = Progress(steps, rates={step.kind: 1.0 for step in steps}, stream=stream)
  outcomes = []
  drawn_for: Workload | None = None
  whole: Operands = ()
  for job in jobs:
    if job.selection.reason is not None:
      outcomes.append(Outcome(fields={"reason": job.selection.reason}))
      continue
    workload = job.workload
    if workload != drawn_for:
      with progress.next():
        whole = workload.op.operands(workload.shape, workload.dtype, workload.options)
      drawn_for = workload
    part = whole if job.part == workload.shape else workload.op.cut(whole, job.part)
    part = operand_data.shaped(part, workload.dtype, job.data)
    outcomes.append(_execute(options, job, part, progress))
  return outcomes


def _steps(options: Options, jobs: Sequence[Job]) -> Iterator[Step]:
  """The steps `execute` goes through, in the same order."""
  drawn_for: Workload | None = None
  for job in jobs:
    if job.selection.reason is not None:
      continue
    workload = job.workload
    if workload != drawn_for:
      size_bytes = workload.op.once_through_bytes(workload.shape, workload.dtype, workload.options)
      yield Step(
        "operands",
        f"drawing operands of {workload.name}",
        0.1 + size_bytes / _OPERAND_BYTES_PER_S,
      )
      drawn_for = workload
    seconds = kernel_s(workload, job.part, job.selection.config, job.selection.implementation)
    yield Step(job.ran, f"{job.label}: running", seconds)
    if options.check == "float64":
      label = f"{job.label}: comparing with float64"
      yield Step("float64", label, 0.1 + reference_s(workload, job.part))


def _execute(options: Options, job: Job, operands: Operands, progress: Progress) -> Outcome:
  op, platform = job.workload.op, runner.platform()
  checks = options.check == "float64"
  checked = op.checked_operands(operands, job.workload.options) if checks else operands
  try:
    with progress.next(), runner.exhaustion_as_memory_error():
      actual, measurement = _run(options, job, operands, checked)
      needed = extra_bytes(_compiled(job, operands)) if options.memory else {}
  except Exception as error:
    # a peer that is missing, or lacks the call, says why and leaves the rest alone
    if job.peer is None:
      raise
    if checks:
      progress.skip()
    name = job.selection.implementation
    return Outcome(fields={"implementation": name, "reason": peer_failure(error)})
  fields: dict[str, Any] = {"implementation": job.selection.implementation}
  details: dict[str, Any] = dict(needed)
  notes = job.selection.notes
  if checks:
    with progress.next():
      verdict = op.check(
        actual,
        checked,
        job.workload.options,
        ran=job.ran,
        config=job.selection.config,
        platform=platform,
      )
    if job.peer is not None and verdict.check == rows.FAILED:
      verdict = dataclasses.replace(verdict, check=rows.DIFFERS)
    fields |= {
      "max_ulp": verdict.max_ulp,
      "relative_error": verdict.relative_error,
      "error_bound": verdict.error_bound,
      "check": verdict.check,
    }
    if verdict.check != rows.NOT_RUN:
      fields["checked"] = job.workload.describe_part(job.part)
      fields["checked_with"] = f"{job.ran} on {platform}"
      details["worst_bound_fraction"] = verdict.worst_bound_fraction
    notes += verdict.notes
  if measurement is None:
    return Outcome(fields=fields, details=details, notes=notes)
  return Outcome(
    fields=fields,
    details=details,
    measured_us=measurement.median_us,
    timing=timing_details(job, measurement),
    notes=notes,
  )


def _run(
  options: Options, job: Job, operands: Operands, checked: Operands
) -> tuple[Any, timing.Measurement | None]:
  """The result of the checked operands, and on a GPU the time of the others if it is asked for."""
  function = function_of(job)
  actual = runner.result(function, checked)
  if runner.platform() != "gpu" or not job.timed:
    return actual, None
  return actual, timing.measure(
    *timing.on_device(function, *operands, transposed=job.workload.op.transposed_operands),
    iterations=options.iterations,
    timer=options.timer,
    cold_l2=options.cold_l2,
  )


def extra_bytes(compiled: jax.stages.Compiled) -> dict[str, int]:
  """What a call has in memory beside its operands and results, and the bytes of the latter."""
  found = compiled.memory_analysis()
  if found is None:
    return {}
  return {"extra_bytes": found.temp_size_in_bytes, "result_bytes": found.output_size_in_bytes}


def _compiled(job: Job, operands: Operands) -> jax.stages.Compiled:
  function, arrays = timing.on_device(
    function_of(job), *operands, transposed=job.workload.op.transposed_operands
  )
  return jax.jit(function).lower(*arrays).compile()


def function_of(job: Job) -> Function:
  """What the job runs, as a function of its operands.

  A kernel is called as it was asked for. Where no name was, the one that was
  selected is not passed either: it would bind the gradients, too (rms_norm of
  7239 x 12288 on an H200: 273 us by name of the forward pass's kernel, whose
  gradient has a quicker one, 85 + 135 us without).

  Raises:
    Exception: a peer that is not there.
  """
  op, options = job.workload.op, job.workload.options
  if job.peer is not None:
    return op.peer(job.peer, options)
  return op.call(options, config=job.tile, implementation=job.selection.requested)


def peer_failure(error: Exception) -> str:
  """What a peer raised, in one line."""
  first = next(iter(str(error).strip().splitlines()), "")
  return f"{type(error).__name__}: {first[:300]}"


def timing_details(job: Job, measured: timing.Measurement) -> dict[str, Any]:
  """What the one measured number was taken from, and the rates it comes to."""
  workload = job.workload
  size_bytes = workload.op.once_through_bytes(job.part, workload.dtype, workload.options)
  flops = workload.op.counted_flops(job.part, workload.options)
  return {
    "measured_minimum_us": measured.minimum_us,
    "measured_maximum_us": measured.maximum_us,
    "measured_tflop_per_s": flops / measured.median_us * 1e-6,
    "measured_once_through_gbyte_per_s": size_bytes / measured.median_us * 1e-3,
    "iterations": measured.iterations,
    "timer": measured.timer,
    "cold_l2": measured.cold_l2,
    "measured_launches": measured.launches,
  }
