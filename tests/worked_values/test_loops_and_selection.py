"""Loop nests, what changes of them change, and choosing between implementations."""

import math
from fractions import Fraction

import pytest

import hw_profiles as hw
from hw_profiles import loops
from hw_profiles.examples.computed import KIB, MIB
from hw_profiles.examples.loops_and_selection import (
  FFN,
  OLD_AND_NEW,
  tiled,
  transposed_tile,
)


def test_section_5_4_2_derives_tiles_and_their_lifetimes_from_the_nest():
  buffers = {
    buffer.array: buffer for buffer in loops.buffer_lifetimes(tiled(64, 64, 32), "matmul", at="ko")
  }
  assert (buffers["A"].shape, buffers["W"].shape) == ((64, 32), (32, 64))
  assert buffers["A"].bytes == buffers["W"].bytes == 4 * KIB
  assert buffers["A"].created_in == buffers["W"].created_in == "ko"
  assert buffers["C"].bytes == 16 * KIB
  assert buffers["C"].created_in == "jo"
  assert "ko" in buffers["C"].lives_through
  assert [buffers[array].ends for array in "AWC"] == ["replaced", "replaced", "stored"]

  fused = loops.fuse(tiled(64, 64, 32), "matmul", "io", "jo", fused="tile")
  moved = {access.array: access for access in loops.tile_accesses(fused, "matmul", at="tile")}
  assert moved["C"].stores == 16 * 192 == 3072


def test_example_5_3_loop_nest_counts_agree_with_the_tile_model():
  for block in (32, 64, 128):
    tile = hw.matmul_traffic(**FFN, block_m=block, block_n=block, block_k=32, in_dtype="bfloat16")
    moved = {
      access.array: access
      for access in loops.tile_accesses(tiled(block, block, 32), "matmul", at="ko")
    }
    assert moved["A"].load_bytes == tile.a_read_bytes
    assert moved["W"].load_bytes == tile.b_read_bytes
    assert moved["C"].store_bytes == tile.c_write_bytes
    assert moved["A"].loads == moved["W"].loads == tile.tile_pair_loads


def test_exercise_5_1_bandwidth_that_a_64_by_128_tile_needs():
  small, wide = (
    hw.matmul_traffic(**FFN, block_m=64, block_n=n, block_k=32, in_dtype="bfloat16")
    for n in (64, 128)
  )
  assert wide.working_set_bytes == 44 * KIB
  assert wide.total_bytes == (768 + 1536 + 24) * MIB == 2328 * MIB
  ratio = hw.break_even_bandwidth_ratio(bytes=wide.total_bytes, baseline_bytes=small.total_bytes)
  assert ratio == pytest.approx(0.752, abs=0.0005)
  equal = hw.memory_time_ratio(
    bytes=wide.total_bytes, baseline_bytes=small.total_bytes, bandwidth_ratio=ratio
  )
  assert equal == pytest.approx(1.0)


def test_exercise_5_4_silu_inside_the_reduction_changes_the_mathematics():
  nest = loops.matmul_silu_nest(m=1, k=2, n=1)
  moved = loops.consume_partial(nest, producer="matmul", consumer="activation", axis="k", factor=1)
  verdict = loops.check_legality(nest, moved)
  assert not verdict.legal
  assert verdict.effect == "mathematics"
  assert verdict.witness.original != verdict.witness.changed
  # the text's witness: partial sums 1 and -1
  witness = loops.compare_on(nest, moved, {"A": [[1, -1]], "W": [[1], [1]]})
  assert witness.original == 0
  assert witness.changed == pytest.approx(1 / (1 + math.exp(-1)) - 1 / (1 + math.exp(1)))
  assert witness.changed == pytest.approx(0.4621, abs=5e-5)


def test_exercise_5_4_dropping_the_rounding_changes_the_numbers():
  nest = loops.matmul_silu_nest(m=1, k=2, n=1)
  verdict = loops.check_legality(nest, loops.without_rounding(nest, "matmul"))
  assert not verdict.legal
  assert verdict.effect == "rounding"
  assert verdict.witness.original != verdict.witness.changed
  # 1 + 2^-9 is no bfloat16 number, a quarter of the way from 1 to the next
  witness = loops.compare_on(
    nest,
    loops.without_rounding(nest, "matmul"),
    {"A": [[1, Fraction(1, 2**9)]], "W": [[1], [1]]},
  )
  assert witness.original == pytest.approx(1 / (1 + math.exp(-1)))
  assert witness.changed > witness.original


def test_exercise_5_4_quantising_in_every_column_block_only_costs():
  nest = loops.quantized_projection_nest(m=2, k=3, n=4)
  blocks = loops.tile_stage(nest, "matmul", {"i": 1, "j": 2})
  moved = loops.compute_at(blocks, "quantize", "matmul", "jo")
  verdict = loops.check_legality(nest, moved)
  assert verdict.legal
  assert (verdict.effect, verdict.witness) == ("cost", None)
  # two column blocks quantise everything twice
  assert verdict.executions["quantize"] == (6, 12)
  sizes = {"m": 4096, "k": 4096, "n": 1536, "block_m": 128, "block_n": 128}
  separate, fused = (hw.quantized_projection_traffic(**sizes, fuse=fuse) for fuse in (False, True))
  assert (separate.total_bytes, fused.total_bytes) == (444 * MIB, 620 * MIB)


def test_example_5_7_a_row_scale_needs_the_whole_row():
  extents = {"i": 1, "k": 256}
  maximum = loops.stage(
    "maximum", "R[i]", loops.ABSOLUTE, ["A[i, k]"], extents=extents, combine="max"
  )
  through = loops.stage(
    "quantize", "Q[i, k]", loops.THROUGH_E4M3, ["A[i, k]", "R[i]"], extents=extents
  )
  dtypes = {"A": "bfloat16", "R": "float32", "Q": "float32"}
  nest = loops.LoopNest((maximum, through), dtypes)
  early = loops.consume_partial(
    nest, producer="maximum", consumer="quantize", axis="k", factor=128, along="k"
  )
  row = [1] + [0] * 127 + [10] + [0] * 127
  witness = loops.compare_on(nest, early, {"A": [row]})
  assert (witness.array, witness.index) == ("Q", (0, 0))
  assert witness.original == Fraction(55, 56)
  assert witness.changed == 1


def test_exercise_5_5_blocked_i_k_j_keeps_a_row_of_accumulators():
  nest = loops.tile_stage(loops.matmul_nest(**FFN), "matmul", {"i": 64, "k": 32, "j": 64})
  assert nest.stage("matmul").order[:3] == ("io", "ko", "jo")
  buffers = {b.array: b for b in loops.buffer_lifetimes(nest, "matmul", at="jo")}
  assert (buffers["A"].created_in, buffers["W"].created_in) == ("ko", "jo")
  assert buffers["A"].lives_through[0] == "jo"
  assert (buffers["C"].created_in, buffers["C"].shape) == ("io", (64, 12288))
  moved = {access.array: access for access in loops.tile_accesses(nest, "matmul", at="jo")}
  # A once, W as before; every partial tile of C leaves and comes back
  assert moved["A"].load_bytes == 8 * MIB
  assert moved["W"].loads == 393216
  assert moved["C"].stores == 393216
  assert moved["C"].loads == 393216 - 3072


def test_exercise_5_5_transpose_tiles():
  small, large = transposed_tile(16), transposed_tile(32)
  assert (small.bytes, large.bytes) == (512, 2048)
  blocks = [1024 * 4096 // tile.elements for tile in (small, large)]
  assert blocks == [16384, 4096]
  one_by_one = loops.transpose_nest(rows=1024, columns=4096)
  read, written = loops.access_patterns(one_by_one, "transpose")
  assert (read.kind, written.kind) == ("contiguous", "strided")
  assert written.stride_elements == 1024


@pytest.mark.parametrize(
  ("share", "new", "dispatched"),
  [
    (Fraction(1, 2), Fraction(25, 2), Fraction(17, 2)),
    (Fraction(2, 3), 10, Fraction(23, 3)),
    (Fraction(9, 10), Fraction(13, 2), Fraction(13, 2)),
  ],
)
def test_exercise_5_6_shares_and_a_dispatch_that_costs_1_us(share, new, dispatched):
  result = hw.call_mix(times_us=OLD_AND_NEW, calls={"A": share, "B": 1 - share}, dispatch_us=1)
  assert result.mean_us == {"old": 10, "new": new}
  assert result.dispatched_mean_us == dispatched
  assert result.choice == {"A": "new", "B": "old"}
  # at 9/10 dispatch only ties with always using the new one
  assert result.dispatch_wins == (share < Fraction(9, 10))


def test_exercise_5_6_dispatch_beats_the_old_one_above_a_fifth():
  result = hw.break_even_share(base_us=(10, 10), new_us=(5, 10), dispatch_us=1)
  assert result.share == pytest.approx(0.2)
  assert result.wins_above


def test_section_5_4_5_selection_of_a_tile():
  def tile(size, stages, accumulator="shared"):
    return hw.matmul_tile_candidate(
      **FFN, block_m=size, block_n=size, block_k=32, dtype="bfloat16", num_stages=stages,
      accumulator=accumulator,
    )  # fmt: skip

  selection = hw.select_candidates(
    "rtx_pro_6000", [tile(64, 1), tile(128, 1), tile(64, 2), tile(128, 2)], dtype="bfloat16"
  )
  blocks = {
    (e.candidate.shared_bytes_per_block // KIB): e.residency.blocks_by["shared_memory"]
    for e in selection.estimates
  }
  assert blocks == {24: 4, 80: 1, 32: 3, 96: 1}
  assert selection.estimates[0].candidate.bytes == 1560 * MIB
  # four pairs of operand tiles do not fit beside a 64 KiB accumulator
  too_large = tile(128, 4)
  rejected = hw.select_candidates("rtx_pro_6000", [too_large], dtype="bfloat16").rejected
  assert "101376" in rejected[too_large.name]
  in_registers = tile(128, 4, accumulator="registers")
  assert in_registers.shared_bytes_per_block == 64 * KIB
  assert in_registers.registers_per_thread == 64 + 64
