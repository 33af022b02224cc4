"""The online softmax in base 2, which every attention kernel shares.

With logits l = factor·x the weights are exp(l_j - max l) = 2^(x_j·e - m) for
e = factor·log2(e) and m = max x·e: one fused multiply-add and one exp2 for each
score. A state holds m, the sum of the weights and the weighted sum of values;
of two states, the one with the lower peak is scaled by 2^(difference).

m is rounded once, and every weight of a row is taken relative to that number,
so its rounding cancels in the quotient.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)


@dataclasses.dataclass(frozen=True)
class LogitRule:
  """From q·k to what the exponential takes.

      z = scale·q·k + bias,    l = c·tanh(z / c) with a soft cap c, else z

  Attributes:
    scale: Factor of the dot products.
    soft_cap: c; None: no cap.
    has_bias: Whether a bias is added.
  """

  scale: float
  soft_cap: float | None
  has_bias: bool

  @property
  def folded(self) -> bool:
    """Whether the scale waits for the exponential.

    It must be positive: a maximum of unscaled scores is then one of logits, and
    -inf stays -inf.
    """
    return not self.has_bias and self.soft_cap is None and self.scale > 0

  @property
  def exponent(self) -> float:
    """What `scores` are multiplied by in the exponent of 2; above 0."""
    return self.scale * LOG2_E if self.folded else LOG2_E

  def uncapped(self, dots: jax.Array, bias: jax.Array | None) -> jax.Array:
    """z: scaled, with the bias."""
    z = dots * self.scale
    return z if bias is None else z + bias.astype(z.dtype)

  def capped(self, z: jax.Array) -> jax.Array:
    """l of z."""
    return z if self.soft_cap is None else self.soft_cap * jnp.tanh(z / self.soft_cap)

  def scores(self, dots: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """x with l·log2(e) = x·exponent, of dot products in float32."""
    return dots if self.folded else self.capped(self.uncapped(dots, bias))

  def slope(self, scores: jax.Array) -> jax.Array | None:
    """dl/dz = 1 - (l / c)² of `scores`; None without a cap, where it is 1."""
    if self.soft_cap is None:
      return None
    ratio = scores / self.soft_cap
    return 1.0 - ratio * ratio


class SoftmaxState(NamedTuple):
  """What is known of rows after some of their keys.

  Attributes:
    peak: [rows], the largest x·exponent so far; -inf before any.
    total: [rows], the sum of 2^(x·exponent - peak).
    out: [rows, columns], the sum of such weights times values.
  """

  peak: jax.Array
  total: jax.Array
  out: jax.Array


def start(rows: int, columns: int) -> SoftmaxState:
  """The state before any key."""
  return SoftmaxState(
    jnp.full((rows,), -jnp.inf, jnp.float32),
    jnp.zeros((rows,), jnp.float32),
    jnp.zeros((rows, columns), jnp.float32),
  )


def _finite_peak(peak: jax.Array) -> jax.Array:
  """0 for a row without keys, so that -inf less its peak is -inf and not NaN."""
  return jnp.where(peak == -jnp.inf, jnp.zeros_like(peak), peak)


class Reweighed(NamedTuple):
  """What a block of scores makes of rows.

  Attributes:
    peak: [rows], the new peak.
    total: [rows], the new sum of weights.
    weights: [rows, keys], the block's, relative to the new peak.
    fade: [rows], what weights before it must be multiplied by.
  """

  peak: jax.Array
  total: jax.Array
  weights: jax.Array
  fade: jax.Array


def along_columns(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """[rows] as [rows, columns], in a form that every lowering takes."""
  return lax.broadcast_in_dim(x, shape, (0,))


def reweigh(
  peak: jax.Array,
  total: jax.Array,
  scores: jax.Array,
  *,
  exponent: float,
  sums: bool = True,
) -> Reweighed:
  """The softmax part of `step`, for kernels that sum values themselves.

  Args:
    peak: Before the block.
    total: Before the block.
    scores: As in `step`.
    exponent: As there.
    sums: Whether the new total has the block's weights; else they are the caller's to add
      before the total is faded again.
  """
  new_peak = jnp.maximum(peak, jnp.max(scores, axis=1) * exponent)
  reference = _finite_peak(new_peak)
  weights = jnp.exp2(scores * exponent - along_columns(reference, scores.shape))
  fade = jnp.exp2(peak - reference)
  faded = total * fade
  return Reweighed(new_peak, faded + jnp.sum(weights, axis=1) if sums else faded, weights, fade)


def step(
  state: SoftmaxState,
  scores: jax.Array,
  *,
  exponent: float,
  weigh: Callable[[jax.Array], jax.Array],
) -> SoftmaxState:
  """The state after a block of keys.

  Args:
    state: Before it.
    scores: [rows, keys], `LogitRule.scores`; -inf where a key is not visible.
    exponent: `LogitRule.exponent`.
    weigh: Weights [rows, keys] to their sum of values [rows, columns].
  """
  peak, total, weights, fade = reweigh(state.peak, state.total, scores, exponent=exponent)
  faded = state.out * along_columns(fade, state.out.shape)
  return SoftmaxState(peak, total, faded + weigh(weights))


def merge(first: SoftmaxState, second: SoftmaxState) -> SoftmaxState:
  """The state of the keys of both."""
  peak = jnp.maximum(first.peak, second.peak)
  reference = _finite_peak(peak)
  fades = [jnp.exp2(one.peak - reference) for one in (first, second)]
  return SoftmaxState(
    peak,
    first.total * fades[0] + second.total * fades[1],
    first.out * along_columns(fades[0], first.out.shape)
    + second.out * along_columns(fades[1], second.out.shape),
  )


def merge_parts(parts: SoftmaxState) -> SoftmaxState:
  """The state of the keys of all `parts`, the leading axis of each of its arrays.

  m = max_p m_p,    total = sum_p total_p·2^(m_p - m),    out = sum_p out_p·2^(m_p - m)
  """
  peak = jnp.max(parts.peak, axis=0)
  reference = lax.broadcast_in_dim(_finite_peak(peak), parts.peak.shape, (1,))
  fade = jnp.exp2(parts.peak - reference)
  faded = parts.out * lax.broadcast_in_dim(fade, parts.out.shape, (0, 1))
  return SoftmaxState(peak, jnp.sum(parts.total * fade, axis=0), jnp.sum(faded, axis=0))


def finish(state: SoftmaxState) -> tuple[jax.Array, jax.Array]:
  """Softmax times values, and the natural log-sum-exp of the logits.

  A row that saw nothing, or only logits of -inf, is 0 with a residual of -inf.
  """
  empty = state.total == 0
  total = jnp.where(empty, jnp.ones_like(state.total), state.total)
  residual = state.peak * LN_2 + jnp.log(total)
  return (
    state.out / along_columns(total, state.out.shape),
    jnp.where(empty, jnp.full_like(residual, -jnp.inf), residual),
  )


def stored_exponent(residual: jax.Array) -> jax.Array:
  """The residual in base 2, +inf for a row that saw nothing: every weight is then 0."""
  return jnp.where(residual == -jnp.inf, jnp.full_like(residual, jnp.inf), residual * LOG2_E)


def weights_again(scores: jax.Array, stored: Any, *, exponent: float) -> jax.Array:
  """Probabilities, from `scores` and `stored_exponent` broadcast over them."""
  return jnp.exp2(scores * exponent - stored)


def score_gradient(
  weights: jax.Array, d_weights: jax.Array, delta: jax.Array, slope: jax.Array | None
) -> jax.Array:
  """dz = p·(dp - delta)·slope; a weight of exactly 0 has no slope."""
  d_scores = weights * (d_weights - delta)
  if slope is not None:
    d_scores = d_scores * slope
  return jnp.where(weights != 0, d_scores, jnp.zeros_like(d_scores))
