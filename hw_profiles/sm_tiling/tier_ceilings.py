"""A roofline with several memory tiers: which of them holds a kernel back."""

import dataclasses

from hw_profiles.arguments import collection, positive
from hw_profiles.frozen_map import FrozenMap


@dataclasses.dataclass(frozen=True)
class Tier:
  """A memory tier as a kernel uses it.

  Attributes:
    name: For example "dram" or "shared_memory".
    intensity: FLOP that the kernel does per byte it takes from the tier.
    bandwidth_bytes_per_s: Of the tier.
  """

  name: str
  intensity: float
  bandwidth_bytes_per_s: float


@dataclasses.dataclass(frozen=True)
class TierCeilings:
  """What each tier, and the arithmetic, would allow.

  Attributes:
    flops_per_s_by: Tier name, in the order given, and "arithmetic", to FLOP/s.
    flops_per_s: The least of them.
    binding: Those that allow no more.
  """

  flops_per_s_by: FrozenMap[str, float]
  flops_per_s: float
  binding: tuple[str, ...]


def tier_ceilings(*tiers: Tier, peak_flops_per_s: float) -> TierCeilings:
  """A roofline of several tiers: min(peak, intensity · bandwidth of each).

  For one kernel whose FLOP per byte of each tier is known, on rates that are
  given: what-if numbers, or a text's. `tier_roofline` takes bytes and a profile,
  and gives a time.

  Example (V100): an inner product takes 0.25 FLOP/B from shared memory at
  12 TB/s, 3 TFLOP/s of 15.7; 8 x 8 outputs a thread lift that ceiling to 24.

  Raises:
    ValueError: an intensity, a bandwidth or the peak is not positive, or a
      name occurs twice.
  """
  collection("tiers", tiers, Tier)
  positive("peak_flops_per_s", peak_flops_per_s)
  by: dict[str, float] = {}
  for tier in tiers:
    positive(f"{tier.name} intensity", tier.intensity)
    positive(f"{tier.name} bandwidth_bytes_per_s", tier.bandwidth_bytes_per_s)
    if tier.name in by or tier.name == "arithmetic":
      raise ValueError(f"name={tier.name!r}: expected another; it is taken")
    by[tier.name] = tier.intensity * tier.bandwidth_bytes_per_s
  by["arithmetic"] = peak_flops_per_s
  least = min(by.values())
  return TierCeilings(
    flops_per_s_by=FrozenMap(by),
    flops_per_s=least,
    binding=tuple(name for name, rate in by.items() if rate == least),
  )
