"""What the portable kernel of a causal attention keeps in memory, as Huawei's compiler lays it out.

It walks the keys twice: whole blocks first, then those that the diagonal cuts. The second
walk masks S and, as 0·∞ is not 0, has a branch for values that are not finite, with M the
mask and V' the finite values of V, 0 for the others:

    P·V' + ∞·(M·[V = ∞ or NaN] > 0) - ∞·(M·[V = -∞ or NaN] > 0)

That makes seven products, one after another: Q·Kᵀ and P·V of the first walk, then Q·Kᵀ,
P·V and the branch's three of the second, numbered 3 to 7. Blocks of operands and
accumulators are the tile's. UB is what is alive at the fuller of two moments of the second
walk. The compiler leaves gaps between blocks of different sizes: what it reports as lacking
is 0.86 to 1.46 times what is counted here. Where blocks are few enough to fit, it fits them.
"""

from collections.abc import Iterable

from hw_profiles import dtypes
from hw_profiles.arguments import ceil_div
from hw_profiles.attention.config import AttentionConfig
from hw_profiles.attention.problem import AttentionProblem
from hw_profiles.capacity.buffers import Buffer
from hw_profiles.capacity.compiled import Memories, Temporary, copies

_FLOAT = 4
_SECOND_WALK = (4, 5, 6, 7)
# A mask in UB of a 950: bytes a row for each 256 columns, or a part of them.
_MASK_BYTES, _MASK_COLUMNS = 32, 256
# What a 910 needs to reduce a row of int32, bytes an element: rows up to 64 long, and longer.
_SHORT_ROW, _REDUCE_SHORT, _REDUCE_LONG = 64, 8, 2.25


def _sharing(
  sizes: Iterable[tuple[str, int]], space: str, total: int, available: int
) -> tuple[Buffer, ...]:
  """Buffers that take `total` bytes together: the last ones lie where the first do."""
  held = []
  for name, needed in sizes:
    own = min(needed, total)
    total -= own
    held.append(Buffer(name, space, needed, available, 1, shared_bytes=needed - own))
  return tuple(held)


def cube_buffers(
  problem: AttentionProblem, config: AttentionConfig, memories: Memories
) -> tuple[Buffer, ...]:
  """Operands in L1 and accumulators in L0C, product by product, with the least that they take.

  All accumulators share L0C. Of a 950 the second walk's operands lie where the first one's
  did; a 910 holds three blocks of V beside K or those of P, whichever is larger: three, and
  four in float32.
  """
  size, count = dtypes.size_bytes(problem.dtype), copies(config.num_stages)
  is_950 = memories.has_l0c_to_ub
  rows, keys = config.block_q, config.block_kv
  query = rows * problem.head_dim * size
  one_key, one_value = keys * problem.head_dim * size, keys * problem.output_dim * size
  # what the vector cores of a 950 write into L1 is there once
  written = 1 if is_950 else count
  key, weights = count * one_key, written * rows * keys * size
  values = (count * one_value, *(written * one_value for _ in _SECOND_WALK[1:]))
  operands = [("Q", query), ("V", count * one_value), ("K", key), ("P", weights), ("K 3", key)]
  operands += [(f"P {product}", weights) for product in _SECOND_WALK]
  operands += [(f"V {product}", held) for product, held in zip(_SECOND_WALK, values, strict=True)]
  if is_950:
    lying = min(weights, one_key) if count > 1 or weights <= one_key else 0
    total = query + count * one_value + key + weights - lying
  else:
    total = query + 3 * count * one_value + max(key, (3 if size < _FLOAT else 4) * weights)
  accumulators = count if is_950 else 1
  scores = accumulators * _FLOAT * rows * keys
  out = accumulators * _FLOAT * rows * problem.output_dim
  results = [("S", scores), ("O", out), ("S 3", scores)]
  results += [(f"O {product}", out) for product in _SECOND_WALK]
  return (
    *_sharing(operands, "L1", total, memories.l1_bytes),
    *_sharing(results, "L0C", max(scores, out), memories.l0c_bytes),
  )


def _total(values: tuple[Temporary, ...]) -> int:
  return sum(one.fixed for one in values)


def vector_values(
  problem: AttentionProblem, config: AttentionConfig, memories: Memories, *, vector_cores: int
) -> tuple[Temporary, ...]:
  """What UB of one vector core holds at the fuller of two moments of the second walk."""
  rows = config.block_q
  if not memories.has_l0c_to_ub and rows != config.block_kv:
    # rows of the tile are shared; where there are as many as keys the compiler tells them
    # not apart, and each core has all
    rows = ceil_div(rows, vector_cores)
  block = (rows, config.block_kv, problem.output_dim)
  moments = _moments_950 if memories.has_l0c_to_ub else _moments_910
  return max(moments(*block, problem.dtype), key=_total)


def _compared_bytes(dtype: str) -> int:
  """Of a value where it is held against infinity: neither generation compares bfloat16."""
  return dtypes.size_bytes("float32" if dtype == "bfloat16" else dtype)


def _moments_910(
  rows: int, keys: int, columns: int, dtype: str
) -> tuple[tuple[Temporary, ...], ...]:
  """Whether a value is not finite, reduced over V; then the branch's last subtraction."""
  value, out, scores = keys * columns, rows * columns, rows * keys
  reduced = value * (_REDUCE_SHORT if columns <= _SHORT_ROW else _REDUCE_LONG)
  compared = _compared_bytes(dtype) * value
  of_value = (
    Temporary("V", fixed=dtypes.size_bytes(dtype) * value),
    # what needs no conversion has another constant there
    Temporary("V as it is compared", fixed=compared),
    Temporary("constant that |V| is compared with", fixed=compared),
    Temporary("|V|, then its mask", fixed=compared),
  )
  of_out = (
    Temporary("zeros", fixed=_FLOAT * out),
    Temporary("O in float32", fixed=_FLOAT * out),
    Temporary("O, rescaled", fixed=_FLOAT * out),
  )
  of_row = Temporary("numbers of a row, of a key", fixed=20 * rows + 8 * keys)
  reduction = (
    *of_value,
    Temporary("mask of V in int32", fixed=_FLOAT * value),
    Temporary("for its reduction", fixed=int(reduced)),
    # float32 weights are on their way to the cube core by then
    Temporary("weights in float32", fixed=_FLOAT * scores if dtype != "float32" else 0),
    Temporary("mask of S", fixed=2 * scores),
    *of_out,
    of_row,
  )
  subtraction = (
    *of_value,
    *of_out,
    Temporary("P·V'", fixed=_FLOAT * out),
    Temporary("infinities of it", fixed=_FLOAT * out),
    Temporary("a gap that no block like O fits into", fixed=_FLOAT * out),
    of_row,
  )
  return reduction, subtraction


def _moments_950(
  rows: int, keys: int, columns: int, dtype: str
) -> tuple[tuple[Temporary, ...], ...]:
  """The branch's operands made of S and V; of float32 ones also those laid out in fractals."""
  value, out, scores = keys * columns, rows * columns, rows * keys
  size = dtypes.size_bytes(dtype)
  masks = rows * ceil_div(keys, _MASK_COLUMNS) + keys * ceil_div(columns, _MASK_COLUMNS)
  kept = (
    Temporary("O in float32", fixed=_FLOAT * out),
    Temporary("two products like O", fixed=2 * _FLOAT * out),
    Temporary("S in float32", fixed=_FLOAT * scores),
    Temporary("masks of S and V", fixed=_MASK_BYTES * masks),
    Temporary("numbers of a row, of a key", fixed=20 * rows + 4 * keys),
  )
  if size < _FLOAT:
    made = (
      Temporary("weights in float32", fixed=_FLOAT * scores),
      Temporary("weights or mask", fixed=size * scores),
      Temporary("V as it is compared", fixed=_compared_bytes(dtype) * value),
      Temporary("V, V', the masks of ∞ and -∞", fixed=4 * size * value),
    )
    return ((*kept, *made),)
  weights = Temporary("weights in float32", fixed=_FLOAT * scores)
  return (
    (
      *kept,
      weights,
      Temporary("two products more like O", fixed=2 * _FLOAT * out),
      Temporary("mask of S in float32", fixed=_FLOAT * scores),
      Temporary("V", fixed=_FLOAT * value),
    ),
    (
      *kept,
      weights,
      Temporary("V, V', the masks of ∞ and -∞, in fractals", fixed=5 * _FLOAT * value),
    ),
  )
