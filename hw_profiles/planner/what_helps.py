"""Which one change of a planned tile, or of its device, would help most."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from hw_profiles.capacity.compiled import NAME as COMPILED
from hw_profiles.planner.ideal import without_limit
from hw_profiles.planner.op_registry import model_of
from hw_profiles.planner.plan import Device, choose, plan, plan_choices, schedules
from hw_profiles.planner.ranking import offered
from hw_profiles.planner.tile_plan import TilePlan
from hw_profiles.registry import resolve

# A change that gains less counts as none: `rank` cannot tell such tiles apart, either.
_LEAST_GAIN = 0.02
# Fields this small are counted one by one, others doubled and halved.
_SMALL = 8
# What frees a problem of a resource that no device is without.
_AVOIDED_BY = {"narrow_copies": "row pitches that are multiples of 16 bytes need none"}


@dataclasses.dataclass(frozen=True)
class Change:
  """One change, and the plan with it.

  Attributes:
    what: "num_stages=4", with "as multistage" where that changes the schedule that
      "auto" takes; "schedule=multistage"; or "dram" without its limit.
    predicted_us: With the change.
    gain: 1 - time with / time without; None where there was no fit before.
    bound: What sets the time then.
    bound_before: What set it without the change; empty where there was no fit.
    plan: The plan with it. That of an ideal resource is of a device that does not
      exist.
  """

  what: str
  predicted_us: float
  gain: float | None
  bound: str
  bound_before: str
  plan: TilePlan[Any, Any]

  def sentence(self) -> str:
    """`num_stages=4: 112.0 us (-8 %), then dram binds`."""
    gain = "" if self.gain is None else f" ({-100 * self.gain:+.0f} %)"
    if self.bound == self.what:
      # latency without that of DRAM: the parts of a step still follow one another
      binds = f"what is left of {self.bound} binds"
    elif self.bound == self.bound_before:
      binds = f"still bound by {self.bound}"
    else:
      binds = f"then {self.bound} binds"
    return f"{self.what}: {self.predicted_us:,.1f} us{gain}, {binds}"


@dataclasses.dataclass(frozen=True)
class WhatHelps:
  """What would make a planned tile faster.

  Attributes:
    tile: The change of one field of the tile, or of the schedule, that helps
      most; None where none gains 2 %. Of a tile that does not fit, the fastest that does.
    ideal: Each resource without its limit, the most helpful first: how much of
      the time it is to blame for, and what binds next. Empty without a fit.
  """

  tile: Change | None
  ideal: tuple[Change, ...]

  def sentences(self) -> tuple[str, ...]:
    """For people: the tile, then the resource that matters most, and what avoids its use."""
    if not self.ideal:
      if self.tile is None:
        return ("most help: several fields of the tile have to change before it fits",)
      return (f"most help: {self.tile.sentence()}",)
    first = (
      "most help: no change of one field of the tile gains 2 %"
      if self.tile is None
      else f"most help: {self.tile.sentence()}"
    )
    most = self.ideal[0]
    avoided = f"; {_AVOIDED_BY[most.what]}" if most.what in _AVOIDED_BY else ""
    return (first, f"of the device, most help without {most.sentence()}{avoided}")


def what_helps(tile_plan: TilePlan[Any, Any], profile: str | Device | None = None) -> WhatHelps:
  """Tries every change of one field of the tile, and each resource without its limit.

  A field takes the values that the op's candidates have for it, and its own
  value doubled and halved. A plan that was asked for with a schedule keeps it,
  and another schedule that takes the tile counts as a change, too; with "auto"
  each change is priced with the schedule that suits it. A kernel that a compiler
  makes stays one: a kernel by hand counts only for a tile that no change of a
  field lets be compiled. Each trial is a plan: some 50 for a matmul, a few
  milliseconds.

  Args:
    tile_plan: What `plan` or `rank` returned.
    profile: The device it was planned for; None: the profile of that name. Needed
      where its numbers were changed.

  Raises:
    ValueError: `tile_plan` is none; the profile is another device's than the plan's.
  """
  if not isinstance(tile_plan, TilePlan):
    raise ValueError(f"tile_plan={tile_plan!r}: expected a TilePlan, as plan and rank return")
  device = resolve(tile_plan.profile if profile is None else profile)
  if device.name != tile_plan.profile:
    raise ValueError(f"profile={device.name!r}: expected {tile_plan.profile!r}, as planned")
  changes = [
    _change(what, changed, tile_plan) for what, changed in _planned_changes(tile_plan, device)
  ]
  best = min(changes, key=lambda one: one.predicted_us, default=None)
  if best is not None and best.gain is not None and best.gain < _LEAST_GAIN:
    best = None
  return WhatHelps(
    tile=best, ideal=() if tile_plan.predicted_us is None else _ideal(tile_plan, device)
  )


def _change(what: str, changed: TilePlan[Any, Any], base: TilePlan[Any, Any]) -> Change:
  assert changed.predicted_us is not None
  base_us = base.predicted_us
  return Change(
    what=what,
    predicted_us=changed.predicted_us,
    gain=None if base_us is None else 1 - changed.predicted_us / base_us,
    bound=changed.bound,
    bound_before=base.bound,
    plan=changed,
  )


def _planned_changes(
  tile_plan: TilePlan[Any, Any], device: Device
) -> Iterator[tuple[str, TilePlan[Any, Any]]]:
  """Every change of one field, or of the schedule, that fits, with its plan."""
  model, problem = model_of(tile_plan.problem), tile_plan.problem
  requested = tile_plan.requested_schedule
  compiled = requested == "auto" and tile_plan.schedule == COMPILED
  fits = tile_plan.fits
  for name, value in _variations(tile_plan, device):
    try:
      config = dataclasses.replace(tile_plan.config, **{name: value})
    except ValueError:  # the config refuses the value
      continue
    choices = choose(model, problem, config, device, requested)
    if not choices[0].shortfalls:
      changed = plan_choices(model, problem, config, device, choices, requested=requested)
      other = changed.schedule != tile_plan.schedule
      if compiled and other:  # a value that the compiler does not have, such as a third stage
        continue
      fits = True
      yield f"{name}={value}{f' as {changed.schedule}' if other else ''}", changed
  if requested == "auto" and (fits or not compiled):  # the schedule is the fastest already
    return
  for schedule in schedules(model, device, "auto"):
    if tile_plan.schedule == schedule.NAME:
      continue
    choices = choose(model, problem, tile_plan.config, device, schedule.NAME)
    if not choices[0].shortfalls:
      yield (
        f"schedule={schedule.NAME}",
        plan_choices(model, problem, tile_plan.config, device, choices, requested=schedule.NAME),
      )


def _variations(tile_plan: TilePlan[Any, Any], device: Device) -> Iterator[tuple[str, int]]:
  """Field and value of every change worth trying, in a fixed order."""
  model, config = model_of(tile_plan.problem), tile_plan.config
  known = model.tile_fields(tile_plan.problem, config)
  # also raises where the plan names a schedule that the op does not have here
  candidates = offered(model, tile_plan.problem, device, tile_plan.requested_schedule)
  for field in dataclasses.fields(config):
    current = known[field.name].value if field.name in known else getattr(config, field.name)
    if isinstance(current, bool) or not isinstance(current, int):
      continue
    values = {getattr(candidate, field.name) for candidate in candidates}
    if field.name in known or len(values) > 1:
      values |= {2 * current, current // 2}
      if current <= _SMALL:
        values |= {current - 1, current + 1}
    for value in sorted(x for x in values if isinstance(x, int) and x >= 1):
      if value != current:
        yield field.name, value


def _ideal(tile_plan: TilePlan[Any, Any], device: Device) -> tuple[Change, ...]:
  """The plan's tile on the device without each limit in turn, most helpful first."""
  found = []
  for resource in tile_plan.times_us:
    ideal = without_limit(device, resource)
    if ideal is None:
      continue
    changed = plan(tile_plan.problem, tile_plan.config, ideal, schedule=tile_plan.schedule)
    if changed.predicted_us is not None:
      found.append(_change(resource, changed, tile_plan))
  return tuple(sorted(found, key=lambda one: one.predicted_us))
