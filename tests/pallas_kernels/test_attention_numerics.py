"""flash_attention against float64, inside the bound that its sums derive."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
  IMPLEMENTATIONS,
  TILE,
  Case,
  assert_inside_bound,
  assert_seeds_example,
  quick,
)

from pallas_kernels import AttentionConfig, flash_attention

# Sizes that no block divides; together the cases have every option, and every
# option beside others that it could get in the way of.
CASES = [
  Case("plain", (1, 20, 35, 2, 1, 16, 16)),
  Case("heads of 72 and 40", (1, 18, 33, 2, 2, 72, 40), "bfloat16", options={"is_causal": False}),
  Case(
    "causal to the end",
    (2, 37, 45, 4, 2, 24, 40),
    options={"is_causal": True, "causal_alignment": "bottom_right"},
  ),
  Case(
    "more queries than keys",
    (1, 45, 20, 2, 1, 16, 16),
    "float16",
    options={"is_causal": True, "causal_alignment": "bottom_right"},
  ),
  Case(
    "window, cap",
    (1, 45, 37, 2, 1, 24, 16),
    "bfloat16",
    options={
      "local_window_size": (5, 3),
      "causal_alignment": "top_left",
      "logits_soft_cap": 3.0,
      "scale": 0.7,
    },
  ),
  Case(
    "row bias, head mask",
    (2, 33, 33, 2, 2, 16, 16),
    bias=(1, 2, 1, 33),
    mask=(2, 1, 33, 33),
  ),
  Case(
    "lengths, column bias",
    (2, 33, 33, 2, 2, 16, 16),
    bias=(2, 1, 33, 1),
    lengths=((10, 33), (33, 0)),
    options={"is_causal": True, "causal_alignment": "bottom_right"},
  ),
  Case(
    "segments",
    (2, 40, 40, 2, 1, 16, 16),
    "float16",
    segments=3,
    options={"is_causal": True, "local_window_size": (9, None)},
  ),
  Case(
    "everything",
    (2, 37, 21, 6, 2, 20, 12),
    "bfloat16",
    bias=(2, 6, 37, 21),
    mask=(37, 21),
    lengths=((30, 37), (21, 11)),
    segments=2,
    options={
      "local_window_size": 12,
      "causal_alignment": "bottom_right",
      "logits_soft_cap": 5.0,
      "scale": -0.3,
    },
  ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_every_option_is_inside_the_bound(name, case, rng):
  arrays = case.arrays(rng)
  result = quick(case.call(name))(**arrays)
  batch, seq_q, _, heads, _, _, value_size = case.sizes
  chex.assert_shape(result[0], (batch, seq_q, heads, value_size))
  chex.assert_shape(result[1], (batch, seq_q, heads))
  chex.assert_type(result[1], jnp.float32)
  assert_inside_bound(case, arrays, result, name)


@pytest.mark.parametrize("blocks", [(32, 16), (16, 64)], ids=str)
@pytest.mark.parametrize("name", ["interpret", pytest.param("triton", marks=pytest.mark.gpu)])
def test_tiles_agree_with_float64(name, blocks, rng):
  case = Case("tiles", (1, 50, 70, 1, 1, 16, 16), options={"is_causal": True})
  case.options["causal_alignment"] = "bottom_right"
  arrays = case.arrays(rng)
  result = quick(case.call(name, config=AttentionConfig(*blocks)))(**arrays)
  assert_inside_bound(case, arrays, result, name)


def test_float32_is_never_tf32():
  # 1 + 2^-12 needs 13 significand bits, TF32 has 11; a single key gives its value unchanged
  value = jnp.full((1, 1, 1, 16), 1 + 2.0**-12, jnp.float32)
  for name in ("xla", "interpret"):
    config = TILE if name == "interpret" else None
    call = functools.partial(flash_attention, config=config, implementation=name)
    out = quick(call)(value, value, value)
    np.testing.assert_array_equal(np.asarray(out), np.asarray(value))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("block", [1, 3, 16])
def test_the_seeds_example_of_the_online_softmax(block, dtype):
  config = AttentionConfig(16, block, num_warps=4)
  assert_seeds_example("interpret", dtype, block=block, config=config)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", [name for name in IMPLEMENTATIONS if name != "interpret"])
def test_the_seeds_example_of_the_softmax(name, dtype):
  assert_seeds_example(name, dtype, block=64, config=None)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_what_is_not_seen_never_leaks(name, rng):
  case = Case("specials", (1, 20, 20, 1, 1, 16, 16), options={"is_causal": True})
  arrays = case.arrays(rng)
  for key, where, what in (
    ("key", 7, jnp.nan),
    ("value", 9, jnp.nan),
    ("value", 11, jnp.inf),
    ("value", 13, -jnp.inf),
    ("query", 15, jnp.nan),
  ):
    arrays[key] = arrays[key].at[0, where, 0, 3].set(what)
  run = quick(case.call(name))
  out, residual = (np.asarray(x)[0, :, 0] for x in run(**arrays))
  assert np.isfinite(out[:7]).all()
  assert np.isfinite(residual[:7]).all()
  # a query that sees the NaN of a key is NaN as a whole
  assert np.isnan(out[7:]).all()
  # without the key's NaN each value reaches just the queries that see it
  arrays["key"] = arrays["key"].at[0, 7, 0, 3].set(0.0)
  out = np.asarray(run(**arrays)[0])[0, :, 0]
  expected = np.isfinite(out)
  column = out[:, 3]
  assert np.isfinite(column[:9]).all()
  assert np.isnan(column[9:]).all()
  assert np.isnan(out[15]).all()
  rest = np.delete(expected, 15, axis=0)
  assert np.delete(rest, 3, axis=1).all()


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_infinite_values_keep_their_sign(name):
  v = jnp.zeros((1, 3, 1, 16), jnp.float32).at[0, 1, 0, 0].set(jnp.inf).at[0, 2, 0, 1].set(-jnp.inf)
  zeros = jnp.zeros((1, 3, 1, 16), jnp.float32)
  case = Case("inf", (1, 3, 3, 1, 1, 16, 16), options={"is_causal": True})
  out = np.asarray(quick(case.call(name))(query=zeros, key=zeros, value=v)[0])[0, :, 0]
  np.testing.assert_array_equal(out[:, 0], [0, np.inf, np.inf])
  np.testing.assert_array_equal(out[:, 1], [0, 0, -np.inf])
  np.testing.assert_array_equal(out[:, 2:], np.zeros((3, 14)))


def test_unused_slots_may_hold_anything(rng):
  case = Case("unused", (1, 20, 40, 1, 1, 16, 16), lengths=((20,), (19,)))
  for name in ("xla", "interpret"):
    arrays = case.arrays(rng)
    run = quick(case.call(name))
    clean = run(**arrays)
    for key in ("key", "value"):
      arrays[key] = arrays[key].at[:, 19:].set(jnp.nan)
    chex.assert_trees_all_equal(clean, run(**arrays))


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_large_logits(name, rng):
  # scores of some 10^4: the weights are 0 or 1 almost everywhere
  case = Case("large", (1, 20, 20, 1, 1, 16, 16))
  arrays = case.arrays(rng)
  arrays["query"] = arrays["query"] * 1e4
  result = quick(case.call(name))(**arrays)
  assert np.isfinite(np.asarray(result[0])).all()
  assert_inside_bound(case, arrays, result, name)


def test_the_same_call_gives_the_same_bits(rng):
  case = Case("bits", (1, 40, 40, 1, 1, 16, 16), "bfloat16", options={"is_causal": True})
  arrays = case.arrays(rng)
  run = quick(case.call("interpret"))
  first = run(**arrays)
  for _ in range(3):
    chex.assert_trees_all_equal(first, run(**arrays))


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_a_batch_of_sequences_is_each_sequence_alone(name, rng):
  case = Case("batch", (3, 20, 20, 2, 1, 16, 16), options={"is_causal": True})
  arrays = case.arrays(rng)
  out, residual = quick(case.call(name))(**arrays)
  one = {key: x[1:2] for key, x in arrays.items()}
  alone = quick(case.call(name))(**one)
  if name in ("interpret", "triton"):
    chex.assert_trees_all_equal(alone, (out[1:2], residual[1:2]))
  else:
    # XLA may sum a batch in another order
    single = dataclasses.replace(case, sizes=(1, *case.sizes[1:]))
    assert_inside_bound(single, one, alone, name)
    assert_inside_bound(single, one, (out[1:2], residual[1:2]), name)


INT32 = np.iinfo(np.int32)


@pytest.mark.parametrize("window", [(INT32.max, INT32.max), (2, INT32.max), (2**40, 3)], ids=str)
@pytest.mark.parametrize("alignment", ["top_left", "bottom_right"])
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_a_side_beyond_all_keys_hides_none(name, alignment, window, rng):
  case = Case(
    "wide",
    (2, 20, 37, 1, 1, 16, 16),
    lengths=((20, 9), (30, 37)),
    options={"local_window_size": window, "causal_alignment": alignment},
  )
  arrays = case.arrays(rng)
  assert_inside_bound(case, arrays, quick(case.call(name))(**arrays), name)


@pytest.mark.parametrize("alignment", ["top_left", "bottom_right"])
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_lengths_known_when_run_count_as_none_below_0_and_as_all_beyond(name, alignment, rng):
  options = {"is_causal": True, "causal_alignment": alignment}
  case = Case("ends", (3, 20, 37, 1, 1, 16, 16), options=options)
  arrays, run = case.arrays(rng), quick(case.call(name))
  ends = [jnp.asarray([INT32.min, INT32.max, -1]), jnp.asarray([INT32.max, INT32.min, 38])]
  inside = [jnp.asarray([0, 20, 0]), jnp.asarray([37, 0, 37])]
  found, expected = (
    run(**arrays, query_seq_lengths=queries, key_value_seq_lengths=keys)
    for queries, keys in (ends, inside)
  )
  chex.assert_trees_all_equal(found, expected)


def test_a_length_that_int32_does_not_have_is_all_of_them(rng):
  case = Case("long", (2, 12, 20, 1, 1, 16, 16), options={"is_causal": True})
  case = dataclasses.replace(case, options={**case.options, "causal_alignment": "top_left"})
  arrays = case.arrays(rng)
  run = quick(case.call("xla"))
  beyond = jnp.asarray([2**31 + 5, 2**32 - 1], jnp.uint32)
  chex.assert_trees_all_equal(
    run(**arrays), run(**arrays, query_seq_lengths=beyond, key_value_seq_lengths=beyond)
  )
  with jax.enable_x64(True):
    wide = jnp.asarray([2**32, 2**40 + 3], jnp.int64)
    none = jnp.asarray([-(2**32) + 5, -1], jnp.int64)
    chex.assert_trees_all_equal(run(**arrays), run(**arrays, key_value_seq_lengths=wide))
    out, residual = run(**arrays, key_value_seq_lengths=none)
  chex.assert_trees_all_equal(out, jnp.zeros_like(out))
  assert (np.asarray(residual) == -np.inf).all()
