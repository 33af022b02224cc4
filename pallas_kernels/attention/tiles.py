"""What portable kernels have in common, whichever side of the scores a program keeps."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from hw_profiles.attention.multistage import padded_dim
from pallas_kernels.attention.blocks import Specs, load_block, load_vector, store_block
from pallas_kernels.attention.masks import Band, block_positions
from pallas_kernels.attention.operands import AttentionOperands, Sizes
from pallas_kernels.attention.pairs import PairRule, Side
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.attention.schedule import Region, TileOrder, Walk, segment_limits

# Blocks that a program looks at where it mends, which seldom finds anything. It has
# the registers of one that does, so that an SM holds two: with a block each, 4096
# programs took 11.4 us on an H200. A power of two, as Triton loads.
MENDED_SPAN = 16


def span_of(blocks: int, *, mending: bool) -> int:
  """`Tiles.span` for a head of `blocks` blocks."""
  return min(MENDED_SPAN, pl.next_power_of_2(blocks)) if mending else 1


def as_stored(operands: AttentionOperands) -> AttentionOperands:
  """The operands with masks as bytes: the interpreter widens a bool to 32 bits."""
  mask = operands.mask
  return operands if mask is None else operands._replace(mask=mask.astype(jnp.int8))


def spec_of(make: Any, array: Any, *args: Any, **options: Any) -> Any:
  """make(array, ...), or None where there is no array."""
  return None if array is None else make(array, *args, **options)


@dataclasses.dataclass(frozen=True)
class Program:
  """One block of a program: its rows and what they see, or are seen by.

  Attributes:
    rows: The block of queries or of keys.
    rows_left: Rows that the arrays have; None: the whole block.
    band: Of its sequence.
    regions: Blocks of the other side to walk.
    refs: The operands.
    used_rows: bool [block], rows of the sequence; None: all that exist.
  """

  rows: Side
  rows_left: Any
  band: Band
  regions: tuple[Region, ...]
  refs: AttentionOperands
  used_rows: jax.Array | None


@dataclasses.dataclass(frozen=True)
class Tiles:
  """The grid of a kernel and what its programs are handed.

  A program keeps a span of blocks of one side and, for one after another of
  them, walks blocks of the other. `Tile.block` counts spans.

  Attributes:
    rule: What is computed.
    pair: Blocks of scores, [kept, walked]; `pair.by_keys` says which side is kept.
    order: The order of the programs.
    walk: How they walk the other side.
    sizes: Of the attention.
    panel: Rows of the other side that a program is handed: whole blocks.
    span: Blocks of its own side that a program keeps: 1, but where it mends.
  """

  rule: AttentionRule
  pair: PairRule
  order: TileOrder
  walk: Walk
  sizes: Sizes
  panel: int
  span: int

  @property
  def block(self) -> int:
    """Rows of a block of the side that is kept."""
    return self.pair.shape[0]

  @property
  def kept(self) -> int:
    """Rows of that side that a program is handed."""
    return self.span * self.block

  @property
  def extent(self) -> int:
    """Rows that that side has."""
    return self.sizes.seq_kv if self.pair.by_keys else self.sizes.seq_q

  @property
  def walked_block(self) -> int:
    """Rows of a block of the other side."""
    return self.pair.shape[1]

  def limits(self, operands: AttentionOperands) -> jax.Array | None:
    """Blocks of the other side that share a segment with each block of this one."""
    if operands.query_segments is None or operands.key_segments is None:
      return None
    sides = (operands.query_segments, operands.key_segments)
    kept, walked = sides[::-1] if self.pair.by_keys else sides
    return segment_limits(kept, walked, block_rows=self.block, block_columns=self.walked_block)

  @property
  def specs(self) -> Specs:
    """BlockSpecs over this grid."""
    return Specs(self.order.tile)

  def rows_spec(self, array: Any) -> pl.BlockSpec:
    """A program's rows of [b, length, heads, D]."""
    return self.specs.rows(
      array, self.kept, head=lambda tile: tile.head, block=lambda tile: tile.block
    )

  def vector_spec(self, array: Any) -> pl.BlockSpec:
    """A program's rows of [b, heads, length]."""
    return self.specs.per_head(
      array, self.kept, head=lambda tile: tile.head, block=lambda tile: tile.block
    )

  def limits_spec(self, limits: jax.Array) -> pl.BlockSpec:
    """A program's blocks of `limits`."""
    return self.specs.limits(limits, self.span)

  def each_block(self, number: Any, doubt_ref: Any, compute: Callable[[Any], None]) -> None:
    """compute(index) for the blocks that a program keeps, or those of them in doubt.

    Args:
      number: The program's.
      doubt_ref: [kept], 0 for the rows that are right; None: there are no results
        yet, and a span of 1.
      compute: Takes an index as `program` does.
    """
    if doubt_ref is None:
      compute(0)
      return
    first = self.order.tile(number).block * self.kept

    def one(index: Any, _: None) -> None:
      at = index * self.block
      rows = doubt_ref.at[pl.ds(at, self.block)]
      pl.when(_any_set(rows, self.block, self._rows_left(first + at)))(lambda: compute(index))

    @pl.when(_any_set(doubt_ref, self.kept, self._rows_left(first)))
    def _() -> None:
      lax.fori_loop(jnp.int32(0), jnp.int32(self.span), one, None)

  def _rows_left(self, start: Any) -> Any:
    """Rows from `start` on, negative past the end; None: all that a program keeps exist."""
    return self.extent - start if self.extent % self.kept else None

  def program(
    self, number: Any, refs: AttentionOperands, limits_ref: Any, index: Any = 0
  ) -> Program:
    """What the program of this number does for the block of this index of its span."""
    sizes = self.sizes
    at = index * self.block
    start = self.order.tile(number).block * self.kept + at
    seq_q = _used(refs.query_lengths, sizes.seq_q)
    seq_kv = _used(refs.key_lengths, sizes.seq_kv)
    band = self.rule.band.of(seq_q=seq_q, seq_kv=seq_kv)
    if self.pair.by_keys:
      seen, lengths, used = band.transposed(), refs.key_lengths, seq_kv
    else:
      seen, lengths, used = band, refs.query_lengths, seq_q
    blocks = seen.key_blocks(start, block_q=self.block, block_kv=self.walked_block)
    limits = None if limits_ref is None else (limits_ref[index, 0], limits_ref[index, 1])
    inside = None
    if lengths is not None:
      inside = block_positions(start, self.block, axis=0)[:, 0] < used
    return Program(
      rows=Side(start, at),
      rows_left=self._rows_left(start),
      band=band,
      regions=self.walk.regions(seen, blocks, limits),
      refs=refs,
      used_rows=inside,
    )

  def walked(self, number: Any) -> Side:
    """The block of that number of the other side; a program is handed all of that side."""
    start = number * self.walked_block
    return Side(start, start)

  def block_of(self, ref: Any, program: Program) -> Any:
    """The block of a ref of all rows that a program keeps."""
    return ref if self.span == 1 else ref.at[pl.ds(program.rows.at, self.block)]

  def load_rows(self, ref: Any, size: int, program: Program) -> jax.Array:
    """The block of an operand of `size` columns; 0 where there are none."""
    shape = (self.block, padded_dim(size))
    window = self.block_of(ref, program)
    return load_block(window, shape, rows_left=program.rows_left, width=size)

  def load_numbers_of_rows(self, ref: Any, program: Program) -> jax.Array:
    """The same of an array of one number a row."""
    return load_vector(self.block_of(ref, program), self.block, left=program.rows_left)

  def store_rows(self, ref: Any, value: jax.Array, size: int, program: Program) -> None:
    """Stores the block of a result of `size` columns, in its dtype."""
    store_block(
      self.block_of(ref, program),
      value.astype(ref.dtype),
      rows_left=program.rows_left,
      width=size,
    )

  def _walked_left(self, side: Side, used: Any, *, masked: bool) -> Any:
    """Rows that a walked block has, of `used` ones; None: the whole block."""
    return used - side.start if masked and self.walk.ragged else None

  def _visible(
    self, program: Program, queries: Side, keys: Side, lead: tuple[Any, ...] = ()
  ) -> jax.Array:
    """Which pairs of two blocks are visible; `lead` as `PairRule.visible` takes it."""
    refs = program.refs
    return self.pair.visible(
      program.band,
      queries,
      keys,
      mask_ref=refs.mask,
      query_segments=refs.query_segments,
      key_segments=refs.key_segments,
      lead=lead,
    )


def _any_set(ref: Any, size: int, left: Any) -> Any:
  """Whether an element of a 1-d ref is not 0; `left` as in `load_vector`."""
  return jnp.max((load_vector(ref, size, left=left) != 0).astype(jnp.int32)) > 0


def _used(ref: Any, extent: int) -> Any:
  """Used positions of a sequence; what is past its array does not exist."""
  return extent if ref is None else jnp.clip(ref[0], 0, extent)
