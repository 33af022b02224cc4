"""Amortisation, replay, dynamic shapes, critical paths and requests against enumeration."""

import itertools
import math
import random
import statistics

import pytest

import hw_profiles as hw

MIB = 1024**2

BUCKETS = (512, 2048)
FFN = hw.ffn_flops_per_row(hidden=4096, intermediate=12288)


def three_strategies(calls, rates=(100e12, 200e12, 250e12)):
  """General, bucketed with one program a bucket, specialised with one a row count."""
  exact, padded = hw.bucketing(calls), hw.bucketing(calls, buckets=BUCKETS)

  def run_us(rows, rate):
    return rows.run_us(flops_per_row=FFN, flops_per_s=rate)

  return [
    hw.Strategy("general", run_us(exact, rates[0]), {"any": 100e3}),
    hw.Strategy(
      "bucketed", run_us(padded, rates[1]), {f"pad{size}": 200e3 for size in padded.programs}
    ),
    hw.Strategy(
      "specialised", run_us(exact, rates[2]), {f"m{size}": 300e3 for size in exact.programs}
    ),
  ]


EXAMPLE = three_strategies([(8, 256), (1, 1536), (1, 2048)])


def as_tuples(choice):
  return [(part.name, part.first, part.last) for part in choice.ranges]


def test_first_calls_are_amortised():
  totals = [
    hw.amortisation(preparation_us=100e3, run_us=1e3, runs=runs) for runs in (0, 1, 100, 10**6)
  ]
  assert [total.mean_us for total in totals] == [math.inf, 101e3, 2e3, 1000.1]
  assert totals[0].preparation_fraction == 1
  with pytest.raises(ValueError, match="runs=-1"):
    hw.amortisation(preparation_us=1, run_us=1, runs=-1)


def test_a_change_that_saves_nothing_never_pays():
  assert hw.payback_runs(extra_preparation_us=5, saved_us_per_run=0) == math.inf
  assert hw.payback_runs(extra_preparation_us=5, saved_us_per_run=-1) == math.inf
  assert hw.payback_runs(extra_preparation_us=0, saved_us_per_run=0) == 0
  assert hw.payback_runs(extra_preparation_us=5, saved_us_per_run=2) == 2.5
  slow = hw.tuning_payback(search_s=600, saved_us_per_call=5, calls_per_s=100)
  often = hw.tuning_payback(search_s=600, saved_us_per_call=5, calls_per_s=10_000)
  assert slow.calls == often.calls
  assert slow.seconds == 100 * often.seconds
  with pytest.raises(ValueError, match="calls_per_s=0"):
    hw.tuning_payback(search_s=1, saved_us_per_call=1, calls_per_s=0)


def test_a_change_of_time_and_its_edges():
  assert hw.time_change(before_us=0, after_us=0).speedup == 1
  assert hw.time_change(before_us=3, after_us=0).speedup == math.inf
  slower = hw.time_change(before_us=80, after_us=110)
  assert (slower.saved_us, slower.saved_fraction) == (-30, -0.375)


def test_the_four_ways_to_submit_three_ffns():
  """Exercise: submissions and kernels, with and without replay and fusion."""
  ways = [
    hw.launch_counts(kernels_per_call=kernels, calls=3, graph_replay=graph)
    for kernels, graph in ((6, False), (6, True), (5, False), (5, True))
  ]
  assert [(way.submissions, way.kernels) for way in ways] == [(18, 18), (3, 18), (15, 15), (3, 15)]
  assert hw.launch_counts(kernels_per_call=0, calls=3, graph_replay=True).submissions == 0


def test_fewer_kernels_are_not_always_faster():
  """The pitfall: counting kernels chooses fusion where replay is what saves time."""
  kernel_us, submit_us, calls = 2.0, 5.0, 3
  options = {"fused": (5, False), "replayed": (6, True)}
  counts = {
    name: hw.launch_counts(kernels_per_call=kernels, calls=calls, graph_replay=graph)
    for name, (kernels, graph) in options.items()
  }
  times = {
    name: hw.host_device_timeline(
      host_us=submit_us,
      device_us=kernel_us * count.kernels / count.submissions,
      num_segments=count.submissions,
    ).ready_us
    for name, count in counts.items()
  }
  assert min(counts, key=lambda name: counts[name].kernels) == "fused"
  assert min(times, key=times.get) == "replayed"
  # with long kernels the host is hidden, and the count decides after all
  long = {
    name: hw.host_device_timeline(
      host_us=submit_us,
      device_us=50 * count.kernels / count.submissions,
      num_segments=count.submissions,
    ).ready_us
    for name, count in counts.items()
  }
  assert min(long, key=long.get) == "fused"


def test_replay_on_the_rtx_4090():
  """Exercise: the input at which the copy takes what replay saves, and none at all."""
  arguments = {
    "compute_us": 20,
    "eager_wait_us": 20,
    "replay_us": 5,
    "bandwidth_bytes_per_s": hw.get_profile("rtx_4090").dram_bandwidth_bytes_per_s,
  }
  small, large = (
    hw.graph_replay_break_even(**arguments, input_bytes=size) for size in (2 * MIB, 16 * MIB)
  )
  assert small.break_even_bytes / MIB == pytest.approx(7.21, abs=5e-3)
  assert (small.replay_is_faster, large.replay_is_faster) == (True, False)
  for size in (2 * MIB, 16 * MIB):
    direct = hw.graph_replay_break_even(**arguments, input_bytes=size, writes_in_place=True)
    assert (direct.graph_us, direct.eager_us) == (25, 40)
    assert direct.largest_rows(8192) is None


@pytest.mark.parametrize("row_bytes", [1, 3, 100, 8192])
def test_the_last_row_that_replay_pays_for(row_bytes):
  arguments = {
    "compute_us": 7,
    "eager_wait_us": 6,
    "replay_us": 1,
    "bandwidth_bytes_per_s": 2.4e8,
  }
  rows = hw.graph_replay_break_even(**arguments, input_bytes=0).largest_rows(row_bytes)
  faster = [
    hw.graph_replay_break_even(**arguments, input_bytes=count * row_bytes).replay_is_faster
    for count in range(rows + 3)
  ]
  assert faster == [True] * min(rows + 1, len(faster)) + [False] * 2
  never = hw.graph_replay_break_even(**{**arguments, "replay_us": 6}, input_bytes=0)
  assert (never.break_even_bytes, never.largest_rows(row_bytes)) == (0, 0)


def test_plans_are_shared_within_a_step_and_made_again_for_the_next():
  steps = [(17, 300), (17, 300), (18, 301)]
  layouts = [lengths for lengths in steps for _ in range(36)]
  reuse = hw.plan_reuse(layouts, copies_per_plan=4, plan_us=35, run_us=20)
  assert (reuse.plans, reuse.copies, reuse.copies_without_reuse) == (2, 8, 432)
  assert reuse.calls == 108
  assert reuse.total_without_reuse_us - reuse.total_us == 106 * 35
  assert reuse.stale_calls == tuple(range(72, 108))
  # lengths that come back need their own plan all the same: only one is kept
  assert hw.plan_reuse(["a", "b", "a"], copies_per_plan=1).plans == 3
  assert hw.plan_reuse([], copies_per_plan=4).plans == 0


def test_a_program_cache_is_what_walking_a_list_counts():
  rng = random.Random(5)
  for _ in range(100):
    capacity = rng.choice([None, 1, 2, 3])
    shapes = [rng.choice("abcde") for _ in range(rng.randint(0, 30))]
    held, hits, evictions = [], 0, 0
    for shape in shapes:
      if shape in held:
        hits += 1
        held.remove(shape)
      elif capacity is not None and len(held) == capacity:
        held.pop(0)
        evictions += 1
      held.append(shape)
    use = hw.program_cache(shapes, capacity=capacity, compile_us=7)
    assert (use.hits, use.misses, use.evictions) == (hits, len(shapes) - hits, evictions)
    assert use.resident == tuple(held)
    assert use.compile_us == 7 * use.misses
    assert use.recompilations == use.misses - len(set(shapes))
    assert sum(use.hits_by.values()) == hits


def test_buckets_compile_less_and_hit_more():
  rng = random.Random(6)
  rows = [rng.randint(1, 2048) for _ in range(200)]
  buckets = hw.bucketing([(1, count) for count in rows], buckets=BUCKETS).assigned
  exact = hw.program_cache(rows, capacity=8, compile_us=1)
  bucketed = hw.program_cache([bucket for _, _, bucket in buckets], capacity=8, compile_us=1)
  assert (bucketed.misses, bucketed.evictions) == (2, 0)
  assert exact.misses > 150
  with pytest.raises(ValueError, match="cached has 2 programs: capacity=1"):
    hw.program_cache([], capacity=1, cached=["a", "b"])
  warm = hw.program_cache(["a"], cached=["a"], compile_us=1)
  assert (warm.hits, warm.compile_us) == (1, 0)


def test_bucketing_at_its_edges():
  rows = hw.bucketing([(3, 512), (2, 513), (0, 9), (4, 0)], buckets=(2048, 512))
  assert (rows.rows, rows.padded_rows, rows.programs) == (2562, 3 * 512 + 2 * 2048, (512, 2048))
  assert hw.bucketing([(3, 7), (1, 9)]).programs == (7, 9)
  assert hw.bucketing([]).extra_fraction == 0
  with pytest.raises(ValueError, match=r"calls\[0\] has 2049 rows.*add a bucket of at least 2049"):
    hw.bucketing([(1, 2049)], buckets=BUCKETS)
  with pytest.raises(ValueError, match="buckets=0"):
    hw.bucketing([(1, 1)], buckets=[0])


def test_the_fastest_steady_state_is_not_the_least_total():
  """The pitfall: choosing by time of a group costs 110 ms over 70 groups."""
  choice = hw.choose_strategy(EXAMPLE, repeats=70)
  assert choice.fastest_run == "specialised"
  assert choice.best == "bucketed"
  lost_us = choice.total_us[choice.fastest_run] - choice.total_us[choice.best]
  assert round(lost_us / 1e3) == 110


def test_all_programs_cached_means_specialised_at_once():
  cached = [program for strategy in EXAMPLE for program in strategy.programs_us]
  choice = hw.choose_strategy(EXAMPLE, repeats=1, cached=cached)
  assert as_tuples(choice) == [("specialised", 1, None)]
  partly = hw.choose_strategy(EXAMPLE, repeats=1, cached=["m256", "m1536"])
  assert partly.total_us["specialised"] == 300e3 + EXAMPLE[2].run_us


def test_the_rounded_rates_and_the_stated_utilisations_differ():
  stated = three_strategies(
    [(8, 256), (1, 1536), (1, 2048)], [share * 503.8e12 for share in (0.2, 0.4, 0.5)]
  )
  assert [first for _, first, _ in as_tuples(hw.choose_strategy(EXAMPLE, repeats=1))] == [1, 65, 90]
  assert [first for _, first, _ in as_tuples(hw.choose_strategy(stated, repeats=1))] == [1, 66, 91]


def test_four_small_calls_instead_of_eight():
  """Exercise: three crossings, of which the first does not move, and cached buckets."""
  fewer = three_strategies([(4, 256), (1, 1536), (1, 2048)])
  payback = hw.choose_strategy(fewer, repeats=1).payback
  # general and bucketed lose the same: 256 rows at 100 and 512 at 200 TFLOP/s take equally long
  before = hw.choose_strategy(EXAMPLE, repeats=1).payback
  assert payback["general", "bucketed"] == pytest.approx(before["general", "bucketed"])
  assert payback["general", "bucketed"] == pytest.approx(64.675, abs=5e-4)
  assert payback["bucketed", "specialised"] == pytest.approx(134.74, abs=5e-3)
  assert payback["general", "specialised"] == pytest.approx(95.8, abs=5e-2)
  cached = hw.choose_strategy(fewer, repeats=1, cached=fewer[1].programs_us)
  assert as_tuples(cached) == [("bucketed", 1, 242), ("specialised", 243, None)]


def test_ranges_are_what_trying_every_number_of_repeats_finds():
  rng = random.Random(7)
  for _ in range(200):
    lines = [
      (str(name), rng.randint(0, 60), rng.randint(0, 12)) for name in range(rng.randint(1, 5))
    ]
    strategies = [
      hw.Strategy(name, run_us=run, programs_us={name: preparation})
      for name, preparation, run in lines
    ]
    choice = hw.choose_strategy(strategies, repeats=1)
    assert choice.ranges[0].first == 1
    assert choice.ranges[-1].last is None
    for before, after in itertools.pairwise(choice.ranges):
      assert after.first == before.last + 1
    for repeats in range(1, 90):
      (part,) = [
        part
        for part in choice.ranges
        if part.first <= repeats and (part.last is None or repeats <= part.last)
      ]
      totals = {name: preparation + repeats * run for name, preparation, run in lines}
      assert totals[part.name] == min(totals.values())
      assert hw.choose_strategy(strategies, repeats=repeats).best == part.name


def test_of_equal_totals_the_one_cheaper_to_prepare_is_kept():
  dear_first = [hw.Strategy("fast", 1, {"f": 10}), hw.Strategy("ready", 3, {})]
  choice = hw.choose_strategy(dear_first, repeats=5)
  assert choice.total_us["fast"] == choice.total_us["ready"]
  assert choice.best == "ready"
  assert as_tuples(choice) == [("ready", 1, 5), ("fast", 6, None)]


def test_strategies_are_checked():
  with pytest.raises(ValueError, match="names must differ, got 'a', 'a'"):
    hw.choose_strategy([hw.Strategy("a", 1, {}), hw.Strategy("a", 2, {})], repeats=1)
  with pytest.raises(ValueError, match=r"Strategy\('a'\).programs_us\['p'\]=-1"):
    hw.Strategy("a", 1, {"p": -1})
  with pytest.raises(ValueError, match="repeats=0"):
    hw.choose_strategy([hw.Strategy("a", 1, {})], repeats=0)


def test_amdahl_over_several_parts_is_the_time_added_up():
  shares = {"api": 0.33, "scheduling": 0.29, "device": 0.38}
  result = hw.amdahl(fraction=shares, speedup={"api": 3, "scheduling": 2, "device": 1})
  assert result.time_fraction == pytest.approx(0.11 + 0.145 + 0.38)
  assert result.speedup == pytest.approx(1 / result.time_fraction)
  assert hw.amdahl(fraction=0.0).speedup == 1
  assert hw.amdahl(fraction=1.0).bound == math.inf
  with pytest.raises(ValueError, match=r"fraction: the shares add up to 1.1"):
    hw.amdahl(fraction={"a": 0.6, "b": 0.5})
  with pytest.raises(ValueError, match=r"speedup\['part'\]=0"):
    hw.amdahl(fraction=0.5, speedup=0)
  with pytest.raises(ValueError, match="speedup has parts a: expected those of fraction, b"):
    hw.amdahl(fraction={"b": 0.5}, speedup={"a": 2})


def test_a_reported_gain_may_exceed_what_its_shares_allow():
  assert hw.amdahl(fraction={"api": 0.33, "scheduling": 0.29}).bound < 2.7


def two_branches(a_us, b_us=40, **demands):
  return [
    hw.RequestStage("preparation", 10),
    hw.RequestStage("A", a_us, after=("preparation",), demands=demands.get("a", {})),
    hw.RequestStage("B", b_us, after=("preparation",), demands=demands.get("b", {})),
    hw.RequestStage("end", 10, after=("A", "B")),
  ]


def test_shortening_a_branch_stops_paying_where_the_other_takes_over():
  """Exercise: shorten A step by step; nothing is gained below 40 us."""
  totals = {a: hw.critical_path(two_branches(a)).total_us for a in range(60, -1, -5)}
  assert totals[60] == 80
  assert {a for a, total in totals.items() if total == 60} == set(range(0, 41, 5))
  path = hw.critical_path(two_branches(60))
  assert path.path == ("preparation", "A", "end")
  assert path.saturation_us == {"preparation": 0, "A": 40, "B": 60, "end": 0}
  assert path.slack_us == {"preparation": 0, "A": 0, "B": 20, "end": 0}
  assert path.largest_saving_us == {"preparation": 10, "A": 20, "B": 0, "end": 10}
  assert hw.critical_path(two_branches(15)).path == ("preparation", "B", "end")


def chains(stages):
  """Every chain from a stage without predecessors to one without followers."""
  by_name = {stage.name: stage for stage in stages}
  followed = {before for stage in stages for before in stage.after}

  def back(name):
    befores = by_name[name].after
    return [[*chain, name] for before in befores for chain in back(before)] or [[name]]

  return [chain for stage in stages if stage.name not in followed for chain in back(stage.name)]


def random_stages(rng, demands=False):
  return [
    hw.RequestStage(
      str(stage),
      rng.randint(0, 9),
      after=tuple(str(other) for other in range(stage) if rng.random() < 0.35),
      demands={"dram": rng.choice([0, 0.25, 0.5, 1])} if demands else {},
    )
    for stage in range(rng.randint(1, 8))
  ]


def test_a_critical_path_is_the_longest_of_all_chains():
  rng = random.Random(8)
  for _ in range(100):
    stages = random_stages(rng)
    durations = {stage.name: stage.duration_us for stage in stages}
    lengths = {tuple(chain): sum(map(durations.get, chain)) for chain in chains(stages)}
    result = hw.critical_path(rng.sample(stages, len(stages)))
    assert result.total_us == max(lengths.values())
    assert sum(map(durations.get, result.path)) == result.total_us
    for name in durations:
      through = max(length for chain, length in lengths.items() if name in chain)
      assert result.slack_us[name] == result.total_us - through

      def total(duration, name=name, stages=stages):
        changed = [
          hw.RequestStage(stage.name, duration, stage.after) if stage.name == name else stage
          for stage in stages
        ]
        return hw.critical_path(changed).total_us

      point = result.saturation_us[name]
      assert total(point) == total(0) == result.total_us - result.largest_saving_us[name]
      assert total(point + 1) == total(0) + 1


def test_stages_that_share_a_bandwidth_stretch_each_other():
  full = {"dram": 1.0}
  shared = hw.critical_path(two_branches(60, a=full, b=full))
  # 80 us of both side by side, then the last 20 of A alone
  assert shared.durations_us["B"] == 80
  assert shared.durations_us["A"] == 100
  assert shared.total_us == 120
  half = {"dram": 0.5}
  assert hw.critical_path(two_branches(60, a=half, b=half)).total_us == 80
  other = {"l2": 1.0}
  assert hw.critical_path(two_branches(60, a=full, b=other)).total_us == 80


def test_sharing_cannot_slow_a_branch_beyond_the_other_branchs_work():
  """B at 90 us beside an A of 15 is damage that outlasts A, so it is given as a time."""
  full = {"dram": 1.0}
  assert hw.critical_path(two_branches(15, a=full, b=full)).durations_us["B"] == 55
  assert hw.critical_path(two_branches(15, 90)).total_us == 110


def test_sharing_loses_no_work():
  rng = random.Random(9)
  for _ in range(60):
    stages = random_stages(rng, demands=True)
    result = hw.critical_path(stages)
    alone = hw.critical_path(
      [hw.RequestStage(stage.name, stage.duration_us, stage.after) for stage in stages]
    )
    moved = sum(stage.duration_us * stage.demands["dram"] for stage in stages)
    serial = sum(stage.duration_us for stage in stages)
    # at most 8 steps of fewer than 8 roundings each, of times up to `serial`
    rounding = 64 * 2**-53 * serial
    assert result.total_us >= max(alone.total_us, moved) - rounding
    assert result.total_us <= serial + rounding
    for stage in stages:
      assert result.durations_us[stage.name] >= stage.duration_us - rounding


def test_request_stages_are_checked():
  with pytest.raises(ValueError, match="stages: expected at least one"):
    hw.critical_path([])
  with pytest.raises(ValueError, match=r"demands\['dram'\]=1.5: expected at most 1"):
    hw.RequestStage("a", 1, demands={"dram": 1.5})
  with pytest.raises(ValueError, match="'a' waits for 'b' waits for 'a'"):
    hw.critical_path([hw.RequestStage("a", 1, after=("b",)), hw.RequestStage("b", 1, after=("a",))])


def test_calls_of_a_generation():
  calls = hw.generation_calls(layers=36, prompt_tokens=7239, output_tokens=32)
  assert calls.calls == calls.prefill_calls + calls.decode_calls == 1152
  assert (calls.decode_steps, calls.decode_row_visits) == (31, 1116)
  batch = hw.generation_calls(layers=36, prompt_tokens=10, output_tokens=1, batch=4)
  assert (batch.decode_calls, batch.prefill_row_visits) == (0, 1440)


def swiglu(decode_steps):
  """The measured totals of 31 decode steps, as calls of `decode_steps` steps."""
  measured = hw.CallClass.from_totals(
    "decode", calls=36 * 31, total_before_us=2369.803, total_after_us=920.376
  )
  return [
    hw.CallClass.from_totals(
      "prefill",
      calls=36,
      total_before_us=11218.659,
      total_after_us=11244.366,
      before_first_token=True,
    ),
    hw.CallClass("decode", 36 * decode_steps, measured.before_us, measured.after_us),
  ]


def test_what_a_faster_activation_is_worth_to_a_request():
  saving = hw.request_saving(swiglu(31), request_us=850848.989)
  assert saving.saved_us == pytest.approx(1423.72)
  assert saving.first_token_saved_us == pytest.approx(-25.707)
  assert saving.speedup < saving.bound == pytest.approx(1.01623, abs=5e-6)
  assert saving.request_after_us == pytest.approx(850848.989 - 1423.72)
  # its kernel is 2.6 times as fast where it matters, the request 1.0017 times
  assert swiglu(31)[1].speedup == pytest.approx(2.57, abs=5e-3)
  assert saving.speedup == pytest.approx(1.0017, abs=5e-5)


def test_longer_outputs_save_more():
  """Exercise: 127 decode steps in place of 31."""
  saving = hw.request_saving(swiglu(127), request_us=3e6)
  assert saving.saved_by["decode"] / 1e3 == pytest.approx(5.94, abs=5e-3)
  assert saving.saved_us / 1e3 == pytest.approx(5.91, abs=5e-3)


def test_prefill_already_runs_at_the_speed_of_memory():
  prefill, _ = swiglu(31)
  reached = prefill.bytes_per_s(3 * hw.array_bytes((7239, 12288), "bfloat16"))
  available = hw.get_profile("rtx_pro_6000").dram_bandwidth_bytes_per_s
  assert 0.95 < reached / available < 1


def test_hidden_calls_save_nothing():
  hidden = hw.CallClass("beside", 10, before_us=5, after_us=1, exposed_fraction=0.0)
  half = hw.CallClass("half", 10, before_us=5, after_us=1, exposed_fraction=0.5)
  saving = hw.request_saving([hidden, half], request_us=100)
  assert saving.saved_by == {"beside": 0, "half": 20}
  assert saving.hotspot_fraction == 0.25
  with pytest.raises(ValueError, match=r"request_us=10: its calls alone take 25"):
    hw.request_saving([half], request_us=10)
  with pytest.raises(ValueError, match="two are named 'half'"):
    hw.request_saving([half, half], request_us=100)
  with pytest.raises(ValueError, match=r"exposed_fraction=1\.5: expected at most 1"):
    hw.CallClass("c", 1, 1, 1, exposed_fraction=1.5)


def test_pairs_are_not_the_difference_of_medians():
  """Exercise: drift that both of a pair share hides a saving from the medians."""
  drift = [0, 40, 3, 90, 7, 60, 5, 30, 80, 2, 50]
  saving = [1.3, 1.4, -0.2, 1.2, 1.5, 1.3, 1.4, 1.6, -0.3, 1.3, 1.2]
  before = [800 + step for step in drift]
  after = [time - saved for time, saved in zip(before, saving, strict=True)]
  result = hw.paired_statistics(before, after)
  differences = sorted(b - a for b, a in zip(before, after, strict=True))
  assert result.median_difference_us == differences[5]
  assert result.difference_of_medians_us == statistics.median(before) - statistics.median(after)
  assert result.median_difference_us != result.difference_of_medians_us
  assert (result.pairs, result.faster, result.slower) == (11, 9, 2)
  # 2·(1 + 11 + 55) of 2048 ways
  assert result.sign_test_p == 134 / 2048
  assert result.interval_us == (differences[1], differences[9])


@pytest.mark.parametrize("pairs", [6, 7, 10, 11, 15])
def test_the_interval_covers_as_often_as_it_says(pairs):
  """Over all signs of distinct differences whose true median is 0."""
  sizes = range(1, pairs + 1)
  low, high = hw.paired_statistics([10 + size for size in sizes], [10] * pairs).interval_us
  covered = 0
  for signs in itertools.product((-1, 1), repeat=pairs):
    differences = sorted(sign * size for sign, size in zip(signs, sizes, strict=True))
    covered += differences[low - 1] <= 0 <= differences[high - 1]
  assert covered / 2**pairs >= 0.95
  # one rank further in would not do
  if high - low > 2:
    tail = sum(math.comb(pairs, heads) for heads in range(low + 1))
    assert 1 - 2 * tail / 2**pairs < 0.95


def test_too_few_pairs_have_no_interval_and_ties_no_say():
  result = hw.paired_statistics([2, 3, 3, 5], [1, 3, 3, 4])
  assert result.interval_us is None
  assert (result.faster, result.slower, result.sign_test_p) == (2, 0, 0.5)
  assert hw.paired_statistics([1], [1]).sign_test_p == 1
  with pytest.raises(ValueError, match="before_us and after_us have 2 and 1 times"):
    hw.paired_statistics([1, 2], [1])
  with pytest.raises(ValueError, match="confidence=1"):
    hw.paired_statistics([1], [1], confidence=1)
