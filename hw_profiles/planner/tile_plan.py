"""What the planner says about one tile configuration on one device."""

import dataclasses
from typing import Generic

from hw_profiles.capacity.buffers import Buffer, ShortfallKind, held_bytes
from hw_profiles.capacity.residency import Residency
from hw_profiles.cost.time_term import Term
from hw_profiles.errors import InfeasibleTileError, TileShapeError
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.planner.op_model import ConfigT, ProblemT, Traffic


@dataclasses.dataclass(frozen=True)
class TilePlan(Generic[ProblemT, ConfigT]):
  """One tile configuration on one device: capacity, traffic and estimated time.

  Times are estimates. `assumptions` says what they rest on, `model_error` how
  far they were from measured times of that device.

  Attributes:
    problem: What is computed.
    config: The tile.
    profile: Name of the device's profile.
    vendor: "nvidia" or "huawei".
    schedule: How the kernel works; for a matmul "warp_specialized" or
      "multistage" on an SM, "compiled" or "cube" on Ascend.
    requested_schedule: What was asked for: its name, or "auto".
    fits: Whether the tile runs.
    reason: Why it does not, with the nearest config that would; empty if it fits.
    shortfall_kinds: What kinds of reason there are, each once; empty if it fits.
      "capacity": the device has too little of something; "shape": a rule of the
      matrix unit or the kernel that the tile breaks; "unsupported": a dtype or
      device that the schedule does not do, whatever the tile.
    binding: What allows no further resident block on an SM; on Ascend the
      fullest of the memories that the config's sizes fill; where the tile does
      not fit, what it exceeds.
    buffers: Everything the tile keeps, with bytes needed and available.
    resident_blocks: Blocks on an SM; on Ascend tiles that a core works on at
      once (on a cube core tiles in L0C). 0 where the tile does not fit.
    residency: The SM's residency in full; None on Ascend, or without a fit.
    traffic: Working set and traffic at the working buffers; of a matmul, those
      of one product of the batch.
    traffic_bytes: Bytes the whole problem moves, by tier: "dram", "l2", "shared"
      on NVIDIA; "hbm", "l1" (in from GM), "l0" (L0A and L0B), "l0c" (out), "ub"
      (in) on Ascend. Empty without a fit.
    grid: Tiles along each axis that is cut: rows and columns of one product.
    waves: Rounds in which the device works through the tiles, `resident_blocks`
      an SM (one an Ascend core) at a time.
    tail_efficiency: Share of the places in those rounds that has a tile.
    times_us: Busy time of each resource whose rate is known; resources overlap, so
      they do not add up. Empty without a fit.
    unknown_us: Resources that the estimate charges nothing for, as the profile does
      not know their rate: the field, and why there is no number.
    predicted_us: Estimated device time; None without a fit.
    breakdown: `predicted_us` as a sum of what it is made of; None without a fit.
    bound: The resource of `times_us` that sets the time; empty without a fit.
    notes: Padding, fallbacks, placement.
    assumptions: What the estimate rests on.
    model_error: Median |predicted - measured| / measured of this op on this
      device; None where it was never checked. `assumptions` tells the rows
      behind it.
  """

  problem: ProblemT
  config: ConfigT
  profile: str
  vendor: str
  schedule: str
  requested_schedule: str
  fits: bool
  reason: str
  shortfall_kinds: tuple[ShortfallKind, ...]
  binding: tuple[str, ...]
  buffers: tuple[Buffer, ...]
  resident_blocks: int
  residency: Residency | None
  traffic: Traffic
  traffic_bytes: FrozenMap[str, int]
  grid: tuple[int, ...]
  waves: int
  tail_efficiency: float
  times_us: FrozenMap[str, float]
  unknown_us: FrozenMap[str, str]
  predicted_us: float | None
  breakdown: Term | None
  bound: str
  notes: tuple[str, ...]
  assumptions: tuple[str, ...]
  model_error: float | None

  def adds_up(self) -> tuple[str, ...]:
    """The lines by which `predicted_us` can be computed by hand; none without a fit.

    `overlapped 45.2 = max(steps 45.2, dram 31.0)`: a time and its expression, in
    us, the prediction first and every part that has an expression below. A number
    without one is what a rate or the profile gives.
    """
    return () if self.breakdown is None else self.breakdown.lines()

  def check(self) -> None:
    """Raises InfeasibleTileError(reason) where the tile does not fit.

    Where no resource is short, and only its shape is wrong, TileShapeError.
    """
    if not self.fits:
      shape = self.shortfall_kinds == ("shape",)
      raise TileShapeError(self.reason) if shape else InfeasibleTileError(self.reason)

  def needed_bytes(self, space: str) -> int:
    """Bytes the tile needs in one memory space, all its buffers together."""
    return held_bytes(self.buffers, space)
