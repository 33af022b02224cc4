"""Attention's derived bound: online softmax in float32 keeps it, faulty kernels do not."""

import ml_dtypes
import numpy as np
import pytest

from reference import (
  assert_decode_attention_close,
  assert_flash_attention_close,
  attention_error_bound,
  check_decode_attention,
  check_flash_attention,
  decode_attention,
  flash_attention,
  flash_attention_exact,
  gather_pages,
  round_to,
)
from reference.attention.problem import AttentionProblem

BFLOAT16 = ml_dtypes.bfloat16
E4M3 = ml_dtypes.float8_e4m3fn
F32 = np.float32
# float64 sums of at most a hundred terms, in another order: a rounding of 2^-53 each
FEW = 100 * 2.0**-53
LOG2E = F32(np.log2(np.e))


def cast(x, dtype):
  return x if dtype is None else x.astype(dtype).astype(F32)


def online(
  q,
  k,
  v,
  bias=None,
  mask=None,
  *,
  out=BFLOAT16,
  p_dtype=BFLOAT16,
  block=16,
  splits=1,
  form="exp",
  order=1,
  lazy=0.0,
  fault=None,
  **options,
):
  """The online softmax with float32 state, block after block: (out, residual)."""
  problem = AttentionProblem.create(q, k, v, bias, mask, options)
  result = np.zeros(problem.out_shape, out)
  residual = np.zeros(problem.out_shape[:3], F32)
  for part in problem.head_rows():
    query, key, value = (x.astype(F32) for x in problem.operands(part))
    s = np.zeros((query.shape[0], key.shape[0]), F32)
    for h in range(query.shape[1]):
      s += query[:, h, None] * key[None, :, h]
    s *= F32(problem.scale)
    if bias is not None:
      s += problem.bias_of(part).astype(F32)
    if problem.soft_cap is not None and fault != "no_cap":
      s = F32(problem.soft_cap) * np.tanh(s / F32(problem.soft_cap))
    visible = part.visible
    if fault == "late_mask":
      visible = np.ones_like(visible)
    s = np.where(visible, s, F32(-np.inf))
    states = []
    for keys in np.array_split(np.arange(key.shape[0]), splits):
      m = np.full((s.shape[0], 1), -np.inf, F32)
      total = np.zeros((s.shape[0], 1), F32)
      u = np.zeros((s.shape[0], value.shape[1]), F32)
      starts = range(0, len(keys), block)[::order]
      for start in starts:
        at = keys[start : start + block]
        new = np.maximum(m, s[:, at].max(axis=1, keepdims=True))
        if lazy:
          new = np.where(new - m <= F32(lazy), m, new)
        safe = np.where(np.isneginf(new), F32(0), new)

        def exp(x, peak):
          if form == "exp":
            return np.exp(x - peak)
          return np.exp2(x * LOG2E - peak * LOG2E)

        r = exp(m, safe)
        p = exp(s[:, at], safe)
        rounded = cast(p, p_dtype)
        if fault != "no_rescale":
          total, u = total * r, u * r
        total = total + p.sum(axis=1, keepdims=True, dtype=F32)
        for j, index in enumerate(at):
          u = u + rounded[:, j, None] * value[index]
        if fault == "half_accumulator":
          u = cast(u, BFLOAT16)
        m = new
      states.append((m, total, u))
    m = np.max([state[0] for state in states], axis=0)
    safe = np.where(np.isneginf(m), F32(0), m)
    total, u = F32(0), F32(0)
    for part_m, part_total, part_u in states:
      r = np.exp(part_m - safe)
      total, u = total + part_total * r, u + part_u * r
    empty = total == 0
    inverse = F32(1) / np.where(empty, F32(1), total)
    result[part.query_index] = (u * inverse).astype(out)
    with np.errstate(divide="ignore"):
      residual[part.query_index] = (safe + np.log(total))[:, 0]
  return result, residual


def tf32(x):
  """float32 with 10 stored significand bits."""
  _, exponent = np.frexp(x.astype(np.float64))
  return np.ldexp(np.rint(np.ldexp(x.astype(np.float64), 11 - exponent)), exponent - 11).astype(F32)


def operands(
  dtype=BFLOAT16, *, batch=1, seq_q=24, seq_kv=70, heads=2, kv_heads=1, size=16, scale=1.0
):
  rng = np.random.default_rng(0)
  shapes = (
    (batch, seq_q, heads, size),
    (batch, seq_kv, kv_heads, size),
    (batch, seq_kv, kv_heads, size + 3),
  )
  q, k, v = (rng.standard_normal(shape) for shape in shapes)
  return tuple(round_to(x, dtype) for x in (q * scale, k, v))


@pytest.mark.parametrize("options", [{}, {"is_causal": True, "causal_alignment": "bottom_right"}])
@pytest.mark.parametrize(
  "how",
  [
    {},
    {"block": 1},
    {"block": 70},
    {"form": "exp2"},
    {"order": -1, "form": "exp2"},
    {"splits": 3},
    {"lazy": 5.5, "block": 4},
  ],
)
@pytest.mark.parametrize("scale", [1.0, 12.0])
def test_the_online_softmax_keeps_the_bound(options, how, scale):
  q, k, v = operands(scale=scale)
  out, residual = online(q, k, v, **how, **options)
  claims = {"block_kv": how.get("block", 16), "num_splits": how.get("splits", 1)}
  if how.get("order") == -1 or how.get("block") == 1:
    claims.pop("block_kv")
  check = assert_flash_attention_close(out, q, k, v, residual=residual, **claims, **options)
  assert check.out.worst_bound_fraction > 0.1
  assert check.out.unbounded_elements == 0
  # the bound is a few roundings of the probabilities, not more
  assert check.out.error_bound < (0.05 if scale == 1.0 else 0.1)


@pytest.mark.parametrize("out", [F32, BFLOAT16, np.float16])
@pytest.mark.parametrize("dtype", [F32, BFLOAT16, np.float16])
def test_every_dtype_keeps_the_bound(dtype, out):
  q, k, v = operands(dtype)
  result = online(q, k, v, out=out, p_dtype=None if dtype is F32 else dtype)
  check = assert_flash_attention_close(result[0], q, k, v, residual=result[1], block_kv=16)
  if dtype is F32 and out is F32:
    assert check.out.error_bound < 2.0**-13  # a quarter of what TF32 costs a logit
  exact = flash_attention_exact(q, k, v)
  bound, residual_bound = attention_error_bound(q, k, v, out_dtype=out, block_kv=16)
  assert (np.abs(result[0].astype(float) - exact.out) <= bound).all()
  assert (np.abs(result[1] - exact.residual) <= residual_bound).all()


def test_bias_cap_and_masks_together_keep_the_bound():
  q, k, v = operands(batch=2, heads=4, kv_heads=2)
  rng = np.random.default_rng(1)
  bias = (3 * rng.standard_normal((4, 24, 70))).astype(F32)
  mask = rng.random((2, 1, 24, 70)) > 0.4
  options = {
    "logits_soft_cap": 4.0,
    "local_window_size": (30, 10),
    "causal_alignment": "bottom_right",
    "key_value_seq_lengths": [70, 12],
    "scale": 0.4,
  }
  out, residual = online(q, k, v, bias, mask, **options)
  check = assert_flash_attention_close(
    out, q, k, v, bias, mask, residual=residual, block_kv=16, **options
  )
  assert check.out.unbounded_elements == 0
  assert np.isneginf(residual).any()
  for fault in ("no_cap", "late_mask"):
    wrong, _ = online(q, k, v, bias, mask, fault=fault, **options)
    assert not check_flash_attention(wrong, q, k, v, bias, mask, block_kv=16, **options).passed


@pytest.mark.parametrize(
  "fault",
  ["no_rescale", "half_accumulator", "scale", "dropped_key", "next_head", "p_dtype", "tf32"],
)
def test_a_faulty_kernel_does_not_pass(fault):
  size = {"seq_kv": 300} if fault == "half_accumulator" else {}
  q, k, v = operands(F32 if fault in ("p_dtype", "tf32") else BFLOAT16, heads=4, kv_heads=2, **size)
  v = np.abs(v) if fault == "half_accumulator" else v
  how = {"out": F32, "block": 4}
  if fault in ("no_rescale", "half_accumulator"):
    wrong, _ = online(q, k, v, fault=fault, **how)
  elif fault == "scale":
    wrong, _ = online(q, k, v, scale=0.2, **how)
  elif fault == "dropped_key":
    wrong, _ = online(q, k, v, key_value_seq_lengths=[69], **how)
  elif fault == "next_head":
    wrong, _ = online(q, k[:, :, ::-1], v[:, :, ::-1], **how)
  elif fault == "tf32":
    wrong, _ = online(tf32(q), tf32(k), tf32(v), p_dtype=None, **how)
  else:
    wrong, _ = online(q, k, v, p_dtype=BFLOAT16, **how)
  with pytest.raises(AssertionError, match=r"out: .* past their error bound"):
    assert_flash_attention_close(wrong, q, k, v, block_kv=4)


def test_a_wrong_residual_does_not_pass():
  q, k, v = operands()
  out, residual = online(q, k, v)
  base_two = residual * LOG2E
  with pytest.raises(AssertionError, match=r"residual: "):
    assert_flash_attention_close(out, q, k, v, residual=base_two)
  shifted = residual + F32(2.0**-10)
  check = check_flash_attention(out, q, k, v, residual=shifted)
  assert (check.out.passed, check.passed) == (True, False)


def test_rows_that_see_nothing_are_exact():
  q, k, v = operands(seq_q=30, seq_kv=20)
  options = {"is_causal": True, "causal_alignment": "bottom_right"}
  out, residual = online(q, k, v, **options)
  assert_flash_attention_close(out, q, k, v, residual=residual, **options)
  for value, wrong_residual in ((1e-30, -np.inf), (0.0, -1e30)):
    wrong, sums = out.copy(), residual.copy()
    wrong[0, 3, 1, 2], sums[0, 3, 1] = value, wrong_residual
    assert not check_flash_attention(wrong, q, k, v, residual=sums, **options).passed
  with_nan = out.copy()
  with_nan[0, 3] = np.nan
  check = check_flash_attention(with_nan, q, k, v, **options)
  assert check.out.failed_elements == 2 * 19


def test_infinities_and_nan_that_are_seen_are_not_judged_beyond_the_rows_that_see_them():
  q, k, v = operands(seq_q=8, seq_kv=8)
  k[0, 5, 0, 0], v[0, 6, 0, 1] = np.nan, np.inf
  out, residual = flash_attention(q, k, v, out_dtype=BFLOAT16, is_causal=True)
  assert np.isnan(out[0, 5:].astype(F32)).all()
  check = assert_flash_attention_close(out, q, k, v, residual=residual, is_causal=True)
  assert check.out.unbounded_elements <= 3 * 2 * v.shape[3]
  out[0, 4, 0, 0] = np.nan
  assert not check_flash_attention(out, q, k, v, is_causal=True).passed


def test_eight_bit_probabilities_need_to_be_declared():
  q, k, v = operands()
  out, _ = online(q, k, v, p_dtype=E4M3, out=F32)
  assert not check_flash_attention(out, q, k, v, block_kv=16).passed
  assert check_flash_attention(out, q, k, v, block_kv=16, p_dtype=E4M3).passed


def test_growing_logits_need_more_rescales_than_others():
  q, k, v = operands(F32, heads=1)
  q[...], k[...] = 1, 0
  k[..., 0] = np.linspace(0, 8, 70)[None, :, None]
  v[...] = np.abs(v)
  options = {"out_dtype": F32}
  any_block, _ = attention_error_bound(q, k, v, **options)
  large_blocks, _ = attention_error_bound(q, k, v, block_kv=35, **options)
  assert (large_blocks < 0.5 * any_block).all()
  out, residual = online(q, k, v, block=1, out=F32, p_dtype=None, form="exp2")
  assert_flash_attention_close(out, q, k, v, residual=residual)


def test_tensor_core_sums_have_a_wider_bound():
  q, k, v = operands()
  narrow, _ = attention_error_bound(q, k, v, out_dtype=F32)
  wide, _ = attention_error_bound(q, k, v, out_dtype=F32, accumulate="tensor_core")
  assert (wide > narrow).all()


@pytest.mark.parametrize(("batch", "seq_q", "seq_kv"), [(0, 8, 8), (2, 0, 8), (2, 8, 0)])
def test_empty_sizes(batch, seq_q, seq_kv):
  q, k, v = operands(batch=batch, seq_q=seq_q, seq_kv=seq_kv)
  out, residual = flash_attention(q, k, v, out_dtype=BFLOAT16)
  assert_flash_attention_close(out, q, k, v, residual=residual)


# Decode.


def cache(lengths, *, page_size=None, seq_q=None):
  q, k, v = operands(batch=len(lengths), seq_q=seq_q or 1, seq_kv=48, heads=6, kv_heads=2)
  if seq_q is None:
    q = q[:, 0]
  if page_size is None:
    return q, k, v, None
  pages = 48 // page_size
  order = np.random.default_rng(5).permutation(len(lengths) * pages)
  table = order.reshape(len(lengths), pages)
  stored = []
  for x in (k, v):
    pool = np.zeros((len(order), page_size, *x.shape[2:]), x.dtype)
    pool[table.reshape(-1)] = x.reshape(-1, page_size, *x.shape[2:])
    stored.append(pool)
  return q, *stored, table


def test_a_decode_step_is_attention_on_the_keys_in_use():
  lengths = np.array([48, 1, 0, 17])
  q, k, v, _ = cache(lengths)
  out, residual = decode_attention(q, k, v, lengths)
  assert (out.shape, residual.shape) == ((4, 6, 19), (4, 6))
  for b, length in enumerate(lengths):
    alone = flash_attention_exact(q[b, None, None], k[b, None, :length], v[b, None, :length])
    np.testing.assert_allclose(out[b], alone.out[0, 0], rtol=FEW, atol=FEW)
  assert not out[2].any()
  assert np.isneginf(residual[2]).all()


@pytest.mark.parametrize("page_size", [1, 8, 48])
def test_pages_only_say_where_a_slot_is(page_size):
  lengths = np.array([48, 1, 0, 17])
  q, k, v, _ = cache(lengths)
  _, key_pages, value_pages, table = cache(lengths, page_size=page_size)
  plain = decode_attention(q, k, v, lengths, local_window_size=5)
  options = {"local_window_size": 5, "page_table": table}
  paged = decode_attention(q, key_pages, value_pages, lengths, **options)
  np.testing.assert_array_equal(paged.out, plain.out)
  # entries that no length reaches may hold anything, and unused slots too
  unused = np.arange(table.shape[1]) * page_size >= lengths[:, None]
  value_pages[table[unused]] = np.nan
  table[unused] = -7
  paged = decode_attention(q, key_pages, value_pages, lengths, **options)
  np.testing.assert_array_equal(paged.out, plain.out)


def test_several_queries_end_at_the_last_key():
  lengths = np.array([48, 2, 20])
  q, k, v, _ = cache(lengths, seq_q=3)
  out, residual = decode_attention(q, k, v, lengths, local_window_size=(6, 6))
  assert np.isneginf(residual[1, 0]).all()  # two keys for three queries
  for t in range(3):
    one = decode_attention(q[:, t], k, v, np.maximum(lengths - 2 + t, 0), local_window_size=(6, 0))
    np.testing.assert_allclose(out[:, t], one.out, rtol=FEW, atol=FEW)


@pytest.mark.parametrize("splits", [1, 4])
def test_a_decode_kernel_passes_and_a_faulty_one_does_not(splits):
  lengths = np.array([48, 1, 0, 17])
  q, k, v, _ = cache(lengths)
  out, residual = online(q[:, None], k, v, splits=splits, key_value_seq_lengths=lengths, block=8)
  claims = {"block_kv": 8, "num_splits": splits, "residual": residual[:, 0]}
  check = assert_decode_attention_close(out[:, 0], q, k, v, lengths, **claims)
  assert check.out.worst_bound_fraction > 0.1
  longer = np.minimum(lengths + 1, 48)
  wrong, _ = online(q[:, None], k, v, key_value_seq_lengths=longer, block=8)
  assert not check_decode_attention(wrong[:, 0], q, k, v, lengths).passed


def test_wrong_arguments_are_named():
  lengths = np.array([3, 2])
  q, k, v, table = cache(lengths, page_size=16)
  with pytest.raises(ValueError, match=r"page_table\[0, 0\]=9: expected a page from 0 to 5"):
    decode_attention(q, k, v, lengths, page_table=np.where(table >= 0, 9, 0))
  with pytest.raises(ValueError, match="page_table: shape"):
    gather_pages(k, table.astype(float), lengths)
  with pytest.raises(ValueError, match=r"query\.shape="):
    decode_attention(q[0], k, v, lengths)
  q, k, v = operands()
  out = np.zeros((1, 24, 2, 19), F32)
  for options, message in (
    ({"block_kv": 0}, "block_kv=0"),
    ({"num_splits": 0}, "num_splits=0"),
    ({"p_dtype": np.int8}, "p_dtype="),
    ({"out_dtype": BFLOAT16}, "expected out_dtype=bfloat16"),
    ({"residual": np.zeros((1, 24, 2))}, "residual: shape"),
  ):
    with pytest.raises(ValueError, match=message):
      check_flash_attention(out, q, k, v, **options)
  with pytest.raises(ValueError, match=r"actual\.shape="):
    check_flash_attention(out[:, :3], q, k, v)
  with pytest.raises(ValueError, match=r"query\.dtype=float64"):
    check_flash_attention(out, q.astype(float), k, v)
