"""The attention's portable kernel as Huawei's compiler gives it memory: Q·Kᵀ into S, P·V into O.

    910   S: L0C → GM → UB    P: UB → GM → L1    P·V: as S      half of the rows a vector core
    950   S: L0C → UB         P: UB → L1         P·V: as S      all of the rows

Where memory is short, S and O share L0C, and a block of P lies where K did: what is
multiplied next takes the place of what has been. A 950 that double buffers holds S
and O twice. The vector cores of a 910 that double buffers work on half of the keys of a
block at a time; where they share the tile and S is too large for L0C, so does the cube.
"""

import dataclasses

from hw_profiles import dtypes
from hw_profiles.arguments import ceil_div
from hw_profiles.attention import compiled_causal, cube_vector
from hw_profiles.attention.config import AttentionConfig
from hw_profiles.attention.pass_traffic import passes_traffic
from hw_profiles.attention.passes import attention_passes
from hw_profiles.attention.problem import AttentionProblem
from hw_profiles.capacity.buffers import Buffer, Shortfall, larger_first
from hw_profiles.capacity.compiled import (
  NAME,
  TIME_ASSUMPTION,
  Memories,
  Temporary,
  copies,
  not_lowered,
  overfull,
  shape_shortfalls,
  ub_buffers,
)
from hw_profiles.planner.op_model import Demand
from hw_profiles.profile import NpuProfile

__all__ = ["NAME", "compiled_buffers", "demand", "shortfalls", "unsupported"]

_FLOAT = 4
_SMALLEST = 16
_ON_CHIP = ("L1", "L0A", "L0B", "L0C", "UB")


def _scores_and_output(scores: int, out: int, rows: int, size: int) -> tuple[Temporary, ...]:
  """S with the weights made of it, beside the running O."""
  return (
    Temporary("S in float32", fixed=_FLOAT * scores),
    Temporary("weights", fixed=size * scores),
    Temporary("O in float32", fixed=_FLOAT * out),
    Temporary("numbers of a row", fixed=rows),
  )


def _vector_values(
  scores: int, out: int, rows: int, size: int, memories: Memories
) -> tuple[Temporary, ...]:
  """What UB holds for a whole tile at the fuller of two moments."""
  if memories.has_l0c_to_ub:
    values = _scores_and_output(scores, out, (28 if size < _FLOAT else 24) * rows, size)
    # the step's P·V lies where S was, if it fits there
    return values if out <= scores else (*values, Temporary("P·V", fixed=_FLOAT * out))
  # float32 weights take the place of S and leave half a block more
  softmax = _scores_and_output(scores, out, 64 * rows, 2)
  rescaling = (
    Temporary("O in float32", fixed=_FLOAT * out),
    Temporary("P·V", fixed=_FLOAT * out),
    Temporary("their sum", fixed=_FLOAT * out),
    Temporary("numbers of a row", fixed=20 * rows),
  )
  return max(rescaling, softmax, key=lambda values: sum(one.fixed for one in values))


def compiled_buffers(
  problem: AttentionProblem, config: AttentionConfig, memories: Memories, *, vector_cores: int
) -> tuple[Buffer, ...]:
  """What the compiled kernel keeps in L1, L0C and UB.

  Args:
    problem: One that `unsupported` has nothing against.
    config: The tile.
    memories: The device.
    vector_cores: Those that are to share a tile: 2, or 1 where the compiler is
      told not to.
  """
  if problem.causal:
    values = compiled_causal.vector_values(problem, config, memories, vector_cores=vector_cores)
    return compiled_causal.cube_buffers(problem, config, memories) + ub_buffers(
      values, 1, 1, memories
    )
  size, count = dtypes.size_bytes(problem.dtype), copies(config.num_stages)
  rows, keys, is_950 = config.block_q, config.block_kv, memories.has_l0c_to_ub
  scores, out = rows * keys, rows * problem.output_dim
  key = count * keys * problem.head_dim * size
  value = count * keys * problem.output_dim * size
  weights = (1 if is_950 else count) * scores * size
  in_halves = not is_950 and count > 1
  in_ub = ceil_div(scores, 2) if in_halves else scores
  if in_halves and vector_cores > 1 and _FLOAT * scores > memories.l0c_bytes:
    scores, key = in_ub, ceil_div(key, 2)
  accumulators = count if is_950 else 1
  scores_bytes, out_bytes = accumulators * _FLOAT * scores, accumulators * _FLOAT * out
  # a block of P lies where one of K did; where there are two of K, the smaller of P and
  # the K to come lies where the larger is
  one_weights, one_key = (weights if is_950 else weights // count), key // count
  shared_weights = min(one_weights, one_key) if count > 1 or one_weights <= one_key else 0
  # and one of V, too, on a 910 that has two
  shared_value = 0 if is_950 or count == 1 else min(value, key) // count
  l1, l0c = memories.l1_bytes, memories.l0c_bytes
  held = (
    Buffer("Q", "L1", rows * problem.head_dim * size, l1, 1),
    Buffer("K", "L1", key, l1, count),
    Buffer("P", "L1", weights, l1, 1 if is_950 else count, shared_bytes=shared_weights),
    Buffer("V", "L1", value, l1, count, shared_bytes=shared_value),
    Buffer("S", "L0C", scores_bytes, l0c, accumulators),
    Buffer("O", "L0C", out_bytes, l0c, accumulators, shared_bytes=min(scores_bytes, out_bytes)),
  )
  shares = 1 if is_950 else vector_cores
  values = _vector_values(in_ub, out, rows, size, memories)
  return held + ub_buffers(
    (dataclasses.replace(one, fixed=ceil_div(one.fixed, shares)) for one in values), 1, 1, memories
  )


def unsupported(problem: AttentionProblem, npu: NpuProfile) -> tuple[Shortfall, ...]:
  """What the route has no kernel for, or this model no constants."""
  windowed = problem.window_sides != (None, None)
  return not_lowered(
    problem,
    (
      (problem.backward, "backward: the compiled kernels' memory is not known"),
      (windowed, "a window: the compiled kernel's memory is known with a causal mask at most"),
      (
        problem.out_dtype not in (None, problem.dtype),
        f"out_dtype={problem.out_dtype!r}: the compiled kernel's memory is known for results in"
        f" {problem.dtype}",
      ),
      (
        any(dim & (dim - 1) for dim in (problem.head_dim, problem.output_dim)),
        "head sizes: the compiled kernel's memory is known for powers of two",
      ),
    ),
  )


def shortfalls(
  problem: AttentionProblem, config: AttentionConfig, npu: NpuProfile
) -> tuple[Shortfall, ...]:
  """Blocks that Triton does not take, then L1, L0C and UB as compiled, then L0A and L0B."""
  found = shape_shortfalls(config, ("block_q", "block_kv"), smallest=_SMALLEST)
  if not problem.causal and problem.seq_kv % config.block_kv:
    # what is left is walked with a mask of its own
    statement = (
      f"the compiled kernel's memory is known for whole blocks of keys, not for seq_kv="
      f"{problem.seq_kv} in blocks of {config.block_kv}"
    )
    found = (*found, Shortfall("shape", "tile shape", ("block_kv",), statement))
  if found:
    return found
  sides = larger_first(block_kv=config.block_kv, block_q=config.block_q)
  held = compiled_buffers(problem, config, npu, vector_cores=npu.vector_cores_per_cube_core)
  device = cube_vector.shortfalls(problem, config, npu)
  return (
    *overfull(held, {"L1": (*sides, "num_stages"), "L0C": sides, "UB": sides}, npu.name),
    *(one for one in device if one.resource in ("L0A", "L0B")),
  )


def demand(problem: AttentionProblem, config: AttentionConfig, npu: NpuProfile) -> Demand:
  """The compiled buffers, this library's slices of L0A and L0B, and the times of `cube_vector`."""
  by_hand = cube_vector.demand(problem, config, npu)
  held = (
    *compiled_buffers(problem, config, npu, vector_cores=npu.vector_cores_per_cube_core),
    *(one for one in by_hand.buffers if one.space in ("L0A", "L0B", "GM")),
  )
  return dataclasses.replace(
    by_hand,
    buffers=held,
    traffic=passes_traffic(
      problem, attention_passes(problem, config), buffers=held, on_chip=_ON_CHIP
    ),
    assumptions=(*by_hand.assumptions, TIME_ASSUMPTION),
  )
