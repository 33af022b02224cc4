"""Bounded: each operation allows what float32 may give, and nothing that a fault gives."""

import ml_dtypes
import numpy as np
import pytest

from reference import Bounded, assert_within, bounded_matmul, matmul_exact, round_to, silu
from reference.judge import check_blocks

BFLOAT16 = ml_dtypes.bfloat16
E4M3 = ml_dtypes.float8_e4m3fn
F32 = np.float32
F32_MAX = float(np.finfo(F32).max)


def fraction(actual, expected):
  """Largest error in units of the bound: at most 1 if `expected` allows `actual`."""
  check = check_blocks(np.asarray(actual), [((), expected)])
  assert check.unbounded_elements == 0
  return check.worst_bound_fraction


def bfloat16_normal(rng, *shape):
  return round_to(rng.standard_normal(shape), BFLOAT16)


def float32_sum(a, b):
  """A·B with float32 products and sums, one after the other."""
  total = np.zeros((a.shape[0], b.shape[1]), F32)
  for k in range(a.shape[1]):
    total += a[:, k, None].astype(F32) * b[k].astype(F32)
  return total


def bfloat16_sum(a, b):
  total = np.zeros((a.shape[0], b.shape[1]), F32)
  for k in range(a.shape[1]):
    product = a[:, k, None].astype(F32) * b[k].astype(F32)
    total = (total + product).astype(BFLOAT16).astype(F32)
  return total


def silu_float32(t):
  return (t / (F32(1) + np.exp(-t))).astype(F32)


def bfloat16_of(x):
  return x.astype(BFLOAT16).astype(F32)


# Operations on their own: every v_x, v_y the errors allow, float32 arithmetic on them.


@pytest.mark.parametrize("operation", ["add", "multiply", "divide"])
def test_a_float32_operation_on_any_allowed_operands_is_allowed(operation):
  rng = np.random.default_rng(0)
  size = 4000
  x, y = (rng.standard_normal(size) * 2.0 ** rng.integers(-70, 40, size) for _ in range(2))
  x_error, y_error = (
    np.abs(v) * 2.0 ** rng.integers(-30, 3, size).astype(float) * rng.integers(0, 2, size)
    for v in (x, y)
  )
  if operation == "divide":
    y_error = np.minimum(y_error, np.abs(y) / 2)  # a divisor that may be zero promises nothing
  bounded_x, bounded_y = Bounded.within(x, x_error), Bounded.within(y, y_error)
  result = getattr(bounded_x, operation)(bounded_y, flush_subnormals=False)
  numpy_operation = {"add": np.add, "multiply": np.multiply, "divide": np.divide}[operation]
  np.testing.assert_array_equal(result.exact, numpy_operation(x, y))
  largest = 0.0
  for shift_x in (-1, -0.3, 0, 1):
    for shift_y in (-1, 0, 0.7, 1):
      # what float32 makes of an end may lie outside by a rounding: that counts as allowed too
      v_x, v_y = (x + shift_x * x_error).astype(F32), (y + shift_y * y_error).astype(F32)
      moved_x, moved_y = (
        Bounded.within(v, np.maximum(e, np.abs(u.astype(np.float64) - v)))
        for v, e, u in ((x, x_error, v_x), (y, y_error, v_y))
      )
      allowed = getattr(moved_x, operation)(moved_y, flush_subnormals=False)
      largest = max(largest, fraction(numpy_operation(v_x, v_y), allowed))
  assert 0.9 < largest <= 1


def test_one_last_place_too_much_is_not_allowed():
  x = np.array([1.25], F32)  # sum, product and quotient are exact
  for operation, y, value in (
    ("add", [1.5], 2.75),
    ("multiply", [1.5], 1.875),
    ("divide", [0.5], 2.5),
  ):
    result = getattr(Bounded.of(x), operation)(Bounded.of(np.array(y, F32)))
    assert fraction(np.array([value], F32), result) == 0
    spacing = np.spacing(F32(value))
    assert fraction(np.array([value + spacing], F32), result) > 1


def test_flushed_operands_and_results_are_allowed_only_where_flushing_is():
  tiny, small = np.array([2.0**-127], F32), np.array([2.0**-64], F32)
  large, zero = np.array([2.0**30], F32), np.zeros(1, F32)
  for flush in (True, False):
    x, y, z = (Bounded.of(v, flush_subnormals=flush) for v in (tiny, large, small))
    read_as_zero = x.multiply(y, flush_subnormals=flush)  # 2^-97, or 0 if the operand is flushed
    vanished = z.multiply(z, flush_subnormals=flush)  # 2^-128
    total = x.add(x, flush_subnormals=flush)
    for result in (read_as_zero, vanished, total):
      assert (fraction(zero, result) <= 1) is flush
  assert fraction(np.array([-(2.0**-97)], F32), Bounded.of(tiny).multiply(Bounded.of(large))) > 1


INF, NAN = np.inf, np.nan


def described(x, error=0.0, may_overflow=False, unbounded=False):
  array = np.array([float(x)])
  return Bounded(array, np.array([float(error)]), np.array([may_overflow]), np.array([unbounded]))


@pytest.mark.parametrize(
  ("operation", "x", "y", "exact", "may_overflow", "unbounded"),
  [
    ("multiply", (3.0, 0.1, True), (2.0, 0.1), 6.0, True, False),
    ("multiply", (3.0, 0.1, True), (-2.0, 0.1), -6.0, True, False),
    ("multiply", (3.0, 0.1, True), (0.1, 0.2), 0.3, True, True),  # of either sign, or NaN
    ("multiply", (3.0, 0.1, True), (0.0, 0.0), 0.0, True, True),  # inf·0
    ("multiply", (3.0, 0.1, False, True), (NAN,), NAN, False, False),
    ("multiply", (3.0, 0.1, False, True), (2.0,), 6.0, False, True),
    ("multiply", (INF,), (2.0, 0.1), INF, False, False),
    ("multiply", (INF,), (0.1, 0.2), INF, False, True),
    ("multiply", (INF,), (0.0, 0.1), NAN, False, False),
    ("multiply", (INF,), (0.0, 0.0), NAN, False, False),
    ("multiply", (2.0**127, 0.0), (2.0, 0.0), 2.0**128, True, False),
    ("multiply", (1.0, 2.0**100), (1.0, 2.0**100), 1.0, True, True),  # an infinity of either sign
    ("multiply", (2.0**100, 0.0), (1.0, 2.0**10), 2.0**100, False, False),
    ("add", (3.0, 0.1, True), (2.0, 0.1), 5.0, True, False),
    ("add", (3.0, 0.1, True), (-5.0, 0.1), -2.0, True, True),  # inf where -2 is due
    ("add", (3.0, 0.1, True), (-2.0, 0.1, True), 1.0, True, True),  # inf - inf
    ("add", (INF,), (-2.0, 0.1, True), INF, False, True),
    ("add", (INF,), (2.0, 0.1, True), INF, False, False),
    ("add", (INF,), (2.0, 0.1, False, True), INF, False, True),
    ("add", (INF,), (-INF,), NAN, False, False),
    ("add", (F32_MAX,), (2.0**103,), F32_MAX + 2.0**103, True, False),
    ("add", (F32_MAX,), (1.0,), F32_MAX + 1.0, True, False),
    ("add", (2.0**126,), (1.0,), 2.0**126, False, False),
  ],
)
def test_infinities_spread_with_the_sign_they_can_have(
  operation, x, y, exact, may_overflow, unbounded
):
  for first, second in ((x, y), (y, x)):
    result = getattr(described(*first), operation)(described(*second))
    assert result.exact[0] == pytest.approx(exact, nan_ok=True)
    assert bool(result.unbounded[0]) is unbounded
    if not unbounded:
      assert bool(result.may_overflow[0]) is may_overflow
    if not np.isfinite(exact):
      assert result.error[0] == 0


@pytest.mark.parametrize(
  ("x", "y", "exact", "may_overflow", "unbounded"),
  [
    ((6.0, 0.1), (2.0, 0.1), 3.0, False, False),
    ((6.0, 0.1, True), (-2.0, 0.1), -3.0, True, False),
    ((6.0, 0.1, True), (2.0, 2.5), 3.0, True, True),  # an infinity of either sign
    ((6.0,), (2.0, 2.0), 3.0, False, True),
    ((6.0,), (2.0, 0.0, True), 3.0, False, True),
    ((6.0,), (0.0,), INF, False, False),
    ((-6.0, 1.0), (0.0,), -INF, False, False),
    ((1.0, 2.0), (0.0,), INF, False, True),  # of either sign, or NaN
    ((0.0,), (0.0,), NAN, False, False),
    ((0.0, 1.0), (0.0,), NAN, False, False),
    ((INF,), (2.0, 0.1), INF, False, False),
    ((INF,), (0.1, 0.2), INF, False, True),
    ((6.0, 0.1), (INF,), 0.0, False, False),
    ((6.0, 0.1, True), (INF,), 0.0, True, True),  # inf / inf
    ((INF,), (INF,), NAN, False, False),
    ((2.0**127,), (0.25,), 2.0**129, True, False),
    ((NAN,), (0.1, 0.2), NAN, False, False),
  ],
)
def test_quotients_and_what_may_be_infinite_in_them(x, y, exact, may_overflow, unbounded):
  result = described(*x).divide(described(*y))
  assert result.exact[0] == pytest.approx(exact, nan_ok=True)
  assert bool(result.unbounded[0]) is unbounded
  if not unbounded:
    assert bool(result.may_overflow[0]) is may_overflow
  if not np.isfinite(exact):
    assert result.error[0] == 0


def test_a_quotient_within_two_ulp_needs_four_roundoffs():
  rng = np.random.default_rng(1)
  x, y = (rng.uniform(1, 2, 3000).astype(F32) for _ in range(2))
  approximate = np.nextafter(x / y, F32(9))
  exactly = Bounded.of(x).divide(Bounded.of(y))
  assert fraction(x / y, exactly) <= 1
  assert fraction(approximate, exactly) > 1
  assert fraction(approximate, Bounded.of(x).divide(Bounded.of(y), roundoffs=4.0)) <= 1


def test_int8_codes_are_quantised_values_without_nan():
  x = Bounded.within([0.5, 1.5, -126.5, 300.0, -1e9, NAN, INF, 2.49], [0, 0, 0, 0, 0, 0, 0, 0.02])
  codes = x.quantize(np.int8)
  np.testing.assert_array_equal(codes.exact, [0, 2, -126, 127, -127, 0, 127, 2])
  np.testing.assert_array_equal(codes.error, [0, 0, 0, 0, 0, 0, 0, 1])
  assert not codes.bound[:7].any()


def test_rounding_past_zero_to_the_infinity_of_the_other_sign_promises_nothing():
  rounded = Bounded.within([1.0, 1.0, 1.0], [60000.0, 65519.0, 66000.0]).round(np.float16)
  np.testing.assert_array_equal(rounded.may_overflow, [False, True, True])
  np.testing.assert_array_equal(rounded.unbounded, [False, False, True])
  np.testing.assert_array_equal(np.isinf(rounded.bound), [False, True, True])


def test_an_infinity_saturates_in_e4m3():
  x = Bounded(
    np.array([INF, -300.0, 300.0, NAN]),
    np.zeros(4),
    np.array([False, True, False, False]),
    np.zeros(4, np.bool_),
  )
  rounded = x.round(E4M3)
  np.testing.assert_array_equal(rounded.unbounded, [True, False, False, False])
  assert not rounded.may_overflow.any()
  actual = np.array([448, -448, 288, NAN], E4M3)  # 300 lies between 288 and 320
  assert check_blocks(actual, [((), rounded)]).passed
  assert not check_blocks(np.array([448, 448, 288, NAN], E4M3), [((), rounded)]).passed
  assert not check_blocks(np.array([448, -448, -288, NAN], E4M3), [((), rounded)]).passed


def test_an_overflow_to_minus_infinity_makes_silu_zero():
  result = described(-3.0, 0.01, may_overflow=True).silu()
  assert not result.may_overflow[0]
  assert fraction(np.zeros(1, F32), result) <= 1
  assert fraction(np.zeros(1, F32), described(-3.0, 0.01).silu()) > 1
  assert described(3.0, 0.01, may_overflow=True).silu().may_overflow[0]


def test_a_bias_that_meets_an_overflowed_sum_promises_nothing():
  a, b = np.array([[3e38, 3e38]], F32), np.ones((2, 1), F32)  # float32 gives +inf
  total = bounded_matmul(a, b).add(Bounded.of(np.array([-INF], F32)))
  assert total.exact[0, 0] == -INF
  assert total.unbounded[0, 0]


# Gated product: silu(A·G) ⊙ (A·U), the reason for `multiply`.


def gated(a, g, u, intermediate):
  gate = bounded_matmul(a, g).round(intermediate).silu()
  up = bounded_matmul(a, u).round(intermediate)
  return gate.multiply(up).round(BFLOAT16)


@pytest.fixture
def gated_operands():
  rng = np.random.default_rng(3)
  return tuple(bfloat16_normal(rng, *shape) for shape in ((24, 96), (96, 40), (96, 40)))


@pytest.mark.parametrize("scale", [1.0, 2.0**-70, 2.0**50])
@pytest.mark.parametrize("intermediate", [F32, BFLOAT16])
def test_a_gated_product_in_float32_is_inside_its_bound(gated_operands, intermediate, scale):
  a, g, u = gated_operands
  u = round_to(u.astype(np.float64) * scale, BFLOAT16)
  gate, up = (float32_sum(a, b).astype(intermediate).astype(F32) for b in (g, u))
  actual = (silu_float32(gate) * up).astype(BFLOAT16)
  expected = gated(a, g, u, intermediate)
  np.testing.assert_allclose(expected.exact, silu(matmul_exact(a, g)) * matmul_exact(a, u))
  assert 0.3 < fraction(actual, expected) <= 1


@pytest.mark.parametrize("intermediate", [F32, BFLOAT16])
@pytest.mark.parametrize(
  "fault", ["swapped", "no_activation", "activation_of_both", "dropped_k", "half_precision_sum"]
)
def test_a_wrong_gated_product_is_outside(gated_operands, intermediate, fault):
  a, g, u = gated_operands
  gate, up = float32_sum(a, g), float32_sum(a, u)
  if fault == "swapped":
    gate, up = up, gate
  if fault == "dropped_k":
    gate = float32_sum(a[:, :-8], g[:-8])
  if fault == "half_precision_sum":
    up = bfloat16_sum(a, u)
  gate, up = (x.astype(intermediate).astype(F32) for x in (gate, up))
  gate = gate if fault == "no_activation" else silu_float32(gate)
  up = silu_float32(up) if fault == "activation_of_both" else up
  assert fraction((gate * up).astype(BFLOAT16), gated(a, g, u, intermediate)) > 3


def test_an_activation_rounded_before_the_product_is_outside_the_bound_of_one_kept():
  rng = np.random.default_rng(4)
  a, g, u = (bfloat16_normal(rng, *shape) for shape in ((64, 8), (8, 64), (8, 64)))
  gate, up = silu_float32(float32_sum(a, g)), float32_sum(a, u)
  expected = gated(a, g, u, F32)
  assert fraction((gate * up).astype(BFLOAT16), expected) <= 1
  assert fraction((bfloat16_of(gate) * up).astype(BFLOAT16), expected) > 1


# Quantisation, and products of what was quantised: gradients.


def test_quantize_is_exact_away_from_rounding_boundaries():
  tie = 1 + 2.0**-8  # between the bfloat16 neighbours 1 and 1 + 2^-7
  x = np.array([1.0, tie - 2.0**-20, tie + 2.0**-20, tie, tie, tie - 2.0**-20])
  error = np.array([2.0**-10, 2.0**-21, 2.0**-21, 0.0, 2.0**-40, 2.0**-20])
  result = Bounded.within(x, error).quantize(BFLOAT16)
  np.testing.assert_array_equal(result.exact, [1, 1, 1 + 2.0**-7, 1, 1, 1])
  # the last one reaches the tie itself, which goes to 1, but float64's roundings are allowed for
  np.testing.assert_array_equal(result.error, np.array([0, 0, 0, 0, 1, 1]) * 2.0**-7)
  assert result.format.dtype == BFLOAT16


def test_quantize_covers_every_rounding_of_an_allowed_value():
  rng = np.random.default_rng(5)
  x = rng.standard_normal(3000) * 2.0 ** rng.integers(-140, 17, 3000)
  for dtype in (BFLOAT16, np.float16, E4M3):
    for relative in (2.0**-22, 2.0**-8, 0.5):
      error = np.abs(x) * relative
      expected = Bounded.within(x, error).quantize(dtype)
      largest = 0.0
      for shift in (-1.0, -0.5, 0.0, 0.5, 1.0):
        largest = max(largest, fraction(round_to(x + shift * error, dtype), expected))
      assert largest <= 1


def test_quantize_at_the_end_of_the_range():
  x = Bounded.within([65519.0, 65519.0, 1e6, INF, -1e6, NAN], [0.5, 2.0, 1.0, 0.0, 0.0, 0.0])
  half = x.quantize(np.float16)
  np.testing.assert_array_equal(half.exact, [65504, 65504, 65504, INF, -65504, NAN])
  np.testing.assert_array_equal(half.may_overflow, [False, True, True, False, True, False])
  np.testing.assert_array_equal(half.error, 0)
  eight_bits = x.quantize(E4M3)
  np.testing.assert_array_equal(eight_bits.exact, [448, 448, 448, 448, -448, NAN])
  assert not eight_bits.bound.any()


def silu_gradient(s, d_out):
  """ds = d_out·silu'(s) in float64, and a bound on the error of a float32 evaluation."""
  s, d_out = s.astype(np.float64), d_out.astype(np.float64)
  sigmoid = 1 / (1 + np.exp(-s))
  # units of 2^-24: at most 10 + 1.25·|s| for the sigmoid, then two sums and three products
  relative = 2.0**-24 * (16 + 2 * np.abs(s))
  error = relative * np.abs(d_out) * sigmoid * (1 + np.abs(s))
  return d_out * sigmoid * (1 + s * (1 - sigmoid)), error


@pytest.fixture
def gradient():
  rng = np.random.default_rng(6)
  s, d_out, x = (bfloat16_normal(rng, *shape) for shape in ((512, 48), (512, 48), (40, 512)))
  sigmoid = F32(1) / (F32(1) + np.exp(-s.astype(F32)))
  slope = sigmoid * (F32(1) + s.astype(F32) * (F32(1) - sigmoid))
  d_s = (d_out.astype(F32) * slope).astype(BFLOAT16)
  return x, d_s, Bounded.within(*silu_gradient(s, d_out)).quantize(BFLOAT16)


def test_a_gradient_of_rounded_factors_is_inside_its_bound(gradient):
  x, d_s, expected_d_s = gradient
  assert fraction(d_s, expected_d_s) <= 1
  assert 0 < np.count_nonzero(expected_d_s.error) < 0.02 * d_s.size
  expected = bounded_matmul(x, expected_d_s)
  total = float32_sum(x, d_s)
  assert_within(total, expected)
  assert_within(total.astype(BFLOAT16), expected.round(BFLOAT16))


def test_a_gradient_accumulated_in_bfloat16_is_outside(gradient):
  x, d_s, expected_d_s = gradient
  wrong = bfloat16_sum(x, d_s).astype(BFLOAT16)
  assert fraction(wrong, bounded_matmul(x, expected_d_s).round(BFLOAT16)) > 10


def test_a_gradient_factor_kept_in_float32_or_cut_off_is_outside(gradient):
  x, _, expected_d_s = gradient
  rng = np.random.default_rng(6)
  s, d_out = bfloat16_normal(rng, 512, 48), bfloat16_normal(rng, 512, 48)
  exact, _ = silu_gradient(s, d_out)
  expected = bounded_matmul(x, expected_d_s)
  for wrong in (exact, round_to(exact, BFLOAT16, mode="truncate").astype(np.float64)):
    actual = (x.astype(np.float64) @ wrong).astype(F32)
    assert fraction(actual, expected) > 2


def test_a_factor_that_went_the_other_way_needs_its_error():
  tie = 1 + 2.0**-8
  x = np.full((1, 4), 8.0, BFLOAT16)
  near = np.full((4, 1), tie - 2.0**-22)
  down, up = (np.full((4, 1), v, BFLOAT16) for v in (1, 1 + 2.0**-7))
  factor = Bounded.within(near, 2.0**-20).quantize(BFLOAT16)
  for d_s in (down, up):
    for first, second, product in ((x, factor, x @ d_s), (factor, x, d_s @ x)):
      actual = product.astype(F32)
      assert fraction(actual, bounded_matmul(first, second)) <= 1
  assert fraction((x @ up).astype(F32), bounded_matmul(x, down)) > 10
  assert fraction((x @ up).astype(F32) * F32(1.01), bounded_matmul(x, factor)) > 2


def test_both_factors_may_be_off_at_once():
  rng = np.random.default_rng(7)
  a, b = rng.standard_normal((3, 5, 20)), rng.standard_normal((20, 6))
  expected = bounded_matmul(Bounded.within(a, 0.1), Bounded.within(b, 0.2))
  # all errors of the sign that adds up in element [1, 2, 3]
  moved_a = a + 0.1 * np.sign(b[:, 3]) * np.ones_like(a)
  moved_b = b + 0.2 * np.sign(moved_a[1, 2])[:, None] * np.ones_like(b)
  moved_a = a + 0.1 * np.sign(moved_b[:, 3]) * np.ones_like(a)
  actual = (moved_a @ moved_b).astype(F32)
  assert fraction(actual, expected) <= 1
  gap = np.abs(actual - expected.exact)[1, 2, 3] / expected.error[1, 2, 3]
  assert gap > 0.7


@pytest.mark.parametrize("swap", [False, True])
def test_doubtful_operands_make_their_row_or_column_unbounded(swap):
  flags = np.zeros((3, 4), np.bool_)
  flags[1, 2] = True
  x = Bounded(np.ones((3, 4)), np.zeros((3, 4)), flags, np.zeros((3, 4), np.bool_))
  y = np.ones((4, 2), F32)
  y[0, 1] = NAN
  if swap:
    x = Bounded(x.exact.T, x.error.T, x.may_overflow.T, x.unbounded.T)
  result = bounded_matmul(y.T, x) if swap else bounded_matmul(x, y)
  unbounded = result.unbounded.T if swap else result.unbounded
  np.testing.assert_array_equal(unbounded, [[False, False], [True, False], [False, False]])


def test_an_infinite_operand_times_one_that_may_be_read_as_zero_promises_nothing():
  a = np.array([[INF, 1.0]], F32)
  b = np.array([[2.0**-127, 1.0], [1.0, 2.0**-127]], F32)
  np.testing.assert_array_equal(bounded_matmul(a, b).unbounded, [[True, False]])
  np.testing.assert_array_equal(bounded_matmul(b.T, a.T).unbounded, [[True], [False]])
  assert not bounded_matmul(a, b, flush_subnormals=False).unbounded.any()


# Judging: any shape, any blocks.


@pytest.mark.parametrize("shape", [(7,), (4, 5), (2, 3, 4), (2, 3, 4, 5)])
def test_a_wrong_element_is_located_whatever_the_blocks(shape):
  exact = np.arange(np.prod(shape), dtype=F32).reshape(shape)
  index = tuple(size - 2 for size in shape)
  actual = exact.copy()
  actual[index] += 1
  expected = Bounded.of(exact)
  with pytest.raises(AssertionError, match=rf"worst \[{', '.join(map(str, index))}\]: actual"):
    assert_within(actual, expected)
  by_rows = [((i,), Bounded.of(exact[i : i + 1].reshape(shape[1:]))) for i in range(shape[0])]
  by_slices = [((slice(i, i + 2),), Bounded.of(exact[i : i + 2])) for i in range(0, shape[0], 2)]
  for blocks in (by_rows, by_slices):
    check = check_blocks(actual, blocks)
    assert (check.passed, check.failed_elements, check.worst_index) == (False, 1, index)
    assert check_blocks(exact, blocks).passed


def test_wrong_arguments_are_named():
  x = Bounded.of(np.ones((2, 3), BFLOAT16))
  with pytest.raises(ValueError, match=r"actual\.shape=\(3, 2\): expected \(2, 3\)"):
    assert_within(np.ones((3, 2), BFLOAT16), x)
  with pytest.raises(ValueError, match=r"actual\.dtype=float32: expected bfloat16"):
    assert_within(np.ones((2, 3), F32), x)
  with pytest.raises(ValueError, match=r"values\.dtype=float64"):
    Bounded.of(np.ones(3))
  with pytest.raises(ValueError, match="expected finite numbers of at least 0"):
    Bounded.within([1.0, 2.0], [0.0, -1.0])
  with pytest.raises(ValueError, match=r"dtype=.*int8"):
    x.round(np.int8)
  with pytest.raises(ValueError, match=r"b\.shape=\(2, 3\): expected 3 rows"):
    bounded_matmul(x, x)
  with pytest.raises(AssertionError, match="none of the 1 elements has an error bound"):
    assert_within(np.ones(1, F32), described(1.0, unbounded=True))
