"""How matrices lie in shared memory for TMA and wgmma, and what global arrays must be for it.

TMA copies boxes of up to five dimensions from global memory; wgmma reads
operands in 8-row tiles one swizzle span wide. Mosaic describes an operand to TMA
in such tiles, so the global array must be made of whole ones (or be smaller
than one), unless it is copied otherwise (`tile_copy`); its rows must be a multiple
of 16 B apart in any case. An array that is not is padded with zeros first.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

# TMA: global strides are multiples of 16 B (CUDA driver API, cuTensorMapEncodeTiled)
TMA_PITCH_BYTES = 16
# and a copy has at most this many elements along each dimension (the same)
LARGEST_BOX = 256
# wgmma reads operands in tiles of so many rows (PTX ISA, wgmma's core matrices)
TILE_ROWS = 8


def tiled(swizzle: int, dtype: Any) -> tuple[Any, Any]:
  """The shared-memory layout wgmma reads: 8 rows by one swizzle span, swizzled."""
  return (
    plgpu.TilingTransform((TILE_ROWS, swizzle // jnp.dtype(dtype).itemsize)),
    plgpu.SwizzleTransform(swizzle),
  )


def tma_multiples(
  rows: int, columns: int, swizzle_columns: int, *, itemsize: int
) -> tuple[int, int]:
  """What the rows and columns of an operand must be multiples of.

  Mosaic describes an operand to TMA as 8-row, one-swizzle-span tiles, which
  must divide it, except that a dimension of at most one tile is taken whole.
  The row pitch must be 16 B even then.
  """
  pitch = TMA_PITCH_BYTES // itemsize
  return (
    TILE_ROWS if rows > TILE_ROWS else 1,
    swizzle_columns if columns > swizzle_columns else pitch,
  )


def vector_copies(size: int) -> list[tuple[int, int]]:
  """(start, elements) of the copies that a vector of `size` elements takes."""
  return [(start, min(LARGEST_BOX, size - start)) for start in range(0, size, LARGEST_BOX)]


def padded(array: jax.Array, *multiples: int) -> jax.Array:
  """`array` with its last dimensions padded with zeros to the given multiples."""
  sizes = array.shape[-len(multiples) :]
  wanted = rounded_up(sizes, multiples)
  if wanted == sizes:
    return array
  missing = [(0, want - have) for want, have in zip(wanted, sizes, strict=True)]
  return jnp.pad(array, [(0, 0)] * (array.ndim - len(multiples)) + missing)


def rounded_up(sizes: tuple[int, ...], multiples: tuple[int, ...]) -> tuple[int, ...]:
  """Each size, up to the next multiple."""
  return tuple(size + -size % multiple for size, multiple in zip(sizes, multiples, strict=True))
