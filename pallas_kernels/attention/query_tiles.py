"""Programs that keep a block of queries and walk the keys it sees: the forward kernel and "dq"."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from hw_profiles.attention.multistage import padded_dim
from pallas_kernels.attention.blocks import Specs, load_block
from pallas_kernels.attention.masks import Band, block_positions
from pallas_kernels.attention.operands import AttentionOperands, Sizes
from pallas_kernels.attention.pairs import PairRule, Side, pair_rule
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.attention.schedule import Region, Tile, TileOrder, Walk, segment_limits


def used(ref: Any, extent: int) -> Any:
  """Used positions of a sequence; what is past its array does not exist."""
  return extent if ref is None else jnp.minimum(ref[0], extent)


def as_stored(operands: AttentionOperands) -> AttentionOperands:
  """The operands with masks as bytes: the interpreter widens a bool to 32 bits."""
  mask = operands.mask
  return operands if mask is None else operands._replace(mask=mask.astype(jnp.int8))


@dataclasses.dataclass(frozen=True)
class QueryProgram:
  """One program: its tile, its queries and what they see.

  Attributes:
    tile: Its sequence, head and block.
    queries: Its block of queries.
    rows_left: Rows that the arrays have; None: the whole block.
    band: Of its sequence.
    regions: Blocks of keys to walk.
    refs: The operands.
    used_rows: bool [block_q], queries of the sequence; None: all that exist.
  """

  tile: Tile
  queries: Side
  rows_left: Any
  band: Band
  regions: tuple[Region, ...]
  refs: AttentionOperands
  used_rows: jax.Array | None

  def keys(self, block: Any, size: int) -> Side:
    """A block of keys."""
    return Side(block * size, block * size)


@dataclasses.dataclass(frozen=True)
class QueryTiles:
  """The grid of such a kernel and what its programs are handed.

  Attributes:
    rule: What is computed.
    pair: Blocks of scores.
    order: The order of the programs.
    walk: How they walk keys.
    sizes: Of the attention.
    panel: Keys of a panel: whole blocks.
  """

  rule: AttentionRule
  pair: PairRule
  order: TileOrder
  walk: Walk
  sizes: Sizes
  panel: int

  @classmethod
  def create(
    cls, rule: AttentionRule, operands: AttentionOperands, *, block_q: int, block_kv: int
  ) -> "QueryTiles":
    """For these operands, or their shapes."""
    sizes = operands.sizes
    row_bytes = (sizes.head_dim + sizes.value_dim) * operands.key.dtype.itemsize
    return cls(
      rule=rule,
      pair=pair_rule(rule, operands, block_q=block_q, block_kv=block_kv, by_keys=False),
      order=TileOrder.create(
        batch=sizes.batch,
        heads=sizes.heads,
        sharing=sizes.group,
        blocks=pl.cdiv(sizes.seq_q, block_q),
        walked_bytes=sizes.seq_kv * row_bytes,
        grows=rule.band.later_queries_see_more,
      ),
      walk=Walk.create(
        block=block_kv,
        extent=sizes.seq_kv,
        has_lengths=operands.key_lengths is not None,
        all_masked=operands.has_pair_masks,
      ),
      sizes=sizes,
      panel=pl.cdiv(sizes.seq_kv, block_kv) * block_kv,
    )

  def limits(self, operands: AttentionOperands) -> jax.Array | None:
    """Blocks of keys that share a segment with each block of queries."""
    if operands.query_segments is None or operands.key_segments is None:
      return None
    return segment_limits(
      operands.query_segments,
      operands.key_segments,
      block_rows=self.pair.block_q,
      block_columns=self.pair.block_kv,
    )

  def key_head(self, tile: Tile) -> Any:
    """The key head that a tile's head reads."""
    return tile.head // self.sizes.group

  @property
  def specs(self) -> Specs:
    """BlockSpecs over this grid."""
    return Specs(self.order.tile)

  def rows_spec(self, array: Any) -> pl.BlockSpec:
    """A tile's rows of [b, T, N, D]."""
    return self.specs.rows(
      array, self.pair.block_q, head=lambda tile: tile.head, block=lambda tile: tile.block
    )

  def vector_spec(self, array: Any) -> pl.BlockSpec:
    """A tile's rows of [b, N, T]."""
    return self.specs.per_head(
      array, self.pair.block_q, head=lambda tile: tile.head, block=lambda tile: tile.block
    )

  def operand_specs(self, operands: AttentionOperands) -> AttentionOperands:
    """A BlockSpec for each operand that there is."""
    specs, block_q = self.specs, self.pair.block_q

    def one(make: Any, array: Any, *args: Any, **options: Any) -> Any:
      return None if array is None else make(array, *args, **options)

    pairs = {
      "head": lambda tile: tile.head,
      "blocks": (lambda tile: tile.block, None),
    }
    return AttentionOperands(
      query=self.rows_spec(operands.query),
      key=specs.rows(operands.key, self.panel, head=self.key_head, block=None),
      value=specs.rows(operands.value, self.panel, head=self.key_head, block=None),
      bias=one(specs.pairs, operands.bias, (block_q, self.panel), **pairs),
      mask=one(specs.pairs, operands.mask, (block_q, self.panel), **pairs),
      query_lengths=one(specs.number, operands.query_lengths),
      key_lengths=one(specs.number, operands.key_lengths),
      query_segments=one(specs.vector, operands.query_segments, block_q, lambda tile: tile.block),
      key_segments=one(specs.vector, operands.key_segments, self.panel, None),
    )

  def program(self, number: Any, refs: AttentionOperands, limits_ref: Any) -> QueryProgram:
    """What the program of this number works on."""
    sizes, pair = self.sizes, self.pair
    tile = self.order.tile(number)
    start = tile.block * pair.block_q
    seq_q, seq_kv = used(refs.query_lengths, sizes.seq_q), used(refs.key_lengths, sizes.seq_kv)
    band = self.rule.band.of(seq_q=seq_q, seq_kv=seq_kv)
    blocks = band.key_blocks(start, block_q=pair.block_q, block_kv=pair.block_kv)
    limits = None if limits_ref is None else (limits_ref[0], limits_ref[1])
    inside = None
    if refs.query_lengths is not None:
      inside = block_positions(start, pair.block_q, axis=0)[:, 0] < seq_q
    return QueryProgram(
      tile=tile,
      queries=Side(start, 0),
      rows_left=sizes.seq_q - start if sizes.seq_q % pair.block_q else None,
      band=band,
      regions=self.walk.regions(band, blocks, limits),
      refs=refs,
      used_rows=inside,
    )

  def load_rows(self, ref: Any, size: int, program: QueryProgram) -> jax.Array:
    """A tile's rows of an operand of `size` columns; 0 where there are none."""
    shape = (self.pair.block_q, padded_dim(size))
    return load_block(ref, shape, rows_left=program.rows_left, width=size)

  def load_keys(
    self, ref: Any, size: int, keys: Side, program: QueryProgram, *, masked: bool
  ) -> jax.Array:
    """A block of K or V; 0 for keys that are not used."""
    block = self.pair.block_kv
    left = program.band.seq_kv - keys.start if masked and self.walk.ragged else None
    window = ref.at[pl.ds(keys.at, block), :]
    return load_block(window, (block, padded_dim(size)), rows_left=left, width=size)

  def visible(self, program: QueryProgram, keys: Side) -> jax.Array:
    """Which pairs of the tile's queries and a block of keys are visible."""
    refs = program.refs
    return self.pair.visible(
      program.band,
      program.queries,
      keys,
      mask_ref=refs.mask,
      query_segments=refs.query_segments,
      key_segments=refs.key_segments,
    )
