"""The tiles of a matmul worth comparing on a device."""

import itertools
import math
from collections.abc import Iterator

from hw_profiles import dtypes
from hw_profiles.arguments import round_up
from hw_profiles.matmul import warp_specialized
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
_GROUPS = (1, 4, 8)

_Sizes = tuple[int, ...]

# The time model has no issue slots and no L2 request rates, which make smaller
# tiles slow on problems that have room for this.
_SMALLEST_USEFUL_SIDE = 64
# Outputs of the largest default tile on Hopper: 128 accumulator registers a
# thread of two warpgroups. 192 fit in the register file and are left to tuning.
_WGMMA_OUTPUTS = 128 * 256


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
  return (16, 32, 64, 128, 256), (16, 32, 64, 128, 256), _MMA_K_BYTES, _GPU_STAGES


def candidates(
  problem: MatmulProblem, device: GpuProfile | NpuProfile, schedule: str
) -> Iterator[MatmulConfig]:
  """Combinations of the sizes that one schedule's matrix unit takes whole, fit or not."""
  size = dtypes.size_bytes(problem.dtype)
  rows, columns, depths, stages = _sides_and_depths(device, schedule)
  for block_m, block_n, depth, num_stages, group_m in itertools.product(
    _useful(rows, problem.m, _SMALLEST_USEFUL_SIDE),
    _useful(columns, problem.n, _SMALLEST_USEFUL_SIDE),
    _useful(depths, round_up(max(problem.k, 1) * size, 16)),
    stages,
    _useful(_GROUPS, math.ceil(problem.m / rows[0])),
  ):
    if schedule == warp_specialized.NAME and block_m * block_n > _WGMMA_OUTPUTS:
      continue
    yield MatmulConfig(block_m, block_n, depth // size, num_stages, group_m=group_m)


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
