"""How long one block's bytes and operations take in one core's share of a device."""

import dataclasses
import math
from typing import Literal

from hw_profiles.arguments import at_least, not_negative, positive
from hw_profiles.cost.roofline import peak_flops
from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.registry import resolve


@dataclasses.dataclass(frozen=True)
class StageTimes:
  """Copy and compute time of one block.

  Attributes:
    bandwidth_bytes_per_s: The share of the memory bandwidth.
    flops_per_s: The share of the arithmetic rate.
    copy_us: Bytes over the share.
    compute_us: Operations over the share.
    copy_over_compute: Their ratio: above 1, copies set the pace; infinite where
      nothing is computed.
    slower: The stage that sets the pace.
  """

  bandwidth_bytes_per_s: float
  flops_per_s: float
  copy_us: float
  compute_us: float
  copy_over_compute: float
  slower: Literal["copy", "compute"]


def stage_times(
  profile: str | GpuProfile | NpuProfile,
  *,
  bytes: float,
  flops: float,
  dtype: str,
  sharing_cores: int | None = None,
  bandwidth_utilisation: float = 1.0,
  compute_utilisation: float = 1.0,
) -> StageTimes:
  """copy = bytes·cores / (u_b·bandwidth); compute = flops·cores / (u_c·peak).

  Example (H100): one of 132 SMs has 25.4 GB/s and 7.50 TFLOP/s. 32 KiB of
  bfloat16 operands take 1.29 us and their 2.10 MFLOP 0.28 us, 4.6 times less,
  as 64 FLOP/B stand against a ridge of 295.

  Args:
    profile: The device or its name.
    bytes: Between device memory and chip, for one block.
    flops: Of one block, a multiply-add counting as 2.
    dtype: Operand dtype, a key of `profile.peak_flops`.
    sharing_cores: Cores that share the device equally; None: all its SMs or AICs;
      1: one block has the whole device.
    bandwidth_utilisation: Share of the bandwidth that is reached, in (0, 1].
    compute_utilisation: Share of the arithmetic peak that is reached, in (0, 1].

  Raises:
    ValueError: no such profile, or another argument out of range.
  """
  profile = resolve(profile)
  not_negative("bytes", bytes)
  not_negative("flops", flops)
  for name, value in (
    ("bandwidth_utilisation", bandwidth_utilisation),
    ("compute_utilisation", compute_utilisation),
  ):
    positive(name, value)
    if value > 1:
      raise ValueError(f"{name}={value}: expected at most 1")
  if sharing_cores is None:
    sharing_cores = profile.sm_count if isinstance(profile, GpuProfile) else profile.aic_count
  at_least("sharing_cores", sharing_cores, 1)
  bandwidth = bandwidth_utilisation * profile.memory_bandwidth_bytes_per_s / sharing_cores
  rate = compute_utilisation * peak_flops(profile, dtype) / sharing_cores
  copy_us = bytes / bandwidth * 1e6
  compute_us = flops / rate * 1e6
  return StageTimes(
    bandwidth_bytes_per_s=bandwidth,
    flops_per_s=rate,
    copy_us=copy_us,
    compute_us=compute_us,
    copy_over_compute=copy_us / compute_us if compute_us else math.inf,
    slower="copy" if copy_us >= compute_us else "compute",
  )
