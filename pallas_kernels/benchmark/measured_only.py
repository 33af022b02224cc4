"""Jobs that are measured and not checked, which is quick: a few seconds for each ten.

All kernels are compiled side by side before the first is measured, and operands
are drawn on the device. What has a product for XLA is compiled by itself, a peer
or a call that we leave to it: among cuBLAS's kernels it chooses by timing them.
"""

import functools
import io
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from pallas_kernels.benchmark import jobs, rows, runner, timing
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.jobs import Job, Outcome
from pallas_kernels.benchmark.ops.attention import AttentionOp
from pallas_kernels.benchmark.ops.gemm import GemmOp
from pallas_kernels.benchmark.ops.rowwise import RowsOp
from pallas_kernels.benchmark.progress import Progress, Step
from pallas_kernels.benchmark.workload import Workload

# A compilation takes about a second, most of it outside of Python.
_MOST_THREADS = 16
_COMPILE_S = 1.0
# The kernels, and peers of which XLA has nothing to choose, but for products among them.
_TOGETHER = (None, "stream", "cudnn", "fa3", "tokamax")
_PRODUCT = "stablehlo.dot_general"
# drawing, warming up, measuring
_MEASURE_S = 0.5


def applies(options: Options, work: Sequence[Job]) -> bool:
  """Whether nothing is asked but device times, of ops whose operands may be any numbers."""
  return (
    runner.platform() == "gpu"
    and options.check == "none"
    and options.timer == "device"
    # what empties L2 has memory of its own
    and not (options.memory and options.cold_l2)
    and all(isinstance(job.workload.op, GemmOp | RowsOp | AttentionOp) for job in work)
  )


def execute(options: Options, work: Sequence[Job]) -> list[Outcome]:
  """As `jobs.execute`; one outcome for each job, in order."""
  ready = [job for job in work if job.selection.reason is None]
  steps = [
    Step("compiling", f"compiling {len(ready)} programs", _COMPILE_S * len(ready)),
    *(Step("measuring", f"{job.label}: running", _MEASURE_S) for job in ready),
  ]
  # None where the program was started with stderr closed: print() would take stdout then
  stream = sys.stderr or io.StringIO()
  progress = Progress(steps, rates={step.kind: 1.0 for step in steps}, stream=stream)
  if not ready:
    return [Outcome(fields={"reason": job.selection.reason}) for job in work]
  with progress.next():
    compiled = _compile(options, ready)
  outcomes = []
  drawn_for: Workload | None = None
  arrays: tuple[jax.Array, ...] = ()
  for job in work:
    if job.selection.reason is not None:
      outcomes.append(Outcome(fields={"reason": job.selection.reason}))
      continue
    with progress.next(), runner.exhaustion_as_memory_error():
      workload, op = job.workload, job.workload.op
      if workload != drawn_for:
        arrays = ()  # room for those to come
        operands = op.device_operands(workload.shape, workload.dtype, workload.options)
        arrays = timing.placed(operands, op.transposed_operands)
        drawn_for = workload
      outcomes.append(_measured(options, job, compiled.pop(0), arrays))
  return outcomes


def _compile(options: Options, ready: Sequence[Job]) -> list[jax.stages.Compiled | Exception]:
  """Each job's program, or what a peer raised."""

  def lower(job: Job) -> jax.stages.Lowered:
    op, workload = job.workload.op, job.workload
    abstract = op.abstract_operands(workload.shape, workload.dtype, workload.options)
    function = timing.taking_placed(jobs.function_of(job), abstract, op.transposed_operands)
    shapes = timing.placed_shapes(abstract, op.transposed_operands)
    return timing.lowered_for_device_timer(function, shapes, cold_l2=options.cold_l2)

  def compile_one(job: Job, *, alone: bool) -> jax.stages.Compiled | Exception | None:
    """None where it is to be compiled alone."""
    if not alone and job.peer not in _TOGETHER:
      return None
    try:
      lowered = lower(job)
      if not alone and _PRODUCT in lowered.as_text():
        return None
      return lowered.compile()
    except Exception as error:
      if job.peer is None:
        raise
      return error

  threads = min(_MOST_THREADS, os.cpu_count() or 1, len(ready))
  with ThreadPoolExecutor(threads) as pool:
    together = list(pool.map(functools.partial(compile_one, alone=False), ready))
  found = []
  for job, compiled in zip(ready, together, strict=True):
    compiled = compile_one(job, alone=True) if compiled is None else compiled
    assert compiled is not None
    found.append(compiled)
  return found


def _measured(
  options: Options,
  job: Job,
  compiled: jax.stages.Compiled | Exception,
  arrays: tuple[Any, ...],
) -> Outcome:
  name = job.selection.implementation
  try:
    if isinstance(compiled, Exception):
      raise compiled
    found = timing.measure_compiled(
      compiled, arrays, iterations=options.iterations, cold_l2=options.cold_l2
    )
  except Exception as error:
    # a peer that is missing, or lacks the call, says why and leaves the rest alone
    if job.peer is None:
      raise
    return Outcome(fields={"implementation": name, "reason": jobs.peer_failure(error)})
  fields = {"implementation": name, "check": rows.NOT_RUN}
  details = jobs.extra_bytes(compiled) if options.memory else {}
  if found is None:
    return Outcome(fields=fields, details=details, notes=job.selection.notes)
  return Outcome(
    fields=fields,
    details=details,
    measured_us=found.median_us,
    timing=jobs.timing_details(job, found),
    notes=job.selection.notes,
  )
