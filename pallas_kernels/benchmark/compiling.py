"""Tiles of the command line through the compilers, with progress; inputs of failures are kept."""

import dataclasses
import io
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import hw_profiles
from hw_profiles import GpuProfile, NpuProfile, TilePlan
from hw_profiles.capacity.compiled import MOST_COPIES
from pallas_kernels.benchmark import cells, lowered, output
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.ops.op import Config
from pallas_kernels.benchmark.progress import Tally
from pallas_kernels.benchmark.workload import Workload
from pallas_kernels.lowering.compile_pool import CompilePool
from pallas_kernels.lowering.compile_task import Compiled, CompileTask
from pallas_kernels.lowering.mosaic import MOSAIC_OPS, MosaicSummary

_COMPILED = ("mosaic_gpu", "triton")


def task(
  options: Options,
  workload: Workload,
  tile: Config,
  profile: str,
  *,
  texts: bool = False,
) -> CompileTask:
  """A tile of a workload for one device; `texts`: keep those of every stage."""
  sizes, op_options = lowered.arguments(workload)
  return CompileTask(
    op=workload.op.name,
    shapes=sizes,
    dtype=workload.dtype,
    config=tile,
    profile=profile,
    options=op_options,
    # what runs here is another matter
    implementation=options.implementation if options.implementation in _COMPILED else None,
    keep_stages=texts,
    keep_passes=texts and options.passes,
    time_limit_s=options.time_limit_s,
  )


def compiled(pool: CompilePool, tasks: Sequence[CompileTask], what: str) -> list[Compiled]:
  """Compiles them side by side, with progress on stderr."""
  tally = Tally(len(tasks), what, stream=sys.stderr or io.StringIO())
  return pool.compile(tasks, on_done=lambda _: tally.one())


def schedule(workload: Workload, profile: str) -> str:
  """The planner's name for the kernel that is compiled for a device; "auto": its own choice."""
  device = hw_profiles.get_profile(profile)
  hopper = isinstance(device, GpuProfile) and device.compute_capability == (9, 0)
  return "warp_specialized" if hopper and workload.op.name in MOSAIC_OPS else "auto"


def planned(workload: Workload, tile: Any, profile: str) -> TilePlan[Any, Any]:
  """The planner's verdict on the kernel that is compiled for a device.

  Of more stages than Huawei's compiler keeps copies it is that of as many as it keeps.
  """
  device = hw_profiles.get_profile(profile)
  if isinstance(device, NpuProfile):
    tile = dataclasses.replace(tile, num_stages=min(tile.num_stages, MOST_COPIES))
  return hw_profiles.plan(workload.problem(), tile, device, schedule=schedule(workload, profile))


def file_name(answer: Compiled, stage: str) -> str:
  """A name for the text of a stage: op, tile, device, stage."""
  task = answer.task
  return f"{task.op}_{cells.short_tile(task.config)}_{task.profile}_{stage}.mlir"


class Failures:
  """The inputs of compilers that failed, kept in one folder."""

  def __init__(self, options: Options) -> None:
    """Nothing is kept yet, and no folder made."""
    self._folder = options.folder

  def keep(self, answers: Iterable[Compiled]) -> dict[Compiled, str]:
    """Writes the last text of every failure; where each is."""
    kept = {}
    for answer in answers:
      if answer.outcome != "failed" or not answer.stages:
        continue
      if self._folder is None:
        self._folder = tempfile.mkdtemp(prefix="pallas-bench-failed-")
      stage, text = list(answer.stages.items())[-1]
      kept[answer] = output.write_into(text, file_name(answer, stage), self._folder)
    return kept


def mosaic_sentence(found: MosaicSummary) -> str:
  """What Mosaic GPU allocates and issues, in one sentence."""
  wgmmas = ", ".join(f"{count} x {shape}" for shape, count in found.wgmmas.items()) or "none"
  return (
    f"wgmma {wgmmas}; TMA copies {found.tma_loads} in, {found.tma_stores} out; barriers "
    f"{found.barriers}; shared memory {found.shared_bytes:,} B; grid "
    f"{' x '.join(map(str, found.grid))} of {found.block[0]} threads"
    + (f", clusters of {found.cluster[0]}" if found.cluster[0] > 1 else "")
  )


def ptxas_sentence(answer: Compiled) -> str:
  """Registers and spills, or why they are not known."""
  found = answer.ptxas
  if found is None:
    return "registers and spills: known after ptxas, which needs a GPU of that kind; not read here"
  return (
    f"ptxas: {found.registers} registers a thread, spilled {found.spill_store_bytes} B out, "
    f"{found.spill_load_bytes} B in"
  )


def ascend_sentence(answer: Compiled) -> str:
  """What a planned HIVM program does, in one sentence."""
  plan, found = answer.ascend, answer.operations
  assert plan is not None
  if found is None:
    return plan.reason
  return (
    f"{plan.core} kernel: dots {found.dots}, copies {found.copies}, vector operations "
    f"{found.vector_operations}; cross-core flags {found.flags_set} set, {found.flags_awaited} "
    f"awaited; flags between pipes {found.pipe_flags}, barriers {found.pipe_barriers}; double "
    f"buffering {plan.double_buffering}"
  )


def report_reasons(
  answers: Iterable[Compiled], kept: dict[Compiled, str], label: Callable[[Compiled], str]
) -> list[str]:
  """A sentence for each answer that is not plain: why not, what to know, where its input is."""
  lines: dict[str, None] = {}
  for answer in answers:
    if answer.outcome == "not available":
      lines[f"{answer.task.profile}: {answer.reason}"] = None
    elif answer.reason:
      where = f"; its input is kept in {kept[answer]}" if answer in kept else ""
      lines[f"{label(answer)}: {answer.outcome}: {answer.reason}{where}"] = None
    if answer.note:
      lines[f"{label(answer)}: {answer.note}"] = None
  return list(lines)
