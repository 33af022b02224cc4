"""Transfers, timelines of host and device, stage times, pipelines, persistent kernels."""

import dataclasses
from typing import Any

import hw_profiles as hw
from hw_profiles.examples.computed import DTYPE_OF_BYTES, KIB, MIB, Computed, Inputs
from hw_profiles.examples.devices import H100, RTX, device_of

_QWEN = {"r": 64, "H": 4096, "F": 12288}

_OVERHEADS = {"t": 0.5, "n": 0.2}


def _h2d(inputs: Inputs, shape: tuple[int]) -> hw.Transfer:
  return hw.transfer(
    shape=shape, dtype="int8", direction="h2d", bandwidth_bytes_per_s=inputs.get("bw", 64e9)
  )


def _call(inputs: Inputs) -> hw.HostDeviceTimeline:
  operations = {"h2d": inputs["h2d"], "kernel": inputs.get("k", 20), "d2h": inputs["d2h"]}
  return hw.host_device_timeline(host_us=inputs["submit"], device_us=operations)


def _segments(inputs: Inputs, **options: Any) -> hw.HostDeviceTimeline:
  return hw.host_device_timeline(
    host_us=inputs["h"], device_us=inputs["d"], num_segments=inputs["n"], **options
  )


def _sm_share(inputs: Inputs) -> hw.StageTimes:
  return hw.stage_times(
    device_of(H100, inputs), bytes=inputs.get("b", 0), flops=inputs.get("f", 0), dtype="bfloat16"
  )


def _peak_share(inputs: Inputs) -> hw.StageTimes:
  rates = {"p": inputs["f"], "sms": inputs["sms"]}
  return hw.stage_times(device_of(H100, rates), bytes=0, flops=0, dtype="bfloat16")


def _exact_pipeline(inputs: Inputs) -> hw.Pipeline:
  times = _sm_share(inputs)
  return hw.pipeline(
    copy_us=times.copy_us, compute_us=times.compute_us, num_slots=2, num_blocks=inputs["n"]
  )


def _slots(inputs: Inputs) -> hw.SlotBudget:
  return hw.slot_budget(
    RTX,
    resident_blocks=inputs.get("blocks", 2),
    slot_bytes=inputs.get("slot", 16) * KIB,
    wanted_slots=inputs.get("slots", 3),
    other_bytes=inputs.get("reorder", 32) * KIB,
  )


def _shared_by_two(inputs: Inputs) -> hw.SlotBudget:
  gpu = dataclasses.replace(
    RTX,
    shared_bytes_per_sm=inputs["sm"] * KIB,
    reserved_shared_bytes_per_block=inputs["res"] * KIB,
  )
  return hw.slot_budget(gpu, resident_blocks=inputs["blocks"], slot_bytes=1, wanted_slots=0)


def _slots_of_budget(inputs: Inputs) -> hw.SlotBudget:
  gpu = dataclasses.replace(RTX, max_shared_bytes_per_block=inputs["b"] * KIB)
  return hw.slot_budget(
    gpu,
    resident_blocks=1,
    slot_bytes=inputs["slot"] * KIB,
    wanted_slots=3,
    other_bytes=inputs["reorder"] * KIB,
  )


def _projection(inputs: Inputs) -> tuple[hw.MatmulProblem, float]:
  sizes = {**_QWEN, **inputs}
  problem = hw.MatmulProblem(sizes["r"], sizes["H"], sizes["F"])
  rates = {"p": inputs["p"]} if "p" in inputs else {}
  times = hw.stage_times(
    device_of(RTX, rates), bytes=0, flops=problem.flops, dtype="bfloat16", sharing_cores=1
  )
  return problem, times.compute_us


def _activation_us(inputs: Inputs) -> float:
  return hw.transfer(
    shape=(inputs["r"], inputs["F"]),
    dtype="bfloat16",
    direction="d2d",
    bandwidth_bytes_per_s=inputs["bw"],
  ).copy_us


def _persistent(inputs: Inputs) -> hw.PersistentPipeline:
  values = {**_OVERHEADS, "p": 12.8, "a": 1.76, **inputs}
  return hw.persistent_pipeline(
    stage_us=(values["p"], values["a"]),
    num_blocks=8,
    launch_us=5,
    schedule_us=values["t"],
    notify_us=values["n"],
  )


def _exact_persistent(inputs: Inputs) -> hw.PersistentPipeline:
  return _persistent({"p": _projection(inputs)[1], "a": _activation_us(inputs)})


def _kernels(inputs: Inputs) -> hw.HostDeviceTimeline:
  return hw.host_device_timeline(host_us=0, device_us=inputs)


COMPUTED: Computed = {
  "s004.ex5-1.bytes": lambda i: (
    hw.transfer(
      shape=(i["r"], i["c"]),
      dtype=DTYPE_OF_BYTES[i["b"]],
      direction="h2d",
      bandwidth_bytes_per_s=64e9,
    ).bytes
    / MIB
  ),
  "s004.ex5-1.t_ms": lambda i: _h2d(i, (i["bytes"],)).total_us / 1e3,
  "s004.ex5-1.half_ms": lambda i: _h2d(i, (i["bytes"],)).total_us / 1e3,
  "s004.ex5-2.ready": lambda i: _call(i).ready_us,
  "s004.ex5-2.ready_fast": lambda i: _call(i).ready_us,
  "s004.ex5-2.speedup": lambda i: hw.time_change(before_us=i["a"], after_us=i["b"]).speedup,
  "s004.ex5-2.rest": lambda i: _call(i).besides_us("kernel"),
  "s004.sm.bw_share": lambda i: _sm_share(i).bandwidth_bytes_per_s / 1e9,
  "s004.sm.flops_share": lambda i: _peak_share(i).flops_per_s / 1e12,
  "s004.sm.t_copy": lambda i: _sm_share(i).copy_us,
  "s004.sm.t_compute": lambda i: _sm_share(i).compute_us,
  "s004.sm.copy_over_compute": lambda i: _sm_share(i).copy_over_compute,
  "s004.relayout": lambda i: (
    hw.relayout(
      shape=(i["t"] * MIB,),
      dtype="int8",
      bandwidth_bytes_per_s=1792e9,
      compute_us=0,
      direct_compute_us=0,
    ).traffic_bytes
    / MIB
  ),
  "s004.ex5-5.exact_two_slots": lambda i: _exact_pipeline(i).total_us,
  "s004.backpressure.want": lambda i: _slots(i).wanted_bytes / KIB,
  "s004.backpressure.per_block_budget": lambda i: _shared_by_two(i).budget_bytes / KIB,
  "s004.backpressure.slots": lambda i: _slots_of_budget(i).num_slots,
  "s004.ex5-10.serial": lambda i: _segments(i, overlap=False).ready_us,
  "s004.ex5-10.pipe": lambda i: _segments(i).ready_us,
  "s004.ex5-10.fast_device": lambda i: _segments(i).ready_us,
  "s004.ex5-10.fast_both": lambda i: _segments(i).ready_us,
  "s004.persist.proj_flops": lambda i: _projection(i)[0].flops / 1e9,
  "s004.persist.proj_us": lambda i: _projection(i)[1],
  "s004.persist.act_us": _activation_us,
  "s004.persist.separate": lambda i: _persistent(i).separate_us,
  "s004.persist.fused": lambda i: _persistent(i).persistent_us,
  "s004.persist.separate_exact": lambda i: _exact_persistent(i).separate_us,
  "s004.persist.fused_exact": lambda i: _exact_persistent(i).persistent_us,
  "s004.persist.speedup": lambda i: _exact_persistent(i).speedup,
  "s004.persist.proj_task": lambda i: _persistent(i).task_us[0],
  "s004.persist.act_task": lambda i: _persistent(i).task_us[1],
  "s004.persist.hidden": lambda i: _persistent({"a": _activation_us(i)}).hidden_us,
  "s004.persist.overhead": lambda i: _persistent(i).overhead_us,
  # seven activations are hidden, nine tasks are on the longest chain
  "s004.persist.saved": lambda i: _persistent({"a": i["h"] / 7, "t": i["o"] / 9, "n": 0}).saved_us,
  "s004.korch.three": lambda i: _kernels(i).device_us,
  "s004.korch.four": lambda i: _kernels(i).device_us,
}
