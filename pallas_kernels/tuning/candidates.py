"""The configs worth measuring: what the planner ranks first, and what lies beside the best."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import hw_profiles

# Fields whose effect the time model does not have, or has only roughly: the
# configs it ranks differ in them by less than it can tell.
_UNRANKED = ("num_stages", "group_m")

# What to try for the fields that each schedule reads and its planner leaves alone.
_VALUES: dict[str, dict[str, tuple[Any, ...]]] = {
  "warp_specialized": {
    "overlap_epilogue": (True, False),
    "epilogue_block_n": (32, 64),
    "num_consumer_warpgroups": (1, 2),
  },
  "multistage": {"num_warps": (4, 8)},
}
# What None comes to most often, so that it is not measured twice.
_USUAL = {
  "epilogue_block_n": 64,
  "overlap_epilogue": True,
  "num_consumer_warpgroups": 2,
  "num_warps": 8,
}
_CLUSTERS = ((2, 1), (1, 2), (1, 1))
_GROUPS = (1, 4, 8, 16)
_MOST_STAGES = 8


def first(
  problem: Any, profile: str, *, schedule: Any, top: int
) -> tuple[hw_profiles.TilePlan, ...]:
  """The best `top` tiles that differ in more than stages or order, the planner's choice first."""
  device = hw_profiles.get_profile(profile)
  kept: dict[Any, hw_profiles.TilePlan] = {}
  for plan in hw_profiles.rank(problem, device, top=None, schedule=schedule):
    if plan.fits:
      kept.setdefault(_tile(plan.config), plan)
  return tuple(kept.values())[:top]


def beside(
  problem: Any, profile: str, *, schedule: Any, config: Any
) -> tuple[hw_profiles.TilePlan, ...]:
  """Configs that differ from `config` in one respect, less those that do not fit.

  Those that promise most come first. Where a change of a side or a depth
  changes the room that a stage takes, it comes with the most stages that fit.
  """
  device = hw_profiles.get_profile(profile)
  found: dict[Any, hw_profiles.TilePlan] = {}
  for alternatives in _moves(problem, config, schedule):
    for changed in alternatives:
      plan = hw_profiles.plan(problem, changed, device, schedule=schedule)
      if plan.fits:
        found.setdefault(changed, plan)
        break
  found.pop(config, None)
  return tuple(found.values())


def _tile(config: Any) -> tuple[Any, ...]:
  return tuple(
    getattr(config, field.name)
    for field in dataclasses.fields(config)
    if field.name not in _UNRANKED
  )


def _moves(problem: Any, config: Any, schedule: str) -> Iterator[tuple[Any, ...]]:
  """Changes of one respect; of each the alternatives, of which the first that fits is meant."""
  names = {field.name for field in dataclasses.fields(config)}
  one_row_of_tiles = getattr(problem, "m", config.num_stages + 1) <= getattr(config, "block_m", 0)
  if schedule == "warp_specialized" and {"cluster_m", "cluster_n"} <= names:
    for cluster_m, cluster_n in _CLUSTERS:
      if cluster_m == 1 or not one_row_of_tiles:
        yield _changed(config, cluster_m=cluster_m, cluster_n=cluster_n)
  for name, values in _VALUES.get(schedule, {}).items():
    if name in names:
      own = getattr(config, name)
      for value in values:
        if own is not None or value != _USUAL[name]:
          yield _changed(config, **{name: value})
  for side in ("block_k", "block_n", "block_m"):
    if side not in names:
      continue
    size = getattr(config, side)
    if side != "block_m" or not one_row_of_tiles:
      yield _with_most_stages(config, **{side: 2 * size})
    if size % 2 == 0:
      yield _with_most_stages(config, **{side: size // 2})
  for num_stages in (config.num_stages + 1, config.num_stages - 1):
    if 2 <= num_stages <= _MOST_STAGES:
      yield _changed(config, num_stages=num_stages)
  if "group_m" in names and not one_row_of_tiles:
    for group_m in _GROUPS:
      yield _changed(config, group_m=group_m)


def _with_most_stages(config: Any, **fields: Any) -> tuple[Any, ...]:
  """The config with these fields and every number of stages, most first."""
  if config.num_stages == 1:
    return _changed(config, **fields)
  return tuple(
    changed
    for num_stages in range(min(2 * config.num_stages, _MOST_STAGES), 1, -1)
    for changed in _changed(config, num_stages=num_stages, **fields)
  )


def _changed(config: Any, **fields: Any) -> tuple[Any, ...]:
  """The config with these fields, unless it does not take them."""
  try:
    return (dataclasses.replace(config, **fields),)
  except ValueError:
    return ()
