"""Scales of blocks, the online softmax in rationals, and rewrites that change a result."""

import itertools
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from reference import (
  activation_of_parts,
  block_codes,
  dequantize,
  dropped_rounding,
  matmul,
  merge_states,
  online_softmax,
  quantize_rows,
  rescale,
  silu,
  softmax_state,
)

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
F32 = np.float32
# a few float64 operations in another order, a rounding of 2^-53 each
FEW = 8 * 2.0**-53


@pytest.fixture
def two_blocks():
  """Ex 5-7: 256 elements in two blocks that start with 1 and 10."""
  row = np.zeros(256, F32)
  row[0], row[128] = 1, 10
  return row


def test_a_row_scale_has_to_have_seen_the_row(two_blocks):
  whole, first, running = (
    block_codes(two_blocks, block=128, scale=scale) for scale in ("row", "first_block", "running")
  )
  assert [float(v.codes[0]) for v in (whole, first, running)] == [44, 448, 448]
  assert whole.values[0] == pytest.approx(55 / 56, rel=FEW)
  assert first.values[0] == running.values[0] == 1
  assert [float(v.values[128]) for v in (whole, first, running)] == [10, 1, 10]
  # one scale for the stored row, the last one known: the first block's codes mean another number
  assert float(running.codes[0]) * running.scale[-1] == pytest.approx(10)


def test_blocks_with_the_rows_scale_have_the_rows_codes():
  x = np.random.default_rng(0).standard_normal((5, 70)).astype(F32)
  codes, scale = quantize_rows(x)
  blocks = block_codes(x, block=16, scale_dtype=F32)
  np.testing.assert_array_equal(blocks.codes.astype(float), codes.astype(float))
  np.testing.assert_array_equal(blocks.scale, np.broadcast_to(scale, (5, 5)))
  np.testing.assert_array_equal(blocks.values, dequantize(codes, scale))
  running = block_codes(x, block=16, scale="running", scale_dtype=F32)
  np.testing.assert_array_equal(running.scale[:, -1:], scale)
  assert (np.diff(running.scale, axis=-1) >= 0).all()
  assert (running.codes[:, :16].astype(float) != codes[:, :16].astype(float)).any()


def test_blocks_of_nothing():
  assert block_codes(np.zeros((2, 0), F32), block=4).codes.shape == (2, 0)
  np.testing.assert_array_equal(block_codes(np.zeros(6), block=4).scale, [1, 1])
  for options, message in (
    ({"block": 0}, "block=0"),
    ({"block": 2, "scale": "last"}, "scale='last'"),
  ):
    with pytest.raises(ValueError, match=message):
      block_codes(np.zeros(4), **options)


# Online softmax. Scores [0, ln 2] with values [1, 3]; then ln 4 with 5.


def test_states_of_the_worked_example():
  first, second = softmax_state([1], [1]), softmax_state([2], [3])
  assert (first.peak, first.total, first.weighted) == (1, 1, 1)
  both = merge_states([first, second])
  assert rescale(first, both.peak) == Fraction(1, 2)
  assert (both.peak, both.total, both.weighted) == (2, Fraction(3, 2), Fraction(7, 2))
  assert both.output == Fraction(7, 3) == softmax_state([1, 2], [1, 3]).output
  third = merge_states([both, softmax_state([4], [5])])  # Exp 5-3, extension
  assert (third.peak, third.total, third.weighted) == (4, Fraction(7, 4), Fraction(27, 4))
  assert third.output == Fraction(27, 7)
  assert third.exp_residual == 1 + 2 + 4


def test_outputs_alone_cannot_be_merged():
  # blocks with outputs 1 and 3 and weights 2:1 or 1:2 make 5/3 or 7/3
  assert merge_states([softmax_state([2], [1]), softmax_state([1], [3])]).output == Fraction(5, 3)
  assert merge_states([softmax_state([1], [1]), softmax_state([2], [3])]).output == Fraction(7, 3)


def test_every_block_size_and_every_order_of_merging_give_the_same_state():
  weights = [Fraction(n, d) for n, d in ((3, 7), (0, 1), (5, 2), (1, 9), (8, 3), (5, 2))]
  values = [Fraction(n) for n in (4, 100, -3, 7, 0, 2)]
  whole = softmax_state(weights, values)
  assert whole.output == sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
  for block in range(1, 8):
    assert online_softmax(weights, values, block=block) == whole
  parts = [softmax_state(weights[i : i + 2], values[i : i + 2]) for i in (0, 2, 4)]
  for order in itertools.permutations(parts):
    assert merge_states(order) == whole
  left = merge_states([merge_states(parts[:2]), parts[2]])
  assert left == merge_states([parts[0], merge_states(parts[1:])]) == whole


def test_masked_scores_are_no_scores():
  empty = softmax_state([0, 0], [5, 7])
  assert (empty.output, empty.exp_residual) == (0, 0)
  assert softmax_state([], []) == empty
  state = softmax_state([1, 2], [1, 3])
  assert merge_states([empty, state]) == merge_states([state, empty]) == state
  with pytest.raises(ValueError, match="values: 1 of them, expected 2"):
    softmax_state([1, 2], [1])
  with pytest.raises(ValueError, match="at least 0"):
    softmax_state([-1], [1])
  with pytest.raises(ValueError, match="block=0"):
    online_softmax([1], [1], block=0)


# Rewrites.


def test_an_activation_does_not_distribute_over_a_sum():
  rewrite = activation_of_parts([[1.0, -1.0], [2.0, 0.0]])
  np.testing.assert_array_equal(rewrite.stated, [0, silu(2.0)])
  np.testing.assert_allclose(rewrite.difference, [0.4621171572600098, 0], rtol=FEW)


def test_a_rounding_left_out_changes_bits():
  near_a_tie = 1 + 2.0**-8
  rewrite = dropped_rounding(near_a_tie)
  assert rewrite.stated != rewrite.rewritten
  # the same two programs as options of a matmul
  a, b = np.array([[1.0, 2.0**-8]], F32), np.ones((2, 1), F32)
  options = {"activation": "silu", "out_dtype": "bfloat16"}
  assert float(matmul(a, b, **options)[0, 0]) == rewrite.stated
  kept = matmul(a, b, intermediate_dtype=F32, **options)
  assert float(kept[0, 0]) == rewrite.rewritten
