"""Loads and stores of blocks that may hang over the edge of their array."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu_triton

from hw_profiles.rowwise.tiling import pieces
from pallas_kernels.portable_support import in_bounds


@dataclasses.dataclass(frozen=True)
class Window:
  """A block of rows and some columns of the refs that a program got.

  A ref of one row, weights or a number for all rows, has that row in any window.

  Attributes:
    rows: Rows of the block.
    columns: Columns of the block.
    first_row: Its first row in the refs; None: they have just these rows.
    first_column: The same of its columns.
    rows_left: Rows that are there; None: all.
    columns_left: Columns that are there; None: all.
  """

  rows: int
  columns: int
  first_row: Any = None
  first_column: Any = None
  rows_left: Any = None
  columns_left: Any = None

  def load(self, ref: Any) -> jax.Array:
    """[rows, columns], or [1, columns] of a ref of one row; 0 outside."""
    return self._load(ref, self._columns(), self.columns, self.columns_left)

  def store(self, ref: Any, value: jax.Array) -> None:
    """Stores what is inside."""
    self._store(ref, value, self._columns(), self.columns_left)

  def load_per_row(self, ref: Any, column: Any = 0) -> jax.Array:
    """[rows, 1]: one column of a ref of numbers there is one of for each row."""
    # numbers, not a block one wide: Triton would load that once for each element
    # it is broadcast to
    if ref.shape[0] == 1:
      return jnp.broadcast_to(ref[jnp.int32(0), jnp.int32(column)], (1, 1))
    at = ref.at[self._rows(ref), jnp.int32(column)]
    if self.rows_left is None:
      return at[...][:, None]
    mask = lax.broadcasted_iota(jnp.int32, (self.rows,), 0) < self.rows_left
    return plgpu_triton.load(at, mask=mask, other=0)[:, None]

  def store_per_row(self, ref: Any, value: jax.Array, column: Any = 0) -> None:
    """Stores such a column, [rows, 1]."""
    self._store(ref, value, pl.ds(column, 1), None)

  def _columns(self) -> Any:
    return slice(None) if self.first_column is None else pl.ds(self.first_column, self.columns)

  def _rows(self, ref: Any) -> Any:
    one = ref.shape[0] == 1 or self.first_row is None
    return slice(None) if one else pl.ds(self.first_row, self.rows)

  def _load(self, ref: Any, columns: Any, width: int, columns_left: Any) -> jax.Array:
    one = ref.shape[0] == 1
    at = ref.at[self._rows(ref), columns]
    mask = in_bounds(
      (1 if one else self.rows, width),
      rows=None if one else self.rows_left,
      columns=columns_left,
    )
    return at[...] if mask is None else plgpu_triton.load(at, mask=mask, other=0)

  def _store(self, ref: Any, value: jax.Array, columns: Any, columns_left: Any) -> None:
    rows, columns = _with_equal_starts((self._rows(ref), columns), value.shape)
    at = ref.at[rows, columns]
    mask = in_bounds(value.shape, rows=self.rows_left, columns=columns_left)
    if mask is None:
      at[...] = value
    else:
      plgpu_triton.store(at, value, mask=mask)


def _with_equal_starts(slices: tuple[Any, Any], shape: tuple[int, ...]) -> tuple[Any, ...]:
  """The slices, with starts that are all known or all traced.

  The interpreter wants one dtype, and takes what is known as int64 under
  jax_enable_x64; the lowering takes no traced start that is a constant.
  """
  traced = [at.start for at in slices if not isinstance(at.start, (int, type(None)))]
  if not traced:
    return slices
  zero = traced[0] * 0
  return tuple(
    pl.ds(zero + (at.start or 0), size) if isinstance(at.start, (int, type(None))) else at
    for at, size in zip(slices, shape, strict=True)
  )


def as_kernel(body: Callable[..., None], *, interpret: bool) -> Callable[..., None]:
  """`body(program, *refs)` as a kernel on a grid of one dimension.

  Interpreted it is in a loop of one step: inside shard_map JAX's interpreter
  checks, but not inside of loops, that what it pads a ref with for a masked load
  varies over the mesh axes as the ref does.
  """

  def kernel(*refs: Any) -> None:
    program = pl.program_id(0)
    if not interpret:
      body(program, *refs)
      return

    def step(_: Any, carry: tuple[()]) -> tuple[()]:
      body(program, *refs)
      return carry

    lax.fori_loop(jnp.int32(0), jnp.int32(1), step, ())

  return kernel


def kept_pieces(rows: int, columns: int, block_cols: int) -> list[Window]:
  """The windows of a block that holds whole rows, each of 2^i columns, all of one size.

  The last one alone is masked; those beyond the last column are left out.

  Args:
    rows: Of the block.
    columns: Of the rows.
    block_cols: Of the block, at least `columns`.
  """
  width = pieces(block_cols).columns
  return [
    Window(
      rows,
      width,
      first_column=start if columns > width else None,
      columns_left=columns - start if columns < start + width else None,
    )
    for start in range(0, columns, width)
  ]


def left(extent: int, start: Any, block: int) -> Any:
  """What is left of `extent` from `start` on; None where blocks divide it."""
  return extent - start if extent % block else None


def unravel(index: Any, *extents: int) -> tuple[Any, ...]:
  """The indices that make `index` in row-major order; extents of 1 have the constant 0.

  The kernel sees from a constant that the stride of that dimension, which may
  be odd, does not move what it loads off 16 bytes. Indices are at least 0, so
  quotients need not be floored.
  """
  found: list[Any] = []
  outer = next((i for i, extent in enumerate(extents) if extent > 1), len(extents))
  for place in range(len(extents) - 1, -1, -1):
    extent = extents[place]
    if place < outer or extent == 1:
      found.append(0)
    elif place == outer:
      found.append(index)
    else:
      size = jnp.int32(extent)
      found.append(lax.rem(index, size))
      index = lax.div(index, size)
  return tuple(reversed(found))


def group_index(array: jax.Array, group: Any) -> Any:
  """The group's index in an array of [groups or 1, ...]."""
  return 0 if array.shape[0] == 1 else group
