"""Rounding from float64 to a narrower format, once."""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from reference.formats import Float64Array, FloatFormat, float_format, to_float64

RoundingMode = Literal["nearest_even", "truncate"]


def round_to(
  x: npt.ArrayLike,
  dtype: npt.DTypeLike,
  *,
  mode: RoundingMode = "nearest_even",
  saturate: bool | None = None,
) -> npt.NDArray[Any]:
  """`x` rounded to `dtype` in a single step.

  With q the spacing of `dtype` at x (`ulp`), the result is q·r(x / q), where r
  rounds to an integer: to the nearest, ties to even, or toward zero. Scaling
  by the power of two q is exact, so r is the only rounding, for subnormal
  results too. A cast by way of float32, which is how ml_dtypes casts float64,
  rounds twice: 1 + 2^-8 + 2^-40 becomes the tie 1 + 2^-8 in float32 and then
  1 in bfloat16, while the nearest bfloat16 is 1 + 2^-7.

  Signed zeros are kept and NaN stays NaN. Past the largest finite value,
  "nearest_even" gives what IEEE 754 says, infinity (NaN in a format without
  infinities), "truncate" the largest finite value; infinities of `x` are kept
  (NaN in a format without). With `saturate` all of these, infinities
  included, become the largest finite value of their sign.

  On finite float32 values "truncate" to bfloat16 is the bit operation
  `bits & 0xFFFF0000`; a NaN whose payload lies in the low 16 bits stays NaN
  here, where the bit operation makes an infinity of it.

  Args:
    x: Real array of any shape, float64 or exactly convertible to it.
    dtype: float64, float32, float16, bfloat16 or float8_e4m3fn.
    mode: "nearest_even" or "truncate".
    saturate: None: True for float8_e4m3fn, False for the others.

  Returns:
    Array of `dtype` of the shape of `x`.

  Raises:
    ValueError: `mode` or `dtype` is unknown, or `x` is not exact in float64.
  """
  if mode not in ("nearest_even", "truncate"):
    raise ValueError(f"mode={mode!r}: expected 'nearest_even' or 'truncate'")
  fmt = float_format(dtype)
  return round_to_format(to_float64(x), fmt, mode=mode, saturate=saturate)


def round_to_format(
  values: Float64Array,
  fmt: FloatFormat,
  *,
  mode: RoundingMode = "nearest_even",
  saturate: bool | None = None,
) -> npt.NDArray[Any]:
  """`round_to` for a format, int8 codes included: NaN, which they lack, becomes 0."""
  if saturate is None:
    saturate = not fmt.has_infinity
  quantum = fmt.quantum_exponent(values)
  with np.errstate(invalid="ignore"):  # signalling NaNs
    scaled = np.ldexp(values, -quantum)
    whole = np.rint(scaled) if mode == "nearest_even" else np.trunc(scaled)
    rounded = np.ldexp(whole, quantum)

  limit = fmt.max_finite
  if saturate:
    rounded = np.clip(rounded, -limit, limit)
  else:
    beyond = np.abs(rounded) > limit
    if mode == "truncate":
      beyond_finite = beyond & np.isfinite(values)
      rounded = np.where(beyond_finite, np.copysign(limit, values), rounded)
      beyond &= ~beyond_finite
    overflow = np.inf if fmt.has_infinity else np.nan
    rounded = np.where(beyond, np.copysign(overflow, values), rounded)
  if fmt.dtype.kind == "i":
    rounded = np.where(np.isnan(rounded), 0.0, rounded)
  # every value is one of `dtype` now, so this cast, through float32 or not, is exact
  return np.asarray(rounded, dtype=np.float64).astype(fmt.dtype)
