"""RMS normalisation: its definition, and what its check lets through."""

import itertools
from decimal import Decimal, localcontext

import ml_dtypes
import numpy as np
import pytest

from reference import (
  Bounded,
  assert_rms_norm_close,
  assert_rms_norm_quantize_close,
  assert_within,
  check_rms_norm,
  check_rms_norm_quantize,
  quantize_rows,
  rms_norm,
  rms_norm_error_bound,
  rms_norm_exact,
  rms_norm_quantize,
  round_to,
)

BFLOAT16 = ml_dtypes.bfloat16
F32 = np.float32


@pytest.fixture
def operands():
  rng = np.random.default_rng(0)
  x, weight = 3 * rng.standard_normal((4, 7, 133)), rng.standard_normal(133)
  return round_to(x, BFLOAT16), round_to(weight, BFLOAT16)


def kernel(
  x, weight, *, out, segments=1, scaled=False, offset=0.0, cast_before_weight=False, eps=1e-6
):
  """float32 throughout: sums of segments one after another, then their merge in order."""
  values = x.astype(F32)
  largest = np.abs(values).max(axis=-1, keepdims=True)
  unit = (F32(1) / largest) if scaled else np.ones_like(largest)
  squares = (values * unit) ** 2
  bounds = np.linspace(0, x.shape[-1], segments + 1).astype(int)
  total = np.zeros(squares.shape[:-1], F32)
  for start, stop in itertools.pairwise(bounds):
    total = total + np.cumsum(squares[..., start:stop], axis=-1, dtype=F32)[..., -1]
  mean = total[..., None] * (F32(1) / F32(x.shape[-1]))
  inverse = F32(1) / np.sqrt(mean + F32(eps) * unit * unit)
  normalised = (values * unit) * inverse
  if cast_before_weight:
    normalised = normalised.astype(x.dtype).astype(F32)
  return (normalised * (weight.astype(F32) + F32(offset))).astype(out)


def test_the_definition_agrees_with_sixty_digits():
  rng = np.random.default_rng(1)
  x = (rng.standard_normal((3, 20)) * np.array([[1e-3], [1.0], [1e20]])).astype(F32)
  weight = rng.standard_normal(20).astype(F32)
  result = rms_norm_exact(x, weight, weight_offset=1.0)
  with localcontext() as context:
    context.prec = 60
    for row in range(3):
      values = [Decimal(float(v)) for v in x[row]]
      mean = sum(v * v for v in values) / 20
      r = 1 / (mean + Decimal("1e-6")).sqrt()
      for column, v in enumerate(values):
        exact = float(v * r * (Decimal(float(weight[column])) + 1))
        # half of a mean of 20 squares (21), root, reciprocal, products and sum: 16 roundings
        assert result[row, column] == pytest.approx(exact, rel=16 * 2.0**-53)


@pytest.mark.parametrize("out", [BFLOAT16, np.float16, F32])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("segments", [1, 8])
@pytest.mark.parametrize("cast_before_weight", [False, True])
def test_a_float32_kernel_passes(operands, out, scaled, segments, cast_before_weight):
  options = {"cast_before_weight": cast_before_weight}
  actual = kernel(*operands, out=out, segments=segments, scaled=scaled, offset=1.0, **options)
  check = assert_rms_norm_close(actual, *operands, weight_offset=1.0, **options)
  assert check.worst_bound_fraction > 0.005
  if segments == 8:
    sharper = assert_rms_norm_close(
      actual, *operands, weight_offset=1.0, accumulation_chunk=17, **options
    )
    assert sharper.error_bound < check.error_bound


def squares_in_half_precision(x, weight):
  values = x.astype(F32)
  total = np.zeros(values.shape[:-1], BFLOAT16)
  for column in range(values.shape[-1]):
    total = (total.astype(F32) + values[..., column] ** 2).astype(BFLOAT16)
  inverse = F32(1) / np.sqrt(total[..., None].astype(F32) / F32(values.shape[-1]) + F32(1e-6))
  return (values * inverse * weight.astype(F32)).astype(BFLOAT16)


@pytest.mark.parametrize(
  "fault",
  ["dropped", "padded_width", "eps_forgotten", "offset_forgotten", "cast", "half_sum", "next_row"],
)
def test_a_faulty_kernel_does_not_pass(operands, fault):
  x, weight = operands
  options = {"eps": 0.5} if fault == "eps_forgotten" else {}
  out = F32
  if fault == "dropped":
    inverse = 1 / np.sqrt(np.mean(x[..., :132].astype(F32) ** 2, axis=-1, keepdims=True))
    actual = x.astype(F32) * inverse * weight.astype(F32)
  elif fault == "padded_width":
    actual = kernel(x, weight, out=out) * np.sqrt(F32(256 / 133))
  elif fault == "eps_forgotten":
    actual = kernel(x, weight, out=out, eps=0)
  elif fault == "offset_forgotten":
    actual, options = kernel(x, weight, out=out), {"weight_offset": 1.0}
  elif fault == "cast":
    actual = kernel(x, weight, out=out, cast_before_weight=True)
  elif fault == "half_sum":
    actual = squares_in_half_precision(x, weight)
  else:
    actual = np.roll(kernel(x, weight, out=out), 1, axis=1)
  with pytest.raises(AssertionError, match="past their error bound"):
    assert_rms_norm_close(actual, x, weight, **options)


def test_squares_that_overflow_are_no_excuse():
  # BC-20, and the same for float32
  for value, dtype in ((300, np.float16), (1e30, F32), (3e38, F32)):
    x, weight = np.full((4, 2048), value, dtype), np.ones(2048, dtype)
    result = rms_norm(x, weight, out_dtype=dtype)
    np.testing.assert_array_equal(result, np.ones((4, 2048)))
    check = assert_rms_norm_close(result, x, weight)
    assert check.unbounded_elements == 0
    assert not check_rms_norm(np.zeros_like(result), x, weight).passed
  x = np.full((1, 64), 1e30, F32)
  assert check_rms_norm(
    kernel(x, np.ones(64, F32), out=F32, scaled=True), x, np.ones(64, F32)
  ).passed


def test_widths_that_no_block_divides():
  # BC-23
  twos = np.full((3, 5000), 2, F32)
  np.testing.assert_array_equal(
    rms_norm_exact(twos, np.ones(5000, F32)), np.full((3, 5000), 2 / np.sqrt(4 + 1e-6))
  )
  tail = np.zeros((3, 5000), F32)
  tail[:, -1] = np.sqrt(5000)
  result = rms_norm_exact(tail, np.ones(5000, F32))
  # of sqrt(5000), which is between two float32; what x·r makes of them grows with x
  for towards, order in ((0, np.less_equal), (np.inf, np.greater_equal)):
    beside = tail.copy()
    beside[:, -1] = np.nextafter(tail[0, -1], F32(towards))
    assert order(rms_norm_exact(beside, np.ones(5000, F32))[:, -1], 70.71064276334221).all()
  assert not result[:, :-1].any()
  half = np.zeros((7, 769), np.float16)
  half[:, -1] = np.sqrt(769)
  result = rms_norm(half, np.ones(769, np.float16), out_dtype=np.float16)
  np.testing.assert_array_equal(result[:, -1], np.float16(27.73))
  assert check_rms_norm(result, half, np.ones(769, np.float16)).passed
  shifted = np.roll(result.reshape(-1), 1).reshape(result.shape)
  assert not check_rms_norm(shifted, half, np.ones(769, np.float16)).passed


def test_zero_rows_and_special_values():
  x = np.zeros((5, 3), F32)
  x[1, 1], x[2, 1], x[3] = np.nan, np.inf, [1, 2, 3]
  weight = np.ones(3, F32)
  exact = rms_norm_exact(x, weight)
  np.testing.assert_array_equal(exact[[0, 4]], 0)
  assert np.isnan(exact[1]).all()
  np.testing.assert_array_equal(exact[2], [0, np.nan, 0])
  actual = exact.astype(F32)
  check = check_rms_norm(actual, x, weight)
  assert (check.passed, check.unbounded_elements) == (True, 2)
  actual[2] = np.nan  # what a kernel gives that divides by the largest magnitude
  assert check_rms_norm(actual, x, weight).passed
  for index in ((0, 0), (1, 2), (2, 1), (3, 0)):
    wrong = actual.copy()
    wrong[index] = 7
    assert not check_rms_norm(wrong, x, weight).passed
  bound = rms_norm_error_bound(np.zeros((1, 3), F32), weight, out_dtype=F32, eps=0.0)
  assert np.isinf(bound).all() or not bound.any()


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1,), (1, 1), (2, 0, 3)])
def test_every_shape_has_a_result(shape):
  x, weight = np.ones(shape, F32), np.ones(shape[-1], F32)
  actual = rms_norm(x, weight, out_dtype=F32)
  assert actual.shape == shape
  assert check_rms_norm(actual, x, weight).passed


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, np.int8])
@pytest.mark.parametrize("cast_before_weight", [False, True])
def test_codes_of_a_float32_kernel_pass(operands, dtype, cast_before_weight):
  options = {"cast_before_weight": cast_before_weight, "weight_offset": 1.0}
  values = kernel(
    *operands, out=F32, scaled=True, offset=1.0, cast_before_weight=cast_before_weight
  )
  codes, scale = quantize_rows(values, dtype=dtype)
  check = assert_rms_norm_quantize_close(codes, scale, *operands, **options)
  assert check.scale.error_bound < (0.01 if cast_before_weight else 100 * 2.0**-24)
  assert_rms_norm_quantize_close(
    *rms_norm_quantize(*operands, dtype=dtype, **options), *operands, **options
  )
  rounded = kernel(*operands, out=BFLOAT16, offset=1.0, cast_before_weight=cast_before_weight)
  if not cast_before_weight:
    wrong = quantize_rows(rounded, dtype=dtype)
    assert not check_rms_norm_quantize(*wrong, *operands, **options).passed
  no_offset = quantize_rows(kernel(*operands, out=F32), dtype=dtype)
  assert not check_rms_norm_quantize(*no_offset, *operands, **options).passed


def test_a_residual_is_added_and_rounded_before_it_is_normalised(operands):
  x, weight = operands
  residual = np.roll(x, 1, axis=1)
  total = (x.astype(F32) + residual.astype(F32)).astype(BFLOAT16)
  assert_within(total, Bounded.of(x).add(Bounded.of(residual)).round(BFLOAT16))
  actual = kernel(total, weight, out=BFLOAT16)
  assert_rms_norm_close(actual, total, weight)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"weight": np.ones(2, F32)}, r"weight\.shape=\(2,\): expected \(3,\)"),
    ({"x": np.ones((2, 3))}, r"x\.dtype=float64"),
    ({"eps": -1.0}, "eps=-1.0: expected a finite number of at least 0"),
    ({"weight_offset": np.inf}, "weight_offset=inf"),
    ({"accumulation_chunk": 0}, "accumulation_chunk=0"),
    ({"actual": np.ones((3, 3), F32)}, r"actual\.shape=\(3, 3\)"),
    ({"out_dtype": BFLOAT16}, "expected out_dtype=bfloat16"),
  ],
)
def test_wrong_arguments_are_named(change, message):
  arguments = {
    "actual": np.ones((2, 3), F32),
    "x": np.ones((2, 3), F32),
    "weight": np.ones(3, F32),
  }
  with pytest.raises(ValueError, match=message):
    check_rms_norm(**{**arguments, **change})
