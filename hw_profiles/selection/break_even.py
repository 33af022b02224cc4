"""When fewer bytes, or a saving with a fixed price, make something faster."""

import dataclasses
import math

from hw_profiles.arguments import positive
from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.registry import resolve


def memory_time_ratio(
  *, bytes: float, baseline_bytes: float, bandwidth_ratio: float = 1.0
) -> float:
  """Time against the baseline's, both bound by memory.

      T / T₀ = (V / V₀)·(B₀ / B)

  Example: 128 x 128 tiles move 1560 MiB where 64 x 64 tiles move 3096: 0.504 of
  the time at equal bandwidth, 1.26 of it at 40 % of the bandwidth.

  Args:
    bytes: What it moves.
    baseline_bytes: What the baseline moves.
    bandwidth_ratio: Its effective bandwidth as a share of the baseline's.

  Raises:
    ValueError: an argument is not a number above 0.
  """
  positive("bytes", bytes)
  positive("baseline_bytes", baseline_bytes)
  positive("bandwidth_ratio", bandwidth_ratio)
  return bytes / baseline_bytes / bandwidth_ratio


def break_even_bandwidth_ratio(*, bytes: float, baseline_bytes: float) -> float:
  """The share of the baseline's bandwidth at which both take equally long: V / V₀.

  Example: 64 x 128 tiles, 2328 MiB against 3096, are faster from 75.2 % on.

  Raises:
    ValueError: an argument is not a number above 0.
  """
  return memory_time_ratio(bytes=bytes, baseline_bytes=baseline_bytes)


def break_even_units(
  profile: str | GpuProfile | NpuProfile, *, saved_bytes_per_unit: float, overhead_us: float
) -> int:
  """The fewest rows (or other units) whose saved memory time exceeds a fixed price.

      units·saved / bandwidth > overhead

  Example: 96 KiB a row and 5 us at 1792 GB/s: 92 rows.

  Args:
    profile: The device or its name; its peak bandwidth counts.
    saved_bytes_per_unit: Bytes that one unit no longer moves.
    overhead_us: What saving them costs a call, microseconds.

  Raises:
    ValueError: no such profile, or a number that is not above 0.
  """
  positive("saved_bytes_per_unit", saved_bytes_per_unit)
  positive("overhead_us", overhead_us)
  bandwidth = resolve(profile).memory_bandwidth_bytes_per_s
  # more than, not at least: at equality nothing is gained
  return math.floor(overhead_us * 1e-6 * bandwidth / saved_bytes_per_unit) + 1


@dataclasses.dataclass(frozen=True)
class AchievedBandwidth:
  """What a measured time means for the bytes a model counts.

  Attributes:
    bytes_per_s: Counted bytes over measured time.
    memory_fraction: The same as a share of the memory's peak.
    memory_time_us: What the memory would need for the bytes, at its peak.
    exceeds_memory: More than the memory can deliver: a cache served part, so
      the measurement says nothing about a prediction from the memory's rate.
  """

  bytes_per_s: float
  memory_fraction: float
  memory_time_us: float
  exceeds_memory: bool


def achieved_bandwidth(
  profile: str | GpuProfile | NpuProfile, *, bytes: float, measured_us: float
) -> AchievedBandwidth:
  """Holds a measured time against the device's memory.

  Example: 120 MiB in 14.2 us is 8.9 TB/s, 4.9 times what an RTX PRO 6000's
  memory delivers: its 128 MiB L2 held the data. 72 MiB from memory would take
  42 us, not the 7.68 that were measured with a warm cache.

  Args:
    profile: The device or its name.
    bytes: Bytes counted for one run.
    measured_us: Its time, microseconds.

  Raises:
    ValueError: no such profile, or a number that is not above 0.
  """
  positive("bytes", bytes)
  positive("measured_us", measured_us)
  bandwidth = resolve(profile).memory_bandwidth_bytes_per_s
  rate = bytes / measured_us * 1e6
  return AchievedBandwidth(
    bytes_per_s=rate,
    memory_fraction=rate / bandwidth,
    memory_time_us=bytes / bandwidth * 1e6,
    exceeds_memory=rate > bandwidth,
  )
