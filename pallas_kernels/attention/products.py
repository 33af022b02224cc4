"""Weights times values, where a weight of 0 must keep a value that is not seen from leaking."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax


def visible_product(
  multiply: Callable[[jax.Array, jax.Array], jax.Array],
  weights: jax.Array,
  values: jax.Array,
  visible: jax.Array,
  *,
  signed: bool = False,
  doubtful: bool = False,
) -> jax.Array:
  """`multiply(weights, values)` over visible pairs only.

  Weights are 0 elsewhere, which is not enough where a value that some rows see
  and others do not is an infinity or NaN: then the rows that see one are found
  by products of their own.

  Args:
    multiply: Sums weights times values, in float32 or wider.
    weights: [..., rows, columns], 0 where not visible.
    values: [..., columns, width].
    visible: bool, what broadcasts to the shape of `weights`.
    signed: Whether weights may be negative, as gradients of scores are. A row
      that sees an infinity is NaN then: so is the score that it came from.
    doubtful: Whether such values are expected: one product more, and no branch.
  """
  if 0 in values.shape:
    return multiply(weights, values)
  special = ~(jnp.abs(values) < jnp.inf)

  def seen(condition: jax.Array) -> jax.Array:
    rows = jnp.broadcast_to(visible, weights.shape).astype(values.dtype)
    return multiply(rows, condition.astype(values.dtype)) > 0

  def carefully() -> jax.Array:
    out = multiply(weights, jnp.where(special, jnp.zeros_like(values), values))
    if signed:
      return jnp.where(seen(special), jnp.full_like(out, jnp.nan), out)
    inf, nothing = jnp.full_like(out, jnp.inf), jnp.zeros_like(out)
    # a NaN counts as both, and their difference is NaN again
    out = out + jnp.where(seen(special & ~(values == -jnp.inf)), inf, nothing)
    return out - jnp.where(seen(special & ~(values == jnp.inf)), inf, nothing)

  if doubtful:
    return carefully()
  found = jnp.max(special.astype(jnp.int32)) > 0
  return lax.cond(found, carefully, lambda: multiply(weights, values))
