"""Fusion: bytes moved, peaks, split reductions and quantised projections."""

import golden
import pytest

import hw_profiles as hw
from hw_profiles.examples.computed import MIB
from hw_profiles.examples.fusion_and_splits import (
  EX_5_8,
  SIZES,
  chain,
  projection,
  rms_norm,
  three_steps,
)


def test_a_split_reduction_launches_three_kernels_instead_of_one():
  launches = [rms_norm({}, splits).launches for splits in (1, 8)]
  assert launches == golden.VALUES["s004.rms.launches"].expected


def test_the_published_activation_times_are_those_of_a_warm_l2():
  measured = golden.VALUES["s004.ex5-4.measured"].expected
  for partition, time_us in zip(((1, 1), (2,)), measured, strict=True):
    moved = hw.fusion_traffic(chain({}, None), partition=partition)
    result = hw.achieved_bandwidth("rtx_pro_6000", bytes=moved.total_bytes, measured_us=time_us)
    assert result.exceeds_memory
    assert result.memory_time_us > 4 * time_us
    # every tensor of the chain fits that L2 together
    assert moved.memory.peak_bytes < hw.get_profile("rtx_pro_6000").l2_bytes


def test_exercise_5_2_lifetimes_and_the_rows_that_pay_for_a_fixed_overhead():
  separate, fused = three_steps({"fuse": "1|2|3"}), three_steps({"fuse": "123"})
  lives = {life.name: (life.first_step, life.last_step) for life in separate.memory.lifetimes}
  assert lives == {"G": (-1, 0), "U": (-1, 1), "T": (0, 1), "Z": (1, 2), "Q": (2, 2)}
  assert [life.name for life in fused.memory.lifetimes] == ["G", "U", "Q"]
  assert [size // MIB for size in separate.memory.resident_bytes] == [72, 72, 36]
  assert [size // MIB for size in fused.memory.resident_bytes] == [60]

  saved = (separate.total_bytes - fused.total_bytes) / SIZES["rows"]
  rows = hw.break_even_units("rtx_pro_6000", saved_bytes_per_unit=saved, overhead_us=5)
  assert rows == 92
  bandwidth = hw.get_profile("rtx_pro_6000").memory_bandwidth_bytes_per_s
  assert 91 * saved / bandwidth < 5e-6 < 92 * saved / bandwidth


@pytest.mark.parametrize("columns", [1, 2, 12])
def test_each_column_block_costs_twice_as_much_when_fused(columns):
  block_n = -(-1536 // columns)
  separate = projection({**EX_5_8, "tn": block_n})
  fused = projection({**EX_5_8, "tn": block_n}, fuse=True)
  assert separate.grid[1] == columns
  assert separate.a_read_bytes == 16 * MIB * columns
  assert fused.a_read_bytes == 32 * MIB * columns
  assert (fused.input_bytes == separate.input_bytes) == (columns == 1)
