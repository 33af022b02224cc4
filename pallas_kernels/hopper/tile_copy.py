"""How TMA fills a stage of shared memory with a tile of a matrix, as wgmma reads it.

A stage holds its tile in tiles of 8 rows by one swizzle span, row after row of
them. Described to TMA in the same tiles the matrix is copied by one instruction,
but then it must be made of whole ones. Two descriptions take any number of rows,
past which TMA fills with zeros:

    rows      row by row; where a tile is one span wide, that is how its stage lies
    eights    a matrix [rows, spans, span], of which one instruction copies 8 rows,
              span by span: a row of the stage's tiles
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import compat
from pallas_kernels.hopper.tma import (
  LARGEST_BOX,
  TILE_ROWS,
  TMA_PITCH_BYTES,
  padded,
  rounded_up,
  tiled,
  tma_multiples,
)


@dataclasses.dataclass(frozen=True)
class TileCopy:
  """Copies of one operand's tiles into their stages.

  Attributes:
    by: What TMA is told the matrix is made of.
    rows, columns: Of a tile, as stored.
    swizzle_bytes: Of the stage.
    dtype: Of an element.
    multiples: What the matrix's rows and columns must be multiples of.
  """

  by: Literal["tiles", "rows", "eights"]
  rows: int
  columns: int
  swizzle_bytes: int
  dtype: jnp.dtype
  multiples: tuple[int, int]

  @staticmethod
  def of(
    shape: tuple[int, int],
    *,
    rows: int,
    columns: int,
    swizzle_bytes: int,
    dtype: Any,
    blocks: int = 1,
    interpreted: bool = False,
  ) -> "TileCopy":
    """The copies that need least of a matrix.

    Args:
      shape: Its rows and columns, as stored.
      rows, columns: Of a tile, as stored.
      swizzle_bytes: What wgmma reads it in; divides a row of the tile.
      dtype: Of an element.
      blocks: Of a cluster that share a copy, of which each issues as much.
      interpreted: Whether it is for the interpreter, where a stage lies in rows.
    """
    dtype = jnp.dtype(dtype)
    span = swizzle_bytes // dtype.itemsize
    by: Literal["tiles", "rows", "eights"] = "tiles"
    multiples = tma_multiples(*shape, span, itemsize=dtype.itemsize)
    if rounded_up(shape, multiples) != shape and not interpreted and compat.SWIZZLES_UNTILED:
      # one instruction a stage is better than one for 8 rows
      if columns == span and rows <= LARGEST_BOX:
        by, multiples = "rows", (1, TMA_PITCH_BYTES // dtype.itemsize)
      elif shape[1] % span == 0 and (columns // span) % blocks == 0:
        # Pallas cuts the outermost dimension of a box: three spans are nothing to two blocks,
        # and of one it would cut rows, which no GPU has been seen to copy right
        by, multiples = "eights", (1, span)
    return TileCopy(by, rows, columns, swizzle_bytes, dtype, multiples)

  @property
  def _span(self) -> int:
    """Elements of a swizzle span."""
    return self.swizzle_bytes // self.dtype.itemsize

  def count(self, rows: int) -> int:
    """Instructions that copy so many rows of a tile."""
    return rows // TILE_ROWS if self.by == "eights" else 1

  def described(self, array: jax.Array) -> jax.Array:
    """An operand [batch, rows, columns] as the kernel takes it, padded where it must be."""
    array = padded(array, *self.multiples)
    if self.by != "eights":
      return array
    return array.reshape(*array.shape[:-1], array.shape[-1] // self._span, self._span)

  def scratch(self, *leading: int, transforms: tuple[Any, ...]) -> Any:
    """Scratch type of stages, and where TMA does not see them as wgmma does, of both views.

    Args:
      leading: Sizes before a tile's.
      transforms: As wgmma reads it.
    """
    stages = plgpu.SMEM((*leading, self.rows, self.columns), self.dtype, transforms=transforms)
    if self.by == "tiles":
      return stages
    shape: tuple[int, ...] = (self.rows, self.columns)
    if self.by == "eights":
      shape = (self.rows // TILE_ROWS, self.columns // self._span, TILE_ROWS, self._span)
    untiled = tiled(self.swizzle_bytes, self.dtype)[1:]
    return plgpu.RefUnion(plgpu.SMEM((*leading, *shape), self.dtype, transforms=untiled), stages)

  def views(self, scratch: Any) -> tuple[Any, Any]:
    """(as TMA fills it, as wgmma reads it) of what a kernel was given for `scratch`."""
    return (scratch, scratch) if self.by == "tiles" else scratch

  def start(
    self,
    source: Any,
    target: Any,
    arrived: Any,
    *,
    row: Any,
    column: Any,
    rows: int,
    collective_axes: Any,
  ) -> None:
    """Start the copies of a tile.

    Args:
      source: One matrix, as `described`.
      target: One tile's shared memory, as TMA fills it.
      arrived: The barrier at which each of `count(rows)` copies arrives.
      row, column: Where the tile begins.
      rows: Rows to copy, the first of the tile, in eights; the others keep what they hold.
      collective_axes: Of the blocks of a cluster that share the copy; None: no others.
    """
    copy: Callable[..., None] = plgpu.copy_gmem_to_smem
    if self.by != "eights":
      window = source.at[pl.ds(row, rows), pl.ds(column, self.columns)]
      target = target if rows == self.rows else target.at[pl.ds(0, rows)]
      copy(window, target, arrived, collective_axes=collective_axes)
      return
    spans = pl.ds(lax.div(column, jnp.int32(self._span)), self.columns // self._span)

    # A warpgroup meets at a barrier before each of the copies: XᵀdY of 7239 x 4096 and 12288 took
    # 1050 us of it on an H200, and takes 916 of one warp; of 7240 rows, in one copy, 909.
    @plgpu.warp_map
    def _copy(warp: jax.Array) -> None:
      @pl.when(warp == 0)
      def _by_one_warp() -> None:
        for eight in range(rows // TILE_ROWS):
          copy(
            source.at[pl.ds(row + eight * TILE_ROWS, TILE_ROWS), spans],
            compat.permuted_ref(target.at[eight], (1, 0, 2)),
            arrived,
            collective_axes=collective_axes,
          )
