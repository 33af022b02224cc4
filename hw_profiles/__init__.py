"""Hardware profiles, capacity and cost models, and the planner that joins them.

data/*.json → profile, registry     what a device has, with sources
capacity/                           what fits on an SM or an Ascend core
cost/                               what moving and computing take
planner/                            plan, rank: an op's tile on one device
matmul/                             one op: its problem, its tile, what that needs and does
validation/                         predicted against measured times
"""

from hw_profiles.activations import ACTIVATIONS
from hw_profiles.capacity.buffers import Buffer
from hw_profiles.capacity.residency import Residency, residency
from hw_profiles.cost.in_flight import InFlight, in_flight
from hw_profiles.cost.l2_reuse import l2_hit_rate
from hw_profiles.cost.pipeline import BlockEvents, Pipeline, pipeline, pipeline_total_us
from hw_profiles.cost.roofline import Roofline, roofline
from hw_profiles.cost.wave import Wave, wave
from hw_profiles.errors import InfeasibleTileError
from hw_profiles.matmul.candidates import matmul_candidates
from hw_profiles.matmul.config import MatmulConfig
from hw_profiles.matmul.model import MATMUL
from hw_profiles.matmul.problem import MatmulProblem
from hw_profiles.matmul.traffic import MatmulTraffic, matmul_traffic
from hw_profiles.matmul.warp_specialized import warp_specialized_shared_bytes
from hw_profiles.planner.op_registry import register
from hw_profiles.planner.plan import Schedule, plan
from hw_profiles.planner.ranking import rank
from hw_profiles.planner.tile_plan import TilePlan
from hw_profiles.profile import GpuProfile, NpuProfile, Source
from hw_profiles.registry import get_profile, list_profiles, profile_for_device_kind
from hw_profiles.validation.recorded import ModelError

# the ops that plan and rank know
register(MATMUL)

__all__ = [
  "ACTIVATIONS",
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
  "Schedule",
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
