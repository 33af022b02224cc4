"""decode_attention against float64: splits, pages, windows, several queries."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import IMPLEMENTATIONS, accumulates, quick

import reference
from pallas_kernels import DecodeConfig, decode_attention

CASES = {
  "one part": {"sizes": (2, 40, 4, 2, 16, 16), "lengths": [40, 7]},
  "three queries, window, cap": {
    "sizes": (3, 70, 4, 2, 24, 12),
    "queries": 3,
    "dtype": "bfloat16",
    "lengths": [70, 2, 33],
    "options": {"local_window_size": (9, 0), "logits_soft_cap": 5.0},
    "num_splits": 3,
  },
  "pages of 5": {
    "sizes": (2, 70, 6, 2, 16, 20),
    "page_size": 5,
    "lengths": [70, 0],
    "num_splits": 4,
  },
  "many rows": {
    "sizes": (1, 50, 14, 1, 16, 16),
    "queries": 5,
    "dtype": "float16",
    "lengths": [41],
    "options": {"scale": 0.5},
    "num_splits": 2,
  },
}


def operands(rng, *, sizes, lengths, queries=None, dtype="float32", page_size=None, **_):
  """Query, caches, lengths and page table."""
  batch, capacity, heads, kv_heads, size, value_size = sizes

  def normal(*shape):
    return jnp.asarray(rng.standard_normal(shape), dtype)

  query = normal(batch, *([] if queries is None else [queries]), heads, size)
  lead, table = (batch, capacity), None
  if page_size is not None:
    pages = -(-capacity // page_size)
    lead = (batch * pages + 3, page_size)
    table = jnp.asarray(rng.permutation(lead[0])[: batch * pages].reshape(batch, pages), jnp.int32)
  key, value = normal(*lead, kv_heads, size), normal(*lead, kv_heads, value_size)
  return query, key, value, jnp.asarray(lengths, jnp.int32), table


def runner(name, case, **more):
  """A jitted call."""
  options = {**case.get("options", {}), **more}
  if name != "xla":
    options.setdefault("num_splits", case.get("num_splits"))
  if name == "interpret":
    options["config"] = DecodeConfig(16)

  def run(query, key, value, lengths, table):
    return decode_attention(
      query,
      key,
      value,
      lengths,
      page_table=table,
      return_residual=True,
      implementation=name,
      **options,
    )

  return quick(run)


def assert_inside_bound(name, case, arrays, result):
  """Out and residual are within the derived bound of float64."""
  *dense, table = arrays
  reference.assert_decode_attention_close(
    np.asarray(result[0]),
    *(np.asarray(x) for x in dense),
    page_table=None if table is None else np.asarray(table),
    residual=np.asarray(result[1]),
    out_dtype=dense[0].dtype,
    num_splits=case.get("num_splits", 1),
    accumulate=accumulates(name, dense[0].dtype.name),
    **case.get("options", {}),
  )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_every_option_is_inside_the_bound(name, case, rng):
  query, key, value, lengths, table = operands(rng, **case)
  out, residual = runner(name, case)(query, key, value, lengths, table)
  chex.assert_shape(out, (*query.shape[:-1], value.shape[-1]))
  chex.assert_shape(residual, query.shape[:-1])
  assert_inside_bound(name, case, (query, key, value, lengths, table), (out, residual))


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_unused_slots_and_pages_may_hold_anything(name, rng):
  case = CASES["pages of 5"]
  query, key, value, lengths, table = operands(rng, **case)
  lengths = jnp.asarray([33, 0], jnp.int32)
  run = runner(name, case)
  clean = run(query, key, value, lengths, table)
  used = np.unique(np.asarray(table)[0, :7])
  unused = jnp.asarray(np.setdiff1d(np.arange(key.shape[0]), used))
  last = int(np.asarray(table)[0, 6])
  key, value = (x.at[unused].set(jnp.nan).at[last, 3:].set(jnp.inf) for x in (key, value))
  table = table.at[0, 7:].set(10**6).at[1].set(-1)
  dirty = run(query, key, value, lengths, table)
  chex.assert_trees_all_equal(clean, dirty)


@pytest.mark.parametrize("name", ["interpret", pytest.param("triton", marks=pytest.mark.gpu)])
def test_a_sequence_has_the_bits_that_it_has_alone(name, rng):
  case = CASES["three queries, window, cap"]
  query, key, value, lengths, _ = operands(rng, **case)
  together = runner(name, case)(query, key, value, lengths, None)
  alone = runner(name, case)(query[2:], key[2:], value[2:], lengths[2:], None)
  chex.assert_trees_all_equal(alone, jax.tree.map(lambda x: x[2:], together))


def test_vmap_with_and_without_pages(rng):
  for case in (CASES["one part"], CASES["pages of 5"]):
    query, key, value, lengths, table = operands(rng, **case)
    run = runner("xla", case)
    queries = jnp.stack([query, query + 1])
    shared = jax.vmap(run, in_axes=(0, None, None, None, None))(queries, key, value, lengths, table)
    keys = jnp.stack([key, key * 2])
    mapped = jax.vmap(run, in_axes=(0, 0, None, None, None))(queries, keys, value, lengths, table)
    for i in range(2):
      for found, cache in ((shared, key), (mapped, keys[i])):
        one = (queries[i], cache, value, lengths, table)
        assert_inside_bound("xla", case, one, jax.tree.map(lambda x, i=i: x[i], found))


def test_a_gradient_is_refused_with_what_has_one(rng):
  query, key, value, lengths, _ = operands(rng, **CASES["one part"])
  with pytest.raises(
    NotImplementedError, match=r"has no gradient: flash_attention\(.*bottom_right"
  ):
    jax.grad(lambda q: decode_attention(q, key, value, lengths).sum())(query)


WRONG = {
  "a vector": (lambda q, k, v, n: decode_attention(q[0, 0], k, v, n), r"query has shape \(16,\)"),
  "heads": (lambda q, k, v, n: decode_attention(q[:, :3], k, v, n), r"query has 3 heads"),
  "batch": (lambda q, k, v, n: decode_attention(q, k[:1], v[:1], n), r"query has 2 sequences"),
  "lengths": (
    lambda q, k, v, n: decode_attention(q, k, v, n[:1]),
    r"lengths has shape \(1,\): expected \(2,\)",
  ),
  "float lengths": (
    lambda q, k, v, n: decode_attention(q, k, v, n * 1.0),
    r"lengths is float32: expected integers",
  ),
  "long": (
    lambda q, k, v, n: decode_attention(q, k, v, np.array([41, 3])),
    r"lengths=\[41, 3\]: expected numbers from 0 to 40",
  ),
  "splits": (
    lambda q, k, v, n: decode_attention(q, k, v, n, num_splits=0),
    r"num_splits=0: expected an int of at least 1",
  ),
  "table": (
    lambda q, k, v, n: decode_attention(q, k, v, n, page_table=jnp.zeros((3, 2), int)),
    r"page_table has shape \(3, 2\): expected \(2, 2\)",
  ),
  "config": (
    lambda q, k, v, n: decode_attention(q, k, v, n, config=(16,)),
    r"config is a tuple: expected DecodeConfig",
  ),
}


@pytest.mark.parametrize(("call", "message"), WRONG.values(), ids=WRONG)
def test_wrong_arguments(call, message, rng):
  query, key, value, lengths, _ = operands(rng, **CASES["one part"])
  with pytest.raises(ValueError, match=message):
    call(query, key, value, lengths)


@pytest.mark.parametrize("shape", [(0, 8, 4), (2, 0, 4), (2, 8, 0)], ids=str)
def test_nothing_to_do(shape):
  batch, capacity, heads = shape
  query = jnp.ones((batch, heads, 16))
  cache = jnp.ones((batch, capacity, heads, 16))
  call = functools.partial(decode_attention, return_residual=True, implementation="interpret")
  out, residual = quick(call)(query, cache, cache, jnp.zeros((batch,), jnp.int32))
  np.testing.assert_array_equal(np.asarray(out), np.zeros((batch, heads, 16)))
  np.testing.assert_array_equal(np.asarray(residual), np.full((batch, heads), -np.inf))
