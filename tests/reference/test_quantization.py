"""The 8-bit codec: scales and codes to the last bit."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from reference import (
  Bounded,
  assert_quantize_rows_close,
  bounded_codes,
  bounded_row_scale,
  check_quantize_rows,
  dequantize,
  quantize,
  quantize_rows,
  row_scale,
)

BFLOAT16 = ml_dtypes.bfloat16
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
INT8 = np.dtype(np.int8)
F32 = np.float32
LIMIT = {E4M3: 448, INT8: 127}
CODES = [E4M3, INT8]


def normal(shape, seed=0, dtype=F32):
  return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def nearest_code(quotient, dtype):
  """The code nearest to an exact number, ties to the even one, by search through all codes."""
  if dtype == INT8:
    ladder = [(Fraction(code), code) for code in range(-127, 128)]
  else:
    every = np.arange(256).astype(np.uint8).view(E4M3).astype(float)
    # the last stored significand bit says whether a code is even
    ladder = [(Fraction(v), i & 1) for i, v in enumerate(every) if np.isfinite(v)]
  return float(min(ladder, key=lambda code: (abs(code[0] - quotient), code[1] % 2))[0])


@pytest.mark.parametrize("dtype", CODES)
def test_codes_are_the_nearest_ones_of_the_float32_quotient(dtype):
  x = normal((5, 37))
  codes, scale = quantize_rows(x, dtype=dtype)
  assert (codes.dtype, scale.dtype, scale.shape) == (dtype, F32, (5, 1))
  for index in np.ndindex(x.shape):
    quotient = Fraction(float(F32(x[index]) / scale[index[0], 0]))
    assert float(codes[index]) == nearest_code(quotient, dtype)


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("operand", [F32, np.float16, BFLOAT16])
def test_the_scale_is_a_float32_division_of_the_largest_magnitude(dtype, operand):
  x = normal((50, 9), dtype=operand)
  amax = np.abs(x.astype(F32)).max(axis=1, keepdims=True)
  np.testing.assert_array_equal(row_scale(x, dtype=dtype), amax / F32(LIMIT[dtype]))
  by_reciprocal = amax * (F32(1) / F32(LIMIT[dtype]))
  assert dtype == INT8 or (row_scale(x, dtype=dtype) != by_reciprocal).any()
  codes, _ = quantize_rows(x, dtype=dtype)
  np.testing.assert_array_equal(np.abs(codes.astype(F32)).max(axis=1), LIMIT[dtype])


@pytest.mark.parametrize("dtype", CODES)
def test_the_stored_scale_is_the_one_used(dtype):
  # amax / scale in float64 would be 448·(1 ± 2^-24); with the stored scale no code is past the end
  x = normal((2000, 3), seed=3)
  codes, scale = quantize_rows(x, dtype=dtype)
  values = dequantize(codes, scale)
  half_step = np.where(np.abs(codes.astype(float)) >= 16, np.abs(codes.astype(float)) / 16, 1)
  step = 0.5 if dtype == INT8 else half_step
  assert (np.abs(values - x) <= scale * step * (1 + 2.0**-22)).all()


@pytest.mark.parametrize("dtype", CODES)
def test_all_zero_rows_have_scale_one_and_leave_their_neighbours_alone(dtype):
  # BC-15
  x = np.stack([np.zeros(33), np.linspace(-4, 4, 33), np.zeros(33)]).astype(BFLOAT16)
  codes, scale = quantize_rows(x, dtype=dtype)
  np.testing.assert_array_equal(scale.ravel(), [1, F32(4) / F32(LIMIT[dtype]), 1])
  np.testing.assert_array_equal(codes[[0, 2]].astype(float), 0)
  np.testing.assert_array_equal(dequantize(codes, scale)[[0, 2]], 0)
  assert check_quantize_rows(codes, scale, x).passed
  empty, one = quantize_rows(np.zeros((3, 0), F32), dtype=dtype)
  assert empty.shape == (3, 0)
  np.testing.assert_array_equal(one, np.ones((3, 1)))


def test_a_fixed_scale_saturates():
  # BC-16; int8 codes are symmetric by contract: -127, not -128
  x = [448, 449, 464, 464.01, 480, 1e6, -1e6, np.inf, -np.inf, np.nan, 2**-9, 2**-10, 1.5 * 2**-10]
  expected = [448, 448, 448, 448, 448, 448, -448, 448, -448, np.nan, 2**-9, 0, 2**-9]
  np.testing.assert_array_equal(quantize(np.array(x, F32), F32(1)).astype(float), expected)
  x = [127.4, 127.5, 200, -127.5, -128.6, -1000, np.inf, -np.inf, np.nan]
  codes = quantize(np.array(x, F32), F32(1), dtype=np.int8)
  np.testing.assert_array_equal(codes, [127, 127, 127, -127, -127, -127, 127, -127, 0])


def test_int8_ties_go_to_even():
  # BC-17
  x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.9, -0.9, 2.7, 126.5, -126.5] * 3, F32)
  expected = np.array([0, 2, 2, 0, -2, -2, 1, -1, 3, 126, -126] * 3)
  np.testing.assert_array_equal(quantize(x, F32(1), dtype=np.int8), expected)


def test_infinities_and_nan_leave_the_rest_of_the_row_its_digits():
  x = np.array([[np.inf, 1.0, -2.0, np.nan, -np.inf], [np.nan, np.inf, np.nan, 0, 0]], F32)
  codes, scale = quantize_rows(x)
  np.testing.assert_array_equal(scale.ravel(), [F32(2) / F32(448), 1])
  np.testing.assert_array_equal(
    codes.astype(float), [[448, 224, -448, np.nan, -448], [np.nan, 448, np.nan, 0, 0]]
  )
  codes, _ = quantize_rows(x, dtype=np.int8)
  np.testing.assert_array_equal(codes, [[127, 64, -127, 0, -127], [0, 127, 0, 0, 0]])
  assert_quantize_rows_close(*quantize_rows(x), x)


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("magnitude", [2.0**-149, 1e-40, 2.0**-126, 1e-36, 1e38, 3.4e38])
def test_scales_are_normal_numbers_at_the_ends_of_the_range(dtype, magnitude):
  x = np.array([[magnitude, -magnitude / 2, 0]], F32)
  codes, scale = quantize_rows(x, dtype=dtype)
  assert 2.0**-126 <= float(scale[0, 0]) < np.inf
  error = np.abs(dequantize(codes, scale) - x)
  assert (error <= np.abs(x.astype(float)) / 16 + 2.0**-126).all()
  assert check_quantize_rows(codes, scale, x, flush_subnormals=False).passed


@pytest.mark.parametrize("dtype", CODES)
def test_the_check_finds_every_single_wrong_code_and_scale(dtype):
  x = normal((6, 40), seed=1)
  codes, scale = quantize_rows(x, dtype=dtype)
  assert_quantize_rows_close(codes, scale, x)
  wrong = codes.copy()
  wrong[3, 17] = np.nextafter(F32(wrong[3, 17]), F32(1000)) * F32(1.25) + F32(1)
  found = check_quantize_rows(wrong, scale, x)
  assert (found.passed, found.codes.worst_index, found.codes.failed_elements) == (False, (3, 17), 1)
  with pytest.raises(AssertionError, match=r"codes: 1 of 240"):
    assert_quantize_rows_close(wrong, scale, x)
  nudged = scale.copy()
  nudged[2] = np.nextafter(nudged[2], F32(9))
  found = check_quantize_rows(codes, nudged, x)
  assert (found.scale.passed, found.scale.worst_index) == (False, (2, 0))
  with pytest.raises(AssertionError, match=r"scale: 1 of 6"):
    assert_quantize_rows_close(codes, nudged, x)


@pytest.mark.parametrize("fault", ["truncated", "half_away", "reciprocal", "wrapped", "zero_scale"])
def test_the_usual_faults_are_found(fault):
  x = np.array([[0.5, 1.5, -2.5, 127.0, 0.9], [0, 0, 0, 0, 0], [1, 2, 3, 5, 7]], F32)
  codes, scale = quantize_rows(x, dtype=np.int8)
  if fault == "truncated":
    codes = np.trunc(x / scale).astype(np.int8)
  elif fault == "half_away":
    quotient = x / scale
    codes = np.trunc(quotient + np.copysign(0.5, quotient)).astype(np.int8)
  elif fault == "wrapped":
    codes[0, 3] = -128
  elif fault == "zero_scale":
    scale[1] = 0
  else:
    x = normal((400, 5))
    codes, scale = quantize_rows(x)
    scale = np.abs(x).max(axis=1, keepdims=True) * (F32(1) / F32(448))
  assert not check_quantize_rows(codes, scale, x).passed


def test_subnormals_may_be_read_as_zero_only_where_that_is_allowed():
  x = np.array([[1e-40, -1e-39], [1e-40, 1e-36]], F32)
  codes, scale = quantize_rows(x)
  flushed, flushed_scale = quantize_rows(np.where(np.abs(x) < 2.0**-126, F32(0), x))
  assert (flushed != codes).any()
  assert float(flushed_scale[0, 0]) == 1
  assert check_quantize_rows(flushed, flushed_scale, x).passed
  assert not check_quantize_rows(flushed, flushed_scale, x, flush_subnormals=False).passed
  assert check_quantize_rows(codes, scale, x).passed


@pytest.mark.parametrize("dtype", CODES)
def test_uncertain_values_have_uncertain_codes_only_beside_boundaries(dtype):
  x = normal((30, 50), seed=2).astype(np.float64)
  error = np.abs(x) * 2.0**-20
  values = Bounded.within(x, error)
  expected_scale = bounded_row_scale(values, dtype=dtype)
  assert (expected_scale.error <= np.abs(expected_scale.exact) * 2.0**-19).all()
  for shift in (-1.0, -0.3, 0.6, 1.0):
    moved = (x + shift * error).astype(F32)
    codes, scale = quantize_rows(moved, dtype=dtype)
    inside = Bounded.within(x, error + 2.0**-25 * np.abs(x))
    limits = bounded_row_scale(inside, dtype=dtype)
    assert (np.abs(scale - limits.exact) <= limits.error).all()
    allowed = bounded_codes(inside, scale, dtype=dtype)
    assert (np.abs(codes.astype(float) - allowed.exact) <= allowed.error).all()
    assert np.count_nonzero(allowed.error) < 0.02 * x.size


def test_row_scale_of_overflowing_values_is_not_promised():
  values = Bounded(
    np.array([[1.0, 3e38], [1.0, 2.0]]),
    np.zeros((2, 2)),
    np.array([[False, True], [False, False]]),
    np.zeros((2, 2), np.bool_),
  )
  np.testing.assert_array_equal(bounded_row_scale(values).unbounded, [[True], [False]])


def test_dequantized_values_are_exact_products():
  codes, scale = quantize_rows(normal((3, 20)), dtype=np.int8)
  exact = [
    [Fraction(int(c)) * Fraction(float(s[0])) for c in row]
    for row, s in zip(codes, scale, strict=True)
  ]
  np.testing.assert_array_equal(dequantize(codes, scale), np.array(exact, dtype=float))
  assert dequantize(codes, scale, out_dtype=BFLOAT16).dtype == BFLOAT16


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: quantize_rows(np.zeros((2, 2))), r"x\.dtype=float64"),
    (lambda: quantize_rows(np.zeros((2, 2), F32), dtype=np.int16), "expected one of float8_e4m3fn"),
    (lambda: quantize_rows(F32(1)), r"x\.shape=\(\)"),
    (lambda: quantize(np.zeros(2, F32), np.zeros(1, F32)), "scale=.*above 0"),
    (lambda: quantize(np.zeros(2, F32), np.ones(3, F32)), r"scale\.shape=\(3,\)"),
    (lambda: dequantize(np.zeros(2, F32), F32(1)), r"codes\.dtype=.*float32"),
    (
      lambda: check_quantize_rows(np.zeros(2, E4M3), np.ones(1), np.zeros(2, F32)),
      r"scale\.dtype=float64: expected float32",
    ),
    (
      lambda: check_quantize_rows(np.zeros(2, E4M3), np.ones(2, F32), np.zeros(2, F32)),
      r"scale\.shape=\(2,\): expected \(1,\)",
    ),
    (
      lambda: check_quantize_rows(np.zeros(3, E4M3), np.ones(1, F32), np.zeros(2, F32)),
      r"codes\.shape=\(3,\)",
    ),
    (
      lambda: check_quantize_rows(
        np.zeros(2, E4M3), np.ones(1, F32), np.zeros(2, F32), dtype=np.int8
      ),
      "expected dtype=int8",
    ),
  ],
)
def test_wrong_arguments_are_named(call, message):
  with pytest.raises(ValueError, match=message):
    call()
