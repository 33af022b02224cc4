"""The matmul on tcgen05: pairs of SMs, tensor memory, and what the schedule refuses."""

import dataclasses

import pytest

import hw_profiles as hw

B200 = "b200"
FFN = hw.MatmulProblem(m=1024, k=4096, n=12288)
PAIR = hw.MatmulConfig(256, 256, 64, 4)
ONE = hw.MatmulConfig(128, 256, 64, 4)


def plan(config, problem=FFN, profile=B200):
  return hw.plan(problem, config, profile, schedule="tcgen05")


def needed(found):
  return {(buffer.space, buffer.name): buffer.needed_bytes for buffer in found.buffers}


def test_a_pair_of_sms_halves_b_in_each():
  one, pair = plan(ONE), plan(PAIR)
  assert one.fits
  assert pair.fits
  # 4 stages of 128 x 64 and 64 x 256 elements of 2 B; of B each SM of a pair has 128 columns
  assert needed(one)["shared", "A"] == needed(pair)["shared", "A"] == 4 * 128 * 64 * 2
  assert needed(one)["shared", "B"] == 2 * needed(pair)["shared", "B"] == 4 * 64 * 256 * 2
  # an SM computes as much a step, and moves less for it
  assert pair.times_us["shared_memory"] < one.times_us["shared_memory"]
  assert pair.predicted_us < one.predicted_us


def test_a_pair_counts_as_one_place_for_a_tile():
  sms = hw.get_profile(B200).sm_count
  for tiles in (sms // 2, sms // 2 + 1, sms):
    problem = hw.MatmulProblem(m=256, k=512, n=256 * tiles)
    assert plan(PAIR, problem).waves == -(-tiles // (sms // 2))
    assert plan(ONE, problem).waves == -(-2 * tiles // sms)


@pytest.mark.parametrize(
  ("config", "products", "slots"),
  [(ONE, 1, 2), (ONE, 2, 1), (hw.MatmulConfig(128, 128, 64, 4), 2, 2), (PAIR, 1, 2)],
)
def test_tensor_memory_holds_512_columns(config, products, slots):
  problem = dataclasses.replace(FFN, products=products)
  (accumulator,) = (x for x in plan(config, problem).buffers if x.space == "tensor_memory")
  assert accumulator.count == slots
  assert accumulator.needed_bytes == slots * products * config.block_n * 128 * 4
  assert accumulator.available_bytes == 512 * 128 * 4


@pytest.mark.parametrize("rows", [16, 64, 128, 192, 256, 512])
@pytest.mark.parametrize("columns", [8, 16, 72, 128, 256, 272])
def test_tiles_are_the_instruction_s(rows, columns):
  found = plan(hw.MatmulConfig(rows, columns, 64, 2))
  family = "tcgen05" if rows <= 128 else "tcgen05.cta_group2"
  try:
    hw.mma_shape(family, dtype="bfloat16", m=rows, n=columns)
    known = True
  except ValueError:
    known = False
  if found.fits:
    assert known
  elif known:
    assert rows == 64  # half of the lanes: left out


@pytest.mark.parametrize(
  ("config", "reason"),
  [
    (hw.MatmulConfig(192, 256, 64), "block_m=192: tcgen05 multiplies 128 rows an SM"),
    (hw.MatmulConfig(128, 264, 64), "block_n=264: tcgen05 has multiples of 16 columns"),
    (hw.MatmulConfig(128, 128, 8), "block_k=8: a K step of 16 B is not a multiple of the 32 B"),
    (hw.MatmulConfig(128, 256, 64, 5), "num_stages=5: shared memory needs 278608 B"),
    (dataclasses.replace(ONE, accumulator="shared"), "accumulator='shared': tcgen05 accumulates"),
  ],
)
def test_what_does_not_run_is_named(config, reason):
  refused = plan(config)
  assert not refused.fits
  assert refused.reason.startswith(reason)


def test_other_devices_and_float32_are_refused():
  assert "compute capability 10.0; h200_sxm is 9.0" in plan(ONE, profile="h200_sxm").reason
  single = plan(ONE, dataclasses.replace(FFN, dtype="float32"))
  assert "tcgen05 takes bfloat16 and float16" in single.reason
  assert single.shortfall_kinds == ("unsupported",)
  # no other device hears of it where nobody asks
  for name in ("h200_sxm", "a100_sxm4_80gb", "rtx_pro_6000"):
    assert not any("tcgen05" in note for note in hw.rank(FFN, name, top=1)[0].notes)
