"""Plans of the portable kernels as Huawei's compiler gives them memory."""

import dataclasses

import pytest

import hw_profiles as hw

FFN = hw.MatmulProblem(1024, 4096, 12288)
FUSED = dataclasses.replace(FFN, activation="silu")
ATTENTION = hw.AttentionProblem(2, 4096, 4096, 16)
A2, A5 = "ascend_910b3", "ascend_950pr"
PROBLEMS = (
  FFN,
  FUSED,
  hw.MatmulProblem(1024, 4096, 4096, activation="silu", products=2),
  ATTENTION,
  hw.SwigluProblem(1024, 12288),
  hw.QuantizeRowsProblem(1024, 4096, out_dtype="int8"),
  hw.SwigluQuantizeProblem(1024, 12288, out_dtype="int8"),
  hw.RmsNormProblem(1024, 4096),
  hw.TransposeProblem(1024, 4096),
)


@pytest.mark.parametrize("profile", [A2, A5])
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda x: type(x).__name__)
def test_what_can_be_compiled_is_ranked_as_compiled(problem, profile):
  plans = hw.rank(problem, profile, top=None)
  assert {plan.schedule for plan in plans} == {"compiled"}
  assert all(plan.fits for plan in plans)
  for plan in plans:
    for buffer in plan.buffers:
      assert buffer.space == "GM" or plan.needed_bytes(buffer.space) <= buffer.available_bytes


def test_reported_overflow_is_that_of_the_compiler():
  """2883584 bits, as bishengir-compile reports for this tile."""
  plan = hw.plan(FUSED, hw.MatmulConfig(128, 256, 64), A2)
  assert (plan.schedule, plan.fits, plan.binding) == ("compiled", False, ("UB",))
  assert 8 * plan.needed_bytes("UB") == 2883584
  assert plan.reason.startswith(
    "block_n=256: UB needs 360448 B for what the compiled kernel keeps ("
  )
  assert plan.reason.endswith("largest block_n that fits is 128")
  assert "schedule='cube' would fit this tile" in plan.notes


def test_values_in_ub_have_names():
  plan = hw.plan(FUSED, hw.MatmulConfig(128, 128, 64), A2)
  held = {one.name: one.needed_bytes for one in plan.buffers if one.space == "UB"}
  # half of the tile a vector core: five float32 blocks, and the loaded one in 16 bits
  assert list(held.values()) == [*5 * [4 * 8192], 2 * 8192]
  assert "exp(-|x|/2)" in held


@pytest.mark.parametrize(
  ("config", "obstacle"),
  [
    (hw.MatmulConfig(96, 128, 64, 2), "powers of two from 16 on, not 96"),
    (hw.MatmulConfig(8, 128, 64, 2), "powers of two from 16 on, not 8"),
    (hw.MatmulConfig(128, 128, 64, 3), "at most 2 copies, not 3"),
  ],
)
def test_tile_that_is_not_compiled_is_planned_by_hand(config, obstacle):
  plan = hw.plan(FFN, config, A2)
  assert (plan.schedule, plan.fits) == ("cube", True)
  assert any("compiled does not" in note and obstacle in note for note in plan.notes)
  refused = hw.plan(FFN, config, A2, schedule="compiled")
  assert not refused.fits
  assert refused.shortfall_kinds == ("shape",)


@pytest.mark.parametrize(
  "problem",
  [
    dataclasses.replace(FFN, bias=True),
    dataclasses.replace(FFN, dtype="int8", out_dtype="int32"),
  ],
  ids=["bias", "int8"],
)
def test_kernel_whose_memory_is_not_known_is_planned_by_hand(problem):
  plan = hw.plan(problem, hw.MatmulConfig(64, 64, 64, 2), A2)
  assert plan.schedule == "cube"
  assert plan.fits


def test_attention_with_a_window_backward_or_part_of_a_block_is_planned_by_hand():
  config = hw.AttentionConfig(64, 64)
  for changed in ({"window": 128}, {"backward": True}, {"seq_kv": 4000}):
    plan = hw.plan(dataclasses.replace(ATTENTION, **changed), config, A2)
    assert plan.schedule == "cube_vector", changed
  part = hw.plan(dataclasses.replace(ATTENTION, seq_kv=4000), config, A2, schedule="compiled")
  assert "not for seq_kv=4000 in blocks of 64" in part.reason


@pytest.mark.parametrize(
  ("profile", "tile", "head_dim", "fits"),
  [
    (A2, (64, 32), 128, True),
    (A2, (64, 64), 128, False),
    (A2, (64, 128), 64, False),
    (A5, (64, 64), 128, True),
    (A5, (128, 64), 128, False),
    (A5, (64, 128), 64, True),
  ],
)
def test_causal_attention_as_the_compiler_judges_it(profile, tile, head_dim, fits):
  full = hw.AttentionProblem(1, 2048, 2048, 2, 1, head_dim)
  causal = dataclasses.replace(full, causal=True)
  plan = hw.plan(causal, hw.AttentionConfig(*tile), profile)
  assert (plan.schedule, plan.fits) == ("compiled", fits)
  assert fits or plan.binding == ("UB",)
  # the branch for values that are not finite is what takes the room
  assert hw.plan(full, hw.AttentionConfig(*tile), profile).fits
  # a part of a block of keys is masked like the diagonal
  part = dataclasses.replace(causal, seq_q=2000, seq_kv=2000)
  assert hw.plan(part, hw.AttentionConfig(*tile), profile).fits == fits


def test_vector_cores_of_a_910_do_not_share_a_causal_tile_of_as_many_rows_as_keys():
  npu = hw.get_profile(A2)
  one_core = dataclasses.replace(npu, aiv_count=npu.aic_count)
  causal = hw.AttentionProblem(1, 2048, 2048, 2, 1, 64, causal=True)

  def ub(config, device):
    return hw.plan(causal, config, device).needed_bytes("UB")

  square, tall = hw.AttentionConfig(64, 64), hw.AttentionConfig(128, 64)
  assert ub(square, npu) == ub(square, one_core)
  assert ub(tall, npu) < ub(tall, one_core)


def test_second_operand_of_a_gated_matmul_lies_where_the_first_did():
  problem = hw.MatmulProblem(1024, 4096, 4096, products=2, activation="silu")
  plan = hw.plan(problem, hw.MatmulConfig(64, 64, 128, 2), A2)
  held = {one.name: one for one in plan.buffers}
  assert held["B 2"].needed_bytes == held["B"].needed_bytes == held["B 2"].shared_bytes
  assert plan.needed_bytes("L1") == held["A"].needed_bytes + held["B"].needed_bytes
  assert plan.needed_bytes("L0C") == 2 * 64 * 64 * 4


def test_vector_cores_share_a_tile_on_a_910():
  npu = hw.get_profile(A2)
  one_core = dataclasses.replace(npu, aiv_count=npu.aic_count)
  config = hw.MatmulConfig(64, 64, 64)
  shared, whole = (hw.plan(FUSED, config, device) for device in (npu, one_core))
  assert whole.needed_bytes("UB") == 2 * shared.needed_bytes("UB")


def test_a_950_has_the_whole_float32_tile_in_ub_where_it_is_rounded():
  wide = hw.plan(FFN, hw.MatmulConfig(256, 256, 64), A5)
  assert (wide.fits, wide.binding, wide.needed_bytes("UB")) == (False, ("UB",), 256 * 256 * 4)
  kept = hw.plan(dataclasses.replace(FFN, out_dtype="float32"), hw.MatmulConfig(256, 256, 64), A5)
  assert kept.fits
  assert kept.needed_bytes("UB") == 0


def test_compiled_kernel_waits_for_fixpipe():
  """It has one accumulator where a kernel by hand would have two."""
  config = hw.MatmulConfig(128, 128, 256, 2)
  compiled, by_hand = hw.plan(FFN, config, A2), hw.plan(FFN, config, A2, schedule="cube")
  assert (compiled.resident_blocks, by_hand.resident_blocks) == (1, 2)
  assert compiled.predicted_us > by_hand.predicted_us
  assert any("no compiled kernel was timed" in said for said in compiled.assumptions)


def test_walk_over_rows_is_double_buffered_and_a_kept_row_is_not():
  problem = hw.RmsNormProblem(1024, 4096)
  for block_cols, doubled in ((4096, False), (1024, True)):
    one, two = (
      hw.plan(problem, hw.RowConfig(2, block_cols, stages), A5).needed_bytes("UB")
      for stages in (1, 2)
    )
    assert (two > one) == doubled
