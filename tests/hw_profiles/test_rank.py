"""Ranking: order, refusals, candidates and speed."""

import subprocess
import sys
import time

import pytest

import hw_profiles as hw

FFN = hw.MatmulProblem(m=1024, k=4096, n=12288)


@pytest.mark.parametrize("profile", hw.list_profiles())
def test_best_first_and_the_same_on_every_run(profile):
  plans = hw.rank(FFN, profile)
  assert len(plans) == 10
  fastest = min(plan.predicted_us for plan in hw.rank(FFN, profile, top=None))
  tied = [plan for plan in plans if plan.predicted_us <= 1.02 * fastest]
  assert plans[: len(tied)] == tied
  times = [plan.predicted_us for plan in plans[len(tied) :]]
  assert times == sorted(times)
  assert all(plan.fits for plan in plans)
  assert [plan.config for plan in hw.rank(FFN, profile)] == [plan.config for plan in plans]


def test_equal_compute_bound_predictions_come_in_order_of_their_traffic():
  plans = hw.rank(hw.MatmulProblem(m=8192, k=8192, n=8192), "h200", top=None)
  assert plans[0].bound == "tensor_cores"
  tied = [x for x in plans if x.fits and x.predicted_us <= 1.02 * plans[0].predicted_us]
  traffic = [x.traffic.total_bytes for x in tied]
  assert len(set(traffic)) > 1
  assert traffic == sorted(traffic)


def test_order_of_the_candidates_does_not_matter():
  candidates = hw.matmul_candidates("h200", FFN)
  forwards = hw.rank(FFN, "h200", candidates)
  backwards = hw.rank(FFN, "h200", reversed(candidates))
  assert forwards == backwards


def test_tiles_that_do_not_fit_come_last_with_the_reason():
  huge = hw.MatmulConfig(128, 256, 512, 4)
  good = hw.MatmulConfig(128, 256, 64, 4)
  slow = hw.MatmulConfig(64, 64, 64, 1)
  plans = hw.rank(FFN, "h100", [huge, slow, good])
  assert [plan.config for plan in plans] == [good, slow, huge]
  assert "largest block_k that fits" in plans[-1].reason
  assert [plan.config for plan in hw.rank(FFN, "h100", [huge, slow, good], top=2)] == [good, slow]


def test_top_is_checked_and_none_returns_all():
  candidates = hw.matmul_candidates("910b3", FFN)
  assert len(hw.rank(FFN, "910b3", top=None)) == len(candidates)
  with pytest.raises(ValueError, match="top=0: expected an integer of at least 1"):
    hw.rank(FFN, "910b3", top=0)


@pytest.mark.parametrize("profile", hw.list_profiles())
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 4096, 4096), (100, 30, 7), (0, 8, 8), (8, 0, 8)])
def test_candidates_fit_whatever_the_shape(profile, shape):
  m, k, n = shape
  for dtype in ("float16", "float32"):
    problem = hw.MatmulProblem(m, k, n, dtype)
    candidates = hw.matmul_candidates(profile, problem)
    assert candidates
    assert len(set(candidates)) == len(candidates)
    assert all(plan.fits for plan in hw.rank(problem, profile, candidates, top=None))


def test_candidates_are_not_much_larger_than_the_problem():
  problem = hw.MatmulProblem(16, 4096, 100)
  for config in hw.matmul_candidates("910b3", problem):
    assert (config.block_m, config.block_n) == (16, config.block_n)
    assert config.block_n <= 128


@pytest.mark.parametrize("profile", hw.list_profiles())
def test_five_hundred_candidates_rank_within_a_second(profile):
  candidates = [
    hw.MatmulConfig(block_m, block_n, block_k, stages, group_m=group)
    for block_m in (16, 32, 64, 128)
    for block_n in (32, 64, 128, 256)
    for block_k in (32, 64, 128, 256)
    for stages in (2, 4)
    for group in (1, 2, 4, 8)
  ][:500]
  # of processor time, so that a busy machine does not fail it
  start = time.process_time()
  hw.rank(FFN, profile, candidates)
  assert time.process_time() - start < 1.0


def test_package_imports_neither_jax_nor_numpy():
  code = "import sys, hw_profiles; print({'jax', 'numpy', 'pallas_kernels'} & set(sys.modules))"
  result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  assert result.stdout.strip() == "set()"


def test_everything_public_is_exported():
  assert sorted(hw.__all__) == list(hw.__all__)
  for name in hw.__all__:
    assert getattr(hw, name).__doc__


@pytest.mark.parametrize(
  ("m", "k", "n", "config"),
  [
    # one wave of 64 rows by whole swizzle spans, in one band: 18.5 us on an H200, 23.1 before
    (333, 4096, 4096, hw.MatmulConfig(64, 192, 64, 6, num_consumer_warpgroups=1)),
    # 18.0 us, 22.3 before
    (192, 4096, 6144, hw.MatmulConfig(64, 192, 64, 6, group_m=4, num_consumer_warpgroups=1)),
    # one wave of 192 x 192: 49.1 us, 63.0 before
    (
      768,
      4096,
      6144,
      hw.MatmulConfig(192, 192, 64, 4, group_m=4, num_consumer_warpgroups=3, epilogue_block_n=32),
    ),
    # more than a wave: no room for another tile beside that of three consumers
    (8192, 8192, 8192, hw.MatmulConfig(128, 256, 64, 4)),
  ],
)
def test_tiles_that_fill_one_wave_come_first(m, k, n, config):
  problem = hw.MatmulProblem(m, k, n, out_dtype="bfloat16", shared_b=True)
  assert hw.rank(problem, "h200", schedule="warp_specialized")[0].config == config


@pytest.mark.parametrize("m", [200, 320, 1024, 5000])
def test_a_band_has_all_rows_of_tiles_that_it_may_have(m):
  problem = hw.MatmulProblem(m, 4096, 12288)
  for config in hw.matmul_candidates("h200", problem, schedule="warp_specialized"):
    assert config.group_m >= min(-(-m // config.block_m), 8)


@pytest.mark.parametrize(
  ("shape", "whole", "in_parts"),
  [
    # one row of tiles; one wave of wide tiles; parts of those of 128 columns
    ((192, 4096, 6144), {64, 128, 192, 256}, {128}),
    ((768, 4096, 6144), {192, 256}, set()),
    ((384, 4096, 1024), {192, 256}, {128}),
    ((4096, 4096, 12288), set(), set()),
  ],
  ids=str,
)
def test_tiles_of_192_rows_are_three_consumers(shape, whole, in_parts):
  tiles = hw.matmul_candidates("h200", hw.MatmulProblem(*shape), schedule="warp_specialized")
  three = [x for x in tiles if x.block_m == 192]
  assert {x.num_consumer_warpgroups for x in three} <= {3}
  assert {x.block_n for x in three if x.split_k == 1} == whole
  assert {x.block_n for x in three if x.split_k > 1} == in_parts


@pytest.mark.parametrize(
  ("shape", "columns"), [((384, 4096, 4096), 64), ((768, 4096, 4096), 128)], ids=str
)
def test_two_products_are_three_consumers_where_that_fills_a_wave(shape, columns):
  problem = hw.MatmulProblem(*shape, products=2, activation="silu", out_dtype="bfloat16")
  config = hw.rank(problem, "h200", schedule="warp_specialized")[0].config
  assert (config.block_m, config.block_n, config.num_consumer_warpgroups) == (192, columns, 3)


@pytest.mark.parametrize(("m", "depths"), [(333, {64}), (336, {64, 128}), (113, {64, 128})])
def test_odd_rows_past_one_tile_are_copied_one_span_deep(m, depths):
  problem = hw.MatmulProblem(m, 4096, 1024)
  tiles = hw.matmul_candidates("h200", problem, schedule="warp_specialized")
  assert {x.block_k for x in tiles} == depths
