"""The 8-bit codec: scales, codes and back, defined to the last bit, and its checks."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from reference.bounded import FLOAT32, MIN_NORMAL, Bounded, operand_format
from reference.bounded_arrays import joined, moved
from reference.formats import Float64Array, FloatFormat, code_format, float_format, to_float64
from reference.judge import ErrorCheck, assert_passed, asserting, check_blocks
from reference.rounding import round_to, round_to_format
from reference.rowwise.rows import as_rows, check_rows

Float32Array = npt.NDArray[np.float32]
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)


def _as_float32(name: str, values: npt.ArrayLike) -> Float32Array:
  """Values that float32 holds, as float32."""
  array = np.asarray(values)
  operand_format(name, array.dtype)
  with np.errstate(invalid="ignore"):  # signalling NaNs
    return array.astype(np.float32)


def _scale_of(amax: Float64Array, fmt: FloatFormat) -> Float32Array:
  """float32 scale of rows whose largest magnitude is `amax`, a float32 value."""
  with np.errstate(under="ignore"):
    # float64's quotient of float32 values rounds to float32 as a float32 division does: 53 bits
    # are at least 2·24 + 2
    scale = round_to(amax / fmt.max_finite, np.float32)
  return np.where(amax == 0, np.float32(1), np.maximum(scale, np.float32(MIN_NORMAL)))


def row_scale(x: npt.ArrayLike, *, dtype: npt.DTypeLike = E4M3) -> Float32Array:
  """The scale of each row, by which its elements are divided.

      amax = max |x_j| over the finite x_j of the row, 0 if there are none
      scale = 1                                 where amax = 0
      scale = max(amax / c, 2^-126)             elsewhere, c = 448 (e4m3) or 127 (int8)

  The quotient is one float32 division, rounded to nearest even; a product
  with a rounded 1 / c is another number for every second amax (448) or one in
  twenty (127). Two cases that the quotient alone does not settle: an infinity
  has no part in amax and saturates like any number past it, so that the rest
  of its row keeps its digits; and below amax = c·2^-126 the quotient would be subnormal, which
  devices that flush read as 0, so the smallest normal number is the floor.

  Args:
    x: [..., columns] float32, float16 or bfloat16.
    dtype: float8_e4m3fn or int8.

  Returns:
    float32 [..., 1], normal and positive.

  Raises:
    ValueError: a dtype is another one, or `x` has no dimension.
  """
  fmt = code_format(dtype)
  values = to_float64(_as_float32("x", x))
  if not values.ndim:
    raise ValueError("x.shape=(): expected at least 1 dimension")
  magnitude = np.where(np.isfinite(values), np.abs(values), 0.0)
  return _scale_of(magnitude.max(axis=-1, keepdims=True, initial=0.0), fmt)


def quantize(
  x: npt.ArrayLike, scale: npt.ArrayLike, *, dtype: npt.DTypeLike = E4M3
) -> npt.NDArray[Any]:
  """The codes of `x` for a scale that is given.

      code = saturate(round(x / scale))

  x / scale is one float32 division, rounded to nearest even (not a product
  with 1 / scale), and its rounding to a code is the only other one: to the
  nearest code, ties to even. Past ±448 or ±127, infinities included, the code
  is that number. NaN stays NaN in e4m3 and becomes 0 in int8, which has none.

  Args:
    x: float32, float16 or bfloat16.
    scale: float32 or narrower, finite and positive; broadcasts with `x`.
    dtype: float8_e4m3fn or int8.

  Returns:
    Codes in `dtype`, of the shape of `x`.

  Raises:
    ValueError: a dtype, a shape or a scale is wrong.
  """
  fmt = code_format(dtype)
  values, divisor = _as_float32("x", x), _as_float32("scale", scale)
  try:
    fits = np.broadcast_shapes(values.shape, divisor.shape) == values.shape
  except ValueError:
    fits = False
  if not fits:
    raise ValueError(f"scale.shape={divisor.shape}: expected one that broadcasts to {values.shape}")
  if not np.all(np.isfinite(divisor) & (divisor > 0)):
    raise ValueError(f"scale={scale!r}: expected finite numbers above 0")
  with np.errstate(over="ignore", under="ignore", invalid="ignore"):
    quotient = values / divisor
  return round_to_format(quotient.astype(np.float64), fmt, saturate=True)


def quantize_rows(
  x: npt.ArrayLike, *, dtype: npt.DTypeLike = E4M3
) -> tuple[npt.NDArray[Any], Float32Array]:
  """Codes and scale of each row: x ≈ codes·scale.

  The scale is `row_scale`, and the codes are `quantize` for that scale as it
  is stored, in float32.

  Args:
    x: [..., columns] float32, float16 or bfloat16.
    dtype: float8_e4m3fn or int8.

  Returns:
    Codes of the shape of `x` in `dtype`, and float32 scales [..., 1].

  Raises:
    ValueError: a dtype is another one, or `x` has no dimension.
  """
  scale = row_scale(x, dtype=dtype)
  return quantize(x, scale, dtype=dtype), scale


def dequantize(
  codes: npt.ArrayLike, scale: npt.ArrayLike, *, out_dtype: npt.DTypeLike | None = None
) -> npt.NDArray[Any]:
  """codes·scale, rounded once to `out_dtype`.

  A code has at most 7 significand bits and a scale 24, so float64 holds their
  product exactly.

  Args:
    codes: float8_e4m3fn or int8.
    scale: float32 or narrower; broadcasts with `codes`.
    out_dtype: None: float64, that is no rounding.

  Raises:
    ValueError: a dtype is another one.
  """
  codes = np.asarray(codes)
  code_format(codes.dtype, name="codes.dtype")
  with np.errstate(invalid="ignore"):
    values = to_float64(codes) * to_float64(_as_float32("scale", scale))
  if out_dtype is None:
    return values
  return round_to(values, float_format(out_dtype, name="out_dtype").dtype)


def bounded_row_scale(
  values: Bounded, *, dtype: npt.DTypeLike = E4M3, flush_subnormals: bool = True
) -> Bounded:
  """`row_scale` of rows that a float32 computation gives.

  The largest magnitude lies between the largest |x| - e and the largest
  |x| + e of the row; one division follows. Without errors it is exact. A row
  that may come out as zeros may have the scale 1, so the error reaches there.
  Nothing is promised for a row with an element that may overflow.
  """
  fmt = code_format(dtype)
  finite = np.isfinite(values.exact)
  magnitude = np.where(finite, np.abs(values.exact), 0.0)

  def largest(array: Float64Array) -> Float64Array:
    return np.asarray(array.max(axis=-1, keepdims=True, initial=0.0))

  amax = largest(magnitude)
  exact = _scale_of(amax, fmt).astype(np.float64)
  upper, lower = largest(magnitude + values.error), largest(magnitude - values.error)
  unknown = (values.may_overflow | values.unbounded).any(axis=-1, keepdims=True)
  shift = np.where(unknown, 0.0, np.maximum(upper - amax, amax - lower))
  quotient = Bounded.within(amax / fmt.max_finite, shift / fmt.max_finite)
  rounded = quotient.multiply(Bounded.of(np.float32(1)), flush_subnormals=False)
  # `exact` is rounded as well, which may move it the other way
  error = np.where(shift > 0, rounded.error + FLOAT32.unit_roundoff * quotient.exact, 0.0)
  vanishing = (lower <= 0) & (amax > 0)
  if flush_subnormals:
    vanishing |= (amax > 0) & (amax < MIN_NORMAL)
  error = np.where(vanishing, np.maximum(error, np.abs(1.0 - exact)), error)
  return Bounded(exact, error, np.zeros(exact.shape, np.bool_), np.asarray(unknown))


def bounded_codes(values: Bounded, scale: npt.ArrayLike, *, dtype: npt.DTypeLike = E4M3) -> Bounded:
  """`quantize` of what a float32 computation gives, for a scale as it is stored.

  Given values (`Bounded.of`) have the codes of the definition and no other,
  but for 0 where a subnormal value may be read as zero. Where a value is
  uncertain, so is its quotient, and with it the code beside a boundary.
  """
  divisor = _as_float32("scale", scale)
  quotient = values.divide(Bounded.of(divisor, flush_subnormals=False), flush_subnormals=False)
  uncertain = quotient.quantize(dtype)
  with np.errstate(over="ignore", under="ignore", invalid="ignore"):
    computed = round_to(quotient.exact, np.float32).astype(np.float64)
  nowhere = np.zeros(computed.shape, np.bool_)
  certain = Bounded(computed, np.zeros(computed.shape), nowhere, nowhere).quantize(dtype)
  read_as_zero = (values.error > 0) & (np.abs(values.exact) < MIN_NORMAL)
  known = (values.error == 0) | (read_as_zero & (values.error == np.abs(values.exact)))
  return Bounded(
    np.where(known, certain.exact, uncertain.exact),
    np.where(known, np.where(read_as_zero, np.abs(certain.exact), 0.0), uncertain.error),
    nowhere,
    np.broadcast_to(values.unbounded, computed.shape),
    certain.format,
  )


@dataclasses.dataclass(frozen=True)
class QuantizeCheck:
  """How codes and scales compare with the definition.

  Attributes:
    passed: Both are as they have to be.
    codes: The codes against those of the same values and the stored scales;
      an ulp is the spacing of the code's format.
    scale: The scales against those of the values.
  """

  passed: bool
  codes: ErrorCheck
  scale: ErrorCheck


def compare_codes(
  codes: npt.ArrayLike,
  scale: npt.ArrayLike,
  shape: tuple[int, ...],
  values: Callable[[slice], Bounded],
  *,
  expected_scale: Callable[[slice, Bounded], Bounded] | Bounded,
  dtype: npt.DTypeLike | None = None,
) -> QuantizeCheck:
  """Holds codes and scales against values that a float32 computation gives.

  The codes have to be those for the scales that are stored, whatever these
  are: an error of a scale counts once, there.

  Args:
    codes: Codes, of `shape`.
    scale: float32.
    shape: [..., columns].
    values: What the values of a slice of the rows may be.
    expected_scale: What the scales of that slice may be, [rows, 1], given its
      values; or of all, where they do not depend on the values.
    dtype: Expected dtype of the codes; None: whatever they have.

  Raises:
    ValueError: a shape or a dtype is another one, or a scale is no scale.
  """
  found, stored = np.asarray(codes), np.asarray(scale)
  fmt = code_format(found.dtype, name="codes.dtype")
  if dtype is not None and code_format(dtype) != fmt:
    raise ValueError(f"codes.dtype={fmt.name}: expected dtype={code_format(dtype).name}")
  if found.shape != shape:
    raise ValueError(f"codes.shape={found.shape}: expected {shape}")
  if stored.dtype != np.float32:
    raise ValueError(f"scale.dtype={stored.dtype}: expected float32")
  per_row = (*shape[:-1], 1)
  wanted = expected_scale.exact.shape if isinstance(expected_scale, Bounded) else per_row
  if stored.shape != wanted:
    raise ValueError(f"scale.shape={stored.shape}: expected {wanted}")
  # a scale that is none fails below; 1 stands for it so that the codes can be compared
  usable = np.where(np.isfinite(stored) & (stored > 0), stored, np.float32(1))
  one_a_row = not usable.ndim or usable.shape[-1] == 1
  row_scales = as_rows(np.broadcast_to(usable, per_row if one_a_row else shape))
  parts: list[Bounded] = []

  def evaluate(rows: slice) -> Bounded:
    part = values(rows)
    if not isinstance(expected_scale, Bounded):
      parts.append(expected_scale(rows, part))
    return bounded_codes(part, row_scales[rows], dtype=fmt.dtype)

  code_check = check_rows(found, evaluate)
  if isinstance(expected_scale, Bounded):
    scale_check = check_blocks(stored, [((), expected_scale)])
  else:
    nothing = Bounded.of(np.zeros((0, 1), np.float32))
    whole = functools.reduce(functools.partial(joined, axis=0), parts, nothing)
    scale_check = check_rows(stored, lambda rows: moved(whole, lambda array: array[rows]))
  return QuantizeCheck(
    passed=scale_check.passed and code_check.passed, codes=code_check, scale=scale_check
  )


def check_quantize_rows(
  codes: npt.ArrayLike,
  scale: npt.ArrayLike,
  x: npt.ArrayLike,
  *,
  dtype: npt.DTypeLike | None = None,
  flush_subnormals: bool = True,
) -> QuantizeCheck:
  """Compares a kernel's codes and scales with those of `quantize_rows`, bit for bit.

  The only room is for subnormal values that are read as zero: their codes may
  be 0, and a row that has no others may have the scale 1. Values compare, so
  -0 and 0 are the same code.

  Args:
    codes: The kernel's codes, of the shape of `x`.
    scale: Its float32 scales, [..., 1].
    x: [..., columns] float32, float16 or bfloat16.
    dtype: Expected dtype of the codes; None: whatever they have.
    flush_subnormals: Whether subnormal float32 values may be read as zero.

  Returns:
    The comparison; it does not raise for a wrong result.

  Raises:
    ValueError: a shape or a dtype is wrong.
  """
  operand = np.asarray(x)
  operand_format("x", operand.dtype)
  fmt = code_format(np.asarray(codes).dtype, name="codes.dtype")
  rows_of = as_rows(operand)

  def values(rows: slice) -> Bounded:
    return Bounded.of(rows_of[rows], flush_subnormals=flush_subnormals)

  def expected_scale(rows: slice, _: Bounded) -> Bounded:
    given = Bounded.of(rows_of[rows], flush_subnormals=False)
    return bounded_row_scale(given, dtype=fmt.dtype, flush_subnormals=flush_subnormals)

  return compare_codes(
    codes, scale, operand.shape, values, expected_scale=expected_scale, dtype=dtype
  )


def assert_quantized(check: QuantizeCheck) -> QuantizeCheck:
  """The check itself, for further assertions.

  Raises:
    AssertionError: a scale or a code is wrong; says which, as `assert_passed`.
  """
  for what, found in (("scale", check.scale), ("codes", check.codes)):
    try:
      assert_passed(found)
    except AssertionError as error:
      raise AssertionError(f"{what}: {error}") from None
  return check


assert_quantize_rows_close = asserting(check_quantize_rows, assert_quantized)
