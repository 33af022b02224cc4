"""Units in the last place: spacing, distance in representable values, error."""

import numpy as np
import numpy.typing as npt

from reference.formats import Float64Array, float_format, to_float64, value_format
from reference.rounding import round_to

# What ulp_distance answers for a NaN against a number: more than any two numbers are apart.
NAN_DISTANCE = np.uint64(2**64 - 1)


def ulp(x: npt.ArrayLike, dtype: npt.DTypeLike) -> Float64Array:
  """Spacing of `dtype` at |x|: 2^(max(floor(log2|x|), e_min) - p + 1).

  This is the distance from |x| to the next larger value of `dtype`, where |x|
  is one of its values, and the distance of the two neighbours that enclose
  |x|, where it is not. p is the significand's width and e_min the exponent of
  the smallest normal value, so at 0 and for subnormals it is the smallest
  positive value. From the largest finite value on, where no value follows, the
  spacing of the top binade continues up to every finite x. NaN at infinities
  and NaN.

  Args:
    x: Real array of any shape; need not be representable in `dtype`.
    dtype: float64, float32, float16, bfloat16 or float8_e4m3fn; int8 for
      quantisation codes, which are 1 apart.

  Returns:
    float64 array of the shape of `x`.

  Raises:
    ValueError: `dtype` is unknown, or `x` is not exact in float64.
  """
  fmt = value_format(dtype)
  values = to_float64(x)
  quantum = fmt.quantum_exponent(np.minimum(np.abs(values), fmt.max_finite))
  return np.where(np.isfinite(values), np.ldexp(1.0, quantum), np.nan)


def ulp_distance(a: npt.ArrayLike, b: npt.ArrayLike) -> npt.NDArray[np.uint64]:
  """How many steps from one representable value to the next lead from a to b.

  Neighbouring values are 1 apart, -0 and +0 are the same value, and infinity
  follows the largest finite value. Two NaNs are 0 apart whatever their
  payload; a NaN and a number are `NAN_DISTANCE` = 2^64 - 1 apart.

  Args:
    a: Array of float64, float32, float16, bfloat16 or float8_e4m3fn.
    b: Array of the same dtype that broadcasts with `a`.

  Returns:
    uint64 array; int64 would not hold the distance of -max and max in float64.

  Raises:
    ValueError: the dtypes differ or are not known formats.
  """
  a, b = np.asarray(a), np.asarray(b)
  fmt = float_format(a.dtype, name="a.dtype")
  if b.dtype != a.dtype:
    raise ValueError(f"b.dtype={b.dtype}: expected {a.dtype}, the dtype of a")

  width = 8 * fmt.dtype.itemsize

  def position(x: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    """Signed count of steps from zero: the magnitude bits, with the sign applied."""
    bits = np.ascontiguousarray(x).reshape(x.shape).view(fmt.bits_dtype).astype(np.uint64)
    magnitude = (bits & np.uint64((1 << (width - 1)) - 1)).astype(np.int64)
    return np.where(bits >> np.uint64(width - 1), -magnitude, magnitude)

  first, second = position(a), position(b)
  upper, lower = np.maximum(first, second), np.minimum(first, second)
  with np.errstate(over="ignore", invalid="ignore"):
    # differences of float64 positions pass 2^63; modulo 2^64 they come out right
    distance = upper.astype(np.uint64) - lower.astype(np.uint64)
    a_nan, b_nan = np.isnan(a), np.isnan(b)  # isnan of a signalling NaN is "invalid"
  distance = np.where(a_nan | b_nan, NAN_DISTANCE, distance)
  return np.where(a_nan & b_nan, np.uint64(0), distance)


def ulp_error(
  actual: npt.ArrayLike, exact: npt.ArrayLike, dtype: npt.DTypeLike | None = None
) -> Float64Array:
  """|actual - exact| / ulp(exact), the error in last places of `dtype`.

  A correctly rounded result has at most 0.5. Where either side is not finite,
  0 if `actual` is what `exact` rounds to (the same infinity, or both NaN), else
  infinite.

  Args:
    actual: Computed values, any known format.
    exact: float64 values to compare with; broadcasts with `actual`.
    dtype: The format whose last place counts; None: that of `actual`.

  Returns:
    float64 array.

  Raises:
    ValueError: a dtype is unknown, or `exact` is not exact in float64.
  """
  actual = np.asarray(actual)
  fmt = float_format(actual.dtype if dtype is None else dtype)
  computed = to_float64(actual, name="actual")
  wanted = to_float64(exact, name="exact")
  with np.errstate(invalid="ignore", over="ignore"):
    error = np.abs(computed - wanted) / ulp(wanted, fmt.dtype)
  finite = np.isfinite(computed) & np.isfinite(wanted)
  if finite.all():
    return np.asarray(error)
  rounded = round_to(wanted, fmt.dtype, saturate=False).astype(np.float64)
  same = (computed == rounded) | (np.isnan(computed) & np.isnan(wanted))
  return np.where(finite, error, np.where(same, 0.0, np.inf))
