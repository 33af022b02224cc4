"""Little's law: bytes that must be under way to keep DRAM busy."""

import dataclasses
import math

from hw_profiles.arguments import at_least, positive
from hw_profiles.profile import GpuProfile
from hw_profiles.registry import resolve_gpu


@dataclasses.dataclass(frozen=True)
class InFlight:
  """Loads under way on one SM against what the bandwidth needs.

  Attributes:
    required_bytes_per_sm: An SM's share of bandwidth x latency.
    available_bytes_per_sm: What the resident warps keep under way.
    coverage: available / required; below 1 latency is exposed.
    min_warps: Resident warps at which coverage reaches 1.
    effective_bandwidth_bytes_per_s: DRAM bandwidth reached, all SMs together.
  """

  required_bytes_per_sm: float
  available_bytes_per_sm: int
  coverage: float
  min_warps: int
  effective_bandwidth_bytes_per_s: float


def in_flight(
  gpu: str | GpuProfile,
  *,
  resident_warps: int,
  loads_per_warp: int,
  latency_ns: float,
  bytes_per_load: int = 512,
) -> InFlight:
  """required = bandwidth · latency / SMs; available = warps · loads · bytes.

  Example (H100, 600 ns): 15.2 kB an SM are required; 16 warps with 4 loads of
  512 B hold 32 KiB, a coverage of 2.15, and 8 warps would do.

  Args:
    gpu: The device or its name.
    resident_warps: Warps on an SM, for example `residency(...).resident_warps`.
    loads_per_warp: Independent loads a warp issues before it waits.
    latency_ns: From issue to arrival; `gpu.dram_latency_ns` is the profile's.
    bytes_per_load: Of a whole warp: 32 lanes x 16 B by default.

  Raises:
    ValueError: `gpu` is no GPU, or another argument out of range.
  """
  gpu = resolve_gpu(gpu)
  at_least("resident_warps", resident_warps, 0)
  at_least("loads_per_warp", loads_per_warp, 1)
  at_least("bytes_per_load", bytes_per_load, 1)
  positive("latency_ns", latency_ns)
  bandwidth = gpu.dram_bandwidth_bytes_per_s
  required = bandwidth * latency_ns / 1e9 / gpu.sm_count
  available = resident_warps * loads_per_warp * bytes_per_load
  coverage = available / required
  return InFlight(
    required_bytes_per_sm=required,
    available_bytes_per_sm=available,
    coverage=coverage,
    min_warps=math.ceil(required / (loads_per_warp * bytes_per_load)),
    effective_bandwidth_bytes_per_s=min(1.0, coverage) * bandwidth,
  )
