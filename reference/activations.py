"""The activations in float64, and how far a float32 evaluation of one may be off."""

from typing import Literal, assert_never, get_args

import numpy as np
import numpy.typing as npt

from reference.formats import Float64Array, to_float64

# The one list of names. A new one needs a case in `activate` and in `Bounded.activate`; mypy
# reports a missing one.
Activation = Literal["silu"]

# max |silu'|, reached at x = 2.39936, is 1.0998393201...; here rounded up. silu' runs from
# -0.0998393... through 0 to the maximum and back to 1, so this is its Lipschitz constant.
SILU_LIPSCHITZ = 1.09983933

# Relative error of a float32 evaluation, in units of u = 2^-24. The textbook form takes an exp
# within 2 ulp (4 u), the addition of 1 (1 u), a division within 2 ulp (4 u; correctly rounded ones
# have 1 u) and, as x·sigmoid(x), one more product (1 u): 10. Its exp(-x) overflows below -88.7,
# though, and forms that keep the tail multiply by h = exp(-|x| / 2) twice: h within 2 ulp and a
# product, twice (10 u), the addition and the division (5 u).
SILU_FLOAT32_UNITS = 15.0

# An exp made of exp2 evaluates 2^(-x·log2(e)). Rounding that product costs u and the float32
# constant is 0.224 u off, which moves the exponent by |x|·log2(e)·1.224 u and the result by the
# relative amount 1.224·|x|·u.
SILU_FLOAT32_UNITS_PER_X = 1.25

# A result below 2^-126 may be flushed to zero. No more is allowed: below x = -87.34 the sigmoid is
# subnormal, but silu(x) is a normal number down to -91.85, and a form that returns 0 there has lost
# it.
SILU_FLOAT32_FLOOR = 2.0**-126

_U32 = 2.0**-24


def check_activation(activation: object) -> None:
  """Raises ValueError unless `activation` is None or the name of an activation."""
  names = get_args(Activation)
  if activation is not None and activation not in names:
    expected = " or ".join(["None", *map(repr, names)])
    raise ValueError(f"activation={activation!r}: expected {expected}")


def activate(x: npt.ArrayLike, activation: Activation | None) -> Float64Array:
  """The activation of that name in float64; None is the identity.

  Raises:
    ValueError: `x` is not exact in float64.
  """
  if activation is None:
    return to_float64(x)
  if activation == "silu":
    return silu(x)
  assert_never(activation)


def silu(x: npt.ArrayLike) -> Float64Array:
  """silu(x) = x / (1 + exp(-x)), in float64 to a few units in the last place.

  silu(-inf) = 0, silu(+inf) = +inf, NaN stays NaN, and signed zeros are kept.
  With h = exp(-|x| / 2) it is evaluated as

      x >= 0:  x / (1 + h²)
      x <  0:  (x·h / (1 + h²))·h

  so that nothing overflows and, for large negative x, only the last product
  can underflow: exp(x) itself is subnormal below -708, while x·exp(x) has full
  precision down to -714 and then loses it gradually, until about -752.

  Args:
    x: Real array of any shape.

  Returns:
    float64 array of the shape of `x`.

  Raises:
    ValueError: `x` is not exact in float64.
  """
  values = to_float64(x)
  with np.errstate(under="ignore", invalid="ignore"):
    half = np.exp(-0.5 * np.abs(values))
    positive = values / (1.0 + half * half)
    negative = positive * half * half
  # positive·h·h runs left to right, so the subnormal range is entered by one product only
  result = np.where(values < 0, negative, positive)
  return np.where(np.isneginf(values), 0.0, result)


def silu_derivative(x: npt.ArrayLike) -> Float64Array:
  """silu'(x) = s·(1 + x·(1 - s)), s = 1 / (1 + exp(-x)), in float64.

  Both s and 1 - s come from exp(-|x|), so nothing overflows and neither is a
  difference. silu'(-inf) = 0, silu'(+inf) = 1, NaN stays NaN.

  Args:
    x: Real array of any shape.

  Raises:
    ValueError: `x` is not exact in float64.
  """
  values = to_float64(x)
  with np.errstate(under="ignore", invalid="ignore"):
    decay = np.exp(-np.abs(values))
    near, far = 1.0 / (1.0 + decay), decay / (1.0 + decay)
    sigmoid = np.where(values < 0, far, near)
    slope = sigmoid + values * near * far
  return np.where(np.isinf(values), np.where(values > 0, 1.0, 0.0), slope)


def activation_derivative(x: npt.ArrayLike, activation: Activation) -> Float64Array:
  """The derivative of the activation of that name, in float64."""
  if activation == "silu":
    return silu_derivative(x)
  assert_never(activation)


def silu_derivative_error_bound(x: Float64Array, x_error: Float64Array) -> Float64Array:
  """Bound on |f(x') - silu'(x)| for all |x' - x| <= x_error, f the float32 evaluation.

  1. |silu'(x') - silu'(x)| <= x_error / 2: |silu''| is largest at 0, where it
     is 1/2.
  2. |f(x') - silu'(x')| <= s·(1 + |x'|·(1 - s))·(40 + 2.5·|x'|)·2^-24 + 2^-125.
     The weight is silu' without the cancellation of its two terms. Units: s and
     1 - s from one exponential or its square root, as in `silu_error_bound`,
     15 + 1.25·|x'| each, and 8 for the products and sums that join them,
     rounded up. Two results below 2^-126 may be flushed on the way.

  Args:
    x: Exact arguments, float64.
    x_error: Bound on their error, same shape.

  Returns:
    float64 array of the same shape.
  """
  with np.errstate(under="ignore", over="ignore", invalid="ignore"):
    reach = np.abs(x) + x_error
    decay = np.exp(-np.abs(x))
    near, far = 1.0 / (1.0 + decay), decay / (1.0 + decay)
    weight = np.where(x < 0, far, near) + np.abs(x) * near * far
    # the weight's own slope is at most 1
    units = (40.0 + 2.5 * reach) * _U32
    return 0.5 * x_error + (weight + x_error) * units + 2.0 * SILU_FLOAT32_FLOOR


def silu_error_bound(x: Float64Array, x_error: Float64Array) -> Float64Array:
  """Bound on |f(x') - silu(x)| for all |x' - x| <= x_error, f the float32 evaluation.

  Two parts are added.

  1. |silu(x') - silu(x)| <= L·x_error, where L bounds |silu'| between x and
     x'. In general L is 1.09984. Where the whole interval is negative,
     |silu'(t)| <= (1 - t)·e^t, which grows with t, so its value at x + x_error
     serves.
  2. |f(x') - silu(x')| <= |silu(x')|·(15 + 1.25·max(-x', 0.28))·2^-24
     + 2^-126. The constants are derived beside their definitions; the part
     per x stems from exp(-x), whose relative error reaches the result with the
     weight exp(-x) / (1 + exp(-x)), and x times that weight is below 0.28
     for positive x.

  Args:
    x: Exact arguments, float64.
    x_error: Bound on their error, same shape.

  Returns:
    float64 array of the same shape.
  """
  with np.errstate(under="ignore", over="ignore", invalid="ignore"):
    upper = np.minimum(x + x_error, 0.0)
    slope = np.where(x + x_error < 0, (1.0 - upper) * np.exp(upper), SILU_LIPSCHITZ)
    shift = slope * x_error
    reach = np.maximum(x_error - x, 0.28)
    relative = (SILU_FLOAT32_UNITS + SILU_FLOAT32_UNITS_PER_X * reach) * _U32
    return shift + (np.abs(silu(x)) + shift) * relative + SILU_FLOAT32_FLOOR
