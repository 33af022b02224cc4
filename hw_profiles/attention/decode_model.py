"""decode_attention as the planner sees it."""

import itertools
from collections.abc import Iterator

from hw_profiles.attention import cluster_decode
from hw_profiles.attention.config import DecodeConfig
from hw_profiles.attention.decode_problem import DecodeProblem
from hw_profiles.attention.decode_schedules import (
  CUBE_VECTOR,
  MULTISTAGE,
  WARP_SPECIALIZED,
  DecodeSchedule,
)
from hw_profiles.dtypes import size_bytes
from hw_profiles.planner.plan import Schedule, plan, schedules
from hw_profiles.planner.ranking import candidates_that_fit
from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.registry import resolve
from hw_profiles.tile_config import TileField, TileFields

_NPU_COLUMNS = (128, 256, 512)
_HOPPER_STAGES = (1, 2, 3, 4)
_NPU_STAGES = (1, 2)
# The portable kernel's keys of a step and warps, best first. Measured on an H200 with 8 key heads
# of 128 (docs/results/h200-attention.json): 128 keys take 471 us at 64 x 8192 and 126 at
# 1 x 131072, where 64 take 482 to 564 and 127. Of eight steps of 64 keys an SM, 1 x 8192, 32 keys
# of one warp take 8.1 us, 64 of two 8.8 and 128 of four 8.6; with cold L2 the first two 12.1 and
# 12.4. Of four steps and fewer 64 keys of two warps are as quick or quicker: 6.5 at 1 x 4096 by
# both, 4.2 where 32 take 4.5 at 1 x 1024. A tile with less is for what does not fit.
_LONG_TILES = ((128, 4), (64, 4), (32, 4), (16, 4))
_SHORT_TILES = ((64, 2), *_LONG_TILES[2:])
_LONE_TILES = ((32, 1), *_SHORT_TILES)
_PORTABLE_STAGES = (2, 3)
# Between the 16 steps an SM and 124 that were measured.
_SHORT_STEPS = 16
# Between four and eight.
_LONE_STEPS = 6
# A warp alone was quickest with K and V of 16 KiB a step and all of 16 rows seeing the same keys;
# where they do not, 16 rows of 4 queries, it takes 26.6 us at 1 x 8192 and two take 23.4.
_LONE_STEP_BYTES = 16 * 1024
_LONE_ROWS = 16


class DecodeModel:
  """`OpModel` of decode attention; see there for the attributes."""

  name = "decode_attention"
  problem_class = DecodeProblem
  config_class = DecodeConfig
  gpu_schedules = (WARP_SPECIALIZED, MULTISTAGE)
  npu_schedules = (CUBE_VECTOR,)

  def candidates(
    self, problem: DecodeProblem, device: GpuProfile | NpuProfile, schedule: str
  ) -> Iterator[DecodeConfig]:
    """Keys of a step and stages; the number of parts is left to the model.

    With pages, steps are parts or multiples of one.
    """
    if schedule == MULTISTAGE.NAME and isinstance(device, GpuProfile):
      yield from _portable_candidates(problem, device)
      return
    if schedule == WARP_SPECIALIZED.NAME:
      for block_kv, num_stages in itertools.product(cluster_decode.BLOCK_KVS, _HOPPER_STAGES):
        yield DecodeConfig(block_kv, num_stages=num_stages)
      return
    columns = {*_NPU_COLUMNS, *(() if problem.page_size is None else (problem.page_size,))}
    for block_kv, num_stages in itertools.product(sorted(columns), _NPU_STAGES):
      yield DecodeConfig(block_kv, num_stages=num_stages)

  def tile_fields(self, problem: DecodeProblem, config: DecodeConfig) -> TileFields:
    """Keys of a step, stages and warps; 16 keys are one wgmma's depth and Triton's least."""
    return {
      "block_kv": TileField(
        config.block_kv, 16, larger_needs_more=True, is_block=True, is_output=True
      ),
      "num_stages": TileField(
        config.num_stages, larger_needs_more=True, fallback=min(config.num_stages, 2)
      ),
      "num_warps": TileField(4 if config.num_warps is None else config.num_warps),
      # only a cluster has a say in it; left open, it may be its largest
      "num_splits": TileField(
        cluster_decode.most_parts(problem.output_dim)
        if config.num_splits is None
        else config.num_splits
      ),
    }


def _portable_candidates(problem: DecodeProblem, gpu: GpuProfile) -> Iterator[DecodeConfig]:
  """The tiles of the portable kernel: down to the first that fits with all stages."""
  steps = problem.visible_keys * problem.key_heads / _SHORT_TILES[0][0] / gpu.sm_count
  tiles: tuple[tuple[int, int], ...] = _LONG_TILES
  if steps <= _SHORT_STEPS:
    tiles = _LONE_TILES if steps > _LONE_STEPS and _suits_a_lone_warp(problem) else _SHORT_TILES
  offered = set()
  for block_kv, warps in tiles:
    offered.add(block_kv)
    for num_stages in _PORTABLE_STAGES:
      one = DecodeConfig(block_kv, num_stages=num_stages, num_warps=warps)
      yield one
    if not MULTISTAGE.shortfalls(problem, one, gpu):
      break
  if problem.page_size is not None and problem.page_size not in offered:
    for num_stages in _PORTABLE_STAGES:
      yield DecodeConfig(problem.page_size, num_stages=num_stages)


def _suits_a_lone_warp(problem: DecodeProblem) -> bool:
  """Whether the steps of a warp alone are as short as those that were measured."""
  block_kv, _ = _LONE_TILES[0]
  step_bytes = block_kv * (problem.head_dim + problem.output_dim) * size_bytes(problem.dtype)
  same_keys = problem.seq_q == 1 and problem.window is None and problem.page_size is None
  return same_keys and problem.rows <= _LONE_ROWS and step_bytes <= _LONE_STEP_BYTES


DECODE_ATTENTION = DecodeModel()


def decode_candidates(
  profile: str | GpuProfile | NpuProfile,
  problem: DecodeProblem,
  *,
  schedule: Schedule = "auto",
) -> tuple[DecodeConfig, ...]:
  """The tiles worth comparing on a device, all of which fit it.

  Args:
    profile: A profile or its name.
    problem: What is computed.
    schedule: As for `plan`.

  Raises:
    ValueError: `problem` is no DecodeProblem, or there is no such profile or
      schedule.
  """
  if not isinstance(problem, DecodeProblem):
    raise ValueError(f"problem={problem!r}: expected a DecodeProblem")
  return candidates_that_fit(problem, profile, schedule=schedule)


def decode_num_splits(
  problem: DecodeProblem,
  config: DecodeConfig,
  profile: str | GpuProfile | NpuProfile,
  *,
  schedule: Schedule = "auto",
) -> int:
  """The parts that each sequence is cut into: the config's, or the fastest by the time model.

  Each part reads its keys once, so what a split costs is the merge, and what it
  buys are busy cores: one part where sequences and key heads fill the device,
  about cores / (sequences·kv_heads) where they do not.

  Raises:
    ValueError: there is no such profile or schedule.
  """
  device = resolve(profile)
  planned = plan(problem, config, device, schedule=schedule)
  (chosen,) = schedules(DECODE_ATTENTION, device, planned.schedule)
  assert isinstance(chosen, DecodeSchedule)
  return chosen.num_splits(problem, config, device)
