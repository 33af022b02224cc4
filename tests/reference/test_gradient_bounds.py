"""Bounds of gradients: float32 backward kernels keep them, faulty ones do not."""

import ml_dtypes
import numpy as np
import pytest

from reference import (
  Bounded,
  assert_within,
  bounded_gated_matmul_gradients,
  bounded_matmul_gradients,
  bounded_rms_norm_gradients,
  bounded_silu_derivative,
  bounded_sum,
  bounded_swiglu_gradients,
  emulate_sum,
  gated_matmul_gradients,
  matmul_gradients,
  rms_norm_gradients,
  round_to,
  silu_derivative,
  silu_derivative_error_bound,
  swiglu_gradients,
)

BFLOAT16 = ml_dtypes.bfloat16
F32 = np.float32
# float64 sums of at most a hundred terms, in another order
FEW = 100 * 2.0**-53


def normal(*shape, seed=0, dtype=BFLOAT16):
  return round_to(np.random.default_rng(seed).standard_normal(shape), dtype)


def wide(*arrays):
  return tuple(array.astype(F32) for array in arrays)


def slope_textbook(x):
  s = F32(1) / (F32(1) + np.exp(-x))
  return s * (F32(1) + x * (F32(1) - s))


def slope_halves(x):
  h = np.exp(np.abs(x) * F32(-0.5))
  t = F32(1) / (F32(1) + h * h)
  return np.where(x < 0, h * (h * (F32(1) + x * t)) * t, t * (F32(1) + x * h * h * t))


def silu32(x):
  return x / (F32(1) + np.exp(-x))


@pytest.mark.parametrize("slope", [slope_textbook, slope_halves])
def test_float32_evaluations_of_the_derivative_keep_its_bound(slope):
  x = np.linspace(-80, 80, 100_001).astype(F32)
  exact = silu_derivative(x)
  error = np.abs(slope(x).astype(float) - exact)
  assert (error <= silu_derivative_error_bound(x.astype(float), np.zeros(x.shape))).all()
  half = round_to(exact, np.float16).astype(float)
  assert (np.abs(half - exact) > silu_derivative_error_bound(x.astype(float), 0 * x)).any()


def test_the_derivatives_bound_covers_every_shifted_argument():
  rng = np.random.default_rng(0)
  x = np.tile(np.linspace(-95, 20, 4001), 8)
  error = rng.choice([1e-6, 1e-3, 0.3, 5.0], x.shape)
  bound = bounded_silu_derivative(Bounded.within(x, error)).error
  for shift in (-1.0, -0.4, 0.3, 1.0):
    assert (np.abs(silu_derivative(x + shift * error) - silu_derivative(x)) <= bound).all()
  # and 1/2 is the slope at 0, so nothing smaller would do
  step = 2.0**-20
  assert silu_derivative(step) - silu_derivative(0.0) > 0.4999 * step


@pytest.mark.parametrize("order", ["sequential", "pairwise"])
@pytest.mark.parametrize("splits", [1, 4])
def test_sums_keep_their_bound(order, splits):
  x = normal(50, 64, dtype=F32)
  expected = bounded_sum(Bounded.of(x))
  check = assert_within(emulate_sum(x, inside=order, splits=splits), expected)
  assert check.worst_bound_fraction > 0.005
  if splits == 4:
    chunked = bounded_sum(Bounded.of(x), accumulation_chunk=16)
    assert (chunked.error < expected.error).all()
    assert_within(emulate_sum(x, splits=4), chunked)
  with pytest.raises(AssertionError):
    assert_within(emulate_sum(x.astype(BFLOAT16)), expected)


def test_sums_of_infinities_and_of_what_may_overflow():
  x = Bounded.of(np.array([[np.inf, 1.0], [np.inf, -np.inf], [3e38, 3e38], [1.0, 2.0]], F32))
  total = bounded_sum(x)
  np.testing.assert_array_equal(total.exact[:2], [np.inf, np.nan])
  np.testing.assert_array_equal(total.unbounded, [False, False, True, False])


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("bias", [False, True])
def test_matmul(activation, bias):
  a, b, d_out = normal(12, 30), normal(30, 9, seed=1), normal(12, 9, seed=2)
  offset = normal(9, seed=3) if bias else None
  bounds = bounded_matmul_gradients(a, b, d_out, bias=offset, activation=activation)
  exact = matmul_gradients(a, b, d_out, bias=offset, activation=activation)
  first, second, d_s = wide(a, b, d_out)
  if activation:
    s = first @ second + (0 if offset is None else offset.astype(F32))
    d_s = d_s * slope_halves(s.astype(BFLOAT16).astype(F32))
  stored = d_s.astype(BFLOAT16).astype(F32)
  actual = stored @ second.T, first.T @ stored, d_s.sum(axis=0) if bias else None
  for result, bound, gradient in zip(actual, bounds, exact, strict=True):
    if gradient is None:
      assert bound is None
      continue
    np.testing.assert_allclose(bound.exact, gradient, rtol=FEW, atol=FEW)
    for dtype in (F32, BFLOAT16):
      assert_within(result.astype(dtype), bound.round(dtype))
    assert not check(result * F32(1.1), bound)
  if activation:
    without = d_out.astype(F32) @ second.T
    assert not check(without, bounds.a)


def check(actual, bound):
  try:
    assert_within(actual, bound)
  except AssertionError:
    return False
  return True


@pytest.mark.parametrize("activation", [None, "silu"])
def test_gated_matmul(activation):
  x, w_g, w_u, d_out = (
    normal(*shape, seed=i) for i, shape in enumerate([(12, 30), (30, 9), (30, 9), (12, 9)])
  )
  bounds = bounded_gated_matmul_gradients(x, w_g, w_u, d_out, activation=activation)
  exact = gated_matmul_gradients(x, w_g, w_u, d_out, activation=activation)
  rows, gate, up, d = wide(x, w_g, w_u, d_out)
  g, u = ((rows @ w).astype(BFLOAT16).astype(F32) for w in (gate, up))
  d_p, d_q = d * u, d * (silu32(g) if activation else g)
  if activation:
    d_p = d_p * slope_textbook(g)
  d_p, d_q = (v.astype(BFLOAT16).astype(F32) for v in (d_p, d_q))
  actual = d_p @ gate.T + d_q @ up.T, rows.T @ d_p, rows.T @ d_q
  for result, bound, gradient in zip(actual, bounds, exact, strict=True):
    np.testing.assert_allclose(bound.exact, gradient, rtol=FEW, atol=FEW)
    for dtype in (F32, BFLOAT16):
      assert_within(result.astype(dtype), bound.round(dtype))
  assert not check(rows.T @ d_q, bounds.w_gate)
  assert not check(d_p @ gate.T, bounds.x)


@pytest.mark.parametrize("dtype", [F32, BFLOAT16])
def test_swiglu(dtype):
  gate, up, d_out = (normal(40, 30, seed=i, dtype=dtype) for i in range(3))
  bounds = bounded_swiglu_gradients(gate, up, d_out)
  g, u, d = wide(gate, up, d_out)
  actual = d * (u * slope_halves(g)), d * silu32(g)
  for result, bound, gradient in zip(
    actual, bounds, swiglu_gradients(gate, up, d_out), strict=True
  ):
    np.testing.assert_allclose(bound.exact, gradient, rtol=FEW)
    assert_within(result.astype(dtype), bound.round(dtype))
  half = d * (u * slope_halves(g).astype(np.float16).astype(F32))
  assert not check(half, bounds.gate)
  assert not check(d * u * silu32(g), bounds.gate)


@pytest.mark.parametrize("dtype", [F32, BFLOAT16])
@pytest.mark.parametrize("grouping", ["normalised", "cubed"])
def test_rms_norm(dtype, grouping):
  x, d_out = (normal(2, 20, 33, seed=i, dtype=dtype) for i in range(2))
  weight = normal(33, seed=2, dtype=dtype)
  bounds = bounded_rms_norm_gradients(x, weight, d_out, weight_offset=1.0)
  exact = rms_norm_gradients(x, weight, d_out, weight_offset=1.0)
  rows, w, d = wide(x, weight, d_out)
  mean = (rows * rows).mean(axis=-1, keepdims=True, dtype=F32)
  r = F32(1) / np.sqrt(mean + F32(1e-6))
  g = d * (w + F32(1))
  if grouping == "normalised":
    n = rows * r
    d_x = (g - n * (g * n).mean(axis=-1, keepdims=True, dtype=F32)) * r
  else:
    d_x = g * r - rows * (r * r * r * (g * rows).mean(axis=-1, keepdims=True, dtype=F32))
  d_weight = (d * (rows * r)).reshape(-1, 33).sum(axis=0, dtype=F32)
  for result, bound, gradient in zip((d_x, d_weight), bounds, exact, strict=True):
    np.testing.assert_allclose(bound.exact, gradient, rtol=FEW, atol=FEW)
    assert_within(result.astype(dtype), bound.round(dtype))
  assert not check(g * r, bounds.x)
  assert not check(d_weight * F32(1.01), bounds.weight)
  assert not check((d * rows).reshape(-1, 33).sum(axis=0, dtype=F32), bounds.weight)


def test_wrong_arguments_are_named():
  a = np.zeros((2, 3), F32)
  with pytest.raises(ValueError, match=r"a\.shape=\(1, 2, 3\): expected 2 dimensions"):
    bounded_matmul_gradients(a[None], a.T, np.zeros((2, 2), F32))
  with pytest.raises(ValueError, match=r"up\.shape="):
    bounded_swiglu_gradients(a, a.T, a)
  with pytest.raises(ValueError, match=r"weight\.shape="):
    bounded_rms_norm_gradients(a, np.zeros(2, F32), a)
