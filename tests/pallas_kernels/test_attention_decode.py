"""decode_attention against float64: splits, pages, windows, several queries."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import IMPLEMENTATIONS, accumulates, quick

import reference
from pallas_kernels import DecodeConfig, compat, decode_attention, device, explain

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
  # the merge loads 64 parts at once; of 40 columns 32 and 8
  "more parts than one load of the merge": {
    "sizes": (2, 1100, 2, 1, 16, 40),
    "dtype": "bfloat16",
    "lengths": [1090, 0],
    "num_splits": 67,
  },
}


def operands(rng, *, sizes, lengths, queries=None, dtype="float32", page_size=None, **_):
  """Query, caches, lengths and page table."""
  batch, capacity, heads, kv_heads, size, value_size = sizes

  def normal(*shape):
    # rounded by NumPy, to the same bits: nothing is compiled for it
    return jnp.asarray(rng.standard_normal(shape).astype(np.float32).astype(jnp.dtype(dtype)))

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


@pytest.mark.parametrize(
  "dtype", [jnp.int32, jnp.uint32, jnp.int8], ids=lambda x: jnp.dtype(x).name
)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_lengths_known_when_run_count_as_none_below_0_and_as_all_beyond(name, dtype, rng):
  case = CASES["one part"]
  query, key, value, lengths, table = operands(rng, **case)
  largest = jnp.iinfo(dtype).max
  ends = jnp.asarray(
    [largest if i % 2 else jnp.iinfo(dtype).min for i in range(len(lengths))], dtype
  )
  inside = jnp.asarray([min(largest, key.shape[1]) if i % 2 else 0 for i in range(len(lengths))])
  run = runner(name, case)
  chex.assert_trees_all_equal(
    run(query, key, value, ends, table), run(query, key, value, inside.astype(jnp.int32), table)
  )


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_a_window_beyond_int32_hides_no_key(name, rng):
  case = CASES["one part"]
  arrays = operands(rng, **case)
  without = {**case.get("options", {}), "local_window_size": None}
  plain = {**case, "options": without}
  wide = {**case, "options": {**without, "local_window_size": 2**31}}
  chex.assert_trees_all_equal(runner(name, wide)(*arrays), runner(name, plain)(*arrays))


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


@pytest.mark.skipif(not compat.CARRIES_ARRAYS, reason="refused on this JAX version")
@pytest.mark.parametrize(
  ("sizes", "options"),
  [
    ((1, 8192, 32, 8, 128, 128), {}),
    ((3, 64, 6, 2, 64, 256), {"num_splits": 4, "local_window_size": 20, "logits_soft_cap": 5.0}),
    ((2, 128, 8, 8, 256, 64), {"config": DecodeConfig(64, num_splits=2, num_stages=1)}),
  ],
  ids=str,
)
def test_the_hopper_kernel_lowers(sizes, options):
  batch, capacity, heads, kv_heads, size, value_size = sizes
  struct = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
  arrays = (
    struct((batch, heads, size)),
    struct((batch, capacity, kv_heads, size)),
    struct((batch, capacity, kv_heads, value_size)),
    jax.ShapeDtypeStruct((batch,), jnp.int32),
  )
  call = functools.partial(decode_attention, implementation="mosaic_gpu", **options)
  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    text = jax.jit(call).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
  assert text.count("custom_call @mosaic_gpu") == 1
  assert "triton" not in text


@pytest.mark.skipif(not compat.CARRIES_ARRAYS, reason="refused on this JAX version")
@pytest.mark.parametrize(
  ("change", "reason"),
  [
    ({"size": 96}, "head_dim=96: the kernel takes 64, 128 and 256"),
    ({"queries": 2}, "seq_q=2: the kernel takes one query a sequence"),
    ({"capacity": 57}, "a capacity of 57 keys: TMA copies take multiples of 8"),
    ({"dtype": "float32"}, "float32 operands: the kernel multiplies 16-bit dtypes"),
    ({"num_splits": 3}, "num_splits=3: a cluster has 1, 2, 4, 8, 16 blocks"),
    ({"table": True}, "page_table: the kernel reads caches whose keys lie one after another"),
  ],
  ids=str,
)
def test_what_the_hopper_kernel_lacks_is_refused_by_name(change, reason):
  size, queries, capacity = change.get("size", 128), change.get("queries", 1), 64
  dtype = change.get("dtype", "bfloat16")
  cache = jax.ShapeDtypeStruct((2, change.get("capacity", capacity), 2, size), dtype)
  table = jnp.zeros((2, 4), jnp.int32) if "table" in change else None
  query = jax.ShapeDtypeStruct((2, queries, 4, size), dtype)
  options = {"page_table": table, "num_splits": change.get("num_splits")}
  lengths = jnp.ones((2,), jnp.int32)
  with (
    device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132),
    pytest.raises(NotImplementedError, match=re.escape(reason)),
  ):
    explain(decode_attention, query, cache, cache, lengths, implementation="mosaic_gpu", **options)


@pytest.mark.skipif(not compat.CARRIES_ARRAYS, reason="refused on this JAX version")
def test_the_hopper_kernel_runs_only_when_asked_for_by_name():
  cache = jax.ShapeDtypeStruct((2, 64, 2, 128), jnp.bfloat16)
  query, lengths = jax.ShapeDtypeStruct((2, 4, 128), jnp.bfloat16), jnp.ones((2,), jnp.int32)
  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    found = explain(decode_attention, query, cache, cache, lengths)
  assert found.implementation == "triton"
  assert found.refused["mosaic_gpu"] == "runs only when asked for by name"


@pytest.mark.gpu
@pytest.mark.skipif(not compat.CARRIES_ARRAYS, reason="refused on this JAX version")
@pytest.mark.parametrize("parts", [1, 2, 8])
@pytest.mark.parametrize(
  "options", [{}, {"local_window_size": 40, "logits_soft_cap": 5.0}], ids=str
)
def test_the_hopper_kernel_is_inside_the_bound(parts, options, rng):
  """Of full, odd, single and empty sequences; what is in unused slots does not matter."""
  case = {
    "sizes": (4, 256, 6, 2, 128, 64),
    "lengths": [256, 77, 1, 0],
    "dtype": "bfloat16",
    "options": options,
    "num_splits": parts,
  }
  query, key, value, lengths, _ = operands(rng, **case)
  run = runner("mosaic_gpu", case)
  clean = run(query, key, value, lengths, None)
  assert_inside_bound("mosaic_gpu", case, (query, key, value, lengths, None), clean)
  unused = jnp.arange(256)[None, :, None, None] >= lengths[:, None, None, None]
  key, value = (jnp.where(unused, jnp.nan, x).astype(x.dtype) for x in (key, value))
  chex.assert_trees_all_equal(run(query, key, value, lengths, None), clean)


@pytest.mark.parametrize("parts", [7, 40])
def test_any_number_of_parts_is_merged(parts, rng):
  """As are more than there are blocks of keys: some hold none."""
  case = {"sizes": (1, 250, 2, 1, 16, 16), "lengths": [231], "num_splits": parts}
  arrays = operands(rng, **case)
  assert_inside_bound("interpret", case, arrays, runner("interpret", case)(*arrays))


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
  "splits twice": (
    lambda q, k, v, n: decode_attention(
      q, k, v, n, num_splits=2, config=DecodeConfig(16, num_splits=4)
    ),
    r"num_splits=2 and DecodeConfig\.num_splits=4: expected one of them, or the same",
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


# lengths 9 and 0 of pages of 4: three pages of the first sequence are needed, none of the second
@pytest.mark.parametrize("page", [-1, 6])
@pytest.mark.parametrize("as_given", [np.asarray, np.ndarray.tolist], ids=["numpy", "list"])
def test_a_page_beyond_the_cache_is_refused_where_it_is_needed(as_given, page, rng):
  cache = jnp.asarray(rng.standard_normal((6, 4, 2, 16)), jnp.float32)
  query = jnp.asarray(rng.standard_normal((2, 2, 16)), jnp.float32)
  lengths, table = np.array([9, 0]), np.array([[1, 5, 3, page], [page] * 4])
  whole = decode_attention(query, cache, cache, as_given(lengths), page_table=as_given(table))
  assert np.isfinite(np.asarray(whole)).all()
  table[0, 1] = page
  message = rf"page_table\[0, 1\]={page}: expected a page of key_cache, which has 6; .* its 9 keys"
  with pytest.raises(ValueError, match=message):
    decode_attention(query, cache, cache, as_given(lengths), page_table=as_given(table))
  # keys from 7 on are seen by a window of one before the query: page 1 of four still is
  with pytest.raises(ValueError, match=message):
    decode_attention(query, cache, cache, lengths, page_table=as_given(table), local_window_size=1)
  # key 8 alone, of the third page: its weight is 1 exactly
  found = decode_attention(
    query, cache, cache, lengths, page_table=as_given(table), local_window_size=0
  )
  np.testing.assert_array_equal(np.asarray(found[0]), np.asarray(cache[3, 0]))


@pytest.mark.parametrize("page_size", [None, 4])
@pytest.mark.parametrize("shape", [(0, 8, 4, 16), (2, 0, 4, 16), (2, 8, 0, 16)], ids=str)
def test_nothing_to_do(shape, page_size, rng):
  batch, capacity, heads, size = shape
  case = {"sizes": (batch, capacity, heads, heads, size, size), "lengths": [0] * batch}
  query, key, value, lengths, table = operands(rng, page_size=page_size, **case)
  out, residual = runner("interpret", case)(query, key, value, lengths, table)
  np.testing.assert_array_equal(np.asarray(out), np.zeros((batch, heads, size)))
  np.testing.assert_array_equal(np.asarray(residual), np.full((batch, heads), -np.inf))


@pytest.mark.parametrize("page_size", [None, 4])
def test_keys_of_no_features_weigh_the_same(page_size, rng):
  case = {"sizes": (1, 8, 2, 1, 0, 16), "lengths": [6]}
  arrays = operands(rng, page_size=page_size, **case)
  assert_inside_bound("xla", case, arrays, runner("xla", case)(*arrays))
