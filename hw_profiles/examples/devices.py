"""The devices that the course texts compute with."""

import dataclasses
from typing import Any

from hw_profiles.examples.computed import Inputs
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.profile import GpuProfile
from hw_profiles.registry import resolve_gpu

H100 = resolve_gpu("h100_sxm")
RTX = resolve_gpu("rtx_pro_6000")
# the first text rounds its bandwidth
V100 = dataclasses.replace(resolve_gpu("v100_sxm2"), dram_bandwidth_bytes_per_s=900e9)


def device_of(profile: GpuProfile, inputs: Inputs, *, dtype: str = "bfloat16") -> GpuProfile:
  """The profile with the entry's own numbers, where it has them.

  "bw" is the bandwidth of memory in B/s, "sms" the number of SMs, "p" or "peak"
  the arithmetic peak of `dtype` in FLOP/s, "maxw" the warps an SM holds.
  """
  peak = inputs.get("p", inputs.get("peak"))
  changes: dict[str, Any] = {
    "dram_bandwidth_bytes_per_s": inputs.get("bw"),
    "sm_count": inputs.get("sms"),
    "max_warps_per_sm": inputs.get("maxw"),
    "peak_flops": None if peak is None else FrozenMap({dtype: peak}),
  }
  return dataclasses.replace(
    profile, **{name: value for name, value in changes.items() if value is not None}
  )
