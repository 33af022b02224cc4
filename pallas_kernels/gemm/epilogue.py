"""What happens to a finished accumulator before it is stored."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import activations
from pallas_kernels.dtypes import round_once


@dataclasses.dataclass(frozen=True)
class Epilogue:
  """out = round_out(act(round_mid(acc + bias))), once, after the whole K reduction.

  acc + bias and the activation are float32. round_mid is the rounding an
  unfused program does when it stores the product before the activation; where
  `intermediate_dtype` is float32 it is the identity. Without an activation
  there is nothing between the two roundings and round_mid is skipped.

  Attributes:
    activation: None or a name from `activations.ACTIVATIONS`.
    intermediate_dtype: dtype of round_mid.
    out_dtype: dtype of round_out.
  """

  activation: str | None
  intermediate_dtype: jnp.dtype
  out_dtype: jnp.dtype

  def pre_activation(self, acc: jax.Array, bias: jax.Array | None) -> jax.Array:
    """round_mid(acc + bias) in float32: what the activation, or its gradient, sees."""
    if bias is not None:
      acc = acc + bias.astype(acc.dtype)
    if self.activation is None or self.intermediate_dtype == acc.dtype:
      return acc
    return round_once(acc, self.intermediate_dtype).astype(acc.dtype)

  def __call__(self, acc: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Finish an accumulator block.

    Args:
      acc: float32 (float64 only in the XLA implementation) block of A·B.
      bias: Broadcastable to acc, or None.

    Returns:
      The block in `out_dtype`.
    """
    x = self.pre_activation(acc, bias)
    return round_once(activations.apply(self.activation, x), self.out_dtype)


def make_epilogue(
  *, activation: str | None, intermediate_dtype: Any | None, out_dtype: Any
) -> Epilogue:
  """An `Epilogue` with `intermediate_dtype=None` resolved to the output dtype."""
  out = jnp.dtype(out_dtype)
  # without an activation there is no middle, and nothing may depend on it
  unused = intermediate_dtype is None or activation is None
  mid = out if unused else jnp.dtype(intermediate_dtype)
  return Epilogue(activation=activation, intermediate_dtype=mid, out_dtype=out)
