"""Hardware profiles, capacity and cost models, and the planner that joins them.

data/*.json → profile, registry     what a device has, with sources
capacity/                           what fits on an SM or an Ascend core
cost/                               what moving and computing take
planner/                            plan, rank: an op's tile on one device; what_helps
sm_tiling/                          how a tile is shared out inside one SM; shared-memory banks
matmul/                             one op: its problem, its tile, what that needs and does
attention/                          flash_attention, forward and backward, and decode_attention
rowwise/                            ops on rows: swiglu, quantisation, rms_norm; the transpose
fusion/                             chains of operators cut into kernels; split reductions
loops/                              loop nests, rearranged and judged, with witnesses
selection/                          which implementation, from estimates, measurements and calls
timeline/                           when things happen: streams, pipelines, transfers
runtime/                            what a choice costs over many calls and a whole request
whole_request/                      a model's sizes and a request: its stages, planned, and what-ifs
examples/                           the course texts' values, recomputed through all of this
validation/                         predicted against measured times
ascend/                             Huawei's compiler: Triton IR text in, memory plan out
"""

from hw_profiles import loops
from hw_profiles.activations import ACTIVATIONS
from hw_profiles.attention.candidates import attention_candidates
from hw_profiles.attention.config import AttentionConfig, DecodeConfig
from hw_profiles.attention.decode_model import (
  DECODE_ATTENTION,
  decode_candidates,
  decode_num_splits,
)
from hw_profiles.attention.decode_problem import DecodeProblem
from hw_profiles.attention.mask import AttentionMask, KeyBlocks
from hw_profiles.attention.model import FLASH_ATTENTION
from hw_profiles.attention.pareto import (
  AttentionPoint,
  AttentionTradeOff,
  attention_pareto_front,
)
from hw_profiles.attention.problem import AttentionProblem
from hw_profiles.attention.traffic import (
  AttentionTraffic,
  attention_max_block_q,
  attention_traffic,
)
from hw_profiles.capacity.buffers import Buffer
from hw_profiles.capacity.residency import Residency, residency
from hw_profiles.cost.in_flight import InFlight, in_flight
from hw_profiles.cost.l2_reuse import l2_hit_rate
from hw_profiles.cost.pipeline import BlockEvents, Pipeline, pipeline, pipeline_total_us
from hw_profiles.cost.roofline import Roofline, TierRoofline, roofline, tier_roofline
from hw_profiles.cost.tiers import MemoryTier, memory_tiers
from hw_profiles.cost.wave import Wave, wave
from hw_profiles.detect import detect
from hw_profiles.errors import InfeasibleTileError, TileShapeError
from hw_profiles.fusion.chain import ChainOperation, ChainTensor, OperatorChain, swiglu_chain
from hw_profiles.fusion.lifetimes import MemoryUse, TensorLifetime, memory_use
from hw_profiles.fusion.matmul_split import MatmulSplit, matmul_split_traffic
from hw_profiles.fusion.partitions import fusion_obstacle, fusion_partitions
from hw_profiles.fusion.quantized_projection import (
  QuantizedProjectionTraffic,
  quantized_projection_traffic,
)
from hw_profiles.fusion.split_reduction import SplitReductionTraffic, split_reduction_traffic
from hw_profiles.fusion.time import fusion_time
from hw_profiles.fusion.traffic import FusionTraffic, GroupTraffic, fusion_traffic, rank_fusions
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
from hw_profiles.planner.what_helps import Change, WhatHelps, what_helps
from hw_profiles.profile import GpuProfile, NpuProfile, Source
from hw_profiles.registry import get_profile, list_profiles, profile_for_device_kind
from hw_profiles.rowwise.config import RowConfig
from hw_profiles.rowwise.model import QUANTIZE_ROWS, RMS_NORM, SWIGLU, SWIGLU_QUANTIZE, TRANSPOSE
from hw_profiles.rowwise.problem import (
  QuantizeRowsProblem,
  RmsNormProblem,
  SwigluProblem,
  SwigluQuantizeProblem,
  TransposeProblem,
)
from hw_profiles.rowwise.splits import best_num_splits
from hw_profiles.rowwise.traffic import RowTraffic, row_traffic, transpose_traffic
from hw_profiles.runtime.amdahl import Amdahl, amdahl
from hw_profiles.runtime.amortisation import (
  Amortisation,
  TuningPayback,
  amortisation,
  payback_runs,
  tuning_payback,
)
from hw_profiles.runtime.bucketing import Bucketing, bucketing, ffn_flops_per_row
from hw_profiles.runtime.change import TimeChange, TrafficChange, time_change, traffic_change
from hw_profiles.runtime.critical_path import CriticalPath, RequestStage, critical_path
from hw_profiles.runtime.graph_replay import (
  GraphReplay,
  LaunchCounts,
  graph_replay_break_even,
  launch_counts,
)
from hw_profiles.runtime.paired import PairedStatistics, paired_statistics
from hw_profiles.runtime.plan_reuse import PlanReuse, plan_reuse
from hw_profiles.runtime.program_cache import ProgramCacheUse, program_cache
from hw_profiles.runtime.request import (
  CallClass,
  GenerationCalls,
  RequestSaving,
  generation_calls,
  request_saving,
)
from hw_profiles.runtime.strategy import Strategy, StrategyChoice, StrategyRange, choose_strategy
from hw_profiles.selection.break_even import (
  AchievedBandwidth,
  achieved_bandwidth,
  break_even_bandwidth_ratio,
  break_even_units,
  memory_time_ratio,
)
from hw_profiles.selection.call_mix import CallMix, ShareBreakEven, break_even_share, call_mix
from hw_profiles.selection.candidates import (
  Candidate,
  Estimate,
  MeasuredChoice,
  Selection,
  choose_measured,
  matmul_tile_candidate,
  select_candidates,
)
from hw_profiles.sm_tiling.accumulator import AccumulatorPlacement, accumulator_placement
from hw_profiles.sm_tiling.banks import BankConflicts, LaneGroup, bank_conflicts, shared_bank
from hw_profiles.sm_tiling.coalescing import Coalescing, coalescing
from hw_profiles.sm_tiling.cooperative_load import CooperativeLoad
from hw_profiles.sm_tiling.fragment_loads import fragment_loads, step_transactions
from hw_profiles.sm_tiling.gemm_parameters import (
  CheckedParameters,
  GemmParameters,
  check_gemm_parameters,
)
from hw_profiles.sm_tiling.intensity import (
  BestWarpShape,
  TileIntensity,
  best_tiles,
  best_warp_shape,
  operand_bandwidth_bytes_per_s,
  tile_intensity,
  warp_intensity,
)
from hw_profiles.sm_tiling.k_loop import (
  KLoop,
  KLoopEvent,
  LatencyCover,
  k_loop,
  latency_cover,
  register_pipeline,
)
from hw_profiles.sm_tiling.lane_maps import Coverage, LaneMap, ThreadTiling, WarpTiling, coverage
from hw_profiles.sm_tiling.mma import MmaCount, MmaShape, mma_instructions, mma_shape
from hw_profiles.sm_tiling.register_banks import register_bank_conflicts
from hw_profiles.sm_tiling.register_budget import RegisterBudget, register_budget, staging_registers
from hw_profiles.sm_tiling.shared_layout import (
  PitchedLayout,
  SharedLayout,
  TensorCopySwizzle,
  XorLayout,
  ZOrderLayout,
)
from hw_profiles.sm_tiling.stages import StageOption, stage_options
from hw_profiles.sm_tiling.tier_ceilings import Tier, TierCeilings, tier_ceilings
from hw_profiles.timeline.engine import Task, TaskInterval, TaskSchedule, schedule_tasks
from hw_profiles.timeline.findings import Finding
from hw_profiles.timeline.flow import BlockFlow, block_flow
from hw_profiles.timeline.host_device import HostDeviceTimeline, host_device_timeline
from hw_profiles.timeline.persistent import PersistentPipeline, persistent_pipeline
from hw_profiles.timeline.slot_budget import SlotBudget, slot_budget
from hw_profiles.timeline.stage_times import StageTimes, stage_times
from hw_profiles.timeline.stream_operations import (
  Collective,
  HostWait,
  HostWork,
  Launch,
  Record,
  Wait,
)
from hw_profiles.timeline.streams import PendingWait, StreamTimeline, simulate_streams
from hw_profiles.timeline.transfer import (
  Relayout,
  Transfer,
  array_bytes,
  chunked_transfer,
  relayout,
  transfer,
)
from hw_profiles.validation.recorded import ModelError
from hw_profiles.whole_request.launches import LaunchedStep, launched_step
from hw_profiles.whole_request.prediction import PlannedStage, RequestPlan, plan_request
from hw_profiles.whole_request.sizes import HostTimes, ModelSizes, RequestSizes
from hw_profiles.whole_request.what_ifs import (
  BucketChoice,
  StageGain,
  bucket_choice,
  fusion_saving,
  host_path,
  stage_gain,
)

# the ops that plan and rank know
register(MATMUL)
register(SWIGLU)
register(SWIGLU_QUANTIZE)
register(QUANTIZE_ROWS)
register(RMS_NORM)
register(TRANSPOSE)
register(FLASH_ATTENTION)
register(DECODE_ATTENTION)

__all__ = [
  "ACTIVATIONS",
  "AccumulatorPlacement",
  "AchievedBandwidth",
  "Amdahl",
  "Amortisation",
  "AttentionConfig",
  "AttentionMask",
  "AttentionPoint",
  "AttentionProblem",
  "AttentionTradeOff",
  "AttentionTraffic",
  "BankConflicts",
  "BestWarpShape",
  "BlockEvents",
  "BlockFlow",
  "BucketChoice",
  "Bucketing",
  "Buffer",
  "CallClass",
  "CallMix",
  "Candidate",
  "ChainOperation",
  "ChainTensor",
  "Change",
  "CheckedParameters",
  "Coalescing",
  "Collective",
  "CooperativeLoad",
  "Coverage",
  "CriticalPath",
  "DecodeConfig",
  "DecodeProblem",
  "Estimate",
  "Finding",
  "FusionTraffic",
  "GemmParameters",
  "GenerationCalls",
  "GpuProfile",
  "GraphReplay",
  "GroupTraffic",
  "HostDeviceTimeline",
  "HostTimes",
  "HostWait",
  "HostWork",
  "InFlight",
  "InfeasibleTileError",
  "KLoop",
  "KLoopEvent",
  "KeyBlocks",
  "LaneGroup",
  "LaneMap",
  "LatencyCover",
  "Launch",
  "LaunchCounts",
  "LaunchedStep",
  "MatmulConfig",
  "MatmulProblem",
  "MatmulSplit",
  "MatmulTraffic",
  "MeasuredChoice",
  "MemoryTier",
  "MemoryUse",
  "MmaCount",
  "MmaShape",
  "ModelError",
  "ModelSizes",
  "NpuProfile",
  "OperatorChain",
  "PairedStatistics",
  "PendingWait",
  "PersistentPipeline",
  "Pipeline",
  "PitchedLayout",
  "PlanReuse",
  "PlannedStage",
  "ProgramCacheUse",
  "QuantizeRowsProblem",
  "QuantizedProjectionTraffic",
  "Record",
  "RegisterBudget",
  "Relayout",
  "RequestPlan",
  "RequestSaving",
  "RequestSizes",
  "RequestStage",
  "Residency",
  "RmsNormProblem",
  "Roofline",
  "RowConfig",
  "RowTraffic",
  "Schedule",
  "Selection",
  "ShareBreakEven",
  "SharedLayout",
  "SlotBudget",
  "Source",
  "SplitReductionTraffic",
  "StageGain",
  "StageOption",
  "StageTimes",
  "Strategy",
  "StrategyChoice",
  "StrategyRange",
  "StreamTimeline",
  "SwigluProblem",
  "SwigluQuantizeProblem",
  "Task",
  "TaskInterval",
  "TaskSchedule",
  "TensorCopySwizzle",
  "TensorLifetime",
  "ThreadTiling",
  "Tier",
  "TierCeilings",
  "TierRoofline",
  "TileIntensity",
  "TilePlan",
  "TileShapeError",
  "TimeChange",
  "TrafficChange",
  "Transfer",
  "TransposeProblem",
  "TuningPayback",
  "Wait",
  "WarpTiling",
  "Wave",
  "WhatHelps",
  "XorLayout",
  "ZOrderLayout",
  "accumulator_placement",
  "achieved_bandwidth",
  "amdahl",
  "amortisation",
  "array_bytes",
  "attention_candidates",
  "attention_max_block_q",
  "attention_pareto_front",
  "attention_traffic",
  "bank_conflicts",
  "best_num_splits",
  "best_tiles",
  "best_warp_shape",
  "block_flow",
  "break_even_bandwidth_ratio",
  "break_even_share",
  "break_even_units",
  "bucket_choice",
  "bucketing",
  "call_mix",
  "check_gemm_parameters",
  "choose_measured",
  "choose_strategy",
  "chunked_transfer",
  "coalescing",
  "coverage",
  "critical_path",
  "decode_candidates",
  "decode_num_splits",
  "detect",
  "ffn_flops_per_row",
  "fragment_loads",
  "fusion_obstacle",
  "fusion_partitions",
  "fusion_saving",
  "fusion_time",
  "fusion_traffic",
  "generation_calls",
  "get_profile",
  "graph_replay_break_even",
  "host_device_timeline",
  "host_path",
  "in_flight",
  "k_loop",
  "l2_hit_rate",
  "latency_cover",
  "launch_counts",
  "launched_step",
  "list_profiles",
  "loops",
  "matmul_candidates",
  "matmul_split_traffic",
  "matmul_tile_candidate",
  "matmul_traffic",
  "memory_tiers",
  "memory_time_ratio",
  "memory_use",
  "mma_instructions",
  "mma_shape",
  "operand_bandwidth_bytes_per_s",
  "paired_statistics",
  "payback_runs",
  "persistent_pipeline",
  "pipeline",
  "pipeline_total_us",
  "plan",
  "plan_request",
  "plan_reuse",
  "profile_for_device_kind",
  "program_cache",
  "quantized_projection_traffic",
  "rank",
  "rank_fusions",
  "register_bank_conflicts",
  "register_budget",
  "register_pipeline",
  "relayout",
  "request_saving",
  "residency",
  "roofline",
  "row_traffic",
  "schedule_tasks",
  "select_candidates",
  "shared_bank",
  "simulate_streams",
  "slot_budget",
  "split_reduction_traffic",
  "stage_gain",
  "stage_options",
  "stage_times",
  "staging_registers",
  "step_transactions",
  "swiglu_chain",
  "tier_ceilings",
  "tier_roofline",
  "tile_intensity",
  "time_change",
  "traffic_change",
  "transfer",
  "transpose_traffic",
  "tuning_payback",
  "warp_intensity",
  "warp_specialized_shared_bytes",
  "wave",
  "what_helps",
]
