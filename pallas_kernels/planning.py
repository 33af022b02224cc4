"""From a problem and a kernel to its tile: the user's, one that was measured, or the planner's."""

import dataclasses
import functools
from collections.abc import Hashable
from typing import Any

import hw_profiles
from pallas_kernels.device import TargetDevice, planning_profile
from pallas_kernels.dispatch import Implementation, Refusal
from pallas_kernels.tuning import lookup


def tile_refusal(
  implementation: Implementation, problem: Any, config: Any | None, device: TargetDevice
) -> Refusal | None:
  """Why the user's tile does not run as this kernel on this device, or None.

  An interpreter takes the tile of the hardware it stands for; the portable
  kernel's takes any, since it is how odd tiles are tested.
  """
  if config is None or implementation.name == "interpret":
    return None
  plan = _plan(implementation, problem, config, device)
  if plan.fits:
    return None
  # what the schedule does not do with any tile is no fault of this one
  if "unsupported" in plan.shortfall_kinds:
    return Refusal("dtype", plan.reason)
  return Refusal("tile" if "capacity" in plan.shortfall_kinds else "shape", plan.reason)


def interpreted_note(
  implementation: Implementation, problem: Any, config: Any | None, device: TargetDevice
) -> tuple[str, ...]:
  """What to say of the user's tile that only the portable kernel's interpreter takes."""
  if config is None or implementation.name != "interpret":
    return ()
  plan = _plan(implementation, problem, config, device)
  if plan.fits or "unsupported" in plan.shortfall_kinds:
    return ()
  return (f"the interpreter runs this tile, which does not fit {plan.profile}: {plan.reason}",)


def resolve(
  implementation: Implementation,
  problem: Any,
  config: Any | None,
  device: TargetDevice,
  *,
  plan_as: Any | None = None,
) -> tuple[Any, hw_profiles.TilePlan | None]:
  """The config that a kernel runs with, and its plan.

  Args:
    implementation: A kernel with a schedule.
    problem: What is computed.
    config: The user's config, or None for the fastest measured on the device, or
      where none was, the planner's best.
    device: Where it runs.
    plan_as: Choose the tile as if for this problem instead.

  Returns:
    The config; and its plan, or None where a time would mean nothing: in an
    interpreter, or on a device without a profile of its own.

  Raises:
    hw_profiles.InfeasibleTileError: no tile fits.
  """
  profile, own = planning_profile(device)
  if config is None:
    wanted = problem if plan_as is None else plan_as
    config = _tuned(implementation, wanted, device)[0]
    if config is None:
      config = _planned(wanted, implementation.schedule, profile.name)
  if implementation.interpreted or not own:
    return config, None
  return config, _plan(implementation, problem, config, device)


def choice_notes(
  implementation: Implementation, problem: Any, device: TargetDevice, *, plan_as: Any | None = None
) -> tuple[str, ...]:
  """What to say of a tile that `resolve` chose by itself, from the same arguments."""
  wanted, of = (problem, "") if plan_as is None else (plan_as, _sizes_beside(problem, plan_as))
  _, notes = _tuned(implementation, wanted, device, of=of)
  return (*notes, *stand_in_note(device))


def _sizes_beside(problem: Any, measured: Any) -> str:
  """Where a time is from, if not from the sizes of this problem: " at m=1024, not m=7"."""
  other = [
    field.name
    for field in dataclasses.fields(problem)
    if type(getattr(problem, field.name)) is int
    and getattr(problem, field.name) != getattr(measured, field.name)
  ]
  at, this = (
    ",".join(f"{name}={getattr(one, name)}" for name in other) for one in (measured, problem)
  )
  return f" at {at}, not {this}" if other else ""


def _tuned(
  implementation: Implementation, problem: Any, device: TargetDevice, *, of: str = ""
) -> tuple[Any | None, tuple[str, ...]]:
  """The measured tile of exactly this problem, or None; and what to say of it.

  An interpreter takes the planner's: it may stand for any device, and no time
  of it means anything. `of` says what was measured where the call is another.
  """
  if implementation.interpreted or device.platform != "gpu" or not planning_profile(device)[1]:
    return None, ()
  found = lookup.find(problem, implementation=implementation.name, device_kind=device.kind)
  notes = found.refused
  for hit in found.hits:
    try:
      plan = _plan(implementation, problem, hit.entry.config, device)
      reason = None if plan.fits else plan.reason
    except ValueError as error:  # a config of another op
      reason = str(error)
    if reason is None:
      return hit.entry.config, (*notes, hit.note(of))
    notes += (f"not tuned by the {hit.source}: {reason}",)
  return None, notes


def stand_in_note(device: TargetDevice) -> tuple[str, ...]:
  """What to say where tiles are planned with another device's profile."""
  profile, own = planning_profile(device)
  if own or device.platform != "gpu":
    return ()
  return (
    f"there is no profile of {device.kind!r}: the tile is one that fits {profile.name}, and no "
    "time is predicted",
  )


def _plan(
  implementation: Implementation, problem: Any, config: Any, device: TargetDevice
) -> hw_profiles.TilePlan:
  profile, _ = planning_profile(device)
  return hw_profiles.plan(problem, config, profile, schedule=implementation.schedule or "auto")


@functools.lru_cache(maxsize=4096)
def _planned(problem: Hashable, schedule: Any, profile_name: str) -> Any:
  """The planner's best tile.

  Raises:
    hw_profiles.InfeasibleTileError: nothing fits.
  """
  profile = hw_profiles.get_profile(profile_name)
  matmul: Any = problem
  best = hw_profiles.rank(matmul, profile, top=1, schedule=schedule)
  if best and best[0].fits:
    return best[0].config
  why = f", {best[0].config.describe()} for one: {best[0].reason}" if best else ""
  raise hw_profiles.InfeasibleTileError(f"no {schedule} tile fits {problem} on {profile_name}{why}")
