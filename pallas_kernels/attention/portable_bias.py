"""The bias's gradient as a plain `pl.pallas_call`: dZ, summed over what the bias was spread over.

One program computes one block of the gradient: a block of queries, or all of
them where the bias has one row, by a block of keys, or all. It walks the
sequences, heads and blocks that read it, in that order, so no dZ is stored and
no sum depends on who comes first.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from hw_profiles import AttentionConfig
from hw_profiles.attention.multistage import padded_dim
from hw_profiles.attention.passes import DEFAULT_BLOCK_KV_DQ, DEFAULT_BLOCK_Q_DQ
from pallas_kernels import sharding
from pallas_kernels.attention import softmax
from pallas_kernels.attention.blocks import kernel_body, load_block, load_vector, store_block
from pallas_kernels.attention.key_tiles import masked_weights
from pallas_kernels.attention.operands import AttentionOperands, Upstream
from pallas_kernels.attention.pairs import PairRule, Side, pair_rule
from pallas_kernels.attention.portable import compiler_params, default_warps
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.attention.tiles import as_stored


class _BiasTile(NamedTuple):
  """A block of the gradient."""

  group: Any
  head: Any
  query_block: Any
  key_block: Any


@dataclasses.dataclass(frozen=True)
class _BiasTiles:
  """The grid: `groups` x heads of the bias x its blocks of queries x of keys.

  Attributes:
    rule: What is computed.
    pair: Blocks of scores.
    groups: Consecutive equal parts of the batch, each summed on its own.
    heads: Heads of the bias: 1 or all.
    blocks: Blocks of queries and of keys.
    summed: Whether the bias has one row, and one column.
  """

  rule: AttentionRule
  pair: PairRule
  groups: int
  heads: int
  blocks: tuple[int, int]
  summed: tuple[bool, bool]

  @property
  def grid(self) -> tuple[int, int, int, int]:
    """Programs along each side of a `_BiasTile`."""
    rows, columns = (
      1 if summed else count for summed, count in zip(self.summed, self.blocks, strict=True)
    )
    return self.groups, self.heads, rows, columns

  def tile(self, program: Any) -> _BiasTile:
    """What a program computes."""
    index = []
    for count in self.grid[:0:-1]:
      index.append(program % count)
      program = program // count
    return _BiasTile(program, *index[::-1])

  def walked(self, tile: _BiasTile, side: int) -> tuple[Any, Any]:
    """First block and end of those that a program walks on a side."""
    if self.summed[side]:
      return jnp.int32(0), jnp.int32(self.blocks[side])
    return tile[2 + side], tile[2 + side] + 1


def bias_gradient(
  rule: AttentionRule,
  operands: AttentionOperands,
  upstream: Upstream,
  *,
  groups: int,
  config: AttentionConfig,
  interpret: bool,
) -> jax.Array:
  """dbias [groups, N or 1, T or 1, S or 1], in the bias's dtype.

  Args:
    rule: What is computed.
    operands: As in `portable.attention`, with a bias.
    upstream: Residual, delta and dO.
    groups: Consecutive equal parts of the batch; each has a gradient of its own.
    config: Tile sizes of "dq".
    interpret: True runs it with the Pallas interpreter, on any device.
  """
  assert operands.bias is not None
  block_q = config.block_q_dq or DEFAULT_BLOCK_Q_DQ
  block_kv = config.block_kv_dq or DEFAULT_BLOCK_KV_DQ
  sizes = operands.sizes
  _, heads, rows, columns = operands.bias.shape
  tiles = _BiasTiles(
    rule=rule,
    pair=pair_rule(rule, operands, block_q=block_q, block_kv=block_kv, by_keys=False),
    groups=groups,
    heads=heads,
    blocks=(pl.cdiv(sizes.seq_q, block_q), pl.cdiv(sizes.seq_kv, block_kv)),
    summed=(rows == 1, columns == 1),
  )
  inputs = (as_stored(operands), upstream)
  structure = jax.tree.structure(inputs)

  def body(program: Any, *refs: Any) -> None:
    operand_refs, upstream_refs = jax.tree.unflatten(structure, refs[:-1])
    _tile(tiles, program, operand_refs, upstream_refs, refs[-1])

  panels = tuple(
    count * block for count, block in zip(tiles.blocks, (block_q, block_kv), strict=True)
  )
  block = tuple(
    1 if summed else size for summed, size in zip(tiles.summed, (block_q, block_kv), strict=True)
  )
  return pl.pallas_call(
    kernel_body(body, interpret=interpret, like=operands.query),
    out_shape=sharding.out_struct(
      (groups, heads, rows, columns), operands.bias.dtype, operands.query
    ),
    grid=(groups * heads * tiles.grid[2] * tiles.grid[3],),
    in_specs=_whole(inputs, panels),
    out_specs=pl.BlockSpec((None, None, *block), tiles.tile),
    compiler_params=None
    if interpret
    else compiler_params(
      num_warps=config.num_warps or default_warps(block_q),
      num_stages=_stages(tiles, config.num_stages),
    ),
    interpret=interpret,
    name="attention_portable_dbias",
  )(*jax.tree.leaves(inputs))


def _stages(tiles: _BiasTiles, stages: int) -> int:
  """Stages that need no more shared memory than "dq", whose tile it is, needs with `stages`.

  As in "dq" a block of Q and dO is kept and those of K and V come in stages. But of one
  block of keys there is no loop, so Triton pipelines the one around it, over heads or
  sequences, and all four come in stages: with 4 of them 64 x 64 blocks of 16-bit heads
  of 128 took 260 KiB, where an H200 has 227.
  """
  if tiles.blocks[1] > 1:
    return stages
  kept, walked = tiles.pair.shape
  return max(1, (kept + stages * walked) // (kept + walked))


def _whole(
  inputs: tuple[AttentionOperands, Upstream], panels: tuple[int, ...]
) -> list[pl.BlockSpec]:
  """Every array whole: a program walks sequences and heads itself."""
  operands, upstream = inputs
  rows, columns = panels

  def spec(array: Any, lengths: dict[int, int]) -> Any:
    if array is None:
      return None
    block = tuple(
      lengths.get(axis, size) if size > 1 else 1 for axis, size in enumerate(array.shape)
    )
    if len(block) == 4 and 2 not in lengths:
      block = (*block[:3], padded_dim(block[3]))
    return pl.BlockSpec(block, lambda _: (0,) * len(block))

  found = (
    AttentionOperands(
      query=spec(operands.query, {1: rows}),
      key=spec(operands.key, {1: columns}),
      value=spec(operands.value, {1: columns}),
      bias=spec(operands.bias, {2: rows, 3: columns}),
      mask=spec(operands.mask, {2: rows, 3: columns}),
      query_lengths=spec(operands.query_lengths, {}),
      key_lengths=spec(operands.key_lengths, {}),
      query_segments=spec(operands.query_segments, {1: rows}),
      key_segments=spec(operands.key_segments, {1: columns}),
    ),
    Upstream(
      residual=spec(upstream.residual, {2: rows}),
      delta=spec(upstream.delta, {2: rows}),
      d_out=spec(upstream.d_out, {1: rows}),
    ),
  )
  return jax.tree.leaves(found, is_leaf=lambda x: isinstance(x, pl.BlockSpec))


def _tile(
  tiles: _BiasTiles, number: Any, refs: AttentionOperands, upstream: Upstream, out_ref: Any
) -> None:
  """One block of the bias's gradient."""
  pair, sizes = tiles.pair, tiles.pair.sizes
  tile = tiles.tile(number)
  per_group = sizes.batch // tiles.groups
  first_query, end_query = tiles.walked(tile, 0)
  first_key, end_key = tiles.walked(tile, 1)

  def loop(first: Any, end: Any, body: Any, acc: jax.Array) -> jax.Array:
    low, high = (lax.convert_element_type(x, jnp.int32) for x in (first, end))
    out: jax.Array = lax.fori_loop(low, high, body, acc)
    return out

  def one_sequence(member: Any, acc: jax.Array) -> jax.Array:
    batch = tile.group * per_group + member

    def one_head(index: Any, acc: jax.Array) -> jax.Array:
      head = tile.head if tiles.heads > 1 else index
      row = _Row(tiles, refs, upstream, batch, head)

      def one_block(block: Any, acc: jax.Array) -> jax.Array:
        queries, visited = row.queries(block)
        loaded = row.load(queries)
        low = jnp.maximum(visited.first, first_key)
        high = jnp.minimum(visited.end, end_key)
        return loop(low, high, lambda key, acc: acc + row.d_scores(loaded, queries, key), acc)

      return loop(first_query, end_query, one_block, acc)

    return loop(0, 1 if tiles.heads > 1 else sizes.heads, one_head, acc)

  acc = loop(0, per_group, one_sequence, jnp.zeros(pair.shape, jnp.float32))
  for axis, summed in enumerate(tiles.summed):
    if summed:
      acc = jnp.sum(acc, axis=axis, keepdims=True)
  left, width = (
    None if extent % block == 0 or summed else extent - tile[2 + axis] * block
    for axis, (extent, block, summed) in enumerate(
      zip((sizes.seq_q, sizes.seq_kv), pair.shape, tiles.summed, strict=True)
    )
  )
  store_block(out_ref, acc.astype(out_ref.dtype), rows_left=left, width=width)


@dataclasses.dataclass(frozen=True)
class _Row:
  """One head of one sequence, from refs of whole arrays."""

  tiles: _BiasTiles
  refs: AttentionOperands
  upstream: Upstream
  batch: Any
  head: Any

  def _at(self, ref: Any) -> Any:
    # a traced 0: the interpreter's masked load takes no other index
    return self.batch * 0 if ref.shape[0] == 1 else self.batch

  def _used(self, ref: Any, extent: int) -> Any:
    return extent if ref is None else jnp.clip(ref[self._at(ref)], 0, extent)

  @property
  def _band(self) -> Any:
    sizes, refs = self.tiles.pair.sizes, self.refs
    return self.tiles.rule.band.of(
      seq_q=self._used(refs.query_lengths, sizes.seq_q),
      seq_kv=self._used(refs.key_lengths, sizes.seq_kv),
    )

  def queries(self, block: Any) -> tuple[Side, Any]:
    """A block of queries and the blocks of keys that it visits."""
    pair = self.tiles.pair
    start = block * pair.block_q
    blocks = self._band.key_blocks(start, block_q=pair.block_q, block_kv=pair.block_kv)
    return Side(start, start), blocks

  def _rows(self, ref: Any, side: Side, block: int, left: Any, size: int, head: Any) -> jax.Array:
    window = ref.at[self._at(ref), pl.ds(side.at, block), head, :]
    return load_block(window, (block, padded_dim(size)), rows_left=left, width=size)

  def load(self, queries: Side) -> tuple[jax.Array, ...]:
    """Q, dO, stored exponent and delta of a block of queries."""
    pair, sizes = self.tiles.pair, self.tiles.pair.sizes
    block = pair.block_q
    left = sizes.seq_q - queries.start if sizes.seq_q % block else None
    numbers = [
      load_vector(ref.at[self._at(ref), self.head, pl.ds(queries.at, block)], block, left=left)
      for ref in (self.upstream.residual, self.upstream.delta)
    ]
    return (
      self._rows(self.refs.query, queries, block, left, sizes.head_dim, self.head),
      self._rows(self.upstream.d_out, queries, block, left, sizes.value_dim, self.head),
      softmax.stored_exponent(numbers[0]),
      numbers[1],
    )

  def d_scores(self, loaded: tuple[jax.Array, ...], queries: Side, key_block: Any) -> jax.Array:
    """dZ of a block."""
    pair, sizes, refs = self.tiles.pair, self.tiles.pair.sizes, self.refs
    q, d_out, stored, delta = loaded
    block = pair.block_kv
    start = key_block * block
    keys = Side(start, start)
    band = self._band
    left = band.seq_kv - start
    head = self.head // sizes.group
    k = self._rows(refs.key, keys, block, left, sizes.head_dim, head)
    v = self._rows(refs.value, keys, block, left, sizes.value_dim, head)
    lead = (self.batch, self.head)
    scores = pair.scores(q, k, refs.bias, queries, keys, masked=True, lead=lead)
    visible = pair.visible(
      band,
      queries,
      keys,
      mask_ref=refs.mask,
      query_segments=refs.query_segments,
      key_segments=refs.key_segments,
      lead=lead,
    )
    weights = softmax.weights_again(scores, stored[:, None], exponent=pair.logits.exponent)
    return softmax.score_gradient(
      masked_weights(weights, visible),
      pair.products.rows(d_out, v),
      delta[:, None],
      pair.logits.slope(scores),
    )
