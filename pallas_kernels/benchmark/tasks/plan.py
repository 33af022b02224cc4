"""`--task=plan`: the planner's whole verdict on each tile and profile. Loads no JAX."""

from collections.abc import Mapping

import hw_profiles
from pallas_kernels.benchmark import commands, environment, planning
from pallas_kernels.benchmark.flags import DEFAULT_PROFILES, Options
from pallas_kernels.benchmark.parsing import Shape
from pallas_kernels.benchmark.rows import Block, Report, Row
from pallas_kernels.benchmark.tiles import tiles_for


def run(options: Options) -> Report:
  """Plans every kernel, shape, dtype, tile and profile of the options."""
  rows: list[Row] = []
  blocks: list[Block] = []
  for kernel in options.kernels:
    for shape in options.shapes:
      for dtype in options.dtypes:
        what = planning.problem(options, shape, dtype)
        profiles = options.profiles or DEFAULT_PROFILES
        for choice in tiles_for(options, what, profiles):
          for profile in choice.profiles:
            verdict = planning.plan(what, choice.tile, profile)
            rows.append(_row(options, kernel, shape, dtype, verdict))
            blocks.append(_block(kernel, shape, dtype, verdict))
  return Report(
    environment=environment.describe(with_device=False), rows=tuple(rows), blocks=tuple(blocks)
  )


def _row(
  options: Options, kernel: str, shape: Shape, dtype: str, verdict: hw_profiles.TilePlan
) -> Row:
  return Row(
    kernel=kernel,
    shape=str(shape),
    dtype=dtype,
    **planning.fields(verdict),
    arguments=commands.rerun(
      options,
      kernel=kernel,
      shape=shape,
      dtype=dtype,
      tile=verdict.config,
      profile=verdict.profile,
    ),
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


def _block(kernel: str, shape: Shape, dtype: str, verdict: hw_profiles.TilePlan) -> Block:
  """Buffers as a table, the rest as lines."""
  traffic = verdict.traffic
  lines = [
    f"fits: {planning.yes_no(verdict.fits)}; binding: {planning.names(verdict.binding)}; "
    f"schedule: {verdict.schedule}"
  ]
  if verdict.reason:
    lines.append(f"reason: {verdict.reason}")
  rows, columns = verdict.grid
  lines += [
    f"tiles: {rows} x {columns}, {traffic.k_steps} K steps each; resident blocks: "
    f"{verdict.resident_blocks}; waves: {verdict.waves}, {verdict.tail_efficiency:.0%} full",
    f"working set: {planning.kib(traffic.working_set_bytes)} KiB; traffic of a product: "
    f"A {planning.mib(traffic.a_read_bytes)} + B {planning.mib(traffic.b_read_bytes)} + "
    f"C {planning.mib(traffic.c_write_bytes)} = {planning.mib(traffic.total_bytes)} MiB, "
    f"{traffic.intensity:.1f} FLOP/B",
    "traffic by tier, MiB: " + _pairs(verdict.traffic_bytes, planning.MIB),
  ]
  if verdict.predicted_us is not None:
    error = verdict.model_error
    told = "never checked" if error is None else f"{error:.0%} median error where measured"
    lines += [
      "busy, us: " + _pairs(verdict.times_us, 1),
      f"predicted: {verdict.predicted_us:,.1f} us, bound by {verdict.bound} (estimate; {told})",
    ]
  lines += [f"note: {note}" for note in verdict.notes]
  lines += [f"assumes: {assumption}" for assumption in verdict.assumptions]
  return Block(
    title=f"{kernel} {shape} {dtype}, {planning.short(verdict.config)} on {verdict.profile}",
    header=("space", "buffer", "copies", "needed KiB", "available KiB"),
    cells=tuple(
      (
        buffer.space,
        buffer.name,
        str(buffer.count),
        planning.kib(buffer.needed_bytes),
        planning.kib(buffer.available_bytes),
      )
      for buffer in verdict.buffers
    ),
    numeric=frozenset({"copies", "needed KiB", "available KiB"}),
    lines=tuple(lines),
  )


def _pairs(values: Mapping[str, float], unit: int) -> str:
  return ", ".join(f"{name} {value / unit:,.1f}" for name, value in values.items()) or "none"
