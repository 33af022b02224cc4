"""The gradient of rms_norm as plain `pl.pallas_call`s with explicit BlockSpecs.

Rows that a block holds: one launch reads x and d_y once, writes d_x and, for
each program, the sum of d_y·n over its rows; a second adds these partial sums
up, in an order that is fixed by their number alone. Longer rows: a launch for
the two sums of each row, then the same two, column block by column block.

Runs interpreted anywhere, and compiles for NVIDIA GPUs through Triton.
"""

import dataclasses
import functools
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
from pallas_kernels.rowwise.specs import wide

# Programs for each core, at most: enough that loads of one hide the reductions
# of another, and few partial sums to write and add up.
_PROGRAMS_PER_CORE = 2
# The longest row in registers: x, d_y, weight and the partial sum, 16 elements
# of each for 1024 threads.
_LONGEST_KEPT = 16384
_WALKED_COLUMNS = 2048
_ELEMENTS_PER_WARP = 512
_MOST_WARPS = 16
# A merging program's columns are 128 B of float32; it takes so many partial
# sums at once.
_MERGED_COLUMNS = 32
_MERGED_ROWS = 256
_MERGING_WARPS = 8


def default_config(*, rows: int, columns: int) -> RowConfig:
  """Whole rows where they fit, several of short ones."""
  block_cols = pl.next_power_of_2(columns)
  if block_cols > _LONGEST_KEPT:
    return RowConfig(1, _WALKED_COLUMNS, 1, num_warps=4)
  block_rows = min(max(1, 2048 // block_cols), pl.next_power_of_2(rows))
  return RowConfig(block_rows, block_cols, 1, num_warps=_warps(block_rows * block_cols))


def _warps(elements: int) -> int:
  wanted = pl.next_power_of_2(pl.cdiv(elements, _ELEMENTS_PER_WARP))
  # 16 elements a thread of the longest rows
  return min(wanted, _MOST_WARPS if elements < _LONGEST_KEPT else 32)


@dataclasses.dataclass(frozen=True)
class _Tiles:
  """How the rows are dealt out.

  Attributes:
    groups: Independent matrices.
    rows: Of each.
    columns: Of each.
    block_rows: Rows of a block.
    block_cols: Columns of a block.
    programs: Programs for each group and column block, each with consecutive rows.
  """

  groups: int
  rows: int
  columns: int
  block_rows: int
  block_cols: int
  programs: int

  @property
  def row_blocks(self) -> int:
    return pl.cdiv(self.rows, self.block_rows)

  @property
  def steps(self) -> int:
    """Row blocks of a program."""
    return pl.cdiv(self.row_blocks, self.programs)

  @property
  def column_blocks(self) -> int:
    return pl.cdiv(self.columns, self.block_cols)

  @property
  def chunk(self) -> int:
    """Rows of a program."""
    return self.steps * self.block_rows

  @property
  def grid(self) -> tuple[int]:
    return (self.groups * self.programs * self.column_blocks,)

  def place(self, program: Any) -> tuple[Any, Any, Any]:
    """Group, chunk of rows and column block."""
    group, chunk, column = unravel(program, self.groups, self.programs, self.column_blocks)
    return group, chunk, column


def _make_tiles(shape: tuple[int, ...], config: RowConfig, cores: int) -> _Tiles:
  groups, rows, columns = shape
  blocks = pl.cdiv(rows, config.block_rows)
  column_blocks = pl.cdiv(columns, config.block_cols)
  wanted = max(1, _PROGRAMS_PER_CORE * cores // (groups * column_blocks))
  steps = pl.cdiv(blocks, min(blocks, wanted))
  # so that no program is without rows
  programs = pl.cdiv(blocks, steps)
  return _Tiles(groups, rows, columns, config.block_rows, config.block_cols, programs)


def _mean(products: jax.Array, columns: int) -> jax.Array:
  return jnp.sum(products, axis=-1, keepdims=True) * (1.0 / columns)


def _main_body(
  program: Any,
  *refs: Any,
  spec: RmsNormGradient,
  tiles: _Tiles,
  exact: Arithmetic,
  has_d_sum: bool,
  has_numbers: bool,
) -> None:
  """d_x of a program's rows, or of a column block of them, and the partial sum of d_weight."""
  taken = iter(refs)
  x_ref, d_out_ref, weight_ref = (next(taken) for _ in range(3))
  d_sum_ref = next(taken) if has_d_sum else None
  number_refs = tuple(next(taken) for _ in range(3)) if has_numbers else ()
  d_x_ref, partial_ref = taken
  _, chunk, column = tiles.place(program)
  columns_left = left(tiles.columns, column * tiles.block_cols, tiles.block_cols)
  window = Window(tiles.block_rows, tiles.block_cols, columns_left=columns_left)
  weight = window.load(weight_ref)
  first_row = chunk * tiles.chunk

  def add_block(step: Any, total: jax.Array) -> jax.Array:
    start = step * tiles.block_rows
    rows_left = None
    if tiles.rows % tiles.block_rows or tiles.rows % tiles.chunk:
      rows_left = tiles.rows - first_row - start
    block = dataclasses.replace(window, first_row=start, rows_left=rows_left)
    values, d_out = wide(block.load(x_ref)), block.load(d_out_ref)
    if number_refs:
      power, factor, mean = (block.load_per_row(ref) for ref in number_refs)
      inverse = InverseRms(power, factor)
    else:
      inverse = spec.inverse_of(spec.squares(values, exact), columns=tiles.columns)
    normalised = inverse.normalise(values)
    g = spec.scaled(d_out, weight)
    if not number_refs:
      mean = _mean(g * normalised, tiles.columns)
    d_sum = None if d_sum_ref is None else block.load(d_sum_ref)
    block.store(d_x_ref, spec.d_x(g, normalised, mean, inverse, d_sum))
    product = wide(d_out) * normalised
    if rows_left is not None:
      # rows that are not there: 0·inf where eps = 0
      inside = lax.broadcasted_iota(jnp.int32, (tiles.block_rows, 1), 0) < rows_left
      product = jnp.where(inside, product, 0.0)
    return total + product

  total = add_block(jnp.int32(0), jnp.zeros((tiles.block_rows, tiles.block_cols), jnp.float32))
  if tiles.steps > 1:
    total = lax.fori_loop(jnp.int32(1), jnp.int32(tiles.steps), add_block, total)
  partial = jnp.sum(total, axis=0, keepdims=True)
  dataclasses.replace(window, rows=1).store(partial_ref, round_once(partial, partial_ref.dtype))


def _numbers_body(
  program: Any,
  x_ref: Any,
  d_out_ref: Any,
  weight_ref: Any,
  *number_refs: Any,
  spec: RmsNormGradient,
  tiles: _Tiles,
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
    return spec.squares(wide(window(step).load(x_ref)), exact)

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
  block: int,
) -> None:
  """The partial sums of a column block, blocks of rows one after another."""
  _, column = unravel(program, groups, pl.cdiv(columns, _MERGED_COLUMNS))
  columns_left = left(columns, column * _MERGED_COLUMNS, _MERGED_COLUMNS)

  def part(step: Any) -> jax.Array:
    first = step * block
    window = Window(
      block,
      _MERGED_COLUMNS,
      first_row=first,
      rows_left=left(programs, first, block),
      columns_left=columns_left,
    )
    return jnp.sum(window.load(partial_ref), axis=0, keepdims=True)

  total = part(jnp.int32(0))
  steps = pl.cdiv(programs, block)
  if steps > 1:
    total = lax.fori_loop(
      jnp.int32(1), jnp.int32(steps), lambda step, carry: carry + part(step), total
    )
  out = Window(1, _MERGED_COLUMNS, columns_left=columns_left)
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
  tiles = _make_tiles(x.shape, config, cores)
  numbers: tuple[jax.Array, ...] = ()
  if tiles.column_blocks > 1:
    numbers = _numbers(spec, x, weight, d_out, tiles=tiles, config=config, interpret=interpret)
  merged = tiles.programs == 1
  d_x, partial = _main(
    spec,
    (x, d_out, weight, *(() if d_sum is None else (d_sum,)), *numbers),
    has_d_sum=d_sum is not None,
    tiles=tiles,
    config=config,
    partial_dtype=spec.weight_dtype if merged else jnp.float32,
    interpret=interpret,
  )
  return d_x, partial if merged else _merge(partial, spec.weight_dtype, interpret=interpret)


def _params(config: RowConfig, *, interpret: bool) -> Any:
  warps = config.num_warps or _warps(config.block_rows * config.block_cols)
  return (
    None
    if interpret
    else plgpu_triton.CompilerParams(num_warps=warps, num_stages=config.num_stages)
  )


def _numbers(
  spec: RmsNormGradient,
  x: jax.Array,
  weight: jax.Array,
  d_out: jax.Array,
  *,
  tiles: _Tiles,
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
      compiler_params=_params(config, interpret=interpret),
      interpret=interpret,
      name="rmsnorm_gradient_numbers_portable",
    )(x, d_out, weight)
  )


def _main(
  spec: RmsNormGradient,
  operands: tuple[jax.Array, ...],
  *,
  has_d_sum: bool,
  tiles: _Tiles,
  config: RowConfig,
  partial_dtype: Any,
  interpret: bool,
) -> tuple[jax.Array, jax.Array]:
  """d_x, and the partial sums of d_weight [groups, programs, columns]."""
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
    compiler_params=_params(config, interpret=interpret),
    interpret=interpret,
    name="rmsnorm_gradient_portable",
  )(*operands)
  return d_x, partial


def _merge(partial: jax.Array, dtype: jnp.dtype, *, interpret: bool) -> jax.Array:
  """The partial sums, added up: [groups, 1, columns]."""
  groups, programs, columns = partial.shape
  block = min(pl.next_power_of_2(programs), _MERGED_ROWS)
  blocks = pl.cdiv(columns, _MERGED_COLUMNS)
  height = pl.cdiv(programs, block) * block

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
    in_specs=[pl.BlockSpec((None, height, _MERGED_COLUMNS), index)],
    out_specs=pl.BlockSpec((None, 1, _MERGED_COLUMNS), index),
    compiler_params=None
    if interpret
    else plgpu_triton.CompilerParams(num_warps=_MERGING_WARPS, num_stages=1),
    interpret=interpret,
    name="rmsnorm_gradient_merge_portable",
  )(partial)
