"""What a core multiplies operands of a dtype with."""

import dataclasses
from typing import Literal

from hw_profiles import dtypes
from hw_profiles.capacity.buffers import Shortfall
from hw_profiles.profile import GpuProfile, NpuProfile


@dataclasses.dataclass(frozen=True)
class Rate:
  """What multiplies the operands.

  Attributes:
    flops_per_s: Its peak, all SMs together.
    arithmetic: "tensor_cores" or "cuda_cores".
    notes: What to say where it is not the obvious one.
  """

  flops_per_s: float
  arithmetic: Literal["tensor_cores", "cuda_cores"]
  notes: tuple[str, ...] = ()


def multiply_rate(dtype: str, gpu: GpuProfile) -> Rate | None:
  """The device's arithmetic for operands of `dtype`; None: it has none."""
  if dtype == "float32":
    note = "float32 is priced on the CUDA cores, never as TF32"
    return Rate(gpu.peak_flops["float32"], "cuda_cores", (note,))
  if dtype in gpu.peak_flops:
    return Rate(gpu.peak_flops[dtype], "tensor_cores")
  stand_in = priced_as_float32(dtype, gpu)
  if stand_in is None:
    return None
  return Rate(gpu.peak_flops["float32"], "cuda_cores", (stand_in,))


def priced_as_float32(dtype: str, gpu: GpuProfile) -> str | None:
  """That a 16-bit dtype has no tensor cores on the device (bfloat16 on a V100); None: it has."""
  if dtype in gpu.peak_flops or dtypes.size_bytes(dtype) != 2:
    return None
  return f"{gpu.name} has no {dtype} tensor cores: priced as float32 on the CUDA cores"


def missing_rate(dtype: str, gpu: GpuProfile) -> tuple[Shortfall, ...]:
  """The shortfall of a dtype that the device does not multiply."""
  if multiply_rate(dtype, gpu) is not None:
    return ()
  statement = f"dtype={dtype!r}: {gpu.name} multiplies {', '.join(gpu.peak_flops)}"
  return (Shortfall("unsupported", "dtype", (), statement),)


def missing_cube_rate(dtype: str, npu: NpuProfile) -> tuple[Shortfall, ...]:
  """The shortfall of a dtype that the cube does not multiply."""
  if dtype in npu.cube_macs_per_cycle:
    return ()
  known = ", ".join(npu.cube_macs_per_cycle)
  statement = f"dtype={dtype!r}: the cube of {npu.name} takes {known}"
  return (Shortfall("unsupported", "dtype", (), statement),)


def mma_sync_assumption(gpu: GpuProfile) -> tuple[str, ...]:
  """What mma.sync is taken to reach on a device whose peak is that of wgmma or tcgen05."""
  if not (gpu.has_wgmma or gpu.tensor_memory_bytes_per_sm):
    return ()
  peak = "wgmma" if gpu.has_wgmma else "tcgen05"
  reached = gpu.source("synchronous_mma_fraction")
  return (
    "mma.sync, with operands and accumulators in registers, reaches"
    f" {100 * reached.value:.0f} % of the {peak} rate ({reached.confidence})",
  )
