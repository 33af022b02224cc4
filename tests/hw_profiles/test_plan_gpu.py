"""Plans on NVIDIA SMs: what fits, what binds, why not, and how long."""

import dataclasses
import itertools
import re

import pytest

import hw_profiles as hw
from hw_profiles.matmul.warp_specialized import (
  settled_tile_fits,
  staging_columns,
  wgmma_columns,
)
from hw_profiles.validation.recorded import recorded_error

KIB = 1024
FFN = hw.MatmulProblem(m=1024, k=4096, n=12288)
HOPPER = hw.MatmulConfig(128, 256, 64, 4)
GPUS = ("v100_sxm2", "h100_sxm", "h200_sxm", "rtx_pro_6000")


def _replace_field(config, field, value):
  return dataclasses.replace(config, **{field: value})


@pytest.mark.parametrize(
  ("side", "kib", "mib", "rtx_blocks"), [(32, 8, 6168, 11), (64, 24, 3096, 4), (128, 80, 1560, 1)]
)
def test_the_course_tiles(side, kib, mib, rtx_blocks):
  config = hw.MatmulConfig(side, side, 32, 1, accumulator="shared")
  for profile in ("h100", "rtx_pro_6000"):
    plan = hw.plan(FFN, config, profile)
    assert plan.fits
    assert plan.schedule == "multistage"
    assert plan.traffic.working_set_bytes == plan.needed_bytes("shared") == kib * KIB
    assert plan.traffic.total_bytes == mib * KIB * KIB
  assert plan.residency.blocks_by["shared_memory"] == rtx_blocks
  if side > 32:  # whose registers bind first, at 10 blocks
    assert plan.resident_blocks == rtx_blocks
    assert plan.binding == ("shared_memory",)


def test_double_buffering_costs_residency():
  blocks = [
    hw.plan(
      FFN, hw.MatmulConfig(64, 64, 32, stages, accumulator="shared"), "rtx_pro_6000"
    ).resident_blocks
    for stages in (1, 2)
  ]
  assert blocks == [4, 3]


def test_hopper_plan_counts_stages_epilogue_barriers_and_registers():
  plan = hw.plan(FFN, HOPPER, "h200")
  assert plan.schedule == "warp_specialized"
  sizes = {buffer.name: buffer.needed_bytes for buffer in plan.buffers}
  assert sizes == {
    "A": 4 * 128 * 64 * 2,
    "B": 4 * 64 * 256 * 2,
    "epilogue": 2 * 2 * 64 * 64 * 2,
    "barriers": 4 * 16,
    "accumulator": 128 * 256 * 4,
  }
  assert plan.needed_bytes("shared") == hw.warp_specialized_shared_bytes(
    HOPPER, in_dtype="bfloat16"
  )
  assert plan.resident_blocks == 1
  assert "registers" in plan.binding
  assert (plan.grid, plan.waves) == ((8, 48), 3)
  assert plan.tail_efficiency == pytest.approx(384 / 396)
  assert any("2 consumer warpgroup(s) split M: 64x256 each" in note for note in plan.notes)


def test_shared_bytes_follow_the_result_dtype():
  config = hw.MatmulConfig(128, 128, 64, 3, epilogue_block_n=32)
  half = hw.warp_specialized_shared_bytes(config, in_dtype="float16")
  single = hw.warp_specialized_shared_bytes(config, in_dtype="float16", out_dtype="float32")
  assert half == 3 * (256 * 64 * 2 + 16) + 2 * 2 * 64 * 32 * 2
  assert single - half == 2 * 2 * 64 * 32 * 2
  wide = dataclasses.replace(config, epilogue_block_n=None)
  assert hw.warp_specialized_shared_bytes(wide, in_dtype="float16", out_dtype="float32") == single


@pytest.mark.parametrize(
  ("profile", "stages"), [("v100", 3), ("rtx_pro_6000", 3), ("h100", 7), ("h200", 7)]
)
def test_stages_that_fit_follow_the_block_limit_of_the_device(profile, stages):
  # 32 KiB a stage: 99 KiB a block on the RTX PRO 6000 although 12.0 > 9.0
  problem = dataclasses.replace(FFN, dtype="float16")
  fitting = [
    count
    for count in range(1, 12)
    if hw.plan(problem, hw.MatmulConfig(128, 128, 64, count), profile, schedule="multistage").fits
  ]
  assert fitting == list(range(1, stages + 1))


def test_reason_names_field_need_limit_and_remedy():
  plan = hw.plan(FFN, hw.MatmulConfig(128, 128, 64, 8), "h100")
  assert not plan.fits
  assert plan.reason == (
    "num_stages=8: shared memory needs 295040 B for 8 stage(s) of A (128x64 bfloat16) and B"
    " (64x128), 32768 B of epilogue and 128 B of barriers, h100_sxm has 232448 B; largest"
    " num_stages that fits is 6"
  )
  assert plan.binding == ("shared_memory",)
  assert (plan.resident_blocks, plan.residency, plan.predicted_us, plan.bound) == (
    0,
    None,
    None,
    "",
  )
  with pytest.raises(hw.InfeasibleTileError, match="largest num_stages that fits is 6"):
    plan.check()


def test_check_is_silent_when_the_tile_fits():
  hw.plan(FFN, HOPPER, "h100").check()


def test_error_of_a_tile_says_whether_anything_is_short():
  problem = hw.MatmulProblem(m=1024, k=1024, n=1024)
  odd = hw.MatmulConfig(100, 64, 64)  # no whole wgmma
  large = hw.MatmulConfig(128, 256, 64, 8)  # eight stages of 48 KiB
  both = hw.MatmulConfig(100, 256, 64, 8)
  found = {}
  for config in (odd, large, both):
    plan = hw.plan(problem, config, "h200_sxm", schedule="warp_specialized")
    with pytest.raises(hw.InfeasibleTileError) as caught:
      plan.check()
    found[config] = type(caught.value)
  assert found == {
    odd: hw.TileShapeError,
    large: hw.InfeasibleTileError,
    both: hw.InfeasibleTileError,
  }


def test_accumulator_that_leaves_no_registers_is_refused():
  plan = hw.plan(FFN, hw.MatmulConfig(256, 256, 64, 2), "h100")
  assert plan.binding == ("registers",)
  assert plan.reason == (
    "block_n=256: registers of a consumer thread need 256 for its share of the 256x256"
    " accumulator and 32 besides, h100_sxm has 232 with 2 consumer warpgroup(s);"
    " largest block_n that fits is 192"
  )


@pytest.mark.parametrize(
  ("config", "message"),
  [
    (hw.MatmulConfig(32, 128, 64), "block_m=32: wgmma computes multiples of 64 rows; smallest"),
    (hw.MatmulConfig(64, 131, 64), "block_n=131: 2 consumer warpgroups share block_m=64 along N"),
    (
      hw.MatmulConfig(64, 520, 64, num_consumer_warpgroups=1),
      "block_n=520: a wgmma has at most 256 columns",
    ),
    (
      hw.MatmulConfig(64, 192, 64),
      "block_n=192: a consumer warpgroup's 96 columns of B are 192 B, not whole swizzle spans",
    ),
    (
      hw.MatmulConfig(128, 72, 64),
      "block_n=72: a consumer warpgroup's 72 columns of B are 144 B, not whole swizzle spans of 32",
    ),
    (
      hw.MatmulConfig(128, 96, 64, epilogue_block_n=64),
      "epilogue_block_n=64: the epilogue stores 64 columns at a time, which do not divide the 96"
      " of a consumer warpgroup; largest epilogue_block_n that fits is 32",
    ),
    (
      hw.MatmulConfig(128, 128, 64, epilogue_block_n=128),
      "epilogue_block_n=128: the epilogue stages rows of 256 B (128 bfloat16), TMA swizzles rows"
      " of 32, 64, 128 B; largest epilogue_block_n that fits is 64",
    ),
    (hw.MatmulConfig(128, 128, 8), "block_k=8: a K step of 16 B is not a multiple of the 32 B"),
    (
      hw.MatmulConfig(512, 64, 16, 2, num_consumer_warpgroups=8, epilogue_block_n=16),
      "num_consumer_warpgroups=8: 8 consumer warpgroups and the producer are 1152 threads",
    ),
    (hw.MatmulConfig(64, 64, 64, accumulator="shared"), "accumulator='shared'"),
    (
      hw.MatmulConfig(128, 128, 64, cluster_m=3),
      "cluster_m=3: thread blocks of a cluster share a tile evenly if they are a power of two;"
      " nearest cluster_m that fit are 2 and 4",
    ),
    (
      hw.MatmulConfig(128, 128, 64, cluster_n=16),
      "cluster_n=16: a cluster has at most 8 thread blocks on every device; largest cluster_n that"
      " fits is 8",
    ),
    (
      hw.MatmulConfig(128, 128, 64, cluster_m=2, cluster_n=2),
      "cluster_m=2 and cluster_n=2: a cluster shares one operand, so one of them is 1; largest"
      " cluster_m that fits is 1",
    ),
  ],
)
def test_wgmma_rules_are_refusals_with_a_remedy(config, message):
  plan = hw.plan(FFN, config, "h100", schedule="warp_specialized")
  assert not plan.fits
  assert message in plan.reason


@pytest.mark.parametrize(
  ("config", "out_dtype", "columns"),
  [
    (hw.MatmulConfig(128, 256, 64), "bfloat16", 64),
    (hw.MatmulConfig(128, 96, 64), "bfloat16", 32),
    (hw.MatmulConfig(128, 80, 64), "bfloat16", 16),
    (hw.MatmulConfig(128, 256, 64), "float32", 32),
    (hw.MatmulConfig(128, 80, 64), "float32", 16),
    (hw.MatmulConfig(128, 64, 64), "int8", 64),  # 128 B would be 128 columns
    (hw.MatmulConfig(64, 128, 64), "bfloat16", 64),  # two consumers share N
    (hw.MatmulConfig(64, 64, 64, num_consumer_warpgroups=2), "bfloat16", 32),
    (hw.MatmulConfig(128, 96, 64, epilogue_block_n=16), "bfloat16", 16),
  ],
)
def test_the_default_epilogue_is_the_widest_that_divides_a_consumers_columns(
  config, out_dtype, columns
):
  assert staging_columns(config, out_dtype=out_dtype) == columns


@pytest.mark.parametrize(
  ("config", "columns"),
  [
    (hw.MatmulConfig(128, 256, 64), 256),
    (hw.MatmulConfig(64, 256, 64, num_consumer_warpgroups=1), 256),
    (hw.MatmulConfig(192, 192, 64, num_consumer_warpgroups=3), 192),
    (hw.MatmulConfig(192, 256, 64, num_consumer_warpgroups=3), 128),
    (hw.MatmulConfig(64, 384, 64, num_consumer_warpgroups=3), 128),
  ],
  ids=str,
)
def test_a_wgmma_holds_no_more_sums_than_it_compiles_with(config, columns):
  assert wgmma_columns(config) == columns


def test_halves_of_a_consumers_columns_are_whole_spans():
  config = hw.MatmulConfig(192, 224, 64, num_consumer_warpgroups=3)
  plan = hw.plan(FFN, config, "h200", schedule="warp_specialized")
  assert plan.reason.startswith(
    "block_n=224: a wgmma's 112 columns of B are 224 B, not whole swizzle spans of 64 B"
  )


def test_three_consumers_hold_a_tile_of_192_by_256_but_no_second_one():
  config = hw.MatmulConfig(192, 256, 64, 3, num_consumer_warpgroups=3)
  plan = hw.plan(FFN, config, "h200", schedule="warp_specialized")
  assert plan.fits
  assert "up to 160 registers a thread" in " ".join(plan.notes)
  assert not settled_tile_fits(config, products=1, settled_bytes=2)
  for fits in (hw.MatmulConfig(128, 256, 64), dataclasses.replace(config, block_n=192)):
    assert settled_tile_fits(fits, products=1, settled_bytes=2)


@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("consumers", [None, 1, 2])
def test_no_tile_is_refused_for_the_default_epilogue(out_dtype, consumers):
  problem = dataclasses.replace(FFN, out_dtype=out_dtype)
  fitting = 0
  for block_m, block_n in itertools.product((64, 128), range(16, 257, 16)):
    config = hw.MatmulConfig(block_m, block_n, 64, 2, num_consumer_warpgroups=consumers)
    plan = hw.plan(problem, config, "h100", schedule="warp_specialized")
    assert "epilogue" not in plan.reason
    fitting += plan.fits
  assert fitting > 15


@pytest.mark.parametrize(
  ("config", "schedule", "kinds"),
  [
    (HOPPER, "warp_specialized", ()),
    (hw.MatmulConfig(128, 256, 64, 9), "warp_specialized", ("capacity",)),
    (hw.MatmulConfig(32, 128, 64), "warp_specialized", ("shape",)),
    (hw.MatmulConfig(32, 256, 64, 20), "warp_specialized", ("shape", "capacity")),
    (hw.MatmulConfig(64, 64, 64, accumulator="shared"), "warp_specialized", ("shape",)),
    (hw.MatmulConfig(96, 128, 64), "multistage", ("shape",)),
    (hw.MatmulConfig(128, 128, 64, 9), "multistage", ("capacity",)),
  ],
)
def test_kinds_tell_capacity_from_shape(config, schedule, kinds):
  plan = hw.plan(FFN, config, "h100", schedule=schedule)
  assert plan.shortfall_kinds == kinds
  assert plan.fits == (kinds == ())


def test_the_schedule_that_does_the_dtype_is_named_in_a_note():
  problem = dataclasses.replace(FFN, dtype="float32")
  refused = hw.plan(problem, HOPPER, "h100", schedule="warp_specialized")
  assert "schedule='multistage' takes the problem, in another tile" in refused.notes
  small = hw.MatmulConfig(64, 64, 32)
  refused = hw.plan(problem, small, "h100", schedule="warp_specialized")
  assert "schedule='multistage' would fit this tile" in refused.notes


def test_a_float32_result_is_staged_in_narrower_sub_tiles():
  problem = dataclasses.replace(FFN, out_dtype="float32")
  plan = hw.plan(problem, HOPPER, "h100")
  assert plan.schedule == "warp_specialized"
  # 32 columns of float32 fill the 128 B span that 64 of bfloat16 do
  assert plan.needed_bytes("shared") == hw.plan(FFN, HOPPER, "h100").needed_bytes("shared")
  wide = dataclasses.replace(HOPPER, epilogue_block_n=64)
  refused = hw.plan(problem, wide, "h100", schedule="warp_specialized")
  assert refused.reason.endswith("largest epilogue_block_n that fits is 32")


@pytest.mark.parametrize("schedule", ["warp_specialized", "multistage"])
def test_candidates_can_be_those_of_one_schedule(schedule):
  plans = hw.rank(FFN, "h100", schedule=schedule)
  assert len(plans) == 10
  assert {plan.schedule for plan in plans} == {schedule}


@pytest.mark.parametrize(
  ("problem", "profile", "message"),
  [
    (hw.MatmulProblem(64, 64, 64, "float32"), "h100", "dtype='float32'.*TF32$"),
    (FFN, "rtx_pro_6000", "needs wgmma, compute capability 9.0; rtx_pro_6000 is 12.0"),
    (hw.MatmulProblem(64, 64, 64, "float64"), "h100", "dtype='float64': h100_sxm multiplies"),
  ],
)
def test_devices_and_dtypes_without_a_kernel_say_so(problem, profile, message):
  plan = hw.plan(problem, HOPPER, profile, schedule="warp_specialized")
  assert not plan.fits
  assert re.search(message, plan.reason)
  assert plan.shortfall_kinds[0] == "unsupported"
  assert "schedule=" not in plan.reason


def test_auto_says_which_schedule_it_took_and_why():
  hopper = hw.plan(FFN, HOPPER, "h100")
  assert "warp_specialized" in hopper.notes[0]
  config = hw.MatmulConfig(128, 128, 32, 2)
  single = hw.plan(dataclasses.replace(FFN, dtype="float32"), config, "h100")
  assert single.schedule == "multistage"
  assert "TF32" in single.notes[0]
  assert any("CUDA cores" in note for note in single.notes)
  blackwell = hw.plan(FFN, config, "rtx_pro_6000")
  assert blackwell.schedule == "multistage"
  assert "wgmma" in blackwell.notes[0]


def test_a_dtype_without_tensor_cores_is_priced_on_the_cuda_cores():
  plan = hw.plan(FFN, hw.MatmulConfig(128, 64, 32, 2), "v100")
  assert plan.fits
  assert any("no bfloat16 tensor cores" in note for note in plan.notes)
  assert plan.bound == "cuda_cores"
  assert "tensor_cores" not in plan.times_us
  half = hw.plan(dataclasses.replace(FFN, dtype="float16"), plan.config, "v100")
  assert "cuda_cores" not in half.times_us
  assert plan.predicted_us > 5 * half.predicted_us


def test_triton_takes_powers_of_two_only():
  plan = hw.plan(FFN, hw.MatmulConfig(96, 64, 32), "rtx_pro_6000")
  assert plan.reason == (
    "block_m=96: Triton's dot takes powers of two of at least 16;"
    " nearest block_m that fit are 64 and 128"
  )
  tiny = hw.plan(FFN, hw.MatmulConfig(8, 64, 32), "rtx_pro_6000")
  assert tiny.reason.endswith("smallest block_m that fits is 16")


def test_a_tile_beyond_any_single_field_names_one_that_fits():
  plan = hw.plan(FFN, hw.MatmulConfig(4096, 4096, 4096), "h100")
  assert "no single field mends it" in plan.reason
  text = plan.reason.split("mends it, ")[1].removesuffix(" fits")
  fields = {name: int(value) for name, value in (pair.split("=") for pair in text.split(","))}
  assert hw.plan(FFN, hw.MatmulConfig(**fields), "h100").fits


def test_multistage_would_fit_is_said_where_the_epilogue_is_what_is_too_much():
  config = hw.MatmulConfig(128, 128, 64, 7)
  plan = hw.plan(FFN, config, "h100", schedule="warp_specialized")
  assert not plan.fits
  assert "schedule='multistage' would fit this tile" in plan.notes
  priced = hw.plan(FFN, config, "h100")
  assert (priced.fits, priced.schedule) == (True, "multistage")
  assert priced.notes[0].startswith("schedule: multistage, as warp_specialized does not: shared")


_SUGGESTION = re.compile(r"(largest|smallest) (\w+) that fits is (\d+)(?:$|;)")


@pytest.mark.parametrize("profile", GPUS)
@pytest.mark.parametrize("schedule", ["auto", "warp_specialized", "multistage"])
def test_every_plan_fits_or_suggests_what_does(profile, schedule):
  problem = dataclasses.replace(FFN, dtype="float16")
  suggestions = 0
  for m, n, k, stages, warps in itertools.product(
    (48, 64, 128, 512), (8, 64, 1024), (16, 64, 512), (1, 2, 9), (None, 1, 32)
  ):
    config = hw.MatmulConfig(m, n, k, stages, num_warps=warps)
    plan = hw.plan(problem, config, profile, schedule=schedule)
    assert plan.fits == (plan.reason == "") == (plan.predicted_us is not None)
    assert plan.fits == (plan.resident_blocks > 0)
    assert plan.binding
    found = _SUGGESTION.search(plan.reason)
    if found is None:
      continue
    suggestions += 1
    field, value = found[2], int(found[3])
    mended = _replace_field(config, field, value)
    assert hw.plan(problem, mended, profile, schedule=schedule).fits, (config, plan.reason)
  if schedule == "multistage" or profile in ("h100_sxm", "h200_sxm"):
    assert suggestions > 0


def test_the_suggested_value_is_the_largest():
  config = hw.MatmulConfig(128, 128, 512, 2)
  plan = hw.plan(FFN, config, "h100")
  value = int(_SUGGESTION.search(plan.reason)[3])
  fitting = [
    depth
    for depth in range(16, 512, 16)
    if hw.plan(FFN, _replace_field(config, "block_k", depth), "h100").fits
  ]
  assert value == max(fitting)


@pytest.mark.parametrize("profile", GPUS)
def test_no_prediction_beats_the_roofline(profile):
  device = hw.get_profile(profile)
  for dtype, shape in itertools.product(
    ("float16", "float32"), [(1, 4096, 4096), (1024, 4096, 12288), (4096, 64, 4096)]
  ):
    m, k, n = shape
    problem = hw.MatmulProblem(m, k, n, dtype)
    limit = hw.roofline(device, flops=problem.flops, bytes=problem.once_through_bytes, dtype=dtype)
    for plan in hw.rank(problem, device, top=None):
      assert plan.predicted_us > limit.time_us


def test_predictions_are_near_the_measured_hopper_kernel():
  # jax's hopper_matmul_mgpu with these tiles on one H200: 129.5 us
  plan = hw.plan(FFN, HOPPER, "h200")
  assert plan.predicted_us == pytest.approx(129.5, rel=0.1)
  assert plan.bound == "tensor_cores"


def test_one_tile_more_than_the_sms_costs_a_round():
  times = [
    hw.plan(hw.MatmulProblem(128 * tiles, 4096, 256), HOPPER, "h200").predicted_us
    for tiles in (131, 132, 133, 264)
  ]
  # 131 and 132 tiles take one round, 133 and 264 two; DRAM is not what binds
  assert times[0] == pytest.approx(times[1], rel=0.02)
  assert times[2] > 1.7 * times[1]
  assert times[3] == pytest.approx(times[2], rel=0.02)


def test_a_single_stage_exposes_latency():
  config = hw.MatmulConfig(128, 256, 64, 1, num_warps=8)
  one, three = (
    hw.plan(FFN, _replace_field(config, "num_stages", s), "h200", schedule="multistage")
    for s in (1, 3)
  )
  assert (one.resident_blocks, three.resident_blocks) == (1, 1)
  assert one.bound == "latency"
  assert one.predicted_us > 1.5 * three.predicted_us


def test_decode_is_bound_by_dram():
  best = hw.rank(hw.MatmulProblem(16, 4096, 12288), "h200", top=1)[0]
  assert best.bound == "dram"


def test_silu_and_bias_cost_time_and_bytes():
  plain = hw.plan(FFN, HOPPER, "h200")
  fused = hw.plan(dataclasses.replace(FFN, bias=True, activation="silu"), HOPPER, "h200")
  assert fused.times_us["epilogue"] > plain.times_us["epilogue"]
  assert fused.predicted_us > plain.predicted_us
  assert fused.traffic_bytes["dram"] == plain.traffic_bytes["dram"] + 4 * FFN.n


@pytest.mark.parametrize(
  ("dtype", "tile", "a_reads", "b_reads"),
  [
    # wgmma: 64 rows of A and every column of B at a time
    ("bfloat16", hw.MatmulConfig(128, 128, 64, 3), 1, 2),
    ("int8", hw.MatmulConfig(128, 128, 64, 3), 1, 2),
    ("bfloat16", hw.MatmulConfig(256, 64, 64, 3), 1, 4),
    # the second warpgroup finds no rows of its own and takes half of the columns
    ("bfloat16", hw.MatmulConfig(64, 128, 64, 3, num_warps=8), 2, 1),
    # mma.sync: each of 2 x 4, 2 x 2 and 4 x 2 warps for itself
    ("float8_e4m3fn", hw.MatmulConfig(128, 256, 64, 3, num_warps=8), 4, 2),
    ("bfloat16", hw.MatmulConfig(32, 64, 64, 3), 2, 2),
    ("bfloat16", hw.MatmulConfig(128, 64, 64, 3, num_warps=2), 1, 2),
  ],
  ids=str,
)
def test_triton_reads_shared_memory_as_its_instruction_does(dtype, tile, a_reads, b_reads):
  """Which instruction that is was read off the machine code: see `multistage.uses_wgmma`."""
  problem = dataclasses.replace(FFN, dtype=dtype, out_dtype="bfloat16")
  plan = hw.plan(problem, tile, "h200", schedule="multistage")
  size = 2 if dtype == "bfloat16" else 1
  a_bytes, b_bytes = (side * tile.block_k * size for side in (tile.block_m, tile.block_n))
  steps = plan.traffic.grid[0] * plan.traffic.grid[1] * plan.traffic.k_steps
  moved = a_bytes * (1 + a_reads) + b_bytes * (1 + b_reads)
  assert plan.traffic_bytes["shared"] == steps * moved
  assumed = "mma.sync, with operands and accumulators in registers, reaches 63 % of the wgmma rate"
  slow = dtype == "float8_e4m3fn" or tile.block_m < 64 or tile.num_warps == 2
  assert any(text.startswith(assumed) for text in plan.assumptions) == slow


def test_triton_multiplies_float8_as_float16_on_hopper():
  tile = hw.MatmulConfig(128, 128, 64, 3)
  float8, float16 = (
    hw.plan(
      dataclasses.replace(FFN, dtype=x, out_dtype="float16"), tile, "h200", schedule="multistage"
    )
    for x in ("float8_e4m3fn", "float16")
  )
  slower = float8.times_us["tensor_cores"] / float16.times_us["tensor_cores"]
  # of wgmma's rate Triton reaches 90 %, mma.sync 63
  assert slower == pytest.approx(0.9 / 0.63, rel=1e-3)


def test_the_hopper_kernel_copies_into_one_stage_less_than_it_has():
  """A stage is held until the next one has arrived: two in turn are one load at a time.

  Measured on an H200: 367.7 us with two stages, 145.5 with four (docs/gemm-ladder.md).
  """
  two, four = (
    hw.plan(FFN, hw.MatmulConfig(128, 128, 64, stages), "h200", schedule="warp_specialized")
    for stages in (2, 4)
  )
  assert two.predicted_us == pytest.approx(367.7, rel=0.1)
  assert four.predicted_us == pytest.approx(145.5, rel=0.1)
  gpu = hw.get_profile("h200")
  load_us = gpu.dram_latency_ns / 1e3 + two.times_us["l2"] / (6 * 64)
  assert two.times_us["latency"] == pytest.approx(6 * 64 * load_us)


def test_launch_order_changes_what_dram_sees():
  problem = hw.MatmulProblem(8192, 8192, 8192)
  rows, bands = (
    hw.plan(problem, _replace_field(HOPPER, "group_m", group), "h100").traffic_bytes["dram"]
    for group in (1, 8)
  )
  # row by row 132 tiles touch every column: B comes in once a wave, 16 times
  assert rows - bands == (16 - 8) * 8192 * 8192 * 2


def test_a_shared_b_is_read_once_for_the_batch():
  batch = hw.MatmulProblem(128, 1024, 1024, batch=8)
  shared = dataclasses.replace(batch, shared_b=True)
  config = hw.MatmulConfig(128, 128, 64, 4)
  own, one = (hw.plan(p, config, "h100").traffic_bytes["dram"] for p in (batch, shared))
  assert own - one == 7 * 1024 * 1024 * 2
  assert one == shared.once_through_bytes


def test_a_shared_a_is_read_once_where_l2_keeps_it():
  batch = hw.MatmulProblem(128, 1024, 1024, batch=8)
  shared = dataclasses.replace(batch, shared_a=True)
  config = hw.MatmulConfig(128, 128, 64, 4)
  own, one = (hw.plan(p, config, "h100").traffic_bytes["dram"] for p in (batch, shared))
  assert own - one == 7 * 128 * 1024 * 2
  assert one == shared.once_through_bytes
  # 64 MiB of A and of B pass before A is needed again: L2 has 50 MiB
  large = hw.MatmulProblem(8192, 4096, 8192, batch=2, shared_a=True)
  config = hw.MatmulConfig(128, 256, 64, 4)
  plan = hw.plan(large, config, "h100")
  assert (
    plan.traffic_bytes["dram"]
    == (hw.plan(dataclasses.replace(large, shared_a=False), config, "h100").traffic_bytes["dram"])
  )
  assert large.once_through_bytes == (8192 * 4096 + 2 * 4096 * 8192 + 2 * 8192 * 8192) * 2


def test_both_operands_shared_are_read_once_for_the_batch():
  problem = hw.MatmulProblem(128, 1024, 1024, batch=8, shared_a=True, shared_b=True)
  plan = hw.plan(problem, hw.MatmulConfig(128, 128, 64, 4), "h100")
  assert plan.traffic_bytes["dram"] == problem.once_through_bytes


@pytest.mark.parametrize("shape", [(0, 64, 64), (64, 64, 0), (64, 0, 64)])
def test_empty_problems_have_a_plan(shape):
  m, k, n = shape
  plan = hw.plan(hw.MatmulProblem(m, k, n), hw.MatmulConfig(64, 64, 64, 2), "h100")
  assert plan.fits
  assert plan.predicted_us >= hw.get_profile("h100").launch_overhead_us
  assert plan.traffic_bytes["dram"] == 2 * m * n


def test_padding_is_said():
  plan = hw.plan(hw.MatmulProblem(100, 4096, 512), hw.MatmulConfig(64, 128, 64, 4), "h100")
  note = next(note for note in plan.notes if "padding" in note)
  assert note.startswith("m=100 is computed as 128: 21.9 %")


def test_estimates_carry_assumptions_and_the_model_error():
  plan = hw.plan(FFN, HOPPER, "h200")
  error = recorded_error("matmul", hw.get_profile("h200"))
  assert plan.model_error == error.median_absolute_relative_error
  assert any(f"{error.row_count} measured times of matmul" in line for line in plan.assumptions)
  assert any("launch" in line for line in plan.assumptions)


def test_a_changed_profile_was_never_checked():
  changed = dataclasses.replace(hw.get_profile("h200"), sm_count=66)
  never = hw.plan(FFN, HOPPER, changed)
  assert never.model_error is None
  assert any("never checked" in line for line in never.assumptions)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ((FFN, HOPPER, "h300"), "profile='h300'"),
    (("ffn", HOPPER, "h100"), "problem='ffn': expected one of MatmulProblem"),
    (
      (hw.MatmulProblem, HOPPER, "h100"),
      "problem=<class .*MatmulProblem'>: expected one of MatmulProblem",
    ),
    ((FFN, (128, 128), "h100"), r"config=\(128, 128\): expected a MatmulConfig"),
  ],
)
def test_arguments_of_the_wrong_kind_are_named(arguments, message):
  with pytest.raises(ValueError, match=message):
    hw.plan(*arguments)


def test_schedules_of_the_other_vendor_are_refused():
  with pytest.raises(ValueError, match=r"schedule='cube': matmul on h100_sxm is planned as"):
    hw.plan(FFN, HOPPER, "h100", schedule="cube")
  with pytest.raises(
    ValueError, match=r"schedule='multistage': matmul on ascend_910b3 is planned as"
  ):
    hw.plan(FFN, HOPPER, "910b3", schedule="multistage")


@pytest.mark.parametrize(
  ("problem", "config"),
  [
    (FFN, hw.MatmulConfig(64, 64, 32, 1)),
    (FFN, HOPPER),
    (FFN, hw.MatmulConfig(128, 128, 64, 2)),
    (hw.AttentionProblem(2, 4096, 4096, 32, 8), hw.AttentionConfig(64, 64, 1)),
    (hw.AttentionProblem(2, 4096, 4096, 32, 8), hw.AttentionConfig(128, 128, 2)),
    (hw.DecodeProblem(1, 8192, 32, 8), hw.DecodeConfig(128)),
  ],
  ids=lambda x: x.describe() if hasattr(x, "describe") else type(x).__name__,
)
def test_auto_prices_the_fastest_schedule_that_runs_the_tile(problem, config):
  of_each = {
    name: hw.plan(problem, config, "h200", schedule=name)
    for name in ("warp_specialized", "multistage")
  }
  assert all(plan.fits for plan in of_each.values())
  auto = hw.plan(problem, config, "h200")
  fastest = min(of_each.values(), key=lambda plan: plan.predicted_us)
  # the op's first where the model cannot tell them apart
  preferred = of_each["warp_specialized"]
  tied = preferred.predicted_us <= 1.02 * fastest.predicted_us
  chosen = preferred if tied else fastest
  assert (auto.schedule, auto.predicted_us) == (chosen.schedule, chosen.predicted_us)
  (other,) = (plan for plan in of_each.values() if plan is not chosen)
  # an explicit schedule is priced as asked for, and "auto" says what the other takes
  assert other.requested_schedule == other.schedule != auto.schedule
  how = "the fastest" if chosen is fastest else "within 2 % of the fastest"
  assert auto.notes[0] == (
    f"schedule: {chosen.schedule}, {how} that runs the tile;"
    f" {other.schedule} takes {other.predicted_us:,.1f} us"
  )


@pytest.mark.parametrize("op", ["matmul", "attention", "decode"])
def test_ranking_compares_the_tiles_of_all_schedules(op):
  problem = {
    "matmul": FFN,
    "attention": hw.AttentionProblem(1, 1024, 1024, 8),
    "decode": hw.DecodeProblem(4, 4096, 32, 8),
  }[op]
  of_each = [hw.rank(problem, "h200", schedule=x) for x in ("warp_specialized", "multistage")]
  auto = hw.rank(problem, "h200", top=None)
  best = min(plans[0].predicted_us for plans in of_each)
  # of schedules within 2 % a tile is priced as the one that the op prefers
  assert min(plan.predicted_us for plan in auto) <= 1.02 * best
  # each is what `plan` says of the tile, and none comes twice
  assert auto[:5] == [hw.plan(problem, plan.config, "h200") for plan in auto[:5]]
  assert len({plan.config for plan in auto}) == len(auto)


@pytest.mark.parametrize("profile", ["b200", "a100_sxm4_80gb", "h200_sxm"])
def test_rates_that_no_source_gives_are_unknown_and_not_zero(profile):
  gpu = hw.get_profile(profile)
  fields = {"l2": "l2_bandwidth_bytes_per_s", "launch": "launch_overhead_us"}
  attention = hw.AttentionProblem(1, 1024, 1024, 8, backward=True)
  for problem in (FFN, attention, hw.DecodeProblem(4, 4096, 32, 8), hw.SwigluProblem(1024, 4096)):
    plan = hw.rank(problem, profile, top=1)[0]
    unknown = {
      resource: f"{field}: {gpu.source(field).source}"
      for resource, field in fields.items()
      # what streams has a launch of its own, which is known
      if getattr(gpu, field) is None and (resource == "l2" or plan.schedule != "streaming")
    }
    assert dict(plan.unknown_us) == unknown
    assert not unknown.keys() & plan.times_us.keys()
    assert plan.bound in plan.times_us
    assert all(time > 0 for name, time in plan.times_us.items() if name in fields)


def test_launches_of_ops_that_differ_are_told_apart():
  for profile, problems in (
    ("h200_sxm", (FFN, hw.AttentionProblem(1, 1024, 1024, 8), hw.SwigluProblem(1024, 4096))),
    ("ascend_910b3", (FFN, dataclasses.replace(FFN, activation="silu"))),
  ):
    device = hw.get_profile(profile)
    for problem in problems:
      plan = hw.rank(problem, profile, top=1)[0]
      said = next(text for text in plan.assumptions if "launch" in text)
      assert f"{plan.times_us['launch']:g} us" in said or (
        f"{device.launch_overhead_us:g} us" in said and f"{device.mixed_launch_us:g} us" in said
      )
