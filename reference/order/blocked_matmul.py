"""A·B as a kernel adds it up: blocks of K, splits of K, a merge."""

import itertools
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from reference.formats import to_float64
from reference.ops import result_shape
from reference.order.exact_rounding import sum_rounded_once
from reference.order.sums import (
  Float32Array,
  MergeOrder,
  float32_terms,
  merge_sums,
  pairwise_sum,
  sequential_sum,
  split_lengths,
)
from reference.rounding import round_to

# How the products of one block of K reach the accumulator c:
#   "exact"       c = fl(c + fl(Σ p))         the block's sum exact, rounded, then added
#   "fused"       c = fl(c + Σ p)             the accumulator is one term of an exact sum
#   "sequential"  c = fl(c + fl(...fl(p_0 + p_1)... + p_n))
#   "pairwise"    c = fl(c + tree of p)
#   "in_place"    c = fl(...fl(fl(c + p_0) + p_1)... + p_n)
# with p = fl(a·b), exact for operands of 16 bits, in the last three.
BlockSum = Literal["exact", "fused", "sequential", "pairwise", "in_place"]
BLOCK_SUMS = ("exact", "fused", "sequential", "pairwise", "in_place")

# Terms of a chunk of rows that are held at once, in float64: 128 MiB.
_TERMS = 2**24


def _accumulate(accumulator: Float32Array, a: Any, b: Any, block_sum: BlockSum) -> Float32Array:
  """One block: accumulator [..., M, N] and operands [..., M, k], [..., k, N] in float64."""
  products = a[..., :, None, :] * np.swapaxes(b, -1, -2)[..., None, :, :]
  with np.errstate(over="ignore", invalid="ignore", under="ignore"):
    if block_sum == "exact":
      return accumulator + sum_rounded_once(products)
    if block_sum == "fused":
      start = accumulator.astype(np.float64)[..., None]
      return sum_rounded_once(np.concatenate([start, products], axis=-1))
    rounded = products.astype(np.float32)
    if block_sum == "in_place":
      return sequential_sum(np.concatenate([accumulator[..., None], rounded], axis=-1))
    part = sequential_sum(rounded) if block_sum == "sequential" else pairwise_sum(rounded)
    return accumulator + part


def emulate_matmul(
  a: npt.ArrayLike,
  b: npt.ArrayLike,
  *,
  block_k: int,
  block_sum: BlockSum = "exact",
  num_splits: int = 1,
  merge: MergeOrder = "sequential",
  out_dtype: npt.DTypeLike | None = None,
) -> npt.NDArray[Any]:
  """A·B in the order of a kernel, to the bit.

  K is cut into `num_splits` runs of whole blocks of `block_k` (`split_lengths`).
  Each run starts an accumulator of zeros and takes its blocks in ascending
  order; the runs' accumulators are merged in a fixed order. Which rows and
  columns share a tile makes no difference to a bit, and neither do M and N.

  Args:
    a: [..., M, K], float32 or narrower.
    b: [..., K, N]; leading dimensions broadcast.
    block_k: Products of a step; the last block of K may be shorter.
    block_sum: How a block's products reach the accumulator: "exact" (the exact
      sum of the block, rounded to float32, then added), "fused" (one rounding
      of accumulator and block together), "sequential", "pairwise" (the block is
      added up in float32 first) or "in_place" (product after product onto the
      accumulator).
    num_splits: Runs of blocks with an accumulator each.
    merge: How the accumulators of the runs are added.
    out_dtype: Dtype of the result, one more rounding. None: float32.

  Returns:
    [..., M, N].

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  first, second = float32_terms("a", a), float32_terms("b", b)
  shape = result_shape(first, second)
  if block_sum not in BLOCK_SUMS:
    raise ValueError(f"block_sum={block_sum!r}: expected one of {', '.join(BLOCK_SUMS)}")
  if block_k < 1:
    raise ValueError(f"block_k={block_k}: expected at least 1")
  *batch, m, n = shape
  k = first.shape[-1]
  runs = split_lengths(k, num_splits, unit=block_k)
  rows = to_float64(np.broadcast_to(first, (*batch, m, k)))
  columns = to_float64(np.broadcast_to(second, (*batch, k, n)))
  step = max(1, _TERMS // max(1, int(np.prod(batch, dtype=np.int64)) * n * min(block_k, max(k, 1))))

  def run(part: Any, start: int, stop: int) -> Float32Array:
    total = np.zeros((*part.shape[:-1], n), np.float32)
    for low in range(start, stop, block_k):
      high = min(low + block_k, stop)
      total = _accumulate(total, part[..., low:high], columns[..., low:high, :], block_sum)
    return total

  edges = list(itertools.pairwise([0, *itertools.accumulate(runs)]))
  result = np.zeros(shape, np.float32)
  for low in range(0, m, step):
    part = rows[..., low : low + step, :]
    partials = [run(part, start, stop) for start, stop in edges]
    order = merge if num_splits > 1 else "sequential"
    result[..., low : low + step, :] = merge_sums(np.stack(partials, axis=-1), order)
  return result if out_dtype is None else round_to(result, out_dtype)
