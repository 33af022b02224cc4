"""Break-evens, call mixes, and the steps from candidates to a choice."""

import math
import random
from fractions import Fraction

import pytest

import hw_profiles as hw

MIB = 1024**2
GPU = "rtx_pro_6000"


def tile(size, stages=1, **options):
  return hw.matmul_tile_candidate(
    m=1024,
    k=4096,
    n=12288,
    block_m=size,
    block_n=size,
    block_k=32,
    dtype="bfloat16",
    num_stages=stages,
    **options,
  )


def test_at_its_break_even_bandwidth_a_tile_takes_as_long():
  for moved, baseline in ((1560, 3096), (3096, 1560), (7, 7)):
    ratio = hw.break_even_bandwidth_ratio(bytes=moved, baseline_bytes=baseline)
    for factor, slower in ((0.99, True), (1.01, False)):
      time = hw.memory_time_ratio(
        bytes=moved, baseline_bytes=baseline, bandwidth_ratio=ratio * factor
      )
      assert (time > 1) == slower


@pytest.mark.parametrize("saved", [1, 98304, 1e9])
@pytest.mark.parametrize("overhead", [0.01, 5, 5.4321])
def test_break_even_units_is_the_first_count_that_gains(saved, overhead):
  bandwidth = hw.get_profile(GPU).memory_bandwidth_bytes_per_s
  units = hw.break_even_units(GPU, saved_bytes_per_unit=saved, overhead_us=overhead)
  price = Fraction(overhead * 1e-6 * bandwidth)
  assert (units - 1) * Fraction(saved) <= price < units * Fraction(saved)


def test_achieved_bandwidth_tells_memory_from_cache():
  peak = hw.get_profile(GPU).memory_bandwidth_bytes_per_s
  from_memory = hw.achieved_bandwidth(GPU, bytes=peak / 1e6, measured_us=1.25)
  assert (from_memory.memory_fraction, from_memory.exceeds_memory) == (pytest.approx(0.8), False)
  assert from_memory.memory_time_us == pytest.approx(1.0)
  assert hw.achieved_bandwidth(GPU, bytes=peak / 1e6, measured_us=0.5).exceeds_memory


def test_a_mix_is_the_sum_over_its_calls():
  chooser = random.Random(0)
  for _ in range(20):
    shapes = ["a", "b", "c"]
    times = {
      name: {shape: Fraction(chooser.randint(1, 20)) for shape in shapes} for name in ("x", "y")
    }
    calls = {shape: chooser.randint(0, 5) for shape in shapes}
    calls["a"] += 1
    result = hw.call_mix(times_us=times, calls=calls, dispatch_us=Fraction(1, 3))
    listed = [shape for shape, count in calls.items() for _ in range(count)]
    for name, per_shape in times.items():
      assert result.total_us[name] == sum(per_shape[shape] for shape in listed)
      assert result.mean_us[name] * len(listed) == result.total_us[name]
    fastest = sum(min(times[name][shape] for name in times) for shape in listed)
    assert result.dispatched_total_us == fastest + Fraction(len(listed), 3)
    assert result.total_us[result.best] == min(result.total_us.values())
    assert result.dispatch_wins == (result.dispatched_total_us < min(result.total_us.values()))


def test_dispatch_without_a_price_never_loses():
  times = {"x": {"a": 3, "b": 9}, "y": {"a": 8, "b": 2}}
  result = hw.call_mix(times_us=times, calls={"a": 1, "b": 1})
  assert (result.choice, result.dispatched_total_us) == ({"a": "x", "b": "y"}, 5)
  assert result.dispatch_wins
  assert hw.call_mix(times_us=times, calls={"a": 1, "b": 0}).dispatch_wins is False
  assert result.speedup("y", "x") == pytest.approx(12 / 10)


@pytest.mark.parametrize(
  ("base", "new", "dispatch", "share", "wins_above"),
  [
    ((10, 10), (5, 20), 0, Fraction(2, 3), True),
    ((10, 10), (20, 5), 0, Fraction(1, 3), False),
    ((10, 10), (5, 10), 1, Fraction(1, 5), True),
    ((10, 10), (5, 5), 0, None, True),
    ((10, 10), (11, 12), 0, None, False),
    ((10, 10), (10, 10), 0, None, False),
    ((10, 10), (9, 9), 1, None, False),
    ((10, 10), (5, 10), 0, None, True),
  ],
)
def test_break_even_share(base, new, dispatch, share, wins_above):
  base, new = (tuple(map(Fraction, pair)) for pair in (base, new))
  result = hw.break_even_share(base_us=base, new_us=new, dispatch_us=Fraction(dispatch))
  assert (result.share, result.wins_above) == (share, wins_above)
  # against the means on both sides of it
  for p in (Fraction(1, 100), Fraction(99, 100)):
    means = [p * a + (1 - p) * b for a, b in (base, new)]
    faster = means[1] + dispatch < means[0]
    assert faster == (wins_above if share is None else (p > share) == wins_above)


def test_selection_filters_then_ranks_then_keeps_the_close():
  candidates = [tile(32), tile(64), tile(128), tile(128, 4)]
  selection = hw.select_candidates(GPU, candidates, dtype="bfloat16")
  assert list(selection.rejected) == [candidates[3].name]
  times = [estimate.time_us for estimate in selection.estimates]
  assert times == sorted(times)
  assert [e.candidate.name for e in selection.estimates] == [
    c.name for c in (candidates[2], candidates[1], candidates[0])
  ]
  assert selection.to_measure == (candidates[2].name,)
  wide = hw.select_candidates(GPU, candidates, dtype="bfloat16", keep_within=2.1)
  assert wide.to_measure == (candidates[2].name, candidates[1].name)
  assert [step.split(":")[0] for step in selection.steps] == [
    "enumerate",
    "allowed and supported",
    f"fits {GPU}",
    "estimate",
    "measure",
  ]


def test_what_breaks_a_rule_is_rejected_before_its_size_is_looked_at():
  verdict = hw.loops.check_legality(
    hw.loops.matmul_silu_nest(m=1, k=2, n=1),
    hw.loops.without_rounding(hw.loops.matmul_silu_nest(m=1, k=2, n=1), "matmul"),
  )
  wrong = hw.Candidate(
    name="unrounded",
    threads_per_block=256,
    registers_per_thread=64,
    shared_bytes_per_block=2**30,
    flops=1,
    bytes=1,
    obstacles=(verdict.reason,),
  )
  selection = hw.select_candidates(GPU, [wrong], dtype="bfloat16")
  assert selection.rejected == {"unrounded": verdict.reason}
  assert selection.estimates == selection.to_measure == ()


def test_estimates_add_layout_and_launches_to_the_longer_of_compute_and_memory():
  gpu = hw.get_profile("h100_sxm")
  work = hw.Candidate("c", 128, 32, 0, flops=1e9, bytes=1e8, launches=3, layout_bytes=5e7)
  (estimate,) = hw.select_candidates(gpu, [work], dtype="bfloat16").estimates
  bandwidth = gpu.memory_bandwidth_bytes_per_s
  assert estimate.memory_us == pytest.approx(1e8 / bandwidth * 1e6)
  assert estimate.compute_us == pytest.approx(1e9 / gpu.peak_flops["bfloat16"] * 1e6)
  assert estimate.layout_us == pytest.approx(estimate.memory_us / 2)
  assert estimate.launch_us == pytest.approx(3 * gpu.launch_overhead_us)
  assert estimate.time_us == pytest.approx(
    estimate.memory_us + estimate.layout_us + estimate.launch_us
  )
  assert estimate.bound == "memory"


def test_an_accumulator_in_registers_is_checked_there():
  shared, registers = (tile(128, 2, accumulator=place) for place in ("shared", "registers"))
  assert shared.shared_bytes_per_block - registers.shared_bytes_per_block == 64 * 1024
  assert registers.registers_per_thread - shared.registers_per_thread == 64
  few = tile(256, accumulator="registers", threads_per_block=128)
  rejected = hw.select_candidates(GPU, [few], dtype="bfloat16").rejected
  assert "registers_per_thread=576" in rejected[few.name]


def test_every_tile_stays_below_the_ridge_of_the_device_it_is_counted_on():
  for size, printed in ((32, 15.9), (64, 31.8), (128, 63.0)):
    work = tile(size)
    result = hw.roofline(GPU, flops=work.flops, bytes=work.bytes, dtype="bfloat16")
    assert round(result.intensity, 1) == printed
    assert round(result.ridge) == 281
    assert result.bound == "memory"
    (estimate,) = hw.select_candidates(GPU, [work], dtype="bfloat16").estimates
    assert estimate.bound == "memory"


def test_measurements_decide_and_keep_what_they_cannot_tell_apart():
  samples = {
    "old": {"a": [10.0, 10.1, 9.9], "b": [10.0, 10.0, 10.2]},
    "new": {"a": [5.0, 5.2, 4.8], "b": [20.0, 19.0, 21.0]},
    "like old": {"a": [10.05, 10.2, 9.9], "b": [10.0, 10.1, 10.1]},
  }
  mostly_a = hw.choose_measured(samples, {"a": 100, "b": 1})
  assert (mostly_a.mix.best, mostly_a.close) == ("new", ("new",))
  assert mostly_a.median_us["new"] == {"a": 5.0, "b": 20.0}
  equal = hw.choose_measured(samples, {"a": 1, "b": 1})
  assert equal.mix.best == "old"
  assert equal.close == ("old", "like old")
  single = hw.choose_measured({"x": {"a": [2.0]}, "y": {"a": [2.1]}}, {"a": 1})
  assert single.close == ("x",)


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: hw.memory_time_ratio(bytes=0, baseline_bytes=1), "bytes=0"),
    (lambda: hw.memory_time_ratio(bytes=math.nan, baseline_bytes=1), "bytes=nan"),
    (
      lambda: hw.memory_time_ratio(bytes=1, baseline_bytes=1, bandwidth_ratio=-1),
      "bandwidth_ratio=-1",
    ),
    (lambda: hw.break_even_units(GPU, saved_bytes_per_unit=0, overhead_us=1), "saved_bytes"),
    (lambda: hw.achieved_bandwidth(GPU, bytes=1, measured_us=0), "measured_us=0"),
    (lambda: hw.call_mix(times_us={}, calls={"a": 1}), "0 implementation"),
    (lambda: hw.call_mix(times_us={"x": {"a": 1}}, calls={"a": 0}), "at least one of each"),
    (lambda: hw.call_mix(times_us={"x": {"a": 1}}, calls={"b": 1}), "'x'] has no 'b'"),
    (lambda: hw.call_mix(times_us={"x": {"a": -1}}, calls={"a": 1}), "expected a finite number"),
    (
      lambda: hw.call_mix(times_us={"x": {"a": 1}}, calls={"a": 1}).speedup("y", "x"),
      "implementation='y'",
    ),
    (lambda: hw.break_even_share(base_us=(1, -1), new_us=(1, 1)), "base_us=-1"),
    (lambda: hw.select_candidates(GPU, [], dtype="bfloat16"), "expected at least one"),
    (lambda: hw.select_candidates(GPU, [tile(32), tile(32)], dtype="bfloat16"), "different names"),
    (
      lambda: hw.select_candidates(GPU, [tile(32)], dtype="bfloat16", keep_within=0.5),
      "keep_within=0.5",
    ),
    (lambda: hw.select_candidates(GPU, [tile(32)], dtype="int4"), "dtype='int4'"),
    (lambda: tile(32, accumulator="l2"), "accumulator='l2'"),
    (lambda: hw.choose_measured({"x": {"a": []}}, {"a": 1}), "no times for 'a'"),
  ],
)
def test_wrong_arguments_are_named(make, message):
  with pytest.raises(ValueError, match=message):
    make()
