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

# Relative error of a float32 evaluation, in units of u = 2^-24: an exp within 2 ulp (4 u), the
# addition of 1 (1 u), a division within 2 ulp (4 u; correctly rounded ones have 1 u) and, in the
# form x·sigmoid(x), one more product (1 u). That is 5 ulp in all.
SILU_FLOAT32_UNITS = 10.0

# An exp made of exp2 evaluates 2^(-x·log2(e)). Rounding that product costs u and the float32
# constant is 0.224 u off, which moves the exponent by |x|·log2(e)·1.224 u and the result by the
# relative amount 1.224·|x|·u.
SILU_FLOAT32_UNITS_PER_X = 1.25

# Below x = -87.34 the sigmoid is subnormal in float32, and below -88.73 exp(-x) overflows: an
# evaluation may return 0 there. |silu(x)| at -87.34 is 87.34·2^-126, and less further down.
SILU_FLOAT32_FLOOR = 88 * 2.0**-126

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


def silu_error_bound(x: Float64Array, x_error: Float64Array) -> Float64Array:
  """Bound on |f(x') - silu(x)| for all |x' - x| <= x_error, f the float32 evaluation.

  Two parts are added.

  1. |silu(x') - silu(x)| <= L·x_error, where L bounds |silu'| between x and
     x'. In general L is 1.09984. Where the whole interval is negative,
     |silu'(t)| <= (1 - t)·e^t, which grows with t, so its value at x + x_error
     serves.
  2. |f(x') - silu(x')| <= |silu(x')|·(10 + 1.25·max(-x', 0.28))·2^-24
     + 88·2^-126. The constants are derived beside their definitions; the part
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
