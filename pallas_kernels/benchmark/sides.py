"""One tile on several devices: the planner's budget beside what each compiler allocates."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import hw_profiles
from hw_profiles import NpuProfile, TilePlan
from pallas_kernels.benchmark import cells, compiling
from pallas_kernels.benchmark.budgets import Memory, memories
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.ops.op import Config
from pallas_kernels.benchmark.rows import Block
from pallas_kernels.benchmark.workload import Workload
from pallas_kernels.lowering.compile_pool import CompilePool
from pallas_kernels.lowering.compile_task import Compiled

L0_IS_OURS = (
  "L0A and L0B are this library's own figures: Huawei's compiler neither plans nor checks them"
)
NOT_RUN_ON_ASCEND = (
  "Nothing ran on an Ascend device, and no machine code was made: the compiler goes as far as "
  "the address of every buffer."
)


@dataclasses.dataclass(frozen=True)
class Sides:
  """One tile on all devices: answers and plans by profile."""

  workload: Workload
  tile: Config
  answers: Mapping[str, Compiled]
  plans: Mapping[str, TilePlan[Any, Any]]

  def fields(self, profile: str) -> dict[str, Any]:
    """What the compiler of a device says, as fields of a row."""
    answer = self.answers[profile]
    return {
      "compiler": answer.compiler,
      "compiler_outcome": answer.outcome,
      "compiler_reason": answer.reason or None,
      "ptxas": answer.ptxas and dataclasses.asdict(answer.ptxas),
      "memories": [
        dataclasses.asdict(memory) | {"difference_bytes": memory.difference_bytes}
        for memory in memories(answer, self.plans[profile])
      ],
    }


def allocates(workload: Workload, profile: str) -> bool:
  """Whether a compiler plans the memory of the op on a device: Mosaic GPU on Hopper, Huawei's."""
  npu = isinstance(hw_profiles.get_profile(profile), NpuProfile)
  return npu or compiling.schedule(workload, profile) != "auto"


def compile_sides(
  options: Options,
  pool: CompilePool,
  cases: Sequence[tuple[Workload, Config, tuple[str, ...]]],
) -> list[Sides]:
  """Every tile of a workload on its profiles, compiled side by side."""
  tasks = [
    compiling.task(options, workload, tile, profile)
    for workload, tile, profiles in cases
    for profile in profiles
  ]
  answers = iter(compiling.compiled(pool, tasks, "tiles to compile"))
  sides = []
  for workload, tile, profiles in cases:
    by_profile = {profile: next(answers) for profile in profiles}
    planned = {name: compiling.planned(workload, tile, name) for name in profiles}
    sides.append(Sides(workload, tile, by_profile, planned))
  return sides


def _difference(memory: Memory) -> str:
  difference = memory.difference_bytes
  return "-" if difference is None else ("0" if difference == 0 else f"{difference:+,}")


def budget_block(side: Sides, kept: Mapping[Compiled, str], more: Sequence[str] = ()) -> Block:
  """A line for each memory, below a line for each device with what its compiler says."""
  table: list[tuple[str, ...]] = []
  groups: dict[int, str] = {}
  for profile, answer in side.answers.items():
    plan = side.plans[profile]
    predicted = "" if plan.predicted_us is None else f", {plan.predicted_us:,.1f} us predicted"
    groups[len(table)] = (
      f"{profile}: {answer.outcome}, {answer.compiler}; the planner: "
      f"{'fits' if plan.fits else 'does not fit'} ({plan.schedule}){predicted}"
    )
    table += [
      (
        f"  {memory.space}",
        cells.optional_bytes(memory.model_bytes),
        cells.optional_bytes(memory.compiler_bytes),
        _difference(memory),
        cells.optional_bytes(memory.available_bytes),
      )
      for memory in memories(answer, plan)
    ]
  header = ("memory", "planner, bytes", "compiler, bytes", "difference", "available")
  lines = [
    f"{profile}: {compiling.mosaic_sentence(answer.mosaic)}; {compiling.ptxas_sentence(answer)}"
    for profile, answer in side.answers.items()
    if answer.mosaic is not None
  ]
  planned = [answer.ascend for answer in side.answers.values() if answer.ascend is not None]
  if any(plan.core != "AIV" for plan in planned):
    lines.append(L0_IS_OURS)
  if planned:
    lines.append(NOT_RUN_ON_ASCEND)
  for profile, answer in side.answers.items():
    lines += _copies(answer, side.plans[profile])
  lines += compiling.report_reasons(
    side.answers.values(), dict(kept), lambda answer: answer.task.profile
  )
  lines += [
    f"{profile}: the planner: {plan.reason}" for profile, plan in side.plans.items() if plan.reason
  ]
  return Block(
    title=f"{side.workload.name}, tile {cells.short_tile(side.tile)}",
    header=header,
    cells=tuple(table),
    numeric=frozenset(header[1:]),
    groups=groups,
    lines=(*lines, *more),
  )


def _copies(answer: Compiled, plan: TilePlan[Any, Any]) -> list[str]:
  """Where planner and compiler keep another number of copies of one operand."""
  if answer.ascend is None:
    return []
  kept = {(b.space, b.role): b.count for b in answer.ascend.buffers if b.role}
  return [
    f"{plan.profile}: the planner counts {buffer.count} of {buffer.name} in {buffer.space}, the "
    f"compiler keeps {kept[buffer.space, buffer.name]}"
    for buffer in plan.buffers
    if kept.get((buffer.space, buffer.name), buffer.count) != buffer.count
  ]
