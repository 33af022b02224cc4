"""The tile configuration of a matmul, which both the kernels and the planner read.

It holds numbers only. It lives here, and not beside the kernels, because the
planner must read it without importing JAX; `pallas_kernels` re-exports it.
"""

import dataclasses
from typing import Literal

from hw_profiles import tile_config
from hw_profiles.arguments import whole_field


@dataclasses.dataclass(frozen=True)
class MatmulConfig:
  """How one C = A·B tile is cut, staged and finished.

  One program (a thread block on an SM, an AIC core's task on Ascend) computes
  a `block_m` x `block_n` tile of C, walking K in steps of `block_k` with
  `num_stages` operand tiles in flight. Sizes are in elements. No block has to
  divide the problem.

  Attributes:
    block_m: Rows of C per program.
    block_n: Columns of C per program.
    block_k: Depth of one K step: the A tile is block_m x block_k, the B tile
      block_k x block_n.
    num_stages: Operand tiles held at once: shared-memory stages on an SM, L1
      buffers on Ascend. 1 means no overlap of copy and compute.
    group_m: Tile rows walked together before the next tile column, so that
      programs resident at the same time share operands in L2. 1 walks row by
      row.
    accumulator: Where the float32 accumulator lives on an SM. The kernels keep
      it in registers; "shared" is for what-if questions to the planner
      (Ascend always uses L0C).
    num_warps: Warps per thread block of the portable kernel's Triton lowering.
      None: 8 for tiles of at least 128 x 128 outputs, else 4. Not read elsewhere.
    num_consumer_warpgroups: wgmma warpgroups of the Hopper kernel, which share
      the tile along M when block_m has 64 rows for each, else along N. None:
      2 for tiles of at least 128 x 64 outputs, else 1. Not read elsewhere.
    epilogue_block_n: Columns of the output sub-tile that the Hopper kernel
      stages in shared memory for one TMA store; they must make rows of 32, 64
      or 128 B and divide a consumer warpgroup's columns. None: the widest such,
      at most 64 columns. Not read elsewhere.
    cluster_m: Thread blocks of a cluster along M, which load their common B
      tile once and multicast it (Hopper). Not read elsewhere.
    cluster_n: The same along N, for their common A tile. At most one of the
      two is above 1. Not read elsewhere.
    overlap_epilogue: Whether the Hopper kernel stores a tile while the next one
      is being multiplied. It keeps the finished tile in registers, rounded to
      its 16-bit dtype, beside the next accumulator. None: where that fits, as it does
      not with 192 x 256 tiles of three consumers. Not read elsewhere.
    split_k: Runs of whole K steps that K is cut into, ⌈steps / split_k⌉ each but
      the last. Each run is a product of its own with float32 sums (int32 of
      int8) in a workspace; a second kernel adds them in the order of K and
      finishes the result. Fills an SM device where C has few tiles and K is
      long. The kernels on SMs read it; an Ascend core does not split K.
  """

  block_m: int
  block_n: int
  block_k: int
  num_stages: int = 2
  group_m: int = dataclasses.field(default=8, kw_only=True)
  accumulator: Literal["registers", "shared"] = dataclasses.field(default="registers", kw_only=True)
  num_warps: int | None = dataclasses.field(default=None, kw_only=True)
  num_consumer_warpgroups: int | None = dataclasses.field(default=None, kw_only=True)
  epilogue_block_n: int | None = dataclasses.field(default=None, kw_only=True)
  cluster_m: int = dataclasses.field(default=1, kw_only=True)
  cluster_n: int = dataclasses.field(default=1, kw_only=True)
  overlap_epilogue: bool | None = dataclasses.field(default=None, kw_only=True)
  split_k: int = dataclasses.field(default=1, kw_only=True)

  def __post_init__(self) -> None:
    for name in (
      "block_m",
      "block_n",
      "block_k",
      "num_stages",
      "group_m",
      "cluster_m",
      "cluster_n",
      "split_k",
    ):
      whole_field(self, name, 1)
    for name in ("num_warps", "num_consumer_warpgroups", "epilogue_block_n"):
      if getattr(self, name) is not None:
        whole_field(self, name, 1)
    if self.overlap_epilogue not in (None, True, False):
      raise ValueError(
        f"MatmulConfig.overlap_epilogue={self.overlap_epilogue!r}: expected True, False or None"
      )
    if self.accumulator not in ("registers", "shared"):
      raise ValueError(
        f"MatmulConfig.accumulator={self.accumulator!r}: expected 'registers' or 'shared'"
      )

  def describe(self) -> str:
    """The config as `name=value` pairs, defaults left out: what `--tile` takes."""
    return tile_config.describe(self)
