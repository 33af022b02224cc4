"""`rank`: the candidate tiles of a problem, fastest first."""

import math
from collections.abc import Iterable
from typing import Any

from hw_profiles.arguments import at_least
from hw_profiles.capacity.compiled import NAME as COMPILED
from hw_profiles.planner.op_model import ConfigT, OpModel, ProblemT
from hw_profiles.planner.op_registry import model_of
from hw_profiles.planner.plan import (
  TIE,
  Choice,
  Device,
  Schedule,
  choose,
  on_device,
  plan,
  plan_choices,
  schedules,
)
from hw_profiles.planner.tile_plan import TilePlan
from hw_profiles.registry import resolve

_COMPUTE = ("tensor_cores", "cuda_cores", "cube")


def candidates_that_fit(
  problem: Any, profile: str | Device, *, schedule: Schedule = "auto"
) -> tuple[Any, ...]:
  """The configs that the op's model thinks worth comparing, less those that do not fit.

  "auto" takes those of every schedule that does the problem's dtype on the device.

  Raises:
    ValueError: there is no such op, profile or schedule.
  """
  model, device = model_of(problem), resolve(profile)
  return tuple(
    config
    for config in offered(model, problem, device, schedule)
    if not choose(model, problem, config, device, schedule)[0].shortfalls
  )


def offered(
  model: OpModel[ProblemT, ConfigT], problem: ProblemT, device: Device, schedule: Schedule
) -> dict[ConfigT, tuple[str, ...]]:
  """The op's candidates, each with the schedules it is offered for.

  Of the schedule that is asked for, or of each that "auto" may take; where none
  does the problem's dtype, those of the last that the device has. Where the
  problem can be compiled for Ascend, only what the compiler takes: the kernels
  written by hand do not exist.
  """
  asked = [
    Choice(one, tuple(one.unsupported(problem, device)))
    for one in schedules(model, device, schedule)
  ]
  able = [x for x in asked if not x.shortfalls] or on_device(asked)[-1:]
  if able[0].schedule.NAME == COMPILED:
    able = able[:1]
  found: dict[ConfigT, tuple[str, ...]] = {}
  for choice in able:
    name = choice.schedule.NAME
    for config in model.candidates(problem, device, name):
      found[config] = (*found.get(config, ()), name)
  return found


def _ranked_as_offered(
  model: OpModel[ProblemT, ConfigT], problem: ProblemT, device: Device, schedule: Schedule
) -> list[TilePlan[ProblemT, ConfigT]]:
  """Plans of the op's candidates that fit; of all of them where none does.

  A tile that "auto" runs fastest as a schedule which does not offer it is left
  out: that schedule has the like among its own candidates, and a reason for
  not offering this one that the time model does not have.
  """
  names = offered(model, problem, device, schedule)
  choices = {x: choose(model, problem, x, device, schedule) for x in names}
  fitting = {x: found for x, found in choices.items() if not found[0].shortfalls}
  plans = [
    plan_choices(model, problem, config, device, found, requested=schedule)
    for config, found in (fitting or choices).items()
  ]
  return [x for x in plans if x.schedule in names[x.config]] or plans


def _order(tile_plan: TilePlan[Any, Any]) -> tuple[bool, float, int, int, str]:
  """Feasible first, then by time.

  Ties go to more stages, which absorb jitter that the model does not have, then
  to the smaller working set, then by name.
  """
  time_us = math.inf if tile_plan.predicted_us is None else tile_plan.predicted_us
  return (
    not tile_plan.fits,
    time_us,
    -tile_plan.config.num_stages,
    tile_plan.traffic.working_set_bytes,
    tile_plan.config.describe(),
  )


def _least_traffic_of_the_fastest_first(
  plans: list[TilePlan[ProblemT, ConfigT]],
) -> list[TilePlan[ProblemT, ConfigT]]:
  """Among compute-bound predictions too close to tell apart, fewer bytes come first.

  The model's own error is several times `TIE`, and bytes cost power, which it
  does not model and which sets the clock under load: on an H200, 8192 x 8192 x
  8192, it puts 128x192 and 128x256 tiles within 1 %; measured, the one that
  moves 14 % more took 10 % longer.

  Args:
    plans: Sorted by `_order`.
  """
  if not plans or plans[0].predicted_us is None or plans[0].bound not in _COMPUTE:
    return plans
  limit_us = plans[0].predicted_us * TIE
  tied = sum(x.predicted_us is not None and x.predicted_us <= limit_us for x in plans)
  first = sorted(plans[:tied], key=lambda x: x.traffic.total_bytes)
  return first + plans[tied:]


def rank(
  problem: ProblemT,
  profile: str | Device,
  candidates: Iterable[Any] | None = None,
  top: int | None = 10,
  *,
  schedule: Schedule = "auto",
) -> list[TilePlan[ProblemT, Any]]:
  """Plans every candidate and returns the best `top`, fastest first.

  Where arithmetic is the bound, those predicted within 2 % of the fastest come
  in order of their traffic: the model cannot tell them apart, and bytes cost
  power.

  Of the op's own candidates those that do not fit are left out, unless none
  does: then they are returned, each with the reason. With "auto" they are those
  of every schedule, each planned with the one that runs it fastest. Given candidates come
  back whether they fit or not, those that do not last; `top` counts both. The
  order is the same on every run.

  Args:
    problem: What is computed.
    profile: A profile or its name.
    candidates: Tiles to compare; None: the op's own, for a matmul
      `matmul_candidates`.
    top: Plans to return at most; None returns all.
    schedule: See `plan`.

  Raises:
    ValueError: an argument is of the wrong kind, or there is no such profile.
  """
  if top is not None:
    at_least("top", top, 1)
  device = resolve(profile)
  if candidates is None:
    model = model_of(problem)
    plans = _ranked_as_offered(model, problem, device, schedule)
  else:
    if not isinstance(candidates, Iterable) or isinstance(candidates, str | bytes):
      raise ValueError(f"candidates={candidates!r}: expected configs in a list, or None")
    plans = [plan(problem, config, device, schedule=schedule) for config in candidates]
  plans = _least_traffic_of_the_fastest_first(sorted(plans, key=_order))
  return plans if top is None else plans[:top]
