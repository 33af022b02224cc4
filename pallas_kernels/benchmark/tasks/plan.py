"""`--task=plan`: the planner's whole verdict on each tile and profile. Loads no JAX.

For people: first every tile of a problem in one table, then what the estimates
of each profile rest on, said once, then each tile's buffers and times, in the order of the table.
"""

import dataclasses
import functools
import math
from typing import Any

import hw_profiles
from pallas_kernels.benchmark import cells, commands, environment, plans
from pallas_kernels.benchmark.flags import DEFAULT_PROFILES, Options
from pallas_kernels.benchmark.ops.op import Config
from pallas_kernels.benchmark.rows import Block, Report, Row
from pallas_kernels.benchmark.tiles import tiles_for
from pallas_kernels.benchmark.workload import Workload

# What would help each tile is found where there are no more of them than this, at 10 to
# 60 ms each.
_MOST_HELPED = 200

# Where tiles are given, the planner's own pick among them is marked if finding it
# takes no more rankings than this, of about 30 ms each.
_MOST_RANKINGS = 50


@dataclasses.dataclass
class _Planned:
  """One tile on one profile, and whether the planner ranks it first there."""

  workload: Workload
  tile: Config
  verdict: hw_profiles.TilePlan
  picked: bool

  @functools.cached_property
  def helps(self) -> hw_profiles.WhatHelps:
    """What one change would help most."""
    return hw_profiles.what_helps(self.verdict)


def run(options: Options) -> Report:
  """Plans every tile of every workload on every profile."""
  profiles = options.profiles or DEFAULT_PROFILES
  rank_given = len(options.workloads) * len(profiles) <= _MOST_RANKINGS
  cases: list[tuple[Workload, list[_Planned]]] = []
  for workload in options.workloads:
    planned = [
      _Planned(
        workload, choice.tile, plans.plan(workload, choice.tile, profile), profile in choice.best_on
      )
      for choice in tiles_for(workload, profiles, rank_given=rank_given)
      for profile in choice.profiles
    ]
    cases.append((workload, planned))
  everything = [one for _, planned in cases for one in planned]
  helped = len(everything) <= _MOST_HELPED
  return Report(
    environment=environment.describe(with_device=False),
    rows=tuple(_row(options, one, helped) for one in everything),
    blocks=(
      *(_summary(workload, planned, helped) for workload, planned in cases),
      *_assumptions(everything),
      *(_detail(one, helped) for _, planned in cases for one in _best_first(planned)),
    ),
  )


def _row(options: Options, planned: _Planned, helped: bool) -> Row:
  workload, verdict = planned.workload, planned.verdict
  return Row(
    kernel=workload.op.name,
    shape=str(workload.shape),
    dtype=workload.dtype,
    **plans.fields(workload, verdict, planned.tile),
    arguments=commands.rerun(options, workload, tile=planned.tile, profile=verdict.profile),
    notes=verdict.notes,
    details={
      "schedule": verdict.schedule,
      "grid": verdict.grid,
      "waves": verdict.waves,
      "tail_efficiency": verdict.tail_efficiency,
      "tier_traffic_bytes": dict(verdict.traffic_bytes),
      "times_us": dict(verdict.times_us),
      "unknown_us": dict(verdict.unknown_us),
      "adds_up": verdict.adds_up(),
      "floor_us": plans.floor(workload, verdict.profile).time_us,
      "what_helps": _what_helps(planned.helps) if helped else None,
      "assumptions": verdict.assumptions,
      "model_error": _model_error(workload, verdict.profile),
    },
  )


def _what_helps(helps: hw_profiles.WhatHelps) -> dict[str, Any]:
  """The change of the tile, and each resource without its limit, as fields."""

  def fields(change: hw_profiles.Change) -> dict[str, Any]:
    return {
      "what": change.what,
      "predicted_us": change.predicted_us,
      "gain": change.gain,
      "bound": change.bound,
    }

  return {
    "tile": None if helps.tile is None else fields(helps.tile),
    "without_limit": [fields(change) for change in helps.ideal],
  }


def _model_error(workload: Workload, profile: str) -> dict[str, Any] | None:
  error = plans.model_error(workload, profile)
  if error is None:
    return None
  return dataclasses.asdict(error) | {"compared": plans.compared(error)}


def _best_first(planned: list[_Planned]) -> list[_Planned]:
  """Profile by profile: the planner's pick, then the quickest, and last what does not fit."""
  profiles = list(dict.fromkeys(one.verdict.profile for one in planned))

  def order(one: _Planned) -> tuple[int, bool, bool, float]:
    predicted_us = one.verdict.predicted_us
    return (
      profiles.index(one.verdict.profile),
      not one.picked,
      not one.verdict.fits,
      math.inf if predicted_us is None else predicted_us,
    )

  return sorted(planned, key=order)


def _summary(workload: Workload, planned: list[_Planned], helped: bool) -> Block:
  """Every tile in a line, and what no tile can be faster than."""
  header = (
    "profile",
    "tile",
    "fits",
    "predicted us",
    "bound",
    "binding",
    "traffic MiB",
    "most help",
  )
  lines = [f"{cells.tile_legend(workload.op.config_class)}; {plans.WELL_TUNED}"]
  if any(one.picked for one in planned):
    lines.append(plans.RANKED_FIRST_LEGEND)
  lines += plans.bound_legend(one.verdict for one in planned)
  lines += _floors(workload, planned)
  return Block(
    title=workload.name,
    header=header,
    cells=tuple(
      (
        one.verdict.profile,
        cells.short_tile(one.tile) + (" *" if one.picked else ""),
        cells.yes_no(one.verdict.fits),
        cells.number(one.verdict.predicted_us),
        plans.bound(one.verdict),
        cells.names(one.verdict.binding),
        cells.mib(workload.op.traffic_bytes(one.verdict)),
        _most_help(one) if helped else "-",
      )
      for one in _best_first(planned)
    ),
    numeric=frozenset({"predicted us", "traffic MiB"}),
    lines=tuple(lines),
  )


def _floors(workload: Workload, planned: list[_Planned]) -> list[str]:
  """Of each profile: how long arithmetic and memory take at their peaks, and what the best is."""
  best_us: dict[str, float | None] = {}
  for one in planned:
    found, name = one.verdict.predicted_us, one.verdict.profile
    known = [time for time in (best_us.get(name), found) if time is not None]
    best_us[name] = min(known, default=None)
  lines = []
  for name, time_us in best_us.items():
    floor = plans.floor(workload, name)
    line = f"at the peaks of {name}: {floor.sentence}"
    if time_us:
      line += f"; the best tile here reaches {floor.time_us / time_us:.0%} of that"
    lines.append(line.replace("%", " %"))
  return lines


def _most_help(planned: _Planned) -> str:
  """The one change of the tile that helps most, and by how much; the schedule follows it."""
  change = planned.helps.tile
  if change is None:
    return "-"
  what = change.what.partition(" as ")[0]
  return what if change.gain is None else f"{what} {-100 * change.gain:+.0f} %"


def _assumptions(planned: list[_Planned]) -> list[Block]:
  """What the estimates of each profile rest on; what several tiles share is said once."""
  said: dict[str, dict[str, None]] = {}
  for one in planned:
    sentences = said.setdefault(one.verdict.profile, {})
    sentences[plans.trust(one.workload, one.verdict.profile)] = None
    if (error := plans.model_error(one.workload, one.verdict.profile)) is not None:
      sentences[f"measured: {error.source}"] = None
    sentences |= dict.fromkeys(
      text if text.startswith("outside the evidence") else f"assumes: {text}"
      for text in one.verdict.assumptions
      # the planner's words for the same error
      if not text.startswith("times: ")
    )
  return [
    Block(title=f"Times on {profile}", lines=tuple(sentences))
    for profile, sentences in said.items()
  ]


def _predicted(planned: _Planned) -> str:
  """The estimate, also as a rate where the op has one."""
  verdict = planned.verdict
  assert verdict.predicted_us is not None
  flops = plans.floor(planned.workload, verdict.profile).flops
  rate = f", {flops / verdict.predicted_us / 1e6:,.0f} TFLOP/s" if flops else ""
  return f"predicted: {verdict.predicted_us:,.1f} us (estimate){rate}, bound by {verdict.bound}"


def _detail(planned: _Planned, helped: bool) -> Block:
  """Buffers as a table, the rest as lines."""
  workload, verdict = planned.workload, planned.verdict
  lines = [
    f"fits: {cells.yes_no(verdict.fits)}; binding: {cells.names(verdict.binding)}; "
    f"schedule: {verdict.schedule}"
  ]
  if verdict.reason:
    lines.append(f"reason: {verdict.reason}")
  lines += workload.op.describe_plan(verdict)
  lines.append("traffic by tier, MiB: " + cells.pairs(verdict.traffic_bytes, cells.MIB))
  if verdict.predicted_us is not None:
    busy = [cells.pairs(verdict.times_us), *(f"{name} unknown" for name in verdict.unknown_us)]
    lines.append(f"busy, us: {', '.join(busy)}")
    lines += [
      f"unknown, and charged nothing: {name}, {why}" for name, why in verdict.unknown_us.items()
    ]
    lines.append(_predicted(planned))
    lines += [f"  {line}" for line in verdict.adds_up()]
  if helped:
    lines += planned.helps.sentences()
  lines += [f"note: {note}" for note in verdict.notes]
  return Block(
    title=f"{workload.name}, {cells.short_tile(planned.tile)} on {verdict.profile}",
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
