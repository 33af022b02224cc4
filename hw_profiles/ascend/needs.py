"""What Huawei's compiler wants for a tile of each op: read off its plans, without it.

Bytes of operands and accumulators follow from the tile. Bytes of UB are the
compiler's choice of temporaries: the constants below are what ascendnpu-ir 1.2.0
reports for tiles that do not fit, where it shares all it can. They say what this
compiler does with the portable kernels, not what a device needs; that is
`hw_profiles.plan`.
"""

from typing import Any

from hw_profiles import dtypes
from hw_profiles.arguments import ceil_div
from hw_profiles.ascend.compiler_needs import CompilerNeeds
from hw_profiles.ascend.row_needs import row_ub_bytes
from hw_profiles.ascend.targets import AscendTarget
from hw_profiles.attention.config import AttentionConfig
from hw_profiles.attention.problem import AttentionProblem
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.matmul.config import MatmulConfig
from hw_profiles.matmul.problem import MatmulProblem

_FLOAT32 = 4
_VECTOR_CORES = 2

# UB of a 910's vector core for an element of its share of the tile: silu of one
# product, by the size of the operands; act(gate)·up of two.
_SILU_910 = {2: (22, 64), 4: (20, 32)}
_GATED_910 = (24, 32)


def _copies(num_stages: int) -> int:
  """The compiler keeps one copy or two."""
  return min(num_stages, 2)


def _share(elements: int, target: AscendTarget, *, sub_block: bool) -> int:
  """Elements of a mixed tile that one vector core has; a 950 never shares these tiles."""
  return ceil_div(elements, _VECTOR_CORES) if sub_block and not target.is_950 else elements


def _matmul(
  problem: MatmulProblem, config: MatmulConfig, target: AscendTarget, *, sub_block: bool
) -> CompilerNeeds:
  size = dtypes.size_bytes(problem.dtype)
  copies, products = _copies(config.num_stages), problem.products
  a = copies * config.block_m * config.block_k * size
  b = copies * config.block_k * config.block_n * size
  outputs = config.block_m * config.block_n
  accumulator = outputs * _FLOAT32
  ub = 0
  if target.is_950:
    # the cube core writes float32 into UB, where it is rounded or activated
    if problem.activation is not None or dtypes.size_bytes(problem.result_dtype) < _FLOAT32:
      ub = products * accumulator
  elif problem.activation is not None:
    per_element, fixed = _GATED_910 if products > 1 else _SILU_910[size]
    ub = per_element * _share(outputs, target, sub_block=sub_block) + fixed
  roles = {"A": a, "B": b, "accumulator": accumulator}
  if products > 1:
    roles |= {"B 2": b, "accumulator 2": accumulator}
  # of the second product's B one copy lies where the first one's did
  shared = b // copies if copies > 1 and products > 1 else 0
  return CompilerNeeds(a + products * b - shared, products * accumulator, ub, FrozenMap(roles))


def _attention(
  problem: AttentionProblem, config: AttentionConfig, target: AscendTarget, *, sub_block: bool
) -> CompilerNeeds:
  """Q·Kᵀ into the scores S, then P·V into O.

  Accumulators of both share L0C where they have to. A 950 that double buffers
  has two of each, and one of P. A 910 that double buffers and shares the tile
  works on half of the keys of a block at a time, where S is too large for L0C.
  """
  size = dtypes.size_bytes(problem.dtype)
  copies = _copies(config.num_stages)
  value_dim = problem.head_dim if problem.value_dim is None else problem.value_dim
  block_q, block_kv = config.block_q, config.block_kv
  scores, out = block_q * block_kv, block_q * value_dim
  query = block_q * problem.head_dim * size
  key = copies * block_kv * problem.head_dim * size
  value = copies * block_kv * value_dim * size
  weights = (1 if target.is_950 else copies) * scores * size
  if not target.is_950 and copies > 1 and sub_block and _FLOAT32 * scores > target.l0c_bytes:
    scores, key = ceil_div(scores, 2), ceil_div(key, 2)
  accumulators = copies if target.is_950 else 1
  if target.is_950:
    # bfloat16: the scores in float32 with their 16-bit weights, and one float32 O
    ub = (6 * scores + 4 * out + 28 * block_q) if size == 2 else 8 * (scores + out) + 24 * block_q
  else:
    whole = max(12 * out + 20 * block_q, 6 * scores + 4 * out + 64 * block_q)
    ub = ceil_div(whole, _VECTOR_CORES) if sub_block else whole
  roles = {
    "A": query,
    "B": key,
    "A 2": weights,
    "B 2": value,
    "accumulator": accumulators * _FLOAT32 * scores,
    "accumulator 2": accumulators * _FLOAT32 * out,
  }
  # with double buffering one copy of V lies where K did, on a 950 where P did
  one_value = value // copies
  shared = 0 if copies == 1 else min(weights, one_value) if target.is_950 else one_value
  held = accumulators * _FLOAT32 * max(scores, out)
  return CompilerNeeds(query + key + weights + value - shared, held, ub, FrozenMap(roles))


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
  if isinstance(problem, MatmulProblem):
    return _matmul(problem, config, target, sub_block=sub_block)
  if isinstance(problem, AttentionProblem):
    return _attention(problem, config, target, sub_block=sub_block)
  return CompilerNeeds(0, 0, row_ub_bytes(problem, config, target))
