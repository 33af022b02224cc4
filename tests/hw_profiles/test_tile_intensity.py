"""Intensities at every level, the best splits, and the tier that binds."""

import itertools

import pytest

import hw_profiles as hw


@pytest.mark.parametrize("tile", [(1, 1), (3, 5), (8, 8), (128, 256)])
def test_intensity_is_what_a_step_counts(tile):
  m, n = tile
  result = hw.tile_intensity(tile_m=m, tile_n=n, element_bytes=2)
  read = {("A", i) for i in range(m)} | {("B", j) for j in range(n)}
  assert result.elements_read == len(read)
  assert result.intensity == 2 * m * n / (2 * len(read))


def test_block_intensity_is_that_of_its_traffic_for_deep_products():
  sizes = {"m": 1024, "n": 2048, "block_m": 128, "block_n": 64, "block_k": 8, "in_dtype": "float32"}
  result = hw.matmul_traffic(k=4096, **sizes)
  reads = result.a_read_bytes + result.b_read_bytes
  expected = hw.tile_intensity(tile_m=128, tile_n=64).intensity
  assert 2 * 1024 * 2048 * 4096 / reads == expected


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16, 32])
def test_warp_intensity_counts_distinct_elements(rows):
  lanes = hw.LaneMap(rows=rows, columns=32 // rows)
  tiling = hw.WarpTiling(lanes=lanes, thread_m=4, thread_n=8)
  read_rows = {row for row, _ in tiling.outputs()}
  read_columns = {column for _, column in tiling.outputs()}
  result = hw.warp_intensity(
    lane_rows=lanes.rows, lane_columns=lanes.columns, thread_m=4, thread_n=8
  )
  assert result.elements_read == len(read_rows) + len(read_columns)
  assert result.fmas == 32 * 4 * 8


def test_the_best_warp_shape_comes_near_the_bound():
  square = hw.best_warp_shape()
  assert square.shapes == ((4, 8), (8, 4))
  assert square.elements_read == 12
  assert hw.best_warp_shape(thread_m=8, thread_n=8).shapes == square.shapes
  # 4 x 16 patches: more lanes along the short side
  assert hw.best_warp_shape(thread_m=4, thread_n=16).shapes == ((8, 4), (16, 2))
  for m, n, lanes in itertools.product((1, 3, 8), (1, 4), (1, 32, 128)):
    best = hw.best_warp_shape(thread_m=m, thread_n=n, lanes=lanes)
    assert best.elements_read**2 >= 4 * lanes * m * n
    reads = [rows * m + lanes // rows * n for rows in range(1, lanes + 1) if lanes % rows == 0]
    assert best.elements_read == min(reads)


def test_square_tiles_are_best_under_both_budgets():
  assert hw.best_tiles(budget=256, fixed="sum") == ((128, 128),)
  assert hw.best_tiles(budget=128 * 128, fixed="product") == ((128, 128),)
  assert hw.best_tiles(budget=192, fixed="sum", unit=64) == ((64, 128), (128, 64))
  assert hw.best_tiles(budget=64 * 128, fixed="product", unit=32) == ((64, 128), (128, 64))
  assert hw.best_tiles(budget=7, fixed="sum") == ((3, 4), (4, 3))
  with pytest.raises(ValueError, match=r"budget=100: no tile in multiples of unit=64 has that sum"):
    hw.best_tiles(budget=100, fixed="sum", unit=64)


def test_ceilings_name_the_bottleneck_of_each_step():
  """Naive, shared-memory tiles, thread tiles on a V100, as its text has the tiers."""

  def binding(dram, shared):
    return hw.tier_ceilings(
      hw.Tier("dram", dram, 900e9),
      hw.Tier("shared_memory", shared, 12e12),
      peak_flops_per_s=15.7e12,
    ).binding

  single = hw.tile_intensity(tile_m=1, tile_n=1).intensity
  block = hw.tile_intensity(tile_m=128, tile_n=128).intensity
  patch = hw.tile_intensity(tile_m=8, tile_n=8).intensity
  assert binding(single, 1e6) == ("dram",)
  assert binding(block, single) == ("shared_memory",)
  assert binding(block, patch) == ("arithmetic",)
  with pytest.raises(ValueError, match="name='dram': expected another"):
    hw.tier_ceilings(hw.Tier("dram", 1, 1), hw.Tier("dram", 2, 1), peak_flops_per_s=1)
