"""Traffic, roofline, pipeline and L2 reuse against direct counting."""

import itertools
import math
import random

import pytest

import hw_profiles as hw
from hw_profiles.cost.l2_reuse import wave_panels
from hw_profiles.matmul.dram_reads import dram_operand_reads
from hw_profiles.tile_order import grouped_tile

MIB = 1024**2


def _counted(m, k, n, block_m, block_n, block_k):
  """Elements of A and B read, walking every tile and every K step."""
  a_elements = b_elements = loads = 0
  for row in range(0, m, block_m):
    for column in range(0, n, block_n):
      for depth in range(0, k, block_k):
        rows, columns = min(block_m, m - row), min(block_n, n - column)
        a_elements += rows * min(block_k, k - depth)
        b_elements += min(block_k, k - depth) * columns
        loads += 1
  return a_elements, b_elements, loads


@pytest.mark.parametrize("shape", [(1, 1, 1), (17, 33, 19), (128, 64, 96), (100, 7, 65)])
@pytest.mark.parametrize("blocks", [(16, 16, 16), (64, 32, 8), (128, 256, 64), (5, 3, 2)])
def test_traffic_is_what_a_walk_over_all_tiles_counts(shape, blocks):
  (m, k, n), (block_m, block_n, block_k) = shape, blocks
  result = hw.matmul_traffic(
    m=m,
    k=k,
    n=n,
    block_m=block_m,
    block_n=block_n,
    block_k=block_k,
    in_dtype="bfloat16",
    out_dtype="float32",
  )
  a_elements, b_elements, loads = _counted(m, k, n, block_m, block_n, block_k)
  assert result.a_read_bytes == 2 * a_elements
  assert result.b_read_bytes == 2 * b_elements
  assert result.c_write_bytes == 4 * m * n
  assert result.tile_pair_loads == loads
  assert result.intensity == pytest.approx(2 * m * k * n / result.total_bytes)


def test_stages_and_dtypes_change_the_working_set_only():
  sizes = {"m": 256, "k": 256, "n": 256, "block_m": 64, "block_n": 128, "block_k": 32}
  one = hw.matmul_traffic(**sizes, in_dtype="float16")
  three = hw.matmul_traffic(**sizes, in_dtype="float16", acc_dtype="float16", num_stages=3)
  assert one.working_set_bytes == (64 * 32 + 32 * 128) * 2 + 64 * 128 * 4
  assert three.working_set_bytes == 3 * (64 * 32 + 32 * 128) * 2 + 64 * 128 * 2
  assert one.total_bytes == three.total_bytes


@pytest.mark.parametrize("shape", [(0, 8, 8), (8, 0, 8), (8, 8, 0)])
def test_empty_products_move_only_what_exists(shape):
  m, k, n = shape
  result = hw.matmul_traffic(m=m, k=k, n=n, block_m=16, block_n=16, block_k=16, in_dtype="float32")
  assert result.total_bytes == 4 * m * n
  assert result.tile_pair_loads == 0


@pytest.mark.parametrize(
  ("name", "value"), [("m", -1), ("block_k", 0), ("num_stages", 0), ("n", 1.5)]
)
def test_traffic_names_the_argument(name, value):
  arguments = {
    "m": 8,
    "k": 8,
    "n": 8,
    "block_m": 8,
    "block_n": 8,
    "block_k": 8,
    "in_dtype": "float32",
    name: value,
  }
  with pytest.raises(ValueError, match=f"{name}={value}: expected an integer"):
    hw.matmul_traffic(**arguments)
  arguments[name] = 8
  with pytest.raises(ValueError, match=r"dtype='tf32'.*float32"):
    hw.matmul_traffic(**{**arguments, "in_dtype": "tf32"})


def test_roofline_turns_from_memory_to_compute_at_the_ridge():
  h100 = hw.get_profile("h100")
  ridge = hw.roofline(h100, flops=1, bytes=1, dtype="bfloat16").ridge
  assert ridge == pytest.approx(295.3, abs=0.05)
  below = hw.roofline(h100, flops=0.99 * ridge * 1e9, bytes=1e9, dtype="bfloat16")
  above = hw.roofline(h100, flops=1.01 * ridge * 1e9, bytes=1e9, dtype="bfloat16")
  assert (below.bound, above.bound) == ("memory", "compute")
  assert below.time_us == pytest.approx(1e9 / 3.35e12 * 1e6)
  assert above.time_us == pytest.approx(1.01 * below.time_us)
  assert above.peak_fraction == 1


def test_roofline_without_bytes_is_compute_bound():
  result = hw.roofline(hw.get_profile("950pr"), flops=1e9, bytes=0, dtype="float8_e4m3fn")
  assert (result.intensity, result.bound) == (math.inf, "compute")


def test_roofline_refuses_a_dtype_without_a_rate():
  with pytest.raises(ValueError, match=r"dtype='float8_e4m3fn': ascend_910b3.*bfloat16"):
    hw.roofline(hw.get_profile("910b3"), flops=1, bytes=1, dtype="float8_e4m3fn")
  with pytest.raises(ValueError, match=r"flops=-1: expected a finite number"):
    hw.roofline(hw.get_profile("910b3"), flops=-1, bytes=1, dtype="bfloat16")


@pytest.mark.parametrize("copy_us", [0.0, 0.28, 1.0, 1.29])
@pytest.mark.parametrize("compute_us", [0.0, 0.28, 1.0, 3.5])
@pytest.mark.parametrize("num_slots", [1, 2, 3, 8])
@pytest.mark.parametrize("num_blocks", [0, 1, 2, 4, 17])
def test_pipeline_simulation_equals_the_closed_form(copy_us, compute_us, num_slots, num_blocks):
  times = {
    "copy_us": copy_us,
    "compute_us": compute_us,
    "num_slots": num_slots,
    "num_blocks": num_blocks,
  }
  assert hw.pipeline(**times).total_us == pytest.approx(hw.pipeline_total_us(**times))


def test_pipeline_events_keep_the_rules():
  result = hw.pipeline(copy_us=1.0, compute_us=2.5, num_slots=2, num_blocks=7)
  events = result.events
  assert [event.slot for event in events] == [0, 1, 0, 1, 0, 1, 0]
  for before, after in itertools.pairwise(events):
    assert after.copy_start_us >= before.copy_end_us
    assert after.compute_start_us >= before.compute_end_us
  for before, after in zip(events, events[2:], strict=False):
    assert after.copy_start_us >= before.compute_end_us
  for event in events:
    assert event.compute_start_us >= event.copy_end_us
  assert result.compute_busy == pytest.approx(7 * 2.5 / result.total_us)
  assert result.copy_busy == pytest.approx(7 * 1.0 / result.total_us)


@pytest.mark.parametrize(
  ("name", "value"),
  [("copy_us", -1), ("compute_us", math.nan), ("num_slots", 0), ("num_blocks", -1)],
)
def test_pipeline_names_the_argument(name, value):
  arguments = {"copy_us": 1.0, "compute_us": 1.0, "num_slots": 2, "num_blocks": 4, name: value}
  with pytest.raises(ValueError, match=f"{name}={value}"):
    hw.pipeline(**arguments)


def test_wave_panels_are_what_enumerating_the_launch_order_finds():
  rng = random.Random(0)
  for _ in range(500):
    tiles_m, tiles_n, group_m = rng.randint(1, 12), rng.randint(1, 12), rng.randint(1, 14)
    first, programs = rng.randint(0, tiles_m * tiles_n), rng.randint(0, 60)
    grid = {"tiles_m": tiles_m, "tiles_n": tiles_n, "group_m": group_m}
    tiles = [
      grouped_tile(linear, **grid)
      for linear in range(first, min(first + programs, tiles_m * tiles_n))
    ]
    panels = wave_panels(first=first, programs=programs, **grid)
    assert panels.programs == len(tiles)
    assert panels.rows == len({row for row, _ in tiles})
    assert panels.columns == len({column for _, column in tiles})


def test_hit_rate_of_ragged_grids_stays_a_fraction():
  for wave_programs in (1, 7, 132, 10_000):
    rate = hw.l2_hit_rate(
      block_m=128, block_n=64, tiles_m=9, tiles_n=31, wave_programs=wave_programs, group_m=4
    )
    assert 0 <= rate < 1
  assert hw.l2_hit_rate(block_m=1, block_n=1, tiles_m=0, tiles_n=5, wave_programs=3) == 0


def test_wave_quantisation():
  full = hw.wave(programs=264, cores=132)
  ragged = hw.wave(programs=265, cores=132)
  assert (full.waves, full.tail_efficiency) == (2, 1.0)
  assert (ragged.waves, ragged.tail_efficiency) == (3, pytest.approx(265 / 396))
  assert hw.wave(programs=0, cores=132).waves == 0


def test_dram_reads_go_from_once_through_to_once_a_band():
  sizes = {
    "m": 4096,
    "k": 4096,
    "n": 4096,
    "block_m": 128,
    "block_n": 128,
    "size_bytes": 2,
    "group_m": 8,
    "wave_programs": 132,
  }
  ample = dram_operand_reads(**sizes, l2_bytes=1e9)
  assert (ample.a_bytes, ample.b_bytes) == (32 * MIB, 32 * MIB)
  # a band of 8 tile rows is 8 MiB of A; B no longer stays: 4 bands
  tight = dram_operand_reads(**sizes, l2_bytes=16 * MIB)
  assert (tight.a_bytes, tight.b_bytes) == (32 * MIB, 4 * 32 * MIB)
  # not even a band stays: A is fetched by every wave
  none = dram_operand_reads(**sizes, l2_bytes=MIB)
  assert none.a_bytes > tight.a_bytes
  assert none.b_bytes == tight.b_bytes


def test_taller_bands_read_less_of_b():
  sizes = {
    "m": 8192,
    "k": 8192,
    "n": 8192,
    "block_m": 128,
    "block_n": 128,
    "size_bytes": 2,
    "wave_programs": 132,
    "l2_bytes": 25 * MIB,
  }
  reads = [dram_operand_reads(**sizes, group_m=group).b_bytes for group in (1, 4, 8)]
  assert reads[0] > reads[1] > reads[2]
