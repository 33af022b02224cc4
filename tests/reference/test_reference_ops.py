"""silu and matmul: the definition that kernels are held to."""

from decimal import Decimal, localcontext

import ml_dtypes
import numpy as np
import pytest

from reference import (
  SILU_LIPSCHITZ,
  exact_integer_operands,
  matmul,
  matmul_exact,
  round_to,
  silu,
  silu_error_bound,
  ulp_error,
)

BFLOAT16 = ml_dtypes.bfloat16
E4M3 = ml_dtypes.float8_e4m3fn
FEW = (
  16 * 2.0**-53
)  # roundings of float64 on either side, where two numbers of about 1 cancel by half


def decimal_silu(x):
  """silu to 60 digits, rounded to float64 at the end."""
  with localcontext() as context:
    context.prec = 60
    return float(Decimal(float(x)) / (1 + (-Decimal(float(x))).exp()))


def test_silu_is_accurate_to_a_few_ulp_at_every_magnitude():
  x = np.concatenate(
    [np.linspace(-760, 0, 2001), np.linspace(0, 60, 500), np.logspace(-320, 300, 300)]
  )
  exact = np.array([decimal_silu(value) for value in x])
  assert ulp_error(silu(x), exact).max() <= 4


def test_silu_underflows_gradually():
  x = np.arange(-751.0, -705.0)
  y = silu(x)
  assert (np.diff(y) < 0).all()  # silu falls with x out there, strictly down to the last bit
  assert (y < 0).all()
  assert (np.abs(y) < np.finfo(np.float64).tiny).any()


def test_silu_limits_are_exact_and_silent():
  with np.errstate(all="raise"):
    y = silu([-np.inf, np.inf, np.nan, 0.0, -0.0, -1e308, 1e308, -800.0])
  np.testing.assert_array_equal(y, [0, np.inf, np.nan, 0, 0, 0, 1e308, 0])
  np.testing.assert_array_equal(np.signbit(y[3:5]), [False, True])


def test_golden_silu_does_not_distribute_over_partial_sums():
  # s004.legality.silu_split
  assert float(silu(1.0) + silu(-1.0)) == pytest.approx(0.4621171572600098, rel=FEW)
  assert float(silu(1.0 + -1.0)) == 0.0


def test_silu_lipschitz_constant_is_the_largest_slope():
  x = np.linspace(-30, 30, 2_000_001)
  sigmoid = 1 / (1 + np.exp(-x))
  slope = np.abs(sigmoid * (1 + x * (1 - sigmoid)))
  assert slope.max() <= SILU_LIPSCHITZ
  # the constant is rounded up in its ninth digit
  assert slope.max() == pytest.approx(SILU_LIPSCHITZ, rel=1e-8)


def float32_silu_forms():
  one, log2e = np.float32(1), np.float32(np.log2(np.e))
  return {
    "quotient": lambda t: t / (one + np.exp(-t)),
    "sigmoid": lambda t: t * (one / (one + np.exp(-t))),
    "exp2": lambda t: t / (one + np.exp2(-t * log2e)),
    "halves": lambda t: flush(np.where(t < 0, t * half(t) * half(t), t) / (one + half(t) ** 2)),
    "halves_exp2": lambda t: (
      np.where(t < 0, t * half(t, log2e) * half(t, log2e), t) / (one + half(t, log2e) ** 2)
    ),
  }


# Where exp(-t) has overflowed or the sigmoid is subnormal, what is left of silu is lost.
KEEPS_THE_TAIL = ("halves", "halves_exp2")


def half(t, log2e=None):
  scaled = np.abs(t) * np.float32(-0.5)
  return np.exp(scaled) if log2e is None else np.exp2(scaled * log2e)


def flush(x):
  return np.where(np.abs(x) < np.float32(2**-126), np.float32(0), x)


@pytest.mark.parametrize("form", float32_silu_forms())
def test_float32_evaluations_of_silu_keep_the_stated_error(form):
  lowest = -120 if form in KEEPS_THE_TAIL else -87.3
  t = np.concatenate([np.linspace(lowest, 40, 400_001), [-1e-30, 1e-30, 1e30]])
  t = t.astype(np.float32)
  with np.errstate(over="ignore", under="ignore"):
    computed = float32_silu_forms()[form](t)
  assert computed.dtype == np.float32
  exact_t = t.astype(np.float64)
  error = np.abs(computed.astype(np.float64) - silu(exact_t))
  assert (error <= silu_error_bound(exact_t, np.zeros(t.shape))).all()


@pytest.mark.parametrize("form", ["quotient", "sigmoid"])
def test_losing_the_tail_of_silu_is_an_error(form):
  t = np.linspace(-91.5, -88.8, 100).astype(np.float32)
  with np.errstate(over="ignore", under="ignore"):
    computed = flush(float32_silu_forms()[form](t)).astype(np.float64)
  exact_t = t.astype(np.float64)
  assert not computed.any()
  assert (np.abs(silu(exact_t)) > silu_error_bound(exact_t, np.zeros(t.shape))).all()


def test_silu_error_bound_rejects_half_precision_and_tanh_of_low_accuracy():
  t = np.linspace(-20, 5, 1001).astype(np.float16).astype(np.float64)
  bound = silu_error_bound(t, np.zeros(t.shape))
  assert (np.abs(round_to(silu(t), np.float16).astype(np.float64) - silu(t)) > bound).any()
  approximate_tanh = np.tanh(t / 2) * (1 + 2.0**-11)
  assert (np.abs(t / 2 * (1 + approximate_tanh) - silu(t)) > bound).any()


def test_silu_error_bound_covers_every_shifted_argument():
  rng = np.random.default_rng(0)
  x = np.tile(np.linspace(-95, 20, 4001), 8)
  error = rng.choice([1e-6, 1e-3, 0.3, 5.0], x.shape)
  bound = silu_error_bound(x, error)
  shifts = np.concatenate([[-1.0, 1.0], rng.uniform(-1, 1, 10)])
  for shift in shifts:
    assert (np.abs(silu(x + shift * error) - silu(x)) <= bound).all()
  # far out on the negative side the slope is tiny, and the bound knows
  assert silu_error_bound(np.array([-40.0]), np.array([0.1]))[0] < 1e-14


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BFLOAT16, E4M3, np.int8])
def test_matmul_multiplies_the_operands_values(dtype):
  a = np.arange(6).reshape(2, 3).astype(dtype)
  b = (np.arange(12).reshape(3, 4) - 5).astype(dtype)
  product = matmul(a, b)
  assert product.dtype == np.float64
  np.testing.assert_array_equal(product, a.astype(np.float64) @ b.astype(np.float64))


def test_matmul_broadcasts_leading_dimensions():
  rng = np.random.default_rng(0)
  a, b = rng.standard_normal((5, 1, 2, 3)), rng.standard_normal((4, 3, 6))
  np.testing.assert_array_equal(matmul(a, b), np.matmul(a, b))
  assert matmul_exact(a, b, bias=np.ones(6)).shape == (5, 4, 2, 6)


@pytest.mark.parametrize(("m", "k", "n"), [(5, 0, 7), (0, 8, 7), (5, 8, 0), (0, 0, 0)])
def test_matmul_of_empty_operands(m, k, n):
  a, b = np.zeros((m, k), np.float32), np.zeros((k, n), np.float32)
  result = matmul(a, b, activation="silu", out_dtype=np.float32)
  np.testing.assert_array_equal(result, np.zeros((m, n), np.float32))
  with_bias = matmul(a, b, bias=np.arange(n))
  np.testing.assert_array_equal(with_bias, np.tile(np.arange(n), (m, 1)))


def test_matmul_adds_the_bias_before_its_one_rounding():
  # 256 + 1 lies between the bfloat16 neighbours 256 and 258: rounded first, the bias would vanish
  a, b, bias = [[16.0]], [[16.0]], [3.0]
  assert float(matmul(a, b, bias=bias, out_dtype=BFLOAT16)[0, 0]) == 260.0  # 259, a tie
  assert float(matmul(a, b, bias=[1.0], out_dtype=BFLOAT16)[0, 0]) == 256.0
  # 257 + 2 is 259, and 260 rounded once; 256 + 2 is 258
  assert float(matmul([[257.0]], [[1.0]], bias=[2.0], out_dtype=BFLOAT16)[0, 0]) == 260.0


def test_matmul_rounds_before_the_activation_as_two_programs_would():
  rng = np.random.default_rng(0)
  a = round_to(rng.standard_normal((32, 48)), BFLOAT16)
  b = round_to(rng.standard_normal((48, 32)), BFLOAT16)
  fused = matmul(a, b, activation="silu", out_dtype=BFLOAT16)
  unfused = round_to(silu(matmul(a, b, out_dtype=BFLOAT16)), BFLOAT16)
  np.testing.assert_array_equal(fused, unfused)
  kept = matmul(a, b, activation="silu", intermediate_dtype=np.float32, out_dtype=BFLOAT16)
  np.testing.assert_array_equal(kept, round_to(silu(matmul(a, b, out_dtype=np.float32)), BFLOAT16))
  assert (kept != fused).any()


def test_intermediate_dtype_alone_rounds_only_in_between():
  a, b = np.array([[1 + 2.0**-8]]), np.ones((1, 1))
  assert matmul(a, b, activation="silu", intermediate_dtype=BFLOAT16)[0, 0] == silu(1.0)
  assert matmul(a, b, intermediate_dtype=BFLOAT16)[0, 0] == 1 + 2.0**-8
  assert matmul(a, b, activation="silu")[0, 0] == matmul_exact(a, b, activation="silu")[0, 0]


def test_matmul_saturates_in_e4m3():
  assert float(matmul([[100.0]], [[100.0]], out_dtype=E4M3)[0, 0]) == 448.0


def test_special_values_pass_through_without_warnings():
  a = np.array([[np.inf, 1.0], [-np.inf, 1.0], [np.nan, 1.0], [np.inf, -np.inf]])
  b = np.ones((2, 1))
  with np.errstate(all="raise"):
    result = matmul(a, b, activation="silu", out_dtype=BFLOAT16)
  np.testing.assert_array_equal(result[:, 0].astype(np.float64), [np.inf, 0, np.nan, np.nan])


@pytest.mark.parametrize(
  ("a_shape", "b_shape", "options", "message"),
  [
    ((3,), (3, 2), {}, r"a\.shape=\(3,\): expected at least 2 dimensions"),
    ((2, 3), (4, 2), {}, r"b\.shape=\(4, 2\): expected 3 rows"),
    ((2, 2, 3), (3, 3, 2), {}, r"leading dimensions \(3,\) do not broadcast with \(2,\)"),
    ((2, 3), (3, 4), {"bias": np.zeros(3)}, r"bias\.shape=\(3,\): expected \(4,\)"),
    ((2, 3), (3, 4), {"bias": np.zeros((5, 2, 4))}, r"bias\.shape=\(5, 2, 4\)"),
    ((2, 3), (3, 4), {"activation": "relu"}, "activation='relu': expected None or 'silu'"),
    ((2, 3), (3, 4), {"out_dtype": np.int8}, "out_dtype=.*int8"),
    ((2, 3), (3, 4), {"intermediate_dtype": "tf32"}, "intermediate_dtype='tf32'"),
  ],
)
def test_wrong_arguments_are_named(a_shape, b_shape, options, message):
  with pytest.raises(ValueError, match=message):
    matmul(np.zeros(a_shape), np.zeros(b_shape), **options)


@pytest.mark.parametrize("k", [1, 5, 64, 1000, 4096])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16, E4M3])
def test_exact_integer_operands_leave_nothing_to_round(dtype, k):
  a, b = exact_integer_operands(np.random.default_rng(k), 6, k, 9, dtype)
  assert a.dtype == b.dtype == np.dtype(dtype)
  product = matmul(a, b)
  np.testing.assert_array_equal(round_to(product, dtype).astype(np.float64), product)
  precision = {np.float32: 24, np.float16: 11, BFLOAT16: 8, E4M3: 4}[dtype]
  magnitude = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
  assert magnitude.max() <= 2**precision
  assert np.abs(product).max() > 0
  backwards = a[:, ::-1].astype(np.float32) @ b[::-1].astype(np.float32)
  np.testing.assert_array_equal(backwards, product)


def test_exact_integer_operands_use_every_k_block():
  a, _ = exact_integer_operands(np.random.default_rng(0), 16, 4096, 4, BFLOAT16)
  assert (np.count_nonzero(a, axis=1) == 256).all()
  assert np.abs(a.astype(np.float64)).reshape(16, 64, 64).sum(axis=(0, 2)).min() > 0


def test_exact_integer_operands_refuse_float64():
  with pytest.raises(ValueError, match="dtype=float64: expected float32 or a narrower"):
    exact_integer_operands(np.random.default_rng(0), 1, 1, 1, np.float64)
