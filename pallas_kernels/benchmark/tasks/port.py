"""`--task=port`: what must change between devices for one op and size, and why.

For each device the best tile that its compiler takes; between the first device
and each of the others every field that differs, with what keeping it would
cost; and one tile for all of them, with what that costs on each.
"""

import dataclasses
from collections.abc import Mapping

import hw_profiles
from hw_profiles import NpuProfile
from pallas_kernels.benchmark import (
  accepted,
  cells,
  commands,
  compiling,
  environment,
  lowered,
  plans,
)
from pallas_kernels.benchmark.budgets import memories
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.porting import Best, Change, best_tile, changes, common_tile
from pallas_kernels.benchmark.rows import NOT_RUN, Block, Report, Written
from pallas_kernels.benchmark.workload import Workload
from pallas_kernels.lowering.compile_pool import CompilePool
from pallas_kernels.lowering.compile_task import Compiled

_LIMITS = (
  "Times are the planner's estimates. Nothing ran on an Ascend device, and no time was measured "
  "on one.",
  "Huawei's compiler goes as far as the address of every buffer in UB, L1 and L0C; no machine "
  "code was made. L0A and L0B it neither plans nor checks: those are this library's own figures.",
  "Huawei's compiler keeps one copy of what it loads or two, whatever num_stages says; it is given "
  "the portable Pallas kernel, Hopper the kernel of its own.",
  "Registers and spills of the Hopper kernel are known after ptxas, which needs a GPU.",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PortRow(Written):
  """One device.

  Attributes:
    kernel: The op.
    shape: Sizes as `--shape` takes them.
    dtype: Of the operands.
    profile: The device.
    vendor: Its vendor.
    compiler: What its tiles were compiled with.
    outcome: Of the tile: "accepted"; "not available" where only the planner was asked.
    tile: The best that the compiler takes; None where it took none.
    model_tile: The best by the planner alone.
    predicted_us: Estimated time of `tile`.
    bound: The resource that sets it.
    binding: What is full.
    refused: Better tiles that the compiler did not take, and why.
    ported_from: The device that the changes are against; None for that itself.
    changes: Fields that differ from there.
    kept_tile_us: Predicted time of that device's tile here; None: does not fit.
    kept_tile_reason: Why not.
    common_tile: The best tile that is taken everywhere.
    common_us: Its predicted time here.
    arguments: A command line that gives this row again.
    notes: Anything else a reader must know.
  """

  kernel: str
  shape: str
  dtype: str
  profile: str
  vendor: str
  compiler: str | None
  outcome: str
  tile: str | None
  model_tile: str | None
  predicted_us: float | None
  bound: str | None
  binding: tuple[str, ...]
  refused: tuple[str, ...]
  ported_from: str | None
  changes: tuple[Change, ...]
  kept_tile_us: float | None
  kept_tile_reason: str | None
  common_tile: str | None
  common_us: float | None
  arguments: str
  notes: tuple[str, ...]
  check: str = NOT_RUN


def run(options: Options) -> Report:
  """The report of every workload."""
  profiles = options.profiles or lowered.DEFAULT_PROFILES
  failures = compiling.Failures(options)
  rows: list[PortRow] = []
  blocks: list[Block] = []
  with CompilePool(options.jobs) as pool:
    for workload in options.workloads:
      bests = [best_tile(options, pool, workload, profile) for profile in profiles]
      common = common_tile(options, pool, workload, bests)
      kept = failures.keep(answer for best in bests for answer in best.answers)
      if common is not None:
        kept |= failures.keep(common.answers)
      made = [_row(options, workload, bests[0], best, common) for best in bests]
      rows += made
      blocks += _blocks(workload, bests, made, common, kept)
  return Report(
    environment=environment.describe(with_device=False), rows=tuple(rows), blocks=tuple(blocks)
  )


def _refusals(best: Best) -> tuple[str, ...]:
  return tuple(
    f"{cells.short_tile(answer.task.config)}: {answer.outcome}: {answer.reason}"
    for answer in best.answers
    if not answer.accepted and answer.outcome != "not available"
  )


def _row(
  options: Options,
  workload: Workload,
  source: Best,
  best: Best,
  common: accepted.Found | None,
) -> PortRow:
  plan = best.plan
  ported = best is not source and plan is not None and source.plan is not None
  kept = None
  if ported and source.plan is not None:
    kept = compiling.planned(workload, source.plan.config, best.profile)
  shared = None if common is None else common.tile
  common_us = (
    None if shared is None else compiling.planned(workload, shared, best.profile).predicted_us
  )
  missing = [answer.reason for answer in best.answers if answer.outcome == "not available"]
  return PortRow(
    kernel=workload.op.name,
    shape=str(workload.shape),
    dtype=workload.dtype,
    profile=best.profile,
    vendor=hw_profiles.get_profile(best.profile).vendor,
    compiler=best.answers[0].compiler if best.answers else None,
    outcome="accepted" if best.compiled and plan is not None else _outcome(best),
    tile=None if plan is None else plan.config.describe(),
    model_tile=best.ranked[0].config.describe() if best.ranked else None,
    predicted_us=None if plan is None else plan.predicted_us,
    bound=None if plan is None else plan.bound,
    binding=() if plan is None else plan.binding,
    refused=_refusals(best),
    ported_from=source.profile if best is not source else None,
    changes=changes(workload, source, best) if ported else (),
    kept_tile_us=kept.predicted_us if kept is not None and kept.fits else None,
    kept_tile_reason=None if kept is None or kept.fits else kept.reason,
    common_tile=None if shared is None else shared.describe(),
    common_us=common_us,
    arguments=commands.rerun(options, workload, profile=f"{source.profile},{best.profile}")
    if best is not source
    else commands.rerun(options, workload, profile=best.profile),
    notes=tuple(dict.fromkeys(missing)),
  )


def _outcome(best: Best) -> str:
  return best.answers[-1].outcome if best.answers else "refused"


def _blocks(
  workload: Workload,
  bests: list[Best],
  rows: list[PortRow],
  common: accepted.Found | None,
  kept: Mapping[Compiled, str],
) -> list[Block]:
  return [
    _best_block(workload, bests, rows, kept),
    *(
      _change_block(bests[0], best, row)
      for best, row in zip(bests[1:], rows[1:], strict=True)
      if row.tile is not None and bests[0].plan is not None
    ),
    *([] if common is None else [_common_block(common, rows)]),
    _memory_block(bests),
    _limits_block(workload, bests),
  ]


def _best_block(
  workload: Workload, bests: list[Best], rows: list[PortRow], kept: Mapping[Compiled, str]
) -> Block:
  header = ("device", "best tile", "taken by", "predicted us", "bound", "full")
  table = []
  for best, row in zip(bests, rows, strict=True):
    taken = row.compiler or "-" if row.outcome == "accepted" else f"({row.outcome})"
    tile = "-" if best.plan is None else cells.short_tile(best.plan.config)
    table.append(
      (
        best.profile,
        tile,
        taken,
        cells.number(row.predicted_us),
        row.bound or "-",
        cells.names(row.binding),
      )
    )
  answers = [answer for best in bests for answer in best.answers]
  return Block(
    title=f"Porting {workload.name}",
    header=header,
    cells=tuple(table),
    numeric=frozenset({"predicted us"}),
    lines=(
      f"{cells.tile_legend(workload.op.config_class)}; blocks are powers of two, as the portable "
      "kernel wants them; the first of the planner's ranking that the compiler takes",
      *compiling.report_reasons(answers, dict(kept), _label),
    ),
  )


def _label(answer: Compiled) -> str:
  return f"{cells.short_tile(answer.task.config)} on {answer.task.profile}"


def _change_block(source: Best, best: Best, row: PortRow) -> Block:
  lines = []
  assert source.plan is not None
  tile = cells.short_tile(source.plan.config)
  if row.kept_tile_us is None:
    lines.append(f"{source.profile}'s {tile} as it is does not fit: {row.kept_tile_reason}")
  else:
    assert row.predicted_us is not None
    share = round(100 * (row.kept_tile_us / row.predicted_us - 1))
    lines.append(
      f"{source.profile}'s {tile} as it is would take {row.kept_tile_us:,.1f} us ({share:+d} %)"
    )
  lines.append(
    "each line keeps one value alone, in this device's tile; the time, or that it does not fit, is "
    "the planner's word"
  )
  header = ("field", source.profile, best.profile, f"with {source.profile}'s value")
  return Block(
    title=f"From {source.profile} to {best.profile}",
    header=header if row.changes else (),
    cells=tuple(
      (change.field, str(change.there), str(change.here), change.why()) for change in row.changes
    ),
    lines=tuple(lines) if row.changes else (*lines[:1], "nothing has to change"),
  )


def _common_block(common: accepted.Found, rows: list[PortRow]) -> Block:
  if common.tile is None:
    return Block(title="One tile for all", lines=(f"none is taken on every device: {common.told}",))
  table = []
  for row in rows:
    share = (
      "-"
      if row.common_us is None or row.predicted_us is None
      else f"{round(100 * (row.common_us / row.predicted_us - 1)):+d} %"
    )
    table.append((row.profile, cells.number(row.common_us), cells.number(row.predicted_us), share))
  header = ("device", "predicted us", "own best, us", "loss")
  return Block(
    title=f"One tile for all: {common.tile.describe()}",
    header=header,
    cells=tuple(table),
    numeric=frozenset(header[1:]),
    lines=(
      "of all the tiles that the planner offers on one of them, the one that loses least where it "
      f"loses most; {common.told}",
      *compiling.report_reasons(
        (one for one in common.answers if one.task.config == common.tile), {}, _label
      ),
    ),
  )


def _memory_block(bests: list[Best]) -> Block:
  """How full each memory is, by the planner and by what the compiler allocates."""
  table = []
  for best in bests:
    if best.plan is None:
      continue
    tile = best.plan.config
    answer = next((a for a in best.answers if a.task.config == tile), None)
    if answer is None:
      continue
    table += [
      (
        best.profile,
        memory.space,
        cells.optional_bytes(memory.model_bytes),
        cells.optional_bytes(memory.compiler_bytes),
        cells.optional_bytes(memory.available_bytes),
      )
      for memory in memories(answer, best.plan)
    ]
  header = ("device", "memory", "planner, bytes", "compiler, bytes", "available")
  return Block(
    title="What the best tiles take",
    header=header,
    cells=tuple(table),
    numeric=frozenset(header[2:]),
  )


def _limits_block(workload: Workload, bests: list[Best]) -> Block:
  lines = [plans.trust(workload, best.profile) for best in bests]
  for best in bests:
    if best.plan is not None:
      lines += [
        f"{best.profile}: {text}"
        for text in best.plan.assumptions
        if text.startswith("outside the evidence")
      ]
  npus = any(isinstance(hw_profiles.get_profile(best.profile), NpuProfile) for best in bests)
  return Block(title="Limits of this report", lines=(*lines, *(_LIMITS if npus else _LIMITS[:1])))
