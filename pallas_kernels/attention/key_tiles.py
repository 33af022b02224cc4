"""Programs that keep a block of keys and values and walk the queries that see it: "dkv"."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from hw_profiles.attention.multistage import padded_dim
from pallas_kernels.attention.blocks import load_block, load_vector
from pallas_kernels.attention.operands import AttentionOperands, Upstream
from pallas_kernels.attention.pairs import Side, pair_rule
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.attention.schedule import TileOrder, Walk
from pallas_kernels.attention.tiles import Program, Tiles, span_of, spec_of


@dataclasses.dataclass(frozen=True)
class KeyTiles(Tiles):
  """Tiles of keys; their programs are handed all queries of the heads that read them.

  A tile's head is a key head; its program takes all query heads that read it,
  one after another, so that their gradients are summed in one order. It walks
  its regions once for each of them.
  """

  @classmethod
  def create(
    cls,
    rule: AttentionRule,
    operands: AttentionOperands,
    *,
    block_q: int,
    block_kv: int,
    mending: bool = False,
  ) -> "KeyTiles":
    """For these operands, or their shapes; see `QueryTiles.create`."""
    sizes = operands.sizes
    blocks = pl.cdiv(sizes.seq_kv, block_kv)
    span = span_of(blocks, mending=mending)
    row_bytes = (sizes.head_dim + sizes.value_dim) * operands.query.dtype.itemsize
    return cls(
      rule=rule,
      pair=pair_rule(
        rule, operands, block_q=block_q, block_kv=block_kv, by_keys=True, doubtful=mending
      ),
      order=TileOrder.create(
        batch=sizes.batch,
        heads=sizes.kv_heads,
        sharing=1,
        blocks=pl.cdiv(blocks, span),
        walked_bytes=sizes.group * sizes.seq_q * row_bytes,
        # late keys are seen by few queries where late queries see many keys
        grows=False,
      ),
      walk=Walk.create(
        block=block_q,
        extent=sizes.seq_q,
        has_lengths=operands.query_lengths is not None,
        all_masked=operands.has_pair_masks or mending,
      ),
      sizes=sizes,
      panel=pl.cdiv(sizes.seq_q, block_q) * block_q,
      span=span,
    )

  def operand_specs(self, operands: AttentionOperands) -> AttentionOperands:
    """A BlockSpec for each operand that there is."""
    specs, kept, sides = self.specs, self.kept, (self.panel, self.kept)
    # an index counts blocks of `group` heads, which are those of one key head
    pairs = {
      "head": lambda tile: tile.head,
      "blocks": (None, lambda tile: tile.block),
      "count": self.sizes.group,
    }
    return AttentionOperands(
      query=self._queries_spec(operands.query),
      key=self.rows_spec(operands.key),
      value=self.rows_spec(operands.value),
      bias=spec_of(specs.pairs, operands.bias, sides, **pairs),
      mask=spec_of(specs.pairs, operands.mask, sides, **pairs),
      query_lengths=spec_of(specs.number, operands.query_lengths),
      key_lengths=spec_of(specs.number, operands.key_lengths),
      query_segments=spec_of(specs.vector, operands.query_segments, self.panel, None),
      key_segments=spec_of(specs.vector, operands.key_segments, kept, lambda tile: tile.block),
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

  def load_queries(
    self, ref: Any, size: int, member: Any, queries: Side, program: Program, *, masked: bool
  ) -> jax.Array:
    """A block of Q or dO of one head of the group; 0 for queries that are not used."""
    block = self.walked_block
    left = self._walked_left(queries, program.band.seq_q, masked=masked)
    window = ref.at[pl.ds(queries.at, block), member, :]
    return load_block(window, (block, padded_dim(size)), rows_left=left, width=size)

  def load_numbers(
    self, ref: Any, member: Any, queries: Side, program: Program, *, masked: bool
  ) -> jax.Array:
    """A block of residuals or deltas of one head of the group."""
    block = self.walked_block
    left = self._walked_left(queries, program.band.seq_q, masked=masked)
    return load_vector(ref.at[member, pl.ds(queries.at, block)], block, left=left)

  def visible(self, program: Program, queries: Side, member: Any) -> jax.Array:
    """Which pairs of a block of queries and the tile's keys are visible."""
    return self._visible(program, queries, program.rows, lead=(member,))


def masked_weights(weights: jax.Array, visible: jax.Array | None) -> jax.Array:
  """Probabilities, 0 where nothing is visible."""
  return weights if visible is None else jnp.where(visible, weights, jnp.zeros_like(weights))
