"""Execution plans shared by the calls that they fit."""

import dataclasses
from collections.abc import Hashable, Sequence

from hw_profiles.arguments import at_least, collection, not_negative


@dataclasses.dataclass(frozen=True)
class PlanReuse:
  """A sequence of calls, planned each time or only when what a plan depends on changed.

  Attributes:
    calls: Runs, and kernels' worth of work: the same both ways.
    plans: Plans made where a plan is kept while it fits.
    copies: Host-to-device copies of metadata for them.
    copies_without_reuse: The same with a plan for each call.
    total_us: Plans and runs.
    total_without_reuse_us: The same with a plan for each call.
    stale_calls: Calls that would run an outdated plan, and so compute something
      wrong, if the first plan were kept throughout.
  """

  calls: int
  plans: int
  copies: int
  copies_without_reuse: int
  total_us: float
  total_without_reuse_us: float
  stale_calls: tuple[int, ...]


def plan_reuse(
  layouts: Sequence[Hashable],
  *,
  copies_per_plan: int,
  plan_us: float = 0.0,
  run_us: float = 0.0,
) -> PlanReuse:
  """Plans once for each stretch of calls with one layout.

  Example: 36 layers of one step have the same request lengths and cache layout:
  one plan instead of 36, 4 copies instead of 144, and as many kernels. The next
  step's lengths differ, so it needs its own.

  Args:
    layouts: What each call's plan depends on (request lengths, places of the
      cache), in order of execution; equal values may share a plan.
    copies_per_plan: Copies that bring a plan's metadata to the device.
    plan_us: Making a plan.
    run_us: Running a call.

  Raises:
    ValueError: an argument is out of range.
  """
  collection("layouts", layouts)
  at_least("copies_per_plan", copies_per_plan, 0)
  not_negative("plan_us", plan_us)
  not_negative("run_us", run_us)
  calls = len(layouts)
  plans = sum(call == 0 or layouts[call] != layouts[call - 1] for call in range(calls))
  return PlanReuse(
    calls=calls,
    plans=plans,
    copies=plans * copies_per_plan,
    copies_without_reuse=calls * copies_per_plan,
    total_us=plans * plan_us + calls * run_us,
    total_without_reuse_us=calls * (plan_us + run_us),
    stale_calls=tuple(call for call in range(calls) if layouts[call] != layouts[0]),
  )
