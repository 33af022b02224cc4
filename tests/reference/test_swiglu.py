"""silu(gate) ⊙ up and its codes: definitions, and what their checks let through."""

import ml_dtypes
import numpy as np
import pytest

from reference import (
  assert_swiglu_close,
  assert_swiglu_quantize_close,
  check_swiglu,
  check_swiglu_quantize,
  quantize_rows,
  round_to,
  silu,
  swiglu,
  swiglu_error_bound,
  swiglu_exact,
  swiglu_quantize,
)
from reference.rowwise import rows as groups

BFLOAT16 = ml_dtypes.bfloat16
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
INT8 = np.dtype(np.int8)
F32 = np.float32


@pytest.fixture
def operands():
  rng = np.random.default_rng(0)
  return tuple(round_to(2 * rng.standard_normal((3, 17, 29)), BFLOAT16) for _ in range(2))


def kernel(gate, up, *, intermediate, out):
  g, u = gate.astype(F32), up.astype(F32)
  with np.errstate(over="ignore"):
    activated = (g / (F32(1) + np.exp(-g))).astype(intermediate).astype(F32)
  return (activated * u).astype(out)


@pytest.mark.parametrize("out", [BFLOAT16, np.float16, F32])
@pytest.mark.parametrize("intermediate", [None, F32])
def test_a_float32_kernel_passes(operands, out, intermediate):
  stored = out if intermediate is None else intermediate
  actual = kernel(*operands, intermediate=stored, out=out)
  check = assert_swiglu_close(actual, *operands, intermediate_dtype=intermediate)
  assert check.worst_bound_fraction > 0.05
  bound = swiglu_error_bound(*operands, out_dtype=out, intermediate_dtype=intermediate)
  assert (np.abs(actual.astype(float) - swiglu_exact(*operands)) <= bound).all()


def test_the_definition_rounds_the_activation_only_where_it_says_so(operands):
  gate, up = operands
  stored = round_to(silu(gate), BFLOAT16).astype(float) * up.astype(float)
  np.testing.assert_array_equal(swiglu(gate, up, out_dtype=BFLOAT16), round_to(stored, BFLOAT16))
  kept = swiglu(gate, up, intermediate_dtype=F32, out_dtype=BFLOAT16)
  np.testing.assert_array_equal(
    kept, round_to(round_to(silu(gate), F32).astype(float) * up.astype(float), BFLOAT16)
  )
  assert not check_swiglu(
    swiglu(gate, up, out_dtype=BFLOAT16), gate, up, intermediate_dtype=F32
  ).passed


@pytest.mark.parametrize("fault", ["swapped", "no_activation", "both"])
def test_a_faulty_kernel_does_not_pass(operands, fault):
  gate, up = operands
  wrong = {
    "swapped": swiglu(up, gate, out_dtype=BFLOAT16),
    "no_activation": (gate.astype(F32) * up.astype(F32)).astype(BFLOAT16),
    "both": round_to(silu(gate) * silu(up), BFLOAT16),
  }[fault]
  with pytest.raises(AssertionError, match="past their error bound"):
    assert_swiglu_close(wrong, gate, up)


def test_special_values_and_the_far_tail():
  # BC-11, with up = 1
  x = [-np.inf, -100, -91, -90, -87.5, -20, -0.0, 0.0, 1e-40, 1, 89, np.inf, np.nan]
  expected = [
    0.0,
    -3.7200759760208363e-42,
    -2.743111994409491e-38,
    -7.374611361591463e-38,
    -8.734557064248092e-37,
    -4.1223072363804067e-08,
    0.0,
    0.0,
    5e-41,
    0.7310585786300049,
    89.0,
    np.inf,
    np.nan,
  ]
  gate = np.array(x, F32)
  result = swiglu(gate, np.ones(13, F32), intermediate_dtype=F32, out_dtype=F32)
  # 1e-40 is no float32; of the nearest, which is subnormal, silu is half
  expected[8] = float(gate[8]) / 2
  # one rounding to float32: up is 1
  np.testing.assert_array_equal(result, np.array(expected, F32))
  flushed = np.where(np.abs(result) < 2.0**-126, F32(0), result)
  for actual in (result, flushed):
    assert check_swiglu(actual, gate, np.ones(13, F32), intermediate_dtype=F32).passed
  nothing = result.copy()
  nothing[4] = 0  # -87.5: still a normal number
  assert not check_swiglu(nothing, gate, np.ones(13, F32), intermediate_dtype=F32).passed


def test_groups_of_rows_do_not_change_the_answer(operands, monkeypatch):
  actual = kernel(*operands, intermediate=BFLOAT16, out=BFLOAT16)
  actual[2, 5, 7] += BFLOAT16(1)
  whole = check_swiglu(actual, *operands)
  monkeypatch.setattr(groups, "_GROUP_ELEMENTS", 100)
  calls = []
  cut = check_swiglu(actual, *operands, progress=lambda *done: calls.append(done))
  assert len(calls) == 17
  assert whole.worst_index == cut.worst_index == (2, 5, 7)
  assert whole.failed_elements == cut.failed_elements == 1


@pytest.mark.parametrize("shape", [(), (0,), (5,), (0, 3), (3, 0), (2, 0, 4), (1, 1)])
def test_every_shape_has_a_result(shape):
  gate, up = np.ones(shape, F32), np.full(shape, 2, F32)
  actual = swiglu(gate, up, out_dtype=F32)
  assert actual.shape == shape
  check = check_swiglu(actual, gate, up)
  assert check.passed
  assert check.elements == np.prod(shape)
  assert check.worst_index is None or len(check.worst_index) == len(shape)


# Codes of it.


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("dtype", [E4M3, INT8])
def test_codes_of_a_float32_kernel_pass(operands, dtype, fast):
  gate, up = (operand.astype(F32) for operand in operands)
  one = F32(1)
  if fast:
    values = gate * (one / (one + np.exp2(-gate * F32(np.log2(np.e))))) * up
  else:
    values = gate / (one + np.exp(-gate)) * up
  codes, scale = quantize_rows(values, dtype=dtype)
  check = assert_swiglu_quantize_close(codes, scale, *operands)
  assert check.scale.error_bound < 20 * 2.0**-24
  # next to no code has any room
  assert check.codes.error_bound < 2e-3
  definition = swiglu_quantize(*operands, dtype=dtype)
  assert_swiglu_quantize_close(*definition, *operands)
  assert np.count_nonzero(definition[0].astype(float) != codes.astype(float)) <= 2


@pytest.mark.parametrize("dtype", [E4M3, INT8])
def test_codes_of_values_rounded_on_the_way_do_not_pass(operands, dtype):
  values = swiglu(*operands, out_dtype=BFLOAT16)
  codes, scale = quantize_rows(values, dtype=dtype)
  check = check_swiglu_quantize(codes, scale, *operands)
  assert not check.scale.passed
  _, right = swiglu_quantize(*operands, dtype=dtype)
  codes = (values.astype(F32) / right).astype(dtype)
  assert not check_swiglu_quantize(codes, right, *operands).codes.passed


@pytest.mark.parametrize("dtype", [E4M3, INT8])
def test_a_scale_that_is_given_is_used_and_returned(operands, dtype):
  scale = F32(0.037)
  codes, returned = swiglu_quantize(*operands, scale=scale, dtype=dtype)
  assert returned == scale
  np.testing.assert_array_equal(
    np.abs(codes.astype(float)).max(), {E4M3: 448, INT8: 127}[dtype]
  )  # saturated
  assert check_swiglu_quantize(codes, returned, *operands, given_scale=scale).passed
  other = np.nextafter(scale, F32(1))
  assert not check_swiglu_quantize(codes, other, *operands, given_scale=scale).passed


@pytest.mark.parametrize("dtype", [E4M3, INT8])
def test_groups_of_rows_do_not_change_the_verdict_on_codes(operands, dtype, monkeypatch):
  codes, scale = swiglu_quantize(*operands, dtype=dtype)
  scale[2, 3] *= 2
  whole = check_swiglu_quantize(codes, scale, *operands)
  monkeypatch.setattr(groups, "_GROUP_ELEMENTS", 100)
  cut = check_swiglu_quantize(codes, scale, *operands)
  assert whole.scale.worst_index == cut.scale.worst_index == (2, 3, 0)
  assert (cut.scale.failed_elements, cut.passed) == (1, False)
  assert cut.codes.failed_elements == whole.codes.failed_elements > 0
  assert cut.codes.worst_index[:2] == (2, 3)
  fixed = np.full((3, 17, 1), 0.1, F32)
  codes, _ = swiglu_quantize(*operands, scale=fixed, dtype=dtype)
  assert check_swiglu_quantize(codes, fixed, *operands, given_scale=fixed).passed


def test_quantised_special_values():
  gate = np.array([[1.0, np.nan, np.inf, -np.inf], [0, 0, 0, 0]], F32)
  up = np.array([[2.0, 1.0, 1.0, 3.0], [1, 2, 3, 4]], F32)
  codes, scale = swiglu_quantize(gate, up)
  np.testing.assert_array_equal(codes.astype(float), [[448, np.nan, 448, 0], [0, 0, 0, 0]])
  assert float(scale[1, 0]) == 1
  assert check_swiglu_quantize(codes, scale, gate, up).passed


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"up": np.ones(2, F32)}, r"up\.shape=\(2,\): expected \(3,\)"),
    ({"gate": np.ones(3)}, r"gate\.dtype=float64"),
    ({"up": np.ones(3, np.int32)}, r"up\.dtype=.*int32"),
    ({"actual": np.ones(2, F32)}, r"actual\.shape=\(2,\)"),
    ({"intermediate_dtype": np.int8}, "intermediate_dtype="),
    ({"out_dtype": BFLOAT16}, "expected out_dtype=bfloat16"),
  ],
)
def test_wrong_arguments_are_named(change, message):
  arguments = {name: np.ones(3, F32) for name in ("actual", "gate", "up")}
  with pytest.raises(ValueError, match=message):
    check_swiglu(**{**arguments, **change})
