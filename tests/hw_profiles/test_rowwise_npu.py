"""Row-wise plans on Ascend vector cores: UB, pipes, transfers, launches."""

import dataclasses
import functools
import itertools
import re

import pytest

import hw_profiles as hw
from hw_profiles.cost.stream_time import (
  FULL_RATE_TRANSFER_BYTES,
  UNALIGNED_RATE,
  AivPass,
  AivPhase,
  aiv_stream_time,
)

# as a kernel written by hand
by_hand = functools.partial(hw.plan, schedule="vector")
A2 = hw.get_profile("ascend_910b3")
A5 = hw.get_profile("ascend_950pr")
NPUS = [name for name in hw.list_profiles() if hw.get_profile(name).vendor == "huawei"]
HIDDEN = hw.RmsNormProblem(1024, 4096)
FFN = hw.SwigluProblem(1024, 12288)
OPS = (
  FFN,
  hw.SwigluQuantizeProblem(1024, 12288, out_dtype="int8"),
  hw.SwigluQuantizeProblem(1024, 12288, out_dtype="int8", row_scales=False),
  hw.QuantizeRowsProblem(1024, 4096, out_dtype="int8"),
  HIDDEN,
  hw.RmsNormProblem(1024, 4096, out_dtype="int8", residual=True),
  hw.TransposeProblem(1024, 4096),
)


def _held(plan):
  return {buffer.name: (buffer.needed_bytes, buffer.count) for buffer in plan.buffers}


# --- UB


def test_buffers_of_a_kept_row():
  plan = by_hand(HIDDEN, hw.RowConfig(2, 4096, 2), A2)
  assert (plan.fits, plan.schedule, plan.grid) == (True, "vector", (512, 1))
  assert _held(plan) == {
    "x": (2 * 2 * 8192, 2),
    "y": (2 * 2 * 8192, 2),
    "weight": (8192, 1),
    "float32 values": (2 * 2 * 16384, 2),
    # a number of each row in 32 B of its own
    "statistics": (2 * 32, 1),
  }
  assert {(buffer.space, buffer.available_bytes) for buffer in plan.buffers} == {("UB", 196608)}
  assert plan.binding == ("UB",)
  assert plan.resident_blocks == 2
  # 512 blocks on 40 vector cores, not on the 20 cube cores
  assert (plan.waves, plan.tail_efficiency) == (13, 512 / (13 * 40))


def test_rows_are_held_at_multiples_of_the_alignment():
  plan = by_hand(hw.QuantizeRowsProblem(64, 769, out_dtype="int8"), hw.RowConfig(4, 769, 1), A2)
  held = _held(plan)
  # 1538 B of x as 1568, 769 B of codes as 800, 3076 B of float32 as 3104
  assert (held["x"][0], held["q"][0]) == (4 * 1568, 4 * 800)
  assert held["float32 values"][0] == 2 * 4 * 3104


def test_an_overfull_ub_says_what_would_fit():
  plan = by_hand(FFN, hw.RowConfig(16, 2048, 2), A2)
  needed = 2 * 3 * 16 * 4096 + 2 * 16 * 8192
  assert plan.needed_bytes("UB") == needed
  assert plan.binding == ("UB",)
  assert plan.reason.startswith(
    f"block_cols=2048: UB needs {needed} B for 2 block(s) of gate, up, z (16x2048 bfloat16) and 2"
    " float32 copies, a vector core of ascend_910b3 has 196608 B; largest block_cols that fits is "
  )
  largest = int(re.search(r"fits is (\d+)", plan.reason)[1])
  assert by_hand(FFN, hw.RowConfig(16, largest, 2), A2).fits
  # 16 more are the next that take more UB: rows are held in whole 32 B
  assert not by_hand(FFN, hw.RowConfig(16, largest + 16, 2), A2).fits
  # the larger UB of a 950
  assert A5.ub_bytes > A2.ub_bytes
  assert by_hand(FFN, hw.RowConfig(5, 2048, 2), A5).fits


def test_a_transposes_blocks_are_held_before_and_after():
  plan = by_hand(hw.TransposeProblem(1000, 1000), hw.RowConfig(30, 100, 2), A2)
  # whole blocks of 16 rows: 32 x 112 and 112 x 32 bfloat16
  assert _held(plan) == {"x": (2 * 32 * 112 * 2, 2), "y": (2 * 112 * 32 * 2, 2)}
  assert plan.grid == (34, 10)
  too_large = by_hand(hw.TransposeProblem(1000, 1000), hw.RowConfig(256, 256, 2), A2)
  assert too_large.binding == ("UB",)
  assert "as many transposed" in too_large.reason


def test_fields_of_an_sm_are_not_read():
  plan = by_hand(FFN, hw.RowConfig(2, 2048, 2, num_warps=4), A2)
  assert "num_warps=4 is not read here: a vector core has no warps" in plan.notes
  assert plan.predicted_us == by_hand(FFN, hw.RowConfig(2, 2048, 2), A2).predicted_us


def test_float8_is_the_950s():
  problem = hw.QuantizeRowsProblem(64, 4096)
  refused = by_hand(problem, hw.RowConfig(1, 4096), A2)
  assert refused.shortfall_kinds == ("unsupported",)
  assert refused.reason.endswith("ascend_910b3 has no float8; 'int8' works")
  assert by_hand(problem, hw.RowConfig(1, 4096), A5).fits
  assert by_hand(dataclasses.replace(problem, out_dtype="int8"), hw.RowConfig(1, 4096), A2).fits


# --- every op on every device


@pytest.mark.parametrize("profile", NPUS)
@pytest.mark.parametrize("problem", OPS, ids=lambda problem: type(problem).__name__)
def test_every_op_is_ranked(profile, problem):
  plans = hw.rank(problem, profile, top=None)
  assert plans
  npu = hw.get_profile(profile)
  for plan in plans:
    assert plan.fits
    assert plan.needed_bytes("UB") <= npu.ub_bytes
    assert plan.predicted_us > plan.traffic_bytes["hbm"] / npu.hbm_bandwidth_bytes_per_s * 1e6
  times = {plan.config: plan.predicted_us for plan in plans}
  for config, predicted_us in times.items():
    double = dataclasses.replace(config, num_stages=2)
    assert times.get(double, 0.0) <= predicted_us


@pytest.mark.parametrize("problem", OPS, ids=lambda problem: type(problem).__name__)
def test_nothing_to_do_takes_a_launch(problem):
  best = hw.rank(dataclasses.replace(problem, rows=0), A2, top=1)[0]
  assert best.predicted_us == pytest.approx(A2.vector_launch_us)


def test_narrow_and_single_rows_are_ranked():
  for rows, columns in itertools.product((1, 3, 100_000), (1, 7, 100_003)):
    for problem in (hw.RmsNormProblem(rows, columns), hw.SwigluProblem(rows, columns)):
      for profile in (A2, "h200_sxm"):
        assert hw.rank(problem, profile, top=1)[0].fits


# --- splits


def test_a_split_occupies_cores_that_one_row_would_not():
  assert hw.best_num_splits(HIDDEN, A2) == 1
  long = hw.RmsNormProblem(1, 1 << 22)
  splits = hw.best_num_splits(long, A2)
  assert splits > 1
  plan = hw.rank(long, A2, top=1, schedule="vector")[0]
  assert plan.times_us["launch"] == 3 * A2.vector_launch_us
  whole = hw.rank(dataclasses.replace(long, num_splits=1), A2, top=1, schedule="vector")[0]
  assert plan.predicted_us < whole.predicted_us


def test_a_split_in_gm():
  plan = by_hand(HIDDEN, hw.RowConfig(1, 512, 2, num_splits=8), A2)
  # the second read hits L2; partial sums and factors are written to HBM once
  assert plan.traffic_bytes["hbm"] == 16 * 2**20 + 8192 + 8192 * 4 + 1024 * 4
  assert plan.traffic_bytes["ub"] == 32 * 2**20 + 100 * 1024
  assert "the second read comes from L2" in plan.notes


# --- times


def _simulated_us(phase_us, steps, slots):
  """Load, arithmetic and store of each step; a queue's buffer is free when its user is done."""
  load_us, vector_us, store_us = phase_us
  load_end, vector_end, store_end = [], [], []
  for step in range(steps):
    if slots == 1:
      start = store_end[-1] if step else 0.0
    else:
      start = load_end[-1] if step else 0.0
      if step >= slots:
        start = max(start, vector_end[step - slots])
    load_end.append(start + load_us)
    start = max(load_end[-1], vector_end[-1] if step else 0.0)
    if slots > 1 and step >= slots:
      start = max(start, store_end[step - slots])
    vector_end.append(start + vector_us)
    store_end.append(max(vector_end[-1], store_end[-1] if step else 0.0) + store_us)
  return store_end[-1] if steps else 0.0


def _phase(load_kib, vector_kib, store_kib, steps):
  return AivPhase(
    steps=steps,
    load_bytes=load_kib * 1024,
    vector_bytes=vector_kib * 1024,
    store_bytes=store_kib * 1024,
  )


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 17])
@pytest.mark.parametrize(
  "amounts", [(64, 16, 32), (16, 512, 16), (16, 16, 128), (32, 100, 40)], ids=str
)
def test_steps_take_what_their_simulation_takes(amounts, steps, slots):
  got = aiv_stream_time(A2, (AivPass((_phase(*amounts, steps),), slots, hbm_bytes=0),))
  cycle_us = 1e6 / A2.clock_hz
  one = (
    amounts[0] * 1024 / A2.gm_to_ub_bytes_per_cycle * cycle_us,
    amounts[1] * 1024 / A2.vector_bytes_per_cycle * cycle_us,
    amounts[2] * 1024 / A2.ub_to_gm_bytes_per_cycle * cycle_us,
  )
  assert got.total_us == pytest.approx(A2.vector_launch_us + _simulated_us(one, steps, slots))
  assert got.times_us["vector"] == pytest.approx(steps * one[1])


def test_small_transfers_take_as_long_as_16_kib():
  def mte2_us(size):
    phase = AivPhase(steps=1, load_bytes=size)
    return aiv_stream_time(A2, (AivPass((phase,), 2, 0),)).times_us["vector_mte2"]

  assert mte2_us(32) == mte2_us(FULL_RATE_TRANSFER_BYTES)
  assert mte2_us(2 * FULL_RATE_TRANSFER_BYTES) == pytest.approx(2 * mte2_us(32))
  assert mte2_us(0) == 0


def test_unaligned_rows_are_copied_slower():
  tile = hw.RowConfig(1, 4224, 2)
  even, odd = (by_hand(hw.RmsNormProblem(4096, n), tile, A2) for n in (4224, 4223))
  assert any("begin off the 512 B" in note for note in even.notes + odd.notes)
  aligned = by_hand(hw.RmsNormProblem(4096, 4096), hw.RowConfig(4, 4096, 1), A2)
  assert not any("begin off" in note for note in aligned.notes)
  same = AivPhase(steps=5, load_bytes=65536, store_bytes=65536)
  slow, fast = (aiv_stream_time(A2, (AivPass((same,), 2, 0, ok),)) for ok in (False, True))
  for pipe in ("vector_mte2", "mte3"):
    assert fast.times_us[pipe] == pytest.approx(slow.times_us[pipe] * UNALIGNED_RATE)


def test_hbm_serves_all_cores_together():
  plan = by_hand(FFN, hw.RowConfig(4, 2048, 2), A2)
  assert plan.bound == "hbm"
  moved_us = 72 * 2**20 / (A2.hbm_bandwidth_bytes_per_s * A2.sustained_hbm_fraction) * 1e6
  assert plan.predicted_us == pytest.approx(A2.vector_launch_us + moved_us)
  warm = by_hand(dataclasses.replace(FFN, warm_l2=True), hw.RowConfig(4, 2048, 2), A2)
  assert warm.traffic_bytes["hbm"] == 0
  assert warm.predicted_us < plan.predicted_us
  assert "operands and results stay in L2: HBM is not touched" in warm.notes


def test_one_buffer_a_queue_waits():
  times = {
    stages: by_hand(dataclasses.replace(FFN, warm_l2=True), hw.RowConfig(2, 2048, stages), A2)
    for stages in (1, 2)
  }
  busy = [times[1].times_us[pipe] for pipe in ("vector_mte2", "vector", "mte3")]
  assert times[1].predicted_us == pytest.approx(A2.vector_launch_us + sum(busy))
  assert times[2].predicted_us < times[1].predicted_us


# The framework's kernels on a 950PR (published, device times); cold and warm L2 bracket them
@pytest.mark.parametrize(
  ("problem", "measured_us"),
  [
    (hw.RmsNormProblem(4096, 768, "float16"), 9.885),
    (hw.RmsNormProblem(4096, 2048), 17.06),
    (hw.RmsNormProblem(8168, 4099), 67.08),
    (hw.RmsNormProblem(1020, 4096, "float16"), 10.19),
    (hw.QuantizeRowsProblem(1024, 1024, "float16", "int8"), 5.35),
    (hw.QuantizeRowsProblem(2048, 2048, "bfloat16", "int8"), 10.37),
    (hw.QuantizeRowsProblem(133221, 373, "float16", "int8"), 110.065),
  ],
  ids=str,
)
def test_published_times_are_predicted_within_half(problem, measured_us):
  ratio = hw.rank(problem, A5, top=1, schedule="vector")[0].predicted_us / measured_us
  assert 1 / 1.5 < ratio < 1.5
