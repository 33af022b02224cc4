"""A block of queries against a block of keys: what every portable kernel computes first."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.attention.blocks import Products, load_block, load_vector
from pallas_kernels.attention.masks import Band, block_positions
from pallas_kernels.attention.operands import AttentionOperands, Sizes
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.attention.softmax import LogitRule


def _indices(sizes: tuple[int, ...], at: tuple[Any, ...]) -> tuple[Any, ...]:
  """`at` for dimensions of these sizes, 0 where a size is 1."""
  # a traced 0: the interpreter's masked load takes no other index
  return tuple(x * 0 if size == 1 else x for size, x in zip(sizes, at, strict=False))


class Side(NamedTuple):
  """A block of queries or of keys.

  Attributes:
    start: Position of its first row in the sequence.
    at: Where it begins in the refs that the program was handed.
  """

  start: Any
  at: Any


@dataclasses.dataclass(frozen=True)
class PairRule:
  """How scores of pairs are computed and which are visible; the same for all programs.

  Attributes:
    logits: From products to logits.
    products: The products.
    sizes: Of the attention.
    block_q: Queries of a block.
    block_kv: Keys of a block.
    by_keys: Scores are [keys, queries] instead of [queries, keys].
    rows_differ: Whether queries of a block may see different keys: the mask is
      more than a length.
  """

  logits: LogitRule
  products: Products
  sizes: Sizes
  block_q: int
  block_kv: int
  by_keys: bool
  rows_differ: bool

  @property
  def shape(self) -> tuple[int, int]:
    """Of a block of scores."""
    sides = (self.block_q, self.block_kv)
    return sides[::-1] if self.by_keys else sides

  def _oriented(self, x: jax.Array) -> jax.Array:
    return x.T if self.by_keys else x

  def along_queries(self, x: jax.Array) -> jax.Array:
    """[queries] to broadcast over scores."""
    return x[None, :] if self.by_keys else x[:, None]

  def along_keys(self, x: jax.Array) -> jax.Array:
    """[keys] to broadcast over scores."""
    return x[:, None] if self.by_keys else x[None, :]

  def _pair_block(
    self, ref: Any, queries: Side, keys: Side, *, masked: bool, lead: tuple[Any, ...]
  ) -> jax.Array:
    """A block of a bias or mask ref, whose sides may be 1, after the indices `lead`."""
    whole = (self.block_q, self.block_kv)
    extents = (self.sizes.seq_q, self.sizes.seq_kv)
    shape, starts, left = [], [], []
    lead = _indices(ref.shape[:-2], lead)
    sides = zip(ref.shape[-2:], (queries, keys), whole, extents, strict=True)
    for size, side, block, extent in sides:
      broadcast = size == 1
      shape.append(1 if broadcast else block)
      starts.append(pl.ds(0 if broadcast else side.at, shape[-1]))
      left.append(None if broadcast or extent % block == 0 else extent - side.start)
    # blocks of keys without a mask are whole
    width = left[1] if masked else None
    at = ref.at[(*lead, *starts)]
    found = load_block(at, (shape[0], shape[1]), rows_left=left[0], width=width)
    return self._oriented(found)

  def scores(
    self,
    q: jax.Array,
    k: jax.Array,
    bias_ref: Any,
    queries: Side,
    keys: Side,
    *,
    masked: bool,
    lead: tuple[Any, ...] = (),
  ) -> jax.Array:
    """`LogitRule.scores` of a block, [queries, keys] or the other way round.

    Args:
      q: [queries, head size].
      k: [keys, head size].
      bias_ref: The bias, or None.
      queries: Where the queries are.
      keys: Where the keys are.
      masked: Whether the block may hang over the end of the keys.
      lead: Indices before the two sides of the bias.
    """
    dots = self.products.rows(k, q) if self.by_keys else self.products.rows(q, k)
    bias = None
    if bias_ref is not None:
      bias = self._pair_block(bias_ref, queries, keys, masked=masked, lead=lead)
    return self.logits.scores(dots, bias)

  def visible(
    self,
    band: Band,
    queries: Side,
    keys: Side,
    *,
    mask_ref: Any = None,
    query_segments: Any = None,
    key_segments: Any = None,
    lead: tuple[Any, ...] = (),
  ) -> jax.Array:
    """Which pairs of a block are visible.

    `lead` as in `scores`, for the mask; its first part is for segments.
    """
    query_axis = 1 if self.by_keys else 0
    seen = band.visible(
      block_positions(queries.start, self.block_q, axis=query_axis),
      block_positions(keys.start, self.block_kv, axis=1 - query_axis),
    )
    if query_segments is not None:
      ids = []
      for ref, side, block, extent in (
        (query_segments, queries, self.block_q, self.sizes.seq_q),
        (key_segments, keys, self.block_kv, self.sizes.seq_kv),
      ):
        left = extent - side.start if extent % block else None
        at = (*_indices(ref.shape[:-1], lead), pl.ds(side.at, block))
        ids.append(load_vector(ref.at[at], block, left=left))
      seen &= self.along_queries(ids[0]) == self.along_keys(ids[1])
    if mask_ref is not None:
      seen &= self._pair_block(mask_ref, queries, keys, masked=True, lead=lead) != 0
    return jnp.broadcast_to(seen, self.shape)

  def weigh(
    self,
    weights: jax.Array,
    values: jax.Array,
    visible: jax.Array | None,
    *,
    signed: bool = False,
  ) -> jax.Array:
    """weights·values over visible pairs; see `visible_product`."""
    seen = visible if self.rows_differ else None
    return self.products.visible(weights, values, seen, signed=signed)


def pair_rule(
  rule: AttentionRule,
  operands: AttentionOperands,
  *,
  block_q: int,
  block_kv: int,
  by_keys: bool,
  doubtful: bool = False,
) -> PairRule:
  """The rule for blocks of these sizes; see `PairRule`."""
  return PairRule(
    logits=rule.logits(has_bias=operands.bias is not None),
    products=Products(rule.precision, doubtful=doubtful),
    sizes=operands.sizes,
    block_q=block_q,
    block_kv=block_kv,
    by_keys=by_keys,
    rows_differ=operands.has_pair_masks or not rule.band.is_open,
  )
