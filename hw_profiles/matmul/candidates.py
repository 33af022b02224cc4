"""The tiles of a matmul worth comparing on a device."""

import dataclasses
import itertools
import math
from collections.abc import Iterator

from hw_profiles import dtypes
from hw_profiles.arguments import ceil_div, round_up
from hw_profiles.matmul import multistage, tcgen05, warp_specialized
from hw_profiles.matmul.config import MatmulConfig
from hw_profiles.matmul.problem import MatmulProblem
from hw_profiles.planner.plan import Schedule
from hw_profiles.planner.ranking import candidates_that_fit
from hw_profiles.profile import GpuProfile, NpuProfile

# wgmma's widest swizzle spans 128 B of K; Triton's tiles do well from half of that.
_WGMMA_K_BYTES = (128, 256)
_MMA_K_BYTES = (64, 128)
_GPU_STAGES = (2, 3, 4, 5, 6)
# GM runs of less than 512 B lose bandwidth (A2/A3 practice guide).
_NPU_K_BYTES = (512, 1024)
_NPU_STAGES = (1, 2)
# Where B is the larger operand, a band is all rows of tiles, or as many as it may be: its panels
# come to the SMs once for each band. 256 x 12288 x 4096 on an H200 takes 43.6 us row by row, 39.1
# in bands (128 x 128 tiles, K in two); 320 x 4096 x 4096 in five rows of 64 x 192 tiles 21.9 in
# bands of four, 17.9 in one. The model sees one wave, and no difference.
_GROUPS = (1, 4, 8)

# A product of few rows streams B. Its copies do best 256 B wide and deep, with four in
# flight: 64 x 4096 x 12288 on an H200 takes 25.8 us with 128 x 128 tiles of B in 4 stages,
# 27.4 with 64 x 128 in 8, 29.4 with 128 x 64 in 6; the model sees only bytes.
_STREAMED_ROWS = 64
_STREAMED_RUN_BYTES = 256
_STREAMED_STAGES = 4
# Columns that a consumer finishes at a time where there is an activation: the work
# between two wgmmas is then short enough to stay hidden (1024 x 4096 x 12288 with silu
# on an H200: 134 us with 32 columns, 141 with 64).
_ACTIVATED_COLUMNS = 32

_Sizes = tuple[int, ...]

# The time model has no issue slots and no L2 request rates, which make smaller
# tiles slow on problems that have room for this.
_SMALLEST_USEFUL_SIDE = 64
# Parts of K to compare where all of them run at once, and the K steps that a part
# should have, so that filling the stages is not most of its time.
_SPLITS = (2, 3, 4, 6, 8, 12, 16)
_FEWEST_PART_STEPS = 8
# Where Triton copies an operand in less than 16 bytes a lane, each step is long, and nothing
# fills ahead: small tiles and short parts, side by side, then hide the waits. 113 x 1023 x 203
# on an H200: 3.9 to 4.6 us with 16 or 32 rows and parts of 1 to 4 steps, 8 to 16 us unsplit.
_SMALLEST_NARROW_SIDE = 32
_FEWEST_NARROW_PART_STEPS = 2
# Outputs of a consumer warpgroup of the largest default tiles on Hopper: 128 accumulator
# registers a thread. 192 fit in the register file and are left to tuning.
_WGMMA_OUTPUTS = 64 * 256
# Tiles of so many rows are three consumers', 64 rows each: 768 x 4096 x 6144 on an H200 takes
# 49.1 us in one wave of 192 x 192, 63.0 in two of 128 x 192; 333 x 4096 x 14336 takes 65.4 in
# tiles of 192 x 128, 69.6 where two consumers share their columns. Two products of 384 x 4096 x
# 4096 take 35.1 us in 192 x 64, 42.8 in 128 x 128; of 192 x 4096 x 12288 68.5 in 192 x 128, 77.5
# in 64 x 128.
_THREE_CONSUMER_ROWS = 3 * warp_specialized.WGMMA_ROWS
# Wider ones are for one wave of a product, with narrow staging. In more waves they are unmeasured
# and by the model no quicker than 128 x 256; float32 sums cost what a full wave saves: 384 x 4096 x
# 6144 takes 33.2 to 33.8 us in two parts of 192 x 192, 31.6 to 32.4 in 96 tiles of 128 x 192.
# Others of a product are for one row of tiles: 768 x 4096 x 4096 takes 36.3 us in 192 x 128, 34.2
# in 128 x 192. In parts those of 128 columns are as quick, those of 64 are not: 192 x 4096 x 1024
# takes 8.5 us in eight, 8.7 in four of 128 x 64; 384 x 4096 x 1024 10.3 in four, 9.4 in 64 x 64.
_THREE_CONSUMER_COLUMNS = 128


def _useful(sizes: _Sizes, extent: int, smallest: int = 0) -> _Sizes:
  """Sizes from `smallest` to the first that covers `extent`; larger ones only add padding."""
  covering = min((size for size in sizes if size >= extent), default=sizes[-1])
  return tuple(size for size in sizes if min(smallest, covering) <= size <= covering)


def _sides_and_depths(
  device: GpuProfile | NpuProfile, schedule: str
) -> tuple[_Sizes, _Sizes, _Sizes, _Sizes]:
  """Rows, columns, bytes of K and stages to combine."""
  if isinstance(device, NpuProfile):
    return (16, 32, 64, 128, 256, 512), (16, 32, 64, 128, 256, 512), _NPU_K_BYTES, _NPU_STAGES
  if schedule == warp_specialized.NAME:
    return (64, 128, 192, 256), (16, 32, 64, 128, 192, 256), _WGMMA_K_BYTES, _GPU_STAGES
  if schedule == tcgen05.NAME:
    return (128, 256), (16, 32, 64, 128, 192, 256), _WGMMA_K_BYTES, _GPU_STAGES
  return (16, 32, 64, 128, 256), (16, 32, 64, 128, 256), _MMA_K_BYTES, _GPU_STAGES


def candidates(
  problem: MatmulProblem, device: GpuProfile | NpuProfile, schedule: str
) -> Iterator[MatmulConfig]:
  """Combinations of the sizes that one schedule's matrix unit takes whole, fit or not."""
  size = dtypes.size_bytes(problem.dtype)
  rows, columns, depths, stages = _sides_and_depths(device, schedule)
  narrow = schedule == multistage.NAME and _narrow(problem, device)
  smallest = _SMALLEST_NARROW_SIDE if narrow else _SMALLEST_USEFUL_SIDE
  if narrow and multistage.one_step_at_a_time(problem):
    stages = stages[:1]
  for block_m, block_n, depth, num_stages, group_m in itertools.product(
    _useful(rows, problem.m, smallest),
    _useful(columns, problem.n, smallest),
    _useful(depths, round_up(max(problem.k, 1) * size, 16)),
    stages,
    _useful(_GROUPS, math.ceil(problem.m / rows[0])),
  ):
    config = MatmulConfig(block_m, block_n, depth // size, num_stages, group_m=group_m)
    if schedule == warp_specialized.NAME:
      assert isinstance(device, GpuProfile)
      if not _streams_well(problem, config, device.sm_count):
        continue
      if problem.m < problem.n and group_m < min(ceil_div(problem.m, block_m), _GROUPS[-1]):
        continue
      if _leaves_one_consumer(problem, block_m) or _copies_eights(problem, depth):
        continue
      config = _completed(problem, config)
      if _leaves_the_menu(problem, config, device.sm_count):
        continue
      yield from _splits(problem, config, device.sm_count)
      if _low_of_three(problem, config):
        continue
    elif narrow and config.group_m == 1:
      assert isinstance(device, GpuProfile)
      yield from _splits(problem, config, device.sm_count, fewest_steps=_FEWEST_NARROW_PART_STEPS)
    yield config


def _narrow(problem: MatmulProblem, device: GpuProfile | NpuProfile) -> bool:
  """Whether tiles for Triton's short copies are compared: on Hopper, where they were measured."""
  if not isinstance(device, GpuProfile) or not device.has_wgmma:
    return False
  return min(multistage.lane_copy_bytes(problem)) < multistage.LANE_COPY_BYTES


def _splits(
  problem: MatmulProblem,
  config: MatmulConfig,
  cores: int,
  *,
  fewest_steps: int = _FEWEST_PART_STEPS,
) -> Iterator[MatmulConfig]:
  """The tile with K in parts, where C alone has too few tiles for the device."""
  if problem.products > 1 or _wide_of_three(config):
    return
  if _low_of_three(problem, config) and config.block_n < _THREE_CONSUMER_COLUMNS:
    return
  tiles = _tiles(problem, config)
  steps = ceil_div(problem.k, config.block_k)
  # staging rows of 16-bit results are too wide for sums
  config = dataclasses.replace(config, epilogue_block_n=None)
  found = [x for x in _SPLITS if x * tiles <= cores and steps >= x * fewest_steps]
  if problem.m <= _STREAMED_ROWS:
    # bytes in flight count, and each core adds its own
    found = found[-1:]
  for split in found:
    yield dataclasses.replace(config, split_k=split)


def _streams_well(problem: MatmulProblem, config: MatmulConfig, cores: int) -> bool:
  """Whether a tile of few rows copies B in long runs, deep and often enough.

  Where B is too narrow for half of the cores to have such a tile, or a part of
  one, or too short to fill the stages, every tile will do.
  """
  size = dtypes.size_bytes(problem.dtype)
  parts = 1
  if problem.products == 1:
    parts = max(1, problem.k * size // (_STREAMED_RUN_BYTES * _FEWEST_PART_STEPS))
  narrow = 2 * problem.batch * problem.n * size * parts < cores * _STREAMED_RUN_BYTES
  if problem.m > _STREAMED_ROWS or narrow or problem.k <= _STREAMED_STAGES * config.block_k:
    return True
  # two products have twice the bytes in flight at half the depth
  # 8-bit operands lie with K innermost: their runs are as long as a step is deep
  run = size == 1 or config.block_n * size >= _STREAMED_RUN_BYTES
  deep = problem.products * config.block_k * size >= _STREAMED_RUN_BYTES
  return run and deep and config.num_stages >= _STREAMED_STAGES


def _tiles(problem: MatmulProblem, config: MatmulConfig) -> int:
  """Tiles of C."""
  return problem.batch * ceil_div(problem.m, config.block_m) * ceil_div(problem.n, config.block_n)


def _leaves_the_menu(problem: MatmulProblem, config: MatmulConfig, cores: int) -> bool:
  """Whether a tile is not compared for what the model does not have.

  Its accumulators; and where C is more than one wave of it, that consumers have no
  registers to finish a tile while the next is multiplied, or that one consumer with 64
  rows takes 64 B of operands a cycle from L2: 333 x 4096 x 14336 on an H200 takes 80.3 us
  in tiles of 64 x 192 and 64.4 of 128 x 192, predicted 75.3 and 67.0.
  """
  consumers = warp_specialized.consumer_warpgroups(config)
  if config.block_m * config.block_n > consumers * _WGMMA_OUTPUTS:
    return True
  if _tiles(problem, config) <= cores:
    return False
  waits = warp_specialized.settled_tile_fits(config, products=problem.products, settled_bytes=2)
  default = dataclasses.replace(config, num_consumer_warpgroups=None)
  narrow = consumers == 1 and _splits_a_span(problem, default)
  return narrow or _wide_of_three(config) or not waits


def _wide_of_three(config: MatmulConfig) -> bool:
  """Whether it is a tile of three consumers that is for one wave of whole K."""
  three = config.num_consumer_warpgroups == 3
  return three and config.block_n > _THREE_CONSUMER_COLUMNS


def _low_of_three(problem: MatmulProblem, config: MatmulConfig) -> bool:
  """Whether it is a tile of three consumers that is for one row of tiles of one product."""
  three = config.num_consumer_warpgroups == 3 and problem.products == 1
  return three and config.block_n <= _THREE_CONSUMER_COLUMNS and problem.m > config.block_m


def _leaves_one_consumer(problem: MatmulProblem, block_m: int) -> bool:
  """Whether a taller tile of two products would have rows for two consumers, and no more padding.

  One consumer finishes a tile alone: nothing hides its waits. 256 x 4096 x 12288 gated on an
  H200: 77.2 us in tiles of 64 x 128, 73.0 of 128 x 64, of which the model knows the bytes.
  """
  two = 2 * warp_specialized.WGMMA_ROWS
  return (
    problem.products > 1
    and block_m < two
    and round_up(problem.m, two) == round_up(problem.m, warp_specialized.WGMMA_ROWS)
  )


def _copies_eights(problem: MatmulProblem, depth_bytes: int) -> bool:
  """Whether rows of A past what one tile of two wgmmas has would be copied eight at a time.

  Rows that are no multiple of 8 are copied by one instruction only where a step is one
  swizzle span deep. 333 x 4096 x 1024 on an H200 takes 11.8 us in tiles of 64 x 64 two spans
  deep, 384 x 4096 x 1024 9.4; in four parts of 128 x 128 tiles one span deep 10.8.
  """
  odd = problem.m % 8 > 0 and problem.m > 2 * warp_specialized.WGMMA_ROWS
  return odd and dtypes.size_bytes(problem.dtype) == 2 and depth_bytes > _WGMMA_K_BYTES[0]


def _completed(problem: MatmulProblem, config: MatmulConfig) -> MatmulConfig:
  """The tile with the fields that the default does not suit.

  Three consumers of 192 rows of 16 bits; one where there are two products and rows
  for one only, or where two would split a swizzle span of B. Narrow sub-tiles in the
  epilogue where there is an activation, or a wide tile of three.
  """
  # not measured of 8 bits
  if config.block_m == _THREE_CONSUMER_ROWS and dtypes.size_bytes(problem.dtype) == 2:
    config = dataclasses.replace(config, num_consumer_warpgroups=3)
  elif config.block_m < 2 * warp_specialized.WGMMA_ROWS and (
    problem.products > 1
    # two rows of wgmmas and fewer are read in one tile, or streamed
    or (problem.m > 2 * warp_specialized.WGMMA_ROWS and _splits_a_span(problem, config))
  ):
    config = dataclasses.replace(config, num_consumer_warpgroups=1)
  columns = warp_specialized.wgmma_columns(config)
  narrow = problem.activation is not None or _wide_of_three(config)
  narrow = narrow and columns % _ACTIVATED_COLUMNS == 0
  if not narrow or dtypes.size_bytes(problem.result_dtype) != 2:
    return config
  return dataclasses.replace(config, epilogue_block_n=_ACTIVATED_COLUMNS)


def _splits_a_span(problem: MatmulProblem, config: MatmulConfig) -> bool:
  """Whether consumers share a B tile's columns, but no whole swizzle spans of them."""
  size = dtypes.size_bytes(problem.dtype)
  span = warp_specialized.SWIZZLE_BYTES[0]
  columns = warp_specialized.consumer_tile(config).columns
  return size > 1 and config.block_n * size % span == 0 and columns * size % span > 0


def matmul_candidates(
  profile: str | GpuProfile | NpuProfile,
  problem: MatmulProblem,
  *,
  schedule: Schedule = "auto",
) -> tuple[MatmulConfig, ...]:
  """The tiles worth comparing on a device, all of which fit it.

  Blocks are the sizes that the device's matrix unit takes whole (64-row wgmmas
  on Hopper, powers of two through Triton, 16-row fractals on Ascend), none
  larger than the problem needs; with the K steps, stages and band heights that
  tuned libraries choose among.

  Args:
    profile: A profile or its name.
    problem: What is computed.
    schedule: As for `plan`.

  Raises:
    ValueError: `problem` is no MatmulProblem, or there is no such profile or
      schedule.
  """
  if not isinstance(problem, MatmulProblem):
    raise ValueError(f"problem={problem!r}: expected a MatmulProblem")
  return candidates_that_fit(problem, profile, schedule=schedule)
