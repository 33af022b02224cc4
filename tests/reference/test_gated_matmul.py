"""The gated product: its definition, what its check lets through and what it does not."""

import ml_dtypes
import numpy as np
import pytest

from reference import (
  assert_gated_matmul_close,
  check_gated_matmul,
  exact_integer_operands,
  gated_matmul,
  gated_matmul_error_bound,
  gated_matmul_exact,
  matmul,
  round_to,
  silu,
)
from reference import compare as blocks

BFLOAT16 = ml_dtypes.bfloat16
F32 = np.float32
# a few float64 operations in another order, a rounding of 2^-53 each
FEW = 8 * 2.0**-53


@pytest.fixture
def operands():
  rng = np.random.default_rng(0)
  return tuple(
    round_to(rng.standard_normal(shape), BFLOAT16) for shape in ((2, 9, 33), (33, 17), (33, 17))
  )


def kernel(x, w_gate, w_up, *, intermediate, out, chunk=8):
  """float32 sums of chunks, the elementwise part in float32, one rounding at the end."""

  def product(w):
    total = np.zeros((*x.shape[:-1], w.shape[-1]), F32)
    for k in range(0, x.shape[-1], chunk):
      total += x[..., k : k + chunk].astype(F32) @ w[k : k + chunk].astype(F32)
    return total.astype(intermediate).astype(F32)

  gate, up = product(w_gate), product(w_up)
  return (gate / (F32(1) + np.exp(-gate)) * up).astype(out)


def test_two_gate_and_three_up_make_silu_of_two_times_three():
  x = np.ones((3, 16), F32)
  w_gate, w_up = np.full((16, 17), 0.125, F32), np.full((16, 17), 0.1875, F32)
  expected = np.full((3, 17), 3 * float(silu(2.0)))
  np.testing.assert_array_equal(gated_matmul_exact(x, w_gate, w_up), expected)
  assert expected[0, 0] == pytest.approx(5.284782467867294, rel=FEW)  # BC-10
  swapped = gated_matmul(x, w_up, w_gate, out_dtype=F32)
  assert not check_gated_matmul(swapped, x, w_gate, w_up).passed


def test_the_definition_is_two_rounded_matmuls_and_one_rounded_elementwise_product(operands):
  x, w_gate, w_up = operands
  gate, up = (matmul(x, w, out_dtype=BFLOAT16).astype(np.float64) for w in (w_gate, w_up))
  result = gated_matmul(x, w_gate, w_up, out_dtype=BFLOAT16)
  np.testing.assert_array_equal(result, round_to(silu(gate) * up, BFLOAT16))
  kept = gated_matmul(x, w_gate, w_up, intermediate_dtype=F32, out_dtype=BFLOAT16)
  assert (kept != result).any()
  twice = round_to(round_to(silu(gate), BFLOAT16).astype(np.float64) * up, BFLOAT16)
  assert (twice != result).any()
  assert gated_matmul(x, w_gate, w_up).dtype == np.float64


def test_without_an_activation_integers_are_exact():
  rng = np.random.default_rng(1)
  x, w_gate = exact_integer_operands(rng, 5, 16, 6, BFLOAT16)
  _, w_up = exact_integer_operands(rng, 5, 16, 6, BFLOAT16)
  result = gated_matmul(x, w_gate, w_up, activation=None, out_dtype=F32)
  a, g, u = (v.astype(np.int64) for v in (x, w_gate, w_up))
  np.testing.assert_array_equal(result, (a @ g) * (a @ u))


@pytest.mark.parametrize("out", [BFLOAT16, np.float16, F32])
@pytest.mark.parametrize("intermediate", [None, F32])
def test_a_float32_kernel_passes(operands, out, intermediate):
  actual = kernel(*operands, intermediate=out if intermediate is None else intermediate, out=out)
  check = assert_gated_matmul_close(actual, *operands, intermediate_dtype=intermediate)
  assert 0.005 < check.worst_bound_fraction <= 1
  chunked = check_gated_matmul(
    actual, *operands, intermediate_dtype=intermediate, accumulation_chunk=8
  )
  assert chunked.passed
  assert chunked.error_bound < check.error_bound


@pytest.mark.parametrize("fault", ["swapped", "dropped_k", "rounded_products", "no_activation"])
def test_a_faulty_kernel_does_not_pass(operands, fault):
  x, w_gate, w_up = operands
  options = {"intermediate": F32, "out": F32}
  if fault == "swapped":
    actual = kernel(x, w_up, w_gate, **options)
  elif fault == "dropped_k":
    actual = kernel(x[..., :32], w_gate[:32], w_up[:32], **options)
  elif fault == "rounded_products":
    actual = kernel(x, w_gate, w_up, intermediate=BFLOAT16, out=F32)
  else:
    actual = gated_matmul(x, w_gate, w_up, activation=None, out_dtype=F32)
  with pytest.raises(AssertionError, match="past their error bound"):
    assert_gated_matmul_close(actual, x, w_gate, w_up, intermediate_dtype=F32)


def test_blocks_do_not_change_the_answer(operands, monkeypatch):
  actual = kernel(*operands, intermediate=BFLOAT16, out=BFLOAT16)
  actual[1, 4, 12] += BFLOAT16(3)
  whole = check_gated_matmul(actual, *operands)
  monkeypatch.setattr(blocks, "_OPERAND_BLOCK_ELEMENTS", 33 * 5)
  monkeypatch.setattr(blocks, "_RESULT_BLOCK_ELEMENTS", 12)
  cut = check_gated_matmul(actual, *operands)
  assert whole.worst_index == cut.worst_index == (1, 4, 12)
  assert (whole.passed, whole.failed_elements) == (cut.passed, cut.failed_elements) == (False, 1)
  assert cut.relative_error == pytest.approx(whole.relative_error, rel=306 * FEW)


@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1)])
def test_every_size_has_a_result(sizes):
  m, k, n = sizes
  x, w = np.ones((m, k), F32), np.ones((k, n), F32)
  actual = gated_matmul(x, w, w, out_dtype=F32)
  assert actual.shape == (m, n)
  assert k or not actual.any()
  assert check_gated_matmul(actual, x, w, w).passed
  assert gated_matmul_error_bound(x, w, w, out_dtype=F32).shape == (m, n)


def test_special_values_follow_the_definition():
  x = np.array([[np.inf], [-np.inf], [np.nan], [1.0]], F32)
  w_gate, w_up = np.array([[1.0, 1.0]], F32), np.array([[2.0, 0.0]], F32)
  exact = gated_matmul_exact(x, w_gate, w_up)
  # silu(-inf) = 0 meets -inf: NaN
  np.testing.assert_array_equal(exact[:3], [[np.inf, np.nan], [np.nan, np.nan], [np.nan, np.nan]])
  assert check_gated_matmul(exact.astype(F32), x, w_gate, w_up).passed


@pytest.mark.parametrize(
  ("change", "options", "message"),
  [
    ({"w_up": np.ones((4, 4), F32)}, {}, r"w_up\.shape=\(4, 4\): expected \(4, 3\)"),
    ({"x": np.ones((2, 5), F32)}, {}, r"w_gate\.shape=\(4, 3\): expected 5 rows, the columns of x"),
    ({"w_up": np.ones((4, 3), BFLOAT16)}, {}, r"w_up\.dtype=bfloat16: expected float32"),
    ({"x": np.ones((2, 4))}, {}, r"x\.dtype=float64"),
    ({}, {"activation": "gelu"}, "activation='gelu'"),
    ({}, {"intermediate_dtype": np.int8}, "intermediate_dtype="),
    ({}, {"out_dtype": BFLOAT16}, "expected out_dtype=bfloat16"),
  ],
)
def test_wrong_arguments_are_named(change, options, message):
  arrays = {"x": np.ones((2, 4), F32), "w_gate": np.ones((4, 3), F32), "w_up": np.ones((4, 3), F32)}
  with pytest.raises(ValueError, match=message):
    check_gated_matmul(np.zeros((2, 3), F32), **{**arrays, **change}, **options)
