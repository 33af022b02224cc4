"""Loop nests, what changes of them change, and choosing between implementations."""

from typing import Any

import hw_profiles as hw
from hw_profiles import loops
from hw_profiles.examples.computed import MIB, Computed, Inputs

FFN: dict[str, Any] = {"m": 1024, "k": 4096, "n": 12288}

_BLOCKS: dict[str, Any] = {"block_m": 64, "block_n": 64, "block_k": 32}


def tiled(block_m: int, block_n: int, block_k: int) -> loops.LoopNest:
  """The feed-forward product in tiles."""
  return loops.tile_stage(
    loops.matmul_nest(**FFN), "matmul", {"i": block_m, "j": block_n, "k": block_k}
  )


def accumulator(inputs: Inputs) -> loops.BufferLifetime:
  """What a tile keeps of the result while it walks along K."""
  lifetimes = loops.buffer_lifetimes(tiled(inputs["m"], inputs["n"], 32), "matmul", at="ko")
  return next(buffer for buffer in lifetimes if buffer.array == "C")


def _intermediate_mib(nest: loops.LoopNest) -> float:
  return sum(loops.intermediate_bytes(nest).values()) / MIB


def _with_result_mib(size: int) -> dict[str, Any]:
  """The text's product with as many rows as make C that large, in 2-byte elements."""
  return {**FFN, "m": size * MIB // (2 * FFN["n"])}


def transposed_tile(size: int) -> loops.Footprint:
  """What one tile of a transpose reads."""
  nest = loops.tile_stage(
    loops.transpose_nest(rows=1024, columns=4096), "transpose", {"i": size, "j": size}
  )
  return loops.footprint(nest, "transpose", "A", at="jo")


OLD_AND_NEW = {"old": {"A": 10, "B": 10}, "new": {"A": 5, "B": 20}}


def _mix(inputs: Inputs) -> hw.CallMix:
  return hw.call_mix(times_us=OLD_AND_NEW, calls={"A": inputs["p"], "B": inputs["q"]})


COMPUTED: Computed = {
  "s004.ex5-3.bw40_ratio": lambda i: hw.memory_time_ratio(
    bytes=i["a"], baseline_bytes=i["b"], bandwidth_ratio=i["r"]
  ),
  "s004.loop.acc_values": lambda i: accumulator(i).elements,
  "s004.loop.saved": lambda i: (
    _intermediate_mib(loops.matmul_silu_nest(**_with_result_mib(i["c"])))
    - _intermediate_mib(loops.fused_matmul_silu_nest(**_with_result_mib(i["c"]), **_BLOCKS))
  ),
  "s004.transpose.speedup": lambda i: hw.time_change(before_us=i["a"], after_us=i["b"]).speedup,
  "s004.transpose.elements": lambda i: (
    transposed_tile(i["a"]).elements / transposed_tile(i["b"]).elements
  ),
  "s004.ex5-9.orig_equal": lambda i: _mix(i).total_us["old"],
  "s004.ex5-9.new_equal": lambda i: _mix(i).total_us["new"],
  "s004.ex5-9.orig_100": lambda i: _mix(i).total_us["old"],
  "s004.ex5-9.new_100": lambda i: _mix(i).total_us["new"],
  "s004.ex5-9.speedup": lambda i: hw.time_change(before_us=i["a"], after_us=i["b"]).speedup,
  "s004.ex5-9.p_star": lambda i: (
    hw.break_even_share(base_us=(i["o"], i["o"]), new_us=(i["a"], i["b"])).share
  ),
}
