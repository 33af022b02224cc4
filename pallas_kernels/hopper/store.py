"""The way of a result from registers to global memory: staging slots and TMA.

A consumer warpgroup's block leaves in sub-tiles of 64 rows. Each is written to
one of two slots in shared memory and stored from there by TMA, while the next
is being computed into the other. The sub-tiles can be stored one by one,
between other work.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


@dataclasses.dataclass(frozen=True)
class BlockStore:
  """Stores blocks of one shape through one ring of slots.

  Attributes:
    slots: Shared-memory reference [number of slots, rows, columns], this
      warpgroup's own.
    rows: Rows of a block, a multiple of the slots' rows.
    columns: Columns of a block, a multiple of the slots' columns.
  """

  slots: Any
  rows: int
  columns: int

  @property
  def sub_tiles(self) -> tuple[tuple[slice, slice], ...]:
    """Rows and columns of a block's sub-tiles, in the order they leave in."""
    _, rows, columns = self.slots.shape
    return tuple(
      (slice(i, i + rows), slice(j, j + columns))
      for i in range(0, self.rows, rows)
      for j in range(0, self.columns, columns)
    )

  def store(
    self,
    index: int,
    sub_tile: Callable[[slice, slice], jax.Array],
    *,
    out: Any,
    row: Any,
    column: Any,
  ) -> None:
    """Store the block's `index`-th sub-tile, clipped at the edges of `out`.

    Args:
      index: Which; a block's are stored in order, all of them.
      sub_tile: (its rows, its columns in the block) -> its elements.
      out: Global reference [rows, columns].
      row: Row of `out` where the block begins; may be past its edge.
      column: Column of `out` where the block begins; the same.
    """
    num_slots, rows, columns = self.slots.shape
    # free once the store issued num_slots sub-tiles ago has read it; the ring
    # starts over with each block, whose number of sub-tiles may be odd
    plgpu.wait_smem_to_gmem(0 if index == 0 else num_slots - 1, wait_read_only=True)
    slot = index % num_slots
    i, j = self.sub_tiles[index]
    self.slots[slot] = sub_tile(i, j)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(
      self.slots.at[slot],
      out.at[pl.ds(row + i.start, rows), pl.ds(column + j.start, columns)],
    )


def finish_stores() -> None:
  """Wait until all stores have read shared memory, which must outlive them."""
  plgpu.wait_smem_to_gmem(0, wait_read_only=True)
