"""float64 gradients against central differences of the float64 definitions."""

import numpy as np
import pytest

from reference import (
  gated_matmul_exact,
  gated_matmul_gradients,
  matmul_exact,
  matmul_gradients,
  rms_norm_exact,
  rms_norm_gradients,
  silu_derivative,
  swiglu_exact,
  swiglu_gradients,
)

STEP = 2.0**-17
# the unit roundoff of float64
UNIT = 2.0**-53


def assert_gradients(function, gradients, operands, d_out):
  """Each partial derivative against the central difference of Σ d_out ⊙ function.

  The difference is off by h²·f'''/6 and by float64's roundings of the sums
  over h, 2^-53·Σ|d_out ⊙ f| / h; both are below 1e-9 of these sums.
  """
  for position, gradient in enumerate(gradients):
    assert gradient.shape == operands[position].shape
    for index in np.ndindex(gradient.shape):
      ends = []
      for sign in (1, -1):
        moved = [operand.copy() for operand in operands]
        moved[position][index] += sign * STEP
        ends.append(np.sum(d_out * function(*moved)))
      difference = (ends[0] - ends[1]) / (2 * STEP)
      scale = np.sum(np.abs(d_out)) * 10
      assert abs(difference - gradient[index]) <= 1e-9 * scale


def normal(*shapes, seed=0):
  rng = np.random.default_rng(seed)
  return [rng.standard_normal(shape) for shape in shapes]


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("batch", [((), ()), ((2,), ()), ((2, 1), (3,)), ((), (2,))])
def test_matmul(activation, batch):
  a, b, bias = normal((*batch[0], 3, 4), (*batch[1], 4, 2), (2,))

  def function(*operands):
    return matmul_exact(operands[0], operands[1], bias=operands[2], activation=activation)

  (d_out,) = normal(function(a, b, bias).shape, seed=1)
  gradients = matmul_gradients(a, b, d_out, bias=bias, activation=activation)
  assert_gradients(function, gradients, [a, b, bias], d_out)
  assert matmul_gradients(a, b, d_out, activation=activation).bias is None


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_gated_matmul(activation, batch):
  operands = normal((*batch, 3, 4), (4, 2), (4, 2))

  def function(*operands):
    return gated_matmul_exact(*operands, activation=activation)

  (d_out,) = normal((*batch, 3, 2), seed=1)
  gradients = gated_matmul_gradients(*operands, d_out, activation=activation)
  assert_gradients(function, gradients, operands, d_out)


def test_swiglu():
  gate, up, d_out = normal((3, 5), (3, 5), (3, 5))
  assert_gradients(swiglu_exact, swiglu_gradients(gate, up, d_out), [gate, up], d_out)


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(offset):
  x, weight, d_out = normal((2, 3, 5), (5,), (2, 3, 5))
  options = {"weight_offset": offset, "eps": 0.1}
  gradients = rms_norm_gradients(x, weight, d_out, **options)
  assert_gradients(lambda *v: rms_norm_exact(*v, **options), gradients, [x, weight], d_out)


def test_rms_norm_of_huge_rows_has_a_gradient():
  # a power of two, with an even exponent, that scales every operation exactly; eps is lost in it
  huge = np.float32(2.0**100)
  x = np.full((1, 4), huge, np.float32)
  x[0, 1] = 2 * huge
  d_x, d_weight = rms_norm_gradients(x, np.ones(4), np.array([[1.0, 2, 3, 4]]))
  assert np.isfinite(d_x).all()
  small = rms_norm_gradients(x / huge, np.ones(4), np.array([[1.0, 2, 3, 4]]), eps=0)
  np.testing.assert_array_equal(d_x * float(huge), small.x)
  np.testing.assert_array_equal(d_weight, small.weight)


def test_silu_derivative_at_large_magnitudes():
  # BC-13
  gate = np.array([-1000.0, -90.0, -20.0, 0.0, 1.0, 90.0, 1000.0])
  d_gate, d_up = swiglu_gradients(gate, np.full(7, 2.0), np.ones(7))
  expected = [0, -1.4585342470703115e-37, -7.832383732129356e-08, 1, 1.8553410237429735, 2, 2]
  # silu' = s + x·s·(1 - s), in units of its terms without their signs: 5 for s (2 of an exp within
  # one ulp, a sum, a quotient, one spare), 12 for the product, a sum, and the printed value's own
  decay = np.exp(-np.abs(gate))
  near, far = 1 / (1 + decay), decay / (1 + decay)
  terms = np.where(gate < 0, far, near) + np.abs(gate) * near * far
  assert np.all(np.abs(d_gate - expected) <= 2 * terms * 14 * UNIT)
  expected = [0, -7.374611361591463e-38, -4.1223072363804067e-08, 0, 0.7310585786300049, 90, 1000]
  # silu = (x·h / (1 + h²))·h: 2 units for each h, 3 for 1 + h², 3 products and quotients, and 1
  assert np.all(np.abs(d_up - expected) <= np.abs(expected) * 11 * UNIT)
  with np.errstate(all="raise"):
    ends = silu_derivative([-np.inf, np.inf, np.nan, 0.0])
  np.testing.assert_array_equal(ends, [0, 1, np.nan, 0.5])


def test_wrong_shapes_are_named():
  a, b = np.zeros((2, 3)), np.zeros((3, 4))
  with pytest.raises(ValueError, match=r"d_out\.shape=\(2, 3\): expected \(2, 4\)"):
    matmul_gradients(a, b, a)
  with pytest.raises(ValueError, match=r"up\.shape="):
    swiglu_gradients(a, b, a)
  with pytest.raises(ValueError, match=r"w_up\.shape="):
    gated_matmul_gradients(a, b, a, a)
  with pytest.raises(ValueError, match=r"weight\.shape="):
    rms_norm_gradients(a, np.zeros(2), a)
