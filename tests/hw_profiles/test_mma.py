"""Matrix instructions of a tile, and where its accumulator lives."""

import itertools

import pytest

import hw_profiles as hw

H100 = hw.get_profile("h100_sxm")
KIB = 1024


@pytest.mark.parametrize(
  ("family", "dtype", "sizes", "shape"),
  [
    ("mma.sync", "bfloat16", {}, (16, 8, 16)),
    ("mma.sync", "tfloat32", {}, (16, 8, 8)),
    ("mma.sync", "int8", {}, (16, 8, 32)),
    ("wgmma", "float16", {}, (64, 256, 16)),
    ("wgmma", "float8_e4m3fn", {"n": 24}, (64, 24, 32)),
    ("tcgen05", "bfloat16", {}, (128, 256, 16)),
    ("tcgen05", "bfloat16", {"m": 64, "n": 8}, (64, 8, 16)),
    ("tcgen05.cta_group2", "float16", {"n": 64}, (256, 64, 16)),
    ("cube", "bfloat16", {}, (16, 16, 16)),
    ("cube", "int8", {}, (16, 16, 32)),
    ("cube", "float32", {}, (16, 16, 8)),
  ],
)
def test_shapes(family, dtype, sizes, shape):
  result = hw.mma_shape(family, dtype=dtype, **sizes)
  assert (result.m, result.n, result.k) == shape


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"family": "wmma", "dtype": "float16"}, "family='wmma': expected one of mma.sync, wgmma"),
    ({"family": "wgmma", "dtype": "float32"}, "dtype='float32': wgmma multiplies bfloat16"),
    ({"family": "wgmma", "dtype": "float16", "m": 32}, "m=32: wgmma has 64 rows"),
    ({"family": "wgmma", "dtype": "float16", "n": 20}, "n=20: .* multiples of 8 .* nearest is 24"),
    ({"family": "wgmma", "dtype": "float16", "n": 264}, "n=264: .* to 256; nearest is 256"),
    ({"family": "wgmma", "dtype": "int8", "n": 40}, "n=40: .* multiples of 16 .* nearest is 48"),
    ({"family": "tcgen05", "dtype": "float16", "n": 8}, "n=8: .* from 16 to 256; nearest is 16"),
  ],
)
def test_shapes_that_do_not_exist(arguments, message):
  family = arguments.pop("family")
  with pytest.raises(ValueError, match=message):
    hw.mma_shape(family, **arguments)


@pytest.mark.parametrize("family", ["mma.sync", "wgmma", "tcgen05", "tcgen05.cta_group2", "cube"])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_every_multiply_add_is_done_once(family, dtype):
  shape = hw.mma_shape(family, dtype=dtype)
  result = hw.mma_instructions(block_m=512, block_n=512, block_k=128, shape=shape)
  assert result.instructions * shape.flops == result.tile_flops == 2 * 512 * 512 * 128
  assert result.padding_fraction == 0


def test_instructions_of_known_tiles():
  tile = {"block_m": 128, "block_n": 128, "block_k": 64}
  count = {
    family: hw.mma_instructions(
      **tile, shape=hw.mma_shape(family, dtype="bfloat16", **({} if family == "cube" else n))
    ).instructions
    for family, n in (
      ("mma.sync", {}), ("wgmma", {"n": 128}), ("tcgen05", {"n": 128}), ("cube", {})
    )
  }  # fmt: skip
  # 64 x 128 twice, 128 x 128 once, 16 x 16 sixty-four times, over four steps of K
  assert count == {"mma.sync": 512, "wgmma": 8, "tcgen05": 4, "cube": 256}


@pytest.mark.parametrize(("block_m", "block_n"), [(128, 128), (64, 64), (128, 256)])
def test_fragments_in_registers_are_the_accumulator(block_m, block_n):
  shape = hw.mma_shape("mma.sync", dtype="bfloat16")
  for warps in (1, 2, 4, 8):
    result = hw.mma_instructions(
      block_m=block_m, block_n=block_n, block_k=64, shape=shape, groups=warps
    )
    assert result.accumulator_registers_per_thread == block_m * block_n // (32 * warps)
  for family in ("tcgen05", "cube"):
    shape = hw.mma_shape(family, dtype="bfloat16", n=16)
    result = hw.mma_instructions(block_m=128, block_n=128, block_k=64, shape=shape)
    assert result.accumulator_registers_per_thread == 0


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"block_m": 100}, r"block_m=100: .* multiple of the instruction's 16 .* nearest is 112"),
    ({"block_n": 4}, r"block_n=4: .* nearest is 8"),
    ({"block_k": 24}, r"block_k=24: .* nearest is 32"),
    ({"groups": 24}, r"groups=24: does not divide the 128 fragments .* nearest that does is 16"),
    ({"block_m": 0}, r"block_m=0: expected an integer of at least 1"),
  ],
)
def test_tiles_that_an_instruction_does_not_divide(changes, message):
  arguments = {"block_m": 128, "block_n": 128, "block_k": 64, "groups": 8, **changes}
  shape = hw.mma_shape("mma.sync", dtype="bfloat16")
  with pytest.raises(ValueError, match=message):
    hw.mma_instructions(**arguments, shape=shape)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (17, 33, 40), (100, 7, 65)])
def test_padding_counts_whole_fractals(sizes):
  m, n, k = sizes
  shape = hw.mma_shape("cube", dtype="bfloat16")
  result = hw.mma_instructions(block_m=m, block_n=n, block_k=k, shape=shape, pad=True)
  touched = {
    (i // 16, j // 16, p // 16) for i, j, p in itertools.product(range(m), range(n), range(k))
  }
  assert result.instructions == len(touched)
  assert result.padding_fraction == 1 - m * n * k / (len(touched) * 16**3)
  uneven = hw.mma_instructions(block_m=48, block_n=16, block_k=16, shape=shape, groups=2, pad=True)
  assert uneven.fragments_per_group == 2


def placement(place, base, tile=128, **overrides):
  return hw.accumulator_placement(
    H100,
    placement=place,
    block_m=tile,
    block_n=tile,
    block_k=64,
    threads_per_block=256,
    base_registers_per_thread=base,
    **overrides,
  )


def test_moving_the_accumulator_changes_what_binds_not_how_many_blocks():
  shared = placement("shared_memory", 128)
  registers = placement("registers", 64)
  assert shared.residency.resident_blocks == registers.residency.resident_blocks == 2
  assert shared.residency.binding == ("registers", "shared_memory")
  assert registers.residency.binding == ("registers",)
  assert registers.residency.blocks_by["shared_memory"] == 6
  assert registers.registers_per_thread == 128
  # in shared memory it passes twice in each step of K
  assert shared.shared_traffic_bytes_per_step == 2 * 64 * KIB
  assert registers.shared_traffic_bytes_per_step == 0


def test_moving_it_on_the_base_of_128_costs_a_block():
  result = placement("registers", 128)
  assert result.registers_per_thread == 192
  assert (result.residency.resident_blocks, result.residency.occupancy) == (1, 0.125)


def test_a_third_block_needs_both_less():
  assert placement("registers", 16).residency.resident_blocks == 3
  assert placement("shared_memory", 64).residency.resident_blocks == 2


def test_a_smaller_tile_stays_bound_by_registers():
  """Exercise 5-1: 64 x 64 outputs, then 64 registers: the limit does not move."""
  wide = placement("shared_memory", 128, tile=64)
  assert wide.shared_bytes_per_block == 32 * KIB
  assert wide.residency.blocks_by == {
    "threads": 8, "registers": 2, "shared_memory": 6, "blocks": 32
  }  # fmt: skip
  assert (wide.residency.occupancy, wide.residency.binding) == (0.25, ("registers",))
  narrow = placement("shared_memory", 64, tile=64)
  assert narrow.residency.blocks_by == {
    "threads": 8, "registers": 4, "shared_memory": 6, "blocks": 32
  }  # fmt: skip
  assert (narrow.residency.occupancy, narrow.residency.binding) == (0.5, ("registers",))
  coverages = [
    hw.in_flight(
      H100, resident_warps=result.residency.resident_warps, loads_per_warp=4, latency_ns=600
    ).coverage
    for result in (wide, narrow)
  ]
  assert [round(coverage, 2) for coverage in coverages] == [2.15, 4.30]


def test_placement_refuses():
  with pytest.raises(ValueError, match="placement='l2': expected 'shared_memory' or 'registers'"):
    placement("l2", 64)
  with pytest.raises(hw.InfeasibleTileError, match="registers_per_thread=320"):
    placement("registers", 64, tile=256)
  with pytest.raises(hw.InfeasibleTileError, match="shared_bytes_per_block=327680"):
    placement("shared_memory", 64, tile=256)
