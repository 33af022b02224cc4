"""An estimated time, and what it is made of."""

import dataclasses
from collections.abc import Mapping

from hw_profiles.cost.time_term import Term
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.profile import GpuProfile

_NOTHING: FrozenMap[str, str] = FrozenMap()


@dataclasses.dataclass(frozen=True)
class DeviceTime:
  """Estimated device time of a kernel.

  Attributes:
    times_us: Busy time of each resource whose rate is known. They overlap, so they
      do not add up.
    total: The estimate, with what it is made of.
    bound: The resource that sets it: the largest of `times_us`, unless an op says otherwise.
    unknown: Resources that are charged nothing, as the profile does not know their
      rate, and why it does not.
  """

  times_us: FrozenMap[str, float]
  total: Term
  bound: str
  unknown: FrozenMap[str, str] = _NOTHING

  @property
  def total_us(self) -> float:
    """The estimate."""
    return self.total.us


def device_time(
  times_us: dict[str, float],
  total: Term,
  *,
  bound: str | None = None,
  unknown: Mapping[str, str] = _NOTHING,
) -> DeviceTime:
  """The time without what is unknown; the bound is the largest that is left, unless given."""
  known = {name: time for name, time in times_us.items() if name not in unknown}
  return DeviceTime(
    times_us=FrozenMap(known),
    total=total,
    bound=bound or max(known, key=lambda name: known[name]),
    unknown=FrozenMap(unknown),
  )


def unknown_rates(profile: GpuProfile, **fields: str) -> FrozenMap[str, str]:
  """Of resources with the profile field of their rate: those without one, and why."""
  return FrozenMap(
    {
      resource: f"{field}: {profile.source(field).source}"
      for resource, field in fields.items()
      if getattr(profile, field) is None
    }
  )
