"""Transfers, timelines of host and device, stage times, pipelines, persistent kernels."""

import dataclasses

import golden

import hw_profiles as hw
from hw_profiles.frozen_map import FrozenMap

KIB, MIB = 1024, 1024**2

H100 = hw.get_profile("h100_sxm")
RTX = hw.get_profile("rtx_pro_6000")
QWEN = {"r": 64, "H": 4096, "F": 12288}
OVERHEADS = {"t": 0.5, "n": 0.2}


def device(profile, inputs):
  """The profile with the entry's rates."""
  changes = {
    "dram_bandwidth_bytes_per_s": inputs.get("bw"),
    "sm_count": inputs.get("sms"),
    "peak_flops": FrozenMap(bfloat16=inputs["p"]) if "p" in inputs else None,
  }
  changes = {name: value for name, value in changes.items() if value is not None}
  return dataclasses.replace(profile, **changes)


def h2d(inputs, shape):
  return hw.transfer(
    shape=shape, dtype="int8", direction="h2d", bandwidth_bytes_per_s=inputs.get("bw", 64e9)
  )


def call(inputs):
  operations = {"h2d": inputs["h2d"], "kernel": inputs.get("k", 20), "d2h": inputs["d2h"]}
  return hw.host_device_timeline(host_us=inputs["submit"], device_us=operations)


def segments(inputs, **options):
  return hw.host_device_timeline(
    host_us=inputs["h"], device_us=inputs["d"], num_segments=inputs["n"], **options
  )


def sm_share(inputs):
  return hw.stage_times(
    device(H100, inputs), bytes=inputs.get("b", 0), flops=inputs.get("f", 0), dtype="bfloat16"
  )


def peak_share(inputs):
  rates = {"p": inputs["f"], "sms": inputs["sms"]}
  return hw.stage_times(device(H100, rates), bytes=0, flops=0, dtype="bfloat16")


def exact_pipeline(inputs):
  times = sm_share(inputs)
  return hw.pipeline(
    copy_us=times.copy_us, compute_us=times.compute_us, num_slots=2, num_blocks=inputs["n"]
  )


def slots(inputs):
  return hw.slot_budget(
    device(RTX, {}),
    resident_blocks=inputs.get("blocks", 2),
    slot_bytes=inputs.get("slot", 16) * KIB,
    wanted_slots=inputs.get("slots", 3),
    other_bytes=inputs.get("reorder", 32) * KIB,
  )


def shared_by_two(inputs):
  gpu = dataclasses.replace(
    RTX,
    shared_bytes_per_sm=inputs["sm"] * KIB,
    reserved_shared_bytes_per_block=inputs["res"] * KIB,
  )
  return hw.slot_budget(gpu, resident_blocks=inputs["blocks"], slot_bytes=1, wanted_slots=0)


def slots_of_budget(inputs):
  gpu = dataclasses.replace(RTX, max_shared_bytes_per_block=inputs["b"] * KIB)
  return hw.slot_budget(
    gpu,
    resident_blocks=1,
    slot_bytes=inputs["slot"] * KIB,
    wanted_slots=3,
    other_bytes=inputs["reorder"] * KIB,
  )


def projection(inputs):
  sizes = {**QWEN, **inputs}
  problem = hw.MatmulProblem(sizes["r"], sizes["H"], sizes["F"])
  rates = {"p": inputs["p"]} if "p" in inputs else {}
  times = hw.stage_times(
    device(RTX, rates), bytes=0, flops=problem.flops, dtype="bfloat16", sharing_cores=1
  )
  return problem, times.compute_us


def activation_us(inputs):
  return hw.transfer(
    shape=(inputs["r"], inputs["F"]),
    dtype="bfloat16",
    direction="d2d",
    bandwidth_bytes_per_s=inputs["bw"],
  ).copy_us


def persistent(inputs):
  values = {**OVERHEADS, "p": 12.8, "a": 1.76, **inputs}
  return hw.persistent_pipeline(
    stage_us=(values["p"], values["a"]),
    num_blocks=8,
    launch_us=5,
    schedule_us=values["t"],
    notify_us=values["n"],
  )


def exact_persistent(inputs):
  return persistent({"p": projection(inputs)[1], "a": activation_us(inputs)})


def kernels(inputs):
  return hw.host_device_timeline(host_us=0, device_us=inputs)


COMPUTED = {
  "s004.ex5-1.bytes": lambda i: (
    hw.transfer(
      shape=(i["r"], i["c"]), dtype="bfloat16", direction="h2d", bandwidth_bytes_per_s=64e9
    ).bytes
    / MIB
  ),
  "s004.ex5-1.t_ms": lambda i: h2d(i, (i["bytes"],)).total_us / 1e3,
  "s004.ex5-1.half_ms": lambda i: h2d(i, (i["bytes"],)).total_us / 1e3,
  "s004.ex5-2.ready": lambda i: call(i).ready_us,
  "s004.ex5-2.ready_fast": lambda i: call(i).ready_us,
  "s004.ex5-2.speedup": lambda i: hw.time_change(before_us=i["a"], after_us=i["b"]).speedup,
  "s004.ex5-2.rest": lambda i: call(i).besides_us("kernel"),
  "s004.sm.bw_share": lambda i: sm_share(i).bandwidth_bytes_per_s / 1e9,
  "s004.sm.flops_share": lambda i: peak_share(i).flops_per_s / 1e12,
  "s004.sm.t_copy": lambda i: sm_share(i).copy_us,
  "s004.sm.t_compute": lambda i: sm_share(i).compute_us,
  "s004.sm.copy_over_compute": lambda i: sm_share(i).copy_over_compute,
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
  "s004.ex5-5.exact_two_slots": lambda i: exact_pipeline(i).total_us,
  "s004.backpressure.want": lambda i: slots(i).wanted_bytes / KIB,
  "s004.backpressure.per_block_budget": lambda i: shared_by_two(i).budget_bytes / KIB,
  "s004.backpressure.slots": lambda i: slots_of_budget(i).num_slots,
  "s004.ex5-10.serial": lambda i: segments(i, overlap=False).ready_us,
  "s004.ex5-10.pipe": lambda i: segments(i).ready_us,
  "s004.ex5-10.fast_device": lambda i: segments(i).ready_us,
  "s004.ex5-10.fast_both": lambda i: segments(i).ready_us,
  "s004.persist.proj_flops": lambda i: projection(i)[0].flops / 1e9,
  "s004.persist.proj_us": lambda i: projection(i)[1],
  "s004.persist.act_us": activation_us,
  "s004.persist.separate": lambda i: persistent(i).separate_us,
  "s004.persist.fused": lambda i: persistent(i).persistent_us,
  "s004.persist.separate_exact": lambda i: exact_persistent(i).separate_us,
  "s004.persist.fused_exact": lambda i: exact_persistent(i).persistent_us,
  "s004.persist.speedup": lambda i: exact_persistent(i).speedup,
  "s004.persist.proj_task": lambda i: persistent(i).task_us[0],
  "s004.persist.act_task": lambda i: persistent(i).task_us[1],
  "s004.persist.hidden": lambda i: persistent({"a": activation_us(i)}).hidden_us,
  "s004.persist.overhead": lambda i: persistent(i).overhead_us,
  # seven activations are hidden, nine tasks are on the longest chain
  "s004.persist.saved": lambda i: persistent({"a": i["h"] / 7, "t": i["o"] / 9, "n": 0}).saved_us,
  "s004.korch.three": lambda i: kernels(i).device_us,
  "s004.korch.four": lambda i: kernels(i).device_us,
}


@golden.each(COMPUTED)
def test_golden_value(identifier):
  golden.check(identifier, COMPUTED)
