"""Tiling inside an SM: intensities, lanes, registers, instructions."""

import dataclasses
import math
from typing import Any, Literal

import hw_profiles as hw
from hw_profiles.examples.computed import Computed, Inputs, change, over
from hw_profiles.examples.devices import H100, V100

_FLOAT = 4

# the first text's block: 128 x 128 outputs, 8 deep, of 256 threads
_BLOCK = {"BM": 128, "BN": 128, "BK": 8, "TM": 8, "TN": 8, "threads": 256}


def _block(inputs: Inputs) -> hw.TileIntensity:
  return hw.tile_intensity(tile_m=inputs["BM"], tile_n=inputs["BN"])


def _thread(inputs: Inputs) -> hw.TileIntensity:
  return hw.tile_intensity(tile_m=inputs["TM"], tile_n=inputs["TN"])


_INNER_PRODUCT = hw.tile_intensity(tile_m=1, tile_n=1)


def _per_element(flops: int, bytes: int) -> float:
  """FLOP per byte of a loop that reads what it multiplies."""
  return hw.roofline(V100, flops=flops, bytes=bytes, dtype="float32").intensity


def _over_inner_product(inputs: Inputs) -> float:
  return _block({**_BLOCK, **inputs}).intensity / _INNER_PRODUCT.intensity


def _ceiling(inputs: Inputs) -> float:
  """What one tier allows, whatever the arithmetic does."""
  tier = hw.Tier("tier", inputs["ai"], inputs["bw"])
  return hw.tier_ceilings(tier, peak_flops_per_s=15.7e12).flops_per_s_by["tier"]


def _warp(inputs: Inputs) -> hw.TileIntensity:
  return hw.warp_intensity(
    lane_rows=inputs["Wm"],
    lane_columns=inputs["Wn"],
    thread_m=inputs.get("TM", inputs.get("T")),
    thread_n=inputs.get("TN", inputs.get("T")),
  )


def _budget(inputs: Inputs, **overrides: Any) -> hw.RegisterBudget:
  return hw.register_budget(
    V100,
    thread_m=inputs.get("TM", 8),
    thread_n=inputs.get("TN", 8),
    threads_per_block=inputs.get("threads", 128),
    **overrides,
  )


def load_a(inputs: Inputs, vector: int = 1) -> hw.CooperativeLoad:
  """A's tile: one row of BK elements after another."""
  sizes = {**_BLOCK, **inputs}
  return hw.CooperativeLoad(
    tile_rows=sizes["BM"],
    tile_columns=sizes["BK"],
    threads=sizes["threads"],
    threads_per_row=sizes["BK"] // vector,
    vector=vector,
  )


def _load_b(inputs: Inputs) -> hw.CooperativeLoad:
  sizes = {**_BLOCK, "X": 32, **inputs}
  return hw.CooperativeLoad(
    tile_rows=sizes["BK"],
    tile_columns=sizes["BN"],
    threads=sizes["threads"],
    threads_per_row=sizes["X"],
  )


def _sectors(inputs: Inputs) -> int:
  load = {"tileA": load_a, "tileB": _load_b}[inputs["kind"]]({})
  return load.global_sectors(pitch_bytes=4096 * _FLOAT).sectors


def _thread_grid(inputs: Inputs, run: int = 1) -> hw.ThreadTiling:
  """Threads 16 across; what is not given is the first text's."""
  sizes = {**_BLOCK, "CX": 16, **inputs}
  rows = sizes["threads"] // sizes["CX"]
  return hw.ThreadTiling(
    thread_rows=rows,
    thread_columns=sizes["CX"],
    thread_m=sizes["BM"] // rows,
    thread_n=sizes["BN"] // sizes["CX"],
    run_m=run,
    run_n=run,
  )


def _warp_grid(inputs: Inputs = _BLOCK) -> hw.WarpTiling:
  sizes = {"Wm": 4, "Wn": 8, "TM": inputs.get("T", 8), "TN": inputs.get("T", 8), **inputs}
  lanes = hw.LaneMap(rows=sizes["Wm"], columns=sizes["Wn"])
  return hw.WarpTiling(
    lanes=lanes,
    thread_m=sizes["TM"],
    thread_n=sizes["TN"],
    warp_rows=128 // (lanes.rows * sizes["TM"]),
    warp_columns=128 // (lanes.columns * sizes["TN"]),
  )


def _covered(inputs: Inputs) -> int:
  tiling = {
    "strided": lambda: _thread_grid(inputs, run=1),
    "float4": lambda: _thread_grid(inputs, run=4),
    "warp4x8": lambda: _warp_grid(inputs),
  }[inputs["scheme"]]()
  result = hw.coverage(tiling.outputs(), rows=inputs["BM"], columns=inputs["BN"])
  assert result.is_bijection
  return result.covered


def _barriers(inputs: Inputs) -> int:
  """Of the number of buffers that needs as many barriers an iteration as the entry has."""
  buffers: dict[int, Literal[1, 2]] = {2: 1, 1: 2}
  loop = hw.k_loop(k=inputs["K"], block_k=inputs["BK"], shared_buffers=buffers[inputs["per_iter"]])
  return loop.loop_barriers


def _sides(product: int, total: int) -> Inputs:
  """Of the thread tile with so many outputs, and so many elements read for them."""
  root = math.isqrt(total * total - 4 * product)
  return {"TM": (total + root) // 2, "TN": (total - root) // 2}


def _mma(inputs: Inputs, groups: int = 1) -> hw.MmaCount:
  shape = hw.MmaShape(m=inputs.get("m", 16), n=inputs.get("n", 8), k=inputs.get("k", 16))
  return hw.mma_instructions(
    block_m=inputs.get("M", 128),
    block_n=inputs.get("N", 128),
    block_k=inputs.get("K", 64),
    shape=shape,
    groups=groups,
  )


def _accumulator_registers(inputs: Inputs) -> int:
  return hw.accumulator_placement(
    H100,
    placement="registers",
    block_m=inputs["m"],
    block_n=inputs["n"],
    block_k=64,
    threads_per_block=inputs["threads"],
    base_registers_per_thread=64,
  ).accumulator_registers_per_thread


def _card_bytes(inputs: Inputs) -> float:
  gpu = dataclasses.replace(H100, dram_bandwidth_bytes_per_s=inputs["bw"])
  under_way = hw.in_flight(gpu, resident_warps=16, loads_per_warp=4, latency_ns=inputs["lat"] * 1e9)
  return under_way.required_bytes_per_sm * gpu.sm_count / 1e6


def _checked(inputs: Inputs) -> hw.CheckedParameters:
  return hw.check_gemm_parameters(
    V100,
    hw.GemmParameters(
      block_m=inputs["BM"],
      block_n=inputs["BN"],
      thread_m=inputs["TM"],
      thread_n=inputs["TN"],
      threads_per_block=inputs.get("threads"),
    ),
  )


def _origin(inputs: Inputs) -> list[int]:
  return list(_warp_grid().output(inputs["tid"], 0, 0))


def _float4_place(inputs: Inputs) -> list[int]:
  tiling = _thread_grid({}, run=4)
  return list(tiling.output(inputs["ty"] * 16 + inputs["tx"], inputs["i"], inputs["j"]))


COMPUTED: Computed = {
  "s000.regfile.bw_needed_at_peak": lambda i: hw.operand_bandwidth_bytes_per_s(
    flops_per_s=i["peak"], operands=i["operands"], element_bytes=i["bytes"]
  ),
  "s000.naive.ai": lambda i: _per_element(2 * i["K"], 2 * i["K"] * 4),
  "s000.naive.dram_bound_flops": _ceiling,
  "s000.naive.warp_ai": lambda i: _warp({"Wm": 1, "Wn": i["lanes"], "T": 1}).intensity,
  "s000.block.traffic_reduction": _over_inner_product,
  "s000.block.gain_over_naive": over,
  "s000.block.ai_32": lambda i: _block(i).intensity,
  "s000.block.ai_64": lambda i: _block(i).intensity,
  "s000.block.ai_128": lambda i: _block(i).intensity,
  "s000.block.ai_256": lambda i: _block(i).intensity,
  "s000.block.ai_64x256_same_product": lambda i: _block(i).intensity,
  "s000.block.ai_64x192_same_sum": lambda i: _block(i).intensity,
  "s000.block.loadA_rows_per_round": lambda i: load_a(i).rows_per_round,
  "s000.block.loadA_rounds": lambda i: load_a(i).rounds,
  "s000.block.loadB_rows": lambda i: _load_b(i).rows_per_round,
  "s000.block.loadB_rounds": lambda i: _load_b(i).rounds,
  "s000.block.sectors_tileA": _sectors,
  "s000.block.sectors_tileB": _sectors,
  "s000.block.Tm": lambda i: _thread_grid(i).thread_m,
  "s000.block.Tn": lambda i: _thread_grid(i).thread_n,
  "s000.block.cover_strided": _covered,
  "s000.block.barriers_single_buffer": _barriers,
  "s000.thread.smem_reads_per_step": lambda i: _thread(i).elements_read,
  "s000.thread.fma_per_step": lambda i: _thread(i).fmas,
  "s000.thread.ai_4": lambda i: _thread(i).intensity,
  "s000.thread.ai_8": lambda i: _thread(i).intensity,
  "s000.thread.ai_16": lambda i: _thread(i).intensity,
  "s000.thread.inner_ai_bytes": lambda i: _per_element(i["f"], 8),
  "s000.thread.inner_fma_per_element": lambda i: over({"a": i["f"], "b": 2}),
  "s000.thread.outer_fma_per_element": lambda i: _thread(i).fmas_per_element,
  "s000.thread.outer_over_inner": lambda i: (
    _thread(i).fmas_per_element / _INNER_PRODUCT.fmas_per_element
  ),
  "s000.thread.smem_roofline_inner": _ceiling,
  "s000.thread.smem_roofline_8x8": _ceiling,
  "s000.thread.register_floats_8x8": lambda i: _budget(i).tile_registers,
  "s000.thread.register_floats_16x16": lambda i: _budget(i).tile_registers,
  "s000.thread.cfrag_16x16": lambda i: _budget(i).accumulator_registers,
  "s000.regs.total": lambda i: (
    _budget(_sides(i["c"], i["frag"]), index_registers=i["index"]).needed_registers
  ),
  "s000.regs.per_block": lambda i: _budget(i, registers_per_thread=i["regs"]).registers_per_block,
  "s000.regs.independent_chains": lambda i: _budget(i).independent_chains,
  "s000.warp.ai_1x32": lambda i: _warp(i).intensity,
  "s000.warp.ai_2x16": lambda i: _warp(i).intensity,
  "s000.warp.ai_4x8": lambda i: _warp(i).intensity,
  "s000.warp.ai_8x4": lambda i: _warp(i).intensity,
  "s000.warp.floats_1x32": lambda i: _warp(i).elements_read,
  "s000.warp.floats_2x16": lambda i: _warp(i).elements_read,
  "s000.warp.floats_4x8": lambda i: _warp(i).elements_read,
  "s000.warp.floats_8x4": lambda i: _warp(i).elements_read,
  "s000.warp.sum_lower_bound": lambda i: hw.best_warp_shape(lanes=i["lanes"]).elements_bound,
  # elements that a warp reads for as many outputs
  "s000.warp.gain_4x8_over_1x32": over,
  "s000.warp.count": lambda i: _checked({**_BLOCK, **i}).tiling.warps,
  "s000.warp.tile": lambda i: _warp_grid(i).warp_tile,
  "s000.warp.origin_tid0": _origin,
  "s000.warp.origin_tid18": _origin,
  "s000.warp.origin_tid31": _origin,
  "s000.warp.origin_tid32": _origin,
  "s000.warp.origin_tid64": _origin,
  "s000.warp.origin_tid255": _origin,
  "s000.warp.cover": _covered,
  "s000.vec.loads_per_thread_scalar": lambda i: load_a(i).rounds,
  "s000.vec.loads_per_thread_float4": lambda i: load_a(i, vector=4).rounds,
  "s000.vec.instr_reduction": lambda i: change(i).saved_fraction,
  "s000.vec.map_example": _float4_place,
  "s000.vec.cover_float4": _covered,
  "s000.db.ploop_iterations": lambda i: len(hw.register_pipeline(block_k=i["BK"])),
  "s000.db.barriers": _barriers,
  "s000.db.ffma_cycles_per_tile_one_warp": lambda i: (
    hw.latency_cover(
      thread_m=i["TM"],
      thread_n=i["TN"],
      steps=i["BK"],
      latency_cycles=500,
      issue_cycles=i["issue"],
    ).ffma_cycles
  ),
  "s000.async.staging_registers": lambda i: hw.staging_registers(
    block_m=i["BM"], block_n=i["BN"], block_k=i["BK"], threads_per_block=i["threads"]
  ),
  "s000.sass.bank_example": lambda i: hw.register_bank_conflicts(i["regs"]),
  "s000.sass.bank_example_free": lambda i: hw.register_bank_conflicts(i["regs"]),
  "s000.params.block_size": lambda i: _checked(i).threads_per_block,
  "s004.sm.accreg.extra": _accumulator_registers,
  "s004.little.card_bytes": _card_bytes,
  "s004.little.bytes_per_load": lambda i: (
    hw.coalescing(range(0, i["lanes"] * i["b"], i["b"]), width_bytes=i["b"]).requested_bytes
  ),
  # blocks of `per` warps are waves of them
  "s004.flip.min_blocks": lambda i: (
    hw.wave(programs=i["w"], cores=1, programs_per_core=i["per"]).waves
  ),
  "s004.mma.flops": lambda i: _mma(i).shape.flops,
  "s004.mma.count": lambda i: _mma(i).instructions,
  "s004.mma.tile_flops": lambda i: _mma(i).tile_flops,
  # a tile of as many instructions, and of as many fragments: one above another
  "s004.mma.per_warp": lambda i: (
    _mma({"M": 16 * i["c"], "N": 8, "K": 16}, groups=i["w"]).instructions_per_group
  ),
  "s004.mma.output_fragments": lambda i: _mma(i).fragments,
  "s004.mma.fragments_per_warp": lambda i: (
    _mma({"M": 16 * i["f"], "N": 8}, groups=i["w"]).fragments_per_group
  ),
}
