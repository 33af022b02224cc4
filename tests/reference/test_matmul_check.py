"""check_matmul and assert_matmul_close: what passes, what fails, what is said."""

import dataclasses
import re
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from reference import (
  assert_matmul_close,
  check_matmul,
  compare,
  matmul,
  matmul_error_bound,
  matmul_exact,
  round_to,
)

BFLOAT16 = ml_dtypes.bfloat16
E4M3 = ml_dtypes.float8_e4m3fn


@pytest.fixture
def problem():
  rng = np.random.default_rng(0)
  a = round_to(rng.standard_normal((19, 37)), BFLOAT16)
  b = round_to(rng.standard_normal((37, 23)), BFLOAT16)
  return a, b, matmul(a, b, out_dtype=BFLOAT16)


def test_a_correctly_rounded_result_passes_with_half_an_ulp(problem):
  a, b, c = problem
  check = check_matmul(c, a, b)
  assert check.passed
  assert check.max_ulp <= 0.5
  assert 0 < check.relative_error <= check.error_bound < 0.01
  assert 0 < check.worst_bound_fraction <= 1
  assert (check.elements, check.failed_elements, check.unbounded_elements) == (19 * 23, 0, 0)
  assert check.out_dtype == "bfloat16"
  with pytest.raises(dataclasses.FrozenInstanceError):
    check.passed = False


def test_figures_are_those_of_the_whole_arrays(problem):
  a, b, c = problem
  exact, bound = matmul_exact(a, b), matmul_error_bound(a, b, out_dtype=BFLOAT16)
  error = np.abs(c.astype(np.float64) - exact)
  check = check_matmul(c, a, b)
  norm = np.linalg.norm
  assert check.relative_error == pytest.approx(norm(error) / norm(exact))
  assert check.error_bound == pytest.approx(norm(bound) / norm(exact))
  assert check.max_error_bound == pytest.approx(bound.max())
  assert check.worst_bound_fraction == pytest.approx((error / bound).max())
  assert check.worst_index == np.unravel_index((error / bound).argmax(), error.shape)
  assert check.worst_error == pytest.approx(error[check.worst_index])
  assert check.worst_bound == pytest.approx(bound[check.worst_index])


def test_one_wrong_element_is_found_wherever_it_is(problem):
  a, b, c = problem
  for index in ((0, 0), (7, 3), (18, 22)):
    wrong = c.copy()
    wrong[index] = wrong[index] + BFLOAT16(1)
    check = check_matmul(wrong, a, b)
    assert not check.passed
    assert check.worst_index == index
    assert check.failed_elements == 1
    assert check.worst_actual == float(wrong[index])


def test_blocks_do_not_change_the_answer(problem, monkeypatch):
  a, b, c = problem
  bias = np.linspace(-1, 1, 23, dtype=np.float32)
  c = matmul(a, b, bias=bias, activation="silu", out_dtype=BFLOAT16)
  c[11, 20] = 100
  whole = check_matmul(c, a, b, bias=bias, activation="silu")
  monkeypatch.setattr(compare, "_OPERAND_BLOCK_ELEMENTS", 37 * 5)
  monkeypatch.setattr(compare, "_RESULT_BLOCK_ELEMENTS", 12)
  calls = []
  blocks = check_matmul(
    c, a, b, bias=bias, activation="silu", progress=lambda *done: calls.append(done)
  )
  assert len(calls) == 5 * 10
  assert calls[-1] == (19 * 23, 19 * 23)
  assert calls == sorted(calls)
  for field in dataclasses.fields(whole):
    ours, theirs = getattr(blocks, field.name), getattr(whole, field.name)
    if isinstance(theirs, float):
      # norms are sums of all elements' squares, in another order
      assert ours == pytest.approx(theirs, rel=whole.elements * 2.0**-53), field.name
    else:
      assert ours == theirs, field.name


def test_batches_broadcast_and_keep_their_index():
  rng = np.random.default_rng(0)
  a = round_to(rng.standard_normal((2, 1, 4, 5)), np.float16)
  b = round_to(rng.standard_normal((3, 5, 6)), np.float16)
  c = matmul(a, b, out_dtype=np.float16)
  assert check_matmul(c, a, b).passed
  c[1, 2, 3, 4] = 77
  assert check_matmul(c, a, b).worst_index == (1, 2, 3, 4)
  assert check_matmul(c[:0], a[:0], b).passed


def test_an_exact_product_one_last_place_off_fails():
  a, b = np.full((1, 1), 1.25, BFLOAT16), np.full((1, 1), 1.25, BFLOAT16)
  for value, passed in ((1.5625, True), (1.5625 + 2**-7, False), (1.5625 - 2**-7, False)):
    assert check_matmul(np.array([[value]], BFLOAT16), a, b).passed is passed


@pytest.mark.parametrize(("m", "k", "n"), [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_empty_operands(m, k, n):
  a, b = np.zeros((m, k), np.float32), np.zeros((k, n), np.float32)
  check = check_matmul(np.zeros((m, n), np.float32), a, b)
  assert check.passed
  assert check.relative_error == check.error_bound == check.max_ulp == 0
  assert (check.worst_index is None) == (m * n == 0)
  if m * n:
    assert not check_matmul(np.full((m, n), 1e-3, np.float32), a, b).passed


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_result_that_is_not_finite_fails(problem, value):
  a, b, c = problem
  c[4, 5] = value
  check = check_matmul(c, a, b)
  assert not check.passed
  assert check.worst_index == (4, 5)
  assert check.worst_bound_fraction == check.relative_error == check.max_ulp == np.inf


def test_infinities_and_nan_that_exact_arithmetic_gives_are_required(problem):
  a, b, _ = problem
  a[0, 0], a[1, 0], a[2, 0], a[2, 1] = np.inf, np.nan, np.inf, 0
  b[0, :2], b[0, 2] = 1, -1
  c = matmul(a, b, out_dtype=BFLOAT16)
  check = check_matmul(c, a, b)
  assert check.passed
  assert 0 < check.relative_error <= check.error_bound < 0.01  # those of the finite elements
  for index in ((0, 0), (0, 2), (1, 1)):
    for value in (0, 1, -float(c[index])):
      wrong = c.copy()
      wrong[index] = value
      if np.isnan(value):
        continue
      check = check_matmul(wrong, a, b)
      assert (check.passed, check.worst_index) == (False, index)


def test_silu_of_minus_infinity_has_to_be_zero():
  a, b = np.array([[-np.inf, 1]], np.float32), np.ones((2, 1), np.float32)
  for value, passed in ((0.0, True), (-0.0, True), (np.nan, False), (-1e-30, False)):
    actual = np.array([[value]], np.float32)
    assert check_matmul(actual, a, b, activation="silu").passed is passed


def test_overflow_of_the_output_dtype():
  a = np.array([[255.0, 1.0, 1 - 2.0**-8]], np.float16)
  b = np.array([[256.0], [239.0], [1.0]], np.float16)
  # just below the midpoint that float16 rounds to infinity, and within the float32 error of it
  assert matmul_exact(a, b)[0, 0] == 65520 - 2.0**-8
  for value, passed in ((65504, True), (np.inf, True), (-np.inf, False), (np.nan, False)):
    assert check_matmul(np.array([[value]], np.float16), a, b).passed is passed
  far = b * np.float16(2)
  assert check_matmul(np.array([[np.inf]], np.float16), a, far).passed
  assert not check_matmul(np.array([[65504]], np.float16), a, far).passed


def test_overflow_before_silu():
  # |s| is past float16: the intermediate is an infinity, and silu makes it infinite or 0
  a, b = np.array([[300.0], [-300.0]], np.float16), np.array([[300.0]], np.float16)
  for results, passed in (
    ((np.inf, 0.0), True),
    ((np.inf, -0.0), True),
    ((np.inf, -np.inf), False),
    ((np.inf, np.inf), False),
    ((-np.inf, 0.0), False),
  ):
    actual = np.array(results, np.float16)[:, None]
    check = check_matmul(actual, a, b, activation="silu")
    assert (check.passed, check.unbounded_elements) == (passed, 0)
  kept = np.array([[90000.0], [0.0]], np.float32)
  options = {"activation": "silu", "intermediate_dtype": np.float16}
  assert check_matmul(np.array([[np.inf], [0]], np.float32), a, b, **options).passed
  assert check_matmul(kept, a, b, activation="silu").passed


def test_a_bias_that_overflows_the_sum_gives_infinity():
  a, b = np.full((1, 1), 3e38, np.float32), np.ones((1, 1), np.float32)
  bias = np.full(1, 1e38, np.float32)
  for value, passed in ((np.inf, True), (-np.inf, False), (np.nan, False), (3e38, False)):
    check = check_matmul(np.array([[value]], np.float32), a, b, bias=bias)
    assert (check.passed, check.unbounded_elements) == (passed, 0)


def test_saturated_e4m3_passes_and_nan_in_its_place_does_not():
  a, b = np.full((1, 1), 64.0, BFLOAT16), np.full((1, 1), 16.0, BFLOAT16)
  assert check_matmul(np.array([[448.0]], E4M3), a, b).passed
  assert not check_matmul(np.array([[np.nan]], E4M3), a, b).passed


def test_sums_that_overflow_float32_are_counted_not_judged():
  a = np.array([[1e38, 1e38, 1e38, -1e38], [1, 1, 1, 1]], np.float32)
  b = np.full((4, 1), 2.0, np.float32)
  for value in (4e38, np.nan, 2e38):
    with np.errstate(over="ignore"):
      actual = np.array([[value], [8]]).astype(np.float32)
    check = check_matmul(actual, a, b)
    assert check.passed
    assert (check.unbounded_elements, check.max_ulp) == (1, 0)
  assert not check_matmul(np.array([[0], [9]], np.float32), a, b).passed
  with pytest.raises(AssertionError, match="none of the 1 elements has an error bound"):
    assert_matmul_close(np.zeros((1, 1), np.float32), a[:1], b)


def test_options_reach_the_bound(problem):
  a, b, _ = problem
  kept = matmul(a, b, activation="silu", intermediate_dtype=np.float32, out_dtype=np.float32)
  options = {"activation": "silu", "intermediate_dtype": np.float32}
  assert check_matmul(kept, a, b, **options).passed
  assert not check_matmul(kept, a, b, intermediate_dtype=np.float32).passed
  plain = check_matmul(kept, a, b, **options).error_bound
  assert check_matmul(kept, a, b, accumulate="tensor_core", **options).error_bound > plain
  assert check_matmul(kept, a, b, accumulation_chunk=8, **options).error_bound < plain
  rounded = matmul(a, b, activation="silu", intermediate_dtype=BFLOAT16, out_dtype=np.float32)
  assert not check_matmul(rounded, a, b, **options).passed


def test_the_assertion_names_the_worst_element(problem):
  a, b, c = problem
  assert assert_matmul_close(c, a, b).passed
  exact = matmul_exact(a, b)[4, 5]
  c[4, 5], c[6, 7] = 1000, 30
  with pytest.raises(AssertionError) as failure:
    assert_matmul_close(c, a, b)
  message = str(failure.value)
  assert message.startswith("2 of 437 bfloat16 elements are past their error bound; worst [4, 5]: ")
  assert f"actual 1000.0, exact {float(exact)!r}" in message
  assert re.search(r"error \S+, bound \S+ \(\S+ times it\), \S+ ulp$", message)


@pytest.mark.parametrize(
  ("actual", "options", "message"),
  [
    (np.zeros((3, 2), np.float32), {}, r"actual\.shape=\(3, 2\): expected \(2, 3\)"),
    (np.zeros((2, 3), np.float32), {"out_dtype": BFLOAT16}, "expected out_dtype=bfloat16"),
    (np.zeros((2, 3), np.int32), {}, "out_dtype=.*int32.*expected one of"),
    (np.zeros((2, 3), np.float32), {"bias": np.zeros(3)}, r"bias\.dtype=float64"),
  ],
)
def test_wrong_arguments_are_named(actual, options, message):
  a, b = np.ones((2, 4), np.float32), np.ones((4, 3), np.float32)
  with pytest.raises(ValueError, match=message):
    check_matmul(actual, a, b, **options)


def test_memory_is_bounded_by_the_blocks_not_by_the_result(monkeypatch):
  monkeypatch.setattr(compare, "_RESULT_BLOCK_ELEMENTS", 2**15)
  rng = np.random.default_rng(0)
  a = rng.standard_normal((1024, 4)).astype(np.float32)
  b = rng.standard_normal((4, 1024)).astype(np.float32)
  c = a @ b
  tracemalloc.start()
  try:
    assert check_matmul(c, a, b).passed
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  # a float64 array of all results is 8 MiB, one of a block 256 KiB, of which a dozen are alive
  assert peak < 8 * 2**20 / 2
