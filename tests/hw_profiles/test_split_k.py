"""K in parts as the planner sees it: what it moves, needs and takes, and when it pays."""

import dataclasses

import pytest

import hw_profiles as hw
from hw_profiles.matmul.padding import padding_copy_us

DEEP = hw.MatmulProblem(m=256, k=12288, n=4096)
SPLIT = hw.MatmulConfig(128, 192, 64, 4, split_k=3)
WHOLE = dataclasses.replace(SPLIT, split_k=1)


def test_traffic_adds_the_sums_both_ways_and_reads_no_operand_more():
  sizes = {"m": 100, "k": 1000, "n": 70, "block_m": 64, "block_n": 32, "block_k": 64}
  whole = hw.matmul_traffic(**sizes, in_dtype="bfloat16")
  split = hw.matmul_traffic(**sizes, in_dtype="bfloat16", split_k=3)
  assert (split.a_read_bytes, split.b_read_bytes) == (whole.a_read_bytes, whole.b_read_bytes)
  assert split.partial_bytes == 2 * 3 * 100 * 70 * 4
  assert split.total_bytes == whole.total_bytes + split.partial_bytes
  # 16 steps in parts of 6
  assert (whole.k_steps, split.k_steps) == (16, 6)
  assert split.tile_pair_loads == 2 * 3 * 3 * 6


@pytest.mark.parametrize("schedule", ["warp_specialized", "multistage"])
def test_a_split_plan_is_its_parts_and_a_merge(schedule):
  config = dataclasses.replace(SPLIT, block_n=128)
  plan = hw.plan(DEEP, config, "h200", schedule=schedule)
  parts = hw.plan(
    hw.MatmulProblem(m=256, k=4096, n=4096, out_dtype="float32", batch=3),
    dataclasses.replace(config, split_k=1),
    "h200",
    schedule=schedule,
  )
  assert plan.fits
  assert plan.predicted_us == pytest.approx(parts.predicted_us + plan.times_us["merge"])
  assert plan.needed_bytes("DRAM") == 3 * 256 * 4096 * 4
  # the sums stay in L2
  unsplit = hw.plan(DEEP, dataclasses.replace(config, split_k=1), "h200", schedule=schedule)
  assert plan.traffic_bytes["dram"] == unsplit.traffic_bytes["dram"]
  assert plan.traffic_bytes["dram"] == (256 * 12288 + 12288 * 4096 + 256 * 4096) * 2
  assert {x.name: x.needed_bytes for x in parts.buffers}.items() <= {
    x.name: x.needed_bytes for x in plan.buffers
  }.items()


def test_parts_that_l2_does_not_keep_are_read_from_dram():
  problem = hw.MatmulProblem(m=4096, k=4096, n=8192)
  config = dataclasses.replace(SPLIT, split_k=2)
  plan = hw.plan(problem, config, "h200")
  sums = 2 * 4096 * 8192 * 4
  # written by the parts, read by the merge, beside operands and result
  assert plan.traffic_bytes["dram"] >= 2 * sums + problem.once_through_bytes


def test_the_planner_splits_where_c_has_few_tiles_and_k_is_long():
  best = hw.rank(DEEP, "h200", top=1)[0]
  assert best.config.split_k > 1
  assert best.predicted_us < hw.plan(DEEP, WHOLE, "h200").predicted_us
  for m, k, n in ((1024, 4096, 12288), (256, 4096, 12288), (8192, 8192, 8192)):
    assert hw.rank(hw.MatmulProblem(m=m, k=k, n=n), "h200", top=1)[0].config.split_k == 1


def test_few_rows_of_a_narrow_b_are_streamed_by_most_cores():
  for m in (1, 64):
    problem = hw.MatmulProblem(m=m, k=12288, n=4096)
    best = hw.rank(problem, "h200", top=1, schedule="warp_specialized")[0].config
    tiles = 4096 // best.block_n
    assert 3 * tiles * best.split_k >= 2 * 132
    assert tiles * best.split_k <= 132


def test_the_smem_of_a_split_tile_stages_float32():
  split = hw.warp_specialized_shared_bytes(SPLIT, in_dtype="bfloat16", bias=True)
  assert split == hw.warp_specialized_shared_bytes(WHOLE, in_dtype="bfloat16", out_dtype="float32")


def test_what_does_not_split():
  gated = dataclasses.replace(DEEP, products=2)
  plan = hw.plan(gated, hw.MatmulConfig(128, 128, 64, 3, split_k=3), "h200")
  assert not plan.fits
  assert "split_k=3: the parts of 2 products are not stored" in plan.reason
  plan = hw.plan(DEEP, hw.MatmulConfig(128, 128, 64, split_k=3), "ascend_910b3")
  assert plan.fits
  assert any("split_k=3 is not read here" in note for note in plan.notes)
  assert "merge" not in plan.times_us
  with pytest.raises(ValueError, match="split_k=0"):
    hw.MatmulConfig(64, 64, 64, split_k=0)


def test_triton_copies_rows_of_an_odd_pitch_by_the_element_and_one_step_at_a_time():
  config = hw.MatmulConfig(64, 64, 64, 4)
  whole, odd = (
    hw.plan(hw.MatmulProblem(m=128, k=k, n=256), config, "h200", schedule="multistage")
    for k in (1024, 1023)
  )
  assert "narrow_copies" not in whole.times_us
  # 16 steps of 64 x 64 elements of A, a warp's 32 at a time; B's rows are whole
  assert odd.times_us["narrow_copies"] == pytest.approx(16 * 128 * 9 / 1830)
  assert odd.times_us["latency"] > 3 * whole.times_us["latency"]


def test_small_odd_products_are_split_for_triton_on_hopper_alone():
  problem = hw.MatmulProblem(m=113, k=1023, n=203)
  best = hw.rank(problem, "h200", top=1, schedule="multistage")[0]
  assert best.config.split_k > 1
  assert best.config.num_stages == 2
  assert hw.rank(problem, "a100_sxm", top=1, schedule="multistage")[0].config.split_k == 1


def test_a_padding_copy_is_a_launch_and_what_it_moves():
  h200 = hw.get_profile("h200")
  small = padding_copy_us(113 * 1023, 120 * 1024, 2, h200)
  # a kernel's start and one load; measured 1.44 us, so the copies are charged too little
  alone = h200.stream_launch_us + h200.dram_latency_ns / 1e3
  assert alone < small - h200.launch_gap_us < 1.44
  large = padding_copy_us(4096 * 12289, 4096 * 12352, 2, h200)
  assert large == pytest.approx(201.9e6 / (0.88 * 4.8e12) * 1e6, rel=0.1)


def test_tiles_that_share_the_larger_operand_are_neighbours():
  """Measured on an H200, 256 x 12288 x 4096: 39.1 us in bands of rows of tiles, 43.6 row by row."""
  for problem in (DEEP, hw.MatmulProblem(256, 4096, 12288)):
    offered = hw.matmul_candidates("h200", problem, schedule="warp_specialized")
    assert {x.group_m for x in offered if x.block_m < problem.m} == {4}
  tall = hw.matmul_candidates("h200", hw.MatmulProblem(12288, 4096, 256))
  assert 1 in {x.group_m for x in tall}


def test_two_products_get_two_consumers_where_that_pads_no_row():
  """Measured on an H200, 256 x 4096 x 12288 gated: 73.0 us in tiles of 128 rows, 77.2 of 64."""
  for m, fewest in ((256, 128), (192, 64), (1, 64)):
    problem = hw.MatmulProblem(m=m, k=4096, n=12288, activation="silu", products=2)
    offered = hw.matmul_candidates("h200", problem, schedule="warp_specialized")
    assert min(x.block_m for x in offered) == fewest, m
