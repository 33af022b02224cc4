"""Tiles, traffic, residency, latency hiding, waves and L2 reuse."""

import dataclasses
import math
from typing import Any

import hw_profiles as hw
from hw_profiles.examples.computed import KIB, MIB, Computed, Inputs, over
from hw_profiles.examples.devices import H100, RTX, V100, device_of

_SIZES = {"int8": 1, "bfloat16": 2, "float32": 4}
_FFN: dict[str, Any] = {"m": 1024, "k": 4096, "n": 12288, "in_dtype": "bfloat16"}


def _traffic(inputs: Inputs, **overrides: Any) -> hw.MatmulTraffic:
  sizes = {**_FFN, "block_m": inputs.get("m", 64), "block_n": inputs.get("n", 64), "block_k": 32}
  for name in ("M", "K", "N"):
    if name in inputs:
      sizes[name.lower()] = inputs[name]
  return hw.matmul_traffic(**{**sizes, **overrides})


def _tile(inputs: Inputs, **overrides: Any) -> hw.MatmulTraffic:
  return _traffic(inputs, block_k=inputs.get("k", 32), **overrides)


def _float32_tile(inputs: Inputs) -> hw.MatmulTraffic:
  """The first text's kernels: float32, operand tiles only in shared memory."""
  return hw.matmul_traffic(
    m=4096,
    k=inputs.get("K", 4096),
    n=4096,
    block_m=inputs["BM"],
    block_n=inputs.get("BN", 128),
    block_k=inputs.get("BK", inputs.get("K", 8)),
    in_dtype="float32",
    num_stages=inputs.get("stages", 1),
  )


def _staged_bytes(inputs: Inputs) -> int:
  result = _float32_tile(inputs)
  return result.working_set_bytes - result.accumulator_bytes


def _resident(inputs: Inputs) -> hw.Residency:
  return hw.residency(
    H100,
    threads_per_block=inputs["threads"],
    registers_per_thread=inputs["regs"],
    shared_bytes_per_block=inputs.get("smem_bytes", 0),
  )


def _blocks_in_shared_memory(
  working_set_bytes: int, *, sm_bytes: int, reserved_bytes: int = KIB
) -> int:
  """Blocks of an SM with that much shared memory, some of it reserved for each."""
  device = dataclasses.replace(
    RTX, shared_bytes_per_sm=sm_bytes, reserved_shared_bytes_per_block=reserved_bytes
  )
  return hw.residency(
    device,
    threads_per_block=32,
    registers_per_thread=32,
    shared_bytes_per_block=working_set_bytes,
  ).resident_blocks


def _by_registers(inputs: Inputs, **overrides: int) -> hw.Residency:
  """Residency on the V100, with the entry's registers an SM and warps where it has them.

  Where the entry has no registers a thread, it has the blocks that they allow.
  """
  values = {"threads": 256, "sm": V100.registers_per_sm, **inputs, **overrides}
  device = dataclasses.replace(device_of(V100, values), registers_per_sm=values["sm"])
  threads = values["threads"]
  registers = values.get("regs", values["sm"] // (values.get("blocks", 1) * threads))
  return hw.residency(
    device,
    threads_per_block=threads,
    registers_per_thread=registers,
    shared_bytes_per_block=0,
  )


def _matrix(rows: int, columns: int, element_bytes: int) -> hw.MatmulTraffic:
  """A product that reads a matrix of this size once, as its A."""
  dtype = next(name for name in ("int8", "bfloat16", "float32") if _SIZES[name] == element_bytes)
  return hw.matmul_traffic(
    m=rows, k=columns, n=1, block_m=rows, block_n=1, block_k=1, in_dtype=dtype
  )


def _left_in_shared_memory(inputs: Inputs) -> int:
  """What blocks of the entry's size leave of the entry's shared memory, in bytes."""
  device = dataclasses.replace(H100, shared_bytes_per_sm=inputs["total"] * KIB)
  threads = 256
  return hw.residency(
    device,
    threads_per_block=threads,
    registers_per_thread=device.registers_per_sm // (inputs["blocks"] * threads),
    shared_bytes_per_block=inputs["per"] * KIB - device.reserved_shared_bytes_per_block,
  ).leftover["shared_memory"]


def _under_way(inputs: Inputs, **overrides: Any) -> hw.InFlight:
  values = {"warps": 16, "loads": 4, "b": 512, "lat": 6e-7, **inputs, **overrides}
  return hw.in_flight(
    device_of(H100, inputs),
    resident_warps=values["warps"],
    loads_per_warp=values["loads"],
    latency_ns=values["lat"] * 1e9,
    bytes_per_load=values["b"],
  )


def _flow(inputs: Inputs, num_slots: int, num_blocks: int = 4) -> hw.Pipeline:
  return hw.pipeline(
    copy_us=inputs["tm"],
    compute_us=inputs.get("tc", 0.28),
    num_slots=num_slots,
    num_blocks=num_blocks,
  )


def _rectangle(inputs: Inputs) -> float:
  return hw.l2_hit_rate(
    block_m=inputs["BM"],
    block_n=inputs["BN"],
    tiles_m=inputs["Wm"],
    tiles_n=inputs["Wn"],
    wave_programs=inputs["Wm"] * inputs["Wn"],
  )


def _launch_order(inputs: Inputs) -> float:
  return hw.l2_hit_rate(
    block_m=128,
    block_n=128,
    tiles_m=inputs["grid_m"],
    tiles_n=inputs["grid_n"],
    wave_programs=inputs["wave"],
    group_m=inputs["group"],
  )


def _peak_share(inputs: Inputs) -> float:
  result = _tile(inputs)
  flops = hw.MatmulProblem(inputs["M"], inputs["K"], inputs["N"]).flops
  device = device_of(H100, inputs)
  return hw.roofline(device, flops=flops, bytes=result.total_bytes, dtype="bfloat16").peak_fraction


def _ridge(profile: hw.GpuProfile, inputs: Inputs, dtype: str = "bfloat16") -> float:
  device = device_of(profile, inputs, dtype=dtype)
  return hw.roofline(device, flops=1, bytes=1, dtype=dtype).ridge


def _residency_part(inputs: Inputs) -> Any:
  result = _resident(inputs)
  return {
    "threads": result.blocks_by["threads"],
    "registers": result.blocks_by["registers"],
    "shared": result.blocks_by["shared_memory"],
    "cap": result.blocks_by["blocks"],
    "blocks": result.resident_blocks,
    "warps": result.resident_warps,
    "occupancy": result.occupancy,
    "binding": "+".join(name.removesuffix("_memory") for name in result.binding),
  }[inputs["what"]]


_BY_SUFFIX = {
  "local": lambda i: _tile(i).working_set_bytes / KIB,
  "readA": lambda i: _tile(i).a_read_bytes / MIB,
  "readW": lambda i: _tile(i).b_read_bytes / MIB,
  "traffic": lambda i: _tile(i).total_bytes / MIB,
  "ai": lambda i: _tile(i).intensity,
  "mfu_cap": _peak_share,
  "rtx_blocks": lambda i: _blocks_in_shared_memory(
    _tile(i).working_set_bytes, sm_bytes=i["sm"], reserved_bytes=i["res"]
  ),
}

COMPUTED: Computed = {
  "s000.roofline.v100_ridge": lambda i: _ridge(V100, i, "float32"),
  "s000.gemm.flops_4096": lambda i: hw.MatmulProblem(i["M"], i["K"], i["N"]).flops,
  "s000.wave.blocks": lambda i: (
    hw.wave(programs=1, cores=i["sms"], programs_per_core=i["blocks_per_sm"]).programs_per_wave
  ),
  "s000.l2hit.dram_traffic_ratio_row_vs_grouped10": lambda i: (
    # what misses L2
    over({"a": 1 - i["h_row"], "b": 1 - i["h_grp"]})
  ),
  "s000.naive.dram_bound_fraction_of_peak": lambda i: (
    hw.roofline(
      device_of(V100, i, dtype="float32"), flops=i["ai"], bytes=1, dtype="float32"
    ).peak_fraction
  ),
  "s000.block.panel_bytes_K4096": lambda i: _staged_bytes({**i, "BK": i["K"]}),
  "s000.block.panel_bytes_K20480": lambda i: _staged_bytes({**i, "BK": i["K"]}),
  "s000.block.ai_128_from_counts": lambda i: 2 * i["BM"] * i["BN"] * i["BK"] / _staged_bytes(i),
  "s000.block.ai_over_ridge": lambda i: i["ai"] / _ridge(V100, i, "float32"),
  "s000.block.smem_per_matrix": lambda i: _float32_tile(i).a_tile_bytes,
  "s000.regs.blocks": lambda i: _by_registers(i).resident_blocks,
  "s000.regs.warps": lambda i: _by_registers(i).resident_warps,
  "s000.regs.occupancy": lambda i: _by_registers(i, threads=32 * i["warps"]).occupancy,
  "s000.regs.occupancy_at_255": lambda i: _by_registers(i).occupancy,
  "s000.regs.launch_bounds_cap": lambda i: max(
    registers
    for registers in range(1, min(255, i["sm"] // i["threads"]) + 1)
    if _by_registers(i, regs=registers).resident_blocks >= i["blocks"]
  ),
  "s004.intro.X": lambda i: _matrix(i["r"], i["c"], i["b"]).a_read_bytes / MIB,
  "s004.intro.W": lambda i: _matrix(i["r"], i["c"], i["b"]).a_read_bytes / MIB,
  "s004.intro.C": lambda i: _matrix(i["r"], i["c"], i["b"]).a_read_bytes / MIB,
  "s004.sm.A_tile": lambda i: _tile({"n": 128, **i}).a_tile_bytes / KIB,
  "s004.sm.W_tile": lambda i: _tile({"m": 128, **i}).b_tile_bytes / KIB,
  "s004.sm.acc": lambda i: _tile(i).accumulator_bytes / KIB,
  "s004.sm.working_set": lambda i: _tile(i).working_set_bytes / KIB,
  "s004.sm.warps_per_block": lambda i: (
    _resident({"threads": i["t"], "regs": 128}).resident_warps
    / _resident({"threads": i["t"], "regs": 128}).resident_blocks
  ),
  "s004.sm.base.smem_left": lambda i: _left_in_shared_memory(i) / KIB,
  "s004.little.need_per_sm": lambda i: _under_way(i).required_bytes_per_sm,
  "s004.little.have": lambda i: _under_way(i).available_bytes_per_sm,
  "s004.little.coverage": lambda i: _under_way(i).coverage,
  "s004.little.min_warps": lambda i: _under_way(i).min_warps,
  "s004.flip.need_per_sm": lambda i: _under_way(i).required_bytes_per_sm,
  "s004.flip.have": lambda i: _under_way(i).available_bytes_per_sm,
  "s004.flip.coverage": lambda i: _under_way(i).coverage,
  "s004.flip.min_warps": lambda i: _under_way(i).min_warps,
  "s004.flip.effective_bw_fraction": lambda i: (
    # as many loads of a warp under way as there are bytes, for the need that 1 us makes
    hw.in_flight(
      dataclasses.replace(H100, dram_bandwidth_bytes_per_s=i["need"] * H100.sm_count * 1e6),
      resident_warps=1,
      loads_per_warp=1,
      bytes_per_load=i["have"],
      latency_ns=1000,
    ).coverage
  ),
  "s004.sm.tile_ai": lambda i: (
    hw.roofline(H100, flops=i["f"], bytes=i["b"], dtype="bfloat16").intensity
  ),
  "s004.h100.ridge": lambda i: _ridge(H100, i),
  "s004.rtxpro6000.ridge": lambda i: _ridge(RTX, i),
  "s004.gemm.flops": lambda i: hw.MatmulProblem(i["M"], i["K"], i["N"]).flops / 1e9,
  "s004.gemm.once": lambda i: hw.MatmulProblem(i["M"], i["K"], i["N"]).once_through_bytes / MIB,
  "s004.ex5-3.equal_bw_ratio": lambda i: hw.memory_time_ratio(bytes=i["a"], baseline_bytes=i["b"]),
  "s004.ex5-3.t64.row_tiles": lambda i: _tile({"n": 64, **i}).grid[0],
  "s004.ex5-3.t64.col_tiles": lambda i: _tile({"m": 64, **i}).grid[1],
  "s004.ex5-5.serial": lambda i: _flow(i, 1, i["n"]).total_us,
  "s004.ex5-5.two_slots": lambda i: _flow(i, 2, i["n"]).total_us,
  "s004.ex5-5.three_slots": lambda i: _flow(i, 3, i["n"]).total_us,
  "s004.ex5-5.block0_done": lambda i: _flow(i, 2).events[0].compute_end_us,
  "s004.ex5-5.block1_copied": lambda i: _flow(i, 2).events[1].copy_end_us,
  "s004.ex5-5.mover_end": lambda i: _flow(i, 2).events[-1].copy_end_us,
  "s004.ex5-5.compute_busy": lambda i: _flow({"tm": 1.29, **i}, 2).compute_busy,
  "s004.ex5-5.saving": lambda i: hw.time_change(before_us=i["a"], after_us=i["b"]).saved_fraction,
  "s004.loop.k_chunks": lambda i: _traffic(i, block_k=i["k"]).k_steps,
  "s004.loop.linear_tiles": lambda i: math.prod(
    _traffic({"M": 64 * i["a"], "N": 64 * i["b"]}).grid
  ),
  "s004.loop.acc_bytes": lambda i: _tile(i).accumulator_bytes / KIB,
  "s004.loop.in_tile": lambda i: _tile({"n": 64, **i}).a_tile_bytes / KIB,
  "s004.loop.tile_pair_loads": lambda i: _tile(i).tile_pair_loads,
  "s004.select.double_buffer_64": lambda i: _tile(i, num_stages=2).working_set_bytes / KIB,
  "s004.select.double_buffer_128": lambda i: _tile(i, num_stages=2).working_set_bytes / KIB,
  "s004.select.resident_64": lambda i: _blocks_in_shared_memory(
    i["ws"] * KIB, sm_bytes=i["sm"] * KIB
  ),
  "s004.select.resident_128": lambda i: _blocks_in_shared_memory(
    i["ws"] * KIB, sm_bytes=i["sm"] * KIB
  ),
  "s000.l2hit.128x128.wave1x160": _rectangle,
  "s000.l2hit.128x128.wave2x80": _rectangle,
  "s000.l2hit.128x128.wave4x40": _rectangle,
  "s000.l2hit.128x128.wave5x32": _rectangle,
  "s000.l2hit.128x128.wave8x20": _rectangle,
  "s000.l2hit.128x128.wave10x16": _rectangle,
  "s000.l2hit.128x128.wave16x10": _rectangle,
  "s000.l2hit.128x128.wave160x1": _rectangle,
  "s000.l2hit.128x64.wave10x16": _rectangle,
  "s000.l2hit.128x64.wave16x10": _rectangle,
  "s000.l2hit.launchorder.row32": _launch_order,
  "s000.l2hit.launchorder.row128": _launch_order,
  "s000.l2hit.launchorder.grouped10_128": _launch_order,
  "s000.l2hit.launchorder.grouped8_128": _launch_order,
  "s000.db.smem_double_buffer": _staged_bytes,
  "s000.db.smem_double_buffer_bk16": _staged_bytes,
  "s000.async.smem_2_stages": _staged_bytes,
  "s000.async.smem_3_stages": _staged_bytes,
  "s000.async.smem_4_stages": _staged_bytes,
  "s004.sm.base.threads": _residency_part,
  "s004.sm.base.registers": _residency_part,
  "s004.sm.base.shared": _residency_part,
  "s004.sm.base.cap": _residency_part,
  "s004.sm.base.blocks": _residency_part,
  "s004.sm.base.warps": _residency_part,
  "s004.sm.base.occupancy": _residency_part,
  "s004.sm.base.binding": _residency_part,
  "s004.sm.accreg.shared_blocks": _residency_part,
  "s004.sm.accreg64.blocks": _residency_part,
  "s004.sm.accreg64.binding": _residency_part,
  "s004.sm.accreg128.blocks": _residency_part,
  "s004.ex5-3.t32.local": _BY_SUFFIX["local"],
  "s004.ex5-3.t32.readA": _BY_SUFFIX["readA"],
  "s004.ex5-3.t32.readW": _BY_SUFFIX["readW"],
  "s004.ex5-3.t32.traffic": _BY_SUFFIX["traffic"],
  "s004.ex5-3.t32.ai": _BY_SUFFIX["ai"],
  "s004.ex5-3.t32.mfu_cap": _BY_SUFFIX["mfu_cap"],
  "s004.ex5-3.t64.local": _BY_SUFFIX["local"],
  "s004.ex5-3.t64.readA": _BY_SUFFIX["readA"],
  "s004.ex5-3.t64.readW": _BY_SUFFIX["readW"],
  "s004.ex5-3.t64.traffic": _BY_SUFFIX["traffic"],
  "s004.ex5-3.t64.ai": _BY_SUFFIX["ai"],
  "s004.ex5-3.t64.mfu_cap": _BY_SUFFIX["mfu_cap"],
  "s004.ex5-3.t128.local": _BY_SUFFIX["local"],
  "s004.ex5-3.t128.readA": _BY_SUFFIX["readA"],
  "s004.ex5-3.t128.readW": _BY_SUFFIX["readW"],
  "s004.ex5-3.t128.traffic": _BY_SUFFIX["traffic"],
  "s004.ex5-3.t128.ai": _BY_SUFFIX["ai"],
  "s004.ex5-3.t128.mfu_cap": _BY_SUFFIX["mfu_cap"],
  "s004.ex5-3.t32.rtx_blocks": _BY_SUFFIX["rtx_blocks"],
  "s004.ex5-3.t64.rtx_blocks": _BY_SUFFIX["rtx_blocks"],
  "s004.ex5-3.t128.rtx_blocks": _BY_SUFFIX["rtx_blocks"],
}
