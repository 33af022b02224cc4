"""The roofline: which of arithmetic and memory bounds a computation."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

from hw_profiles.arguments import not_negative
from hw_profiles.cost.tiers import tier_bandwidth_bytes_per_s
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.registry import resolve


@dataclasses.dataclass(frozen=True)
class Roofline:
  """Where a computation lies under the roofline of one device and dtype.

  Attributes:
    intensity: FLOP per byte; infinite where no byte moves.
    ridge: FLOP per byte at which arithmetic and memory take equally long.
    bound: "compute" from the ridge on, else "memory".
    time_us: The longer of the two times, in microseconds.
    peak_fraction: Share of the arithmetic peak the computation can reach.
  """

  intensity: float
  ridge: float
  bound: Literal["compute", "memory"]
  time_us: float
  peak_fraction: float


@dataclasses.dataclass(frozen=True)
class TierRoofline:
  """Where a computation lies under the rooflines of several memory tiers.

  Attributes:
    tiers: `Roofline` of each tier.
    bound: "compute", or the tier that takes longest where one takes longer.
    time_us: The longest of all times, in microseconds.
  """

  tiers: FrozenMap[str, Roofline]
  bound: str
  time_us: float


def peak_flops(profile: GpuProfile | NpuProfile, dtype: str) -> float:
  """Dense peak of `dtype` in FLOP/s.

  Raises:
    ValueError: the profile has no rate for `dtype`; the message lists those it has.
  """
  rates = profile.peak_flops
  if not isinstance(dtype, str) or dtype not in rates:
    raise ValueError(
      f"dtype={dtype!r}: {profile.name} has no rate for it; expected one of {', '.join(rates)}"
    )
  return rates[dtype]


def roofline(
  profile: str | GpuProfile | NpuProfile,
  *,
  flops: float,
  bytes: float,
  dtype: str,
  tier: str | None = None,
) -> Roofline:
  """time = max(flops / peak, bytes / bandwidth); ridge = peak / bandwidth.

  Example (H100, bfloat16): the ridge is 989.4e12 / 3.35e12 = 295.3 FLOP/B.

  Args:
    profile: The device or its name; peaks are data-sheet peaks, nothing sustained.
    flops: Operations, a multiply-add counting as 2.
    bytes: Bytes that cross the tier.
    dtype: Operand dtype, a key of `profile.peak_flops`.
    tier: One of `memory_tiers`, for example "l2"; None: the device's memory.

  Raises:
    ValueError: no such profile or tier, a negative amount, a dtype the profile has
      no rate for, or a tier whose bandwidth no source gives.
  """
  profile = resolve(profile)
  not_negative("flops", flops)
  not_negative("bytes", bytes)
  peak = peak_flops(profile, dtype)
  if tier is None:
    bandwidth = profile.memory_bandwidth_bytes_per_s
  else:
    bandwidth = tier_bandwidth_bytes_per_s(profile, tier)
  ridge = peak / bandwidth
  intensity = flops / bytes if bytes else math.inf
  return Roofline(
    intensity=intensity,
    ridge=ridge,
    bound="compute" if intensity >= ridge else "memory",
    time_us=max(flops / peak, bytes / bandwidth) * 1e6,
    peak_fraction=min(1.0, intensity / ridge),
  )


def tier_roofline(
  profile: str | GpuProfile | NpuProfile,
  *,
  flops: float,
  bytes_by_tier: Mapping[str, float],
  dtype: str,
) -> TierRoofline:
  """`roofline` of every tier: time = max(flops / peak, max over tiers of bytes / bandwidth).

  An optimisation pays if it lowers the demand on the tier that binds; where data
  sit nearer, more bytes move at a higher bandwidth. Latency does not enter: enough
  work in flight hides it (`in_flight`). For rates that no profile has there is
  `tier_ceilings`.

  Args:
    profile: The device or its name.
    flops: Operations, a multiply-add counting as 2.
    bytes_by_tier: Bytes that cross each tier, for example `TilePlan.traffic_bytes`.
    dtype: Operand dtype, a key of `profile.peak_flops`.

  Raises:
    ValueError: as for `roofline`, or there is no tier.
  """
  if not isinstance(bytes_by_tier, Mapping) or not bytes_by_tier:
    raise ValueError(f"bytes_by_tier={bytes_by_tier!r}: expected bytes of at least one tier")
  profile = resolve(profile)
  tiers = {
    tier: roofline(profile, flops=flops, bytes=moved, dtype=dtype, tier=tier)
    for tier, moved in bytes_by_tier.items()
  }
  slowest = max(tiers, key=lambda tier: tiers[tier].time_us)
  return TierRoofline(
    tiers=FrozenMap(tiers),
    bound="compute" if tiers[slowest].bound == "compute" else slowest,
    time_us=tiers[slowest].time_us,
  )
