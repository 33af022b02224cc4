"""silu in the form that kernels use where exp2 is one instruction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import activations
from reference.activations import (
  silu,
  silu_derivative,
  silu_derivative_error_bound,
  silu_error_bound,
)


@pytest.fixture
def exp2(monkeypatch):
  """exp2 rounded once; XLA's is exp of a rounded product, a GPU's is exp2 itself."""

  def rounded(y):
    with np.errstate(over="ignore"):
      return jnp.asarray(np.exp2(np.asarray(y, np.float64)).astype(np.float32))

  monkeypatch.setattr(activations.jnp, "exp2", rounded)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="GPU kernels are tested themselves")
def test_silu_by_exp2_is_inside_the_bound_of_the_activation(exp2, rng):
  x = np.concatenate([np.linspace(-110, 40, 30001), rng.standard_normal(10000)]).astype(np.float32)
  got = np.asarray(activations.silu(jnp.asarray(x), native_exp2=True), np.float64)
  bound = silu_error_bound(x.astype(np.float64), np.zeros(x.shape))
  assert np.all(np.abs(got - silu(x)) <= bound)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="GPU kernels are tested themselves")
def test_silu_and_its_derivative_by_exp2_are_inside_their_bounds(exp2, rng):
  x = np.concatenate([np.linspace(-110, 40, 30001), rng.standard_normal(10000)]).astype(np.float32)
  value, slope = activations.silu_with_grad(jnp.asarray(x), native_exp2=True)
  nothing = np.zeros(x.shape)
  wide = x.astype(np.float64)
  assert np.all(np.abs(np.asarray(value, np.float64) - silu(x)) <= silu_error_bound(wide, nothing))
  error = np.abs(np.asarray(slope, np.float64) - silu_derivative(x))
  assert np.all(error <= silu_derivative_error_bound(wide, nothing))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="GPU kernels are tested themselves")
def test_the_derivative_by_exp2_keeps_limits_and_nan(exp2):
  x = jnp.asarray([-np.inf, np.inf, -300.0, 0.0, np.nan], jnp.float32)
  value, slope = activations.silu_with_grad(x, native_exp2=True)
  np.testing.assert_array_equal(np.asarray(value), [0.0, np.inf, 0.0, 0.0, np.nan])
  slope = np.asarray(slope, np.float64)
  assert np.isnan(slope[4])
  # beyond 300 as at 300, where the derivative is its limit
  ends = np.array([-300.0, 300.0, -300.0, 0.0])
  allowed = silu_derivative_error_bound(ends, np.zeros(ends.shape))
  assert np.all(np.abs(slope[:4] - [0.0, 1.0, 0.0, 0.5]) <= allowed)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="GPU kernels are tested themselves")
def test_silu_by_exp2_keeps_infinities_zeros_and_nan(exp2):
  x = jnp.asarray([-np.inf, np.inf, -300.0, -0.0, 0.0, np.nan], jnp.float32)
  got = np.asarray(activations.silu(x, native_exp2=True))
  np.testing.assert_array_equal(got, [0.0, np.inf, 0.0, 0.0, 0.0, np.nan])
  assert np.signbit(got[3])
