"""Bytes a tiled matmul moves between its working buffers and the next tier."""

import dataclasses
import math

from hw_profiles import dtypes
from hw_profiles.arguments import at_least, ceil_div


@dataclasses.dataclass(frozen=True)
class MatmulTraffic:
  """Working set and traffic of a tiled C = A·B.

  Attributes:
    a_tile_bytes: One A tile (block_m x block_k).
    b_tile_bytes: One B tile (block_k x block_n), of every product.
    accumulator_bytes: The tile's accumulators (block_m x block_n).
    working_set_bytes: num_stages pairs of operand tiles and the accumulator.
    a_read_bytes: A, over all tiles.
    b_read_bytes: B, over all tiles.
    c_write_bytes: C, once.
    partial_bytes: Sums of the parts of a split K, written and read back; else 0.
    total_bytes: The four together.
    intensity: FLOP per byte of `total_bytes`; 0 where nothing moves.
    grid: Tile rows and tile columns of C.
    k_steps: Steps of block_k that a tile takes along K, or along its part of K.
    tile_pair_loads: Pairs of operand tiles fetched: grid x split_k x k_steps.
  """

  a_tile_bytes: int
  b_tile_bytes: int
  accumulator_bytes: int
  working_set_bytes: int
  a_read_bytes: int
  b_read_bytes: int
  c_write_bytes: int
  partial_bytes: int
  total_bytes: int
  intensity: float
  grid: tuple[int, int]
  k_steps: int
  tile_pair_loads: int


def matmul_traffic(
  *,
  m: int,
  k: int,
  n: int,
  block_m: int,
  block_n: int,
  block_k: int,
  in_dtype: str,
  acc_dtype: str = "float32",
  out_dtype: str | None = None,
  num_stages: int = 1,
  products: int = 1,
  split_k: int = 1,
) -> MatmulTraffic:
  """Each tile of C reads its rows of A and its columns of B; C is written once.

      a_read = m·k·⌈n/block_n⌉·size     b_read = k·n·⌈m/block_m⌉·size
      working set = num_stages·(block_m·block_k + block_k·block_n)·size
                    + block_m·block_n·acc_size
      partial sums = 2·split_k·m·n·acc_size where K is split, else none

  A tail tile reads only the rows and columns that exist, so ragged sizes are
  counted exactly; buffers have their full size. Counted at the interface of
  the working buffers: hits in a cache further out are not subtracted.

  Example: 1024 x 4096 x 12288 in bfloat16 with 64 x 64 x 32 tiles works in
  24 KiB and moves 1536 + 1536 + 24 = 3096 MiB.

  Args:
    m: Rows of A and C; 0 or more, as k and n.
    k: Columns of A, rows of B.
    n: Columns of B and C.
    block_m: Rows of a tile of C; at least 1, as all blocks and stages.
    block_n: Columns of a tile of C.
    block_k: Depth of a step along K.
    in_dtype: Dtype of A and B.
    acc_dtype: Dtype of the accumulator.
    out_dtype: Dtype of C; None: `in_dtype`.
    num_stages: Pairs of operand tiles held at once.
    products: Matrices B that A is multiplied with in one walk along K, each
      with its own accumulator; C is one matrix still.
    split_k: Runs of K steps with accumulators of their own, which are written,
      read back and added; 1: K is not split.

  Raises:
    ValueError: a size is out of range or a dtype is unknown.
  """
  for name, size in (("m", m), ("k", k), ("n", n)):
    at_least(name, size, 0)
  for name, size in (
    ("block_m", block_m),
    ("block_n", block_n),
    ("block_k", block_k),
    ("num_stages", num_stages),
    ("products", products),
    ("split_k", split_k),
  ):
    at_least(name, size, 1)
  in_size = dtypes.size_bytes(in_dtype, name="in_dtype")
  out_size = in_size if out_dtype is None else dtypes.size_bytes(out_dtype, name="out_dtype")
  a_tile = block_m * block_k * in_size
  b_tile = products * block_k * block_n * in_size
  acc_size = dtypes.size_bytes(acc_dtype, name="acc_dtype")
  accumulator = products * block_m * block_n * acc_size
  grid = (ceil_div(m, block_m), ceil_div(n, block_n))
  k_steps = ceil_div(k, block_k * split_k)
  a_read = m * k * grid[1] * in_size
  b_read = products * k * n * grid[0] * in_size
  c_write = m * n * out_size
  partials = 2 * split_k * products * m * n * acc_size if split_k > 1 else 0
  total = a_read + b_read + c_write + partials
  return MatmulTraffic(
    a_tile_bytes=a_tile,
    b_tile_bytes=b_tile,
    accumulator_bytes=accumulator,
    working_set_bytes=num_stages * (a_tile + b_tile) + accumulator,
    a_read_bytes=a_read,
    b_read_bytes=b_read,
    c_write_bytes=c_write,
    partial_bytes=partials,
    total_bytes=total,
    intensity=2 * products * m * n * k / total if total else 0.0,
    grid=grid,
    k_steps=k_steps,
    tile_pair_loads=math.prod(grid) * split_k * k_steps,
  )
