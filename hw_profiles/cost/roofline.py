"""The roofline: which of arithmetic and memory bounds a computation."""

import dataclasses
import math
from typing import Literal

from hw_profiles.arguments import not_negative
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
  profile: str | GpuProfile | NpuProfile, *, flops: float, bytes: float, dtype: str
) -> Roofline:
  """time = max(flops / peak, bytes / bandwidth); ridge = peak / bandwidth.

  Example (H100, bfloat16): the ridge is 989.4e12 / 3.35e12 = 295.3 FLOP/B.

  Args:
    profile: The device or its name; peaks are data-sheet peaks, nothing sustained.
    flops: Operations, a multiply-add counting as 2.
    bytes: Bytes between the device's memory and the chip.
    dtype: Operand dtype, a key of `profile.peak_flops`.

  Raises:
    ValueError: no such profile, a negative amount, or a dtype the profile has no
      rate for.
  """
  profile = resolve(profile)
  not_negative("flops", flops)
  not_negative("bytes", bytes)
  peak = peak_flops(profile, dtype)
  bandwidth = profile.memory_bandwidth_bytes_per_s
  ridge = peak / bandwidth
  intensity = flops / bytes if bytes else math.inf
  return Roofline(
    intensity=intensity,
    ridge=ridge,
    bound="compute" if intensity >= ridge else "memory",
    time_us=max(flops / peak, bytes / bandwidth) * 1e6,
    peak_fraction=min(1.0, intensity / ridge),
  )
