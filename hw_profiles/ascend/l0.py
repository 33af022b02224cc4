"""L0A and L0B, which Huawei's compiler neither plans nor checks: this library's own figure."""

import dataclasses

from hw_profiles import dtypes
from hw_profiles.ascend.plan import AscendPlan
from hw_profiles.ascend.targets import get_target
from hw_profiles.matmul.config import MatmulConfig
from hw_profiles.matmul.cube import PING_PONG, cube_tile
from hw_profiles.matmul.problem import MatmulProblem
from hw_profiles.profile import NpuProfile
from hw_profiles.registry import get_profile

_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "i8": "int8"}


@dataclasses.dataclass(frozen=True)
class L0Slices:
  """Slices of one product in L0A and L0B, two of each.

  Computed here, not by the compiler: the deepest slices of which both memories
  hold two.

  Attributes:
    depth: Columns of A in a slice; 0 where not even one fractal fits.
    l0a_bytes: Both slices of A.
    l0b_bytes: Both slices of B.
    l0a_available_bytes: Size of L0A.
    l0b_available_bytes: Size of L0B.
  """

  depth: int
  l0a_bytes: int
  l0b_bytes: int
  l0a_available_bytes: int
  l0b_available_bytes: int


def l0_slices(plan: AscendPlan, profile: NpuProfile | None = None) -> tuple[L0Slices, ...]:
  """The slices of each product of a plan.

  Args:
    plan: A plan that fits.
    profile: The device; None: the profile of the plan's target.

  Raises:
    ValueError: the plan's target has no profile and none is given.
  """
  npu = profile
  if npu is None:
    target = get_target(plan.target)
    found = None if target.profile is None else get_profile(target.profile)
    if not isinstance(found, NpuProfile):
      raise ValueError(f"plan.target={plan.target!r} has no profile: expected profile= with one")
    npu = found
  slices = []
  for program in plan.programs:
    for product in program.products:
      dtype = _DTYPES[product.element]
      problem = MatmulProblem(product.rows, product.depth, product.columns, dtype)
      config = MatmulConfig(product.rows, product.columns, product.depth)
      depth = cube_tile(problem, config, npu).l0_depth
      row_bytes = PING_PONG * depth * dtypes.size_bytes(dtype)
      slices.append(
        L0Slices(
          depth=depth,
          l0a_bytes=product.rows * row_bytes,
          l0b_bytes=product.columns * row_bytes,
          l0a_available_bytes=npu.l0a_bytes,
          l0b_available_bytes=npu.l0b_bytes,
        )
      )
  return tuple(slices)
