"""Programs that keep a block of queries and walk the keys it sees: the forward kernel and "dq"."""

import dataclasses
from typing import Any

import jax
from jax.experimental import pallas as pl

from hw_profiles.attention.multistage import padded_dim
from pallas_kernels.attention.blocks import load_block
from pallas_kernels.attention.integers import quotient
from pallas_kernels.attention.operands import AttentionOperands
from pallas_kernels.attention.pairs import Side, pair_rule
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.attention.schedule import Tile, TileOrder, Walk
from pallas_kernels.attention.tiles import Program, Tiles, span_of, spec_of


@dataclasses.dataclass(frozen=True)
class QueryTiles(Tiles):
  """Tiles of queries; their programs are handed all keys and values of one key head."""

  @classmethod
  def create(
    cls,
    rule: AttentionRule,
    operands: AttentionOperands,
    *,
    block_q: int,
    block_kv: int,
    mending: bool = False,
  ) -> "QueryTiles":
    """For these operands, or their shapes.

    Args:
      rule: What is computed.
      operands: The arrays.
      block_q: Queries of a program.
      block_kv: Keys of a step.
      mending: Whether there are results, to compute again where they are in doubt:
        a program keeps a span of blocks then, since most have nothing to do; and
        values that are not finite are expected, so all are walked alike, with care.
    """
    sizes = operands.sizes
    blocks = pl.cdiv(sizes.seq_q, block_q)
    span = span_of(blocks, mending=mending)
    row_bytes = (sizes.head_dim + sizes.value_dim) * operands.key.dtype.itemsize
    return cls(
      rule=rule,
      pair=pair_rule(
        rule, operands, block_q=block_q, block_kv=block_kv, by_keys=False, doubtful=mending
      ),
      order=TileOrder.create(
        batch=sizes.batch,
        heads=sizes.heads,
        sharing=sizes.group,
        blocks=pl.cdiv(blocks, span),
        walked_bytes=sizes.seq_kv * row_bytes,
        grows=rule.band.later_queries_see_more,
      ),
      walk=Walk.create(
        block=block_kv,
        extent=sizes.seq_kv,
        has_lengths=operands.key_lengths is not None,
        all_masked=operands.has_pair_masks or mending,
      ),
      sizes=sizes,
      panel=pl.cdiv(sizes.seq_kv, block_kv) * block_kv,
      span=span,
    )

  def key_head(self, tile: Tile) -> Any:
    """The key head that a tile's head reads."""
    return quotient(tile.head, self.sizes.group)

  def operand_specs(self, operands: AttentionOperands) -> AttentionOperands:
    """A BlockSpec for each operand that there is."""
    specs, kept, sides = self.specs, self.kept, (self.kept, self.panel)
    pairs = {"head": lambda tile: tile.head, "blocks": (lambda tile: tile.block, None)}
    return AttentionOperands(
      query=self.rows_spec(operands.query),
      key=specs.rows(operands.key, self.panel, head=self.key_head, block=None),
      value=specs.rows(operands.value, self.panel, head=self.key_head, block=None),
      bias=spec_of(specs.pairs, operands.bias, sides, **pairs),
      mask=spec_of(specs.pairs, operands.mask, sides, **pairs),
      query_lengths=spec_of(specs.number, operands.query_lengths),
      key_lengths=spec_of(specs.number, operands.key_lengths),
      query_segments=spec_of(specs.vector, operands.query_segments, kept, lambda tile: tile.block),
      key_segments=spec_of(specs.vector, operands.key_segments, self.panel, None),
    )

  def load_keys(
    self, ref: Any, size: int, keys: Side, program: Program, *, masked: bool
  ) -> jax.Array:
    """A block of K or V; 0 for keys that are not used."""
    block = self.walked_block
    left = self._walked_left(keys, program.band.seq_kv, masked=masked)
    window = ref.at[pl.ds(keys.at, block), :]
    return load_block(window, (block, padded_dim(size)), rows_left=left, width=size)

  def visible(self, program: Program, keys: Side) -> jax.Array:
    """Which pairs of the tile's queries and a block of keys are visible."""
    return self._visible(program, program.rows, keys)
