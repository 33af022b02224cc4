"""An estimated time, and what it is made of."""

import dataclasses

from hw_profiles.frozen_map import FrozenMap


@dataclasses.dataclass(frozen=True)
class DeviceTime:
  """Estimated device time of a kernel.

  Attributes:
    times_us: Busy time of each resource. They overlap, so they do not add up.
    total_us: The estimate.
    bound: The resource that sets it: the largest of `times_us`, unless an op says otherwise.
  """

  times_us: FrozenMap[str, float]
  total_us: float
  bound: str


def device_time(times_us: dict[str, float], total_us: float) -> DeviceTime:
  """The time whose bound is the largest of `times_us`."""
  bound = max(times_us, key=lambda name: times_us[name])
  return DeviceTime(times_us=FrozenMap(times_us), total_us=total_us, bound=bound)
