"""The gradient of rms_norm of few long rows: what waits is cut short, as plain `pl.pallas_call`s.

A core that has a row alone waits for the row's loads, for two sums one after the
other, and for its stores, the float32 partial sums of d_weight among them; then
a launch adds those up. Here Σ x² and Σ g·x are of x as it is, so that neither
waits for the other, and what a core stores is little:

    numbers    a program a row: power and factor of 1/rms, mean(g·n); then
    columns    a program a block of columns of all rows: d_x, and d_weight at once

A single row, for which a second launch costs more than the sums, has several
programs that each compute its numbers and store a part of the columns.

    mean(g·n) = Σ g·x·f / columns,    n = x·f

Where a sum says that terms may have overflowed or vanished, the row is read
again and scaled, as `inverse_rms` does. A row of zeros, of x or of d_y, is read
again as well: its sums are those of terms that vanished.

Runs interpreted anywhere, and compiles for NVIDIA GPUs through Triton.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from hw_profiles import RowConfig
from pallas_kernels import sharding
from pallas_kernels.dtypes import round_once
from pallas_kernels.rowwise import arithmetic, inverse_rms, portable_rms_gradient
from pallas_kernels.rowwise.arithmetic import Arithmetic, in_kernel
from pallas_kernels.rowwise.blocks import (
  Window,
  as_kernel,
  group_index,
  kept_pieces,
  left,
  unravel,
)
from pallas_kernels.rowwise.inverse_rms import InverseRms
from pallas_kernels.rowwise.rms_gradient import RmsNormGradient
from pallas_kernels.rowwise.rms_gradient_tiles import FewRowsTiles, make_tiles
from pallas_kernels.rowwise.specs import wide

# x, d_y and weight of a row's piece, as they are stored
Piece = tuple[jax.Array, ...]


def _numbers_of(
  spec: RmsNormGradient,
  loaded: Sequence[Piece],
  again: Callable[[], Sequence[Piece]],
  *,
  columns: int,
  exact: Arithmetic,
) -> tuple[InverseRms, jax.Array]:
  """1/rms and mean(g·n) of a row.

  Args:
    spec: What is computed.
    loaded: The row; masked elements are 0.
    again: Loads it once more, for which no register waits.
    columns: Of the row.
    exact: Whether there may be two ways.
  """

  def total(terms: Sequence[jax.Array]) -> jax.Array:
    return jnp.sum(functools.reduce(operator.add, terms), axis=-1, keepdims=True)

  def widened(pieces: Sequence[Piece]) -> list[tuple[jax.Array, jax.Array]]:
    return [(wide(x), spec.scaled(d_out, weight)) for x, d_out, weight in pieces]

  def scaled() -> tuple[jax.Array, ...]:
    values = widened(again())
    # already the other way: the squares need not look for it, too
    squares = spec.squares([x for x, _ in values], arithmetic.XLA)
    inverse = spec.inverse_of(squares, columns=columns)
    return (*inverse, total([g * inverse.normalise(x) for x, g in values]) * (1.0 / columns))

  if not exact.branches:
    power, factor, mean = scaled()
    return InverseRms(power, factor), mean
  values = widened(loaded)
  square = total([x * x for x, _ in values])
  product = total([g * x for x, g in values])

  def as_it_is() -> tuple[jax.Array, ...]:
    factor = lax.rsqrt(square * (1.0 / columns) + spec.eps)
    return jnp.ones_like(factor), factor, product * factor * (1.0 / columns)

  plain = inverse_rms.is_plain(square, eps=spec.eps)
  # 0 of terms that vanished is not told from 0 of terms that cancel
  plain &= inverse_rms.is_plain(jnp.abs(product), eps=0.0)
  every = jnp.min(plain.astype(jnp.int32)) > 0
  power, factor, mean = lax.cond(every, as_it_is, scaled)
  return InverseRms(power, factor), mean


def _load(windows: Sequence[Window], refs: Sequence[Any]) -> list[Piece]:
  return [tuple(window.load(ref) for ref in refs) for window in windows]


def _numbers_body(
  program: Any,
  *refs: Any,
  spec: RmsNormGradient,
  row: RowConfig,
  columns: int,
  exact: Arithmetic,
) -> None:
  """Power, factor and mean(g·n) of a row."""
  del program
  matrices, numbers = refs[:3], refs[3:]
  windows = kept_pieces(1, columns, row.block_cols)
  load = functools.partial(_load, windows, matrices)
  inverse, mean = _numbers_of(spec, load(), load, columns=columns, exact=exact)
  for ref, number in zip(numbers, (*inverse, mean), strict=True):
    windows[0].store_per_row(ref, number)


def _part_body(
  program: Any,
  *refs: Any,
  spec: RmsNormGradient,
  tiles: FewRowsTiles,
  groups: int,
  columns: int,
  exact: Arithmetic,
) -> None:
  """The numbers of the only row, and a part of its gradients."""
  matrices, (*d_sum, d_x, d_weight) = refs[:3], refs[3:]
  width = tiles.columns.block_cols
  _, part = unravel(program, groups, pl.cdiv(columns, width))
  start = part * width
  own = Window(1, width, first_column=start, columns_left=left(columns, start, width))
  load = functools.partial(_load, kept_pieces(1, columns, tiles.row.block_cols), matrices)
  loaded = load()
  # before the sums, which would be waited for first
  ((own_x, own_d_out, own_weight),) = _load([own], matrices)
  own_d_sum = own.load(d_sum[0]) if d_sum else None
  inverse, mean = _numbers_of(spec, loaded, load, columns=columns, exact=exact)
  normalised = inverse.normalise(wide(own_x))
  g = spec.scaled(own_d_out, own_weight)
  own.store(d_x, spec.d_x(g, normalised, mean, inverse, own_d_sum))
  own.store(d_weight, round_once(wide(own_d_out) * normalised, d_weight.dtype))


def run(
  spec: RmsNormGradient,
  x: jax.Array,
  weight: jax.Array,
  d_out: jax.Array,
  d_sum: jax.Array | None,
  *,
  tiles: FewRowsTiles,
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
    tiles: The blocks; that of columns has all rows.
    cores: Streaming multiprocessors.
    interpret: True runs it with the Pallas interpreter, on any device.

  Returns:
    d_x [groups, rows, columns], and d_weight [groups, 1, columns].
  """
  operands = (x, d_out, weight)
  d_sums = () if d_sum is None else (d_sum,)
  if x.shape[1] == 1:
    return _of_one_row(spec, (*operands, *d_sums), tiles=tiles, interpret=interpret)
  numbers = _numbers(spec, operands, row=tiles.row, interpret=interpret)
  return portable_rms_gradient.main(
    spec,
    (*operands, *d_sums, *numbers),
    has_d_sum=d_sum is not None,
    tiles=make_tiles(x.shape, tiles.columns, cores),
    config=tiles.columns,
    partial_dtype=spec.weight_dtype,
    interpret=interpret,
  )


def _numbers(
  spec: RmsNormGradient,
  operands: tuple[jax.Array, ...],
  *,
  row: RowConfig,
  interpret: bool,
) -> tuple[jax.Array, ...]:
  """Power, factor and mean of every row, float32 [groups, rows, 1] each."""
  x, _, weight = operands
  groups, rows, columns = x.shape

  def index(program: Any) -> tuple[Any, ...]:
    return (*unravel(program, groups, rows), 0)

  def weight_index(program: Any) -> tuple[Any, ...]:
    return group_index(weight, index(program)[0]), 0, 0

  matrix = pl.BlockSpec((None, 1, row.block_cols), index)
  body = functools.partial(
    _numbers_body, spec=spec, row=row, columns=columns, exact=in_kernel(interpreted=interpret)
  )
  return tuple(
    pl.pallas_call(
      as_kernel(body, interpret=interpret),
      out_shape=[sharding.out_struct((groups, rows, 1), jnp.dtype(jnp.float32), x)] * 3,
      grid=(groups * rows,),
      in_specs=[matrix, matrix, pl.BlockSpec((None, 1, row.block_cols), weight_index)],
      out_specs=[pl.BlockSpec((None, 1, 1), index)] * 3,
      compiler_params=portable_rms_gradient.params(row, interpret=interpret),
      interpret=interpret,
      name="rmsnorm_gradient_row_numbers_portable",
    )(*operands)
  )


def _of_one_row(
  spec: RmsNormGradient,
  operands: tuple[jax.Array, ...],
  *,
  tiles: FewRowsTiles,
  interpret: bool,
) -> tuple[jax.Array, jax.Array]:
  """Both gradients of a row a group."""
  x, _, weight = operands[:3]
  groups, _, columns = x.shape
  width = tiles.columns.block_cols
  parts = pl.cdiv(columns, width)
  # so that a program may load the row, and store any part of it
  window = max(tiles.row.block_cols, parts * width)

  def index(program: Any) -> tuple[Any, ...]:
    group, _ = unravel(program, groups, parts)
    return group, 0, 0

  def weight_index(program: Any) -> tuple[Any, ...]:
    return group_index(weight, index(program)[0]), 0, 0

  matrix = pl.BlockSpec((None, 1, window), index)
  body = functools.partial(
    _part_body,
    spec=spec,
    tiles=tiles,
    groups=groups,
    columns=columns,
    exact=in_kernel(interpreted=interpret),
  )
  d_x, d_weight = pl.pallas_call(
    as_kernel(body, interpret=interpret),
    out_shape=[
      sharding.out_struct(x.shape, spec.dtype, x),
      sharding.out_struct((groups, 1, columns), spec.weight_dtype, x),
    ],
    grid=(groups * parts,),
    in_specs=[
      matrix,
      matrix,
      pl.BlockSpec((None, 1, window), weight_index),
      *(matrix for _ in operands[3:]),
    ],
    out_specs=[matrix, matrix],
    compiler_params=portable_rms_gradient.params(tiles.row, interpret=interpret),
    interpret=interpret,
    name="rmsnorm_gradient_of_one_row_portable",
  )(*operands)
  return d_x, d_weight
