"""Bounds of attention's gradients: a float32 backward pass keeps them, faulty ones do not."""

import ml_dtypes
import numpy as np
import pytest

from reference import (
  assert_within,
  bounded_attention_gradients,
  flash_attention,
  flash_attention_gradients,
  round_to,
)
from reference.attention.problem import AttentionProblem

BFLOAT16 = ml_dtypes.bfloat16
F32 = np.float32


def operands(dtype, *, seq_q=20, seq_kv=33, heads=4, kv_heads=2, size=16):
  rng = np.random.default_rng(0)
  shapes = (
    (2, seq_q, heads, size),
    (2, seq_kv, kv_heads, size),
    (2, seq_kv, kv_heads, size - 3),
    (2, seq_q, heads, size - 3),
  )
  return tuple(round_to(rng.standard_normal(shape), dtype) for shape in shapes)


def backward(q, k, v, d_out, bias=None, mask=None, *, fault=None, stored=None, **options):
  """The gradients in float32, with P and dZ rounded to the dtype of q before the last products."""
  problem = AttentionProblem.create(q, k, v, bias, mask, options)
  out, residual = flash_attention(q, k, v, bias, mask, out_dtype=q.dtype, **options)
  d_q, d_k, d_v = (np.zeros(x.shape, F32) for x in (q, k, v))
  d_bias = np.zeros((q.shape[0], q.shape[2], q.shape[1], k.shape[1]), F32)
  for part in problem.head_rows():
    query, key, value = (x.astype(F32) for x in problem.operands(part))
    z = (query @ key.T) * F32(problem.scale)
    if bias is not None:
      z = z + problem.bias_of(part).astype(F32)
    cap = problem.soft_cap
    s = z if cap is None else F32(cap) * np.tanh(z / F32(cap))
    sums = residual[part.query_index][:, None]
    with np.errstate(invalid="ignore", over="ignore"):
      p = np.where(part.visible, np.exp(s - sums), F32(0))
    d_o = np.where(part.visible.any(axis=1)[:, None], d_out[part.query_index].astype(F32), F32(0))
    along = (d_o * out[part.query_index].astype(F32)).sum(axis=1, keepdims=True, dtype=F32)
    d_z = p * (d_o @ value.T - (0 if fault == "no_rowsum" else along))
    if cap is not None and fault != "no_cap_slope":
      d_z = d_z * (F32(1) - np.tanh(z / F32(cap)) ** 2)
    kept = d_z.astype(stored or q.dtype).astype(F32)
    weights = p.astype(stored or q.dtype).astype(F32)
    scale = F32(1) if fault == "no_scale" else F32(problem.scale)
    d_q[part.query_index] = (kept @ key) * scale
    if not (fault == "first_head" and part.head % problem.group):
      d_k[part.key_index] += (kept.T @ query) * scale
      d_v[part.key_index] += weights.T @ d_o
    d_bias[part.batch, part.head, part.rows] = d_z
  return d_q, d_k, d_v, None if bias is None else d_bias.sum(axis=(0, 1), dtype=F32)


OPTIONS = [
  {},
  {"is_causal": True, "causal_alignment": "bottom_right"},
  {"logits_soft_cap": 2.0, "local_window_size": (9, 4), "causal_alignment": "top_left"},
  {"key_value_seq_lengths": [33, 7], "query_seq_lengths": [20, 3], "scale": 0.5},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [F32, BFLOAT16, np.float16])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_float32_backward_pass_keeps_the_bounds(options, dtype, with_bias):
  q, k, v, d_out = operands(dtype)
  bias = np.random.default_rng(1).standard_normal((20, 33)).astype(F32) if with_bias else None
  exact = flash_attention_gradients(q, k, v, d_out, bias, **options)
  bounds = bounded_attention_gradients(q, k, v, d_out, bias, block_kv=16, **options)
  actual = backward(q, k, v, d_out, bias, **options)
  for result, bound, gradient in zip(actual, bounds, exact, strict=True):
    if gradient is None:
      assert bound is None
      continue
    np.testing.assert_array_equal(bound.exact, gradient)
    assert not bound.unbounded.any()
    assert_within(result, bound)
    check = assert_within(result.astype(dtype), bound.round(dtype))
    assert check.worst_bound_fraction > 0.003
    assert check.error_bound < (0.005 if dtype is F32 else 0.2)


def passes(actual, bound):
  try:
    assert_within(actual, bound)
  except AssertionError:
    return False
  return True


@pytest.mark.parametrize(
  ("fault", "wrong"),
  [
    ("no_rowsum", (0, 1)),
    ("no_cap_slope", (0, 1)),
    ("no_scale", (0, 1)),
    ("first_head", (1, 2)),
    ("stored", (0, 1, 2)),
  ],
)
def test_a_faulty_backward_pass_does_not(fault, wrong):
  dtype = F32 if fault == "stored" else BFLOAT16
  q, k, v, d_out = operands(dtype)
  options = {"logits_soft_cap": 1.5}
  bounds = bounded_attention_gradients(q, k, v, d_out, block_kv=16, **options)
  actual = backward(
    q, k, v, d_out, fault=fault, stored=BFLOAT16 if fault == "stored" else None, **options
  )
  for position in range(3):
    assert passes(actual[position], bounds[position]) is (position not in wrong)


def test_what_is_not_seen_has_a_zero_gradient_exactly():
  q, k, v, d_out = operands(BFLOAT16)
  options = {"query_seq_lengths": [5, 0], "key_value_seq_lengths": [7, 33]}
  bounds = bounded_attention_gradients(q, k, v, d_out, **options)
  for bound, unseen in zip(
    bounds[:3], ((0, slice(5, None)), (0, slice(7, None)), (1,)), strict=True
  ):
    assert not bound.exact[unseen].any()
    assert not bound.error[unseen].any()
    assert not bound.unbounded.any()


def test_a_gradient_that_float16_cannot_hold_is_not_promised():
  q, k, v, d_out = operands(np.float16)
  d_out = d_out * np.float16(60000 / np.abs(d_out.astype(F32)).max())
  v = v * np.float16(100)
  bounds = bounded_attention_gradients(q, k, v, d_out)
  assert bounds.query.unbounded.any()
  kept = bounded_attention_gradients(q, k, v, d_out, stored_dtype=F32)
  assert not kept.query.unbounded.any()


@pytest.mark.parametrize(("seq_q", "seq_kv"), [(0, 8), (8, 0)])
def test_empty_sizes(seq_q, seq_kv):
  q, k, v, d_out = operands(BFLOAT16, seq_q=seq_q, seq_kv=seq_kv)
  bounds = bounded_attention_gradients(q, k, v, d_out)
  for bound, operand in zip(bounds[:3], (q, k, v), strict=True):
    assert_within(np.zeros(operand.shape, BFLOAT16), bound.round(BFLOAT16))
