"""Tiling inside an SM: intensities, lanes, shared-memory banks, registers, instructions."""

import dataclasses

import golden

import hw_profiles as hw

H100 = hw.get_profile("h100_sxm")
V100 = dataclasses.replace(hw.get_profile("v100_sxm2"), dram_bandwidth_bytes_per_s=900e9)
FLOAT = 4
# the first text's block: 128 x 128 outputs, 8 deep, of 256 threads
BLOCK = {"BM": 128, "BN": 128, "BK": 8, "TM": 8, "TN": 8, "threads": 256}
LANE_ORDERS = {"row": "row_first", "col": "column_first", "z": "z_order"}


def block(inputs):
  return hw.tile_intensity(tile_m=inputs["BM"], tile_n=inputs["BN"])


def thread(inputs):
  return hw.tile_intensity(tile_m=inputs["TM"], tile_n=inputs["TN"])


INNER_PRODUCT = hw.tile_intensity(tile_m=1, tile_n=1)


def over_inner_product(inputs):
  return block({**BLOCK, **inputs}).intensity / INNER_PRODUCT.intensity


def ceiling(inputs):
  """What one tier allows, whatever the arithmetic does."""
  tier = hw.Tier("tier", inputs["ai"], inputs["bw"])
  return hw.tier_ceilings(tier, peak_flops_per_s=15.7e12).flops_per_s_by["tier"]


def warp(inputs):
  return hw.warp_intensity(
    lane_rows=inputs["Wm"],
    lane_columns=inputs["Wn"],
    thread_m=inputs.get("TM", inputs.get("T")),
    thread_n=inputs.get("TN", inputs.get("T")),
  )


def budget(inputs, **overrides):
  return hw.register_budget(
    V100,
    thread_m=inputs.get("TM", 8),
    thread_n=inputs.get("TN", 8),
    threads_per_block=inputs.get("threads", 128),
    **overrides,
  )


def load_a(inputs, vector=1):
  """A's tile: one row of BK elements after another."""
  sizes = {**BLOCK, **inputs}
  return hw.CooperativeLoad(
    tile_rows=sizes["BM"],
    tile_columns=sizes["BK"],
    threads=sizes["threads"],
    threads_per_row=sizes["BK"] // vector,
    vector=vector,
  )


def load_b(inputs):
  sizes = {**BLOCK, "X": 32, **inputs}
  return hw.CooperativeLoad(
    tile_rows=sizes["BK"],
    tile_columns=sizes["BN"],
    threads=sizes["threads"],
    threads_per_row=sizes["X"],
  )


def sectors(inputs):
  load = {"tileA": load_a, "tileB": load_b}[inputs["kind"]]({})
  return load.global_sectors(pitch_bytes=4096 * FLOAT).sectors


def thread_grid(inputs, run=1):
  """Threads 16 across; what is not given is the first text's."""
  sizes = {**BLOCK, "CX": 16, **inputs}
  rows = sizes["threads"] // sizes["CX"]
  return hw.ThreadTiling(
    thread_rows=rows,
    thread_columns=sizes["CX"],
    thread_m=sizes["BM"] // rows,
    thread_n=sizes["BN"] // sizes["CX"],
    run_m=run,
    run_n=run,
  )


def warp_grid(inputs=BLOCK):
  sizes = {"Wm": 4, "Wn": 8, "TM": inputs.get("T", 8), "TN": inputs.get("T", 8), **inputs}
  lanes = hw.LaneMap(rows=sizes["Wm"], columns=sizes["Wn"])
  return hw.WarpTiling(
    lanes=lanes,
    thread_m=sizes["TM"],
    thread_n=sizes["TN"],
    warp_rows=128 // (lanes.rows * sizes["TM"]),
    warp_columns=128 // (lanes.columns * sizes["TN"]),
  )


def covered(inputs):
  tiling = {
    "strided": lambda: thread_grid(inputs, run=1),
    "float4": lambda: thread_grid(inputs, run=4),
    "warp4x8": lambda: warp_grid(inputs),
  }[inputs["scheme"]]()
  result = hw.coverage(tiling.outputs(), rows=inputs["BM"], columns=inputs["BN"])
  assert result.is_bijection
  return result.covered


def lane_map(name):
  """ "row4x8", "col4x8", "z4x8", ..."""
  order = name.rstrip("0123456789x")
  rows, columns = name.removeprefix(order).split("x")
  return hw.LaneMap(rows=int(rows), columns=int(columns), order=LANE_ORDERS[order])


def one_warp(inputs):
  """A warp of 8 x 8 outputs a lane; the lanes' distance is the run."""
  stride = inputs["stride"]
  return hw.WarpTiling(
    lanes=lane_map(inputs["layout"]), thread_m=8, thread_n=8, run_m=stride, run_n=stride
  )


def vector_load(inputs):
  """The first float4 load of one operand."""
  return hw.fragment_loads(one_warp(inputs), operand=inputs["tile"])[0]


def lds128(inputs):
  tiles = ("A", "B") if inputs["tile"] == "both" else (inputs["tile"],)
  return sum(vector_load({**inputs, "tile": tile}).transactions for tile in tiles)


def merge(inputs):
  return "".join(vector_load(inputs).merge_rules) or "none"


def distinct_in_first_quarter(inputs):
  return vector_load(inputs).per_quarter_warp[0].distinct_addresses


def untransposed_a(inputs):
  tiling = hw.WarpTiling(lanes=lane_map(inputs["layout"]), thread_m=inputs["TM"], thread_n=8)
  loads = hw.fragment_loads(
    tiling,
    operand="A",
    width_bytes=FLOAT,
    layout=hw.PitchedLayout(rows=tiling.tile[0], columns=inputs["BK"]),
    k_first=False,
  )
  return max(load.ways for load in loads)


def transposing_store(inputs):
  load = load_a(inputs, vector={"scalar": 1, "float4": 4}[inputs["pattern"]])
  size = {"rows": load.tile_columns, "columns": load.tile_rows}
  layout = (
    hw.XorLayout(**size, group_columns=4)
    if inputs.get("xor")
    else hw.PitchedLayout(**size, pad_columns=inputs.get("pad", 0))
  )
  return max(store.ways for store in load.transposed_store(layout))


def row_alignment(inputs):
  layout = hw.PitchedLayout(rows=8, columns=inputs["BM"], pad_columns=inputs["pad"])
  assert layout.allows_vectors(16) == (layout.pitch_bytes % 16 == 0)
  return layout.pitch_bytes % 16


def consecutive(inputs):
  width = inputs["bytes_per_thread"]
  return hw.bank_conflicts(range(0, 32 * width, width), width_bytes=width).transactions


def step(layout, run, loads=2):
  """Of a step whose threads take `loads` float4s of each operand."""
  return hw.step_transactions(
    hw.WarpTiling(
      lanes=lane_map(layout), thread_m=4 * loads, thread_n=4 * loads, run_m=run, run_n=run
    )
  )


def barriers(inputs, shared_buffers):
  return hw.k_loop(k=inputs["K"], block_k=inputs["BK"], shared_buffers=shared_buffers).loop_barriers


def scratch(inputs):
  """The second text's 32 x 32 float32 tile, at a pitch of r words."""
  pitch = inputs.get("s", inputs.get("stride", 32))
  if inputs.get("xor"):
    return hw.XorLayout(rows=32, columns=pitch)
  return hw.PitchedLayout(rows=32, columns=32, pad_columns=pitch - 32)


def column_cycles(inputs):
  addresses = scratch(inputs).column_addresses(inputs.get("col", 0))
  return hw.bank_conflicts(addresses, width_bytes=FLOAT).transactions


def row_cycles(inputs):
  addresses = scratch({}).row_addresses(0)
  assert addresses[1] - addresses[0] == FLOAT * inputs["stride"]
  return hw.bank_conflicts(addresses, width_bytes=FLOAT).transactions


def mma(inputs, groups=1):
  shape = hw.MmaShape(m=inputs.get("m", 16), n=inputs.get("n", 8), k=inputs.get("k", 16))
  return hw.mma_instructions(
    block_m=inputs.get("M", 128),
    block_n=inputs.get("N", 128),
    block_k=inputs.get("K", 64),
    shape=shape,
    groups=groups,
  )


def accumulator_registers(inputs):
  return hw.accumulator_placement(
    H100,
    placement="registers",
    block_m=inputs["m"],
    block_n=inputs["n"],
    block_k=64,
    threads_per_block=inputs["threads"],
    base_registers_per_thread=64,
  ).accumulator_registers_per_thread


def card_bytes(inputs):
  gpu = dataclasses.replace(H100, dram_bandwidth_bytes_per_s=inputs["bw"])
  under_way = hw.in_flight(gpu, resident_warps=16, loads_per_warp=4, latency_ns=inputs["lat"] * 1e9)
  return under_way.required_bytes_per_sm * gpu.sm_count / 1e6


def blocks_to_cover(inputs):
  """Where the text's latency is 1000 ns, and a warp has two loads under way."""
  return next(
    blocks
    for blocks in range(1, H100.max_blocks_per_sm + 1)
    if hw.in_flight(
      H100, resident_warps=blocks * inputs["per"], loads_per_warp=2, latency_ns=1000
    ).coverage
    >= 1
  )


def checked(inputs):
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


def origin(inputs):
  return list(warp_grid().output(inputs["tid"], 0, 0))


def float4_place(inputs):
  tiling = thread_grid({}, run=4)
  return list(tiling.output(inputs["ty"] * 16 + inputs["tx"], inputs["i"], inputs["j"]))


COMPUTED = {
  "s000.regfile.bw_needed_at_peak": lambda i: hw.operand_bandwidth_bytes_per_s(
    flops_per_s=i["peak"], operands=i["operands"], element_bytes=i["bytes"]
  ),
  "s000.naive.ai": lambda i: INNER_PRODUCT.intensity,
  "s000.naive.dram_bound_flops": ceiling,
  "s000.naive.warp_ai": lambda i: warp({"Wm": 1, "Wn": i["lanes"], "T": 1}).intensity,
  "s000.block.traffic_reduction": over_inner_product,
  "s000.block.gain_over_naive": over_inner_product,
  "s000.block.ai_32": lambda i: block(i).intensity,
  "s000.block.ai_64": lambda i: block(i).intensity,
  "s000.block.ai_128": lambda i: block(i).intensity,
  "s000.block.ai_256": lambda i: block(i).intensity,
  "s000.block.ai_64x256_same_product": lambda i: block(i).intensity,
  "s000.block.ai_64x192_same_sum": lambda i: block(i).intensity,
  "s000.block.loadA_rows_per_round": lambda i: load_a(i).rows_per_round,
  "s000.block.loadA_rounds": lambda i: load_a(i).rounds,
  "s000.block.loadB_rows": lambda i: load_b(i).rows_per_round,
  "s000.block.loadB_rounds": lambda i: load_b(i).rounds,
  "s000.block.sectors_tileA": sectors,
  "s000.block.sectors_tileB": sectors,
  "s000.block.Tm": lambda i: thread_grid(i).thread_m,
  "s000.block.Tn": lambda i: thread_grid(i).thread_n,
  "s000.block.cover_strided": covered,
  "s000.block.barriers_single_buffer": lambda i: barriers(i, 1),
  "s000.thread.smem_reads_per_step": lambda i: thread(i).elements_read,
  "s000.thread.fma_per_step": lambda i: thread(i).fmas,
  "s000.thread.ai_4": lambda i: thread(i).intensity,
  "s000.thread.ai_8": lambda i: thread(i).intensity,
  "s000.thread.ai_16": lambda i: thread(i).intensity,
  "s000.thread.inner_ai_bytes": lambda i: INNER_PRODUCT.intensity,
  "s000.thread.inner_fma_per_element": lambda i: INNER_PRODUCT.fmas_per_element,
  "s000.thread.outer_fma_per_element": lambda i: thread(i).fmas_per_element,
  "s000.thread.outer_over_inner": lambda i: (
    thread(i).fmas_per_element / INNER_PRODUCT.fmas_per_element
  ),
  "s000.thread.smem_roofline_inner": ceiling,
  "s000.thread.smem_roofline_8x8": ceiling,
  "s000.thread.register_floats_8x8": lambda i: budget(i).tile_registers,
  "s000.thread.register_floats_16x16": lambda i: budget(i).tile_registers,
  "s000.thread.cfrag_16x16": lambda i: budget(i).accumulator_registers,
  "s000.regs.total": lambda i: budget({}, index_registers=i["index"]).needed_registers,
  "s000.regs.per_block": lambda i: budget(i, registers_per_thread=i["regs"]).registers_per_block,
  "s000.regs.independent_chains": lambda i: budget(i).independent_chains,
  "s000.warp.ai_1x32": lambda i: warp(i).intensity,
  "s000.warp.ai_2x16": lambda i: warp(i).intensity,
  "s000.warp.ai_4x8": lambda i: warp(i).intensity,
  "s000.warp.ai_8x4": lambda i: warp(i).intensity,
  "s000.warp.floats_1x32": lambda i: warp(i).elements_read,
  "s000.warp.floats_2x16": lambda i: warp(i).elements_read,
  "s000.warp.floats_4x8": lambda i: warp(i).elements_read,
  "s000.warp.floats_8x4": lambda i: warp(i).elements_read,
  "s000.warp.sum_lower_bound": lambda i: hw.best_warp_shape(lanes=i["lanes"]).elements_bound,
  "s000.warp.gain_4x8_over_1x32": lambda i: (
    warp({"Wm": 4, "Wn": 8, "T": 8}).intensity / warp({"Wm": 1, "Wn": 32, "T": 8}).intensity
  ),
  "s000.warp.count": lambda i: checked({**BLOCK, **i}).tiling.warps,
  "s000.warp.tile": lambda i: warp_grid(i).warp_tile,
  "s000.warp.origin_tid0": origin,
  "s000.warp.origin_tid18": origin,
  "s000.warp.origin_tid31": origin,
  "s000.warp.origin_tid32": origin,
  "s000.warp.origin_tid64": origin,
  "s000.warp.origin_tid255": origin,
  "s000.warp.cover": covered,
  "s000.vec.loads_per_thread_scalar": lambda i: load_a(i).rounds,
  "s000.vec.loads_per_thread_float4": lambda i: load_a(i, vector=4).rounds,
  "s000.vec.instr_reduction": lambda i: 1 - load_a({}, vector=4).rounds / load_a({}).rounds,
  "s000.vec.map_example": float4_place,
  "s000.vec.cover_float4": covered,
  "s000.bank.byte_to_bank": lambda i: hw.shared_bank(i["byte"]),
  "s000.bank.transactions_float": consecutive,
  "s000.bank.transactions_float2": consecutive,
  "s000.bank.transactions_float4": consecutive,
  "s000.lds128.rowfirst4x8_stride8.A": lds128,
  "s000.lds128.rowfirst4x8_stride8.B": lds128,
  "s000.lds128.rowfirst4x8_stride8.total": lds128,
  "s000.lds128.rowfirst4x8_stride8.A_merge": merge,
  "s000.lds128.rowfirst4x8_stride8.B_merge": merge,
  "s000.lds128.rowfirst4x8_stride8.A_qw_unique": distinct_in_first_quarter,
  "s000.lds128.rowfirst4x8_stride8.B_qw_unique": distinct_in_first_quarter,
  "s000.lds128.colfirst4x8_stride8.A": lds128,
  "s000.lds128.colfirst4x8_stride8.B": lds128,
  "s000.lds128.colfirst4x8_stride8.total": lds128,
  "s000.lds128.colfirst4x8_stride8.A_merge": merge,
  "s000.lds128.colfirst4x8_stride8.B_merge": merge,
  "s000.lds128.colfirst4x8_stride8.A_qw_unique": distinct_in_first_quarter,
  "s000.lds128.colfirst4x8_stride8.B_qw_unique": distinct_in_first_quarter,
  "s000.lds128.subblock4x8_stride4.A": lds128,
  "s000.lds128.subblock4x8_stride4.B": lds128,
  "s000.lds128.subblock4x8_stride4.total": lds128,
  "s000.lds128.subblock4x8_stride4.A_merge": merge,
  "s000.lds128.subblock4x8_stride4.B_merge": merge,
  "s000.lds128.subblock4x8_stride4.A_qw_unique": distinct_in_first_quarter,
  "s000.lds128.subblock4x8_stride4.B_qw_unique": distinct_in_first_quarter,
  "s000.lds128.zorder_stride4.A": lds128,
  "s000.lds128.zorder_stride4.B": lds128,
  "s000.lds128.zorder_stride4.total": lds128,
  "s000.lds128.zorder_stride4.A_merge": merge,
  "s000.lds128.zorder_stride4.B_merge": merge,
  "s000.lds128.zorder_stride4.A_qw_unique": distinct_in_first_quarter,
  "s000.lds128.zorder_stride4.B_qw_unique": distinct_in_first_quarter,
  "s000.lds128.zorder_stride8.total": lds128,
  "s000.lds128.colfirst4x8_stride4.total": lds128,
  "s000.lds128.row2x16_stride8.total": lds128,
  "s000.lds128.row1x32_stride8.total": lds128,
  "s000.lds128.row8x4_stride8.total": lds128,
  "s000.lds128.reduction": lambda i: 1 - step("z4x8", 4) / step("row4x8", 8),
  "s000.lds128.per_pstep_rowfirst": lambda i: step("row4x8", 8, i["loads"]),
  "s000.bank.untransposedA_2x16": untransposed_a,
  "s000.bank.untransposedA_4x8": untransposed_a,
  "s000.bank.untransposedA_8x4": untransposed_a,
  "s000.bank.untransposedA_1x32": untransposed_a,
  "s000.bank.store_scalar_nopad": transposing_store,
  "s000.bank.store_scalar_pad4": transposing_store,
  "s000.bank.store_scalar_xor": transposing_store,
  "s000.bank.store_float4_nopad": transposing_store,
  "s000.bank.store_float4_pad4": transposing_store,
  "s000.bank.store_float4_xor": transposing_store,
  "s000.bank.pad4_row_alignment": row_alignment,
  "s000.bank.pad1_row_alignment": row_alignment,
  "s000.db.ploop_iterations": lambda i: len(hw.register_pipeline(block_k=i["BK"])),
  "s000.db.barriers": lambda i: barriers(i, 2),
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
  "s000.params.block_size": lambda i: checked(i).threads_per_block,
  "s004.sm.accreg.extra": accumulator_registers,
  "s004.little.card_bytes": card_bytes,
  "s004.little.bytes_per_load": lambda i: (
    hw.coalescing(range(0, i["lanes"] * i["b"], i["b"]), width_bytes=i["b"]).requested_bytes
  ),
  "s004.flip.min_blocks": blocks_to_cover,
  "s004.mma.flops": lambda i: mma(i).shape.flops,
  "s004.mma.count": lambda i: mma(i).instructions,
  "s004.mma.tile_flops": lambda i: mma(i).tile_flops,
  "s004.mma.per_warp": lambda i: mma({}, groups=i["w"]).instructions_per_group,
  "s004.mma.output_fragments": lambda i: mma(i).fragments,
  "s004.mma.fragments_per_warp": lambda i: mma({}, groups=i["w"]).fragments_per_group,
  "s004.bank32.row": row_cycles,
  "s004.bank32.col": column_cycles,
  "s004.bank32.col_pad": column_cycles,
  "s004.bank32.col_xor_c0": column_cycles,
  "s004.bank32.col_xor_c7": column_cycles,
  "s004.bank32.col_xor_c31": column_cycles,
  "s004.bank32.bytes": lambda i: scratch(i).size_bytes,
  "s004.bank32.bytes_pad": lambda i: scratch(i).size_bytes,
  "s004.bank32.overhead": lambda i: scratch({"s": 33}).overhead,
}


@golden.each(COMPUTED)
def test_golden_value(identifier):
  golden.check(identifier, COMPUTED)
