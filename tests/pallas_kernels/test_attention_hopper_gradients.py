"""Hopper gradients of attention: lowered for CUDA, in the Mosaic GPU interpreter, on a GPU."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
  Case,
  assert_gradients_inside_bound,
  packed_cases,
  with_an_id_that_comes_back,
  with_nan_in_unused_slots,
)

import hw_profiles
import pallas_kernels
from hw_profiles import AttentionProblem
from pallas_kernels import AttentionConfig, compat, device, flash_attention
from pallas_kernels.attention import hopper_backward

H200 = {"device_kind": "NVIDIA H200", "num_cores": 132}
carries_arrays = pytest.mark.skipif(
  not compat.CARRIES_ARRAYS, reason="refused on this JAX version: tested below"
)
interpreted = pytest.mark.skipif(jax.default_backend() == "gpu", reason="compiled on this machine")
TO_THE_END = {"is_causal": True, "causal_alignment": "bottom_right"}
WINDOW = {"local_window_size": (100, 30), "causal_alignment": "bottom_right"}
# one consumer: its barriers need fewer threads of the interpreter than two do
ONE_CONSUMER = AttentionConfig(64, 64, 2, block_q_dkv=64, block_kv_dkv=64)
DIFFERENTIATED = ("query", "key", "value")


def candidates() -> list[tuple[int, AttentionConfig]]:
  """Each tile that the planner offers, with the most stages."""
  found = {}
  for size in (64, 128):
    problem = AttentionProblem(2, 4096, 4096, 16, 4, head_dim=size, causal=True, backward=True)
    for one in hw_profiles.attention_candidates("h200_sxm", problem, schedule="warp_specialized"):
      found[size, one.block_q_dkv, one.block_kv_dkv] = (size, one)
  return list(found.values())


def gradients(call, arrays, d_out):
  """Gradients of query, key and value by name."""
  varied = {name: arrays[name] for name in DIFFERENTIATED}
  rest = {name: x for name, x in arrays.items() if name not in varied}
  out, pull = jax.vjp(lambda varied: call(**varied, **rest)[0], varied)
  return pull(d_out.astype(out.dtype))[0]


def random_d_out(case: Case, rng):
  batch, seq_q, _, heads, _, _, value_size = case.sizes
  return jnp.asarray(rng.standard_normal((batch, seq_q, heads, value_size)), case.dtype)


def explained(case: Case, rng, **options) -> str:
  """What `explain` says of the gradients on an H200."""
  with device.abstract_gpu(**H200):
    found = pallas_kernels.explain(
      flash_attention, **case.arrays(rng), **{**case.options, **options}
    )
  return next(note for note in found.notes if "gradients" in note)


@carries_arrays
@pytest.mark.parametrize(("size", "config"), candidates(), ids=str)
def test_every_candidate_lowers(size, config):
  shapes = [(1, 300, 4, size), (1, 333, 2, size), (1, 333, 2, size)]
  operands = [jax.ShapeDtypeStruct(x, jnp.bfloat16) for x in shapes]

  def loss(*operands):
    out = flash_attention(*operands, config=config, implementation="mosaic_gpu", **TO_THE_END)
    return jnp.sum(out.astype(jnp.float32))

  with device.abstract_gpu(**H200):
    lowered = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(*operands)
    text = lowered.lower(lowering_platforms=("cuda",)).as_text()
  # the forward kernel, and the one that makes all three gradients
  assert text.count("mosaic_gpu_v2") == 2
  # blocks of the gradients that are in doubt
  assert "attention_portable_dq" in text
  assert "attention_portable_dkv" in text


@carries_arrays
def test_a_hopper_gpu_runs_the_gradients_in_one_kernel(rng):
  case = Case("planned", (1, 256, 256, 2, 1, 128, 128), "bfloat16", options=TO_THE_END)
  note = explained(case, rng, implementation="mosaic_gpu")
  assert "mosaic_gpu with" in note
  assert "block_kv_dkv=" in note


@pytest.mark.parametrize(
  ("case", "by"),
  [
    (Case("wide heads", (1, 64, 64, 1, 1, 192, 192), "bfloat16"), "triton"),
    (Case("float32", (1, 64, 64, 1, 1, 64, 64), "float32"), "triton"),
    (Case("mask", (1, 64, 64, 1, 1, 64, 64), "bfloat16", mask=(64, 64)), "triton"),
  ],
  ids=str,
)
def test_what_the_kernel_lacks_runs_in_the_portable_ones(case, by, rng):
  assert f"its gradients run: {by}" in explained(case, rng)


@carries_arrays
@interpreted
@pytest.mark.parametrize(
  "case",
  [
    Case("one tile", (1, 70, 64, 1, 1, 64, 64), "bfloat16", options=TO_THE_END),
    Case("one tile of a group", (1, 72, 60, 2, 1, 40, 24), "float16", options=WINDOW),
  ],
  ids=str,
)
def test_interpreted_without_races_inside_the_bound(case, rng, races):
  # only tiles whose sums of dQ meet wait for each other by what the interpreter
  # does not have: counters in global memory
  assert_interpreted_inside_the_bound(case, rng)
  assert not races()


@carries_arrays
@interpreted
@pytest.mark.parametrize(
  "case",
  [
    Case("causal", (1, 130, 140, 2, 1, 64, 64), "bfloat16", options=TO_THE_END),
    Case("rows that see nothing", (1, 200, 70, 1, 1, 32, 32), "bfloat16", options=TO_THE_END),
    Case(
      "window, soft cap",
      (1, 100, 150, 1, 1, 64, 128),
      "float16",
      options={**WINDOW, "local_window_size": (60, 9), "logits_soft_cap": 2.0},
    ),
    Case(
      "lengths",
      (3, 140, 130, 1, 1, 32, 32),
      "bfloat16",
      lengths=((140, 60, 7), (70, 130, 0)),
      options=TO_THE_END,
    ),
    Case("packed", (1, 140, 150, 2, 1, 32, 32), "bfloat16", segments=3, lengths=((130,), (141,))),
  ],
  ids=str,
)
def test_interpreted_through_several_tiles_inside_the_bound(case, rng):
  assert_interpreted_inside_the_bound(case, rng)


@carries_arrays
@interpreted
def test_late_queries_come_first_where_not_all_tiles_run_at_once(rng, monkeypatch):
  monkeypatch.setattr(hopper_backward, "FEW_TILES", 0)
  case = Case("causal", (1, 130, 140, 2, 1, 64, 64), "bfloat16", options=TO_THE_END)
  assert_interpreted_inside_the_bound(case, rng)


@carries_arrays
@interpreted
def test_segment_ids_that_come_back_have_right_gradients(rng):
  assert_ids_that_come_back_are_right("mosaic_gpu_interpret", ONE_CONSUMER, rng)


def assert_ids_that_come_back_are_right(implementation, config, rng) -> None:
  """An id in two runs of one sequence of two."""
  case = Case("back", (2, 130, 130, 1, 1, 32, 32), "bfloat16", segments=3)
  arrays = with_an_id_that_comes_back(case.arrays(rng), 100)
  d_out = random_d_out(case, rng)
  call = case.call(implementation, config=config)
  actual = jax.jit(lambda *x: gradients(call, *x))(arrays, d_out)
  assert_gradients_inside_bound(case, arrays, d_out, actual, implementation)


@carries_arrays
@interpreted
def test_what_unused_slots_hold_never_reaches_a_gradient(rng):
  assert_unused_slots_never_reach("mosaic_gpu_interpret", ONE_CONSUMER, rng)


def assert_unused_slots_never_reach(implementation, config, rng) -> None:
  """NaN past the used lengths leaves gradients inside the bound, and those there 0."""
  case = Case("unused", (2, 130, 132, 1, 1, 32, 32), "bfloat16", lengths=((130, 60), (70, 132)))
  arrays, d_out = case.arrays(rng), random_d_out(case, rng)
  call = case.call(implementation, config=config)
  run = jax.jit(lambda *x: gradients(call, *x))
  found = run(with_nan_in_unused_slots(case, arrays), d_out)
  assert_gradients_inside_bound(case, arrays, d_out, found, implementation)
  for name, used in zip(DIFFERENTIATED, (0, 1, 1), strict=True):
    for batch, length in enumerate(case.lengths[used]):
      assert not np.asarray(found[name][batch, length:], np.float32).any()


def assert_interpreted_inside_the_bound(case: Case, rng) -> None:
  arrays, d_out = case.arrays(rng), random_d_out(case, rng)
  call = case.call("mosaic_gpu_interpret", config=ONE_CONSUMER)
  actual = jax.jit(lambda *x: gradients(call, *x))(arrays, d_out)
  assert_gradients_inside_bound(case, arrays, d_out, actual, "mosaic_gpu_interpret")


@carries_arrays
@interpreted
@pytest.mark.parametrize(("name", "special"), [("key", np.nan), ("value", np.inf)])
def test_what_a_key_that_a_row_does_not_see_holds_never_reaches_its_gradient(name, special, rng):
  assert_no_leak(
    "mosaic_gpu_interpret", ONE_CONSUMER, (1, 70, 70, 1, 1, 64, 64), name, special, rng
  )


def assert_no_leak(implementation, config, sizes, name, special, rng) -> None:
  """Gradients of queries that do not see a key are finite and right whatever it holds."""
  case = Case("special", sizes, "bfloat16", options=TO_THE_END)
  arrays, d_out = case.arrays(rng), random_d_out(case, rng)
  call = case.call(implementation, config=config)
  run = jax.jit(lambda *x: gradients(call, *x))
  position = sizes[2] - 30
  arrays[name] = arrays[name].at[:, position].set(special)
  # the last query is at the last key. Rows that see it are no numbers, and have no part in the loss
  first_row = position - (sizes[2] - sizes[1])
  d_out = d_out.at[:, first_row:].set(0)
  found = run(arrays, d_out)["query"]
  assert np.isfinite(np.asarray(found[:, :first_row], np.float32)).all()
  # what the rows that do not see it have to be is the same whatever it holds
  arrays[name] = arrays[name].at[:, position].set(0)
  found = found.at[:, first_row:].set(0)
  assert_gradients_inside_bound(case, arrays, d_out, {"query": found}, implementation)


@pytest.mark.skipif(compat.CARRIES_ARRAYS, reason="this JAX version runs it")
def test_a_jax_version_without_carried_arrays_leaves_them_to_the_portable_kernels(rng):
  case = Case("old", (1, 64, 64, 1, 1, 64, 64), "bfloat16")
  assert "its gradients run: triton" in explained(case, rng)


GPU_CASES = [
  Case(f"{mask} {lengths} {sizes}", (2, *lengths, *heads, *sizes), dtype, options=options)
  for mask, options in (
    ("full", {}),
    ("end", TO_THE_END),
    ("top", {"is_causal": True, "causal_alignment": "top_left"}),
    ("window", {**WINDOW, "logits_soft_cap": 5.0}),
  )
  for lengths in ((256, 256), (300, 333), (1, 500), (513, 129))
  for sizes, heads, dtype in (
    ((64, 64), (4, 2), "bfloat16"),
    ((128, 128), (4, 1), "bfloat16"),
    ((128, 128), (2, 2), "float16"),
    ((72, 40), (4, 2), "bfloat16"),
  )
]


@pytest.mark.gpu
@pytest.mark.parametrize("case", GPU_CASES, ids=lambda case: f"{case}-{case.dtype}")
def test_on_a_gpu(case, rng):
  assert_right_with_the_same_bits(case, rng)


def assert_right_with_the_same_bits(case: Case, rng) -> None:
  arrays, d_out = case.arrays(rng), random_d_out(case, rng)
  call = case.call("mosaic_gpu")
  run = jax.jit(lambda *x: gradients(call, *x))
  actual = run(arrays, d_out)
  assert_gradients_inside_bound(case, arrays, d_out, actual, "mosaic_gpu")
  for _ in range(3):
    chex.assert_trees_all_equal(actual, run(arrays, d_out))


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "special"), [("key", np.nan), ("key", np.inf), ("value", np.nan)])
def test_no_leak_on_a_gpu(name, special, rng):
  assert_no_leak("mosaic_gpu", None, (2, 300, 333, 4, 2, 128, 128), name, special, rng)


PACKED = packed_cases(
  {
    "lengths": (None, (1.0, 0.4, 0.0), {}),
    "causal lengths": (None, (1.0, 0.7, 0.1), TO_THE_END),
    "packed": (4, None, {"is_causal": True, "causal_alignment": "top_left"}),
    "packed lengths": (3, (0.9, 1.0, 0.5), {**WINDOW, "logits_soft_cap": 5.0}),
  },
  ((256, 256), (300, 333), (513, 129)),
)


@pytest.mark.gpu
@pytest.mark.parametrize("case", PACKED, ids=str)
def test_lengths_and_segments_on_a_gpu(case, rng):
  assert_right_with_the_same_bits(case, rng)


@pytest.mark.gpu
def test_unused_slots_and_ids_that_come_back_on_a_gpu(rng):
  assert_unused_slots_never_reach("mosaic_gpu", None, rng)
  assert_ids_that_come_back_are_right("mosaic_gpu", None, rng)


# BC-41, and one with more tiles than SMs, which wait for one another's sums of dQ
@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(2, 1024, 1024, 4, 4, 64, 64), (1, 4096, 4096, 16, 4, 128, 128)])
def test_thirty_runs_have_the_same_bits_on_a_gpu(sizes, rng):
  case = Case("bits", sizes, "bfloat16", options={"is_causal": True})
  arrays, d_out = case.arrays(rng), random_d_out(case, rng)
  call = case.call("mosaic_gpu")

  run = jax.jit(lambda *x: gradients(call, *x))
  first = run(arrays, d_out)
  for _ in range(29):
    chex.assert_trees_all_equal(first, run(arrays, d_out))
