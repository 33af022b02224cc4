"""Plans on Ascend: L1, L0A, L0B, L0C, BT and UB, and the two epilogues."""

import dataclasses
import functools
import itertools
import re

import pytest

import hw_profiles as hw
from hw_profiles.matmul.cube import cube_tile

KIB = 1024
FFN = hw.MatmulProblem(m=1024, k=4096, n=12288)
FUSED = dataclasses.replace(FFN, bias=True, activation="silu")
NPUS = ("ascend_910b3", "ascend_950pr")
# as a kernel written by hand, which most of what follows is about
by_hand = functools.partial(hw.plan, schedule="cube")


def _sizes(plan):
  return {(buffer.space, buffer.name): buffer.needed_bytes for buffer in plan.buffers}


def test_reason_of_the_product_definition():
  plan = hw.plan(FFN, hw.MatmulConfig(128, 128, 2048, 1), "ascend_910b3")
  assert plan.reason == (
    "block_k=2048: L1 needs 1048576 B for 1 stage(s) of A (128x2048 bfloat16) and B (2048x128),"
    " ascend_910b3 has 524288 B; largest block_k that fits is 1024"
  )
  assert plan.binding == ("L1",)
  with pytest.raises(hw.InfeasibleTileError, match="largest block_k that fits is 1024"):
    plan.check()


@pytest.mark.parametrize(
  ("config", "l1_kib", "l0a_kib", "l0b_kib", "l0c_kib", "l0_depth", "profile"),
  [
    # the vendor library's default tiles, which fill L0 as they are meant to
    (hw.MatmulConfig(128, 256, 256, 2), 384, 32, 64, 128, 64, "ascend_910b3"),
    (hw.MatmulConfig(256, 256, 128, 2), 256, 64, 64, 256, 64, "ascend_950pr"),
    (hw.MatmulConfig(128, 128, 64, 2), 64, 32, 32, 128, 64, "ascend_910b3"),
  ],
)
def test_buffers_of_known_tiles(config, l1_kib, l0a_kib, l0b_kib, l0c_kib, l0_depth, profile):
  plan = by_hand(dataclasses.replace(FFN, dtype="float16"), config, profile)
  assert plan.fits
  assert plan.needed_bytes("L1") == l1_kib * KIB
  assert plan.needed_bytes("L0A") == l0a_kib * KIB
  assert plan.needed_bytes("L0B") == l0b_kib * KIB
  assert plan.needed_bytes("L0C") == l0c_kib * KIB
  assert any(note.startswith(f"L0 K step {l0_depth}:") for note in plan.notes)


@pytest.mark.parametrize(
  ("profile", "tile", "space", "needed_bits"),
  [
    # what bishengir-compile (ascendnpu-ir 1.2.0) reports for the same tiles in float16
    ("ascend_910b3", (256, 256, 64), "L0C", 2097152),
    ("ascend_910b3", (128, 128, 2048), "L1", 8388608),
    ("ascend_950pr", (512, 256, 64), "L0C", 4194304),
    ("ascend_950pr", (128, 128, 2048), "L1", 8388608),
  ],
)
def test_overflows_agree_with_huaweis_compiler(profile, tile, space, needed_bits):
  problem = dataclasses.replace(FFN, dtype="float16")
  plan = hw.plan(problem, hw.MatmulConfig(*tile, num_stages=1), profile)
  assert space in plan.binding
  assert plan.needed_bytes(space) * 8 == needed_bits


@pytest.mark.parametrize("stages", [1, 2])
def test_ping_pong_doubles_l1_and_128x128x1024_only_fits_without(stages):
  plan = hw.plan(FFN, hw.MatmulConfig(128, 128, 1024, stages), "ascend_910b3")
  assert plan.needed_bytes("L1") == stages * 512 * KIB
  assert plan.fits == (stages == 1)


def test_sizes_are_padded_to_fractals():
  config = hw.MatmulConfig(100, 50, 20, 1)
  plan = by_hand(FFN, config, "ascend_910b3")
  assert _sizes(plan)["L1", "A"] == 112 * 32 * 2
  assert _sizes(plan)["L1", "B"] == 32 * 64 * 2
  assert any(
    note.startswith(
      "block_m=100 is held as 112, block_n=50 is held as 64, block_k=20 is held as 32"
    )
    for note in plan.notes
  )
  # a float32 fractal is 8 deep, an int8 one 32
  single = by_hand(dataclasses.replace(FFN, dtype="float32"), config, "ascend_910b3")
  assert _sizes(single)["L1", "A"] == 112 * 24 * 4
  integer = by_hand(
    dataclasses.replace(FFN, dtype="int8", out_dtype="int32"), config, "ascend_910b3"
  )
  assert _sizes(integer)["L1", "A"] == 112 * 32


@pytest.mark.parametrize(("profile", "largest"), [("ascend_910b3", 256), ("ascend_950pr", 1024)])
def test_bias_passes_through_bt(profile, largest):
  problem = dataclasses.replace(FFN, bias=True)
  plan = by_hand(problem, hw.MatmulConfig(16, largest, 16, 1), profile)
  assert plan.fits
  assert plan.needed_bytes("BT") == 4 * largest == hw.get_profile(profile).bt_bytes
  over = by_hand(problem, hw.MatmulConfig(16, largest + 16, 16, 1), profile)
  assert "BT" in over.binding
  assert f"largest block_n that fits is {largest}" in over.reason
  without = by_hand(FFN, hw.MatmulConfig(16, largest + 16, 16, 1), profile)
  assert "BT" not in without.binding


def test_without_an_activation_fixpipe_writes_straight_to_gm():
  for profile in NPUS:
    plan = by_hand(FFN, hw.MatmulConfig(128, 128, 128, 2), profile)
    assert {buffer.space for buffer in plan.buffers} == {"L1", "L0A", "L0B", "L0C"}
    assert "vector" not in plan.times_us
    assert "epilogue: FixPipe rounds and writes L0C to GM" in plan.notes


def test_silu_goes_through_gm_on_910b_and_directly_on_950():
  config = hw.MatmulConfig(128, 256, 128, 2)
  older, newer = (by_hand(FUSED, config, profile) for profile in NPUS)
  assert any("L0C -> GM workspace -> UB -> GM on 2 vector cores" in n for n in older.notes)
  assert any("L0C -> UB -> GM on 2 vector cores" in n for n in newer.notes)
  # two float32 tiles for each of 20 cube cores
  assert _sizes(older)["GM", "workspace"] == 2 * 20 * 128 * 256 * 4
  assert ("GM", "workspace") not in _sizes(newer)
  assert "vector_mte2" in older.times_us
  assert "vector_mte2" not in newer.times_us


@pytest.mark.parametrize("profile", NPUS)
def test_the_activation_slab_fits_ub_and_one_fractal_more_would_not(profile):
  npu = hw.get_profile(profile)
  for rows, columns in ((128, 256), (64, 128), (256, 128), (16, 512)):
    config = hw.MatmulConfig(rows, columns, 64, 2)
    problem = dataclasses.replace(FUSED, bias=False)
    plan = by_hand(problem, config, profile)
    if not plan.fits:
      continue
    tile = cube_tile(problem, config, npu)
    # float32 in and 16-bit out, two of each, and a float32 temporary: 16 B
    assert plan.needed_bytes("UB") == tile.slab_rows * columns * 16 <= npu.ub_bytes
    grown = (tile.slab_rows + 16) * columns * 16
    assert grown > npu.ub_bytes or tile.slab_rows >= tile.vector_rows


def test_slab_of_the_default_tile():
  npu = hw.get_profile("ascend_910b3")
  # half of 128 rows is 64; 64 x 256 x 16 B = 256 KiB exceed the 192 KiB: 48 rows
  tile = cube_tile(FUSED, hw.MatmulConfig(128, 256, 64, 2), npu)
  assert (tile.vector_rows, tile.slab_rows) == (64, 48)


def test_a_dtype_the_cube_does_not_know_is_refused():
  problem = hw.MatmulProblem(64, 64, 64, "float8_e4m3fn", "bfloat16")
  config = hw.MatmulConfig(64, 64, 64, 2)
  older = hw.plan(problem, config, "ascend_910b3")
  assert older.reason.startswith("dtype='float8_e4m3fn': the cube of ascend_910b3 takes float16")
  assert hw.plan(problem, config, "ascend_950pr").fits


def test_l0a_limits_rows_whatever_l0c_holds():
  plan = by_hand(FFN, hw.MatmulConfig(2048, 16, 16, 1), "ascend_950pr")
  assert "L0A" in plan.binding
  assert plan.reason == (
    "block_m=2048: L0A needs 131072 B for 2 slices one fractal deep (2048x16 bfloat16),"
    " ascend_950pr has 65536 B; largest block_m that fits is 1024"
  )


def test_two_accumulators_hide_fixpipe():
  single = by_hand(FFN, hw.MatmulConfig(128, 256, 256, 2), "ascend_910b3")
  double = by_hand(FFN, hw.MatmulConfig(128, 128, 256, 2), "ascend_910b3")
  assert (single.resident_blocks, double.resident_blocks) == (1, 2)
  assert single.binding == double.binding == ("L0C",)
  rounds_us = max(double.times_us[pipe] for pipe in ("mte2", "mte1", "cube", "fixpipe", "hbm"))
  # one fill, one drain and the launch on top of the slowest pipe
  assert double.predicted_us < 1.05 * rounds_us
  assert single.predicted_us > (
    single.times_us["cube"] + single.times_us["fixpipe"] + single.times_us["launch"]
  )


def test_pipe_times_are_bytes_and_multiplications_over_rates():
  npu = hw.get_profile("ascend_910b3")
  # one 128 x 128 tile on each of 20 cores, four steps of 128
  problem = hw.MatmulProblem(128, 512, 128 * 20, "float16")
  plan = by_hand(problem, hw.MatmulConfig(128, 128, 128, 2), npu)
  cycle_us = 1e6 / npu.clock_hz
  tile_bytes = 128 * 128 * 2
  assert plan.waves == 1
  assert plan.times_us["mte2"] == pytest.approx(4 * 2 * tile_bytes / 110 * cycle_us)
  assert plan.times_us["mte1"] == pytest.approx(
    4 * (tile_bytes / 256 + tile_bytes / 128) * cycle_us
  )
  assert plan.times_us["cube"] == pytest.approx(4 * 128**3 / 4096 / 0.85 * cycle_us)
  assert plan.times_us["fixpipe"] == pytest.approx(tile_bytes / 40 * cycle_us)


def test_the_better_balanced_tile_of_the_practice_guide_wins():
  # M=1024, K=6144, N=576 on 20 cores: 72.5 us with 128x256, 48.6 us with 256x128
  problem = hw.MatmulProblem(1024, 6144, 576, "float16")
  wide, tall = (
    by_hand(problem, hw.MatmulConfig(rows, columns, 256, 2), "ascend_910b3")
    for rows, columns in ((128, 256), (256, 128))
  )
  assert (wide.waves, tall.waves) == (2, 1)
  assert wide.predicted_us == pytest.approx(72.5, rel=0.2)
  assert tall.predicted_us == pytest.approx(48.6, rel=0.2)


_SUGGESTION = re.compile(r"(largest|smallest) (\w+) that fits is (\d+)$")


@pytest.mark.parametrize("profile", NPUS)
def test_every_plan_fits_or_suggests_what_does(profile):
  suggestions = 0
  for m, n, k, stages, problem in itertools.product(
    (1, 256, 4096), (200, 512, 2048), (100, 1024), (1, 2, 5), (FFN, FUSED)
  ):
    config = hw.MatmulConfig(m, n, k, stages)
    plan = hw.plan(problem, config, profile)
    assert plan.fits == (plan.reason == "") == (plan.predicted_us is not None)
    used = {
      buffer.space: (plan.needed_bytes(buffer.space), buffer.available_bytes)
      for buffer in plan.buffers
    }
    over = {space for space, (needed, available) in used.items() if needed > available}
    assert over == (set() if plan.fits else set(plan.binding))
    found = _SUGGESTION.search(plan.reason)
    if found:
      suggestions += 1
      mended = dataclasses.replace(config, **{found[2]: int(found[3])})
      assert hw.plan(problem, mended, profile).fits, (config, plan.reason)
  assert suggestions > 10


@pytest.mark.parametrize("profile", NPUS)
def test_no_prediction_beats_the_roofline(profile):
  device = hw.get_profile(profile)
  for m, k, n in [(1, 4096, 4096), (1024, 4096, 12288), (4096, 64, 4096)]:
    problem = hw.MatmulProblem(m, k, n, "float16")
    # C is in L2 when the kernel ends, as far as half of that holds it
    kept = min(2 * m * n, device.l2_bytes // 2)
    limit = hw.roofline(
      device, flops=problem.flops, bytes=problem.once_through_bytes - kept, dtype="float16"
    )
    for plan in hw.rank(problem, device, top=None):
      assert plan.predicted_us > limit.time_us


@pytest.mark.parametrize("shape", [(0, 64, 64), (64, 64, 0), (64, 0, 64)])
def test_empty_problems_have_a_plan(shape):
  m, k, n = shape
  plan = hw.plan(
    hw.MatmulProblem(m, k, n, activation="silu"), hw.MatmulConfig(64, 64, 64, 2), "950pr"
  )
  assert plan.fits
  assert plan.predicted_us >= hw.get_profile("950pr").launch_overhead_us


@pytest.mark.parametrize(
  ("config", "binding"),
  [
    (hw.MatmulConfig(128, 128, 1024, 1), ("L1", "L0C")),
    (hw.MatmulConfig(64, 64, 1024, 2), ("L1",)),
    (hw.MatmulConfig(128, 256, 64, 2), ("L0C",)),
  ],
)
def test_binding_is_the_fullest_memory(config, binding):
  assert by_hand(FFN, config, "910b3").binding == binding


def test_placement_of_the_accumulator_is_not_a_choice():
  plan = by_hand(FFN, hw.MatmulConfig(64, 64, 64, 2, accumulator="shared"), "910b3")
  assert plan.notes[0] == "accumulator='shared' is not read here: L0C holds it"


def test_results_that_l2_holds_do_not_wait_for_hbm():
  npu = hw.get_profile("950pr")
  config = hw.MatmulConfig(128, 128, 256, 2)
  for n in (2048, 1 << 16):
    problem = hw.MatmulProblem(2048, 256, n, "float16", out_dtype="float32")
    c_bytes = 2048 * n * 4
    plan = hw.plan(problem, config, npu)
    kept = min(c_bytes, npu.l2_bytes // 2)
    assert plan.traffic_bytes["hbm"] == problem.once_through_bytes - kept
  assert any("L2 still has C, up to 50 %" in text for text in plan.assumptions)


def test_the_last_step_is_as_deep_as_what_is_left_of_k():
  config = hw.MatmulConfig(128, 128, 256, 2)
  times = [
    hw.plan(hw.MatmulProblem(1280, k, 1280, "float16"), config, "910b3").times_us["cube"]
    for k in (256, 272, 512)
  ]
  assert times[1] == pytest.approx(times[0] * 272 / 256)
  assert times[2] == pytest.approx(times[0] * 2)


@pytest.mark.parametrize(("k", "share"), [(512, 1.0), (511, 0.7)])
def test_rows_off_the_gm_boundary_load_slower(k, share):
  npu = hw.get_profile("910b3")
  config = hw.MatmulConfig(128, 128, 512, 2)
  # B's rows are whole multiples of 512 B: only A's are off it
  plan = hw.plan(hw.MatmulProblem(2560, k, 2560, "float16"), config, npu)
  tile_bytes = 128 * 512 * 2
  step_bytes = tile_bytes / share + tile_bytes
  rounds = -(-20 * 20 // npu.aic_count)
  load_us = rounds * step_bytes / npu.l2_to_core_bytes_per_cycle / npu.clock_hz * 1e6
  assert plan.times_us["mte2"] == pytest.approx(load_us)


def test_few_cores_write_faster_and_load_slower():
  npu = hw.get_profile("910b2")
  config = hw.MatmulConfig(128, 256, 512, 2)
  few = hw.plan(hw.MatmulProblem(128, 16384, 512, "int8", out_dtype="float16"), config, npu)
  cycles_us = 1e6 / npu.clock_hz
  loaded = 16384 * (128 + 256)
  assert few.times_us["mte2"] == pytest.approx(loaded / 57 * cycles_us)
  assert few.times_us["fixpipe"] == pytest.approx(128 * 256 * 2 / 57 * cycles_us)
  half = npu.aic_count // 2
  for tiles, rate in ((half, 57), (half + 1, npu.l0c_to_gm_bytes_per_cycle)):
    problem = hw.MatmulProblem(128, 512, 256 * tiles, "int8", out_dtype="float16")
    plan = hw.plan(problem, config, npu)
    assert plan.times_us["fixpipe"] == pytest.approx(128 * 256 * 2 / rate * cycles_us)
  # no source times few cores of a 950: nothing changes there
  assert hw.get_profile("950pr").few_cores_gm_bytes_per_cycle is None
