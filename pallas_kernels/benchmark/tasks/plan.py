"""`--task=plan`: the planner's whole verdict on each tile and profile. Loads no JAX."""

import hw_profiles
from pallas_kernels.benchmark import cells, commands, environment, plans
from pallas_kernels.benchmark.flags import DEFAULT_PROFILES, Options
from pallas_kernels.benchmark.ops.op import Config
from pallas_kernels.benchmark.rows import Block, Report, Row
from pallas_kernels.benchmark.tiles import tiles_for
from pallas_kernels.benchmark.workload import Workload


def run(options: Options) -> Report:
  """Plans every tile of every workload on every profile."""
  rows: list[Row] = []
  blocks: list[Block] = []
  for workload in options.workloads:
    for choice in tiles_for(workload, options.profiles or DEFAULT_PROFILES):
      for profile in choice.profiles:
        verdict = plans.plan(workload, choice.tile, profile)
        rows.append(_row(options, workload, choice.tile, verdict))
        blocks.append(_block(workload, choice.tile, verdict))
  return Report(
    environment=environment.describe(with_device=False), rows=tuple(rows), blocks=tuple(blocks)
  )


def _row(options: Options, workload: Workload, tile: Config, verdict: hw_profiles.TilePlan) -> Row:
  return Row(
    kernel=workload.op.name,
    shape=str(workload.shape),
    dtype=workload.dtype,
    **plans.fields(workload, verdict, tile),
    arguments=commands.rerun(options, workload, tile=tile, profile=verdict.profile),
    notes=verdict.notes,
    details={
      "schedule": verdict.schedule,
      "grid": verdict.grid,
      "waves": verdict.waves,
      "tail_efficiency": verdict.tail_efficiency,
      "tier_traffic_bytes": dict(verdict.traffic_bytes),
      "times_us": dict(verdict.times_us),
      "assumptions": verdict.assumptions,
      "model_error": verdict.model_error,
    },
  )


def _block(workload: Workload, tile: Config, verdict: hw_profiles.TilePlan) -> Block:
  """Buffers as a table, the rest as lines."""
  lines = [
    f"fits: {cells.yes_no(verdict.fits)}; binding: {cells.names(verdict.binding)}; "
    f"schedule: {verdict.schedule}"
  ]
  if verdict.reason:
    lines.append(f"reason: {verdict.reason}")
  lines += workload.op.describe_plan(verdict)
  lines.append("traffic by tier, MiB: " + cells.pairs(verdict.traffic_bytes, cells.MIB))
  if verdict.predicted_us is not None:
    error = verdict.model_error
    told = "never checked" if error is None else f"{error:.0%} median error where measured"
    lines += [
      "busy, us: " + cells.pairs(verdict.times_us),
      f"predicted: {verdict.predicted_us:,.1f} us, bound by {verdict.bound} (estimate; {told})",
    ]
  lines += [f"note: {note}" for note in verdict.notes]
  lines += [f"assumes: {assumption}" for assumption in verdict.assumptions]
  return Block(
    title=f"{workload.name}, {cells.short_tile(tile)} on {verdict.profile}",
    header=("space", "buffer", "copies", "needed KiB", "available KiB"),
    cells=tuple(
      (
        buffer.space,
        buffer.name,
        str(buffer.count),
        cells.kib(buffer.needed_bytes),
        cells.kib(buffer.available_bytes),
      )
      for buffer in verdict.buffers
    ),
    numeric=frozenset({"copies", "needed KiB", "available KiB"}),
    lines=tuple(lines),
  )
