"""`--task=plan`: the planner's whole verdict on each tile and profile. Loads no JAX.

For people: first every tile of a problem in one table, then what the estimates
of each profile rest on, said once, then each tile's buffers and times.
"""

import dataclasses
import math
from typing import Any

import hw_profiles
from pallas_kernels.benchmark import cells, commands, environment, plans
from pallas_kernels.benchmark.flags import DEFAULT_PROFILES, Options
from pallas_kernels.benchmark.ops.op import Config
from pallas_kernels.benchmark.rows import Block, Report, Row
from pallas_kernels.benchmark.tiles import tiles_for
from pallas_kernels.benchmark.workload import Workload

# Where tiles are given, the planner's own pick among them is marked if finding it
# takes no more rankings than this, of about 30 ms each.
_MOST_RANKINGS = 50


@dataclasses.dataclass(frozen=True)
class _Planned:
  """One tile on one profile, and whether the planner ranks it first there."""

  workload: Workload
  tile: Config
  verdict: hw_profiles.TilePlan
  picked: bool


def run(options: Options) -> Report:
  """Plans every tile of every workload on every profile."""
  profiles = options.profiles or DEFAULT_PROFILES
  rank_given = len(options.workloads) * len(profiles) <= _MOST_RANKINGS
  summaries: list[Block] = []
  everything: list[_Planned] = []
  for workload in options.workloads:
    planned = [
      _Planned(
        workload, choice.tile, plans.plan(workload, choice.tile, profile), profile in choice.best_on
      )
      for choice in tiles_for(workload, profiles, rank_given=rank_given)
      for profile in choice.profiles
    ]
    summaries.append(_summary(workload, planned))
    everything += planned
  return Report(
    environment=environment.describe(with_device=False),
    rows=tuple(_row(options, one) for one in everything),
    blocks=(*summaries, *_assumptions(everything), *(_detail(one) for one in everything)),
  )


def _row(options: Options, planned: _Planned) -> Row:
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
      "assumptions": verdict.assumptions,
      "model_error": _model_error(workload, verdict.profile),
    },
  )


def _model_error(workload: Workload, profile: str) -> dict[str, Any] | None:
  error = plans.model_error(workload, profile)
  if error is None:
    return None
  return dataclasses.asdict(error) | {
    "compared": "the model's best tiles with measured libraries; single tiles were not measured"
  }


def _summary(workload: Workload, planned: list[_Planned]) -> Block:
  """Every tile, profile by profile, the quickest first and what does not fit last."""
  profiles = list(dict.fromkeys(one.verdict.profile for one in planned))

  def order(one: _Planned) -> tuple[int, bool, float]:
    predicted_us = one.verdict.predicted_us
    return (
      profiles.index(one.verdict.profile),
      not one.verdict.fits,
      math.inf if predicted_us is None else predicted_us,
    )

  header = (
    "profile",
    "tile",
    "fits",
    "predicted us",
    "bound",
    "binding",
    "traffic MiB",
    "schedule",
  )
  lines = [f"{cells.tile_legend(workload.op.config_class)}; {plans.WELL_TUNED}"]
  if any(one.picked for one in planned):
    lines.append(plans.RANKED_FIRST_LEGEND)
  return Block(
    title=workload.name,
    header=header,
    cells=tuple(
      (
        one.verdict.profile,
        cells.short_tile(one.tile) + (" *" if one.picked else ""),
        cells.yes_no(one.verdict.fits),
        cells.number(one.verdict.predicted_us),
        one.verdict.bound or "-",
        cells.names(one.verdict.binding),
        cells.mib(workload.op.traffic_bytes(one.verdict)),
        one.verdict.schedule,
      )
      for one in sorted(planned, key=order)
    ),
    numeric=frozenset({"predicted us", "traffic MiB"}),
    lines=tuple(lines),
  )


def _assumptions(planned: list[_Planned]) -> list[Block]:
  """What the estimates of each profile rest on; what several tiles share is said once."""
  said: dict[str, dict[str, None]] = {}
  for one in planned:
    sentences = said.setdefault(one.verdict.profile, {})
    sentences[plans.trust(one.workload, one.verdict.profile)] = None
    if (error := plans.model_error(one.workload, one.verdict.profile)) is not None:
      sentences[f"measured: {error.source}"] = None
    sentences |= dict.fromkeys(
      f"assumes: {text}"
      for text in one.verdict.assumptions
      # the planner's words for the same error
      if not text.startswith("times: ")
    )
  return [
    Block(title=f"Times on {profile}", lines=tuple(sentences))
    for profile, sentences in said.items()
  ]


def _detail(planned: _Planned) -> Block:
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
    lines += [
      "busy, us: " + cells.pairs(verdict.times_us),
      f"predicted: {verdict.predicted_us:,.1f} us (estimate), bound by {verdict.bound}",
    ]
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
