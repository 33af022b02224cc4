"""Arguments of the wrong kind: a ValueError that names the argument and the value."""

import re

import numpy as np
import pytest

import hw_profiles as hw

PROBLEM = hw.MatmulProblem(m=1024, k=4096, n=12288)
CONFIG = hw.MatmulConfig(128, 128, 64)
BLOCK = {"threads_per_block": 128, "registers_per_thread": 32, "shared_bytes_per_block": 0}
TILE = {"m": 64, "k": 64, "n": 64, "block_m": 16, "block_n": 16, "block_k": 16}
LOADS = {"resident_warps": 8, "loads_per_warp": 4, "latency_ns": 600}


def _projection(**changed):
  sizes = {"m": 64, "k": 64, "n": 64, "block_m": 16, "block_n": 16}
  return hw.quantized_projection_traffic(**{**sizes, "fuse": None, **changed})


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: hw.plan(PROBLEM, CONFIG, "h200", schedule=[]), "schedule=[]: expected"),
    (lambda: hw.plan(PROBLEM, CONFIG, None), "profile=None: expected"),
    (lambda: hw.rank(PROBLEM, "h200", CONFIG), "candidates=MatmulConfig("),
    (lambda: hw.rank(PROBLEM, "h200", 3), "candidates=3: expected"),
    (lambda: hw.rank(PROBLEM, "h200", [3]), "config=3: expected a MatmulConfig"),
    (lambda: hw.matmul_candidates("h200", None), "problem=None: expected a MatmulProblem"),
    (lambda: hw.MatmulProblem(1, 1, 1, bias="no"), "MatmulProblem.bias='no': expected True"),
    (lambda: hw.MatmulProblem(1, 1, 1, shared_b="x"), "MatmulProblem.shared_b='x': expected"),
    (lambda: hw.roofline("h100", flops=1, bytes=1, dtype=[]), "dtype=[]: h100_sxm has no rate"),
    (lambda: hw.roofline(3, flops=1, bytes=1, dtype="int8"), "profile=3: expected"),
    (lambda: hw.residency("910b3", **BLOCK), "gpu='ascend_910b3': expected a GpuProfile"),
    (lambda: hw.residency(None, **BLOCK), "gpu=None: expected a GpuProfile"),
    (lambda: hw.in_flight(hw.get_profile("910b3"), **LOADS), "gpu='ascend_910b3': expected"),
    (lambda: hw.get_profile("h100").source([]), "field=[]: h100_sxm has no such number"),
    (
      lambda: hw.warp_specialized_shared_bytes(None, in_dtype="bfloat16"),
      "config=None: expected a MatmulConfig",
    ),
    (lambda: hw.matmul_traffic(**TILE, in_dtype="bf16"), "in_dtype='bf16': expected one of"),
    (
      lambda: hw.matmul_traffic(**TILE, in_dtype="int8", acc_dtype=4),
      "acc_dtype=4: expected one of",
    ),
    (lambda: hw.MatmulProblem(1, 1, 1, out_dtype=[]), "out_dtype=[]: expected one of"),
    (
      lambda: hw.attention_max_block_q(
        capacity_bytes=1 << 18, head_dim=64, block_kv=64, in_dtype="fp8"
      ),
      "in_dtype='fp8': expected one of",
    ),
    (lambda: _projection(k=None), "k=None: expected an integer"),
    (lambda: _projection(fuse="no"), "fuse='no': expected True, False or None"),
    (lambda: _projection(quantized_dtype="e4m3"), "quantized_dtype='e4m3': expected one of"),
    (
      lambda: hw.register_budget("v100", thread_m=8, thread_n=8, threads_per_block=None),
      "threads_per_block=None: expected an integer",
    ),
    (lambda: hw.bank_conflicts(5, width_bytes=4), "addresses_bytes=5: expected a sequence"),
    (lambda: hw.coalescing("0", width_bytes=4), "addresses_bytes='0': expected a sequence"),
    (
      lambda: hw.transfer(shape=12, dtype="int8", direction="h2d", bandwidth_bytes_per_s=1),
      "shape=12: expected a sequence",
    ),
    (lambda: hw.bucketing(3), "calls=3: expected a sequence"),
    (lambda: hw.bucketing([3]), "calls[0]=3: expected a sequence"),
    (lambda: hw.bucketing([(1, 2)], buckets=4), "buckets=4: expected a sequence"),
    (lambda: hw.critical_path(["a"]), "stages[0]='a': expected a RequestStage"),
    (lambda: hw.schedule_tasks([5]), "tasks[0]=5: expected a Task"),
    (lambda: hw.schedule_tasks([], capacities=5), "capacities=5: expected a mapping"),
    (lambda: hw.Task("a", 1.0, after=5), "Task('a').after=5: expected a sequence"),
    (
      lambda: hw.RequestStage("a", 1.0, demands=5),
      "RequestStage('a').demands=5: expected a mapping",
    ),
    (lambda: hw.Strategy("a", 1.0, 5), "Strategy('a').programs_us=5: expected a mapping"),
    (lambda: hw.paired_statistics(5, [1.0]), "before_us=5: expected a sequence"),
    (lambda: hw.call_mix(times_us=5, calls={}), "times_us=5: expected a mapping"),
    (lambda: hw.call_mix(times_us={"a": 5}, calls={"s": 1}), "times_us['a']=5: expected a mapping"),
    (
      lambda: hw.break_even_share(base_us=[1, 2], new_us=[1]),
      "new_us=[1]: expected two times, one a shape",
    ),
    (lambda: hw.fusion_traffic(5, partition=[1]), "chain=5: expected an OperatorChain"),
    (lambda: hw.select_candidates("h100", 5, dtype="int8"), "candidates=5: expected a sequence"),
    (lambda: hw.check_gemm_parameters("h100", 5), "parameters=5: expected a GemmParameters"),
    (lambda: hw.mma_shape([], dtype="bfloat16"), "family=[]: expected a str"),
    (lambda: hw.tier_ceilings(5, peak_flops_per_s=1.0), "tiers[0]=5: expected a Tier"),
    (lambda: hw.coverage(5, rows=1, columns=1), "outputs=5: expected a sequence"),
    (lambda: hw.register_bank_conflicts(5), "registers=5: expected a sequence"),
    (lambda: hw.program_cache(5), "shapes=5: expected a sequence"),
    (lambda: hw.simulate_streams(5), "program=5: expected a sequence"),
    (lambda: hw.amdahl(fraction=0.5, speedup="2x"), "speedup['part']='2x': expected"),
    (lambda: hw.amdahl(fraction=0.5, speedup=True), "speedup['part']=True: expected"),
    (lambda: hw.paired_statistics([1.0], [1.0], confidence="95%"), "confidence='95%': expected"),
    (
      lambda: hw.payback_runs(extra_preparation_us=1, saved_us_per_run=None),
      "saved_us_per_run=None: expected",
    ),
    (
      lambda: hw.launch_counts(kernels_per_call=6, calls=3, graph_replay="no"),
      "graph_replay='no': expected True or False",
    ),
  ],
)
def test_a_wrong_argument_is_named(call, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    call()


def test_models_take_names_as_plan_does():
  gpu = hw.get_profile("h100")
  amounts = {"flops": 1e12, "bytes": 1e9, "dtype": "bfloat16"}
  assert hw.residency("h100", **BLOCK) == hw.residency(gpu, **BLOCK)
  assert hw.in_flight("H100", **LOADS) == hw.in_flight(gpu, **LOADS)
  assert hw.roofline("h100", **amounts) == hw.roofline(gpu, **amounts)


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (
      lambda: hw.pipeline(copy_us=1, compute_us=1, num_slots=2, num_blocks=10**9),
      "num_blocks=1000000000: every one is simulated, at most 1000000; pipeline_total_us",
    ),
    (
      lambda: hw.host_device_timeline(host_us=1, device_us=1, num_segments=10**9),
      "num_segments=1000000000: every one is simulated",
    ),
    (lambda: hw.k_loop(k=10**9, block_k=8, shared_buffers=2), "k=1000000000: every one"),
  ],
)
def test_a_simulation_refuses_what_it_could_not_finish(call, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    call()


_WHOLE = {
  hw.MatmulProblem: {"m": 8, "k": 16, "n": 24, "batch": 2, "products": 2},
  hw.AttentionProblem: {
    **{"batch": 2, "seq_q": 16, "seq_kv": 32, "heads": 4, "kv_heads": 2},
    **{"head_dim": 64, "value_dim": 32},
  },
  hw.DecodeProblem: {
    **{"batch": 2, "seq_kv": 32, "heads": 4, "kv_heads": 2, "head_dim": 64, "value_dim": 32},
    **{"seq_q": 2, "window": 7, "page_size": 16},
  },
  hw.RmsNormProblem: {"rows": 8, "columns": 64, "num_splits": 2},
  hw.SwigluProblem: {"rows": 8, "columns": 64},
  hw.TransposeProblem: {"rows": 8, "columns": 64, "batch": 3},
  hw.MatmulConfig: {
    **{"block_m": 64, "block_n": 32, "block_k": 16, "num_stages": 3, "group_m": 4, "num_warps": 4},
    **{"num_consumer_warpgroups": 2, "epilogue_block_n": 32, "cluster_m": 2, "cluster_n": 1},
    **{"split_k": 2},
  },
  hw.AttentionConfig: {
    **{"block_q": 64, "block_kv": 64, "num_stages": 2, "num_warps": 4, "block_q_dkv": 64},
  },
  hw.DecodeConfig: {"block_kv": 64, "num_splits": 4, "num_stages": 2, "num_warps": 4},
  hw.RowConfig: {"block_rows": 4, "block_cols": 64, "num_stages": 2, "num_splits": 2},
}


@pytest.mark.parametrize(
  "kind", [np.int8, np.int64, np.uint16, np.asarray], ids=lambda x: x.__name__
)
@pytest.mark.parametrize("owner", _WHOLE, ids=lambda x: x.__name__)
def test_integers_of_numpy_are_pythons(owner, kind):
  """The fields are ints, which do not wrap around: 64·64·64 is not one of int8."""
  fields = _WHOLE[owner]
  made = owner(**{name: kind(value) for name, value in fields.items()})
  assert made == owner(**fields)
  assert hash(made) == hash(owner(**fields))
  assert {name: type(getattr(made, name)) for name in fields} == dict.fromkeys(fields, int)


@pytest.mark.parametrize("wrong", [True, np.True_, 8.0, np.float32(8), np.array([8, 8]), "8"])
@pytest.mark.parametrize("owner", _WHOLE, ids=lambda x: x.__name__)
def test_what_is_no_integer_is_refused_by_name(owner, wrong):
  for name in _WHOLE[owner]:
    with pytest.raises(ValueError, match=rf"{owner.__name__}\.{name}="):
      owner(**_WHOLE[owner] | {name: wrong})


def test_windows_and_lengths_of_numpy_are_ints():
  window = (np.int8(100), None)
  problem = hw.AttentionProblem(
    batch=1, seq_q=8, seq_kv=8, heads=1, window=window, causal_alignment="top_left"
  )
  assert [type(side) for side in problem.window] == [int, type(None)]
  decode = hw.DecodeProblem(batch=2, seq_kv=99, heads=1, lengths=(np.int8(99), np.int64(3)))
  assert [type(length) for length in decode.lengths] == [int, int]
