"""`plan`: one problem, one tile configuration, one device."""

from typing import Literal

from hw_profiles.config import MatmulConfig
from hw_profiles.planner.gpu import fits_gpu, plan_gpu
from hw_profiles.planner.npu import fits_npu, plan_npu
from hw_profiles.planner.tile_plan import TilePlan
from hw_profiles.problem import MatmulProblem
from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.registry import get_profile

Schedule = Literal["auto", "warp_specialized", "multistage", "cube"]


def resolve(profile: str | GpuProfile | NpuProfile) -> GpuProfile | NpuProfile:
  """`profile` itself, or the profile of that name.

  Raises:
    ValueError: it is neither a profile nor the name of one.
  """
  if isinstance(profile, GpuProfile | NpuProfile):
    return profile
  return get_profile(profile)


def _check(problem: object, config: object) -> None:
  if not isinstance(problem, MatmulProblem):
    raise ValueError(f"problem={problem!r}: expected a MatmulProblem")
  if not isinstance(config, MatmulConfig):
    raise ValueError(f"config={config!r}: expected a MatmulConfig")


def plan(
  problem: MatmulProblem,
  config: MatmulConfig,
  profile: str | GpuProfile | NpuProfile,
  *,
  schedule: Schedule = "auto",
) -> TilePlan:
  """What the tile needs on the device, whether it fits, and what it would cost.

  A tile that does not fit is an answer, not an error: the plan says why, and
  names the nearest config that fits; `TilePlan.check` raises it.

  Args:
    problem: Sizes, dtypes, epilogue.
    config: The tile.
    profile: A profile or its name.
    schedule: How the kernel works. On NVIDIA "warp_specialized" (a TMA
      producer and wgmma consumers, compute capability 9.0 and 16-bit operands)
      or "multistage" (all warps copy and compute; any GPU); on Ascend "cube".
      "auto" takes the first that the device, the dtype and the shape of the
      tile allow, and says so in the notes.

  Raises:
    ValueError: an argument is of the wrong kind, or the device has no such
      profile or schedule.
  """
  _check(problem, config)
  device = resolve(profile)
  if isinstance(device, GpuProfile):
    return plan_gpu(problem, config, device, schedule=schedule)
  return plan_npu(problem, config, device, schedule=schedule)


def fits(
  problem: MatmulProblem,
  config: MatmulConfig,
  profile: GpuProfile | NpuProfile,
  *,
  schedule: Schedule = "auto",
) -> bool:
  """`plan(...).fits`, without the plan."""
  if isinstance(profile, GpuProfile):
    return fits_gpu(problem, config, profile, schedule=schedule)
  return fits_npu(problem, config, profile, schedule=schedule)
