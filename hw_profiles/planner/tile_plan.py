"""What the planner says about one tile configuration on one device."""

import dataclasses

from hw_profiles.capacity.buffers import Buffer
from hw_profiles.capacity.residency import Residency
from hw_profiles.config import MatmulConfig
from hw_profiles.cost.l2_reuse import Wave
from hw_profiles.cost.traffic import MatmulTraffic
from hw_profiles.errors import InfeasibleTileError
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.problem import MatmulProblem
from hw_profiles.profile import Profile


@dataclasses.dataclass(frozen=True)
class TilePlan:
  """One tile configuration on one device: capacity, traffic and estimated time.

  Times are estimates. `assumptions` says what they rest on, `model_error` how
  far they were from measured times of that device.

  Attributes:
    problem: What is computed.
    config: The tile.
    profile: Name of the device's profile.
    vendor: "nvidia" or "huawei".
    schedule: "warp_specialized" or "multistage" on an SM, "cube" on Ascend.
    fits: Whether the tile runs.
    reason: Why it does not, with the nearest config that would; empty if it fits.
    binding: What allows no further resident block on an SM; on Ascend the
      fullest of L1, L0C and BT; where the tile does not fit, what it exceeds.
    buffers: Everything the tile keeps, with bytes needed and available.
    resident_blocks: Blocks on an SM; on a cube core tiles of C in L0C. 0 where
      the tile does not fit.
    residency: The SM's residency in full; None on Ascend, or without a fit.
    traffic: Working set and traffic at the working buffers, of one product of
      the batch.
    traffic_bytes: Bytes the whole batch moves, by tier: "dram", "l2", "shared"
      on NVIDIA; "hbm", "l1" (in from GM), "l0" (L0A and L0B), "l0c" (out), "ub"
      (in) on Ascend. Empty without a fit.
    grid: Tile rows and columns of one product.
    waves: Rounds in which the device works through the tiles, `resident_blocks`
      an SM (one a cube core) at a time.
    tail_efficiency: Share of the places in those rounds that has a tile.
    times_us: Busy time of each resource; resources overlap, so they do not add
      up. Empty without a fit.
    predicted_us: Estimated device time; None without a fit.
    bound: The resource of `times_us` that sets the time; empty without a fit.
    notes: Padding, fallbacks, placement.
    assumptions: What the estimate rests on.
    model_error: Median |predicted - measured| / measured of this device;
      None where it was never checked. `get_profile(...).model_error` has the
      rows behind it.
  """

  problem: MatmulProblem
  config: MatmulConfig
  profile: str
  vendor: str
  schedule: str
  fits: bool
  reason: str
  binding: tuple[str, ...]
  buffers: tuple[Buffer, ...]
  resident_blocks: int
  residency: Residency | None
  traffic: MatmulTraffic
  traffic_bytes: FrozenMap[str, int]
  grid: tuple[int, int]
  waves: int
  tail_efficiency: float
  times_us: FrozenMap[str, float]
  predicted_us: float | None
  bound: str
  notes: tuple[str, ...]
  assumptions: tuple[str, ...]
  model_error: float | None

  def check(self) -> None:
    """Raises InfeasibleTileError(reason) where the tile does not fit."""
    if not self.fits:
      raise InfeasibleTileError(self.reason)

  def needed_bytes(self, space: str) -> int:
    """Bytes the tile needs in one memory space, all its buffers together."""
    return sum(buffer.needed_bytes for buffer in self.buffers if buffer.space == space)


def median_error(profile: Profile) -> float | None:
  """`TilePlan.model_error` of a device."""
  error = profile.model_error
  return None if error is None else error.median_absolute_relative_error


def infeasible_plan(
  *,
  problem: MatmulProblem,
  config: MatmulConfig,
  profile: Profile,
  schedule: str,
  reason: str,
  binding: tuple[str, ...],
  buffers: tuple[Buffer, ...],
  traffic: MatmulTraffic,
  waves: Wave,
  notes: tuple[str, ...],
  assumptions: tuple[str, ...],
) -> TilePlan:
  """The plan of a tile that does not run: what it needs, and why not."""
  return TilePlan(
    problem=problem,
    config=config,
    profile=profile.name,
    vendor=profile.vendor,
    schedule=schedule,
    fits=False,
    reason=reason,
    binding=binding,
    buffers=buffers,
    resident_blocks=0,
    residency=None,
    traffic=traffic,
    traffic_bytes=FrozenMap(),
    grid=traffic.grid,
    waves=waves.waves,
    tail_efficiency=waves.tail_efficiency,
    times_us=FrozenMap(),
    predicted_us=None,
    bound="",
    notes=notes,
    assumptions=assumptions,
    model_error=median_error(profile),
  )
