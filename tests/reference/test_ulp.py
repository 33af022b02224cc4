"""ulp, ulp_distance, ulp_error, and the seed's experiment in units of them."""

import ml_dtypes
import numpy as np
import pytest

from reference import (
  NAN_DISTANCE,
  check_matmul,
  float_format,
  matmul_exact,
  round_to,
  ulp,
  ulp_distance,
  ulp_error,
)

BFLOAT16 = ml_dtypes.bfloat16
E4M3 = ml_dtypes.float8_e4m3fn
ALL = [np.float64, np.float32, np.float16, BFLOAT16, E4M3]
NARROW = [np.float16, BFLOAT16, E4M3]


def positive_numbers(dtype):
  """0 and all positive values of `dtype` in order, infinity included."""
  fmt = float_format(dtype)
  values = np.arange(2 ** (8 * fmt.dtype.itemsize - 1)).astype(fmt.bits_dtype).view(fmt.dtype)
  with np.errstate(invalid="ignore"):
    return values[~np.isnan(values)]


@pytest.mark.parametrize("dtype", NARROW)
def test_ulp_is_the_gap_to_the_next_value_everywhere(dtype):
  ladder = positive_numbers(dtype).astype(np.float64)
  ladder = ladder[np.isfinite(ladder)]
  np.testing.assert_array_equal(ulp(ladder[:-1], dtype), np.diff(ladder))
  np.testing.assert_array_equal(ulp(-ladder[:-1], dtype), np.diff(ladder))
  between = (ladder[:-1] + ladder[1:]) / 2
  np.testing.assert_array_equal(ulp(between, dtype), np.diff(ladder))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_ulp_is_numpys_spacing(dtype):
  rng = np.random.default_rng(0)
  info = np.finfo(dtype)
  exponent = rng.integers(int(info.minexp) - 10, int(info.maxexp) - 1, 5000)
  values = np.ldexp(rng.uniform(1, 2, 5000), exponent).astype(dtype)
  np.testing.assert_array_equal(ulp(values, dtype), np.spacing(values).astype(np.float64))


@pytest.mark.parametrize("dtype", ALL)
def test_ulp_at_the_ends_of_the_range(dtype):
  fmt = float_format(dtype)
  smallest = np.ldexp(1.0, fmt.min_subnormal_exponent)
  assert ulp(0.0, dtype) == smallest
  assert ulp(smallest, dtype) == smallest
  assert ulp(np.ldexp(1.0, fmt.min_exponent), dtype) == smallest
  assert ulp(np.ldexp(1.0, fmt.min_exponent + 1), dtype) == 2 * smallest
  top = np.ldexp(1.0, int(np.frexp(fmt.max_finite)[1]) - fmt.precision)
  assert ulp(fmt.max_finite, dtype) == top
  assert ulp(1.7e308, dtype) == top
  assert np.isnan(ulp([np.inf, -np.inf, np.nan], dtype)).all()


@pytest.mark.parametrize("dtype", NARROW)
def test_distance_counts_codes_across_zero_and_infinity(dtype):
  positive = positive_numbers(dtype)
  place = np.arange(len(positive))
  np.testing.assert_array_equal(ulp_distance(positive, positive[0]), place)
  np.testing.assert_array_equal(ulp_distance(positive[:-1], positive[1:]), 1)
  # -x lies as far below zero as x above it
  np.testing.assert_array_equal(ulp_distance(positive, -positive), 2 * place)


@pytest.mark.parametrize("dtype", ALL)
def test_distance_at_special_values(dtype):
  fmt = float_format(dtype)

  def distance(x, y):
    return int(ulp_distance(np.array(x, dtype), np.array(y, dtype)))

  smallest = np.ldexp(1.0, fmt.min_subnormal_exponent)
  assert distance(0.0, -0.0) == 0
  assert distance(smallest, -smallest) == 2
  assert distance(-smallest, 0.0) == 1
  assert distance(np.nan, np.nan) == 0
  assert distance(np.nan, 1.0) == distance(1.0, np.nan) == int(NAN_DISTANCE)
  if fmt.has_infinity:
    assert distance(fmt.max_finite, np.inf) == 1
    assert distance(np.inf, np.inf) == 0


def test_distance_of_the_float64_extremes_does_not_wrap():
  highest = np.finfo(np.float64).max
  steps = int(np.array(highest).view(np.int64))
  assert int(ulp_distance(np.array(-highest), np.array(highest))) == 2 * steps > 2**63


def test_distance_broadcasts_and_takes_strided_arrays():
  a = np.arange(12, dtype=np.float32).reshape(3, 4).T
  assert ulp_distance(a, a[:, :1]).shape == (4, 3)
  np.testing.assert_array_equal(np.diagonal(ulp_distance(a, a)), 0)
  assert int(ulp_distance(a[1:, :1], np.nextafter(a[1:, :1], np.float32(99))).max()) == 1


def test_distance_of_different_dtypes_is_refused():
  with pytest.raises(ValueError, match=r"b\.dtype=float16: expected float32"):
    ulp_distance(np.zeros(1, np.float32), np.zeros(1, np.float16))
  with pytest.raises(ValueError, match=r"a\.dtype=.*int32.*: expected one of"):
    ulp_distance(np.zeros(1, np.int32), np.zeros(1, np.int32))


@pytest.mark.parametrize("dtype", [np.float32, *NARROW])
def test_correct_rounding_is_within_half_an_ulp_and_reaches_it(dtype):
  rng = np.random.default_rng(5)
  fmt = float_format(dtype)
  exact = np.ldexp(rng.uniform(-2, 2, 20_000), rng.integers(fmt.min_subnormal_exponent, 8, 20_000))
  error = ulp_error(round_to(exact, dtype), exact)
  assert 0.49 < error.max() <= 0.5


def test_error_counts_last_places_of_the_dtype_asked_for():
  assert ulp_error(1.0 + 2**-23, 1.0, np.float32) == 1.0
  assert ulp_error(1.0 + 2**-23, 1.0, BFLOAT16) == 2**-16
  assert ulp_error(np.float32(1.0 + 2**-22), 1.0) == 2.0


def test_error_of_non_finite_values():
  actual = np.array([np.inf, np.inf, -np.inf, np.nan, np.nan, 65504, 1.0, np.inf], np.float16)
  exact = np.array([np.inf, 65520.0, 65520.0, np.nan, 1.0, np.inf, np.nan, 65519.0])
  expected = [0, 0, np.inf, 0, np.inf, np.inf, np.inf, np.inf]
  np.testing.assert_array_equal(ulp_error(actual, exact), expected)


# The teaching row of s004.ulp.*: x[i] is float32(sin(i + 1)) cut off to bfloat16; its squares are
# exact in float32 and are summed in 1, 2, 4, ... segments, the segment sums one after another.


def teaching_row(mode):
  return round_to(np.sin(np.arange(1, 4097)).astype(np.float32), BFLOAT16, mode=mode)


def segmented_square_sum(row, splits):
  squares = row.astype(np.float32) ** 2
  partial = np.cumsum(squares.reshape(splits, -1), axis=1, dtype=np.float32)[:, -1]
  return np.cumsum(partial, dtype=np.float32)[-1]


# A float64 sum near 2038 is known to a few units of 2^-42; float32's, 2^-13, has 2^29 of them.
FLOAT64_IN_ULP = 4 * 2.0**-29


def test_golden_exact_sum_of_the_truncated_row():
  row = teaching_row("truncate")[None]
  assert matmul_exact(row, row.T)[0, 0] == pytest.approx(2038.1288089819586, rel=4 * 2.0**-52)


@pytest.mark.parametrize(
  ("splits", "total", "offset_ulp"),
  [
    (1, 2038.107421875, -175.20318020507693),
    (2, 2038.115478515625, -109.20318020507693),
    (4, 2038.1220703125, -55.20318020507693),
    (8, 2038.127685546875, -9.203180205076933),
    (16, 2038.1280517578125, -6.203180205076933),
    (32, 2038.1287841796875, -0.2031802050769329),
  ],
)
def test_golden_offsets_of_split_sums_in_ulp(splits, total, offset_ulp):
  row = teaching_row("truncate")
  computed = segmented_square_sum(row, splits)
  exact = matmul_exact(row[None], row[:, None])[0, 0]
  assert float(computed) == total
  assert computed < exact
  assert float(ulp_error(computed, exact)) == pytest.approx(-offset_ulp, abs=FLOAT64_IN_ULP)
  check = check_matmul(
    computed.reshape(1, 1), row[None], row[:, None], accumulation_chunk=4096 // splits
  )
  assert check.passed
  assert check.max_ulp == pytest.approx(-offset_ulp, abs=FLOAT64_IN_ULP)


def test_golden_gap_of_eight_segments_to_one():
  row = teaching_row("truncate")
  one, eight = segmented_square_sum(row, 1), segmented_square_sum(row, 8)
  assert int(ulp_distance(eight, one)) == 166  # s004.ulp.gap_8_vs_1
  gap = (float(eight) - float(one)) / float(one)
  assert gap == pytest.approx(9.942396390646576e-06, rel=1e-12)  # s004.ulp.rel_gap


@pytest.mark.parametrize(
  ("splits", "offset_ulp"), [(1, -64.08646281791152), (8, -5.086462817911524)]
)
def test_golden_offsets_when_the_row_is_rounded_to_nearest(splits, offset_ulp):
  row = teaching_row("nearest_even")  # s004.ulp.rne_offset_*: another sum, in the next binade
  exact = matmul_exact(row[None], row[:, None])[0, 0]
  assert exact == pytest.approx(2048.48, abs=0.005)
  error = ulp_error(segmented_square_sum(row, splits), exact)
  assert float(error) == pytest.approx(-offset_ulp, abs=FLOAT64_IN_ULP)
