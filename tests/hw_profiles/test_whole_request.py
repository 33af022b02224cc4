"""A whole request: its stages, their sum, the host beside them, and what a change is worth."""

import itertools
import math
import random

import pytest

import hw_profiles as hw
from hw_profiles.examples.worked_value import worked_values
from hw_profiles.whole_request.stages import step

DEVICE = "rtx_pro_6000"  # of which rankings are quick

# the course texts' case: layers, widths and tokens are theirs
CASE = hw.ModelSizes(layers=36, hidden=4096, ffn=12288, heads=32, kv_heads=8)
CASE_REQUEST = hw.RequestSizes(prompt=7239, output=32)
SMALL = hw.ModelSizes(layers=3, hidden=256, ffn=512, heads=4, kv_heads=2, vocab=1000)
SHORT = hw.RequestSizes(prompt=100, output=5, batch=2)


def value(name):
  return worked_values()[name].expected


@pytest.fixture(scope="module")
def case():
  """The case on its device, products separate as there."""
  return hw.plan_request(CASE, CASE_REQUEST, DEVICE, fused=False)


@pytest.fixture(scope="module")
def small():
  """Separate and fused."""
  return tuple(hw.plan_request(SMALL, SHORT, DEVICE, fused=fused) for fused in (False, True))


def stage(plan, phase, name):
  (found,) = (x for x in plan.stages if (x.phase, x.stage.name) == (phase, name))
  return found


# --- the texts' values


def test_the_case_has_the_texts_calls_of_the_activation(case):
  calls = {phase: stage(case, phase, "swiglu").calls for phase in ("prefill", "decode")}
  assert calls["prefill"] == value("s004.case.prefill_calls") == 36
  assert calls["decode"] == value("s004.case.decode_calls") == 1116
  assert sum(calls.values()) == value("s004.case.calls") == 1152
  prefill = stage(case, "prefill", "swiglu")
  assert prefill.calls * prefill.stage.problem.rows == value("s004.case.prefill_rows") == 260604
  counted = hw.generation_calls(layers=36, prompt_tokens=7239, output_tokens=32)
  assert (counted.calls, counted.decode_steps) == (1152, CASE_REQUEST.decode_steps)


def test_no_schedule_beats_memory_in_the_activation_of_the_prompt(case):
  """The text's own kernel moves 96 % of the peak; the model must not promise more than all."""
  prefill = stage(case, "prefill", "swiglu")
  moved = 3 * hw.array_bytes((7239, 12288), "bfloat16")
  calls = hw.CallClass("prefill", prefill.calls, before_us=prefill.call_us, after_us=0)
  peak = hw.get_profile(DEVICE).dram_bandwidth_bytes_per_s
  assert 0.8 * peak < calls.bytes_per_s(moved) < peak


def test_amdahl_of_the_case_with_the_texts_share(case):
  """A stage's gain is the law at its share of the request, as the text's hotspot is."""
  prefill = stage(case, "prefill", "swiglu")
  gain = hw.stage_gain(case, prefill)
  share = prefill.total_us / case.total_us(graph=False)
  assert gain.law == hw.amdahl(fraction=share, speedup=2.0)
  assert hw.amdahl(fraction=0.2, speedup=2).speedup == pytest.approx(value("s004.amdahl.half"))
  # every kernel of the prompt keeps the device busy: all that a stage saves, the request saves
  assert gain.request_saved_us == pytest.approx(gain.own_saved_us, rel=1e-6)


def test_submissions_and_kernels_are_counted_apart_as_in_the_four_ways(small):
  for plan in small:
    steps = SHORT.decode_steps
    per_step = plan.decode.kernels
    for graph in (False, True):
      decode = hw.launch_counts(kernels_per_call=per_step, calls=steps, graph_replay=graph)
      assert plan.submissions(graph=graph) == plan.prefill.kernels + decode.submissions
      assert plan.kernels == plan.prefill.kernels + decode.kernels
  separate, fused = small
  # of a layer: three products become one, and two with their activation another
  assert separate.prefill.kernels - fused.prefill.kernels == 4 * SMALL.layers
  assert fused.prefill.kernels == 7 * SMALL.layers + 3 - 1


# --- stages


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("fused", [True, False])
def test_every_matrix_is_multiplied_once_a_layer(phase, fused):
  found = step(SMALL, SHORT, phase, fused=fused, cached=101)
  matmuls = [x for x in found.stages if isinstance(x.problem, hw.MatmulProblem)]
  elements = sum(x.calls * x.problem.products * x.problem.k * x.problem.n for x in matmuls)
  assert elements == SMALL.projection_weights
  rows = {x.problem.m for x in matmuls if x.name != "logits"}
  assert rows == {200 if phase == "prefill" else 2}
  (logits,) = (x.problem for x in matmuls if x.name == "logits")
  assert (logits.m, logits.k, logits.n) == (2, 256, 1000)
  assert sum(x.calls for x in found.stages if x.part == "norm") == 2 * SMALL.layers + 1


def test_kernels_run_in_the_order_of_a_layer():
  order = step(SMALL, SHORT, "decode", cached=101).order
  layer = ("qkv", "attention", "output", "norm", "gate_up", "down")
  assert order[:9] == ("first_norm", *layer, "norm", "qkv")
  assert order[-3:] == ("down", "last_norm", "logits")
  assert order.count("attention") == SMALL.layers


def test_decode_attention_sees_the_prompt_and_its_own_tokens(small):
  _, fused = small
  attention = stage(fused, "decode", "attention")
  assert attention.stage.problem.seq_kv == 101
  # the first token comes from the prompt's pass: four steps, the last beside 103 others
  assert attention.last_plan.problem.seq_kv == 104
  first, last = attention.plan.predicted_us, attention.last_plan.predicted_us
  assert attention.call_us == (first + last) / 2


def test_the_mean_of_first_and_last_step_is_near_all_steps():
  """Decode attention at every length between: within 2 % of the two ends' mean."""
  request = hw.RequestSizes(prompt=2000, output=2002)
  plan = hw.plan_request(CASE, request, DEVICE)
  problem = stage(plan, "decode", "attention").stage.problem
  times = [
    hw.rank(hw.DecodeProblem(**{**_fields(problem), "seq_kv": keys}), DEVICE, top=1)[0].predicted_us
    for keys in range(2001, 4002, 500)
  ]
  middle = sum(times) / len(times)
  assert stage(plan, "decode", "attention").call_us == pytest.approx(middle, rel=0.02)


def _fields(problem):
  return {"batch": problem.batch, "heads": problem.heads, "kv_heads": problem.kv_heads}


def test_one_token_has_no_decode_step():
  plan = hw.plan_request(SMALL, hw.RequestSizes(prompt=100, output=1), DEVICE)
  assert {x.phase for x in plan.stages} == {"prefill"}
  assert (plan.decode, plan.replay, plan.token_us(graph=False)) == (None, None, None)
  assert plan.total_us(graph=True) == plan.total_us(graph=False) == plan.first_token_us


# --- times


def test_every_time_is_the_planners(small):
  for plan in small:
    for planned in plan.stages[-4:]:
      best = hw.rank(planned.stage.problem, DEVICE, top=1)[0]
      assert (planned.plan.config, planned.plan.predicted_us) == (best.config, best.predicted_us)
    assert math.isclose(sum(plan.share(x) for x in plan.stages), 1)
    device = plan.prefill.device_us + SHORT.decode_steps * plan.decode.device_us
    assert plan.device_us == pytest.approx(device)


def test_a_request_is_its_first_token_and_the_further_ones(small):
  for plan, graph in itertools.product(small, (False, True)):
    expected = plan.first_token_us + 4 * plan.token_us(graph=graph)
    assert plan.total_us(graph=graph) == pytest.approx(expected)
  assert small[1].token_us(graph=True) == small[1].replay.graph_us


@pytest.mark.parametrize(("kernel_us", "launch_us"), [(20, 20), (5, 20), (20, 5), (7, 0)])
def test_launches_of_equal_kernels_are_the_host_device_timeline(kernel_us, launch_us):
  launched = hw.launched_step([kernel_us] * 100, launch_us=launch_us)
  known = hw.host_device_timeline(host_us=launch_us, device_us=kernel_us, num_segments=100)
  assert launched.ready_us == pytest.approx(known.ready_us)
  assert (launched.host_us, launched.device_us) == (100 * launch_us, 100 * kernel_us)


def test_the_texts_hundred_segments():
  """20 us each way: 2020 us; a device of 5 us: 2005; both 5: 505."""
  times = [
    hw.launched_step([d] * 100, launch_us=h).ready_us for h, d in ((20, 20), (20, 5), (5, 5))
  ]
  assert times == pytest.approx([2020, 2005, 505])


def test_launches_are_the_event_simulations():
  """A host that submits one after another, a device that waits for each submission."""
  generator = random.Random(5)
  for launch_us in (0.0, 3.0, 8.0):
    kernels_us = [generator.uniform(0, 12) for _ in range(40)]
    tasks = [hw.Task("submit[-1]", 0.0), hw.Task("kernel[-1]", 0.0)]
    for i, kernel_us in enumerate(kernels_us):
      tasks.append(hw.Task(f"submit[{i}]", launch_us, "host", (f"submit[{i - 1}]",)))
      after = (f"submit[{i}]", f"kernel[{i - 1}]")
      tasks.append(hw.Task(f"kernel[{i}]", kernel_us, "device", after))
    launched = hw.launched_step(kernels_us, launch_us=launch_us)
    assert launched.ready_us == pytest.approx(hw.schedule_tasks(tasks).total_us)


def test_launches_are_the_longest_chain():
  kernels, launch_us = [3.0, 40.0, 1.0, 1.0, 1.0, 9.0], 8.0
  chains = [(i + 1) * launch_us + sum(kernels[i:]) for i in range(len(kernels))]
  launched = hw.launched_step(kernels, launch_us=launch_us)
  assert launched.ready_us == pytest.approx(max(chains))
  assert launched.wait_us == pytest.approx(max(chains) - sum(kernels))
  assert hw.launched_step([], launch_us=5).ready_us == 0
  with pytest.raises(ValueError, match=r"launch_us=-1"):
    hw.launched_step([1.0], launch_us=-1)
  with pytest.raises(ValueError, match=r"kernels_us\[1\]=-2"):
    hw.launched_step([1.0, -2.0], launch_us=1)


# --- what a change is worth


def test_a_faster_stage_saves_nothing_where_the_host_is_waited_for():
  slow = hw.plan_request(SMALL, SHORT, DEVICE, host=hw.HostTimes(launch_us=50))
  gain = hw.stage_gain(slow, stage(slow, "decode", "attention"))
  assert gain.own_saved_us > 0
  assert gain.request_saved_us == 0
  path = hw.host_path(slow.decode, launch_us=50)
  assert path.path == ("first launch", "launches")
  assert path.saturation_us["launches"] == pytest.approx(slow.decode.device_us)
  quick = hw.plan_request(SMALL, SHORT, DEVICE, host=hw.HostTimes(launch_us=0.1))
  assert hw.host_path(quick.decode, launch_us=0.1).path == ("first launch", "device")
  gain = hw.stage_gain(quick, stage(quick, "decode", "attention"))
  assert gain.request_saved_us == pytest.approx(gain.own_saved_us)


def test_replay_saves_what_the_device_waits_less_the_replay():
  host = hw.HostTimes(launch_us=50, replay_us=5)
  plan = hw.plan_request(SMALL, SHORT, DEVICE, host=host)
  copy_us = 2 * 2 * 256 * 2 / hw.get_profile(DEVICE).dram_bandwidth_bytes_per_s * 1e6
  assert plan.replay.saved_us == pytest.approx(plan.decode.wait_us - 5 - copy_us)
  assert plan.token_us(graph=False) - plan.token_us(graph=True) == plan.replay.saved_us


def test_fusing_saves_the_difference_of_the_device_times(small):
  separate, fused = small
  saving = hw.fusion_saving(separate, fused)
  assert saving.saved_us == pytest.approx(separate.device_us - fused.device_us)
  assert set(saving.saved_by) == {
    f"{phase} {part}" for phase in ("prefill", "decode") for part in ("qkv", "ffn")
  }
  first = separate.prefill.device_us - fused.prefill.device_us
  assert saving.first_token_saved_us == pytest.approx(first)
  other = hw.plan_request(SMALL, SHORT, "ascend_910b3")
  with pytest.raises(ValueError, match="plans of one model, request and profile"):
    hw.fusion_saving(separate, other)


def test_a_length_is_compiled_once_its_padding_has_cost_as_much():
  host = hw.HostTimes(launch_us=0, compile_ms=10)
  requests = (hw.RequestSizes(600, 1), hw.RequestSizes(100, 1), hw.RequestSizes(512, 1))
  found = hw.bucket_choice(SMALL, requests, DEVICE, buckets=(512, 1024), host=host)
  assert (found.rows.rows, found.rows.padded_rows) == (1212, 2048)
  passes = {
    tokens: hw.plan_request(SMALL, hw.RequestSizes(tokens, 1), DEVICE, host=host).first_token_us
    for tokens in (100, 512, 600, 1024)
  }
  assert found.bucketed_us == pytest.approx(2 * passes[512] + passes[1024])
  assert found.exact_us == pytest.approx(passes[100] + passes[512] + passes[600])
  # 512 is a bucket: two lengths are compiled
  payback = found.choice.payback["bucketed", "exact"]
  assert payback == pytest.approx(20e3 / (found.bucketed_us - found.exact_us))
  assert [part.name for part in found.choice.ranges] == ["bucketed", "exact"]
  assert found.choice.ranges[1].first == math.floor(payback) + 1


def test_powers_of_two_are_the_buckets_where_none_are_given():
  requests = (hw.RequestSizes(512, 1), hw.RequestSizes(513, 1), hw.RequestSizes(1, 1))
  found = hw.bucket_choice(SMALL, requests, DEVICE)
  assert found.rows.programs == (1, 512, 1024)
  with pytest.raises(ValueError, match="add a bucket of at least 513"):
    hw.bucket_choice(SMALL, requests, DEVICE, buckets=(512,))


# --- sizes


def test_sizes_are_checked():
  with pytest.raises(ValueError, match=r"ModelSizes\.kv_heads=3: expected a divisor of heads=4"):
    hw.ModelSizes(1, 64, 64, heads=4, kv_heads=3)
  with pytest.raises(ValueError, match=r"ModelSizes\.layers=10001: expected at most 10000"):
    hw.ModelSizes(10_001, 64, 64, heads=4)
  with pytest.raises(ValueError, match=r"hidden=100 is no multiple of heads=7; give head_dim"):
    hw.ModelSizes(1, 100, 64, heads=7)
  assert hw.ModelSizes(1, 100, 64, heads=7, head_dim=16).query_width == 112
  for wrong in ({"prompt": 0, "output": 1}, {"prompt": 1, "output": 0}):
    with pytest.raises(ValueError, match="expected an integer of at least 1"):
      hw.RequestSizes(**wrong)
  with pytest.raises(ValueError, match=r"HostTimes\.replay_us=-1"):
    hw.HostTimes(replay_us=-1)


def test_sizes_are_described_as_the_command_line_takes_them():
  assert CASE.describe() == "layers=36,hidden=4096,ffn=12288,heads=32,kv_heads=8"
  assert SHORT.describe() == "prompt=100,output=5,batch=2"
  assert hw.HostTimes(1.23456789, 1e-7, 2).describe() == (
    "launch_us=1.23456789,replay_us=1e-07,compile_ms=2"
  )
  assert hw.HostTimes(launch_us=2.5).describe() == "launch_us=2.5,replay_us=5,compile_ms=100"


def test_bytes_are_of_matrices_keys_and_values():
  assert CASE.projection_weights == 36 * 4096 * (4096 + 1024 + 1024 + 4096 + 3 * 12288)
  assert CASE.cache_bytes(1, "bfloat16") == 2 * 36 * 1024 * 2
  plan = hw.plan_request(CASE, CASE_REQUEST, DEVICE)
  assert plan.resident_bytes == 2 * CASE.projection_weights + CASE.cache_bytes(7270, "bfloat16")
  # first and last step see 7240 and 7270 keys
  assert plan.decode_bytes == 2 * CASE.projection_weights + CASE.cache_bytes(7255, "bfloat16")
  # what is read at least cannot be read in less time
  floor_us = plan.decode_bytes / plan.bandwidth_bytes_per_s * 1e6
  assert plan.decode.device_us > floor_us


def test_a_device_without_a_tile_has_a_reason_and_no_time():
  wide = hw.ModelSizes(1, 8192, 64, heads=1, head_dim=8192)
  plan = hw.plan_request(wide, SHORT, "v100_sxm2")
  assert plan.reason.startswith("prefill attention: ")
  assert (plan.first_token_us, plan.total_us(graph=False), plan.device_us) == (None, None, None)
  with pytest.raises(ValueError, match="it has no time: prefill attention"):
    hw.stage_gain(plan, plan.stages[0])
  assert hw.bucket_choice(wide, (SHORT,), "v100_sxm2") is None
