"""Thread blocks on an SM: every limit, and what is left."""

import pytest

import hw_profiles as hw

H100 = hw.get_profile("h100")
RTX = hw.get_profile("rtx_pro_6000")
KIB = 1024


def test_h100_example_binds_registers_and_shared_memory():
  result = hw.residency(
    H100, threads_per_block=256, registers_per_thread=128, shared_bytes_per_block=96 * KIB
  )
  assert result.blocks_by == {"threads": 8, "registers": 2, "shared_memory": 2, "blocks": 32}
  assert (result.resident_blocks, result.resident_warps, result.occupancy) == (2, 16, 0.25)
  assert result.binding == ("registers", "shared_memory")
  assert result.leftover == {
    "threads": 1536,
    "registers": 0,
    "shared_memory": 34 * KIB,
    "blocks": 30,
  }


def test_moving_the_accumulator_to_registers_leaves_them_alone_binding():
  result = hw.residency(
    H100, threads_per_block=256, registers_per_thread=128, shared_bytes_per_block=32 * KIB
  )
  assert result.blocks_by["shared_memory"] == 6
  assert (result.resident_blocks, result.binding) == (2, ("registers",))


@pytest.mark.parametrize(
  ("registers", "blocks", "occupancy", "coverage"), [(128, 2, 0.25, 2.15), (64, 4, 0.5, 4.30)]
)
def test_halving_registers_doubles_blocks_and_registers_still_bind(
  registers, blocks, occupancy, coverage
):
  # a 64 x 64 tile, K step 64, float32 accumulator in shared memory: 32 KiB
  result = hw.residency(
    H100, threads_per_block=256, registers_per_thread=registers, shared_bytes_per_block=32 * KIB
  )
  assert (result.resident_blocks, result.occupancy) == (blocks, occupancy)
  assert result.binding == ("registers",)
  under_way = hw.in_flight(
    H100, resident_warps=result.resident_warps, loads_per_warp=4, latency_ns=600
  )
  assert under_way.coverage == pytest.approx(coverage, abs=0.005)


def test_registers_are_allocated_in_units_of_256_a_warp():
  # 33 registers x 32 lanes = 1056 -> 1280: 12 warps in each quarter of 16384
  result = hw.residency(
    H100, threads_per_block=32 * 4, registers_per_thread=33, shared_bytes_per_block=0
  )
  assert result.blocks_by["registers"] == 16384 // 1280 * 4 // 4


def test_warps_are_allocated_in_fours():
  one = hw.residency(H100, threads_per_block=32, registers_per_thread=128, shared_bytes_per_block=0)
  four = hw.residency(
    H100, threads_per_block=128, registers_per_thread=128, shared_bytes_per_block=0
  )
  assert one.blocks_by["registers"] == four.blocks_by["registers"] == 4


def test_shared_memory_counts_reserve_and_granularity():
  # 1 B + 1 KiB rounds up to 1152 B
  result = hw.residency(
    H100, threads_per_block=32, registers_per_thread=16, shared_bytes_per_block=1
  )
  assert result.blocks_by["shared_memory"] == 228 * KIB // 1152


def test_a_partial_warp_counts_as_one():
  result = hw.residency(
    RTX, threads_per_block=33, registers_per_thread=16, shared_bytes_per_block=0
  )
  assert result.blocks_by["threads"] == 24
  assert result.resident_warps == 48


def test_v100_reserves_no_shared_memory():
  v100 = hw.get_profile("v100")
  result = hw.residency(
    v100, threads_per_block=128, registers_per_thread=32, shared_bytes_per_block=48 * KIB
  )
  assert result.blocks_by["shared_memory"] == 2
  assert result.leftover["shared_memory"] == 0


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ((2048, 32, 0), r"threads_per_block=2048: h100_sxm runs at most 1024"),
    ((128, 256, 0), r"registers_per_thread=256: .* at most 255"),
    ((1024, 128, 0), r"registers_per_thread=128: 1024 threads .* fits is 64"),
    (
      (128, 32, 228 * KIB),
      r"shared_bytes_per_block=233472: h100_sxm gives one block at most 232448 B of its 233472 B",
    ),
  ],
)
def test_a_block_that_cannot_run_says_what_it_exceeds(arguments, message):
  threads, registers, shared = arguments
  with pytest.raises(hw.InfeasibleTileError, match=message):
    hw.residency(
      H100,
      threads_per_block=threads,
      registers_per_thread=registers,
      shared_bytes_per_block=shared,
    )


def test_the_register_count_suggested_runs():
  hw.residency(H100, threads_per_block=1024, registers_per_thread=64, shared_bytes_per_block=0)


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("threads_per_block", 0),
    ("registers_per_thread", 0),
    ("shared_bytes_per_block", -1),
    ("threads_per_block", 2.0),
    ("threads_per_block", True),
  ],
)
def test_arguments_out_of_range_are_named(name, value):
  arguments = {
    "threads_per_block": 128,
    "registers_per_thread": 32,
    "shared_bytes_per_block": 0,
    name: value,
  }
  with pytest.raises(ValueError, match=f"{name}={value!r}: expected an integer of at least"):
    hw.residency(H100, **arguments)


def test_latency_decides_whether_a_quarter_of_the_warps_is_enough():
  short = hw.in_flight(H100, resident_warps=16, loads_per_warp=4, latency_ns=600)
  long = hw.in_flight(H100, resident_warps=16, loads_per_warp=2, latency_ns=1000)
  assert short.coverage > 1
  assert short.effective_bandwidth_bytes_per_s == H100.dram_bandwidth_bytes_per_s
  assert long.coverage < 1
  # what is under way arrives once a latency
  assert long.effective_bandwidth_bytes_per_s == pytest.approx(
    long.available_bytes_per_sm * H100.sm_count / 1000e-9
  )
  assert long.min_warps == 25


@pytest.mark.parametrize(
  ("name", "value"), [("latency_ns", 0), ("loads_per_warp", 0), ("resident_warps", -1)]
)
def test_in_flight_names_the_argument(name, value):
  arguments = {"resident_warps": 16, "loads_per_warp": 4, "latency_ns": 600, name: value}
  with pytest.raises(ValueError, match=f"{name}={value}"):
    hw.in_flight(H100, **arguments)
