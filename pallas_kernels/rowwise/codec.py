"""8-bit codes and their scales: what `reference.quantize_rows` defines, to the bit."""

import functools

import jax
import jax.numpy as jnp

from pallas_kernels.rowwise.arithmetic import Arithmetic

LARGEST_CODE = {"float8_e4m3fn": 448.0, "int8": 127.0}
# The smallest scale: devices that flush subnormal numbers would read a smaller one as 0.
_SMALLEST_SCALE = 2.0**-126


def largest_magnitude(*pieces: jax.Array) -> jax.Array:
  """max |x| over the finite x of the last axis, kept as an axis of 1; 0 where there are none.

  Args:
    *pieces: Rows or parts of them, in pieces of one shape.
  """

  def finite(values: jax.Array) -> jax.Array:
    magnitude = jnp.abs(values)
    return jnp.where(magnitude < jnp.inf, magnitude, 0.0)

  return jnp.max(functools.reduce(jnp.maximum, map(finite, pieces)), axis=-1, keepdims=True)


def scale_of(amax: jax.Array, dtype: jnp.dtype, arithmetic: Arithmetic) -> jax.Array:
  """amax / largest code, at least 2^-126; 1 where amax = 0."""
  quotient = arithmetic.divide_by(amax, LARGEST_CODE[dtype.name])
  return jnp.where(amax == 0.0, 1.0, jnp.maximum(quotient, _SMALLEST_SCALE))


def encode(
  values: jax.Array, scale: jax.Array, dtype: jnp.dtype, arithmetic: Arithmetic
) -> jax.Array:
  """saturate(round(values / scale)), rounded to nearest even once.

  Clamped before the conversion: a plain one makes NaN of what e4m3 does not
  reach. NaN passes that, and int8 has no code for it: it gets 0.
  """
  x = arithmetic.divide_within(values, scale, LARGEST_CODE[dtype.name])
  if dtype == jnp.int8:
    x = arithmetic.round_even(jnp.where(x == x, x, 0.0))
  return x.astype(dtype)
