"""Registers of a thread, and the parameter set of a CUDA-core matmul."""

import pytest

import hw_profiles as hw

V100 = hw.get_profile("v100_sxm2")
KIB = 1024


def test_registers_of_a_thread_and_their_residency():
  held = hw.register_budget(
    V100, thread_m=8, thread_n=8, threads_per_block=256, registers_per_thread=128
  )
  assert held.needed_registers == 110
  assert held.spilled_registers == 0
  assert (held.residency.resident_blocks, held.residency.occupancy) == (2, 0.25)
  wide = hw.register_budget(V100, thread_m=16, thread_n=16, threads_per_block=256)
  assert wide.registers_per_thread == 255
  assert wide.spilled_registers == wide.needed_registers - 255 == 63
  double = hw.register_budget(
    V100, thread_m=8, thread_n=8, threads_per_block=256, fragment_buffers=2, staging_registers=8
  )
  assert double.needed_registers == 64 + 32 + 8 + 30
  with pytest.raises(hw.InfeasibleTileError, match="registers_per_thread=256"):
    hw.register_budget(
      V100, thread_m=8, thread_n=8, threads_per_block=256, registers_per_thread=256
    )
  with pytest.raises(ValueError, match="thread_m=0"):
    hw.register_budget(V100, thread_m=0, thread_n=8, threads_per_block=256)


def test_register_banks():
  assert hw.register_bank_conflicts([12, 4, 8]) == 2
  assert hw.register_bank_conflicts([12, 4, 9]) == 1
  assert hw.register_bank_conflicts([4, 4, 4]) == 0
  assert hw.register_bank_conflicts([12, 4, 8], reused=[8]) == 1
  # Volta: two banks of two reads; only three of one parity collide
  volta = {"banks": 2, "reads_per_bank": 2}
  assert hw.register_bank_conflicts([12, 4, 8], **volta) == 1
  assert hw.register_bank_conflicts([12, 4, 9], **volta) == 0


def test_the_default_parameters_are_consistent():
  result = hw.check_gemm_parameters(V100)
  assert result.threads_per_block == result.tiling.threads == 256
  assert result.tiling.warp_tile == (32, 64)
  assert (result.tiling.warp_rows, result.tiling.warp_columns) == (4, 2)
  assert result.tiling.tile == (128, 128)
  assert result.shared_bytes_per_block == 16 * KIB
  assert result.loads_per_thread == (1, 1)
  assert result.residency.resident_blocks == 2
  asynchronous = hw.check_gemm_parameters(V100, hw.GemmParameters(asynchronous_copies=True))
  saved = result.registers.needed_registers - asynchronous.registers.needed_registers
  assert saved == 8


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"threads_per_block": 128}, "threads_per_block=128: a 128x128 tile in 8x8 patches takes 256"),
    ({"lane_rows": 4, "lane_columns": 4}, "a warp has 32 lanes; nearest is 4x8"),
    ({"block_m": 100}, "block_m=100: expected a multiple of the 32 .* nearest is 128"),
    ({"block_n": 96}, "block_n=96: expected a multiple of the 64 .* nearest is 128"),
    ({"thread_m": 6, "block_m": 96}, "thread_m=6: float4 loads take multiples of 4; nearest is 8"),
    ({"block_k": 6}, "block_k=6: float4 loads of A take multiples of 4; nearest is 8"),
    ({"block_m": 100, "block_k": 6}, "block_m=100.*; block_k=6"),
    ({"thread_m": 0}, "thread_m=0: expected an integer of at least 1"),
  ],
)
def test_inconsistent_parameters_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    hw.check_gemm_parameters(V100, hw.GemmParameters(**changes))


def test_parameters_that_agree_but_do_not_fit():
  wide = hw.GemmParameters(thread_m=16, thread_n=16, block_m=128, block_n=128)
  with pytest.raises(
    hw.InfeasibleTileError, match=r"registers_per_thread=128: .* expected at least"
  ):
    hw.check_gemm_parameters(V100, wide)
  deep = hw.GemmParameters(block_k=64)
  with pytest.raises(hw.InfeasibleTileError, match="shared_bytes_per_block=131072"):
    hw.check_gemm_parameters(V100, deep)
