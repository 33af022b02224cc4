"""The memory tiers of a device: how fast each delivers, and how late."""

import dataclasses

from hw_profiles.frozen_map import FrozenMap
from hw_profiles.profile import GpuProfile, NpuProfile, Source
from hw_profiles.registry import resolve


@dataclasses.dataclass(frozen=True)
class MemoryTier:
  """One tier.

  Attributes:
    bandwidth_bytes_per_s: All cores together; None: unknown, and `source` says why.
    latency_cycles: Lowest and highest load latency; None: unknown.
    source: Of the bandwidth.
  """

  bandwidth_bytes_per_s: float | None
  latency_cycles: tuple[int, int] | None
  source: Source


def memory_tiers(profile: str | GpuProfile | NpuProfile) -> FrozenMap[str, MemoryTier]:
  """The tiers of a device, nearest first, under the names of `TilePlan.traffic_bytes`.

  On a GPU "registers", "shared", "l2" and "dram". Shared memory delivers what a
  source quotes, else its banks' peak, bytes a cycle · SMs · clock. On Ascend the
  ways into and out of each buffer, rate · cores · clock: "l0a" and "l0b" (from
  L1), "l0c" (to GM), "ub" (from GM, all vector cores), "l1" (from L2), and "hbm".

  Source: the V100 rows are those of a tutorial (20, 12, 2 and 0.9 TB/s), of which
  20 TB/s for registers cannot be a ceiling: see `operand_bandwidth_bytes_per_s`.

  Raises:
    ValueError: no such profile.
  """
  profile = resolve(profile)
  return _gpu_tiers(profile) if isinstance(profile, GpuProfile) else _npu_tiers(profile)


def _gpu_tiers(gpu: GpuProfile) -> FrozenMap[str, MemoryTier]:
  quoted = gpu.shared_bandwidth_bytes_per_s
  banks = float(gpu.shared_bytes_per_cycle_per_sm * gpu.sm_count * gpu.clock_hz)
  shared_field = (
    "shared_bytes_per_cycle_per_sm" if quoted is None else "shared_bandwidth_bytes_per_s"
  )
  return FrozenMap(
    {
      name: MemoryTier(bandwidth, gpu.latency_cycles.get(name), gpu.source(field))
      for name, bandwidth, field in (
        ("registers", gpu.register_bandwidth_bytes_per_s, "register_bandwidth_bytes_per_s"),
        ("shared", banks if quoted is None else quoted, shared_field),
        ("l2", gpu.l2_bandwidth_bytes_per_s, "l2_bandwidth_bytes_per_s"),
        ("dram", gpu.dram_bandwidth_bytes_per_s, "dram_bandwidth_bytes_per_s"),
      )
    }
  )


def _npu_tiers(npu: NpuProfile) -> FrozenMap[str, MemoryTier]:
  paths = (
    ("l0a", "l1_to_l0a_bytes_per_cycle", npu.aic_count),
    ("l0b", "l1_to_l0b_bytes_per_cycle", npu.aic_count),
    ("l0c", "l0c_to_gm_bytes_per_cycle", npu.aic_count),
    ("ub", "gm_to_ub_bytes_per_cycle", npu.aiv_count),
    ("l1", "l2_to_core_bytes_per_cycle", npu.aic_count),
  )
  tiers = {
    name: MemoryTier(getattr(npu, field) * cores * npu.clock_hz, None, npu.source(field))
    for name, field, cores in paths
  }
  tiers["hbm"] = MemoryTier(
    npu.hbm_bandwidth_bytes_per_s, None, npu.source("hbm_bandwidth_bytes_per_s")
  )
  return FrozenMap(tiers)


def tier_bandwidth_bytes_per_s(profile: str | GpuProfile | NpuProfile, tier: str) -> float:
  """The bandwidth of one of `memory_tiers`.

  Raises:
    ValueError: no such profile or tier, or no source gives its bandwidth.
  """
  profile = resolve(profile)
  tiers = memory_tiers(profile)
  if not isinstance(tier, str) or tier not in tiers:
    raise ValueError(
      f"tier={tier!r}: {profile.name} has no such tier; expected one of {', '.join(tiers)}"
    )
  found = tiers[tier]
  if found.bandwidth_bytes_per_s is None:
    known = ", ".join(name for name, other in tiers.items() if other.bandwidth_bytes_per_s)
    raise ValueError(
      f"tier={tier!r}: its bandwidth on {profile.name} is not known ({found.source.source});"
      f" {known} are"
    )
  return found.bandwidth_bytes_per_s
