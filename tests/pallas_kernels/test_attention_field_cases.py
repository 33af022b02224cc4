"""Faults that users of comparable software reported, as cases (ids BC-nn)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import IMPLEMENTATIONS, quick, tile_for

from pallas_kernels import decode_attention, flash_attention
from pallas_kernels.attention.schedule import TileOrder

# Relative, for a mean of at most six small integers whose logits are all 0, so that each weight is
# 1 and their sum exact: a quotient (a reciprocal within 2 ulp and a product, 5 units of 2^-24) and,
# where the weights are divided and not the sum, its product with the value (1) and 5 additions. The
# logarithm of that sum, within 2 ulp and with the product that log2 takes, has fewer. So has the
# one pair of unequal logits, z and 0: exp(-z) is off by 4 + 7.25·z units, of which the mean
# 1 / (1 + exp(-z)) keeps exp(-z) / (1 + exp(-z)), 3 units, beside two sums, a product, a quotient.
UNIT = 11 * 2.0**-24

pytestmark = pytest.mark.parametrize("name", IMPLEMENTATIONS)


def attend(name, q, k, v, **options):
  """(out, residual) of a small call; the Hopper kernels take bfloat16 in the place of float32."""
  if name.startswith("mosaic_gpu"):
    q, k, v = (x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x for x in (q, k, v))
  if name == "interpret":
    options.setdefault("config", tile_for(name))
  run = functools.partial(flash_attention, return_residual=True, implementation=name, **options)
  return tuple(np.asarray(x) for x in quick(run)(q, k, v))


def zeros(seq, heads=1, size=16, dtype=jnp.float32):
  return jnp.zeros((1, seq, heads, size), dtype)


def values(numbers, dtype=jnp.float32):
  """[1, S, 1, 16], every feature the same number."""
  return jnp.broadcast_to(
    jnp.asarray(numbers, dtype)[None, :, None, None], (1, len(numbers), 1, 16)
  )


def unit_of(out):
  """UNIT, and a rounding to bfloat16 where the result is of that."""
  return UNIT if out.dtype == np.float32 else UNIT + 2.0**-8


def assert_rows(out, expected):
  rows = out[0, :, 0, 0].astype(np.float64)
  np.testing.assert_allclose(rows, expected, rtol=unit_of(out), atol=0)


def test_bc24_fully_masked_rows(name):
  mask = jnp.asarray([[True, True, False], [False, False, False]])
  out, residual = attend(name, zeros(2), zeros(3), values([1.0, 2.0, 9.0]), mask=mask)
  assert_rows(out, [1.5, 0.0])
  np.testing.assert_allclose(residual[0, :, 0], [np.log(2), -np.inf], rtol=UNIT)


def test_bc24_the_same_by_lengths_segments_and_windows(name):
  q, k, v = zeros(2), zeros(3), values([1.0, 2.0, 9.0])
  for options in (
    {"key_value_seq_lengths": jnp.asarray([0])},
    {
      "query_segment_ids": jnp.asarray([[1, 1]]),
      "key_value_segment_ids": jnp.asarray([[2, 2, 3]]),
    },
  ):
    out, residual = attend(name, q, k, v, **options)
    np.testing.assert_array_equal(out, np.zeros_like(out))
    np.testing.assert_array_equal(residual, np.full_like(residual, -np.inf))


def test_bc26_causal_alignment(name):
  wide = attend(
    name,
    zeros(2),
    zeros(5),
    values(np.arange(1.0, 6)),
    is_causal=True,
    causal_alignment="bottom_right",
  )
  assert_rows(wide[0], [2.5, 3.0])
  tall = attend(
    name,
    zeros(5),
    zeros(2),
    values([1.0, 2.0]),
    is_causal=True,
    causal_alignment="bottom_right",
  )
  assert_rows(tall[0], [0, 0, 0, 1.0, 1.5])
  np.testing.assert_allclose(tall[1][0, :, 0], [-np.inf, -np.inf, -np.inf, 0, np.log(2)], rtol=UNIT)
  top = attend(
    name, zeros(2), zeros(5), values(np.arange(1.0, 6)), is_causal=True, causal_alignment="top_left"
  )
  assert_rows(top[0], [1.0, 1.5])


@pytest.mark.parametrize(
  ("window", "expected"),
  [
    ((2, 0), [1, 1.5, 7 / 3, 14 / 3, 28 / 3, 56 / 3]),
    ((0, 0), [1, 2, 4, 8, 16, 32]),
    ((1, 2), [7 / 3, 3.75, 7.5, 15, 56 / 3, 24]),
    ((None, 0), [1, 1.5, 7 / 3, 3.75, 6.2, 10.5]),
    ((None, None), [10.5] * 6),
    ((100, 100), [10.5] * 6),
  ],
  ids=str,
)
def test_bc27_window_bounds(name, window, expected):
  out, _ = attend(name, zeros(6), zeros(6), values(2.0 ** np.arange(6)), local_window_size=window)
  assert_rows(out, expected)


@pytest.mark.parametrize("size", [72, 192, 8, 1])
def test_bc30_head_sizes(name, size):
  q = jnp.full((1, 1, 1, size), 0.25)
  k = jnp.stack([jnp.ones(size), jnp.zeros(size)])[None, :, None, :]
  out, _ = attend(name, q, k, values([1.0, 0.0])[..., :8])
  expected = 1 / (1 + np.exp(-0.25 * np.sqrt(size)))
  columns = out[0, 0, 0].astype(np.float64)
  np.testing.assert_allclose(columns, np.full(8, expected), rtol=unit_of(out))


def test_bc33_empty_sequences(name):
  # lengths (0, 3), (2, 0), (0, 2), (1, 1) of queries and keys
  lengths = ([0, 2, 0, 1], [3, 0, 2, 1])
  v = jnp.zeros((4, 3, 1, 16)).at[3, 0].set(7.0).at[0].set(5.0)
  q, k = jnp.zeros((4, 2, 1, 16)), jnp.zeros((4, 3, 1, 16))

  def run(q, k, v):
    return flash_attention(
      q,
      k,
      v,
      query_seq_lengths=jnp.asarray(lengths[0]),
      key_value_seq_lengths=jnp.asarray(lengths[1]),
      return_residual=True,
      implementation=name,
      config=tile_for(name),
    )

  def both(q, k, v):
    out, pull = jax.vjp(lambda *x: run(*x)[0], q, k, v)
    return out, run(q, k, v)[1], pull(jnp.ones_like(out))

  out, residual, (d_q, d_k, d_v) = quick(both)(q, k, v)
  expected = np.zeros((4, 2, 1, 16))
  expected[3, 0] = 7.0
  np.testing.assert_array_equal(np.asarray(out), expected)
  finite = np.isfinite(np.asarray(residual)[:, :, 0])
  np.testing.assert_array_equal(finite, [[False] * 2] * 3 + [[True, False]])
  assert float(residual[3, 0, 0]) == 0.0
  np.testing.assert_array_equal(np.asarray(d_v)[3, 0], np.ones((1, 16)))
  assert float(jnp.abs(d_v).sum()) == 16.0
  assert not np.asarray(d_q).any()
  assert not np.asarray(d_k).any()


@pytest.mark.parametrize(
  ("causal", "expected"), [(False, [2, 2, 15, 15, 99]), (True, [1, 2, 10, 15, 99])]
)
def test_bc34_segments(name, causal, expected):
  ids = jnp.asarray([[1, 1, 2, 2, 0]])
  out, _ = attend(
    name,
    zeros(5),
    zeros(5),
    values([1.0, 3.0, 10.0, 20.0, 99.0]),
    query_segment_ids=ids,
    key_value_segment_ids=ids,
    is_causal=causal,
  )
  assert_rows(out, expected)


def test_bc34_gradients_stay_in_their_segment(name, rng):
  ids = jnp.asarray([[1, 1, 2, 2, 0]])
  q, k, v = (jnp.asarray(rng.standard_normal((1, 5, 1, 16)), jnp.float32) for _ in range(3))

  def pulled(q, k, v):
    out, pull = jax.vjp(
      lambda *x: flash_attention(
        *x,
        query_segment_ids=ids,
        key_value_segment_ids=ids,
        implementation=name,
        config=tile_for(name),
      ),
      q,
      k,
      v,
    )
    return pull(jnp.ones_like(out).at[:, 2:].set(0.0))

  _, d_k, d_v = quick(pulled)(q, k, v)
  np.testing.assert_array_equal(np.asarray(d_k)[0, 2:], 0)
  np.testing.assert_array_equal(np.asarray(d_v)[0, 2:], 0)
  assert np.asarray(d_v)[0, :2].all()


def test_bc36_float16_scores_do_not_overflow(name):
  q = jnp.full((1, 1, 1, 128), 256.0, jnp.float16)
  k = jnp.stack([jnp.full(128, x, jnp.float16) for x in (256.0, 255.0, 256.0)])[None, :, None]
  v = jnp.broadcast_to(
    jnp.asarray([1.0, 50.0, 3.0], jnp.float16)[None, :, None, None], (1, 3, 1, 128)
  )
  out, _ = attend(name, q, k, v)
  np.testing.assert_array_equal(out.astype(np.float64), np.full((1, 1, 1, 128), 2.0))


def test_bc38_grouped_heads(name):
  q = jnp.zeros((1, 1, 6, 16))
  k = jnp.zeros((1, 2, 2, 16))
  v = jnp.broadcast_to(jnp.asarray([1.0, 10.0])[None, None, :, None], (1, 2, 2, 16))
  d_out = jnp.broadcast_to(jnp.arange(1.0, 7)[None, None, :, None], (1, 1, 6, 16))

  def both(q, k, v):
    out, pull = jax.vjp(
      lambda *x: flash_attention(*x, implementation=name, config=tile_for(name)), q, k, v
    )
    return out, pull(d_out)

  out, (_, d_k, d_v) = quick(both)(q, k, v)
  np.testing.assert_array_equal(np.asarray(out)[0, 0, :, 0], [1, 1, 1, 10, 10, 10])
  np.testing.assert_array_equal(np.asarray(d_v)[0, :, :, 0], [[3.0, 7.5], [3.0, 7.5]])
  np.testing.assert_array_equal(np.asarray(d_k), np.zeros((1, 2, 2, 16)))


def test_bc38_heads_that_do_not_divide_are_rejected(name):
  with pytest.raises(ValueError, match="query has 6 heads and key 4: expected a multiple"):
    flash_attention(zeros(1, 6), zeros(2, 4), zeros(2, 4), implementation=name)


@pytest.mark.parametrize("shape", [(0, 8, 8, 2, 16), (2, 0, 8, 2, 16), (2, 8, 0, 2, 16)], ids=str)
def test_bc46_empty_shapes(name, shape):
  batch, seq_q, seq_kv, heads, size = shape
  q, k = jnp.ones((batch, seq_q, heads, size)), jnp.ones((batch, seq_kv, heads, size))

  def both(q, k, v):
    (out, residual), pull = jax.vjp(
      lambda *x: flash_attention(*x, return_residual=True, implementation=name), q, k, v
    )
    return out, residual, pull((jnp.ones_like(out), jnp.zeros_like(residual)))

  out, residual, grads = quick(both)(q, k, k)
  np.testing.assert_array_equal(np.asarray(out), np.zeros((batch, seq_q, heads, size)))
  np.testing.assert_array_equal(np.asarray(residual), np.full((batch, seq_q, heads), -np.inf))
  for gradient, operand in zip(grads, (q, k, k), strict=True):
    np.testing.assert_array_equal(np.asarray(gradient), np.zeros(operand.shape))


def test_bc46_head_size_0(name):
  # no logit but 0: the mean of the values
  out, residual = attend(name, zeros(2, size=0), zeros(3, size=0), values([1.0, 2.0, 9.0]))
  assert_rows(out, [4.0, 4.0])
  np.testing.assert_allclose(residual, np.full((1, 2, 1), np.log(3)), rtol=UNIT)


def test_bc45_a_batch_of_more_than_65535(name):
  # CUDA limits the y and z axes of a grid; interpreted it would take hours
  size = 65537 if name != "interpret" else 5
  v = (jnp.arange(size) % 200).astype(jnp.bfloat16)[:, None, None, None]
  v = jnp.broadcast_to(v, (size, 1, 1, 16))
  q = jnp.zeros((size, 1, 1, 16), jnp.bfloat16)
  out, _ = attend(name, q, q, v)
  np.testing.assert_array_equal(out.astype(np.float32), np.asarray(v, np.float32))


def test_bc45_mapped_segments_and_axes(name):
  q = jnp.zeros((2, 1, 5, 1, 16))
  v = jnp.broadcast_to(jnp.asarray([1.0, 3, 10, 20, 99])[None, None, :, None, None], q.shape)
  ids = jnp.asarray([[[1, 1, 2, 2, 0]], [[1, 1, 1, 2, 2]]])
  one = functools.partial(flash_attention, implementation=name, config=tile_for(name))

  def run(v, ids):
    return one(q[0], q[0], v, query_segment_ids=ids, key_value_segment_ids=ids)

  mapped = quick(jax.vmap(run, out_axes=1))(v, ids)
  assert_rows(np.asarray(mapped)[:, 0], [2, 2, 15, 15, 99])
  np.testing.assert_allclose(
    np.asarray(mapped)[0, 1, :, 0, 0], [14 / 3] * 3 + [59.5] * 2, rtol=UNIT
  )
  shared = quick(jax.vmap(run, in_axes=(-1, None)))(jnp.moveaxis(v, 0, -1), ids[0])
  assert_rows(np.asarray(shared)[1], [2, 2, 15, 15, 99])


def test_bc08_programs_and_rows_past_31_bits(name):
  # offsets are the lowering's; what this library computes are the programs' own numbers
  del name
  order = TileOrder.create(
    batch=4096, heads=128, sharing=8, blocks=4096, walked_bytes=1 << 20, grows=True
  )
  assert order.programs == 2**31
  last = order.tile(order.programs - 1)
  assert (last.batch, last.head, last.block) == (4095, 127, 0)


def test_bc46_decode_of_nothing(name):
  call = functools.partial(decode_attention, return_residual=True, implementation=name)
  cache = jnp.ones((2, 0, 2, 16))
  out, residual = quick(call)(jnp.ones((2, 2, 16)), cache, cache, jnp.zeros((2,), jnp.int32))
  np.testing.assert_array_equal(np.asarray(out), np.zeros((2, 2, 16)))
  np.testing.assert_array_equal(np.asarray(residual), np.full((2, 2), -np.inf))
