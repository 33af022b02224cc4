"""Amortisation, graph replay, dynamic shapes, Amdahl, critical paths, whole requests."""

import dataclasses
from typing import Any

import hw_profiles as hw
from hw_profiles.examples.computed import MIB, Computed, Inputs
from hw_profiles.examples.devices import RTX
from hw_profiles.frozen_map import FrozenMap

_STRATEGIES = ("general", "bucketed", "specialised")

_GROUP = {"shapes": [[8, 256], [1, 1536], [1, 2048]], "buckets": [512, 2048]}

_RATES = (100, 200, 250)

_PREPARATION_MS = (100, 400, 900)

_FFN = hw.ffn_flops_per_row(hidden=4096, intermediate=12288)


def _compiled(inputs: Inputs) -> hw.Amortisation:
  return hw.amortisation(
    preparation_us=inputs["c"] * 1e3, run_us=inputs["e"] * 1e3, runs=inputs["n"]
  )


def _counts(inputs: Inputs) -> hw.LaunchCounts:
  return hw.launch_counts(
    kernels_per_call=inputs["k"], calls=inputs["ffn"], graph_replay=inputs.get("graph", False)
  )


def _input_array(inputs: Inputs) -> hw.Transfer:
  return hw.transfer(
    shape=(inputs.get("r", 256), inputs.get("c", 4096)),
    dtype="bfloat16",
    direction="d2d",
    bandwidth_bytes_per_s=inputs.get("bw", 1792e9),
  )


def _replay(inputs: Inputs, rows: int = 256, **options: Any) -> hw.GraphReplay:
  return hw.graph_replay_break_even(
    compute_us=options.get("compute_us", 20),
    eager_wait_us=options.get("wait_us", 20),
    replay_us=options.get("replay_us", 5),
    input_bytes=hw.array_bytes((inputs.get("r", rows), inputs.get("c", 4096)), "bfloat16"),
    bandwidth_bytes_per_s=inputs.get("bw", 1792e9),
  )


def _saving_of(inputs: Inputs) -> hw.GraphReplay:
  """The replay that saves the entry's `t` before any copy."""
  return _replay({"bw": inputs["bw"]}, wait_us=inputs["t"] * 1e6, replay_us=0)


def _group(inputs: Inputs) -> hw.Bucketing:
  return hw.bucketing(inputs["shapes"], buckets=inputs.get("buckets"))


def _group_ms(inputs: Inputs) -> float:
  return _group(inputs).run_us(flops_per_row=_FFN, flops_per_s=inputs["rate_tflops"] * 1e12) / 1e3


def _choose(inputs: Inputs, repeats: int = 1) -> hw.StrategyChoice:
  values = {**_GROUP, "rates": _RATES, "P": _PREPARATION_MS, **inputs}
  padded = (None, values["buckets"], None)
  strategies = [
    hw.Strategy(
      name,
      run_us=hw.bucketing(values["shapes"], buckets=buckets).run_us(
        flops_per_row=inputs.get("f", _FFN), flops_per_s=rate * 1e12
      ),
      programs_us={name: preparation * 1e3},
    )
    for name, buckets, rate, preparation in zip(
      _STRATEGIES, padded, values["rates"], values["P"], strict=True
    )
  ]
  return hw.choose_strategy(strategies, repeats=repeats)


def _ranges(inputs: Inputs) -> Any:
  return [[_STRATEGIES.index(part.name), part.first, part.last] for part in _choose(inputs).ranges]


def _saved_ms(inputs: Inputs, slow: str, fast: str) -> float:
  totals = _choose({"f": inputs["f"], "P": (0, 0, 0)}).total_us
  return hw.time_change(before_us=totals[slow], after_us=totals[fast]).saved_us / 1e3


def _payback(inputs: Inputs, slow: str, fast: str) -> float:
  preparation = {slow: 0, fast: inputs["dp"]}
  times = tuple(preparation.get(name, 0) for name in _STRATEGIES)
  return _choose({"f": inputs["f"], "P": times}).payback[slow, fast]


def _total_s(inputs: Inputs, name: str) -> float:
  place = _STRATEGIES.index(name)
  rates, times = list(_RATES), list(_PREPARATION_MS)
  rates[place], times[place] = inputs["rate"], inputs["P"] * 1e3
  group = {"shapes": [(1, inputs["rows"])], "buckets": None}
  choice = _choose({"f": inputs["f"], "rates": rates, "P": times, **group}, repeats=inputs["r"])
  return choice.total_us[name] / 1e6


def _rate_tflops(inputs: Inputs) -> float:
  return (
    hw.stage_times(
      dataclasses.replace(RTX, peak_flops=FrozenMap(bfloat16=inputs["p"] * 1e12)),
      bytes=0,
      flops=0,
      dtype="bfloat16",
      sharing_cores=1,
      compute_utilisation=inputs["mfu"],
    ).flops_per_s
    / 1e12
  )


def _branches(inputs: Inputs) -> hw.CriticalPath:
  first, second = inputs.get("branches", (inputs.get("start"), inputs.get("other")))
  return hw.critical_path(
    [
      hw.RequestStage("preparation", inputs["prep"]),
      hw.RequestStage("A", first, after=("preparation",)),
      hw.RequestStage("B", second, after=("preparation",)),
      hw.RequestStage("end", inputs["tail"], after=("A", "B")),
    ]
  )


def _saved(inputs: Inputs) -> float:
  return hw.time_change(before_us=inputs["a"], after_us=inputs["b"]).saved_us


def _calls(inputs: Inputs) -> hw.GenerationCalls:
  return hw.generation_calls(
    layers=inputs["l"],
    prompt_tokens=inputs.get("t", 7239),
    output_tokens=inputs.get("o", inputs.get("s", 31) + 1),
  )


def _hotspot(inputs: Inputs) -> hw.RequestSaving:
  """All SwiGLU calls of the profiled request, times in ms."""
  every = hw.CallClass("SwiGLU", 1, before_us=inputs["a"] * 1e3, after_us=0)
  return hw.request_saving([every], request_us=inputs["w"] * 1e3)


def _phases(inputs: Inputs) -> hw.RequestSaving:
  prefill = hw.CallClass("prefill", 1, before_us=inputs["a"] * 1e3, after_us=0)
  decode = hw.CallClass("decode", 1, before_us=inputs["b"] * 1e3, after_us=0)
  return hw.request_saving([prefill, decode], request_us=851e3)


def _decode_calls(inputs: Inputs) -> hw.CallClass:
  return hw.CallClass.from_totals(
    "decode", calls=inputs["c"], total_before_us=inputs["t"], total_after_us=0
  )


def _prefill_bandwidth(inputs: Inputs) -> float:
  prefill = hw.CallClass.from_totals(
    "prefill", calls=inputs["calls"], total_before_us=inputs["t"] * 1e6, total_after_us=0
  )
  # gate and up are read, their product written
  return prefill.bytes_per_s(3 * hw.array_bytes((inputs["r"], inputs["F"]), "bfloat16")) / 1e9


COMPUTED: Computed = {
  "s004.compile.one": lambda i: _compiled(i).total_us / 1e3,
  "s004.compile.hundred": lambda i: _compiled(i).total_us / 1e3,
  "s004.compile.hundred_avg": lambda i: _compiled(i).mean_us / 1e3,
  "s004.vllm.host_share": lambda i: hw.amdahl(fraction=i).fraction,
  "s004.vllm.amdahl_bound": lambda i: hw.amdahl(fraction=1 - i["acc"]).bound,
  "s004.graph.eager_unfused.host": lambda i: _counts(i).submissions,
  "s004.graph.eager_unfused.device": lambda i: _counts(i).kernels,
  "s004.graph.graph_unfused.host": lambda i: _counts(i).submissions,
  "s004.graph.graph_unfused.device": lambda i: _counts({**i, "graph": True}).kernels,
  "s004.graph.eager_fused.host": lambda i: _counts(i).submissions,
  "s004.graph.eager_fused.device": lambda i: _counts(i).kernels,
  "s004.graph.graph_fused.host": lambda i: _counts(i).submissions,
  "s004.graph.graph_fused.device": lambda i: _counts({**i, "graph": True}).kernels,
  "s004.ex5-11.eager": lambda i: _replay({}, compute_us=i["c"], wait_us=i["w"]).eager_us,
  "s004.ex5-11.saved": lambda i: (
    _replay({}, compute_us=i["c"], wait_us=i["w"], replay_us=i["g"]).saved_without_copy_us
  ),
  "s004.ex5-11.r256.bytes": lambda i: _input_array(i).bytes / MIB,
  "s004.ex5-11.r256.copy": lambda i: _replay(i).copy_us,
  "s004.ex5-11.r256.total": lambda i: _replay(i).graph_us,
  "s004.ex5-11.r2048.bytes": lambda i: _input_array(i).bytes / MIB,
  "s004.ex5-11.r2048.copy": lambda i: _replay(i).copy_us,
  "s004.ex5-11.r2048.total": lambda i: _replay(i).graph_us,
  "s004.ex5-11.r256.less": lambda i: _replay(i).saved_us,
  "s004.ex5-11.threshold": lambda i: _saving_of(i).break_even_bytes / MIB,
  "s004.ex5-11.threshold_rows": lambda i: _saving_of(i).largest_rows(2 * i["c"]),
  "s004.flashinfer.copies": lambda i: (
    hw.plan_reuse(["step"] * i["layers"], copies_per_plan=i["per"]).copies_without_reuse
  ),
  "s004.ex5-12.rows": lambda i: _group(i).rows,
  "s004.ex5-12.bucket_rows": lambda i: _group(i).padded_rows,
  "s004.ex5-12.extra": lambda i: hw.bucketing([(1, i["b"])], buckets=[i["a"]]).extra_fraction,
  "s004.ex5-12.flop_per_row": lambda i: hw.ffn_flops_per_row(hidden=i["H"], intermediate=i["F"]),
  "s004.ex5-12.rate_general": _rate_tflops,
  "s004.ex5-12.rate_bucket": _rate_tflops,
  "s004.ex5-12.rate_special": _rate_tflops,
  "s004.ex5-12.t_general": _group_ms,
  "s004.ex5-12.t_bucket": _group_ms,
  "s004.ex5-12.t_special": _group_ms,
  "s004.ex5-12.save_bucket": lambda i: _saved_ms(i, "general", "bucketed"),
  "s004.ex5-12.save_special": lambda i: _saved_ms(i, "bucketed", "specialised"),
  "s004.ex5-12.payback_bucket": lambda i: _payback(i, "general", "bucketed"),
  "s004.ex5-12.payback_special": lambda i: _payback(i, "bucketed", "specialised"),
  "s004.ex5-12.ranges": _ranges,
  "s004.ex5-12.ranges_mfu": _ranges,
  "s004.ex5-12.total70_general": lambda i: _total_s(i, "general"),
  "s004.ex5-12.total70_bucket": lambda i: _total_s(i, "bucketed"),
  "s004.ex5-12.total70_special": lambda i: _total_s(i, "specialised"),
  "s004.tuning.calls": lambda i: (
    hw.tuning_payback(search_s=i["s"], saved_us_per_call=i["save"] * 1e6, calls_per_s=10_000).calls
  ),
  "s004.tuning.hours": lambda i: (
    hw.tuning_payback(search_s=i["c"], saved_us_per_call=1e6, calls_per_s=i["r"]).seconds / 3600
  ),
  "s004.tuning.days": lambda i: (
    hw.tuning_payback(search_s=i["c"], saved_us_per_call=1e6, calls_per_s=i["r"]).seconds / 86400
  ),
  "s004.amdahl.half": lambda i: hw.amdahl(fraction=i["f"], speedup=i["s"]).speedup,
  "s004.amdahl.half_time": lambda i: hw.amdahl(fraction=i["f"], speedup=i["s"]).time_fraction,
  "s004.amdahl.ten_time": lambda i: hw.amdahl(fraction=i["f"], speedup=i["s"]).time_fraction,
  "s004.amdahl.bound": lambda i: hw.amdahl(fraction=i["f"]).bound,
  "s004.dag.orig": lambda i: _branches(i).total_us,
  "s004.dag.fastA": lambda i: _branches(i).total_us,
  "s004.dag.contention": lambda i: _branches(i).total_us,
  "s004.dag.A_saved": _saved,
  "s004.dag.request_saved": _saved,
  "s004.dag.saturation": lambda i: _branches(i).saturation_us["A"],
  "s004.case.calls": lambda i: _calls(i).calls,
  "s004.case.prefill_calls": lambda i: _calls(i).prefill_calls,
  "s004.case.decode_calls": lambda i: _calls(i).decode_calls,
  "s004.case.prefill_rows": lambda i: _calls(i).prefill_row_visits,
  "s004.case.decode_speedup": lambda i: (
    hw.CallClass("decode", 1, before_us=i["a"] * 1e3, after_us=i["b"] * 1e3).speedup
  ),
  "s004.case.decode_saved": lambda i: (
    hw.CallClass("decode", 1, before_us=i["a"] * 1e3, after_us=i["b"] * 1e3).saved_us / 1e3
  ),
  "s004.case.prefill_delta": lambda i: (
    hw.CallClass("prefill", 1, before_us=i["a"] * 1e3, after_us=i["b"] * 1e3).saved_us / 1e3
  ),
  "s004.case.total_saved": _saved,
  "s004.case.sum_check": lambda i: _phases(i).before_us / 1e3,
  "s004.case.share": lambda i: _hotspot(i).hotspot_fraction,
  "s004.case.pair_share": lambda i: (
    hw.paired_statistics([i["t"]], [i["t"] - i["d"]]).saved_fraction
  ),
  "s004.case.amdahl_cap": lambda i: _hotspot(i).bound,
  "s004.case.prefill_bw": _prefill_bandwidth,
  "s004.case.decode_us_per_call_orig": lambda i: _decode_calls(i).before_us,
  "s004.case.decode_us_per_call_new": lambda i: _decode_calls(i).before_us,
}
