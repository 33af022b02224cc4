"""`rank`: the candidate tiles of a problem, fastest first."""

import itertools
import math
from collections.abc import Iterable

from hw_profiles import dtypes
from hw_profiles.arguments import at_least, round_up
from hw_profiles.capacity import warp_specialized
from hw_profiles.config import MatmulConfig
from hw_profiles.planner.plan import Schedule, fits, plan, resolve
from hw_profiles.planner.tile_plan import TilePlan
from hw_profiles.problem import MatmulProblem
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
# Predicted times whose ratio is below this count as equal.
_TIE = 1.02
_COMPUTE = ("tensor_cores", "cube")
# Outputs of the largest default tile on Hopper: 128 accumulator registers a
# thread of two warpgroups. 192 fit in the register file and are left to tuning.
_WGMMA_OUTPUTS = 128 * 256


def _useful(sizes: _Sizes, extent: int, smallest: int = 0) -> _Sizes:
  """Sizes from `smallest` to the first that covers `extent`; larger ones only add padding."""
  covering = min((size for size in sizes if size >= extent), default=sizes[-1])
  return tuple(size for size in sizes if min(smallest, covering) <= size <= covering)


def _sides_and_depths(
  problem: MatmulProblem, device: GpuProfile | NpuProfile, schedule: str
) -> tuple[_Sizes, _Sizes, _Sizes, _Sizes]:
  """Rows, columns, bytes of K and stages to combine."""
  if isinstance(device, NpuProfile):
    return (16, 32, 64, 128, 256, 512), (16, 32, 64, 128, 256, 512), _NPU_K_BYTES, _NPU_STAGES
  takes_wgmma = device.has_wgmma and problem.dtype in warp_specialized.SUPPORTED_DTYPES
  if schedule == "warp_specialized" or (schedule == "auto" and takes_wgmma):
    return (64, 128, 192, 256), (16, 32, 64, 128, 192, 256), _WGMMA_K_BYTES, _GPU_STAGES
  return (16, 32, 64, 128, 256), (16, 32, 64, 128, 256), _MMA_K_BYTES, _GPU_STAGES


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
    ValueError: there is no such profile or schedule.
  """
  device = resolve(profile)
  size = dtypes.size_bytes(problem.dtype)
  rows, columns, depths, stages = _sides_and_depths(problem, device, schedule)
  groups = _useful(_GROUPS, math.ceil(problem.m / rows[0]))
  configs = (
    MatmulConfig(block_m, block_n, depth // size, num_stages, group_m=group_m)
    for block_m, block_n, depth, num_stages, group_m in itertools.product(
      _useful(rows, problem.m, _SMALLEST_USEFUL_SIDE),
      _useful(columns, problem.n, _SMALLEST_USEFUL_SIDE),
      _useful(depths, round_up(max(problem.k, 1) * size, 16)),
      stages,
      groups,
    )
  )
  if depths is _WGMMA_K_BYTES:
    configs = (x for x in configs if x.block_m * x.block_n <= _WGMMA_OUTPUTS)
  return tuple(config for config in configs if fits(problem, config, device, schedule=schedule))


def _order(tile_plan: TilePlan) -> tuple[bool, float, int, int, str]:
  """Feasible first, then by time.

  Ties go to more stages, which absorb jitter that the model does not have, then
  to the smaller working set, then by name.
  """
  time_us = math.inf if tile_plan.predicted_us is None else tile_plan.predicted_us
  return (
    not tile_plan.fits,
    time_us,
    -tile_plan.config.num_stages,
    tile_plan.traffic.working_set_bytes,
    tile_plan.config.describe(),
  )


def _least_traffic_of_the_fastest_first(plans: list[TilePlan]) -> list[TilePlan]:
  """Among compute-bound predictions too close to tell apart, fewer bytes come first.

  The model's own error is several times `_TIE`, and bytes cost power, which it
  does not model and which sets the clock under load: on an H200, 8192 x 8192 x
  8192, it puts 128x192 and 128x256 tiles within 1 %; measured, the one that
  moves 14 % more took 10 % longer.

  Args:
    plans: Sorted by `_order`.
  """
  if not plans or plans[0].predicted_us is None or plans[0].bound not in _COMPUTE:
    return plans
  limit_us = plans[0].predicted_us * _TIE
  tied = sum(x.predicted_us is not None and x.predicted_us <= limit_us for x in plans)
  first = sorted(plans[:tied], key=lambda x: x.traffic.total_bytes)
  return first + plans[tied:]


def rank(
  problem: MatmulProblem,
  profile: str | GpuProfile | NpuProfile,
  candidates: Iterable[MatmulConfig] | None = None,
  top: int | None = 10,
  *,
  schedule: Schedule = "auto",
) -> list[TilePlan]:
  """Plans every candidate and returns the best `top`, fastest first.

  Where arithmetic is the bound, those predicted within 2 % of the fastest come
  in order of their traffic: the model cannot tell them apart, and bytes cost
  power.

  Tiles that do not fit come after all that do, with the reason; `top` counts
  both, so they appear where fewer than `top` candidates fit. The order is the
  same on every run.

  Args:
    problem: What is computed.
    profile: A profile or its name.
    candidates: Tiles to compare; None: `matmul_candidates`.
    top: Plans to return at most; None returns all.
    schedule: See `plan`.

  Raises:
    ValueError: an argument is of the wrong kind, or there is no such profile.
  """
  if top is not None:
    at_least("top", top, 1)
  device = resolve(profile)
  if candidates is None:
    candidates = matmul_candidates(device, problem, schedule=schedule)
  plans = sorted(
    (plan(problem, config, device, schedule=schedule) for config in candidates), key=_order
  )
  plans = _least_traffic_of_the_fastest_first(plans)
  return plans if top is None else plans[:top]
