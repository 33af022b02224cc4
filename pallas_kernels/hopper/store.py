"""The way of a result from registers to global memory: staging slots and TMA.

A consumer warpgroup's block leaves in sub-tiles of 64 rows. Each is written to
one of two slots in shared memory and stored from there by TMA, while the next
is being computed into the other.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


def store_block(
  block: jax.Array,
  *,
  finish: Callable[[jax.Array, int], jax.Array],
  slots: Any,
  out: Any,
  row: Any,
  column: Any,
) -> None:
  """Finish and store a block, clipped at the edges of `out`.

  Args:
    block: [rows, columns] in registers; rows a multiple of the slots' rows,
      columns of their columns.
    finish: (sub-tile, its first column in the block) -> what is stored.
    slots: Shared-memory reference [number of slots, rows, columns], this
      warpgroup's own.
    out: Global reference [rows, columns].
    row, column: Where the block begins in `out`; may be past its edge.
  """
  num_slots, rows, columns = slots.shape
  # the ring of slots starts over with each block; the work since the last one
  # has long given its stores time to read their slots
  plgpu.wait_smem_to_gmem(0, wait_read_only=True)
  slot = 0
  for i in range(0, block.shape[0], rows):
    for j in range(0, block.shape[1], columns):
      # free once the store issued num_slots sub-tiles ago has read it
      plgpu.wait_smem_to_gmem(num_slots - 1, wait_read_only=True)
      slots[slot] = finish(block[i : i + rows, j : j + columns], j)
      plgpu.commit_smem()
      plgpu.copy_smem_to_gmem(
        slots.at[slot], out.at[pl.ds(row + i, rows), pl.ds(column + j, columns)]
      )
      slot = (slot + 1) % num_slots


def finish_stores() -> None:
  """Wait until all stores have read shared memory, which must outlive them."""
  plgpu.wait_smem_to_gmem(0, wait_read_only=True)
