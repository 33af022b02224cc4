"""What a reader of the first text should be able to derive, derived by the library."""

import hw_profiles as hw

V100 = hw.get_profile("v100_sxm2")


def first_loads(order, rows, run):
  tiling = hw.WarpTiling(
    lanes=hw.LaneMap(rows=rows, columns=32 // rows, order=order),
    thread_m=8,
    thread_n=8,
    run_m=run,
    run_n=run,
  )
  return [hw.fragment_loads(tiling, operand=operand)[0] for operand in ("A", "B")]


def test_intensity_rises_from_a_quarter_to_32():
  naive = hw.tile_intensity(tile_m=1, tile_n=1).intensity
  rising = [hw.tile_intensity(tile_m=side, tile_n=side).intensity for side in (1, 32, 64, 128)]
  assert rising == [naive, 8, 16, 32]


def test_outer_products_reuse_what_inner_products_read_again():
  inner = hw.tile_intensity(tile_m=1, tile_n=1)
  # for as many multiply-adds as an 8 x 8 step the inner product reads 8 times as much
  outer = hw.tile_intensity(tile_m=8, tile_n=8)
  assert outer.fmas * inner.elements_read / outer.elements_read == 8
  assert hw.tile_intensity(tile_m=4, tile_n=4).intensity / inner.intensity == 4


def test_loads_pass_under_the_arithmetic_that_follows_them():
  names = [event.operation for event in hw.k_loop(k=16, block_k=2, shared_buffers=2).events]
  loop = names[4:]  # after load, store, barrier, first fragments
  assert loop[:8] == ["lds", "ldg", "ffma", "ffma", "sts", "barrier", "lds", "lds"]


def test_a_conflict_has_four_remedies():
  conflict = first_loads("row_first", 4, 8)
  assert [load.ways for load in conflict] == [1, 2]
  # the same lanes over sub-blocks, and in z order
  assert [load.ways for load in first_loads("row_first", 4, 4)] == [1, 1]
  assert [load.ways for load in first_loads("z_order", 4, 4)] == [1, 1]
  # the transposing store, padded and permuted
  load = hw.CooperativeLoad(tile_rows=128, tile_columns=8, threads=256, threads_per_row=8)
  tile = {"rows": 8, "columns": 128}
  assert load.transposed_store(hw.PitchedLayout(**tile))[0].ways == 8
  assert load.transposed_store(hw.PitchedLayout(**tile, pad_columns=4))[0].ways == 1
  assert load.transposed_store(hw.XorLayout(**tile, group_columns=4))[0].ways == 1


def test_four_by_eight_reads_less_than_one_by_32():
  def warp(rows):
    return hw.warp_intensity(lane_rows=rows, lane_columns=32 // rows, thread_m=8, thread_n=8)

  assert (warp(1).elements_read, warp(4).elements_read) == (264, 96)
  assert (4, 8) in hw.best_warp_shape(thread_m=8, thread_n=8).shapes


def test_registers_and_occupancy_follow_from_the_tiles():
  result = hw.check_gemm_parameters(V100, hw.GemmParameters(shared_buffers=1))
  assert result.registers.needed_registers == 110
  assert result.registers.registers_per_block == 32768
  assert (result.residency.resident_warps, result.residency.occupancy) == (16, 0.25)


def test_asynchronous_copies_need_no_staging_registers():
  staged = hw.check_gemm_parameters(V100, hw.GemmParameters())
  direct = hw.check_gemm_parameters(V100, hw.GemmParameters(asynchronous_copies=True))
  assert staged.registers.staging_registers == 8
  assert direct.registers.staging_registers == 0
