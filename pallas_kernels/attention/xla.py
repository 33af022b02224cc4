"""Attention and its gradients left to XLA: any device, any dtype, a score matrix in memory.

The fallback where no kernel applies, and what gradients of gradients are taken
of. It keeps the contract of the kernels: products and softmax in float32
(float64 for float64 operands), one rounding of each result, nothing from slots
that are not seen.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.attention.masks import Band
from pallas_kernels.attention.operands import AttentionOperands, Upstream
from pallas_kernels.attention.products import visible_product
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.dtypes import accumulator_dtype, round_once

_SCORES = "btkgh,bskh->bkgts"


class _Grouped:
  """Operands with heads as [key heads, group], and products over them."""

  def __init__(self, rule: AttentionRule, operands: AttentionOperands) -> None:
    self.rule = rule
    self.sizes = sizes = operands.sizes
    self.wide = accumulator_dtype(operands.query.dtype)
    self._split = (sizes.kv_heads, sizes.group)

    def shared(array: jax.Array) -> jax.Array:
      return jnp.broadcast_to(array, (sizes.batch, *array.shape[1:]))

    self.query = self.by_group(shared(operands.query), axis=2)
    self.key, self.value = shared(operands.key), shared(operands.value)
    self.bias = None if operands.bias is None else self._pairs(operands.bias).astype(self.wide)
    self.visible = self._visible(operands)
    self.logits = rule.logits(has_bias=operands.bias is not None)

  def by_group(self, array: jax.Array, *, axis: int) -> jax.Array:
    """An axis of query heads as two."""
    return array.reshape(*array.shape[:axis], *self._split, *array.shape[axis + 1 :])

  def _pairs(self, array: jax.Array) -> jax.Array:
    """[b, N or 1, t, s] as [b, K or 1, G or 1, t, s]."""
    if array.shape[1] == self.sizes.heads:
      return self.by_group(array, axis=1)
    return array[:, :, None]

  def _visible(self, operands: AttentionOperands) -> jax.Array | None:
    """bool, what broadcasts to [b, K, G, T, S]; None: all."""
    rule, sizes = self.rule, self.sizes
    lengths = [
      size if used is None else jnp.clip(used, 0, size)[:, None, None]
      for used, size in (
        (operands.query_lengths, sizes.seq_q),
        (operands.key_lengths, sizes.seq_kv),
      )
    ]
    seen = None
    if not rule.band.is_open or not all(isinstance(length, int) for length in lengths):
      with jax.numpy_dtype_promotion("standard"):
        band: Band = rule.band.of(seq_q=lengths[0], seq_kv=lengths[1])
      queries = lax.broadcasted_iota(jnp.int32, (1, sizes.seq_q, 1), 1)
      keys = lax.broadcasted_iota(jnp.int32, (1, 1, sizes.seq_kv), 2)
      seen = band.visible(queries, keys)
    if operands.query_segments is not None and operands.key_segments is not None:
      same = operands.query_segments[:, :, None] == operands.key_segments[:, None, :]
      seen = same if seen is None else seen & same
    seen = None if seen is None else seen[:, None, None]
    if operands.mask is not None:
      mask = self._pairs(operands.mask)
      seen = mask if seen is None else seen & mask
    return seen

  def product(self, form: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """An einsum of operands of one dtype, in the wide one."""
    return jnp.einsum(
      form,
      a.astype(b.dtype),
      b,
      precision=self.rule.precision,
      preferred_element_type=self.wide,
    )

  def over_keys(self, weights: jax.Array, values: jax.Array, *, signed: bool = False) -> jax.Array:
    """[b, K, G, T, S] by [b, S, K, D]: [b, T, K, G, D]."""
    if self.visible is None:
      return self.product("bkgts,bskh->btkgh", weights, values)
    out = visible_product(
      functools.partial(self.product, "bkgts,bksh->bkgth"),
      weights,
      jnp.swapaxes(values, 1, 2),
      self.visible,
      signed=signed,
    )
    return jnp.moveaxis(out, 3, 1)

  def over_queries(
    self, weights: jax.Array, values: jax.Array, *, signed: bool = False
  ) -> jax.Array:
    """[b, K, G, T, S] by [b, T, K, G, D]: [b, S, K, D], summed over the group."""
    if self.visible is None:
      return self.product("bkgts,btkgh->bskh", weights, values)
    out = visible_product(
      functools.partial(self.product, "bkgst,bkgth->bkgsh"),
      jnp.swapaxes(weights, -1, -2),
      jnp.moveaxis(values, 1, 3),
      jnp.swapaxes(self.visible, -1, -2),
      signed=signed,
    )
    return jnp.swapaxes(out.sum(axis=2), 1, 2)

  def uncapped(self) -> jax.Array:
    """z, [b, K, G, T, S]; 0 where nothing is visible."""
    dots = self.product(_SCORES, self.query, self.key)
    z = self.logits.uncapped(dots, self.bias)
    return z if self.visible is None else jnp.where(self.visible, z, jnp.zeros_like(z))

  def seen_only(self, x: jax.Array, otherwise: float) -> jax.Array:
    """x where a key is visible."""
    if self.visible is None:
      return x
    return jnp.where(self.visible, x, jnp.full_like(x, otherwise))


def attention(rule: AttentionRule, operands: AttentionOperands) -> tuple[jax.Array, jax.Array]:
  """out [batch, T, N, Hv] in the query's dtype, and float32 residual [batch, N, T]."""
  grouped = _Grouped(rule, operands)
  sizes = grouped.sizes
  logits = grouped.seen_only(grouped.logits.capped(grouped.uncapped()), -jnp.inf)
  peak = jnp.max(logits, axis=-1, keepdims=True, initial=-jnp.inf)
  empty = peak == -jnp.inf
  peak = jnp.where(empty, jnp.zeros_like(peak), peak)
  weights = jnp.exp(logits - peak)
  total = jnp.sum(weights, axis=-1, keepdims=True)
  total = jnp.where(empty, jnp.ones_like(total), total)
  out = grouped.over_keys(weights / total, grouped.value)
  residual = jnp.where(empty, jnp.full_like(peak, -jnp.inf), peak + jnp.log(total))
  return (
    round_once(
      out.reshape(sizes.batch, sizes.seq_q, sizes.heads, sizes.value_dim), operands.query.dtype
    ),
    residual.reshape(sizes.batch, sizes.heads, sizes.seq_q).astype(jnp.float32),
  )


def _d_scores(grouped: _Grouped, upstream: Upstream) -> tuple[jax.Array, jax.Array, jax.Array]:
  """P, dZ and dO by group."""
  z = grouped.uncapped()
  d_out = grouped.by_group(upstream.d_out, axis=2)
  residual, delta = (
    grouped.by_group(x.astype(grouped.wide), axis=1)[..., None]
    for x in (upstream.residual, upstream.delta)
  )
  stored = jnp.where(residual == -jnp.inf, jnp.full_like(residual, jnp.inf), residual)
  capped = grouped.logits.capped(z)
  weights = grouped.seen_only(jnp.exp(grouped.seen_only(capped - stored, -jnp.inf)), 0.0)
  d_weights = grouped.product(_SCORES, d_out, grouped.value)
  slope = grouped.logits.slope(capped)
  d_z = weights * (d_weights - delta)
  if slope is not None:
    d_z = d_z * slope
  return weights, jnp.where(weights != 0, d_z, jnp.zeros_like(d_z)), d_out


def gradients(
  rule: AttentionRule, operands: AttentionOperands, upstream: Upstream
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """dQ, dK and dV over the batch, each in its operand's dtype."""
  grouped = _Grouped(rule, operands)
  sizes = grouped.sizes
  weights, d_z, d_out = _d_scores(grouped, upstream)
  d_query = grouped.over_keys(d_z, grouped.key, signed=True) * rule.scale
  d_key = grouped.over_queries(d_z, grouped.query, signed=True) * rule.scale
  d_value = grouped.over_queries(weights, d_out)
  d_query = d_query.reshape(sizes.batch, sizes.seq_q, sizes.heads, sizes.head_dim)
  return (
    round_once(d_query, operands.query.dtype),
    round_once(d_key, operands.key.dtype),
    round_once(d_value, operands.value.dtype),
  )


def bias_gradient(
  rule: AttentionRule, operands: AttentionOperands, upstream: Upstream, *, groups: int
) -> jax.Array:
  """dbias [groups, N or 1, T or 1, S or 1]: see `portable_bias.bias_gradient`."""
  assert operands.bias is not None
  grouped = _Grouped(rule, operands)
  sizes = grouped.sizes
  _, d_z, _ = _d_scores(grouped, upstream)
  d_bias = d_z.reshape(groups, -1, sizes.heads, sizes.seq_q, sizes.seq_kv) if d_z.size else d_z
  if not d_z.size:
    return jnp.zeros((groups, *operands.bias.shape[1:]), operands.bias.dtype)
  summed: Any = [1, *(axis + 1 for axis in (1, 2, 3) if operands.bias.shape[axis] == 1)]
  total = jnp.sum(d_bias, axis=tuple(summed), keepdims=True)
  return round_once(total[:, 0], operands.bias.dtype)
