"""Static facts of the Hopper attention gradients' kernel; see `hopper_backward_kernel`."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from hw_profiles.attention.warp_specialized import WGMMA_ROWS, gradient_slots
from pallas_kernels.attention.hopper_geometry import Instance
from pallas_kernels.attention.schedule import Region, TileOrder, regions_of

# Columns of the widest swizzle span of a 16-bit operand, which a window of K's columns is made of
_SPAN = 64


@dataclasses.dataclass(frozen=True)
class Geometry(Instance):
  """Static facts of one instance of the backward kernel.

  Attributes:
    block_q: Queries of a step.
    consumers: Consumer warpgroups, of 64 keys each.
    num_stages: Steps in flight.
    order: The order of the tiles.
    early_queries_first: Whether tiles walk up from the first queries that see them, in
      descending order of their keys; see `hopper_backward_kernel`.
  """

  block_q: int
  consumers: int
  num_stages: int
  order: TileOrder
  early_queries_first: bool

  @property
  def block_kv(self) -> int:
    """Keys of a tile."""
    return self.consumers * WGMMA_ROWS

  @property
  def parts(self) -> int:
    """Parts of a step's dQ, by columns, one a consumer; 1: one consumer makes all of it."""
    return self.consumers if self.head_dim % (_SPAN * self.consumers) == 0 else 1

  @property
  def takes_turns(self) -> bool:
    """Whether one step's dQ is one consumer's, the next step's the next one's."""
    return self.consumers > 1 and self.parts == 1

  @property
  def slots(self) -> int:
    """Slots of dZ and of a step's part of dQ, which is let go of a step later."""
    return gradient_slots(self.consumers)

  def is_lean(self, *, has_sight: bool) -> bool:
    """Whether steps go without barriers of a warpgroup and without zeros in accumulators.

    Not where three loops walk the regions, with lengths, segment ids (`has_sight`)
    or a window: that leaves ptxas 13.0 too few registers, and it waits for every
    product (C7512) and spills where no mask is.
    """
    return not has_sight and self.band.transposed().right is None

  def regions(self, block: Any, walks: Any | None = None) -> tuple[Region, ...]:
    """Blocks of queries that a tile of keys walks.

    Args:
      block: The tile's block of keys.
      walks: int32 [blocks of keys, 4], `intervals.Walks` of its sequence; None: the
        band says it.

    No mask is needed for queries past the end, whose weights, dO and delta are
    0; keys past the end have weights, so that their block is masked in every step.

    Where late queries see what early ones do, there is one masked region and
    then one without a mask, which may be empty: of the three of other bands, the
    last would hold what the first does in a tile that hangs over the end, and a
    loop more costs registers. 7239 keys with a head size of 128 took 348 B of
    spills and waits for every single product (ptxas C7512), now neither.
    """
    if walks is not None:
      own = walks.at[block]
      return regions_of(*(own[i] for i in range(4)))
    first_key = block * self.block_kv
    turned = self.band.transposed()
    found = turned.key_blocks(first_key, block_q=self.block_kv, block_kv=self.block_q)
    ragged = self.sizes.seq_kv % self.block_kv != 0
    hangs_over = first_key + self.block_kv > self.sizes.seq_kv
    if turned.right is None:
      if turned.left is None and not ragged:
        return (Region(found.first, found.end, masked=False),)
      full_first = jnp.where(hangs_over, found.end, found.full_first)
      return (
        Region(found.first, full_first, masked=True),
        Region(full_first, found.end, masked=False),
      )
    regions = []
    full_end = jnp.where(hangs_over, found.full_first, found.full_end)
    if turned.left is not None:
      regions.append(Region(found.first, found.full_first, masked=True))
    regions.append(Region(found.full_first, full_end, masked=False))
    regions.append(Region(full_end, found.end, masked=True))
    return tuple(regions)

  def visits(self) -> tuple[np.ndarray, np.ndarray]:
    """The tile of keys that first visits each block of queries, int32, and whether any does."""
    blocks = [
      self.band.key_blocks(x * self.block_q, block_q=self.block_q, block_kv=self.block_kv)
      for x in range(pl.cdiv(self.sizes.seq_q, self.block_q))
    ]
    first, end = (
      np.asarray([int(x) for x in ends], np.int32)
      for ends in zip(*((x.first, x.end) for x in blocks), strict=True)
    )
    return end - 1 if self.early_queries_first else first, end > first
