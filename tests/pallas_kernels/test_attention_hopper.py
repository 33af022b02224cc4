"""The Hopper attention: lowered for CUDA, in the Mosaic GPU interpreter, and on a GPU."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_attention_field_cases as field_cases
from attention_cases import (
  Case,
  assert_inside_bound,
  assert_seeds_example,
  packed_cases,
  with_an_id_that_comes_back,
  with_nan_in_unused_slots,
)

import hw_profiles
from hw_profiles import AttentionProblem
from pallas_kernels import AttentionConfig, compat, device, flash_attention
from pallas_kernels.attention import schedule

H200 = {"device_kind": "NVIDIA H200", "num_cores": 132}
carries_arrays = pytest.mark.skipif(
  not compat.CARRIES_ARRAYS, reason="refused on this JAX version: tested below"
)
TO_THE_END = {"is_causal": True, "causal_alignment": "bottom_right"}


def candidates() -> list[AttentionConfig]:
  """Each number of rows and each of keys that the planner offers, with the most stages."""
  found = {}
  for size in (64, 128):
    problem = AttentionProblem(2, 4096, 4096, 16, 4, head_dim=size, causal=True)
    for one in hw_profiles.attention_candidates("h200_sxm", problem, schedule="warp_specialized"):
      for side in (("q", size, one.block_q), ("kv", size, one.block_kv)):
        found[side] = (size, one)
  return list(dict.fromkeys(found.values()))


def lower(size, config, *, seq_q=500, seq_kv=300, value_size=None, **options):
  shape = [(1, seq_q, 4, size), (1, seq_kv, 2, size), (1, seq_kv, 2, value_size or size)]
  operands = [jax.ShapeDtypeStruct(x, jnp.bfloat16) for x in shape]
  call = functools.partial(
    flash_attention, config=config, implementation="mosaic_gpu", **{**TO_THE_END, **options}
  )
  with device.abstract_gpu(**H200):
    return jax.jit(call).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()


@carries_arrays
@pytest.mark.parametrize(("size", "config"), candidates(), ids=str)
def test_every_candidate_lowers(size, config):
  assert "mosaic_gpu" in lower(size, config, seq_q=512, seq_kv=256)


@carries_arrays
@pytest.mark.parametrize(("size", "config"), candidates()[::3], ids=str)
def test_lengths_that_are_no_whole_tiles_of_rows_lower_without_a_padded_copy(size, config):
  text = lower(size, config, seq_q=500, seq_kv=301)
  assert "mosaic_gpu" in text
  assert "stablehlo.pad" not in text


@carries_arrays
@pytest.mark.parametrize(("size", "value_size"), [(72, 40), (256, 256), (192, 128), (8, 16)])
def test_other_head_sizes_lower_with_the_planned_tile(size, value_size):
  text = lower(
    size,
    None,
    value_size=value_size,
    is_causal=False,
    local_window_size=(100, 30),
    logits_soft_cap=5.0,
  )
  assert "mosaic_gpu" in text


@pytest.mark.skipif(compat.CARRIES_ARRAYS, reason="this JAX version runs it")
def test_a_jax_version_without_carried_arrays_is_refused_by_name():
  with pytest.raises(NotImplementedError, match=r"needs jax 0\.11 or later"):
    lower(64, None)


def test_what_the_kernel_lacks_is_refused_by_name():
  operands = Case("", (1, 64, 64, 1, 1, 64, 64), "bfloat16").arrays(np.random.default_rng(0))
  for options, message in (
    ({"bias": jnp.zeros((64, 64))}, r"bias: not in this kernel"),
    ({"mask": jnp.ones((64, 64), bool)}, r"mask: not in this kernel"),
  ):
    if not compat.CARRIES_ARRAYS:
      message = "jax 0"
    with device.abstract_gpu(**H200), pytest.raises(NotImplementedError, match=message):
      jax.eval_shape(
        lambda options=options: flash_attention(**operands, implementation="mosaic_gpu", **options)
      )


@carries_arrays
@pytest.mark.skipif(jax.default_backend() == "gpu", reason="compiled on this machine")
@pytest.mark.parametrize(
  ("case", "config"),
  [
    # two consumers taking turns, a ragged end, a mask on boundary blocks only
    (Case("causal", (1, 128, 70, 1, 1, 32, 32), "bfloat16", options=TO_THE_END), (128, 32, 2)),
    # one consumer, other head sizes, rows past the end, heads that share keys
    (
      Case(
        "window",
        (1, 72, 64, 2, 1, 32, 48),
        "bfloat16",
        options={"local_window_size": (20, 9), "causal_alignment": "top_left"},
      ),
      (64, 32, 2),
    ),
    # one sequence is empty, another ends inside a block; what they see differs
    (
      Case(
        "lengths",
        (3, 72, 70, 1, 1, 32, 32),
        "bfloat16",
        lengths=((72, 33, 5), (40, 64, 0)),
        options=TO_THE_END,
      ),
      (64, 32, 2),
    ),
    (
      Case(
        "packed",
        (2, 100, 90, 2, 1, 32, 32),
        "bfloat16",
        segments=3,
        lengths=((100, 71), (90, 60)),
      ),
      (64, 32, 2),
    ),
  ],
  ids=["two consumers", "one consumer", "lengths", "packed"],
)
def test_interpreted_without_races_inside_the_bound(case, config, rng, races):
  arrays = case.arrays(rng)
  call = case.call("mosaic_gpu_interpret", config=AttentionConfig(*config))
  result = jax.jit(call)(**arrays)
  assert not races()
  assert_inside_bound(case, arrays, result, "mosaic_gpu_interpret")


@carries_arrays
@pytest.mark.skipif(jax.default_backend() == "gpu", reason="compiled on this machine")
@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_what_a_value_that_a_row_does_not_see_holds_never_reaches_it(special, rng):
  case = Case("special", (1, 70, 70, 1, 1, 32, 32), "bfloat16", options=TO_THE_END)
  arrays = case.arrays(rng)
  run = jax.jit(case.call("mosaic_gpu_interpret", config=AttentionConfig(64, 32, 2)))
  arrays["value"] = arrays["value"].at[:, 40].set(special)
  result = run(**arrays)
  out = np.asarray(result[0], np.float32)
  assert np.isfinite(out[:, :40]).all()
  assert not np.isfinite(out[:, 40:]).any()
  assert_inside_bound(case, arrays, result, "mosaic_gpu_interpret")


@carries_arrays
@pytest.mark.skipif(jax.default_backend() == "gpu", reason="compiled on this machine")
def test_the_seeds_example_of_the_online_softmax():
  config = AttentionConfig(64, 32, 2)
  assert_seeds_example("mosaic_gpu_interpret", "bfloat16", block=32, config=config, size=32)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_seeds_example_of_the_online_softmax_on_a_gpu(dtype):
  config = AttentionConfig(64, 64, 2)
  assert_seeds_example("mosaic_gpu", dtype, block=64, config=config, size=64)


@carries_arrays
@pytest.mark.skipif(jax.default_backend() == "gpu", reason="compiled on this machine")
def test_what_unused_slots_hold_never_reaches_a_result(rng):
  assert_unused_slots_never_reach("mosaic_gpu_interpret", AttentionConfig(64, 32, 2), rng)


def assert_unused_slots_never_reach(implementation, config, rng) -> None:
  """NaN past the used lengths leaves results inside the bound of those without it."""
  case = Case("unused", (2, 70, 72, 1, 1, 32, 32), "bfloat16", lengths=((70, 30), (33, 72)))
  arrays = case.arrays(rng)
  run = jax.jit(case.call(implementation, config=config))
  dirty = with_nan_in_unused_slots(case, arrays)
  assert_inside_bound(case, arrays, run(**dirty), implementation)


@carries_arrays
@pytest.mark.skipif(jax.default_backend() == "gpu", reason="compiled on this machine")
def test_segment_ids_that_come_back_are_right_all_the_same(rng):
  assert_ids_that_come_back_are_right("mosaic_gpu_interpret", AttentionConfig(64, 32, 2), rng)


def assert_ids_that_come_back_are_right(implementation, config, rng) -> None:
  """An id in two runs of one sequence of two."""
  case = Case("back", (2, 70, 70, 1, 1, 32, 32), "bfloat16", segments=3)
  arrays = with_an_id_that_comes_back(case.arrays(rng), 60)
  result = jax.jit(case.call(implementation, config=config))(**arrays)
  assert_inside_bound(case, arrays, result, implementation)


@pytest.mark.parametrize("blocks", [1, 3, 7])
def test_an_agenda_deals_every_program_to_the_block_that_is_free_first(blocks):
  lengths = [5, 5, 4, 4, 3, 1, 1, 1, 1, 1]
  agenda = schedule.agenda(lengths, blocks=blocks)
  dealt = [list(agenda[1 : 1 + agenda[0, block], block]) for block in range(blocks)]
  assert sorted(itertools.chain(*dealt)) == list(range(len(lengths)))
  ends = [sum(lengths[i] for i in programs) for programs in dealt]
  # no block starts a program later than another one was free
  assert max(ends) - min(ends) <= max(lengths)
  assert all(programs == sorted(programs) for programs in dealt)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
  "sizes", [(64, 64), (128, 128), (72, 40), (96, 96), (192, 128), (256, 256)]
)
@pytest.mark.parametrize("lengths", [(256, 256), (300, 333), (1, 500), (513, 129)], ids=str)
@pytest.mark.parametrize(
  "options",
  [
    {},
    TO_THE_END,
    {"is_causal": True, "causal_alignment": "top_left"},
    {"local_window_size": (100, 30), "causal_alignment": "bottom_right", "logits_soft_cap": 5.0},
  ],
  ids=["full", "bottom_right", "top_left", "window"],
)
def test_on_a_gpu(options, lengths, sizes, dtype, rng):
  case = Case("gpu", (2, *lengths, 4, 2, *sizes), dtype, options=options)
  arrays = case.arrays(rng)
  run = jax.jit(case.call("mosaic_gpu"))
  result = run(**arrays)
  assert_inside_bound(case, arrays, result, "mosaic_gpu")
  again = run(**arrays)
  for one, other in zip(result, again, strict=True):
    np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


PACKED = packed_cases(
  {
    "lengths": (None, (1.0, 0.4, 0.0), {}),
    "causal lengths": (None, (1.0, 0.7, 0.1), TO_THE_END),
    "packed": (4, None, {"is_causal": True, "causal_alignment": "top_left"}),
    "packed lengths": (3, (0.9, 1.0, 0.5), {"logits_soft_cap": 5.0}),
    "window": (
      2,
      (1.0, 0.3, 0.8),
      {"local_window_size": (100, 30), "causal_alignment": "top_left"},
    ),
  },
  ((256, 256), (300, 333), (1, 500), (513, 129)),
)


@pytest.mark.gpu
@pytest.mark.parametrize("case", PACKED, ids=str)
def test_lengths_and_segments_on_a_gpu(case, rng):
  arrays = case.arrays(rng)
  run = jax.jit(case.call("mosaic_gpu"))
  result = run(**arrays)
  assert_inside_bound(case, arrays, result, "mosaic_gpu")
  chex.assert_trees_all_equal(run(**arrays), result)


@pytest.mark.gpu
def test_unused_slots_and_ids_that_come_back_on_a_gpu(rng):
  assert_unused_slots_never_reach("mosaic_gpu", None, rng)
  assert_ids_that_come_back_are_right("mosaic_gpu", None, rng)


# those whose calls the Hopper kernel takes, with the arguments that a case has beside the name
FIELD_CASES = {
  "BC-24": (field_cases.test_bc24_the_same_by_lengths_segments_and_windows, ()),
  "BC-26": (field_cases.test_bc26_causal_alignment, ()),
  "BC-27, both sides": (
    field_cases.test_bc27_window_bounds,
    ((1, 2), [7 / 3, 3.75, 7.5, 15, 56 / 3, 24]),
  ),
  "BC-27, itself": (field_cases.test_bc27_window_bounds, ((0, 0), [1, 2, 4, 8, 16, 32])),
  "BC-30, 72": (field_cases.test_bc30_head_sizes, (72,)),
  "BC-30, 192": (field_cases.test_bc30_head_sizes, (192,)),
  "BC-30, 1": (field_cases.test_bc30_head_sizes, (1,)),
  "BC-34": (field_cases.test_bc34_segments, (False, [2, 2, 15, 15, 99])),
  "BC-34, causal": (field_cases.test_bc34_segments, (True, [1, 2, 10, 15, 99])),
  "BC-36": (field_cases.test_bc36_float16_scores_do_not_overflow, ()),
}


@carries_arrays
@pytest.mark.skipif(jax.default_backend() == "gpu", reason="compiled on this machine")
@pytest.mark.parametrize("case", ["BC-26", "BC-27, both sides", "BC-34, causal", "BC-36"])
def test_field_cases(case):
  check, more = FIELD_CASES[case]
  check("mosaic_gpu_interpret", *more)


@pytest.mark.gpu
@pytest.mark.parametrize("case", FIELD_CASES)
def test_field_cases_on_a_gpu(case):
  check, more = FIELD_CASES[case]
  check("mosaic_gpu", *more)
