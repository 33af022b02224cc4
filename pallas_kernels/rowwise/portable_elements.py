"""Elementwise ops as a plain `pl.pallas_call`: a program for each block.

An op without operands that have one value a row is a sequence of elements to
the kernel, whatever the shape: a program takes `block_rows`·`block_cols`
neighbours, so that rows of any length are read in whole 16-byte loads and only
the last block is masked.

Runs interpreted anywhere, and compiles for NVIDIA GPUs through Triton.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu_triton

from hw_profiles import RowConfig
from hw_profiles.rowwise.block_threads import threads, warps
from pallas_kernels import sharding
from pallas_kernels.portable_support import LARGEST_OFFSET
from pallas_kernels.rowwise import arithmetic
from pallas_kernels.rowwise.blocks import (
  Window,
  as_kernel,
  group_index,
  left,
  unravel,
)
from pallas_kernels.rowwise.specs import ElementSpec

# 16 one-byte elements are a 16-byte access: an end that is a multiple of it
# narrows none under its mask, and there is none to narrow where a thread has one
# element: both ways of 8 x 111 with gradients take an H200 1.80 us, one 1.70.
_MASKED_FREELY = 16


def _body(
  program: Any,
  *refs: Any,
  spec: ElementSpec,
  inputs: int,
  scalars: int,
  shape: tuple[int, int, int],
  block: tuple[int, int],
  num_threads: int,
  last_first: bool,
  interpreted: bool,
) -> None:
  """One block, whose elements so many threads share."""
  (groups, rows, columns), (block_rows, block_cols) = shape, block
  tiles = pl.cdiv(rows, block_rows), pl.cdiv(columns, block_cols)
  _, row_block, column_block = _place(program, groups, tiles, last_first=last_first)
  row, column = row_block * block_rows, column_block * block_cols

  def compute(rows_left: Any, columns_left: Any) -> None:
    window = Window(block_rows, block_cols, rows_left=rows_left, columns_left=columns_left)
    outs = spec.apply(
      tuple(window.load(ref) for ref in refs[:inputs]),
      tuple(window.load_per_row(ref) for ref in refs[inputs : inputs + scalars]),
      arithmetic.in_kernel(interpreted=interpreted),
    )
    for ref, out in zip(refs[inputs + scalars :], outs, strict=True):
      window.store(ref, out)

  rows_left, columns_left = left(rows, row, block_rows), left(columns, column, block_cols)
  freely = columns % _MASKED_FREELY == 0 or block_rows * block_cols <= num_threads
  if columns_left is None or freely or tiles[1] == 1 or interpreted:
    compute(rows_left, columns_left)
    return
  # the mask of an end that is no multiple would make every block's accesses narrow
  whole = column_block < columns // block_cols
  pl.when(whole)(lambda: compute(rows_left, None))
  pl.when(~whole)(lambda: compute(rows_left, columns_left))


def _place(program: Any, groups: int, tiles: tuple[int, int], *, last_first: bool) -> Any:
  """Group, row block and column block of a program."""
  if last_first:
    program = groups * tiles[0] * tiles[1] - 1 - program
  return unravel(program, groups, *tiles)


def run(
  spec: ElementSpec,
  matrices: tuple[jax.Array, ...],
  per_row: tuple[jax.Array, ...],
  *,
  config: RowConfig,
  interpret: bool,
  last_first: bool = False,
) -> tuple[jax.Array, ...]:
  """`spec` of matrices [groups, rows, columns].

  Args:
    spec: What to compute.
    matrices: All of one shape, sizes at least 1.
    per_row: Operands of [groups or 1, rows or 1, 1].
    config: The block; to compile, of powers of two.
    interpret: True runs it with the Pallas interpreter, on any device.
    last_first: Whether the first programs take the last blocks. What ran before has read
      or written those last, so that L2 may still have them: of an H200 swiglu and behind it
      its gradients of 65536 x 111 take 26.6 us so, else 29.9; of 1024 x 12288, with L2 cold
      before both, 44.9 and 46.8.

  Returns:
    Matrices in the spec's dtypes.
  """
  groups, rows, columns = matrices[0].shape
  if all(x.shape[1] == 1 for x in per_row):
    merged = 1 if all(x.shape[0] == 1 for x in per_row) else groups
    elements = groups * rows * columns // merged
    if elements < LARGEST_OFFSET:
      flat = tuple(x.reshape(merged, 1, elements) for x in matrices)
      block = RowConfig(
        1,
        config.block_rows * config.block_cols,
        config.num_stages,
        num_warps=config.num_warps,
      )
      outs = _call(spec, flat, per_row, config=block, interpret=interpret, last_first=last_first)
      return tuple(out.reshape(groups, rows, columns) for out in outs)
  return _call(spec, matrices, per_row, config=config, interpret=interpret, last_first=last_first)


def _call(
  spec: ElementSpec,
  matrices: tuple[jax.Array, ...],
  per_row: tuple[jax.Array, ...],
  *,
  config: RowConfig,
  interpret: bool,
  last_first: bool,
) -> tuple[jax.Array, ...]:
  """The `pallas_call`."""
  groups, rows, columns = matrices[0].shape
  block_rows, block_cols = config.block_rows, config.block_cols
  tiles = pl.cdiv(rows, block_rows), pl.cdiv(columns, block_cols)

  def matrix_index(program: Any) -> tuple[Any, ...]:
    return _place(program, groups, tiles, last_first=last_first)

  matrix = pl.BlockSpec((None, block_rows, block_cols), matrix_index)

  def number(array: jax.Array) -> pl.BlockSpec:
    shared_by_rows = array.shape[1] == 1

    def index(program: Any) -> tuple[Any, ...]:
      group, row, _ = matrix_index(program)
      return group_index(array, group), 0 if shared_by_rows else row, 0

    return pl.BlockSpec((None, 1 if shared_by_rows else block_rows, 1), index)

  return tuple(
    pl.pallas_call(
      as_kernel(
        functools.partial(
          _body,
          spec=spec,
          inputs=len(matrices),
          scalars=len(per_row),
          shape=(groups, rows, columns),
          block=(block_rows, block_cols),
          num_threads=threads(config),
          last_first=last_first,
          interpreted=interpret,
        ),
        interpret=interpret,
      ),
      out_shape=[
        sharding.out_struct(matrices[0].shape, jnp.dtype(dtype), matrices[0])
        for dtype in spec.out_dtypes
      ],
      grid=(groups * tiles[0] * tiles[1],),
      in_specs=[*(matrix for _ in matrices), *(number(x) for x in per_row)],
      out_specs=[matrix for _ in spec.out_dtypes],
      compiler_params=None
      if interpret
      else plgpu_triton.CompilerParams(num_warps=warps(config), num_stages=1),
      interpret=interpret,
      name=f"{type(spec).__name__.lower()}_portable",
    )(*matrices, *per_row)
  )
