"""A device without one of its limits, for questions of the kind "what if DRAM were no limit"."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from hw_profiles.frozen_map import FrozenMap
from hw_profiles.profile import GpuProfile, NpuProfile

# Large enough that a resource takes no time, small enough to stay exact.
_FACTOR = 10**9

# What sets the time of each resource of the time models: rates, and times a launch, a
# load or a copy takes. "epilogue" and "fill" are made of the others and have no field of their own.
_RATES: Mapping[type, Mapping[str, tuple[str, ...]]] = {
  GpuProfile: {
    "tensor_cores": ("peak_flops",),
    "cuda_cores": ("peak_flops",),
    "shared_memory": ("shared_bytes_per_cycle_per_sm",),
    "special_functions": ("special_functions_per_cycle_per_sm",),
    "l2": ("l2_bandwidth_bytes_per_s",),
    "dram": ("dram_bandwidth_bytes_per_s",),
  },
  NpuProfile: {
    "cube": ("cube_macs_per_cycle",),
    "mte2": ("l2_to_core_bytes_per_cycle", "few_cores_gm_bytes_per_cycle"),
    "mte1": ("l1_to_l0a_bytes_per_cycle", "l1_to_l0b_bytes_per_cycle", "bt_load_bytes_per_cycle"),
    "fixpipe": (
      "l0c_to_gm_bytes_per_cycle",
      "few_cores_gm_bytes_per_cycle",
      "l0c_to_ub_bytes_per_cycle",
      "l0c_to_l1_bytes_per_cycle",
    ),
    "vector_mte2": ("gm_to_ub_bytes_per_cycle",),
    "vector": ("vector_bytes_per_cycle", "exp_elements_per_cycle"),
    "mte3": ("ub_to_gm_bytes_per_cycle", "ub_to_l1_bytes_per_cycle"),
    "hbm": ("hbm_bandwidth_bytes_per_s",),
  },
}
_TIMES: Mapping[type, Mapping[str, tuple[str, ...]]] = {
  GpuProfile: {
    "latency": ("dram_latency_ns",),
    "narrow_copies": ("narrow_copy_cycles",),
    "launch": ("launch_overhead_us", "stream_launch_us", "launch_gap_us"),
  },
  NpuProfile: {"launch": ("launch_overhead_us", "vector_launch_us", "mixed_launch_us")},
}


def without_limit(device: GpuProfile | NpuProfile, resource: str) -> GpuProfile | NpuProfile | None:
  """The device with one resource that takes no time; None where it is no resource of its own.

  Capacities stay: what fits, fits as before.

  Args:
    device: The device.
    resource: A key of `TilePlan.times_us`.
  """
  changes: dict[str, Any] = {}
  for field in _RATES[type(device)].get(resource, ()):
    value = getattr(device, field)
    if isinstance(value, FrozenMap):
      changes[field] = FrozenMap(
        {
          dtype: rate * _FACTOR if _is_of(resource, dtype) else rate
          for dtype, rate in value.items()
        }
      )
    elif value:
      changes[field] = value * _FACTOR
  for field in _TIMES[type(device)].get(resource, ()):
    if (value := getattr(device, field)) is not None:
      changes[field] = value / _FACTOR
  return dataclasses.replace(device, **changes) if changes else None


def _is_of(resource: str, dtype: str) -> bool:
  """Whether the rate of a dtype is that of the resource: CUDA cores do float32, and it alone."""
  return resource == "cube" or (dtype == "float32") == (resource == "cuda_cores")
