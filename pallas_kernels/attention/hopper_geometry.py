"""What one instance of the forward kernel on Hopper is: tiles, their order and what they walk."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from hw_profiles import AttentionConfig
from hw_profiles.attention.warp_specialized import sums_late, takes_turns
from pallas_kernels.attention import schedule
from pallas_kernels.attention.masks import Band
from pallas_kernels.attention.operands import Sizes
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.attention.schedule import Region, TileOrder, Walk
from pallas_kernels.attention.softmax import LogitRule
from pallas_kernels.portable_support import batch_index


@dataclasses.dataclass(frozen=True)
class Instance:
  """What one instance of a kernel computes, forward or backward.

  Attributes:
    rule: What is computed.
    sizes: Of the attention, as it was given.
    head_dim: Head size of Q and K as they are stored.
    value_dim: Head size of V and of O or dO as they are stored.
  """

  rule: AttentionRule
  sizes: Sizes
  head_dim: int
  value_dim: int

  @property
  def logits(self) -> LogitRule:
    """From dot products to logits."""
    return self.rule.logits(has_bias=False)

  @property
  def band(self) -> Band:
    """What queries see."""
    return self.rule.band.of(seq_q=self.sizes.seq_q, seq_kv=self.sizes.seq_kv)


@dataclasses.dataclass(frozen=True)
class Geometry(Instance):
  """Static facts of one instance of the forward kernel.

  Attributes:
    config: The tile.
    consumers: Consumer warpgroups.
    order: The order of the tiles.
    blocks: Thread blocks.
    head_panels: Panels of columns that Q and K lie in; 1: whole.
    value_panels: The same of V and O.
  """

  config: AttentionConfig
  consumers: int
  order: TileOrder
  blocks: int
  head_panels: int
  value_panels: int

  @property
  def takes_turns(self) -> bool:
    """Whether consumers issue their products by turns."""
    return takes_turns(self.consumers, head_dim=self.head_dim, value_dim=self.value_dim)

  @property
  def sums_late(self) -> bool:
    """Whether a block's weights are added up in the step after."""
    return sums_late(
      head_dim=self.head_dim,
      value_dim=self.value_dim,
      num_stages=self.config.num_stages,
      block_kv=self.config.block_kv,
    )

  @property
  def rows(self) -> int:
    """Rows of a consumer."""
    return self.config.block_q // self.consumers

  def regions(self, tile: schedule.Tile, walks: Any | None) -> tuple[Any, Any, tuple[Region, ...]]:
    """First block of keys, one past the last, and the regions that a tile walks.

    All its consumers walk the same. A tile that sees nothing walks one block,
    of which its mask leaves nothing.

    Args:
      tile: The tile.
      walks: `Refs.walks`.
    """
    config = self.config
    if walks is not None:
      own = walks.at[batch_index(walks, tile.batch)].at[tile.block]
      first, full_first, full_end, end = (own[i] for i in range(4))
      found = schedule.regions_of(first, full_first, full_end, end)
      first = jnp.minimum(first, -(-self.sizes.seq_kv // config.block_kv) - 1)
      return first, jnp.maximum(end, first + 1), found
    first_query = tile.block * config.block_q
    blocks = self.band.key_blocks(first_query, block_q=config.block_q, block_kv=config.block_kv)
    walk = Walk.create(
      block=config.block_kv, extent=self.sizes.seq_kv, has_lengths=False, all_masked=False
    )
    first = jnp.minimum(blocks.first, -(-self.sizes.seq_kv // config.block_kv) - 1)
    return first, jnp.maximum(blocks.end, first + 1), walk.regions(self.band, blocks)

  def agenda(self) -> np.ndarray:
    """Tiles of each thread block; a tile takes its blocks of keys and, for its ends, one more."""
    block_q = self.config.block_q
    visited = [
      self.band.key_blocks(block * block_q, block_q=block_q, block_kv=self.config.block_kv).visited
      for block in range(self.order.blocks)
    ]
    lengths = [visited[self.order.tile(i).block] + 1 for i in range(self.order.programs)]
    return schedule.agenda(lengths, blocks=self.blocks)
