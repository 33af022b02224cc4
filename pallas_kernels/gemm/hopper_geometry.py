"""Static facts of one instance of the Hopper matmul."""

import dataclasses

from jax.experimental import pallas as pl

from hw_profiles import MatmulConfig
from hw_profiles.matmul.warp_specialized import (
  ConsumerTile,
  consumer_tile,
  consumer_warpgroups,
  wgmma_columns,
)
from pallas_kernels.gemm.hopper_layout import HopperLayout
from pallas_kernels.gemm.operands import Sizes, Transposes


@dataclasses.dataclass(frozen=True)
class Geometry:
  """Static facts of one kernel instance, derived once from shapes and config.

  Attributes:
    config: The tile.
    sizes: Of the product, or of each of those that are summed.
    products: Matrices B.
    layout: How stages lie in shared memory, and are filled.
    transposes: How A and B are stored.
    overlaps: Whether a settled tile waits while the next is multiplied.
    promotes: Whether the tensor cores sum one K step at a time, and float32
      additions the steps.
    max_ctas: Thread blocks to launch at most.
    pairs: Pairs (A, B) whose products are summed in one accumulator.
  """

  config: MatmulConfig
  sizes: Sizes
  products: int
  layout: HopperLayout
  transposes: Transposes
  overlaps: bool
  promotes: bool
  max_ctas: int
  pairs: int = 1

  @property
  def cluster(self) -> int:
    """Thread blocks of a cluster."""
    return self.config.cluster_m * self.config.cluster_n

  @property
  def cluster_rows(self) -> int:
    """Rows of the tile of a cluster."""
    return self.config.block_m * self.config.cluster_m

  @property
  def cluster_columns(self) -> int:
    """Columns of the tile of a cluster."""
    return self.config.block_n * self.config.cluster_n

  @property
  def tiles_m(self) -> int:
    """Rows of cluster tiles; a cluster tile is a thread block's where there is no cluster."""
    return pl.cdiv(self.sizes.m, self.cluster_rows)

  @property
  def tiles_n(self) -> int:
    """Columns of cluster tiles."""
    return pl.cdiv(self.sizes.n, self.cluster_columns)

  @property
  def parts(self) -> int:
    """Parts of all products: matrices of the result."""
    return self.sizes.batch * self.config.split_k

  @property
  def tiles(self) -> int:
    """Cluster tiles of all parts."""
    return self.parts * self.tiles_m * self.tiles_n

  @property
  def num_clusters(self) -> int:
    """Clusters to launch."""
    return min(max(self.max_ctas // self.cluster, 1), self.tiles)

  @property
  def pair_steps(self) -> int:
    """Steps along the K of one pair, unsplit."""
    return pl.cdiv(self.sizes.k, self.config.block_k)

  @property
  def k_steps(self) -> int:
    """Steps along K, of all pairs or of a part of it; TMA fills those past its end with zeros."""
    return pl.cdiv(self.pairs * self.pair_steps, self.config.split_k)

  @property
  def consumers(self) -> int:
    """Consumer warpgroups of a thread block."""
    return consumer_warpgroups(self.config)

  @property
  def share(self) -> ConsumerTile:
    """A consumer's part of the tile."""
    return consumer_tile(self.config)

  @property
  def wgmma_columns(self) -> int:
    """Columns of one wgmma, and of an accumulator: a consumer's, or half of them."""
    return wgmma_columns(self.config)

  @property
  def accumulators(self) -> int:
    """Accumulators of a consumer: of each product one for each wgmma along N."""
    return self.products * (self.share.columns // self.wgmma_columns)
