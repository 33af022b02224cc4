"""The gradient of rms_norm: its formulas, shared by XLA and the kernels."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.dtypes import round_once
from pallas_kernels.rowwise import arithmetic
from pallas_kernels.rowwise.arithmetic import Arithmetic
from pallas_kernels.rowwise.inverse_rms import InverseRms, SquareSum, inverse_rms, square_sum
from pallas_kernels.rowwise.specs import weight_of, wide


@dataclasses.dataclass(frozen=True)
class RmsNormGradient:
  """Gradients of y = n·(weight + offset), n = x·r, r = (mean(x²) + eps)^(-1/2).

      g = d_y·(weight + offset),    d_x = r·(g - n·mean(g·n)),    d_weight = Σ_rows d_y·n

  Roundings count as the identity. r is p·f of `inverse_rms`, computed again from
  x, which is read in any case.

  Attributes:
    eps: As in the forward op.
    weight_offset: As in the forward op.
    dtype: Of x and of its gradient.
    weight_dtype: Of the weight and of its gradient.
    out_dtype: Of y, and of the gradient of y that comes in.
    sum_gradient: Whether the gradient of x + residual as a result comes in, too.
  """

  eps: float
  weight_offset: float
  dtype: jnp.dtype
  weight_dtype: jnp.dtype
  out_dtype: jnp.dtype
  sum_gradient: bool = False

  def squares(self, pieces: Sequence[jax.Array], exact: Arithmetic) -> SquareSum:
    """Of rows of float32 x, or of parts of them, in pieces; masked elements are 0."""
    return square_sum(pieces, eps=self.eps, arithmetic=exact)

  def inverse_of(self, squares: Any, *, columns: int) -> InverseRms:
    """r from the squares of whole rows."""
    return inverse_rms(squares, columns=columns, eps=self.eps)

  def scaled(self, d_out: jax.Array, weight: jax.Array) -> jax.Array:
    """g, float32."""
    gradient = wide(d_out)
    return gradient * weight_of(weight, self.weight_offset, gradient.dtype)

  def d_x(
    self,
    g: jax.Array,
    normalised: jax.Array,
    mean: jax.Array,
    inverse: InverseRms,
    d_sum: jax.Array | None,
  ) -> jax.Array:
    """The gradient of x, with that of x + residual as a result added before it is rounded."""
    d_x = (g - normalised * mean) * inverse.value
    if d_sum is not None:
      d_x = d_x + d_sum.astype(d_x.dtype)
    return round_once(d_x, self.dtype)


def xla(
  spec: RmsNormGradient,
  x: jax.Array,
  weight: jax.Array,
  d_out: jax.Array,
  d_sum: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
  """Both gradients by XLA: [groups, rows, columns], and [groups, 1, columns]."""
  values = wide(x)
  inverse = spec.inverse_of(spec.squares((values,), arithmetic.XLA), columns=x.shape[-1])
  normalised = inverse.normalise(values)
  g = spec.scaled(d_out.astype(values.dtype), weight)
  mean = jnp.sum(g * normalised, axis=-1, keepdims=True) * (1.0 / x.shape[-1])
  d_weight = jnp.sum(d_out.astype(values.dtype) * normalised, axis=1, keepdims=True)
  return (
    spec.d_x(g, normalised, mean, inverse, d_sum),
    round_once(d_weight, spec.weight_dtype),
  )
