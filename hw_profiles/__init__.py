"""Hardware profiles, capacity and cost models, and the planner that joins them.

data/*.json → profile, registry     what a device has, with sources
config, problem                     what is to run
capacity/                           what a tile needs on chip
cost/                               what moving and computing take
planner/                            plan, rank: both, for one device
validation/                         predicted against measured times
"""

from hw_profiles.capacity.buffers import Buffer
from hw_profiles.capacity.residency import Residency, residency
from hw_profiles.capacity.warp_specialized import warp_specialized_shared_bytes
from hw_profiles.config import MatmulConfig
from hw_profiles.cost.in_flight import InFlight, in_flight
from hw_profiles.cost.l2_reuse import Wave, l2_hit_rate, wave
from hw_profiles.cost.pipeline import BlockEvents, Pipeline, pipeline, pipeline_total_us
from hw_profiles.cost.roofline import Roofline, roofline
from hw_profiles.cost.traffic import MatmulTraffic, matmul_traffic
from hw_profiles.errors import InfeasibleTileError
from hw_profiles.planner.plan import plan
from hw_profiles.planner.ranking import matmul_candidates, rank
from hw_profiles.planner.tile_plan import TilePlan
from hw_profiles.problem import MatmulProblem
from hw_profiles.profile import GpuProfile, ModelError, NpuProfile, Source
from hw_profiles.registry import get_profile, list_profiles, profile_for_device_kind

__all__ = [
  "BlockEvents",
  "Buffer",
  "GpuProfile",
  "InFlight",
  "InfeasibleTileError",
  "MatmulConfig",
  "MatmulProblem",
  "MatmulTraffic",
  "ModelError",
  "NpuProfile",
  "Pipeline",
  "Residency",
  "Roofline",
  "Source",
  "TilePlan",
  "Wave",
  "get_profile",
  "in_flight",
  "l2_hit_rate",
  "list_profiles",
  "matmul_candidates",
  "matmul_traffic",
  "pipeline",
  "pipeline_total_us",
  "plan",
  "profile_for_device_kind",
  "rank",
  "residency",
  "roofline",
  "warp_specialized_shared_bytes",
  "wave",
]
