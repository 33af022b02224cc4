"""The gradient of rms_norm as plain `pl.pallas_call`s with explicit BlockSpecs.

Rows that a block holds: one launch reads x and d_y once, short rows a block while
the one before is computed, and writes d_x and, for each program, the sum of
d_y·n over its rows; a second adds these partial sums up, in an order that is
fixed by their number alone. Longer rows: a launch for the two sums of each row,
then the same two, column block by column block.

Runs interpreted anywhere, and compiles for NVIDIA GPUs through Triton.
"""

import dataclasses
import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu_triton

from hw_profiles import RowConfig
from pallas_kernels import sharding
from pallas_kernels.dtypes import round_once
from pallas_kernels.rowwise import inverse_rms
from pallas_kernels.rowwise.arithmetic import Arithmetic, in_kernel
from pallas_kernels.rowwise.blocks import Window, as_kernel, group_index, left, unravel
from pallas_kernels.rowwise.inverse_rms import InverseRms, SquareSum
from pallas_kernels.rowwise.rms_gradient import RmsNormGradient
from pallas_kernels.rowwise.rms_gradient_tiles import Tiles, make_tiles, merging_block, warps_of
from pallas_kernels.rowwise.specs import wide


def _mean(products: jax.Array, columns: int) -> jax.Array:
  return jnp.sum(products, axis=-1, keepdims=True) * (1.0 / columns)


class _Program:
  """What one program of the main kernel loads, computes and stores, block by block of its rows."""

  def __init__(
    self,
    program: Any,
    refs: tuple[Any, ...],
    *,
    spec: RmsNormGradient,
    tiles: Tiles,
    exact: Arithmetic,
    has_d_sum: bool,
    has_numbers: bool,
  ) -> None:
    taken = iter(refs)
    self.x, self.d_out, weight = (next(taken) for _ in range(3))
    self.d_sum = next(taken) if has_d_sum else None
    self.numbers = tuple(next(taken) for _ in range(3)) if has_numbers else ()
    self.d_x, self.partial = taken
    self.spec, self.tiles, self.exact = spec, tiles, exact
    _, chunk, column = tiles.place(program)
    self.first_row = chunk * tiles.chunk
    self.pieces = tiles.pieces(column)
    self.weights = [piece.load(weight) for piece in self.pieces]

  def windows(self, step: Any) -> list[Window]:
    """The pieces of a block of rows; of one that the program does not have: no rows."""
    tiles = self.tiles
    start = step * tiles.block_rows
    rows_left = None
    if tiles.loads_ahead or tiles.rows % tiles.block_rows or tiles.rows % tiles.chunk:
      rows_left = jnp.minimum(tiles.rows - self.first_row, tiles.chunk) - start
    return [
      dataclasses.replace(piece, first_row=start, rows_left=rows_left) for piece in self.pieces
    ]

  def load(self, step: Any) -> tuple[jax.Array, ...]:
    """x, then d_y, as they are stored."""
    windows = self.windows(step)
    return tuple(window.load(ref) for ref in (self.x, self.d_out) for window in windows)

  def add_block(
    self, step: Any, loaded: tuple[jax.Array, ...], totals: tuple[jax.Array, ...]
  ) -> tuple[jax.Array, ...]:
    """Stores d_x of a block; the totals of d_y·n with it."""
    spec, columns = self.spec, self.tiles.columns
    windows = self.windows(step)
    xs, d_outs = loaded[: len(windows)], loaded[len(windows) :]
    if self.numbers:
      power, factor, mean = (windows[0].load_per_row(ref) for ref in self.numbers)
      inverse = InverseRms(power, factor)
    else:
      squares = spec.squares([wide(x) for x in xs], self.exact)
      inverse = spec.inverse_of(squares, columns=columns)
      if windows[0].rows_left is not None:
        # of rows that are not there: their 0 times infinity, where eps = 0, is no 0
        inside = lax.broadcasted_iota(jnp.int32, (windows[0].rows, 1), 0) < windows[0].rows_left
        inverse = inverse._replace(factor=jnp.where(inside, inverse.factor, 0.0))
      xs = tuple(self.exact.after(x, inverse.factor) for x in xs)
      products = [
        spec.scaled(d_out, weight) * inverse.normalise(wide(x))
        for x, d_out, weight in zip(xs, d_outs, self.weights, strict=True)
      ]
      mean = _mean(functools.reduce(operator.add, products), columns)
      xs, d_outs = (tuple(self.exact.after(x, mean) for x in these) for these in (xs, d_outs))
    found = []
    for window, x, d_out, weight, total in zip(
      windows, xs, d_outs, self.weights, totals, strict=True
    ):
      normalised = inverse.normalise(wide(x))
      d_sum = None if self.d_sum is None else window.load(self.d_sum)
      d_x = spec.d_x(spec.scaled(d_out, weight), normalised, mean, inverse, d_sum)
      window.store(self.d_x, d_x)
      found.append(total + wide(d_out) * normalised)
    return tuple(found)

  def run(self) -> None:
    """All blocks, and the partial sum of d_weight."""
    steps = self.tiles.steps
    totals = tuple(jnp.zeros((piece.rows, piece.columns), jnp.float32) for piece in self.pieces)

    def step_ahead(step: Any, carry: Any) -> Any:
      loaded, totals = carry
      following = self.load(step + 1)
      return following, self.add_block(step, loaded, totals)

    def step_of(step: Any, totals: Any) -> Any:
      return self.add_block(step, self.load(step), totals)

    first, last = jnp.int32(0), jnp.int32(steps)
    if self.tiles.loads_ahead:
      _, totals = lax.fori_loop(first, last, step_ahead, (self.load(first), totals))
    else:
      totals = lax.fori_loop(first, last, step_of, totals)
    for piece, total in zip(self.pieces, totals, strict=True):
      partial = jnp.sum(total, axis=0, keepdims=True)
      dataclasses.replace(piece, rows=1).store(
        self.partial, round_once(partial, self.partial.dtype)
      )


def _main_body(program: Any, *refs: Any, **parts: Any) -> None:
  """d_x of a program's rows, or of a column block of them, and the partial sum of d_weight."""
  _Program(program, refs, **parts).run()


def _numbers_body(
  program: Any,
  x_ref: Any,
  d_out_ref: Any,
  weight_ref: Any,
  *number_refs: Any,
  spec: RmsNormGradient,
  tiles: Tiles,
  exact: Arithmetic,
) -> None:
  """Power, factor and mean(g·n) of a block of rows, walked twice."""
  _, row_block = unravel(program, tiles.groups, tiles.row_blocks)
  rows_left = left(tiles.rows, row_block * tiles.block_rows, tiles.block_rows)
  block = Window(tiles.block_rows, tiles.block_cols, rows_left=rows_left)
  steps = tiles.column_blocks

  def window(step: Any) -> Window:
    start = step * tiles.block_cols
    limit = tiles.columns - start if tiles.columns % tiles.block_cols else None
    return dataclasses.replace(block, first_column=start, columns_left=limit)

  def squares(step: Any) -> SquareSum:
    return spec.squares((wide(window(step).load(x_ref)),), exact)

  def add_squares(step: Any, carry: SquareSum) -> SquareSum:
    return inverse_rms.merge(carry, squares(step))

  found = lax.fori_loop(jnp.int32(1), jnp.int32(steps), add_squares, squares(jnp.int32(0)))
  inverse = spec.inverse_of(found, columns=tiles.columns)

  def products(step: Any) -> jax.Array:
    here = window(step)
    g = spec.scaled(here.load(d_out_ref), here.load(weight_ref))
    return _mean(g * inverse.normalise(wide(here.load(x_ref))), tiles.columns)

  mean = lax.fori_loop(
    jnp.int32(1),
    jnp.int32(steps),
    lambda step, carry: carry + products(step),
    products(jnp.int32(0)),
  )
  for ref, number in zip(number_refs, (*inverse, mean), strict=True):
    block.store_per_row(ref, number)


def _merge_body(
  program: Any,
  partial_ref: Any,
  out_ref: Any,
  *,
  groups: int,
  programs: int,
  columns: int,
  block: RowConfig,
) -> None:
  """The partial sums of a column block, blocks of rows one after another."""
  _, column = unravel(program, groups, pl.cdiv(columns, block.block_cols))
  columns_left = left(columns, column * block.block_cols, block.block_cols)

  def part(step: Any) -> jax.Array:
    first = step * block.block_rows
    window = Window(
      block.block_rows,
      block.block_cols,
      first_row=first,
      rows_left=left(programs, first, block.block_rows),
      columns_left=columns_left,
    )
    return jnp.sum(window.load(partial_ref), axis=0, keepdims=True)

  total = part(jnp.int32(0))
  steps = pl.cdiv(programs, block.block_rows)
  if steps > 1:
    total = lax.fori_loop(
      jnp.int32(1), jnp.int32(steps), lambda step, carry: carry + part(step), total
    )
  out = Window(1, block.block_cols, columns_left=columns_left)
  out.store(out_ref, round_once(total, out_ref.dtype))


def run(
  spec: RmsNormGradient,
  x: jax.Array,
  weight: jax.Array,
  d_out: jax.Array,
  d_sum: jax.Array | None,
  *,
  config: RowConfig,
  cores: int,
  interpret: bool,
) -> tuple[jax.Array, jax.Array]:
  """Both gradients.

  Args:
    spec: What to compute.
    x: [groups, rows, columns], sizes at least 1.
    weight: [groups or 1, 1, columns].
    d_out: Of the shape of x.
    d_sum: Gradient of x + residual as a result, of the shape of x, or None.
    config: The block.
    cores: Streaming multiprocessors, which the rows are dealt out to.
    interpret: True runs it with the Pallas interpreter, on any device.

  Returns:
    d_x [groups, rows, columns], and d_weight [groups, 1, columns].
  """
  tiles = make_tiles(x.shape, config, cores)
  numbers: tuple[jax.Array, ...] = ()
  if tiles.column_blocks > 1:
    numbers = _numbers(spec, x, weight, d_out, tiles=tiles, config=config, interpret=interpret)
  merged = tiles.programs == 1
  d_x, partial = main(
    spec,
    (x, d_out, weight, *(() if d_sum is None else (d_sum,)), *numbers),
    has_d_sum=d_sum is not None,
    tiles=tiles,
    config=config,
    partial_dtype=spec.weight_dtype if merged else jnp.float32,
    interpret=interpret,
  )
  if merged:
    return d_x, partial
  return d_x, merge(partial, spec.weight_dtype, cores=cores, interpret=interpret)


def params(config: RowConfig, *, interpret: bool) -> Any:
  """What a block of this config is compiled with; None where it is not."""
  return (
    None
    if interpret
    else plgpu_triton.CompilerParams(num_warps=warps_of(config), num_stages=config.num_stages)
  )


def _numbers(
  spec: RmsNormGradient,
  x: jax.Array,
  weight: jax.Array,
  d_out: jax.Array,
  *,
  tiles: Tiles,
  config: RowConfig,
  interpret: bool,
) -> tuple[jax.Array, ...]:
  """Power, factor and mean of every row, float32 [groups, rows, 1] each."""
  width = tiles.column_blocks * tiles.block_cols

  def index(program: Any) -> tuple[Any, ...]:
    return (*unravel(program, tiles.groups, tiles.row_blocks), 0)

  def weight_index(program: Any) -> tuple[Any, ...]:
    group, _, _ = index(program)
    return group_index(weight, group), 0, 0

  matrix = pl.BlockSpec((None, tiles.block_rows, width), index)
  return tuple(
    pl.pallas_call(
      as_kernel(
        functools.partial(
          _numbers_body, spec=spec, tiles=tiles, exact=in_kernel(interpreted=interpret)
        ),
        interpret=interpret,
      ),
      out_shape=[sharding.out_struct((*x.shape[:2], 1), jnp.dtype(jnp.float32), x)] * 3,
      grid=(tiles.groups * tiles.row_blocks,),
      in_specs=[matrix, matrix, pl.BlockSpec((None, 1, width), weight_index)],
      out_specs=[pl.BlockSpec((None, tiles.block_rows, 1), index)] * 3,
      compiler_params=params(config, interpret=interpret),
      interpret=interpret,
      name="rmsnorm_gradient_numbers_portable",
    )(x, d_out, weight)
  )


def main(
  spec: RmsNormGradient,
  operands: tuple[jax.Array, ...],
  *,
  has_d_sum: bool,
  tiles: Tiles,
  config: RowConfig,
  partial_dtype: Any,
  interpret: bool,
) -> tuple[jax.Array, jax.Array]:
  """d_x, and the partial sums of d_weight [groups, programs, columns].

  Args:
    spec: What to compute.
    operands: x, d_y, weight, d_sum where there is one, and of blocks that do not hold
      whole rows power, factor and mean(g·n) of every row, [groups, rows, 1] each.
    has_d_sum: Whether there is one.
    tiles: How the rows are dealt out.
    config: The block.
    partial_dtype: Of the partial sums.
    interpret: As in `run`.
  """
  x, _, weight = operands[:3]
  matrix = pl.BlockSpec((None, tiles.chunk, tiles.block_cols), tiles.place)

  def weight_index(program: Any) -> tuple[Any, ...]:
    group, _, column = tiles.place(program)
    return group_index(weight, group), 0, column

  weights = pl.BlockSpec((None, 1, tiles.block_cols), weight_index)
  has_numbers = len(operands) > 3 + has_d_sum
  number = pl.BlockSpec((None, tiles.chunk, 1), lambda program: (*tiles.place(program)[:2], 0))
  d_x, partial = pl.pallas_call(
    as_kernel(
      functools.partial(
        _main_body,
        spec=spec,
        tiles=tiles,
        exact=in_kernel(interpreted=interpret),
        has_d_sum=has_d_sum,
        has_numbers=has_numbers,
      ),
      interpret=interpret,
    ),
    out_shape=[
      sharding.out_struct(x.shape, spec.dtype, x),
      sharding.out_struct(
        (tiles.groups, tiles.programs, tiles.columns), jnp.dtype(partial_dtype), x
      ),
    ],
    grid=tiles.grid,
    in_specs=[
      matrix,
      matrix,
      weights,
      *([matrix] if has_d_sum else []),
      *([number] * 3 if has_numbers else []),
    ],
    out_specs=[matrix, pl.BlockSpec((None, 1, tiles.block_cols), tiles.place)],
    compiler_params=params(config, interpret=interpret),
    interpret=interpret,
    name="rmsnorm_gradient_portable",
  )(*operands)
  return d_x, partial


def merge(
  partial: jax.Array, dtype: jnp.dtype, *, cores: int, interpret: bool, columns: int | None = None
) -> jax.Array:
  """The partial sums [groups, programs, columns or more], added up: [groups, 1, columns]."""
  groups, programs, stored = partial.shape
  columns = stored if columns is None else columns
  block = merging_block(programs=programs, columns=columns, cores=cores)
  width, blocks = block.block_cols, pl.cdiv(columns, block.block_cols)
  height = pl.cdiv(programs, block.block_rows) * block.block_rows

  def index(program: Any) -> tuple[Any, ...]:
    group, column = unravel(program, groups, blocks)
    return group, 0, column

  return pl.pallas_call(
    as_kernel(
      functools.partial(
        _merge_body, groups=groups, programs=programs, columns=columns, block=block
      ),
      interpret=interpret,
    ),
    out_shape=sharding.out_struct((groups, 1, columns), dtype, partial),
    grid=(groups * blocks,),
    in_specs=[pl.BlockSpec((None, height, width), index)],
    out_specs=pl.BlockSpec((None, 1, width), index),
    compiler_params=params(block, interpret=interpret),
    interpret=interpret,
    name="rmsnorm_gradient_merge_portable",
  )(partial)
