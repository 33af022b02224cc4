"""The floating-point formats the reference knows, each described in one place."""

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class FloatFormat:
  """A binary floating-point format with gradual underflow.

  A finite non-zero value is ±m·2^(e - p + 1), where p is `precision`, e is at
  least `min_exponent` and the integer m is below 2^p. It is normal where
  m >= 2^(p - 1).

  Attributes:
    dtype: The NumPy dtype that stores it.
    precision: p, the significand bits, the hidden one included.
    min_exponent: e of the smallest normal value, 2^min_exponent.
    max_finite: The largest finite value.
    has_infinity: Whether the format has infinities. Without them, values past
      `max_finite` become NaN or saturate.
    bits_dtype: Unsigned integer dtype of the same width.
  """

  dtype: np.dtype[Any]
  precision: int
  min_exponent: int
  max_finite: float
  has_infinity: bool
  bits_dtype: np.dtype[Any]

  @property
  def name(self) -> str:
    """The dtype's name, for example "bfloat16"."""
    return self.dtype.name

  @property
  def unit_roundoff(self) -> float:
    """u = 2^-p: the largest relative error of rounding to nearest, underflow apart."""
    return 2.0**-self.precision

  @property
  def min_subnormal_exponent(self) -> int:
    """Binary exponent of the smallest positive value."""
    return self.min_exponent - self.precision + 1

  def quantum_exponent(self, x: Float64Array) -> npt.NDArray[np.int_]:
    """Exponent of the spacing at |x|: max(floor(log2|x|), min_exponent) - p + 1.

    Without an upper end; unspecified at infinities and NaN.
    """
    # frexp's fraction lies in [1/2, 1), so the leading bit's exponent is one less; it calls
    # the exponent of 0 zero, where the smallest one is due
    with np.errstate(invalid="ignore"):  # signalling NaNs
      _, exponent = np.frexp(x)
    leading = np.where(x == 0, self.min_exponent, exponent - 1)
    return np.maximum(leading, self.min_exponent) - (self.precision - 1)

  @property
  def overflow_threshold(self) -> float:
    """The midpoint of `max_finite` and the value that would follow it.

    With infinities, rounding to nearest even overflows from here on (the tie
    included: `max_finite` is odd). Infinite for float64, where the midpoint
    is no float64.
    """
    top_ulp = np.ldexp(1.0, int(np.frexp(self.max_finite)[1]) - self.precision)
    with np.errstate(over="ignore"):
      threshold = np.float64(self.max_finite) + top_ulp / 2
    return float("inf") if threshold == self.max_finite else float(threshold)


def _format(dtype: Any, precision: int, min_exponent: int, max_finite: float) -> FloatFormat:
  found = np.dtype(dtype)
  return FloatFormat(
    dtype=found,
    precision=precision,
    min_exponent=min_exponent,
    max_finite=max_finite,
    has_infinity=found != np.dtype(ml_dtypes.float8_e4m3fn),
    bits_dtype=np.dtype(f"u{found.itemsize}"),
  )


# IEEE 754-2019 table 3.5 for the binary formats; bfloat16 is float32 without its
# low 16 bits; E4M3 is Micikevicius et al., "FP8 Formats for Deep Learning"
# (arXiv:2209.05433), table 1: one NaN code a sign, no infinity, largest 1.75·2^8.
_FORMATS = {
  fmt.dtype: fmt
  for fmt in (
    _format(np.float64, 53, -1022, float(np.finfo(np.float64).max)),
    _format(np.float32, 24, -126, (2 - 2.0**-23) * 2.0**127),
    _format(np.float16, 11, -14, 65504.0),
    _format(ml_dtypes.bfloat16, 8, -126, (2 - 2.0**-7) * 2.0**127),
    _format(ml_dtypes.float8_e4m3fn, 4, -6, 448.0),
  )
}

# The codes of symmetric 8-bit integer quantisation, -127..127: a fixed-point format, which is a
# floating-point one whose finite values are all subnormal, 1 apart. -128 is no code. There is no
# NaN, so rounding one gives 0.
INT8_CODES = FloatFormat(
  dtype=np.dtype(np.int8),
  precision=7,
  min_exponent=6,
  max_finite=127.0,
  has_infinity=False,
  bits_dtype=np.dtype(np.uint8),
)

_CODE_FORMATS = {
  fmt.dtype: fmt for fmt in (_FORMATS[np.dtype(ml_dtypes.float8_e4m3fn)], INT8_CODES)
}


def _look_up(
  formats: dict[np.dtype[Any], FloatFormat], dtype: npt.DTypeLike, name: str
) -> FloatFormat:
  try:
    return formats[np.dtype(dtype)]
  except (KeyError, TypeError):
    known = ", ".join(fmt.name for fmt in formats.values())
    raise ValueError(f"{name}={dtype!r}: expected one of {known}") from None


def code_format(dtype: npt.DTypeLike, *, name: str = "dtype") -> FloatFormat:
  """The description of a dtype that quantisation stores: float8_e4m3fn or int8.

  Raises:
    ValueError: `dtype` is another one.
  """
  return _look_up(_CODE_FORMATS, dtype, name)


def value_format(dtype: npt.DTypeLike, *, name: str = "dtype") -> FloatFormat:
  """The description of a floating-point dtype, or of int8 codes.

  Raises:
    ValueError: `dtype` is another one.
  """
  return _look_up(_FORMATS | _CODE_FORMATS, dtype, name)


def float_format(dtype: npt.DTypeLike, *, name: str = "dtype") -> FloatFormat:
  """The description of `dtype`.

  Args:
    dtype: Anything `numpy.dtype` takes, names such as "bfloat16" included.
    name: What to call the argument in the error.

  Raises:
    ValueError: `dtype` is not one of the known floating-point formats.
  """
  return _look_up(_FORMATS, dtype, name)


def to_float64(x: npt.ArrayLike, *, name: str = "x") -> Float64Array:
  """`x` as float64, without rounding; no copy where it is float64 already.

  Args:
    x: A real array of a known floating-point format, or of integers up to
      2^53 in magnitude.
    name: What to call the argument in the error.

  Raises:
    ValueError: the values may not be float64 numbers (long double, larger
      integers), or are no real numbers.
  """
  array = np.asarray(x)
  if array.dtype in _FORMATS:
    with np.errstate(invalid="ignore"):  # what casting a signalling NaN raises
      return array.astype(np.float64, copy=False)
  if array.dtype.kind in "iu":
    if array.dtype.itemsize < 8 or not array.size:
      return array.astype(np.float64)
    if max(abs(int(array.min())), abs(int(array.max()))) <= 2**53:
      return array.astype(np.float64)
    raise ValueError(f"{name}: integers past 2^53 in magnitude are not exact in float64")
  known = ", ".join(fmt.name for fmt in _FORMATS.values())
  raise ValueError(f"{name}: dtype {array.dtype}: expected integers or one of {known}")
