"""The longest chain of a request's stages, and what shortening one of them is worth."""

import dataclasses
import graphlib
from collections.abc import Mapping, Sequence

from hw_profiles.arguments import collection, mapping, not_negative
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.runtime.contention import shared_durations_us
from hw_profiles.timeline.engine import Task, TaskInterval, schedule_tasks


@dataclasses.dataclass(frozen=True)
class RequestStage:
  """One stage of a request.

  Attributes:
    name: Unique among the stages.
    duration_us: Its time alone.
    after: Stages that must have ended before it starts.
    demands: Resource to the share of it, in [0, 1], that the stage uses while it
      runs alone (DRAM bandwidth, for example); empty: it disturbs nobody.
  """

  name: str
  duration_us: float
  after: tuple[str, ...] = ()
  demands: Mapping[str, float] = dataclasses.field(default_factory=FrozenMap)

  def __post_init__(self) -> None:
    mapping(f"RequestStage({self.name!r}).demands", self.demands)
    collection(f"RequestStage({self.name!r}).after", self.after)
    not_negative(f"RequestStage({self.name!r}).duration_us", self.duration_us)
    for resource, share in self.demands.items():
      not_negative(f"RequestStage({self.name!r}).demands[{resource!r}]", share)
      if share > 1:
        raise ValueError(
          f"RequestStage({self.name!r}).demands[{resource!r}]={share}: expected at most 1"
        )
    object.__setattr__(self, "after", tuple(self.after))
    object.__setattr__(self, "demands", FrozenMap(self.demands))


@dataclasses.dataclass(frozen=True)
class CriticalPath:
  """What decides when a request is done.

  Attributes:
    total_us: End of the last stage.
    path: Names along the longest chain.
    intervals: Stage to when it ran.
    durations_us: Stage to its time beside the others; above its time alone where
      they contend.
    slack_us: Stage to how much longer it may take without delaying the request.
    saturation_us: Stage to the duration at or below which it no longer matters:
      shortening it further saves the request nothing. 0: it matters to the last.
    largest_saving_us: Stage to what the request saves if the stage takes no time.
  """

  total_us: float
  path: tuple[str, ...]
  intervals: FrozenMap[str, TaskInterval]
  durations_us: FrozenMap[str, float]
  slack_us: FrozenMap[str, float]
  saturation_us: FrozenMap[str, float]
  largest_saving_us: FrozenMap[str, float]


def _longest_us(
  order: Sequence[str], after: Mapping[str, Sequence[str]], durations_us: Mapping[str, float]
) -> dict[str, float]:
  """Stage to the longest chain that ends with it."""
  ends_us: dict[str, float] = {}
  for name in order:
    start_us = max((ends_us[before] for before in after[name]), default=0.0)
    ends_us[name] = start_us + durations_us[name]
  return ends_us


def critical_path(stages: Sequence[RequestStage]) -> CriticalPath:
  """T = longest chain; a stage x of duration d gives T(d) = max(T(0), r + d).

  r is the longest chain through x without x itself, so x saturates at
  d = T(0) - r. Stages that share a resource stretch each other first: while those
  running ask for more than all of it, each slows in proportion (see
  `contention`); slack and saturation then take the other stages as stretched.

  Example: 10 us, then A of 60 beside B of 40, then 10: 80 us. A four times as
  fast saves 45 us of A and 20 of the request, which stays at 60 from A = 40 on.
  If the new A makes B take 90 us, the request takes 110. Sharing a bandwidth
  cannot do that: even if B stood still for the 15 us of A it would end after 55.
  Such damage outlasts A (evicted cache lines), and is given as B's duration.

  Args:
    stages: In any order.

  Raises:
    ValueError: no stage, two of one name, a wait for a stage that does not exist,
      or stages that wait for each other in a circle.
  """
  collection("stages", stages, RequestStage)
  if not stages:
    raise ValueError("stages: expected at least one")
  alone = [Task(stage.name, stage.duration_us, None, stage.after) for stage in stages]
  schedule_tasks(alone)  # refuses what cannot run, by name
  after = {stage.name: stage.after for stage in stages}
  durations_us = {stage.name: stage.duration_us for stage in stages}
  if any(stage.demands for stage in stages):
    durations_us = shared_durations_us(
      durations_us, after, {stage.name: stage.demands for stage in stages}
    )
  run = schedule_tasks(
    [Task(name, duration_us, None, after[name]) for name, duration_us in durations_us.items()]
  )
  intervals = FrozenMap({stage.name: run.intervals[stage.name] for stage in stages})
  total_us = run.total_us

  order = list(graphlib.TopologicalSorter(after).static_order())
  followers: dict[str, list[str]] = {name: [] for name in order}
  for name, befores in after.items():
    for before in befores:
      followers[before].append(name)
  # the longest chain from a stage's start to the end, walking the graph backwards
  tails_us = _longest_us(order[::-1], followers, durations_us)
  saturation_us, saving_us = {}, {}
  for name in intervals:
    without_us = max(_longest_us(order, after, {**durations_us, name: 0.0}).values())
    chain_us = intervals[name].start_us + tails_us[name] - durations_us[name]
    saturation_us[name] = max(0.0, without_us - chain_us)
    saving_us[name] = total_us - without_us

  last = max(intervals, key=lambda name: intervals[name].end_us)
  path = [last]
  while after[path[-1]]:
    path.append(max(after[path[-1]], key=lambda name: intervals[name].end_us))
  return CriticalPath(
    total_us=total_us,
    path=tuple(reversed(path)),
    intervals=intervals,
    durations_us=FrozenMap({name: durations_us[name] for name in intervals}),
    slack_us=FrozenMap(
      {name: max(0.0, total_us - intervals[name].start_us - tails_us[name]) for name in intervals}
    ),
    saturation_us=FrozenMap(saturation_us),
    largest_saving_us=FrozenMap(saving_us),
  )
