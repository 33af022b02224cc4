"""Activations as the kernels compute them: float32 in, float32 out.

Written in plain `jax.numpy`, so that one definition serves XLA, the portable
kernel and the Mosaic GPU kernel.
"""

import jax
import jax.numpy as jnp

ACTIVATIONS = ("silu",)


def silu(x: jax.Array) -> jax.Array:
  """silu(x) = x / (1 + exp(-x)), float32.

  Computed from h = exp(-|x|/2), which cannot overflow: x/(1 + h²) for x >= 0,
  x·h·h/(1 + h²) for x < 0. The textbook form loses the tail: exp(-x) overflows
  below x = -88.7 and the result jumps to 0, while silu(-90) = -7.4e-38 is a
  normal float32. silu(-inf) = 0 (as -0.0), silu(+inf) = +inf, NaN stays NaN.

  Args:
    x: float32, any shape.

  Returns:
    float32, the shape of x.
  """
  # below -200 silu is under 1e-84, far under the smallest float32, and the
  # clamp keeps -inf · 0 from making a NaN; NaN fails the comparison and stays
  x = jnp.where(x < -200.0, jnp.float32(-200.0), x)
  h = jnp.exp(jnp.abs(x) * jnp.float32(-0.5))
  numerator = jnp.where(x < 0.0, x * h * h, x)
  return numerator / (jnp.float32(1.0) + h * h)


def silu_grad(x: jax.Array) -> jax.Array:
  """d silu/dx = s·(1 + x·(1 - s)), s = 1/(1 + exp(-x)); float32.

  Computed from h = exp(-|x|/2) as `silu` is, so that the tail keeps its value:
  s = h²/(1 + h²) for x < 0, 1/(1 + h²) for x >= 0. The limits are 0 at -inf and
  1 at +inf; NaN stays NaN.
  """
  x = jnp.where(x < -200.0, jnp.float32(-200.0), x)
  x = jnp.where(x > 200.0, jnp.float32(200.0), x)
  h = jnp.exp(jnp.abs(x) * jnp.float32(-0.5))
  t = jnp.float32(1.0) / (jnp.float32(1.0) + h * h)
  negative = h * (h * (jnp.float32(1.0) + x * t)) * t
  positive = t * (jnp.float32(1.0) + x * h * h * t)
  return jnp.where(x < 0.0, negative, positive)


def apply(name: str | None, x: jax.Array) -> jax.Array:
  """The activation called `name` of float32 x; None is the identity."""
  if name is None:
    return x
  if name == "silu":
    return silu(x)
  raise ValueError(f"activation={name!r}: expected None or one of {ACTIVATIONS}")


def derivative(name: str, x: jax.Array) -> jax.Array:
  """The derivative of the activation called `name` at float32 x."""
  if name == "silu":
    return silu_grad(x)
  raise ValueError(f"activation={name!r}: expected one of {ACTIVATIONS}")
