"""The table of what each implementation computes: against the dispatch, and against the docs."""

import itertools
import pathlib

import jax
import jax.numpy as jnp
import pytest

import pallas_kernels
from pallas_kernels import compat, decode_attention, device, flash_attention
from pallas_kernels.attention import decode_implementations, support

T, S, HEADS = 40, 48, 2
OPTIONAL = {
  "bias": {"bias": ((1, HEADS, T, S), jnp.float32)},
  "mask": {"mask": ((1, 1, T, S), jnp.bool_)},
  "sequence lengths": {
    "query_seq_lengths": ((1,), jnp.int32),
    "key_value_seq_lengths": ((1,), jnp.int32),
  },
  "segment ids": {
    "query_segment_ids": ((1, T), jnp.int32),
    "key_value_segment_ids": ((1, S), jnp.int32),
  },
}
CASES = [
  *itertools.product([None], ("float32", "bfloat16", "float16"), (64, 128, 136, 256, 264)),
  *itertools.product(support.OPTIONAL_OPERANDS, ("bfloat16",), (64,)),
]


def operands(option: str | None, dtype: str, size: int) -> dict[str, jax.ShapeDtypeStruct]:
  shapes = {
    "query": ((1, T, HEADS, size), dtype),
    "key": ((1, S, HEADS, size), dtype),
    "value": ((1, S, HEADS, size), dtype),
    **(OPTIONAL[option] if option else {}),
  }
  return {name: jax.ShapeDtypeStruct(*x) for name, x in shapes.items()}


def has(one: support.Support, option: str | None, dtype: str, size: int) -> bool:
  fits = one.largest_head_dim is None or size <= one.largest_head_dim
  return (option is None or option in one.optional) and dtype in one.dtypes and fits


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", ["mosaic_gpu", "triton", "xla"])
def test_the_dispatch_runs_and_refuses_what_the_table_says(name, case):
  if name == "mosaic_gpu" and not compat.CARRIES_ARRAYS:
    pytest.skip("jax 0.10 has no Hopper attention")
  arrays = operands(*case)
  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    if not has(support.FORWARD[name], *case):
      with pytest.raises(NotImplementedError, match=name):
        pallas_kernels.explain(flash_attention, **arrays, implementation=name)
      return
    found = pallas_kernels.explain(flash_attention, **arrays, implementation=name)
  gradients = next(note for note in found.notes if "gradients run" in note)
  backward = support.BACKWARD[name]
  ran = name if has(backward, *case) else backward.otherwise
  assert f"its gradients run: {ran}" in gradients


def test_the_documentation_shows_the_table():
  text = (pathlib.Path(__file__).parents[2] / "docs" / "attention.md").read_text(encoding="utf-8")
  assert support.markdown() in text
  assert support.decode_markdown() in text


DECODE_CALLS = [
  *itertools.product(("float32", "bfloat16", "float64"), (64,), (1,), (None,), (None,)),
  *itertools.product(("bfloat16",), (64, 72), (1, 2), (None, 16), (None, 2, 3)),
]


@pytest.mark.parametrize("name", ["mosaic_gpu", "triton", "xla"])
def test_decoding_runs_and_is_refused_as_the_table_says(name):
  one = support.DECODE[name]
  if name == "mosaic_gpu" and not compat.CARRIES_ARRAYS:
    pytest.skip("jax 0.10 has no Hopper attention")
  for dtype, size, queries, page_size, parts in DECODE_CALLS:
    with jax.enable_x64(dtype == "float64"):
      lead = (3, 64) if page_size is None else (9, page_size)
      cache = jax.ShapeDtypeStruct((*lead, HEADS, size), dtype)
      query = jax.ShapeDtypeStruct((3, queries, 4, size), dtype)
      lengths = jax.ShapeDtypeStruct((3,), jnp.int32)
      table = None if page_size is None else jax.ShapeDtypeStruct((3, 4), jnp.int32)

      def explain(query=query, cache=cache, lengths=lengths, table=table, parts=parts):
        return pallas_kernels.explain(
          decode_attention,
          query,
          cache,
          cache,
          lengths,
          page_table=table,
          num_splits=parts,
          implementation=name,
        )

      has = (
        dtype in one.dtypes
        and (one.head_dims is None or size in one.head_dims)
        and (queries == 1 or one.queries)
        and (page_size is None or one.pages)
        and (parts is None or one.parts is None or parts in one.parts)
      )
      with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
        if has:
          assert explain().implementation == name
        else:
          with pytest.raises(NotImplementedError, match=name):
            explain()


def test_the_first_in_the_table_is_chosen():
  assert [one.name for one in decode_implementations.TABLE] == list(support.DECODE)
