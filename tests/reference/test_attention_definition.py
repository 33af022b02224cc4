"""Attention in float64: masks, special rows, options; the field's cases."""

import math

import ml_dtypes
import numpy as np
import pytest

from reference import flash_attention, flash_attention_exact, online_softmax
from reference.attention.problem import AttentionProblem

BFLOAT16 = ml_dtypes.bfloat16
F32 = np.float32
INF, NAN = np.inf, np.nan
# float64 sums of at most a hundred terms, in another order: a rounding of 2^-53 each
FEW = 100 * 2.0**-53


def normal(*shape, seed=0):
  return np.random.default_rng(seed).standard_normal(shape)


def constant_values(values, features=16):
  """[1, S, 1, features]: each key's value in all features."""
  return np.asarray(values, float)[None, :, None, None] * np.ones((1, 1, 1, features))


def zeros(*shape):
  return np.zeros(shape)


def rows_of(out):
  """The first feature of each query of the only head."""
  return out[0, :, 0, 0]


def plain_attention(q, k, v, bias, sees, *, scale, cap=None):
  """One query after another, in Python numbers: sees(b, n, i, j) is the mask."""
  batch, seq_q, heads, _ = q.shape
  out, residual = np.zeros((*q.shape[:3], v.shape[3])), np.full(q.shape[:3], -INF)
  group = heads // k.shape[2]
  for b, i, n in np.ndindex(batch, seq_q, heads):
    logits = {}
    for j in range(k.shape[1]):
      if sees(b, n, i, j):
        z = math.fsum(q[b, i, n] * k[b, j, n // group]) * scale
        z += 0 if bias is None else bias[b, n, i, j]
        logits[j] = z if cap is None else cap * math.tanh(z / cap)
    if logits:
      total = math.fsum(math.exp(s) for s in logits.values())
      residual[b, i, n] = math.log(total)
      out[b, i, n] = sum(math.exp(s) / total * v[b, j, n // group] for j, s in logits.items())
  return out, residual


def in_window(position, key, left, right):
  return (left is None or key >= position - left) and (right is None or key <= position + right)


@pytest.mark.parametrize("alignment", ["top_left", "bottom_right"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, (2, 0), (0, None), (None, 1), (0, 3)])
def test_every_combination_of_masks_is_the_plain_one(alignment, causal, window):
  q, k, v = normal(2, 4, 6, 5), normal(2, 7, 2, 5, seed=1), normal(2, 7, 2, 3, seed=2)
  q_len, k_len = np.array([3, 4]), np.array([7, 5])
  q_ids, k_ids = np.array([[1, 1, 2, 2]] * 2), np.array([[1, 1, 1, 2, 2, 2, 1]] * 2)
  mask = normal(2, 1, 4, 7, seed=3) > -1
  bias = normal(6, 4, 7, seed=4)
  left, right = (window, window) if window is None or isinstance(window, int) else window
  result = flash_attention_exact(
    q,
    k,
    v,
    bias,
    mask,
    scale=0.7,
    is_causal=causal,
    causal_alignment=alignment,
    local_window_size=window,
    query_seq_lengths=q_len,
    key_value_seq_lengths=k_len,
    query_segment_ids=q_ids,
    key_value_segment_ids=k_ids,
    logits_soft_cap=1.5,
  )

  def sees(b, n, i, j):
    position = i + (k_len[b] - q_len[b] if alignment == "bottom_right" else 0)
    return (
      i < q_len[b]
      and j < k_len[b]
      and (not causal or j <= position)
      and in_window(position, j, left, right)
      and q_ids[b, i] == k_ids[b, j]
      and mask[b, 0, i, j]
    )

  full_bias = np.broadcast_to(bias, (2, 6, 4, 7))
  out, residual = plain_attention(q, k, v, full_bias, sees, scale=0.7, cap=1.5)
  np.testing.assert_allclose(result.out, out, rtol=FEW, atol=FEW)
  np.testing.assert_allclose(result.residual, residual, rtol=FEW, atol=FEW)
  assert np.isneginf(residual).any()  # the case has rows that see nothing


def test_rows_in_small_groups_are_the_same(monkeypatch):
  q, k, v = normal(1, 9, 2, 4), normal(1, 9, 2, 4, seed=1), normal(1, 9, 2, 4, seed=2)
  options = {"is_causal": True, "local_window_size": (3, 0)}
  whole = flash_attention_exact(q, k, v, **options)
  monkeypatch.setattr("reference.attention.problem._BLOCK_SCORES", 20)
  parts = flash_attention_exact(q, k, v, **options)
  np.testing.assert_allclose(parts.out, whole.out, rtol=FEW, atol=FEW)
  np.testing.assert_allclose(parts.residual, whole.residual, rtol=FEW)


def test_the_online_softmax_example():
  # Ex 5-6 and Exp 5-3's third element: 7/3 and 27/7
  for scores, values in (([1, 2], [1, 3]), ([1, 2, 4], [1, 3, 5])):
    q = np.ones((1, 1, 1, 1))
    k = np.log(np.array(scores, float))[None, :, None, None]
    result = flash_attention_exact(q, k, constant_values(values, 1), scale=1.0)
    exact = online_softmax(scores, values)
    assert result.out[0, 0, 0, 0] == pytest.approx(float(exact.output), rel=FEW)
    assert result.residual[0, 0, 0] == pytest.approx(math.log(exact.exp_residual), rel=FEW)


# Cases of the field.


def test_fully_masked_rows():
  # BC-24, and the same row in four other ways
  v = constant_values([1, 2, 9])
  mask = np.array([[True, True, False], [False, False, False]])
  out, residual = flash_attention_exact(zeros(1, 2, 1, 16), zeros(1, 3, 1, 16), v, mask=mask)
  np.testing.assert_allclose(rows_of(out), [1.5, 0], rtol=FEW)
  np.testing.assert_allclose(residual[0, :, 0], [np.log(2), -INF], rtol=FEW)
  q, k = zeros(1, 5, 1, 16), zeros(1, 3, 1, 16)
  for options, empty in (
    ({"is_causal": True, "causal_alignment": "bottom_right"}, [0, 1]),
    ({"key_value_seq_lengths": [0]}, [0, 1, 2, 3, 4]),
    ({"query_seq_lengths": [3]}, [3, 4]),
    ({"query_segment_ids": [[1, 1, 1, 1, 1]], "key_value_segment_ids": [[2, 2, 2]]}, range(5)),
    ({"local_window_size": (0, 0), "causal_alignment": "top_left"}, [3, 4]),
  ):
    out, residual = flash_attention_exact(q, k, v, **options)
    np.testing.assert_array_equal(np.flatnonzero(np.isneginf(residual[0, :, 0])), list(empty))
    assert not out[0, list(empty)].any()


def test_causal_alignment():
  # BC-26
  causal = {"is_causal": True, "causal_alignment": "bottom_right"}
  q, k = zeros(1, 2, 1, 16), zeros(1, 5, 1, 16)
  v = constant_values(range(1, 6))
  np.testing.assert_allclose(rows_of(flash_attention_exact(q, k, v, **causal).out), [2.5, 3.0])
  top_left = flash_attention_exact(q, k, v, is_causal=True, causal_alignment="top_left")
  np.testing.assert_allclose(rows_of(top_left.out), [1.0, 1.5], rtol=FEW)
  out, residual = flash_attention_exact(k, q, v[:, :2], **causal)
  np.testing.assert_allclose(rows_of(out), [0, 0, 0, 1.0, 1.5], rtol=FEW)
  np.testing.assert_allclose(residual[0, :, 0], [-INF, -INF, -INF, 0, np.log(2)], rtol=FEW)


@pytest.mark.parametrize(
  ("window", "rows"),
  [
    ((2, 0), [1, 1.5, 7 / 3, 14 / 3, 28 / 3, 56 / 3]),
    ((0, 0), [1, 2, 4, 8, 16, 32]),
    (0, [1, 2, 4, 8, 16, 32]),
    ((1, 2), [7 / 3, 3.75, 7.5, 15, 56 / 3, 24]),
    ((None, 0), [1, 1.5, 7 / 3, 3.75, 6.2, 10.5]),
    ((None, None), [10.5] * 6),
    ((100, 100), [10.5] * 6),
    (None, [10.5] * 6),
  ],
)
def test_windows(window, rows):
  # BC-27
  x, v = zeros(1, 6, 1, 16), constant_values(2.0 ** np.arange(6))
  out = flash_attention_exact(x, x, v, local_window_size=window).out
  np.testing.assert_allclose(rows_of(out), rows, rtol=FEW)


@pytest.mark.parametrize(
  ("head_dim", "expected"),
  [
    (72, 0.8929581985348296),
    (80, 0.9034419937531772),
    (96, 0.9205241286842333),
    (192, 0.9696489096705757),
    (8, 0.6697615493266569),
    (1, 0.5621765008857981),
  ],
)
@pytest.mark.parametrize("value_dim", [None, 64, 40])
def test_head_sizes(head_dim, expected, value_dim):
  # BC-30
  q = np.full((1, 1, 1, head_dim), 0.25)
  k = np.stack([np.ones(head_dim), np.zeros(head_dim)])[None, :, None, :]
  out = flash_attention_exact(q, k, constant_values([1, 0], value_dim or head_dim)).out
  assert out.shape == (1, 1, 1, value_dim or head_dim)
  np.testing.assert_allclose(out, expected, rtol=FEW)


def test_packed_sequences_of_any_length():
  # BC-33 as segment ids: (0, 3), (2, 0), (0, 2) and (1, 1) queries and keys
  v = constant_values([1, 2, 3, 10, 20, 7])
  out, residual = flash_attention_exact(
    zeros(1, 3, 1, 16),
    zeros(1, 6, 1, 16),
    v,
    query_segment_ids=[[2, 2, 4]],
    key_value_segment_ids=[[1, 1, 1, 3, 3, 4]],
  )
  np.testing.assert_allclose(rows_of(out), [0, 0, 7], rtol=FEW)
  np.testing.assert_array_equal(residual[0, :, 0], [-INF, -INF, 0])


def test_segments():
  # BC-34
  x, v = zeros(1, 5, 1, 16), constant_values([1, 3, 10, 20, 99])
  ids = {"query_segment_ids": [[1, 1, 2, 2, 0]], "key_value_segment_ids": [[1, 1, 2, 2, 0]]}
  np.testing.assert_allclose(rows_of(flash_attention_exact(x, x, v, **ids).out), [2, 2, 15, 15, 99])
  causal = flash_attention_exact(x, x, v, is_causal=True, **ids)
  np.testing.assert_allclose(rows_of(causal.out), [1, 2, 10, 15, 99], rtol=FEW)
  ids["query_segment_ids"] = [[5] * 5]
  assert not flash_attention_exact(x, x, v, **ids).out.any()


def test_large_logits():
  # BC-36
  q = np.full((1, 1, 1, 128), 256.0, np.float16)
  k = np.stack([np.full(128, x) for x in (256.0, 255.0, 256.0)])[None, :, None].astype(np.float16)
  out = flash_attention(q, k, constant_values([1, 50, 3], 128), out_dtype=np.float16).out
  np.testing.assert_array_equal(out, np.full((1, 1, 1, 128), 2.0))


def test_query_heads_read_consecutive_key_heads():
  # BC-38
  v = np.array([1.0, 10.0])[None, None, :, None] * np.ones((1, 2, 1, 16))
  out = flash_attention_exact(zeros(1, 1, 6, 16), zeros(1, 2, 2, 16), v).out
  np.testing.assert_allclose(out[0, 0, :, 0], [1, 1, 1, 10, 10, 10], rtol=FEW)
  with pytest.raises(ValueError, match="6 heads, expected a multiple of 4"):
    flash_attention_exact(zeros(1, 1, 6, 16), zeros(1, 2, 4, 16), zeros(1, 2, 4, 16))


@pytest.mark.parametrize(("batch", "seq_q", "seq_kv"), [(0, 8, 8), (2, 0, 8), (2, 8, 0), (0, 0, 0)])
def test_empty_sizes(batch, seq_q, seq_kv):
  # BC-46
  k = zeros(batch, seq_kv, 2, 16)
  out, residual = flash_attention_exact(zeros(batch, seq_q, 2, 16), k, k)
  assert out.shape == (batch, seq_q, 2, 16)
  assert residual.shape == (batch, seq_q, 2)
  assert not out.any()
  assert np.isneginf(residual).all()


def test_a_single_key_gives_its_value():
  # BC-45: the weight is 1 whatever the logit
  v = (np.arange(300) % 200)[:, None, None, None] * np.ones((1, 1, 1, 16))
  out = flash_attention_exact(normal(300, 1, 1, 16), normal(300, 1, 1, 16, seed=1), v).out
  np.testing.assert_array_equal(out, v)


@pytest.mark.parametrize("junk", [NAN, INF, -INF])
def test_masked_slots_never_leak(junk):
  q, k, v = normal(1, 4, 2, 8), normal(1, 6, 1, 8, seed=1), normal(1, 6, 1, 8, seed=2)
  options = {"is_causal": True, "causal_alignment": "top_left", "key_value_seq_lengths": [5]}
  clean = flash_attention_exact(q, k, v, **options)
  bad_k, bad_v, bad_q = k.copy(), v.copy(), q.copy()
  bad_k[:, 3:], bad_v[:, 3:] = junk, junk  # seen by query 3 only, or by none
  out, residual = flash_attention_exact(bad_q, bad_k, bad_v, **options)
  np.testing.assert_allclose(out[:, :3], clean.out[:, :3], rtol=FEW)
  np.testing.assert_allclose(residual[:, :3], clean.residual[:, :3], rtol=FEW)
  assert not np.isfinite(out[:, 3]).any()
  bias = zeros(1, 1, 4, 6)
  bias[..., 4:] = junk
  bad_q[:, 3] = junk
  out, _ = flash_attention_exact(bad_q, k, v, bias, query_seq_lengths=[3], **options)
  np.testing.assert_allclose(out[:, :3], clean.out[:, :3], rtol=FEW)
  assert not out[:, 3].any()


def test_a_bias_of_minus_infinity_is_a_mask():
  q, k, v = normal(1, 3, 1, 8), normal(1, 4, 1, 8, seed=1), normal(1, 4, 1, 8, seed=2)
  mask = np.array([[True, False, True, True], [False] * 4, [True] * 4])
  masked = flash_attention_exact(q, k, v, mask=mask)
  biased = flash_attention_exact(q, k, v, np.where(mask, 0, -INF))
  np.testing.assert_allclose(biased.out, masked.out, rtol=FEW)
  np.testing.assert_array_equal(biased.residual, masked.residual)


def test_the_soft_cap_comes_after_the_bias_and_before_the_mask():
  q, k = np.ones((1, 1, 1, 1)), np.array([3.0, 0.0])[None, :, None, None]
  bias = np.array([1.0, 0.0])
  mask = np.array([True, False])
  options = {"scale": 1.0, "logits_soft_cap": 2.0}
  _, residual = flash_attention_exact(q, k, k, bias, mask, **options)
  assert residual[0, 0, 0] == pytest.approx(2 * np.tanh(4 / 2), rel=FEW)


def test_out_and_residual_are_rounded_once():
  q, k, v = (normal(1, 3, 1, 8, seed=s).astype(BFLOAT16) for s in range(3))
  exact = flash_attention_exact(q, k, v)
  result = flash_attention(q, k, v, out_dtype=BFLOAT16)
  assert (result.out.dtype, result.residual.dtype) == (BFLOAT16, F32)
  np.testing.assert_array_equal(result.residual, exact.residual.astype(F32))
  assert flash_attention(q, k, v).out.dtype == np.float64


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"is_causal": True}, "causal_alignment=None with 2 queries and 3 keys: .*bottom_right"),
    ({"local_window_size": (1, 1)}, "causal_alignment=None"),
    ({"local_window_size": -1}, "local_window_size=-1"),
    ({"local_window_size": (1, 2, 3)}, "local_window_size="),
    ({"local_window_size": (1.5, 0)}, "local_window_size="),
    ({"causal_alignment": "center"}, "causal_alignment='center'"),
    ({"query_seq_lengths": [3]}, r"query_seq_lengths=\[3\]: expected numbers from 0 to 2"),
    ({"key_value_seq_lengths": [1.0]}, "key_value_seq_lengths: shape"),
    ({"query_segment_ids": [[1, 1]]}, "key_value_segment_ids=None"),
    ({"query_segment_ids": [[1]], "key_value_segment_ids": [[1, 1, 1]]}, "query_segment_ids"),
    ({"logits_soft_cap": 0.0}, "logits_soft_cap=0.0"),
    ({"scale": NAN}, "scale=nan"),
    ({"mask": np.ones((2, 3))}, r"mask\.dtype=float64: expected bool"),
    ({"mask": np.ones((3, 3), bool)}, r"mask\.shape=\(3, 3\)"),
    ({"bias": np.ones((4, 1, 1, 1))}, r"bias\.shape=\(4, 1, 1, 1\)"),
    ({"window": 3}, "window: no such option"),
  ],
)
def test_wrong_options_are_named(options, message):
  with pytest.raises(ValueError, match=message):
    flash_attention_exact(zeros(1, 2, 1, 4), zeros(1, 3, 1, 4), zeros(1, 3, 1, 4), **options)


@pytest.mark.parametrize(
  ("shapes", "message"),
  [
    (((2, 1, 4), (1, 3, 1, 4), (1, 3, 1, 4)), r"query\.shape=\(2, 1, 4\)"),
    (((1, 2, 1, 4), (1, 3, 1, 5), (1, 3, 1, 4)), r"key\.shape=\(1, 3, 1, 5\)"),
    (((1, 2, 1, 4), (1, 3, 1, 4), (1, 4, 1, 4)), r"value\.shape=\(1, 4, 1, 4\)"),
  ],
)
def test_wrong_shapes_are_named(shapes, message):
  with pytest.raises(ValueError, match=message):
    flash_attention_exact(*(zeros(*shape) for shape in shapes))


def test_a_problem_knows_its_groups():
  problem = AttentionProblem.create(
    zeros(1, 2, 28, 4), zeros(1, 3, 4, 4), zeros(1, 3, 4, 5), None, None, {}
  )
  assert problem.group == 7
  assert problem.out_shape == (1, 2, 28, 5)
  assert [part.kv_head for part in problem.head_rows()] == [h // 7 for h in range(28)]
