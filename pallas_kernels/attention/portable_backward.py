"""The gradients of attention as plain `pl.pallas_call`s, none of them summed by atomics.

With P the probabilities, computed again from the log-sum-exp L, and

    dP = dO·Vᵀ,    dS = P ⊙ (dP - delta),    delta = rowsum(dO ⊙ O) - dL

    "dkv" keeps keys and walks queries:    dV = Pᵀ·dO,    dK = scale·dZᵀ·Q
    "dq"  keeps queries and walks keys:    dQ = scale·dZ·K

where dZ is dS, times the slope of the soft cap. `portable_bias` has the bias's
gradient. Each sum is one program's, in one order, so the bits of a gradient
depend on nothing but its operands and tile.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from hw_profiles import AttentionConfig
from hw_profiles.attention.multistage import padded_dim
from hw_profiles.attention.passes import (
  DEFAULT_BLOCK_KV_DKV,
  DEFAULT_BLOCK_KV_DQ,
  DEFAULT_BLOCK_Q_DKV,
  DEFAULT_BLOCK_Q_DQ,
)
from pallas_kernels import sharding
from pallas_kernels.attention import schedule, softmax
from pallas_kernels.attention.blocks import kernel_body
from pallas_kernels.attention.key_tiles import KeyTiles, masked_weights
from pallas_kernels.attention.operands import AttentionOperands, Upstream
from pallas_kernels.attention.portable import compiler_params, default_warps, is_spec
from pallas_kernels.attention.query_tiles import QueryTiles
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.attention.tiles import Program, as_stored


class Doubted(NamedTuple):
  """Gradients to compute again where they are in doubt.

  Attributes:
    gradients: [batch, length, heads, size] each: dQ, or dK and dV.
    doubt: float32 [batch, heads, length]: 0 for the rows that are right.
  """

  gradients: tuple[jax.Array, ...]
  doubt: jax.Array


def query_gradient(
  rule: AttentionRule,
  operands: AttentionOperands,
  upstream: Upstream,
  *,
  config: AttentionConfig,
  interpret: bool,
  given: Doubted | None = None,
) -> jax.Array:
  """dQ, [batch, T, N, H] in the query's dtype.

  Args:
    rule: As `portable.attention` takes it.
    operands: The same.
    upstream: What came from the forward pass and from above.
    config: As `portable.attention` takes it; with `given`, `portable.MENDING` will do.
    interpret: The same.
    given: Results of which the blocks of rows in doubt are computed again; None:
      computes all.
  """
  tiles = QueryTiles.create(
    rule,
    operands,
    block_q=config.block_q_dq or DEFAULT_BLOCK_Q_DQ,
    block_kv=config.block_kv_dq or DEFAULT_BLOCK_KV_DQ,
    mending=given is not None,
  )
  specs = Upstream(
    residual=tiles.vector_spec(upstream.residual),
    delta=tiles.vector_spec(upstream.delta),
    d_out=tiles.rows_spec(upstream.d_out),
  )
  found: tuple[jax.Array] = _call(
    tiles,
    _query_tile,
    (operands, upstream),
    specs,
    sizes=(tiles.sizes.head_dim,),
    config=config,
    interpret=interpret,
    given=given,
    name="attention_portable_dq",
  )
  return found[0]


def _call(
  tiles: QueryTiles | KeyTiles,
  compute: Callable[..., None],
  inputs: tuple[AttentionOperands, Upstream],
  upstream_specs: Upstream,
  *,
  sizes: tuple[int, ...],
  config: AttentionConfig,
  interpret: bool,
  given: Doubted | None,
  name: str,
) -> Any:
  """A kernel over all tiles of one side, or over those of `given` that are in doubt."""
  operands, upstream = as_stored(inputs[0]), inputs[1]
  limits = tiles.limits(operands)
  arrays = (given, operands, upstream, limits)
  structure = jax.tree.structure(arrays)
  order = tiles.order
  out_shape = tuple(
    sharding.out_struct(
      (order.batch, tiles.extent, order.heads, size), operands.query.dtype, operands.query
    )
    for size in sizes
  )
  out_specs = tuple(map(tiles.rows_spec, out_shape))

  def body(number: Any, *refs: Any) -> None:
    given_refs, operand_refs, upstream_refs, limits_ref = jax.tree.unflatten(
      structure, refs[: -len(sizes)]
    )

    def one(index: Any) -> None:
      program = tiles.program(number, operand_refs, limits_ref, index)
      compute(tiles, program, upstream_refs, refs[-len(sizes) :])

    tiles.each_block(number, None if given_refs is None else given_refs.doubt, one)

  in_specs = (
    None if given is None else Doubted(out_specs, tiles.vector_spec(given.doubt)),
    tiles.operand_specs(operands),
    upstream_specs,
    None if limits is None else tiles.limits_spec(limits),
  )
  return pl.pallas_call(
    kernel_body(body, interpret=interpret, like=operands.query),
    out_shape=out_shape,
    grid=(order.programs,),
    in_specs=jax.tree.leaves(in_specs, is_leaf=is_spec),
    out_specs=out_specs,
    input_output_aliases={} if given is None else {i: i for i in range(len(sizes))},
    compiler_params=None
    if interpret
    else compiler_params(
      num_warps=config.num_warps or default_warps(tiles.block), num_stages=config.num_stages
    ),
    interpret=interpret,
    name=name,
  )(*jax.tree.leaves(arrays))


def _query_tile(
  tiles: QueryTiles, program: Program, upstream: Upstream, out_refs: tuple[Any]
) -> None:
  """One tile of dQ."""
  pair, sizes, refs = tiles.pair, tiles.sizes, program.refs
  q = tiles.load_rows(refs.query, sizes.head_dim, program)
  d_out = tiles.load_rows(upstream.d_out, sizes.value_dim, program)
  residual, delta = (
    tiles.load_numbers_of_rows(ref, program) for ref in (upstream.residual, upstream.delta)
  )
  stored = softmax.stored_exponent(residual)

  def visit(block: Any, acc: jax.Array, masked: bool) -> jax.Array:
    keys = tiles.walked(block)
    k = tiles.load_keys(refs.key, sizes.head_dim, keys, program, masked=masked)
    v = tiles.load_keys(refs.value, sizes.value_dim, keys, program, masked=masked)
    scores = pair.scores(q, k, refs.bias, program.rows, keys, masked=masked)
    visible = tiles.visible(program, keys) if masked else None
    weights = softmax.weights_again(scores, stored[:, None], exponent=pair.logits.exponent)
    d_scores = softmax.score_gradient(
      masked_weights(weights, visible),
      pair.products.rows(d_out, v),
      delta[:, None],
      pair.logits.slope(scores),
    )
    return acc + pair.weigh(d_scores, k, visible, signed=True)

  acc = jnp.zeros((pair.block_q, padded_dim(sizes.head_dim)), jnp.float32)
  out = schedule.walk(program.regions, visit, acc) * tiles.rule.scale
  if program.used_rows is not None:
    out = jnp.where(program.used_rows[:, None], out, jnp.zeros_like(out))
  (ref,) = out_refs
  tiles.store_rows(ref, out, sizes.head_dim, program)


def key_value_gradients(
  rule: AttentionRule,
  operands: AttentionOperands,
  upstream: Upstream,
  *,
  config: AttentionConfig,
  interpret: bool,
  given: Doubted | None = None,
) -> tuple[jax.Array, jax.Array]:
  """dK [batch, S, K, H] and dV [batch, S, K, Hv]; arguments as `query_gradient`."""
  tiles = KeyTiles.create(
    rule,
    operands,
    block_q=config.block_q_dkv or DEFAULT_BLOCK_Q_DKV,
    block_kv=config.block_kv_dkv or DEFAULT_BLOCK_KV_DKV,
    mending=given is not None,
  )
  d_key, d_value = _call(
    tiles,
    _key_tile,
    (operands, upstream),
    tiles.upstream_specs(upstream),
    sizes=(tiles.sizes.head_dim, tiles.sizes.value_dim),
    config=config,
    interpret=interpret,
    given=given,
    name="attention_portable_dkv",
  )
  return d_key, d_value


def _key_tile(
  tiles: KeyTiles, program: Program, upstream: Upstream, out_refs: tuple[Any, Any]
) -> None:
  """One tile of dK and dV."""
  pair, sizes, refs = tiles.pair, tiles.sizes, program.refs
  k = tiles.load_rows(refs.key, sizes.head_dim, program)
  v = tiles.load_rows(refs.value, sizes.value_dim, program)
  start = tuple(
    jnp.zeros((pair.block_kv, padded_dim(size)), jnp.float32)
    for size in (sizes.head_dim, sizes.value_dim)
  )

  def visit(
    member: Any, block: Any, accs: tuple[jax.Array, jax.Array], masked: bool
  ) -> tuple[jax.Array, jax.Array]:
    return _add_queries(tiles, program, upstream, (k, v), member, block, accs, masked=masked)

  d_key, d_value = schedule.walk_members(program.regions, sizes.group, visit, start)
  for ref, out, size in (
    (out_refs[0], d_key * tiles.rule.scale, sizes.head_dim),
    (out_refs[1], d_value, sizes.value_dim),
  ):
    if program.used_rows is not None:
      out = jnp.where(program.used_rows[:, None], out, jnp.zeros_like(out))
    tiles.store_rows(ref, out, size, program)


def _add_queries(
  tiles: KeyTiles,
  program: Program,
  upstream: Upstream,
  kept: tuple[jax.Array, jax.Array],
  member: Any,
  block: Any,
  accs: tuple[jax.Array, jax.Array],
  *,
  masked: bool,
) -> tuple[jax.Array, jax.Array]:
  """What a block of queries of one head adds to dK / scale and dV."""
  pair, sizes, refs = tiles.pair, tiles.sizes, program.refs
  k, v = kept
  queries = tiles.walked(block)
  at: tuple[Any, ...] = (member, queries, program)
  q = tiles.load_queries(refs.query, sizes.head_dim, *at, masked=masked)
  d_out = tiles.load_queries(upstream.d_out, sizes.value_dim, *at, masked=masked)
  residual = tiles.load_numbers(upstream.residual, *at, masked=masked)
  delta = tiles.load_numbers(upstream.delta, *at, masked=masked)
  scores = pair.scores(q, k, refs.bias, queries, program.rows, masked=True, lead=(member,))
  visible = tiles.visible(program, queries, member) if masked else None
  weights = softmax.weights_again(
    scores,
    pair.along_queries(softmax.stored_exponent(residual)),
    exponent=pair.logits.exponent,
  )
  weights = masked_weights(weights, visible)
  d_scores = softmax.score_gradient(
    weights,
    pair.products.rows(v, d_out),
    pair.along_queries(delta),
    pair.logits.slope(scores),
  )
  d_key, d_value = accs
  return (
    d_key + pair.weigh(d_scores, q, visible, signed=True),
    d_value + pair.weigh(weights, d_out, visible),
  )
