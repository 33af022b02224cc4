"""Programs that keep a block of keys and values and walk the queries that see it: "dkv"."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from hw_profiles.attention.multistage import padded_dim
from pallas_kernels.attention.blocks import Specs, load_block, load_vector
from pallas_kernels.attention.masks import Band, block_positions
from pallas_kernels.attention.operands import AttentionOperands, Sizes, Upstream
from pallas_kernels.attention.pairs import PairRule, Side, pair_rule
from pallas_kernels.attention.query_tiles import used
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.attention.schedule import Region, Tile, TileOrder, Walk, segment_limits


@dataclasses.dataclass(frozen=True)
class KeyProgram:
  """One program: its tile, its keys and the queries that see them.

  Attributes:
    keys: Its block of keys.
    rows_left: Rows that the arrays have; None: the whole block.
    band: Of its sequence.
    regions: Blocks of queries to walk, once for each head of the group.
    refs: The operands.
    used_rows: bool [block_kv], keys of the sequence; None: all that exist.
  """

  keys: Side
  rows_left: Any
  band: Band
  regions: tuple[Region, ...]
  refs: AttentionOperands
  used_rows: jax.Array | None


@dataclasses.dataclass(frozen=True)
class KeyTiles:
  """The grid of such a kernel and what its programs are handed.

  A tile's head is a key head; its program takes all query heads that read it,
  one after another, so that their gradients are summed in one order.

  Attributes:
    rule: What is computed.
    pair: Blocks of scores, [keys, queries].
    order: The order of the programs.
    walk: How they walk queries.
    sizes: Of the attention.
    panel: Queries of a panel: whole blocks.
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
  ) -> "KeyTiles":
    """For these operands, or their shapes."""
    sizes = operands.sizes
    row_bytes = (sizes.head_dim + sizes.value_dim) * operands.query.dtype.itemsize
    return cls(
      rule=rule,
      pair=pair_rule(rule, operands, block_q=block_q, block_kv=block_kv, by_keys=True),
      order=TileOrder.create(
        batch=sizes.batch,
        heads=sizes.kv_heads,
        sharing=1,
        blocks=pl.cdiv(sizes.seq_kv, block_kv),
        walked_bytes=sizes.group * sizes.seq_q * row_bytes,
        # late keys are seen by few queries where late queries see many keys
        grows=False,
      ),
      walk=Walk.create(
        block=block_q,
        extent=sizes.seq_q,
        has_lengths=operands.query_lengths is not None,
        all_masked=operands.has_pair_masks,
      ),
      sizes=sizes,
      panel=pl.cdiv(sizes.seq_q, block_q) * block_q,
    )

  def limits(self, operands: AttentionOperands) -> jax.Array | None:
    """Blocks of queries that share a segment with each block of keys."""
    if operands.query_segments is None or operands.key_segments is None:
      return None
    return segment_limits(
      operands.key_segments,
      operands.query_segments,
      block_rows=self.pair.block_kv,
      block_columns=self.pair.block_q,
    )

  @property
  def specs(self) -> Specs:
    """BlockSpecs over this grid."""
    return Specs(self.order.tile)

  def rows_spec(self, array: Any) -> pl.BlockSpec:
    """A tile's rows of [b, S, K, D]."""
    return self.specs.rows(
      array, self.pair.block_kv, head=lambda tile: tile.head, block=lambda tile: tile.block
    )

  def operand_specs(self, operands: AttentionOperands) -> AttentionOperands:
    """A BlockSpec for each operand that there is."""
    specs, block_kv, group = self.specs, self.pair.block_kv, self.sizes.group

    def one(make: Any, array: Any, *args: Any, **options: Any) -> Any:
      return None if array is None else make(array, *args, **options)

    # an index counts blocks of `group` heads, which are those of one key head
    pairs = {
      "head": lambda tile: tile.head,
      "blocks": (None, lambda tile: tile.block),
      "count": group,
    }
    return AttentionOperands(
      query=self._queries_spec(operands.query),
      key=self.rows_spec(operands.key),
      value=self.rows_spec(operands.value),
      bias=one(specs.pairs, operands.bias, (self.panel, block_kv), **pairs),
      mask=one(specs.pairs, operands.mask, (self.panel, block_kv), **pairs),
      query_lengths=one(specs.number, operands.query_lengths),
      key_lengths=one(specs.number, operands.key_lengths),
      query_segments=one(specs.vector, operands.query_segments, self.panel, None),
      key_segments=one(specs.vector, operands.key_segments, block_kv, lambda tile: tile.block),
    )

  def _queries_spec(self, array: Any) -> pl.BlockSpec:
    """All rows of the group's heads of [b, T, N, D]."""
    return self.specs.heads(array, self.panel, count=self.sizes.group, head=lambda tile: tile.head)

  def upstream_specs(self, upstream: Upstream) -> Upstream:
    """The same of what comes from the forward pass and from above."""

    def vectors(array: Any) -> pl.BlockSpec:
      return self.specs.per_head(
        array, self.panel, head=lambda tile: tile.head, block=None, count=self.sizes.group
      )

    return Upstream(
      residual=vectors(upstream.residual),
      delta=vectors(upstream.delta),
      d_out=self._queries_spec(upstream.d_out),
    )

  def program(self, number: Any, refs: AttentionOperands, limits_ref: Any) -> KeyProgram:
    """What the program of this number works on."""
    sizes, pair = self.sizes, self.pair
    tile: Tile = self.order.tile(number)
    start = tile.block * pair.block_kv
    seq_q, seq_kv = used(refs.query_lengths, sizes.seq_q), used(refs.key_lengths, sizes.seq_kv)
    band = self.rule.band.of(seq_q=seq_q, seq_kv=seq_kv)
    turned = band.transposed()
    blocks = turned.key_blocks(start, block_q=pair.block_kv, block_kv=pair.block_q)
    limits = None if limits_ref is None else (limits_ref[0], limits_ref[1])
    inside = None
    if refs.key_lengths is not None:
      inside = block_positions(start, pair.block_kv, axis=0)[:, 0] < seq_kv
    return KeyProgram(
      keys=Side(start, 0),
      rows_left=sizes.seq_kv - start if sizes.seq_kv % pair.block_kv else None,
      band=band,
      regions=self.walk.regions(turned, blocks, limits),
      refs=refs,
      used_rows=inside,
    )

  def load_rows(self, ref: Any, size: int, program: KeyProgram) -> jax.Array:
    """A tile's rows of K or V; 0 where there are none."""
    shape = (self.pair.block_kv, padded_dim(size))
    return load_block(ref, shape, rows_left=program.rows_left, width=size)

  def _left(self, queries: Side, program: KeyProgram, *, masked: bool) -> Any:
    return program.band.seq_q - queries.start if masked and self.walk.ragged else None

  def load_queries(
    self, ref: Any, size: int, member: Any, queries: Side, program: KeyProgram, *, masked: bool
  ) -> jax.Array:
    """A block of Q or dO of one head of the group; 0 for queries that are not used."""
    block = self.pair.block_q
    window = ref.at[pl.ds(queries.at, block), member, :]
    left = self._left(queries, program, masked=masked)
    return load_block(window, (block, padded_dim(size)), rows_left=left, width=size)

  def load_numbers(
    self, ref: Any, member: Any, queries: Side, program: KeyProgram, *, masked: bool
  ) -> jax.Array:
    """A block of residuals or deltas of one head of the group."""
    block = self.pair.block_q
    window = ref.at[member, pl.ds(queries.at, block)]
    return load_vector(window, block, left=self._left(queries, program, masked=masked))

  def visible(self, program: KeyProgram, queries: Side, member: Any) -> jax.Array:
    """Which pairs of a block of queries and the tile's keys are visible."""
    refs = program.refs
    return self.pair.visible(
      program.band,
      queries,
      program.keys,
      mask_ref=refs.mask,
      query_segments=refs.query_segments,
      key_segments=refs.key_segments,
      lead=(member,),
    )


def masked_weights(weights: jax.Array, visible: jax.Array | None) -> jax.Array:
  """Probabilities, 0 where nothing is visible."""
  return weights if visible is None else jnp.where(visible, weights, jnp.zeros_like(weights))
