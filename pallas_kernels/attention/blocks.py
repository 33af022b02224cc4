"""Blocks of attention's arrays, as programs of the portable kernels are handed and load them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu_triton

from hw_profiles.attention.multistage import padded_dim
from pallas_kernels.attention.products import visible_product
from pallas_kernels.attention.schedule import Tile
from pallas_kernels.portable_support import batch_index, in_bounds

Index = Callable[[Tile], Any]


@dataclasses.dataclass(frozen=True)
class Specs:
  """BlockSpecs of a one-dimensional grid whose programs are `Tile`s.

  Panels are whole blocks long, so that no window over-runs its panel: one that
  does is shifted by the interpreter, not padded.
  """

  tile: Callable[[Any], Tile]

  def _spec(
    self, array: Any, block: tuple[int | None, ...], *indices: Index | None
  ) -> pl.BlockSpec:
    def index_map(program: Any) -> tuple[Any, ...]:
      tile = self.tile(program)
      rest = (0 if index is None else index(tile) for index in indices)
      return (batch_index(array, tile.batch), *rest)

    return pl.BlockSpec(block, index_map)

  def rows(self, array: Any, rows: int, *, head: Index, block: Index | None) -> pl.BlockSpec:
    """Of [b, L, heads, D]: `rows` rows of one head, D padded to a power of two."""
    width = padded_dim(array.shape[3])
    return self._spec(array, (None, rows, None, width), block, head, None)

  def heads(self, array: Any, rows: int, *, count: int, head: Index) -> pl.BlockSpec:
    """Of [b, L, heads, D]: all rows of `count` consecutive heads."""
    width = padded_dim(array.shape[3])
    return self._spec(array, (None, rows, count, width), None, head, None)

  def pairs(
    self,
    array: Any,
    sides: tuple[int, int],
    *,
    head: Index,
    blocks: tuple[Index | None, Index | None],
    count: int | None = None,
  ) -> pl.BlockSpec:
    """Of [b, heads or 1, T or 1, S or 1]: a block or panel of one head, or of `count` heads."""
    _, heads, *lengths = array.shape
    broadcast = [length == 1 for length in lengths]
    block = (1 if one else side for one, side in zip(broadcast, sides, strict=True))
    index = (None if one else at for one, at in zip(broadcast, blocks, strict=True))
    if count is not None:
      count = 1 if heads == 1 else count
    return self._spec(array, (None, count, *block), None if heads == 1 else head, *index)

  def vector(self, array: Any, size: int, block: Index | None) -> pl.BlockSpec:
    """Of [b, L]: a block or a panel."""
    return self._spec(array, (None, size), block)

  def per_head(
    self, array: Any, size: int, *, head: Index, block: Index | None, count: int | None = None
  ) -> pl.BlockSpec:
    """Of [b, heads, L]: the same of one head, or of `count` heads."""
    return self._spec(array, (None, count, size), head, block)

  def number(self, array: Any) -> pl.BlockSpec:
    """Of [b]: one."""
    return self._spec(array, (1,))

  def limits(self, array: Any, span: int) -> pl.BlockSpec:
    """Of [b, blocks, 2]: both numbers of each of the tile's `span` blocks."""
    return self._spec(array, (None, span, 2), lambda tile: tile.block, None)


def kernel_body(body: Callable[..., None], *, interpret: bool, like: jax.Array) -> Any:
  """`body(program, *refs)` as `pallas_call` can run it.

  Inside shard_map the interpreter checks that operands of each operation vary
  over the same mesh axes, which indices and masks do not; it does not look into
  loops.
  """

  def plain(*refs: Any) -> None:
    body(pl.program_id(0), *refs)

  if not interpret or not jax.typeof(like).manual_axis_type.varying:
    return plain

  def in_a_loop(*refs: Any) -> None:
    program = pl.program_id(0)

    def once(_: Any, carry: Any) -> Any:
      body(program, *refs)
      return carry

    lax.fori_loop(jnp.int32(0), jnp.int32(1), once, jnp.int32(0))

  return in_a_loop


def load_block(
  ref: Any, shape: tuple[int, int], *, rows_left: Any = None, width: Any = None
) -> jax.Array:
  """A block of a 2-d ref; 0 from row `rows_left` and column `width` on (None: nowhere)."""
  columns = None if isinstance(width, int) and width == shape[1] else width
  inside = in_bounds(shape, rows=rows_left, columns=columns)
  return ref[...] if inside is None else plgpu_triton.load(ref, mask=inside, other=0)


def store_block(ref: Any, value: jax.Array, *, rows_left: Any, width: Any) -> None:
  """Stores the rows below `rows_left` and the columns below `width` (None: all)."""
  columns = None if isinstance(width, int) and width == value.shape[1] else width
  rows, width = value.shape
  inside = in_bounds((rows, width), rows=rows_left, columns=columns)
  if inside is None:
    ref[...] = value
  else:
    plgpu_triton.store(ref, value, mask=inside)


def load_limited(ref: Any, shape: tuple[int, ...], limits: tuple[Any, ...]) -> jax.Array:
  """A ref of any rank; 0 from limits[axis] on along each axis (None: nowhere)."""
  mask = None
  for axis, limit in enumerate(limits):
    if limit is not None:
      inside = lax.broadcasted_iota(jnp.int32, shape, axis) < limit
      mask = inside if mask is None else mask & inside
  return ref[...] if mask is None else plgpu_triton.load(ref, mask=mask, other=0)


def load_vector(ref: Any, size: int, *, left: Any = None) -> jax.Array:
  """A 1-d ref; 0 from `left` on."""
  if left is None:
    return ref[...]
  inside = lax.broadcasted_iota(jnp.int32, (size,), 0) < left
  return plgpu_triton.load(ref, mask=inside, other=0)


def store_vector(ref: Any, value: jax.Array, *, left: Any = None) -> None:
  """Stores what is below `left`."""
  if left is None:
    ref[...] = value
  else:
    inside = lax.broadcasted_iota(jnp.int32, value.shape, 0) < left
    plgpu_triton.store(ref, value, mask=inside)


@dataclasses.dataclass(frozen=True)
class Products:
  """Matrix products of a kernel, summed in float32.

  Attributes:
    precision: For float32 operands, as `lax.dot` takes it.
    doubtful: Whether values that are not finite are expected; see `visible_product`.
  """

  precision: Any
  doubtful: bool = False

  def __call__(self, a: jax.Array, b: jax.Array) -> jax.Array:
    """a·b, with a rounded to b's dtype."""
    return self._dot(a.astype(b.dtype), b, 0)

  def rows(self, a: jax.Array, b: jax.Array) -> jax.Array:
    """a·bᵀ."""
    return self._dot(a, b, 1)

  def _dot(self, a: jax.Array, b: jax.Array, contract: int) -> jax.Array:
    dimensions = (((1,), (contract,)), ((), ()))
    return lax.dot_general(
      a, b, dimensions, precision=self.precision, preferred_element_type=jnp.float32
    )

  def visible(
    self,
    weights: jax.Array,
    values: jax.Array,
    visible: jax.Array | None,
    *,
    signed: bool = False,
  ) -> jax.Array:
    """weights·values over visible pairs; see `visible_product`.

    Args:
      weights: float32 [rows, columns].
      values: [columns, width].
      visible: [rows, columns]; None: every row sees the same columns, and the
        values of the others are 0.
      signed: Whether weights may be negative.
    """
    if visible is None:
      return self(weights, values)
    return visible_product(self, weights, values, visible, signed=signed, doubtful=self.doubtful)
