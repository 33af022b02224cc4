"""The transpose of matrices as a plain `pl.pallas_call` with explicit BlockSpecs.

A program reads a block by rows and stores its transpose by rows, so that both
sides of device memory see whole runs; between them the block passes through
shared memory, laid out by Triton. The kernel moves bits: elements come as
unsigned integers of their size.

Runs interpreted anywhere, and compiles for NVIDIA GPUs through Triton.
"""

import functools
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu_triton

from hw_profiles import RowConfig
from hw_profiles.rowwise.block_threads import warps
from pallas_kernels import sharding
from pallas_kernels.rowwise.blocks import Window, as_kernel, left, unravel


def _body(
  program: Any,
  in_ref: Any,
  out_ref: Any,
  *,
  shape: tuple[int, int],
  block: tuple[int, int],
  tiles: Any,
) -> None:
  """One block."""
  _, row, column = tiles(program)
  rows_left, columns_left = (
    left(extent, index * size, size)
    for extent, index, size in zip(shape, (row, column), block, strict=True)
  )
  x = Window(*block, rows_left=rows_left, columns_left=columns_left).load(in_ref)
  Window(*block[::-1], rows_left=columns_left, columns_left=rows_left).store(out_ref, x.T)


def run(x: jax.Array, *, config: RowConfig, interpret: bool) -> jax.Array:
  """[batch, columns, rows] of x [batch, rows, columns], sizes at least 1."""
  batch, rows, columns = x.shape
  block = config.block_rows, config.block_cols
  across = pl.cdiv(columns, block[1])
  down = pl.cdiv(rows, block[0])

  def tiles(program: Any) -> tuple[Any, ...]:
    return unravel(program, batch, down, across)

  def transposed(program: Any) -> tuple[Any, ...]:
    group, row, column = tiles(program)
    return group, column, row

  return pl.pallas_call(
    as_kernel(
      functools.partial(_body, shape=(rows, columns), block=block, tiles=tiles), interpret=interpret
    ),
    out_shape=sharding.out_struct((batch, columns, rows), x.dtype, x),
    grid=(batch * down * across,),
    in_specs=[pl.BlockSpec((None, *block), tiles)],
    out_specs=pl.BlockSpec((None, *block[::-1]), transposed),
    compiler_params=None
    if interpret
    else plgpu_triton.CompilerParams(num_warps=warps(config), num_stages=1),
    interpret=interpret,
    name="transpose_portable",
  )(x)
