"""The best tile of each device, what differs between them, and one tile for all."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import hw_profiles
from hw_profiles import NpuProfile, TilePlan
from hw_profiles.capacity.compiled import MOST_COPIES
from pallas_kernels.benchmark import accepted, compiling
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.workload import Workload
from pallas_kernels.lowering.compile_pool import CompilePool
from pallas_kernels.lowering.compile_task import Compiled

# What `hw_profiles.rank` takes for too close to tell apart.
_TIE = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
  """One field of a tile that is not the same on two devices.

  Attributes:
    field: Its name.
    here: Its value on the device.
    there: On the device that is ported from.
    kept_us: Predicted time with that value kept; None where it does not fit.
    kept_reason: Why it does not.
    own_us: Predicted time with the device's own.
    note: What else there is to know of that value on the device; may be empty.
  """

  field: str
  here: Any
  there: Any
  kept_us: float | None
  kept_reason: str | None
  own_us: float | None
  note: str = ""

  def why(self) -> str:
    """What keeping the other device's value would do, for people."""
    if self.kept_us is None:
      return f"does not fit: {self.kept_reason}"
    assert self.own_us is not None
    if math.isclose(self.kept_us, self.own_us, rel_tol=_TIE):
      same = "the same time" if self.kept_us == self.own_us else f"within {_TIE:.0%}: no telling"
      return f"{same}{self.note and '; '}{self.note}".replace("%", " %")
    share = 100 * (self.kept_us / self.own_us - 1)
    return f"{self.kept_us:,.1f} us, {round(share):+d} %{self.note and '; '}{self.note}"


@dataclasses.dataclass(frozen=True)
class Best:
  """The best tile of a device, with how it was found.

  Attributes:
    profile: The device.
    ranked: Every tile that the planner offers and lets through as it is compiled, best first.
    plan: Of the best that the compiler takes, or of the first by the planner
      where no compiler is available; None where none is taken.
    answers: The compiler's, to the tiles that were tried.
  """

  profile: str
  ranked: tuple[TilePlan[Any, Any], ...]
  plan: TilePlan[Any, Any] | None
  answers: tuple[Compiled, ...]

  @property
  def compiled(self) -> bool:
    """Whether there was a compiler to ask."""
    return any(answer.outcome != "not available" for answer in self.answers)


def _powers_of_two(tile: Any) -> bool:
  sizes = [getattr(tile, name) for name in accepted.blocks(tile)]
  return all(size & (size - 1) == 0 for size in sizes)


def best_tile(options: Options, pool: CompilePool, workload: Workload, profile: str) -> Best:
  """The first tile of the planner's ranking that the device's compiler takes."""
  ranked: list[TilePlan[Any, Any]] = hw_profiles.rank(
    workload.problem(),
    hw_profiles.get_profile(profile),
    top=None,
    schedule=compiling.schedule(workload, profile),
  )
  passed = tuple(
    plan
    for plan in ranked
    if plan.fits
    and _powers_of_two(plan.config)
    and accepted.model_accepts(workload, plan.config, profile) is not None
  )
  found = accepted.first_accepted(
    options,
    pool,
    workload,
    [plan.config for plan in passed],
    (profile,),
    what=f"best tiles of {workload.op.name} on {profile} to compile",
  )
  best = Best(profile, passed, None, found.answers)
  tile = found.tile if best.compiled else (passed[0].config if passed else None)
  plan = next((plan for plan in passed if plan.config == tile), None)
  return dataclasses.replace(best, plan=plan)


def _loss(plan: TilePlan[Any, Any], own_us: Mapping[str, float | None]) -> float:
  """How many times as long as a device's own best a plan takes."""
  own = own_us[plan.profile]
  assert plan.predicted_us is not None
  assert own is not None
  return plan.predicted_us / own


def common_tile(
  options: Options, pool: CompilePool, workload: Workload, bests: list[Best]
) -> accepted.Found | None:
  """The tile that is taken everywhere and loses least where it loses most."""
  if any(best.plan is None for best in bests) or len(bests) < 2:
    return None
  own_us = {best.profile: best.plan.predicted_us for best in bests if best.plan is not None}
  tiles = dict.fromkeys(plan.config for best in bests for plan in best.ranked)
  scored = []
  for tile in tiles:
    plans_of = [accepted.model_accepts(workload, tile, best.profile) for best in bests]
    if any(plan is None for plan in plans_of):
      continue
    losses = [_loss(plan, own_us) for plan in plans_of if plan is not None]
    scored.append((max(losses), sum(losses), tile.describe(), tile))
  scored.sort(key=lambda one: one[:3])
  able = tuple(best.profile for best in bests if best.compiled)
  if not able:
    tile = scored[0][-1] if scored else None
    return accepted.Found(tile, "no compiler was asked", ())
  return accepted.first_accepted(
    options,
    pool,
    workload,
    [one[-1] for one in scored],
    able,
    what=f"tiles of {workload.op.name} for all devices to compile",
  )


def _note(field: str, value: Any, profile: str) -> str:
  """What a device's compiler makes of a value that its planner takes as it is."""
  npu = isinstance(hw_profiles.get_profile(profile), NpuProfile)
  if npu and field == "num_stages" and value > MOST_COPIES:
    return f"its compiler keeps {MOST_COPIES} copies at most"
  return ""


def changes(workload: Workload, source: Best, best: Best) -> tuple[Change, ...]:
  """Every field that differs, with the plan of the best tile where that one is kept."""
  assert source.plan is not None
  assert best.plan is not None
  there, here = source.plan.config, best.plan.config
  found = []
  for field in dataclasses.fields(here):
    old, new = getattr(there, field.name), getattr(here, field.name)
    if old == new:
      continue
    kept = compiling.planned(workload, dataclasses.replace(here, **{field.name: old}), best.profile)
    found.append(
      Change(
        field=field.name,
        here=new,
        there=old,
        kept_us=kept.predicted_us if kept.fits else None,
        kept_reason=None if kept.fits else kept.reason,
        own_us=best.plan.predicted_us,
        note=_note(field.name, old, best.profile),
      )
    )
  return tuple(found)
