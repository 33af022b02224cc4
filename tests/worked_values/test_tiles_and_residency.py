"""Tiles, traffic, residency, latency hiding, waves and L2 reuse."""

import dataclasses
import math

import golden
import pytest

import hw_profiles as hw

KIB, MIB = 1024, 1024**2

H100 = hw.get_profile("h100_sxm")
RTX = hw.get_profile("rtx_pro_6000")
V100 = dataclasses.replace(hw.get_profile("v100_sxm2"), dram_bandwidth_bytes_per_s=900e9)
FFN = {"m": 1024, "k": 4096, "n": 12288, "in_dtype": "bfloat16"}


def traffic(inputs, **overrides):
  sizes = {**FFN, "block_m": inputs.get("m", 64), "block_n": inputs.get("n", 64), "block_k": 32}
  for name in ("M", "K", "N"):
    if name in inputs:
      sizes[name.lower()] = inputs[name]
  return hw.matmul_traffic(**{**sizes, **overrides})


def tile(inputs, **overrides):
  return traffic(inputs, block_k=inputs.get("k", 32), **overrides)


def float32_tile(inputs):
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


def staged_bytes(inputs):
  result = float32_tile(inputs)
  return result.working_set_bytes - result.accumulator_bytes


def resident(inputs):
  return hw.residency(
    H100,
    threads_per_block=inputs["threads"],
    registers_per_thread=inputs["regs"],
    shared_bytes_per_block=inputs.get("smem_bytes", 0),
  )


def blocks_in_shared_memory(working_set_bytes):
  return hw.residency(
    RTX,
    threads_per_block=32,
    registers_per_thread=32,
    shared_bytes_per_block=working_set_bytes,
  ).resident_blocks


def v100_blocks(registers, threads):
  return hw.residency(
    V100, threads_per_block=threads, registers_per_thread=registers, shared_bytes_per_block=0
  )


def under_way(inputs, **overrides):
  values = {"warps": 16, "loads": 4, "b": 512, "lat": 6e-7, **inputs, **overrides}
  return hw.in_flight(
    H100,
    resident_warps=values["warps"],
    loads_per_warp=values["loads"],
    latency_ns=values["lat"] * 1e9,
    bytes_per_load=values["b"],
  )


def flow(inputs, num_slots, num_blocks=4):
  return hw.pipeline(
    copy_us=inputs["tm"],
    compute_us=inputs.get("tc", 0.28),
    num_slots=num_slots,
    num_blocks=num_blocks,
  )


def rectangle(inputs):
  return hw.l2_hit_rate(
    block_m=inputs["BM"],
    block_n=inputs["BN"],
    tiles_m=inputs["Wm"],
    tiles_n=inputs["Wn"],
    wave_programs=inputs["Wm"] * inputs["Wn"],
  )


def launch_order(inputs):
  return hw.l2_hit_rate(
    block_m=128,
    block_n=128,
    tiles_m=inputs["grid_m"],
    tiles_n=inputs["grid_n"],
    wave_programs=inputs["wave"],
    group_m=inputs["group"],
  )


def peak_share(inputs):
  result = tile(inputs)
  flops = 2 * FFN["m"] * FFN["k"] * FFN["n"]
  return hw.roofline(H100, flops=flops, bytes=result.total_bytes, dtype="bfloat16").peak_fraction


def h100_facts(_):
  return {
    "sms": H100.sm_count,
    "max_threads": H100.max_threads_per_sm,
    "max_warps": H100.max_warps_per_sm,
    "max_blocks": H100.max_blocks_per_sm,
    "regs": H100.registers_per_sm,
    "smem": H100.shared_bytes_per_sm,
    "smem_reserved_per_block": H100.reserved_shared_bytes_per_block,
    "hbm_Bps": H100.dram_bandwidth_bytes_per_s,
    "bf16_dense_flops": H100.peak_flops["bfloat16"],
  }


def rtx_facts(_):
  return {
    "cc": ".".join(map(str, RTX.compute_capability)),
    "smem_per_sm": RTX.shared_bytes_per_sm,
    "smem_per_block": RTX.max_shared_bytes_per_block,
    "smem_reserved_per_block": RTX.reserved_shared_bytes_per_block,
    "mem_Bps": RTX.dram_bandwidth_bytes_per_s,
    "bf16_dense_flops": RTX.peak_flops["bfloat16"],
  }


def ridge(profile, dtype):
  return hw.roofline(profile, flops=1, bytes=1, dtype=dtype).ridge


def residency_part(inputs):
  result = resident(inputs)
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


BY_SUFFIX = {
  "local": lambda i: tile(i).working_set_bytes / KIB,
  "readA": lambda i: tile(i).a_read_bytes / MIB,
  "readW": lambda i: tile(i).b_read_bytes / MIB,
  "traffic": lambda i: tile(i).total_bytes / MIB,
  "ai": lambda i: tile(i).intensity,
  "mfu_cap": peak_share,
  "rtx_blocks": lambda i: blocks_in_shared_memory(tile(i).working_set_bytes),
}
COMPUTED = {
  "s000.roofline.v100_ridge": lambda i: ridge(V100, "float32"),
  "s000.gemm.flops_4096": lambda i: hw.MatmulProblem(i["M"], i["K"], i["N"]).flops,
  "s000.wave.blocks": lambda i: (
    hw.wave(programs=1, cores=i["sms"], programs_per_core=i["blocks_per_sm"]).programs_per_wave
  ),
  "s000.l2hit.dram_traffic_ratio_row_vs_grouped10": lambda i: (
    (1 - launch_order({"grid_m": 128, "grid_n": 128, "wave": 160, "group": 1}))
    / (1 - launch_order({"grid_m": 128, "grid_n": 128, "wave": 160, "group": 10}))
  ),
  "s000.naive.dram_bound_fraction_of_peak": lambda i: (
    hw.roofline(V100, flops=i["ai"], bytes=1, dtype="float32").peak_fraction
  ),
  "s000.block.panel_bytes_K4096": lambda i: staged_bytes({**i, "BK": i["K"]}),
  "s000.block.panel_bytes_K20480": lambda i: staged_bytes({**i, "BK": i["K"]}),
  "s000.block.ai_128_from_counts": lambda i: 2 * i["BM"] * i["BN"] * i["BK"] / staged_bytes(i),
  "s000.block.ai_over_ridge": lambda i: i["ai"] / ridge(V100, "float32"),
  "s000.block.smem_per_matrix": lambda i: float32_tile(i).a_tile_bytes,
  "s000.regs.blocks": lambda i: v100_blocks(i["regs"], i["threads"]).resident_blocks,
  "s000.regs.warps": lambda i: v100_blocks(128, i["threads"]).resident_warps,
  "s000.regs.occupancy": lambda i: v100_blocks(128, 256).occupancy,
  "s000.regs.occupancy_at_255": lambda i: v100_blocks(i["regs"], i["threads"]).occupancy,
  "s000.regs.launch_bounds_cap": lambda i: max(
    registers
    for registers in range(1, 256)
    if v100_blocks(registers, i["threads"]).resident_blocks >= i["blocks"]
  ),
  "s004.intro.X": lambda i: traffic({}, block_n=12288).a_read_bytes / MIB,
  "s004.intro.W": lambda i: traffic({}, block_m=1024).b_read_bytes / MIB,
  "s004.intro.C": lambda i: traffic({}).c_write_bytes / MIB,
  "s004.sm.A_tile": lambda i: tile({"n": 128, **i}).a_tile_bytes / KIB,
  "s004.sm.W_tile": lambda i: tile({"m": 128, **i}).b_tile_bytes / KIB,
  "s004.sm.acc": lambda i: tile(i).accumulator_bytes / KIB,
  "s004.sm.working_set": lambda i: tile(i).working_set_bytes / KIB,
  "s004.sm.warps_per_block": lambda i: (
    resident({"threads": i["t"], "regs": 128}).resident_warps
    / resident({"threads": i["t"], "regs": 128}).resident_blocks
  ),
  "s004.sm.base.smem_left": lambda i: (
    resident({"threads": 256, "regs": 128, "smem_bytes": 96 * KIB}).leftover["shared_memory"] / KIB
  ),
  "s004.little.need_per_sm": lambda i: under_way(i).required_bytes_per_sm,
  "s004.little.have": lambda i: under_way(i).available_bytes_per_sm,
  "s004.little.coverage": lambda i: under_way(i).coverage,
  "s004.little.min_warps": lambda i: under_way(i).min_warps,
  "s004.flip.need_per_sm": lambda i: under_way(i).required_bytes_per_sm,
  "s004.flip.have": lambda i: under_way(i).available_bytes_per_sm,
  "s004.flip.coverage": lambda i: under_way(i).coverage,
  "s004.flip.min_warps": lambda i: under_way(i).min_warps,
  "s004.flip.effective_bw_fraction": lambda i: (
    under_way({}, loads=2, lat=1e-6).effective_bandwidth_bytes_per_s
    / H100.dram_bandwidth_bytes_per_s
  ),
  "s004.sm.tile_ai": lambda i: i["f"] / (2 * tile({"m": 128, "n": 128, "k": 64}).a_tile_bytes),
  "s004.h100.ridge": lambda i: ridge(H100, "bfloat16"),
  "s004.rtxpro6000.ridge": lambda i: ridge(RTX, "bfloat16"),
  "s004.gemm.flops": lambda i: hw.MatmulProblem(i["M"], i["K"], i["N"]).flops / 1e9,
  "s004.gemm.once": lambda i: hw.MatmulProblem(i["M"], i["K"], i["N"]).once_through_bytes / MIB,
  "s004.ex5-3.equal_bw_ratio": lambda i: (
    tile({"m": 128, "n": 128}).total_bytes / tile({"m": 64, "n": 64}).total_bytes
  ),
  "s004.ex5-3.t64.row_tiles": lambda i: tile({"n": 64, **i}).grid[0],
  "s004.ex5-3.t64.col_tiles": lambda i: tile({"m": 64, **i}).grid[1],
  "s004.ex5-5.serial": lambda i: flow(i, 1, i["n"]).total_us,
  "s004.ex5-5.two_slots": lambda i: flow(i, 2, i["n"]).total_us,
  "s004.ex5-5.three_slots": lambda i: flow(i, 3, i["n"]).total_us,
  "s004.ex5-5.block0_done": lambda i: flow(i, 2).events[0].compute_end_us,
  "s004.ex5-5.block1_copied": lambda i: flow(i, 2).events[1].copy_end_us,
  "s004.ex5-5.mover_end": lambda i: flow(i, 2).events[-1].copy_end_us,
  "s004.ex5-5.compute_busy": lambda i: flow({"tm": 1.29, **i}, 2).compute_busy,
  "s004.ex5-5.saving": lambda i: (
    1 - flow({"tm": 1.29}, 2).total_us / flow({"tm": 1.29}, 1).total_us
  ),
  "s004.loop.k_chunks": lambda i: traffic(i, block_k=i["k"]).k_steps,
  "s004.loop.linear_tiles": lambda i: math.prod(traffic({}).grid),
  "s004.loop.acc_bytes": lambda i: tile(i).accumulator_bytes / KIB,
  "s004.loop.in_tile": lambda i: tile({"n": 64, **i}).a_tile_bytes / KIB,
  "s004.loop.tile_pair_loads": lambda i: tile(i).tile_pair_loads,
  "s004.select.double_buffer_64": lambda i: tile(i, num_stages=2).working_set_bytes / KIB,
  "s004.select.double_buffer_128": lambda i: tile(i, num_stages=2).working_set_bytes / KIB,
  "s004.select.resident_64": lambda i: blocks_in_shared_memory(i["ws"] * KIB),
  "s004.select.resident_128": lambda i: blocks_in_shared_memory(i["ws"] * KIB),
  "s000.l2hit.128x128.wave1x160": rectangle,
  "s000.l2hit.128x128.wave2x80": rectangle,
  "s000.l2hit.128x128.wave4x40": rectangle,
  "s000.l2hit.128x128.wave5x32": rectangle,
  "s000.l2hit.128x128.wave8x20": rectangle,
  "s000.l2hit.128x128.wave10x16": rectangle,
  "s000.l2hit.128x128.wave16x10": rectangle,
  "s000.l2hit.128x128.wave160x1": rectangle,
  "s000.l2hit.128x64.wave10x16": rectangle,
  "s000.l2hit.128x64.wave16x10": rectangle,
  "s000.l2hit.launchorder.row32": launch_order,
  "s000.l2hit.launchorder.row128": launch_order,
  "s000.l2hit.launchorder.grouped10_128": launch_order,
  "s000.l2hit.launchorder.grouped8_128": launch_order,
  "s000.db.smem_double_buffer": staged_bytes,
  "s000.db.smem_double_buffer_bk16": staged_bytes,
  "s000.async.smem_2_stages": staged_bytes,
  "s000.async.smem_3_stages": staged_bytes,
  "s000.async.smem_4_stages": staged_bytes,
  "s004.sm.base.threads": residency_part,
  "s004.sm.base.registers": residency_part,
  "s004.sm.base.shared": residency_part,
  "s004.sm.base.cap": residency_part,
  "s004.sm.base.blocks": residency_part,
  "s004.sm.base.warps": residency_part,
  "s004.sm.base.occupancy": residency_part,
  "s004.sm.base.binding": residency_part,
  "s004.sm.accreg.shared_blocks": residency_part,
  "s004.sm.accreg64.blocks": residency_part,
  "s004.sm.accreg64.binding": residency_part,
  "s004.sm.accreg128.blocks": residency_part,
  "s004.ex5-3.t32.local": BY_SUFFIX["local"],
  "s004.ex5-3.t32.readA": BY_SUFFIX["readA"],
  "s004.ex5-3.t32.readW": BY_SUFFIX["readW"],
  "s004.ex5-3.t32.traffic": BY_SUFFIX["traffic"],
  "s004.ex5-3.t32.ai": BY_SUFFIX["ai"],
  "s004.ex5-3.t32.mfu_cap": BY_SUFFIX["mfu_cap"],
  "s004.ex5-3.t64.local": BY_SUFFIX["local"],
  "s004.ex5-3.t64.readA": BY_SUFFIX["readA"],
  "s004.ex5-3.t64.readW": BY_SUFFIX["readW"],
  "s004.ex5-3.t64.traffic": BY_SUFFIX["traffic"],
  "s004.ex5-3.t64.ai": BY_SUFFIX["ai"],
  "s004.ex5-3.t64.mfu_cap": BY_SUFFIX["mfu_cap"],
  "s004.ex5-3.t128.local": BY_SUFFIX["local"],
  "s004.ex5-3.t128.readA": BY_SUFFIX["readA"],
  "s004.ex5-3.t128.readW": BY_SUFFIX["readW"],
  "s004.ex5-3.t128.traffic": BY_SUFFIX["traffic"],
  "s004.ex5-3.t128.ai": BY_SUFFIX["ai"],
  "s004.ex5-3.t128.mfu_cap": BY_SUFFIX["mfu_cap"],
  "s004.ex5-3.t32.rtx_blocks": BY_SUFFIX["rtx_blocks"],
  "s004.ex5-3.t64.rtx_blocks": BY_SUFFIX["rtx_blocks"],
  "s004.ex5-3.t128.rtx_blocks": BY_SUFFIX["rtx_blocks"],
}


@golden.each(COMPUTED)
def test_golden_value(identifier):
  golden.check(identifier, COMPUTED)


@pytest.mark.parametrize(
  ("identifier", "facts"), [("s004.hw.h100", h100_facts), ("s004.hw.rtx_pro_6000", rtx_facts)]
)
def test_profiles_hold_the_data_the_text_gives(identifier, facts):
  expected = golden.VALUES[identifier]["expected"]
  ours = facts(None)
  assert ours == {name: expected[name] for name in ours}
