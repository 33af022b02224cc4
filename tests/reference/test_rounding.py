"""round_to: one rounding, from float64, in every format."""

import math

import ml_dtypes
import numpy as np
import pytest

from reference import float_format, round_to

BFLOAT16 = ml_dtypes.bfloat16
E4M3 = ml_dtypes.float8_e4m3fn
NARROW = [np.float16, BFLOAT16, E4M3]


def bits(x):
  return np.asarray(x).view(f"u{np.asarray(x).dtype.itemsize}")


def all_values(dtype):
  fmt = float_format(dtype)
  return np.arange(2 ** (8 * fmt.dtype.itemsize)).astype(fmt.bits_dtype).view(fmt.dtype)


def finite_ladder(dtype):
  """0 and all positive finite values of `dtype`, ascending, as float64."""
  values = all_values(dtype)
  with np.errstate(invalid="ignore"):  # signalling NaNs
    values = values[: len(values) // 2].astype(np.float64)
  return values[np.isfinite(values)]


def random_float32(seed, size=200_000):
  """float32 bit patterns, so that every binade, infinities and NaN occur."""
  rng = np.random.default_rng(seed)
  return rng.integers(0, 2**32, size, dtype=np.uint32).view(np.float32)


def assert_same_values(actual, expected):
  """Bitwise equality, except that any NaN equals any NaN."""
  assert actual.dtype == expected.dtype
  with np.errstate(invalid="ignore"):
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(actual), nan)
  np.testing.assert_array_equal(bits(actual)[~nan], bits(expected)[~nan])


@pytest.mark.parametrize("mode", ["nearest_even", "truncate"])
@pytest.mark.parametrize("dtype", NARROW)
def test_every_value_rounds_to_itself(dtype, mode):
  values = all_values(dtype)
  rounded = round_to(values, dtype, mode=mode, saturate=False)
  assert_same_values(rounded, values)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("dtype", NARROW)
def test_midpoints_of_all_neighbours_go_to_the_even_code(dtype, sign):
  ladder = finite_ladder(dtype)
  lower = np.arange(len(ladder) - 1)  # a positive value's code is its place on the ladder
  midpoint = (ladder[:-1] + ladder[1:]) / 2
  even = ladder[lower + lower % 2]
  rounded = round_to(sign * midpoint, dtype).astype(np.float64)
  np.testing.assert_array_equal(rounded, sign * even)


@pytest.mark.parametrize("dtype", NARROW)
def test_a_hair_beside_a_midpoint_decides(dtype):
  ladder = finite_ladder(dtype)
  midpoint = (ladder[:-1] + ladder[1:]) / 2
  below, above = np.nextafter(midpoint, 0), np.nextafter(midpoint, np.inf)
  np.testing.assert_array_equal(round_to(below, dtype).astype(np.float64), ladder[:-1])
  np.testing.assert_array_equal(round_to(above, dtype).astype(np.float64), ladder[1:])


@pytest.mark.parametrize("dtype", NARROW)
def test_truncation_never_leaves_the_lower_neighbour(dtype):
  ladder = finite_ladder(dtype)
  below_next = np.nextafter(ladder[1:], 0)
  for sign in (1.0, -1.0):
    rounded = round_to(sign * below_next, dtype, mode="truncate").astype(np.float64)
    np.testing.assert_array_equal(rounded, sign * ladder[:-1])


@pytest.mark.parametrize(
  ("dtype", "value", "once", "twice"),
  [
    # a float32 lies on the midpoint of two values, and the float64 just above it
    (BFLOAT16, 1 + 2**-8 + 2**-40, 1 + 2**-7, 1.0),
    (BFLOAT16, -(1 + 2**-8 + 2**-40), -(1 + 2**-7), -1.0),
    (BFLOAT16, 1 + 3 * 2**-8 - 2**-40, 1 + 2**-7, 1 + 2**-6),
    (E4M3, 1 + 2**-4 + 2**-40, 1.125, 1.0),
    (np.float16, 1 + 2**-11 + 2**-40, 1 + 2**-10, 1.0),
    # subnormal results
    (BFLOAT16, 2**-134 * (1 + 2**-30), 2**-133, 0.0),
    (E4M3, 2**-10 * (1 + 2**-30), 2**-9, 0.0),
    (np.float16, 2**-25 * (1 + 2**-30), 2**-24, 0.0),
  ],
)
def test_double_rounding_is_avoided(dtype, value, once, twice):
  through_float32 = np.float32(value).astype(dtype)
  assert float(through_float32) == twice  # the witness does distinguish
  assert float(round_to(value, dtype)) == once


@pytest.mark.parametrize("dtype", NARROW)
def test_agrees_with_the_cast_from_float32_which_rounds_once(dtype):
  values = random_float32(1)
  with np.errstate(over="ignore", invalid="ignore"):
    expected = values.astype(dtype)
  assert_same_values(round_to(values, dtype, saturate=False), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_agrees_with_numpys_direct_cast_from_float64(dtype):
  fmt = float_format(dtype)
  rng = np.random.default_rng(2)
  exponent = rng.integers(fmt.min_subnormal_exponent - 3, -fmt.min_exponent + 4, 200_000)
  values = np.ldexp(rng.uniform(-2, 2, exponent.shape), exponent)
  with np.errstate(over="ignore"):
    assert_same_values(round_to(values, dtype), values.astype(dtype))


def test_float64_is_left_as_it_is():
  values = np.array([0.0, -0.0, 5e-324, -1e-310, 1 / 3, 1.7976931348623157e308, np.inf, -np.inf])
  for mode in ("nearest_even", "truncate"):
    assert_same_values(round_to(values, np.float64, mode=mode), values)
  assert math.isnan(round_to(np.nan, np.float64))


def test_truncation_to_bfloat16_clears_the_low_half_of_a_float32():
  values = random_float32(3)
  values = values[~np.isnan(values)]
  payload = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
  truncated = round_to(values, BFLOAT16, mode="truncate")
  np.testing.assert_array_equal(bits(truncated.astype(np.float32)), bits(payload))


def test_truncation_keeps_a_nan_whose_payload_is_in_the_low_half():
  value = np.array([0x7F800001], np.uint32).view(np.float32)
  assert np.isinf((value.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32))
  assert np.isnan(round_to(value, BFLOAT16, mode="truncate"))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16])
def test_ieee_formats_overflow_to_infinity_from_the_midpoint_on(dtype):
  fmt = float_format(dtype)
  threshold = fmt.overflow_threshold
  for sign in (1, -1):
    assert float(round_to(sign * threshold, dtype)) == sign * np.inf
    assert float(round_to(sign * np.nextafter(threshold, 0), dtype)) == sign * fmt.max_finite
    assert float(round_to(sign * threshold, dtype, mode="truncate")) == sign * fmt.max_finite
    assert float(round_to(sign * threshold, dtype, saturate=True)) == sign * fmt.max_finite
    assert float(round_to(sign * np.inf, dtype, mode="truncate")) == sign * np.inf
    assert float(round_to(sign * np.inf, dtype, saturate=True)) == sign * fmt.max_finite


def test_e4m3_saturates_unless_told_otherwise():
  values = np.array([448.0, 464.0, np.nextafter(464.0, 500), 1e300, np.inf])
  for sign in (1, -1):
    saturated = round_to(sign * values, E4M3).astype(np.float64)
    np.testing.assert_array_equal(saturated, sign * np.full(5, 448.0))
    ieee = round_to(sign * values, E4M3, saturate=False).astype(np.float64)
    np.testing.assert_array_equal(ieee, sign * np.array([448, 448, np.nan, np.nan, np.nan]))
    cut = round_to(sign * values, E4M3, mode="truncate", saturate=False).astype(np.float64)
    np.testing.assert_array_equal(cut, sign * np.array([448, 448, 448, 448, np.nan]))


@pytest.mark.parametrize("saturate", [None, True, False])
@pytest.mark.parametrize("mode", ["nearest_even", "truncate"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, *NARROW])
def test_nan_and_signed_zeros_survive(dtype, mode, saturate):
  rounded = round_to([np.nan, -0.0, 0.0, -5e-324], dtype, mode=mode, saturate=saturate)
  assert np.isnan(rounded[0])
  np.testing.assert_array_equal(np.signbit(rounded[1:].astype(np.float64)), [True, False, True])


def test_shape_and_scalars_are_kept():
  assert round_to(np.zeros((2, 0, 3)), BFLOAT16).shape == (2, 0, 3)
  assert round_to(1.5, E4M3).shape == ()
  assert round_to(np.arange(6).reshape(2, 3), np.float16).dtype == np.float16


def test_golden_e4m3_codes_of_row_and_block_scaling():
  # s004.ex5-7.*: 1 scaled by 448/10 is 44.8, stored as 44; scaled by 448/1 it is exact
  assert float(round_to(1 * 448 / 10, E4M3)) == 44.0  # q_full
  assert float(round_to(1 * 448 / 10, E4M3)) * 10 / 448 == pytest.approx(55 / 56)  # dq_full
  assert float(round_to(1 * 448 / 1, E4M3)) == 448.0  # q_first_block


@pytest.mark.parametrize(
  ("arguments", "options", "message"),
  [
    ((1.0, np.int8), {}, "dtype=.*int8.*expected one of float64, float32"),
    ((1.0, "no such"), {}, "dtype='no such'"),
    ((1.0, np.float16), {"mode": "up"}, "mode='up': expected 'nearest_even' or 'truncate'"),
    ((np.longdouble(1), np.float16), {}, "x: dtype"),
    ((np.array([2**53 + 1]), np.float16), {}, r"x: integers past 2\^53"),
    ((1j, np.float16), {}, "x: dtype complex128"),
  ],
)
def test_wrong_arguments_are_named(arguments, options, message):
  with pytest.raises(ValueError, match=message):
    round_to(*arguments, **options)
