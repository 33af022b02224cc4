"""What the row-wise time estimates take of a device, in words."""

import functools

from hw_profiles.cost.l2_reuse import L2_OPERAND_FRACTION
from hw_profiles.cost.stream_time import FULL_RATE_TRANSFER_BYTES, UNALIGNED_RATE
from hw_profiles.profile import GpuProfile, NpuProfile

_UNKNOWN = "no source gives it: nothing is charged, the time is a lower bound"


@functools.lru_cache(maxsize=64)
def sm_assumptions(gpu: GpuProfile) -> tuple[str, ...]:
  """Rates, latency and launches of `sm_stream_time`."""
  streamed = gpu.source("sustained_dram_fraction")
  l2, of_l2 = gpu.source("l2_bandwidth_bytes_per_s"), gpu.source("sustained_l2_fraction")
  launch, gap = gpu.source("stream_launch_us"), gpu.source("launch_gap_us")
  return (
    f"streaming {100 * streamed.value:.0f} % of the DRAM peak ({streamed.confidence})"
    if streamed.value is not None
    else f"share of the DRAM peak that streaming reaches: {_UNKNOWN}",
    f"L2 delivers {100 * of_l2.value:.0f} % ({of_l2.confidence}) of {l2.value / 1e12:.1f} TB/s"
    f" ({l2.confidence})"
    if l2.value is not None
    else f"L2 bandwidth: {_UNKNOWN}",
    f"DRAM answers in {gpu.dram_latency_ns:.0f} ns ({gpu.source('dram_latency_ns').confidence})",
    f"a launch takes {launch.value:g} us of device time beside its loads ({launch.confidence}),"
    f" {gap.value:g} us pass between launches that depend on one another ({gap.confidence});"
    " kernels of tiles and stages, as of matmul, are charged more",
  )


@functools.lru_cache(maxsize=64)
def aiv_assumptions(npu: NpuProfile) -> tuple[str, ...]:
  """Rates and launches of `aiv_stream_time`."""
  streamed, launch = npu.source("sustained_hbm_fraction"), npu.source("vector_launch_us")
  return (
    f"copies reach {100 * streamed.value:.0f} % of the HBM peak ({streamed.confidence})"
    if streamed.value is not None
    else f"share of the HBM peak that copies reach: {_UNKNOWN}",
    f"a copy of less than {FULL_RATE_TRANSFER_BYTES // 1024} KiB takes as long as one of that;"
    f" runs in GM that begin off {npu.gm_alignment_bytes} B reach {100 * UNALIGNED_RATE:.0f} % of"
    " a core's rate",
    f"a launch of vector cores takes {launch.value:g} us of device time ({launch.confidence}),"
    f" less than one of cube cores, {npu.launch_overhead_us:g} us",
  )


def l2_assumption(*, warm: bool) -> str:
  """What L2 holds at the start and between two reads."""
  share = f"{100 * L2_OPERAND_FRACTION:.0f} % of L2"
  if warm:
    return f"L2 starts with the operands, if they fit {share} and the results the rest"
  return f"L2 starts cold; what is read again comes from it if it fits {share}"
