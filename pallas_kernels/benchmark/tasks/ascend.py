"""`--task=ascend`: a tile's budget beside what each vendor's compiler allocates for it.

One table a tile: of every memory of every device what the planner counts and
what the compiler takes. Then Huawei's plans, buffer by buffer, and for a tile
that one compiler does not take the nearest that all take.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from hw_profiles import TilePlan
from pallas_kernels.benchmark import (
  accepted,
  cells,
  commands,
  compiling,
  environment,
  lowered,
)
from pallas_kernels.benchmark.budgets import Memory, memories
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.rows import NOT_RUN, Block, Report, Written
from pallas_kernels.benchmark.sides import (
  L0_IS_OURS,
  NOT_RUN_ON_ASCEND,
  Sides,
  budget_block,
  compile_sides,
)
from pallas_kernels.lowering.compile_pool import CompilePool
from pallas_kernels.lowering.compile_task import Compiled


@dataclasses.dataclass(frozen=True, kw_only=True)
class AscendRow(Written):
  """One tile on one device.

  Attributes:
    kernel: The op.
    shape: Sizes as `--shape` takes them.
    dtype: Of the operands.
    tile: As `--tile` takes it.
    profile: The device.
    vendor: Its vendor.
    compiler: What compiled it.
    outcome: "accepted", "too large", "refused", "failed" or "not available".
    reason: Why it was not accepted.
    model_fits: Whether the planner says that it fits.
    model_reason: Why it does not.
    predicted_us: The planner's estimate.
    memories: Budget and allocation of each memory.
    allocation: All that the compiler says: Mosaic GPU's counts, or Huawei's plan.
    operations: What the planned program of an Ascend does.
    ptxas: Registers and spills of the Hopper kernel, where a GPU of that kind is here.
    nearest: The nearest tile that every compiler asked takes; None where this
      one is it, or none was found.
    input_kept: The file with the input of a compiler that failed.
    arguments: A command line that gives this row again.
    notes: Anything else a reader must know.
  """

  kernel: str
  shape: str
  dtype: str
  tile: str
  profile: str
  vendor: str
  compiler: str
  outcome: str
  reason: str | None
  model_fits: bool
  model_reason: str | None
  predicted_us: float | None
  memories: tuple[Memory, ...]
  allocation: Any
  operations: Any
  ptxas: Any
  nearest: str | None
  input_kept: str | None
  arguments: str
  notes: tuple[str, ...]
  check: str = NOT_RUN

  def as_dict(self) -> dict[str, Any]:
    """The row as JSON holds it, with the differences written out."""
    fields = super().as_dict()
    for written, memory in zip(fields["memories"], self.memories, strict=True):
      written["difference_bytes"] = memory.difference_bytes
    return fields


def run(options: Options) -> Report:
  """Compiles every tile for every device and puts the planner's figures beside it."""
  profiles = options.profiles or lowered.DEFAULT_PROFILES
  cases = [
    (workload, tile, profiles)
    for workload in options.workloads
    for tile in (workload.tiles or workload.op.default_tiles)
  ]
  failures = compiling.Failures(options)
  with CompilePool(options.jobs) as pool:
    sides = compile_sides(options, pool, cases)
    kept = failures.keep(answer for side in sides for answer in side.answers.values())
    nearest = [_nearest(options, pool, side) for side in sides]
    kept |= failures.keep(answer for near in nearest if near for answer in near.answers)
  rows, blocks = [], []
  for side, near in zip(sides, nearest, strict=True):
    rows += [_row(options, side, profile, near, kept) for profile in profiles]
    told = [_nearest_sentence(side, near), *_failed_nearby(near, kept)]
    blocks += [budget_block(side, kept, told), *_plan_blocks(side)]
  return Report(
    environment=environment.describe(with_device=False), rows=tuple(rows), blocks=tuple(blocks)
  )


def _nearest(options: Options, pool: CompilePool, side: Sides) -> accepted.Found | None:
  """The nearest tile that all compilers take; None where nothing is to be looked for."""
  if all(one.accepted for one in side.answers.values()):
    return None
  able = [name for name, one in side.answers.items() if one.outcome != "not available"]
  refused = [side.answers[name] for name in able if not side.answers[name].accepted]
  if not refused:
    return None
  return accepted.nearest(options, pool, side.workload, side.tile, tuple(able))


def _notes(answer: Compiled, plan: TilePlan[Any, Any]) -> tuple[str, ...]:
  notes = [answer.note] if answer.note else []
  if answer.mosaic is not None:
    notes.append(compiling.ptxas_sentence(answer))
  if answer.ascend is not None and answer.ascend.core != "AIV":
    notes.append(L0_IS_OURS)
  if answer.ascend is not None:
    notes.append(NOT_RUN_ON_ASCEND)
  return (*notes, *plan.notes)


def _row(
  options: Options,
  side: Sides,
  profile: str,
  near: accepted.Found | None,
  kept: Mapping[Compiled, str],
) -> AscendRow:
  answer, plan, workload = side.answers[profile], side.plans[profile], side.workload
  return AscendRow(
    kernel=workload.op.name,
    shape=str(workload.shape),
    dtype=workload.dtype,
    tile=side.tile.describe(),
    profile=profile,
    vendor=plan.vendor,
    compiler=answer.compiler,
    outcome=answer.outcome,
    reason=answer.reason or None,
    model_fits=plan.fits,
    model_reason=plan.reason or None,
    predicted_us=plan.predicted_us,
    memories=memories(answer, plan),
    allocation=answer.mosaic if answer.ascend is None else _plan_fields(answer),
    operations=answer.operations,
    ptxas=answer.ptxas,
    nearest=None if near is None or near.tile is None else near.tile.describe(),
    input_kept=kept.get(answer),
    arguments=commands.rerun(options, workload, tile=side.tile, profile=profile),
    notes=_notes(answer, plan),
  )


def _plan_fields(answer: Compiled) -> dict[str, Any]:
  """Huawei's plan without its texts."""
  plan = answer.ascend
  assert plan is not None
  return {
    field.name: getattr(plan, field.name)
    for field in dataclasses.fields(plan)
    if field.name != "stages"
  }


def _nearest_sentence(side: Sides, near: accepted.Found | None) -> str:
  names = ", ".join(name for name, one in side.answers.items() if one.outcome != "not available")
  if near is None:
    missing = [name for name, one in side.answers.items() if one.outcome == "not available"]
    if missing:
      return f"not compiled for {', '.join(missing)}: nothing to compare there"
    return f"this tile is taken on {names}: nothing to change"
  if near.tile is None:
    return f"no tile near it is taken on all of {names}: {near.told}"
  return f"the nearest tile that is taken on {names}: {near.tile.describe()} ({near.told})"


def _failed_nearby(near: accepted.Found | None, kept: dict[Compiled, str]) -> list[str]:
  """A sentence for each compiler that failed while a tile was looked for."""
  failed = [answer for answer in near.answers if answer.outcome == "failed"] if near else []
  return compiling.report_reasons(
    failed,
    kept,
    lambda answer: f"{cells.short_tile(answer.task.config)} on {answer.task.profile}",
  )


def _plan_blocks(side: Sides) -> list[Block]:
  return [
    _plan_block(side, profile, answer)
    for profile, answer in side.answers.items()
    if answer.ascend is not None
  ]


def _plan_block(side: Sides, profile: str, answer: Compiled) -> Block:
  """Every buffer of Huawei's plan with its addresses."""
  plan = answer.ascend
  assert plan is not None
  table = [
    (
      program.core,
      buffer.space,
      buffer.role or "-",
      "x".join(map(str, buffer.shape)),
      buffer.element,
      str(buffer.count),
      cells.optional_bytes(buffer.copy_bytes),
      ", ".join(f"{address:,}" for address in buffer.addresses),
    )
    for program in plan.programs
    for buffer in program.buffers
  ]
  lines = [f"{plan.core or 'no'} kernel; double buffering: {plan.double_buffering}"]
  if plan.overflow is not None:
    wanted = plan.overflow
    lines = [
      f"overflow: {wanted.space} wants {wanted.needed_bits:,} bits, there are "
      f"{wanted.available_bits:,}; double buffering: {plan.double_buffering}"
    ]
  if plan.given_up:
    lines.append(f"switched off for lack of memory: {', '.join(plan.given_up)}")
  if plan.sub_block_reverted:
    lines.append(f"the vector cores do not share the tile: {plan.sub_block_reverted}")
  if plan.fits:
    blocks = plan.workspace_bytes_per_block
    lines.append(f"workspace in GM: {blocks:,} B a block")
  for program in plan.programs:
    if program.flags_set or program.flags_awaited:
      lines.append(
        f"{program.core}: cross-core flags set {len(program.flags_set)}, awaited "
        f"{len(program.flags_awaited)}"
      )
  if answer.operations is not None:
    lines.append(compiling.ascend_sentence(answer))
  return Block(
    title=f"{cells.short_tile(side.tile)} on {profile}: the plan of {answer.compiler}",
    header=("core", "memory", "role", "shape", "type", "copies", "bytes each", "addresses")
    if table
    else (),
    cells=tuple(table),
    numeric=frozenset({"copies", "bytes each"}),
    lines=tuple(lines),
  )
