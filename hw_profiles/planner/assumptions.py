"""What the time estimates rest on, in words, with the numbers of the device."""

import functools

from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.validation.recorded import ModelError


def assumptions(
  device: GpuProfile | NpuProfile,
  *,
  op: str,
  op_assumptions: tuple[str, ...],
  error: ModelError | None,
) -> tuple[str, ...]:
  """The assumptions of `sm_time` or `npu_time` as this device sets them, and the op's.

  Args:
    device: The device.
    op: The op's name.
    op_assumptions: What its model assumes beside.
    error: How far it was from measurements; None: never compared.
  """
  of_device = _gpu(device) if isinstance(device, GpuProfile) else _npu(device)
  return (
    *of_device,
    *op_assumptions,
    f"a launch takes {device.launch_overhead_us:g} us of device time, nothing of the host's",
    _checked(device.name, op, error),
  )


# the same for every tile of a ranking
@functools.lru_cache(maxsize=64)
def _gpu(gpu: GpuProfile) -> tuple[str, ...]:
  return (
    f"full waves hold {100 * gpu.sustained_tensor_fraction:.0f} % of the arithmetic peak,"
    f" streaming {100 * gpu.sustained_dram_fraction:.0f} % of the DRAM peak"
    f" ({gpu.source('sustained_tensor_fraction').confidence})",
    f"L2 delivers {gpu.l2_bandwidth_bytes_per_s / 1e12:.1f} TB/s"
    f" ({gpu.source('l2_bandwidth_bytes_per_s').confidence}),"
    f" DRAM answers in {gpu.dram_latency_ns:.0f} ns ({gpu.source('dram_latency_ns').confidence})",
  )


@functools.lru_cache(maxsize=64)
def _npu(npu: NpuProfile) -> tuple[str, ...]:
  return (
    f"full rounds hold {100 * npu.sustained_cube_fraction:.0f} % of the cube's rate,"
    f" loads {100 * npu.sustained_hbm_fraction:.0f} % of the HBM peak"
    f" ({npu.source('sustained_cube_fraction').confidence})",
    "pipes overlap as far as their buffers allow; synchronisation and address alignment cost"
    " nothing",
  )


def _checked(profile: str, op: str, error: ModelError | None) -> str:
  if error is None:
    return f"times: never checked against a measured {op} on {profile}"
  return (
    f"times: median error {100 * error.median_absolute_relative_error:.0f} %, largest"
    f" {100 * error.largest_absolute_relative_error:.0f} %, over {error.row_count} measured"
    f" times of {op} ({error.source})"
  )
