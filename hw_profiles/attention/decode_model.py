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
# 1 x 131072, where 64 take 482 to 564 and 127; at 1 x 8192, eight steps an SM, 64 keys of two warps
# take 9.2 us, 128 keys 9.8 or more. 32 keys of one warp take 9.1 there, but 13.0 with cold L2,
# where 64 take 12.5. A tile with less is for what does not fit.
_LONG_TILES = ((128, 4), (64, 4), (32, 4), (16, 4))
_SHORT_TILES = ((64, 2), *_LONG_TILES[2:])
_PORTABLE_STAGES = (2, 3)
# Between the 8 steps an SM and 124 that were measured.
_SHORT_STEPS = 16


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
  steps = problem.visible_keys * problem.key_heads / _SHORT_TILES[0][0]
  tiles = _SHORT_TILES if steps <= _SHORT_STEPS * gpu.sm_count else _LONG_TILES
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
