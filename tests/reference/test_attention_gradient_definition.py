"""Attention's float64 gradients against central differences, and where nothing may leak."""

import numpy as np
import pytest

from reference import flash_attention_exact, flash_attention_gradients

STEP = 2.0**-17


def normal(*shape, seed=0):
  return np.random.default_rng(seed).standard_normal(shape)


def assert_gradients(operands, mask, options, *, seed=9):
  """Each partial derivative against the central difference of Σ dO ⊙ O + Σ dL ⊙ L.

  The difference is off by h²·f'''/6 and by float64's roundings of the sums
  over h; both are below 1e-9 of the sums of the weights for these operands.
  """
  q, k, v, bias = operands
  base = flash_attention_exact(q, k, v, bias, mask, **options)
  d_out, d_residual = (
    normal(*base.out.shape, seed=seed),
    normal(*base.residual.shape, seed=seed + 1),
  )
  seen = np.isfinite(base.residual)
  gradients = flash_attention_gradients(
    q, k, v, d_out, bias, mask, d_residual=d_residual, **options
  )

  def objective(arrays):
    out, residual = flash_attention_exact(*arrays, mask, **options)
    return np.sum(d_out * out) + np.sum(d_residual[seen] * residual[seen])

  scale = np.sum(np.abs(d_out)) + np.sum(np.abs(d_residual))
  for position, gradient in enumerate(gradients):
    if operands[position] is None:
      assert gradient is None
      continue
    assert gradient.shape == operands[position].shape
    for index in np.ndindex(gradient.shape):
      ends = []
      for sign in (1, -1):
        moved = [None if array is None else array.copy() for array in operands]
        moved[position][index] += sign * STEP
        ends.append(objective(moved))
      difference = (ends[0] - ends[1]) / (2 * STEP)
      assert abs(difference - gradient[index]) <= 1e-9 * scale, (position, index)
  return gradients


@pytest.mark.parametrize(
  "options",
  [
    {},
    {"is_causal": True, "causal_alignment": "bottom_right"},
    {"is_causal": True, "causal_alignment": "top_left", "scale": 0.3},
    {"logits_soft_cap": 1.5},
    {"local_window_size": (1, 1), "causal_alignment": "top_left", "logits_soft_cap": 2.0},
    {"key_value_seq_lengths": [2], "query_seq_lengths": [3]},
  ],
)
def test_gradients(options):
  operands = [normal(1, 4, 4, 3), normal(1, 3, 2, 3, seed=1), normal(1, 3, 2, 2, seed=2), None]
  assert_gradients(operands, None, options)


@pytest.mark.parametrize("shape", [(2, 2, 4, 3), (1, 2, 1, 3), (2, 1, 4, 1), (4, 3), (3,), (1,)])
def test_gradients_of_broadcast_biases(shape):
  q, k, v = normal(2, 4, 2, 3), normal(2, 3, 1, 3, seed=1), normal(2, 3, 1, 2, seed=2)
  mask = normal(2, 1, 4, 3, seed=5) > -0.8
  assert_gradients([q, k, v, normal(*shape, seed=3)], mask, {"logits_soft_cap": 3.0})


def test_the_field_cases():
  # BC-38: dV adds up the query heads that read a key head
  q, k = np.zeros((1, 1, 6, 16)), np.zeros((1, 2, 2, 16))
  v = np.array([1.0, 10.0])[None, None, :, None] * np.ones((1, 2, 1, 16))
  d_out = np.arange(1.0, 7)[None, None, :, None] * np.ones((1, 1, 1, 16))
  gradients = flash_attention_gradients(q, k, v, d_out)
  np.testing.assert_allclose(gradients.value[0, :, :, 0], [[3, 7.5], [3, 7.5]])
  assert not gradients.key.any()
  # BC-33: nobody reads the keys of a segment without queries
  q, k = np.zeros((1, 3, 1, 16)), np.zeros((1, 6, 1, 16))
  v = np.array([1.0, 2, 3, 10, 20, 7])[None, :, None, None] * np.ones((1, 1, 1, 16))
  ids = {"query_segment_ids": [[2, 2, 4]], "key_value_segment_ids": [[1, 1, 1, 3, 3, 4]]}
  gradients = flash_attention_gradients(q, k, v, np.ones((1, 3, 1, 16)), **ids)
  np.testing.assert_array_equal(gradients.value[0, :, 0, 0], [0, 0, 0, 0, 0, 1])
  assert not gradients.query.any()
  assert not gradients.key.any()
  # BC-34: a cotangent on the first segment's rows leaves the other keys alone
  q, k = normal(1, 5, 1, 16), normal(1, 5, 1, 16, seed=1)
  v = normal(1, 5, 1, 16, seed=2)
  ids = {"query_segment_ids": [[1, 1, 2, 2, 0]], "key_value_segment_ids": [[1, 1, 2, 2, 0]]}
  d_out = np.zeros((1, 5, 1, 16))
  d_out[:, :2] = 1
  gradients = flash_attention_gradients(q, k, v, d_out, **ids)
  assert gradients.key[:, :2].any()
  assert not gradients.key[:, 2:].any()
  assert not gradients.value[:, 2:].any()


@pytest.mark.parametrize(("batch", "seq_q", "seq_kv"), [(0, 8, 8), (2, 0, 8), (2, 8, 0)])
def test_empty_sizes_have_zero_gradients(batch, seq_q, seq_kv):
  # BC-46
  q, k = np.ones((batch, seq_q, 2, 16)), np.ones((batch, seq_kv, 2, 16))
  gradients = flash_attention_gradients(q, k, k, np.ones((batch, seq_q, 2, 16)))
  for gradient, operand in zip(gradients, (q, k, k), strict=False):
    assert gradient.shape == operand.shape
    assert not gradient.any()


@pytest.mark.parametrize("junk", [np.nan, np.inf])
def test_what_masked_slots_hold_does_not_leak(junk):
  q, k, v = normal(1, 5, 2, 4), normal(1, 6, 1, 4, seed=1), normal(1, 6, 1, 4, seed=2)
  d_out = normal(1, 5, 2, 4, seed=3)
  options = {"query_seq_lengths": [3], "key_value_seq_lengths": [4]}
  clean = flash_attention_gradients(q, k, v, d_out, **options)
  for array in clean[:3]:
    assert array.any()
  q[:, 3:], d_out[:, 3:] = junk, junk
  k[:, 4:], v[:, 4:] = junk, junk
  dirty = flash_attention_gradients(q, k, v, d_out, **options)
  for before, after in zip(clean[:3], dirty[:3], strict=True):
    np.testing.assert_array_equal(after, before)
  assert not dirty.query[:, 3:].any()
  assert not dirty.key[:, 4:].any()
  assert not dirty.value[:, 4:].any()


def test_wrong_shapes_are_named():
  q, k = np.zeros((1, 2, 1, 4)), np.zeros((1, 3, 1, 4))
  with pytest.raises(ValueError, match=r"d_out\.shape=\(1, 3, 1, 4\): expected \(1, 2, 1, 4\)"):
    flash_attention_gradients(q, k, k, k)
  with pytest.raises(ValueError, match=r"d_residual\.shape=\(1, 2\)"):
    flash_attention_gradients(q, k, k, q, d_residual=np.zeros((1, 2)))
