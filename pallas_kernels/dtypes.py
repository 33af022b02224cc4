"""Dtypes of sums and roundings, stated so that strict promotion has nothing to object to."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def accumulator_dtype(dtype: Any) -> jnp.dtype:
  """What products of `dtype` are summed in: float64 for float64, else float32."""
  wide = jnp.dtype(dtype) == jnp.float64
  return jnp.dtype(jnp.float64 if wide else jnp.float32)


def sum_dtype(dtype: Any) -> jnp.dtype:
  """What a kernel's accumulator of products of `dtype` is: int32 for integers, exact."""
  if jnp.issubdtype(dtype, jnp.integer):
    return jnp.dtype(jnp.int32)
  return accumulator_dtype(dtype)


def round_once(x: jax.Array, dtype: Any) -> jax.Array:
  """x in `dtype`, rounded to nearest even once.

  XLA converts float64 to a 16-bit dtype by way of float32, which rounds twice:
  1 + 2^-8 + 2^-40 becomes 1 in bfloat16. Here float64 is first rounded to the
  significand of the result; only results below the smallest normal number, 2^-14
  for float16, are still rounded twice.

  Args:
    x: Any floating-point dtype.
    dtype: Of the result.
  """
  dtype = jnp.dtype(dtype)
  if x.dtype == jnp.float64 and dtype.itemsize == 2:
    info = jnp.finfo(dtype)
    rounded = lax.reduce_precision(x, exponent_bits=info.nexp, mantissa_bits=info.nmant)
    x = jnp.where(jnp.abs(x) < float(info.smallest_normal), x, rounded)
  return x.astype(dtype)


def narrowed(x: jax.Array, dtype: Any) -> jax.Array:
  """x rounded to `dtype`, in its own: for XLA, which must not leave the rounding out.

  XLA leaves out a conversion and the one back, a rounding to fewer bits not; that one
  makes numbers below the smallest normal one 0.

  Args:
    x: Any floating-point dtype.
    dtype: To round to.
  """
  dtype = jnp.dtype(dtype)
  there_and_back = round_once(x, dtype).astype(x.dtype)
  if dtype.itemsize >= x.dtype.itemsize:
    return there_and_back
  info = jnp.finfo(dtype)
  rounded = lax.reduce_precision(x, exponent_bits=info.nexp, mantissa_bits=info.nmant)
  return jnp.where(jnp.abs(x) < float(info.smallest_normal), there_and_back, rounded)
