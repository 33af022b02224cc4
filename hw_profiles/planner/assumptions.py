"""What the time estimates rest on, in words, with the numbers of the device."""

import functools

from hw_profiles.profile import GpuProfile, NpuProfile, known
from hw_profiles.validation.recorded import ModelError


def assumptions(
  device: GpuProfile | NpuProfile,
  *,
  op: str,
  op_assumptions: tuple[str, ...],
  error: ModelError | None,
  limit: str | None = None,
  time_assumptions: tuple[str, ...] | None = None,
) -> tuple[str, ...]:
  """The assumptions of `sm_time` or `npu_time` as this device sets them, and the op's.

  Args:
    device: The device.
    op: The op's name.
    op_assumptions: What its model assumes beside.
    error: How far it was from measurements; None: never compared.
    limit: What is known to be outside the evidence; None: nothing.
    time_assumptions: Instead of those of `sm_time` or `npu_time`, where the op's
      time is another model's.
  """
  evidence = [_checked(device.name, op, error)]
  if limit is not None:
    evidence.append(f"outside the evidence: {limit}")
  if time_assumptions is not None:
    return (*time_assumptions, *op_assumptions, *evidence)
  of_device = _gpu(device) if isinstance(device, GpuProfile) else _npu(device)
  return (
    *of_device,
    *op_assumptions,
    launch_assumption(device),
    *_not_charged(device),
    *evidence,
  )


def beyond_measured(
  device: GpuProfile | NpuProfile, *, op: str, error: ModelError | None, time_us: float
) -> tuple[str, ...]:
  """What to say of a time that is far from all that the error is of."""
  if error is None or error.covers(time_us):
    return ()
  return (
    f"outside the evidence: {time_us:,.1f} us, where the measured times of {op} on {device.name}"
    f" are {error.shortest_us:,.1f} to {error.longest_us:,.1f} us",
  )


@functools.lru_cache(maxsize=64)
def launch_assumption(device: GpuProfile | NpuProfile) -> str:
  """What starting each kind of kernel is charged: why ops differ in "launch"."""

  def charged(field: str) -> str:
    found = device.source(field)
    if found.value is None:
      return "an unknown time, taken as nothing,"
    return f"{found.value:g} us ({found.confidence})"

  if isinstance(device, GpuProfile):
    return (
      "launch, of device time alone: a kernel of tiles and stages (matmul, attention)"
      f" {charged('launch_overhead_us')}, with its barriers and ramp; one that streams (row-wise,"
      f" and passes beside others) {charged('stream_launch_us')}, and"
      f" {charged('launch_gap_us')} after the kernel that it waits for"
    )
  return (
    "launch, of device time alone: cube cores (matmul)"
    f" {charged('launch_overhead_us')}, vector cores with them (attention, an activation)"
    f" {charged('mixed_launch_us')} more, vector cores alone (row-wise)"
    f" {charged('vector_launch_us')}"
  )


# what the time models read of a profile and do without where it is None
_PRICED = (
  "l2_bandwidth_bytes_per_s",
  "launch_overhead_us",
  "sustained_dram_fraction",
  "sustained_hbm_fraction",
)


@functools.lru_cache(maxsize=64)
def _not_charged(device: GpuProfile | NpuProfile) -> tuple[str, ...]:
  missing = [
    f"{field} ({device.source(field).source})" for field in device.unknown() if field in _PRICED
  ]
  if not missing:
    return ()
  return (f"not known of {device.name}, so nothing is charged for it: {'; '.join(missing)}",)


# the same for every tile of a ranking
@functools.lru_cache(maxsize=64)
def _gpu(gpu: GpuProfile) -> tuple[str, ...]:
  streamed = 100 * known(gpu.sustained_dram_fraction, 1.0)
  stated = [
    f"full waves hold {100 * gpu.sustained_tensor_fraction:.0f} % of the tensor peak"
    f" ({gpu.source('sustained_tensor_fraction').confidence}) or"
    f" {100 * gpu.sustained_cuda_core_fraction:.0f} % of the CUDA cores'"
    f" ({gpu.source('sustained_cuda_core_fraction').confidence}), streaming {streamed:.0f} % of"
    f" the DRAM peak ({gpu.source('sustained_dram_fraction').confidence})",
    f"DRAM answers in {gpu.dram_latency_ns:.0f} ns ({gpu.source('dram_latency_ns').confidence})",
  ]
  if gpu.l2_bandwidth_bytes_per_s is not None:
    stated[1] = (
      f"L2 delivers {gpu.l2_bandwidth_bytes_per_s / 1e12:.1f} TB/s"
      f" ({gpu.source('l2_bandwidth_bytes_per_s').confidence}), {stated[1]}"
    )
  return tuple(stated)


@functools.lru_cache(maxsize=64)
def _npu(npu: NpuProfile) -> tuple[str, ...]:
  return (
    f"full rounds hold {100 * npu.sustained_cube_fraction:.0f} % of the cube's rate,"
    f" loads {100 * known(npu.sustained_hbm_fraction, 1.0):.0f} % of the HBM peak"
    f" ({npu.source('sustained_cube_fraction').confidence})",
    "pipes overlap as far as their buffers allow; synchronisation costs nothing",
  )


def _checked(profile: str, op: str, error: ModelError | None) -> str:
  if error is None:
    return f"times: never checked against a measured {op} on {profile}"
  return (
    f"times: median error {100 * error.median_absolute_relative_error:.0f} %, largest"
    f" {100 * error.largest_absolute_relative_error:.0f} %, over {error.row_count} measured"
    f" times of {op}{_of_named_tiles(error)} ({error.source})"
  )


def _of_named_tiles(error: ModelError) -> str:
  """The error of single tiles, where a source says which ran; most say only that it is tuned."""
  named = error.named_tiles
  if named is None or named.row_count == error.row_count:
    return ", which name their tiles" if named is not None else ", none of which names its tile"
  return (
    f"; of them {named.row_count} name their tile: median {100 * named.median:.0f} %, largest"
    f" {100 * named.largest:.0f} %"
  )
