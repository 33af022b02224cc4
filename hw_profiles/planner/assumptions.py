"""What the time estimates rest on, in words, with the numbers of the device."""

from hw_profiles.planner.tile_counts import L2_OPERAND_FRACTION
from hw_profiles.profile import GpuProfile, NpuProfile, Profile


def _checked(profile: Profile) -> str:
  error = profile.model_error
  if error is None:
    return f"times: never checked against a measurement of {profile.name}"
  return (
    f"times: median error {100 * error.median_absolute_relative_error:.0f} %, largest"
    f" {100 * error.largest_absolute_relative_error:.0f} %, over {error.row_count} measured"
    f" matmuls ({error.source})"
  )


def gpu_assumptions(gpu: GpuProfile, schedule: str) -> tuple[str, ...]:
  """Assumptions of `sm_time` as this device and schedule set them."""
  residency = (
    "one persistent block an SM, whose copies run ahead through the epilogue"
    if schedule == "warp_specialized"
    else "registers of the compiled kernel estimated from the tile, not read from a binary"
  )
  return (
    f"full waves hold {100 * gpu.sustained_tensor_fraction:.0f} % of the arithmetic peak,"
    f" streaming {100 * gpu.sustained_dram_fraction:.0f} % of the DRAM peak"
    f" ({gpu.source('sustained_tensor_fraction').confidence})",
    f"operands may keep {100 * L2_OPERAND_FRACTION:.0f} % of L2; programs of a wave walk K in"
    " step; L2 starts cold",
    f"L2 delivers {gpu.l2_bandwidth_bytes_per_s / 1e12:.1f} TB/s"
    f" ({gpu.source('l2_bandwidth_bytes_per_s').confidence}),"
    f" DRAM answers in {gpu.dram_latency_ns:.0f} ns ({gpu.source('dram_latency_ns').confidence})",
    residency,
    f"a launch takes {gpu.launch_overhead_us:g} us of device time, nothing of the host's",
    _checked(gpu),
  )


def npu_assumptions(npu: NpuProfile) -> tuple[str, ...]:
  """Assumptions of `cube_time` as this device sets them."""
  return (
    f"full rounds hold {100 * npu.sustained_cube_fraction:.0f} % of the cube's rate,"
    f" loads {100 * npu.sustained_hbm_fraction:.0f} % of the HBM peak"
    f" ({npu.source('sustained_cube_fraction').confidence})",
    f"operands may keep {100 * L2_OPERAND_FRACTION:.0f} % of L2; cores of a round walk K in step;"
    " L2 starts cold",
    "pipes overlap as far as their buffers allow; synchronisation and address alignment cost"
    " nothing",
    "L0A/L0B slices are this planner's: Huawei's compiler reports no L0A or L0B use",
    f"a launch takes {npu.launch_overhead_us:g} us of device time, nothing of the host's",
    _checked(npu),
  )
