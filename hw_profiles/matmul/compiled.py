"""The matmul's portable kernel as Huawei's compiler gives it memory.

    910   L1: A, B    L0C: C in float32    with an activation UB: a vector core's half of C
    950   L1: A, B    L0C: C in float32    rounded or activated UB: C in float32

The second product of a gated matmul begins when the first is done: where memory is
short its B lies where the first one's did.
"""

import dataclasses

from hw_profiles import dtypes
from hw_profiles.arguments import round_up
from hw_profiles.capacity.buffers import Buffer, Shortfall, larger_first
from hw_profiles.capacity.compiled import (
  NAME,
  SELECT_910,
  TIME_ASSUMPTION,
  Memories,
  Temporary,
  copies,
  not_lowered,
  overfull,
  shape_shortfalls,
  ub_buffers,
  vector_share,
)
from hw_profiles.matmul import cube
from hw_profiles.matmul.config import MatmulConfig
from hw_profiles.matmul.problem import MatmulProblem
from hw_profiles.planner.op_model import Demand
from hw_profiles.profile import NpuProfile

__all__ = ["NAME", "compiled_buffers", "demand", "shortfalls", "unsupported"]

_FLOAT = 4
_BLOCKS = ("block_m", "block_n", "block_k")
# Triton's product has no side below 16.
_SMALLEST = 16
# By size of the operands. The cube core hands 16-bit results over rounded; the first block, whose
# values are in float32 by then, has a gap of two bytes an element that nothing fits into.
_SILU_910 = {
  2: (*SELECT_910, Temporary("loaded product, its gap", element=2)),
  4: (*SELECT_910, Temporary("scalars of the selects", fixed=32)),
}
_GATED_910 = (
  *SELECT_910,
  Temporary("second product", element=4),
  Temporary("scalars of the selects", fixed=32),
)
# A 950 activates in registers.
_LOADED_950 = Temporary("product in float32", element=4)


def _has_vector_work(problem: MatmulProblem, memories: Memories) -> bool:
  """Whether C passes UB: activated, or on a 950 rounded."""
  narrow = dtypes.size_bytes(problem.result_dtype) < _FLOAT
  return problem.activation is not None or (memories.has_l0c_to_ub and narrow)


def compiled_buffers(
  problem: MatmulProblem, config: MatmulConfig, memories: Memories, *, vector_cores: int
) -> tuple[Buffer, ...]:
  """What the compiled kernel keeps in L1, L0C and UB.

  Args:
    problem: One that `unsupported` has nothing against.
    config: The tile.
    memories: The device.
    vector_cores: Those that are to share a tile: 2, or 1 where the compiler is
      told not to.
  """
  size, count = dtypes.size_bytes(problem.dtype), copies(config.num_stages)
  # fractals are 16 rows high and 32 B deep
  rows, columns = round_up(config.block_m, 16), round_up(config.block_n, 16)
  a = count * rows * config.block_k * size
  b = count * config.block_k * columns * size
  accumulator = rows * columns * _FLOAT
  held = [
    Buffer("A", "L1", a, memories.l1_bytes, count),
    Buffer("B", "L1", b, memories.l1_bytes, count),
    Buffer("accumulator", "L0C", accumulator, memories.l0c_bytes, 1),
  ]
  if problem.products > 1:
    held += [
      Buffer("B 2", "L1", b, memories.l1_bytes, count, shared_bytes=b),
      Buffer("accumulator 2", "L0C", accumulator, memories.l0c_bytes, 1),
    ]
  if _has_vector_work(problem, memories):
    if memories.has_l0c_to_ub:
      temporaries = (_LOADED_950,) * problem.products
    else:
      temporaries = _GATED_910 if problem.products > 1 else _SILU_910[size]
    held += ub_buffers(
      temporaries, 1, vector_share(rows * columns, memories, vector_cores), memories
    )
  return tuple(held)


def unsupported(problem: MatmulProblem, npu: NpuProfile) -> tuple[Shortfall, ...]:
  """What the route has no kernel for, or this model no constants."""
  return not_lowered(
    problem,
    (
      (problem.scaled, "scaled=True: the compiled kernel's memory is known without scales"),
      (problem.bias, "bias=True: the compiled kernel's memory is known without a bias"),
    ),
  )


def shortfalls(
  problem: MatmulProblem, config: MatmulConfig, npu: NpuProfile
) -> tuple[Shortfall, ...]:
  """Blocks that Triton does not take, then L1, L0C and UB as compiled, then L0A and L0B."""
  found = shape_shortfalls(config, _BLOCKS, smallest=_SMALLEST)
  if found:
    return found
  sides = larger_first(block_n=config.block_n, block_m=config.block_m)
  held = compiled_buffers(problem, config, npu, vector_cores=npu.vector_cores_per_cube_core)
  device = cube.shortfalls(problem, config, npu)
  own = overfull(
    held, {"L1": ("block_k", *sides, "num_stages"), "L0C": sides, "UB": sides}, npu.name
  )
  # what one product needs there it needs by hand, too, and is said in the words of the tile
  spaces = ("L1", "L0C") if problem.products == 1 else ()
  said = {one.resource: one for one in device if one.resource in spaces}
  return (
    *(said.get(one.resource, one) for one in own),
    *(one for one in device if one.resource in ("L0A", "L0B", "BT")),
  )


def demand(problem: MatmulProblem, config: MatmulConfig, npu: NpuProfile) -> Demand:
  """The compiled buffers, this library's slices of L0A and L0B, and the times of `cube`."""
  # one accumulator: the cube waits until FixPipe has emptied it
  tile = dataclasses.replace(cube.cube_tile(problem, config, npu), accumulators=1)
  by_hand = cube.demand(problem, config, npu)
  held = (
    *compiled_buffers(problem, config, npu, vector_cores=npu.vector_cores_per_cube_core),
    *(one for one in by_hand.buffers if one.space in ("L0A", "L0B", "GM")),
  )
  found = cube.demand_of(problem, config, npu, tile, held, binding=("L1", "L0C", "UB"))
  return dataclasses.replace(found, assumptions=(*found.assumptions, TIME_ASSUMPTION))
