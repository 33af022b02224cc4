"""What portable kernels have in common, whichever side of the scores a program keeps."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from hw_profiles.attention.multistage import padded_dim
from pallas_kernels.attention.blocks import Specs, load_block
from pallas_kernels.attention.masks import Band, block_positions
from pallas_kernels.attention.operands import AttentionOperands, Sizes
from pallas_kernels.attention.pairs import PairRule, Side
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.attention.schedule import Region, Tile, TileOrder, Walk, segment_limits


def as_stored(operands: AttentionOperands) -> AttentionOperands:
  """The operands with masks as bytes: the interpreter widens a bool to 32 bits."""
  mask = operands.mask
  return operands if mask is None else operands._replace(mask=mask.astype(jnp.int8))


def spec_of(make: Any, array: Any, *args: Any, **options: Any) -> Any:
  """make(array, ...), or None where there is no array."""
  return None if array is None else make(array, *args, **options)


@dataclasses.dataclass(frozen=True)
class Program:
  """One program: its tile, its rows and what they see, or are seen by.

  Attributes:
    tile: Its sequence, head and block.
    rows: Its block of queries or of keys.
    rows_left: Rows that the arrays have; None: the whole block.
    band: Of its sequence.
    regions: Blocks of the other side to walk.
    refs: The operands.
    used_rows: bool [block], rows of the sequence; None: all that exist.
  """

  tile: Tile
  rows: Side
  rows_left: Any
  band: Band
  regions: tuple[Region, ...]
  refs: AttentionOperands
  used_rows: jax.Array | None


@dataclasses.dataclass(frozen=True)
class Tiles:
  """The grid of a kernel and what its programs are handed.

  A program keeps a block of one side and walks blocks of the other.

  Attributes:
    rule: What is computed.
    pair: Blocks of scores, [kept, walked]; `pair.by_keys` says which side is kept.
    order: The order of the programs.
    walk: How they walk the other side.
    sizes: Of the attention.
    panel: Rows of the other side that a program is handed: whole blocks.
  """

  rule: AttentionRule
  pair: PairRule
  order: TileOrder
  walk: Walk
  sizes: Sizes
  panel: int

  @property
  def block(self) -> int:
    """Rows of a tile."""
    return self.pair.shape[0]

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
    """A tile's rows of [b, length, heads, D]."""
    return self.specs.rows(
      array, self.block, head=lambda tile: tile.head, block=lambda tile: tile.block
    )

  def vector_spec(self, array: Any) -> pl.BlockSpec:
    """A tile's rows of [b, heads, length]."""
    return self.specs.per_head(
      array, self.block, head=lambda tile: tile.head, block=lambda tile: tile.block
    )

  def program(self, number: Any, refs: AttentionOperands, limits_ref: Any) -> Program:
    """What the program of this number works on."""
    sizes = self.sizes
    tile = self.order.tile(number)
    start = tile.block * self.block
    seq_q = _used(refs.query_lengths, sizes.seq_q)
    seq_kv = _used(refs.key_lengths, sizes.seq_kv)
    band = self.rule.band.of(seq_q=seq_q, seq_kv=seq_kv)
    if self.pair.by_keys:
      seen, extent, lengths, used = band.transposed(), sizes.seq_kv, refs.key_lengths, seq_kv
    else:
      seen, extent, lengths, used = band, sizes.seq_q, refs.query_lengths, seq_q
    blocks = seen.key_blocks(start, block_q=self.block, block_kv=self.walked_block)
    limits = None if limits_ref is None else (limits_ref[0], limits_ref[1])
    inside = None
    if lengths is not None:
      inside = block_positions(start, self.block, axis=0)[:, 0] < used
    return Program(
      tile=tile,
      rows=Side(start, 0),
      rows_left=extent - start if extent % self.block else None,
      band=band,
      regions=self.walk.regions(seen, blocks, limits),
      refs=refs,
      used_rows=inside,
    )

  def walked(self, number: Any) -> Side:
    """The block of that number of the other side; a program is handed all of that side."""
    start = number * self.walked_block
    return Side(start, start)

  def load_rows(self, ref: Any, size: int, program: Program) -> jax.Array:
    """A tile's rows of an operand of `size` columns; 0 where there are none."""
    shape = (self.block, padded_dim(size))
    return load_block(ref, shape, rows_left=program.rows_left, width=size)

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


def _used(ref: Any, extent: int) -> Any:
  """Used positions of a sequence; what is past its array does not exist."""
  return extent if ref is None else jnp.minimum(ref[0], extent)
