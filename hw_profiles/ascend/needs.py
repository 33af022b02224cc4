"""What Huawei's compiler wants for a tile, without running it: the planner's own buffers."""

from typing import Any

from hw_profiles.ascend.compiler_needs import CompilerNeeds
from hw_profiles.ascend.targets import AscendTarget
from hw_profiles.attention import compiled as attention
from hw_profiles.attention.problem import AttentionProblem
from hw_profiles.capacity.buffers import Buffer, held_bytes
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.matmul import compiled as matmul
from hw_profiles.matmul.problem import MatmulProblem
from hw_profiles.rowwise import compiled as rowwise
from hw_profiles.rowwise.compiled_temporaries import has_temporaries

VECTOR_CORES = 2
# What `AscendPlan` calls the buffers of an attention's first two products, and of a later one.
_ROLES = {
  "Q": "A",
  "K": "B",
  "P": "A 2",
  "V": "B 2",
  "S": "accumulator",
  "O": "accumulator 2",
}
_LATER_ROLES = {"K": "B", "P": "A", "V": "B", "S": "accumulator", "O": "accumulator"}


def _role(name: str) -> str:
  letter, _, product = name.partition(" ")
  if product and letter in _LATER_ROLES:
    return f"{_LATER_ROLES[letter]} {product}"
  return _ROLES.get(name, name)


def compiled_buffers(
  problem: Any, config: Any, target: AscendTarget, *, sub_block: bool
) -> tuple[Buffer, ...]:
  """The buffers of the compiled kernel, as `hw_profiles.plan` has them; see `compiler_needs`."""
  cores = VECTOR_CORES if sub_block else 1
  if isinstance(problem, MatmulProblem):
    return matmul.compiled_buffers(problem, config, target, vector_cores=cores)
  if isinstance(problem, AttentionProblem):
    return attention.compiled_buffers(problem, config, target, vector_cores=cores)
  if not has_temporaries(problem):
    raise ValueError(f"problem={problem!r}: no model of what the compiler wants for it")
  return rowwise.compiled_buffers(problem, config, target)


def role_bytes(buffers: tuple[Buffer, ...]) -> FrozenMap[str, int]:
  """Bytes of operands and accumulators by role, as `AscendPlan` names them."""
  return FrozenMap(
    {_role(one.name): one.needed_bytes for one in buffers if one.space in ("L1", "L0C")}
  )


def compiler_needs(
  problem: Any, config: Any, target: AscendTarget, *, sub_block: bool
) -> CompilerNeeds:
  """What the compiler wants for the portable kernel of an op.

  Args:
    problem: As `hw_profiles.plan` takes it.
    config: The tile; `num_stages` above 1 is double buffering.
    target: The device.
    sub_block: Whether a mixed tile is to be shared between the vector cores.

  Raises:
    ValueError: there is no model of the op.
  """
  held = compiled_buffers(problem, config, target, sub_block=sub_block)
  return CompilerNeeds(
    l1_bytes=held_bytes(held, "L1"),
    l0c_bytes=held_bytes(held, "L0C"),
    ub_bytes=held_bytes(held, "UB"),
    role_bytes=role_bytes(held),
  )
