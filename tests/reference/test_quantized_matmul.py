"""Products of codes: what their checks let through and what they do not."""

import ml_dtypes
import numpy as np
import pytest

from reference import (
  assert_quantize_matmul_close,
  assert_quantized_matmul_close,
  check_quantize_matmul,
  check_quantized_matmul,
  quantize_matmul,
  quantize_rows,
  quantized_matmul_error_bound,
  quantized_matmul_exact,
  round_to,
)
from reference import compare as blocks

BFLOAT16 = ml_dtypes.bfloat16
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
INT8 = np.dtype(np.int8)
F32 = np.float32
CODES = [E4M3, INT8]


def operands(dtype, m=9, k=67, n=13, batch=()):
  rng = np.random.default_rng(0)
  a = rng.standard_normal((*batch, m, k)).astype(F32)
  b_q, b_scale = quantize_rows(rng.standard_normal((n, k)).astype(F32), dtype=dtype)
  return a, *quantize_rows(a, dtype=dtype), b_q.T, b_scale.T


def kernel(a_q, a_scale, b_q, b_scale, out=F32):
  if a_q.dtype == INT8:
    total = (a_q.astype(np.int32) @ b_q.astype(np.int32)).astype(F32)
  else:
    total = np.zeros((*a_q.shape[:-1], b_q.shape[-1]), F32)
    for k in range(a_q.shape[-1]):
      total += a_q[..., k, None].astype(F32) * b_q[k].astype(F32)
  return (total * a_scale * b_scale).astype(out)


@pytest.mark.parametrize("out", [F32, BFLOAT16, np.float16])
@pytest.mark.parametrize("dtype", CODES)
def test_a_float32_kernel_passes(dtype, out):
  a, a_q, a_scale, b_q, b_scale = operands(dtype, batch=(2,))
  actual = kernel(a_q, a_scale, b_q, b_scale, out)
  check = assert_quantized_matmul_close(actual, a_q, b_q, a_scale, b_scale)
  assert check.worst_bound_fraction > 0.002
  assert assert_quantize_matmul_close(actual, a, b_q, b_scale) == check
  bound = quantized_matmul_error_bound(a_q, b_q, a_scale, b_scale, out_dtype=out)
  exact = quantized_matmul_exact(a_q, b_q, a_scale, b_scale)
  assert (np.abs(actual.astype(float) - exact) <= bound).all()
  np.testing.assert_array_equal(
    quantize_matmul(a, b_q, b_scale, out_dtype=out), round_to(exact, out)
  )


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("fault", ["scale_of_next_row", "no_column_scale", "dropped_k", "requant"])
def test_a_faulty_kernel_does_not_pass(dtype, fault):
  a, a_q, a_scale, b_q, b_scale = operands(dtype)
  if fault == "scale_of_next_row":
    actual = kernel(a_q, np.roll(a_scale, 1, axis=0), b_q, b_scale)
  elif fault == "no_column_scale":
    actual = kernel(a_q, a_scale, b_q, np.ones_like(b_scale))
  elif fault == "dropped_k":
    actual = kernel(a_q[:, :-1], a_scale, b_q[:-1], b_scale)
  else:  # a scale of the first half of the row, as a running maximum would have it
    half, half_scale = quantize_rows(a[:, :33], dtype=dtype)
    total = kernel(half, half_scale, b_q[:33], b_scale)
    rest, rest_scale = quantize_rows(a[:, 33:], dtype=dtype)
    actual = total + kernel(rest, rest_scale, b_q[33:], b_scale)
  with pytest.raises(AssertionError, match="past their error bound"):
    assert_quantize_matmul_close(actual, a, b_q, b_scale)
  if fault != "requant":
    assert not check_quantized_matmul(actual, a_q, b_q, a_scale, b_scale).passed


def test_int8_sums_are_exact_up_to_one_conversion():
  k = 3000
  a_q = np.full((1, k), 127, np.int8)
  b_q = np.full((k, 2), 127, np.int8)
  b_q[0, 1] = 126
  one = np.ones((1, 1), F32)
  exact = quantized_matmul_exact(a_q, b_q, one, one)
  np.testing.assert_array_equal(exact, [[k * 127**2, k * 127**2 - 127]])
  bound = quantized_matmul_error_bound(a_q, b_q, one, one, out_dtype=F32, flush_subnormals=False)
  assert (bound <= 4 * exact * 2.0**-24).all()  # a conversion and two products, no growth with K
  assert check_quantized_matmul(exact.astype(F32), a_q, b_q, one, one).passed
  wrong = exact.astype(F32) + F32(32)
  assert not check_quantized_matmul(wrong, a_q, b_q, one, one).passed


def test_int32_may_wrap_around_only_from_two_to_the_31_on():
  one = np.ones((1, 1), F32)
  for k, known in ((133_144, True), (133_145, False)):
    a_q, b_q = np.full((1, k), 127, np.int8), np.full((k, 1), 127, np.int8)
    bound = quantized_matmul_error_bound(a_q, b_q, one, one, out_dtype=F32)
    assert bool(np.isfinite(bound[0, 0])) is known


def fp8_tensor_core(a_q, b_q, chunk):
  """Sums of 4 products aligned and cut off at 13 fraction bits; chunks are added in float32."""
  products = a_q.astype(float)[:, :, None] * b_q.astype(float)[None]
  total = np.zeros((a_q.shape[0], b_q.shape[1]), F32)
  for start in range(0, products.shape[1], chunk):
    part = np.zeros((products.shape[0], 1, products.shape[2]))
    stop = min(start + chunk, products.shape[1])
    for k in range(start, stop, 4):
      addends = np.concatenate([part, products[:, k : min(k + 4, stop)]], axis=1)
      exponent = np.frexp(np.abs(addends).max(axis=1, keepdims=True))[1]
      aligned = np.ldexp(np.trunc(np.ldexp(addends, 14 - exponent)), exponent - 14)
      summed = aligned.sum(axis=1, keepdims=True)
      exponent = np.frexp(summed)[1]
      part = np.ldexp(np.trunc(np.ldexp(summed, 14 - exponent)), exponent - 14)
    total += part[:, 0].astype(F32)
  return total


@pytest.mark.parametrize("chunk", [32, 128, 512])
def test_what_hopper_keeps_of_e4m3_sums_has_a_bound_of_its_own(chunk):
  rng = np.random.default_rng(2)
  a_q = round_to(2.0 ** rng.uniform(-4, 8, (6, 512)), E4M3)
  b_q = round_to(2.0 ** rng.uniform(-4, 8, (512, 5)), E4M3)
  one = np.ones((1, 1), F32)
  actual = fp8_tensor_core(a_q, b_q, chunk)
  options = {"accumulation_chunk": chunk}
  assert not check_quantized_matmul(actual, a_q, b_q, one, one, **options).passed
  check = check_quantized_matmul(
    actual, a_q, b_q, one, one, accumulate="tensor_core_fp8", **options
  )
  assert 0.01 < check.worst_bound_fraction <= 1


def test_blocks_do_not_change_the_answer(monkeypatch):
  a, a_q, a_scale, b_q, b_scale = operands(E4M3, batch=(3,))
  actual = kernel(a_q, a_scale, b_q, b_scale, BFLOAT16)
  actual[2, 4, 5] += BFLOAT16(2)
  whole = check_quantize_matmul(actual, a, b_q, b_scale)
  monkeypatch.setattr(blocks, "_OPERAND_BLOCK_ELEMENTS", 67 * 4)
  monkeypatch.setattr(blocks, "_RESULT_BLOCK_ELEMENTS", 10)
  cut = check_quantize_matmul(actual, a, b_q, b_scale)
  assert whole.worst_index == cut.worst_index == (2, 4, 5)
  assert whole.failed_elements == cut.failed_elements == 1
  assert cut.error_bound == pytest.approx(whole.error_bound, rel=cut.elements * 2.0**-53)


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1)])
def test_every_size_has_a_result(sizes, dtype):
  m, k, n = sizes
  a = np.ones((m, k), F32)
  b_q, b_scale = np.ones((k, n), dtype), np.ones((1, n), F32)
  actual = quantize_matmul(a, b_q, b_scale, out_dtype=F32)
  assert actual.shape == (m, n)
  assert check_quantize_matmul(actual, a, b_q, b_scale).passed


def test_a_row_with_nan_or_infinity_keeps_to_itself():
  a, _, _, b_q, b_scale = operands(E4M3)
  a[2, 5], a[4, 7] = np.nan, np.inf
  actual = quantize_matmul(a, b_q, b_scale, out_dtype=F32)
  assert np.isnan(actual[2]).all()
  assert np.isfinite(np.delete(actual, 2, axis=0)).all()  # infinities saturate
  assert check_quantize_matmul(actual, a, b_q, b_scale).passed
  actual[2, 0] = 0
  assert not check_quantize_matmul(actual, a, b_q, b_scale).passed


def test_flushed_subnormals_are_covered():
  _, _, _, b_q, b_scale = operands(E4M3)
  a = np.full((2, 67), 1e-39, F32)
  a[1, 0] = 1e-36
  flushed = quantize_matmul(np.where(np.abs(a) < 2.0**-126, F32(0), a), b_q, b_scale, out_dtype=F32)
  assert check_quantize_matmul(flushed, a, b_q, b_scale).passed


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"b_q": np.ones((4, 3), INT8)}, r"b_q\.dtype=int8: expected float8_e4m3fn"),
    ({"a_q": np.ones((2, 4), F32)}, r"a_q\.dtype=.*float32.*expected one of float8_e4m3fn, int8"),
    ({"b_q": np.ones((5, 3), E4M3)}, r"b_q\.shape=\(5, 3\): expected 4 rows, the columns of a_q"),
    ({"a_scale": np.ones((2,), F32)}, r"a_scale\.shape=\(2,\): expected .* \(2, 1\)"),
    ({"b_scale": np.ones((3, 1), F32)}, r"b_scale\.shape=\(3, 1\): expected .* \(1, 3\)"),
    ({"b_scale": np.ones((1, 3))}, r"b_scale\.dtype=float64"),
    ({"actual": np.ones((3, 3), F32)}, r"actual\.shape=\(3, 3\)"),
    ({"out_dtype": BFLOAT16}, "expected out_dtype=bfloat16"),
    ({"accumulate": "tensor_core"}, "8-bit product sum"),
  ],
)
def test_wrong_arguments_are_named(change, message):
  arguments = {
    "actual": np.zeros((2, 3), F32),
    "a_q": np.ones((2, 4), E4M3),
    "b_q": np.ones((4, 3), E4M3),
    "a_scale": np.ones((2, 1), F32),
    "b_scale": np.ones((1, 3), F32),
  }
  with pytest.raises(ValueError, match=message):
    check_quantized_matmul(**{**arguments, **change})
