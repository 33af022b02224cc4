"""Problems, masks block by block, scheduling, traffic and the front of attention."""

import dataclasses
import heapq
import itertools
import random

import numpy as np
import pytest

import hw_profiles as hw
from hw_profiles.attention.block_visits import BlockVisits
from hw_profiles.attention.decode_passes import decode_parts, split_candidates
from hw_profiles.attention.mask import key_blocks
from hw_profiles.attention.passes import attention_passes
from hw_profiles.frozen_map import FrozenMap

SIZES = (1, 2, 5, 8, 13)
SIDES = (None, 0, 1, 4)
BLOCKS = (1, 3, 4)

MASKS = [
  hw.AttentionMask(seq_q, seq_kv, left, right, shift)
  for seq_q, seq_kv, left, right in itertools.product(SIZES, SIZES, SIDES, SIDES)
  for shift in {0, seq_kv - seq_q}
]


def pairs(mask):
  """The mask as an array of booleans, by its definition."""
  position = np.arange(mask.seq_q)[:, None] + mask.shift
  keys = np.arange(mask.seq_kv)[None, :]
  seen = np.ones((mask.seq_q, mask.seq_kv), bool)
  if mask.left is not None:
    seen &= keys >= position - mask.left
  if mask.right is not None:
    seen &= keys <= position + mask.right
  return seen


def kinds(seen, first_query, block_q, block_kv):
  """For each block of keys: nothing seen, all seen, or a boundary, by looking at every pair."""
  rows = seen[first_query : first_query + block_q]
  found = []
  for first_key in range(0, seen.shape[1], block_kv):
    block = rows[:, first_key : first_key + block_kv]
    whole = block.shape[1] == block_kv
    found.append("none" if not block.any() else "full" if whole and block.all() else "boundary")
  return found


@pytest.mark.parametrize(("block_q", "block_kv"), [*itertools.product(BLOCKS, BLOCKS)])
def test_blocks_are_those_that_enumeration_finds(block_q, block_kv):
  for mask in MASKS:
    seen = pairs(mask)
    totals = [0, 0]
    for first_query in range(0, mask.seq_q, block_q):
      blocks = mask.key_blocks(first_query, block_q=block_q, block_kv=block_kv)
      expected = kinds(seen, first_query, block_q, block_kv)
      got = ["none"] * len(expected)
      for index in range(blocks.first, blocks.end):
        full = blocks.full_first <= index < blocks.full_end
        got[index] = "full" if full else "boundary"
      assert got == expected, (mask, first_query)
      assert blocks.visited == len(expected) - expected.count("none")
      assert blocks.boundary == expected.count("boundary")
      totals[0] += blocks.visited
      totals[1] += blocks.boundary
    visits = mask.visits(block_q=block_q, block_kv=block_kv)
    assert [visits.total, visits.boundary] == totals
    assert visits.blocks == -(-mask.seq_q // block_q)


def test_visible_pairs_are_those_of_the_mask():
  for mask in MASKS:
    assert mask.visible_pairs() == pairs(mask).sum()


def test_transposing_exchanges_queries_and_keys():
  for mask in MASKS:
    assert (pairs(mask.transposed()) == pairs(mask).T).all()
    assert mask.transposed().transposed() == mask


def test_the_rule_takes_arrays_as_kernels_give_it_traced_integers():
  mask = hw.AttentionMask(40, 56, left=17, right=3, shift=16)
  firsts = np.arange(0, 40, 8)
  together = mask.key_blocks(firsts, block_q=8, block_kv=16)
  for index, first in enumerate(firsts.tolist()):
    one = mask.key_blocks(first, block_q=8, block_kv=16)
    for field in dataclasses.fields(one):
      assert np.broadcast_to(getattr(together, field.name), firsts.shape)[index] == getattr(
        one, field.name
      )


def test_causal_blocks_of_the_usual_case():
  mask = hw.AttentionProblem(1, 8192, 8192, 1, causal=True).mask
  visits = mask.visits(block_q=128, block_kv=128)
  # the triangle of 64 x 64 blocks, its diagonal masked
  assert (visits.total, visits.boundary) == (64 * 65 // 2, 64)
  assert mask.visible_pairs() == 8192 * 8193 // 2


def test_a_window_walks_a_band():
  problem = hw.AttentionProblem(1, 8192, 8192, 1, causal=True, window=(1023, 0))
  visits = problem.mask.visits(block_q=128, block_kv=128)
  # nine blocks once the window is full: 1024 keys that begin inside a block
  assert max(visits.blocks_by_visits) == 9
  assert visits.blocks_by_visits[9] == 56


def enumerated_busiest(tiles, cores):
  loads = [(0, 0)] * cores
  for tile in sorted(tiles, reverse=True):
    steps, count = heapq.heappop(loads)
    heapq.heappush(loads, (steps + tile, count + 1))
  return max(loads)


def test_longest_first_is_the_list_schedule():
  random_numbers = random.Random(7)
  for _ in range(300):
    cores = random_numbers.randint(1, 9)
    tiles = [random_numbers.randint(1, 12) for _ in range(random_numbers.randint(0, 60))]
    visits = BlockVisits.of((tile, 0) for tile in tiles)
    steps, count = enumerated_busiest(tiles, cores)
    load = visits.busiest(cores=cores)
    assert (load.steps, load.tiles) == (steps, count), (tiles, cores)


def test_equal_tiles_go_round_by_round_and_no_core_does_more_than_its_share_and_a_tile():
  load = BlockVisits.uniform(2048, visited=64, boundary=0).busiest(cores=132)
  assert (load.steps, load.tiles) == (16 * 64, 16)
  causal = hw.AttentionProblem(2, 8192, 8192, 16, causal=True).mask.visits(
    block_q=128, block_kv=128
  )
  scaled = causal.scaled(copies=32)
  assert scaled.total / 132 <= scaled.busiest(cores=132).steps <= scaled.total / 132 + 1


def test_tiles_without_steps_are_dealt_out_evenly():
  visits = BlockVisits(FrozenMap({0: 10, 3: 2}), 0)
  load = visits.busiest(cores=4)
  assert (load.steps, load.tiles) == (3, 1 + 3)


def test_traffic_has_no_tails_beyond_the_rows_that_exist():
  traffic = hw.attention_traffic(
    seq_q=100, seq_kv=70, head_dim=48, value_dim=80, block_q=64, block_kv=32, in_dtype="float16"
  )
  assert traffic.sweeps == 2
  assert traffic.state_updates == 2 * 3
  assert traffic.q_read_bytes == 100 * 48 * 2
  assert traffic.kv_read_bytes == 2 * 70 * (48 + 80) * 2
  assert traffic.o_write_bytes == 100 * 80 * 2
  assert traffic.working_set_bytes == (
    64 * 48 * 2 + 32 * 80 * 2 + 64 * 32 * 4 + 64 * 80 * 4 + 3 * 64 * 4
  )
  assert traffic.intensity == pytest.approx(2 * 100 * 70 * (48 + 80) / traffic.total_bytes)


@pytest.mark.parametrize("sizes", [(0, 8), (8, 0), (0, 0)])
def test_traffic_of_nothing(sizes):
  traffic = hw.attention_traffic(
    seq_q=sizes[0], seq_kv=sizes[1], head_dim=8, block_q=4, block_kv=4, in_dtype="float32"
  )
  assert traffic.state_updates == 0
  assert traffic.intensity == 0
  assert traffic.total_bytes == sizes[0] * 2 * 8 * 4


@pytest.mark.parametrize("prefetch_slots", [0, 1, 2])
@pytest.mark.parametrize("block_kv", [1, 7, 64, 130])
def test_the_most_queries_fit_and_one_more_does_not(block_kv, prefetch_slots):
  capacity = 101376
  block_q = hw.attention_max_block_q(
    capacity_bytes=capacity, head_dim=96, block_kv=block_kv, prefetch_slots=prefetch_slots
  )

  def needed(rows):
    return hw.attention_traffic(
      seq_q=1,
      seq_kv=1,
      head_dim=96,
      block_q=rows,
      block_kv=block_kv,
      in_dtype="bfloat16",
      prefetch_slots=prefetch_slots,
    ).working_set_bytes

  assert needed(block_q) <= capacity < needed(block_q + 1)


def test_no_room_for_a_query_names_the_largest_block_of_keys():
  with pytest.raises(hw.InfeasibleTileError, match="largest block_kv that fits is 386") as raised:
    hw.attention_max_block_q(capacity_bytes=101376, head_dim=128, block_kv=400)
  assert str(raised.value).startswith("block_kv=400: one query with 1 slot(s)")
  assert hw.attention_max_block_q(capacity_bytes=101376, head_dim=128, block_kv=386) == 1
  with pytest.raises(hw.InfeasibleTileError, match="not even one key does"):
    hw.attention_max_block_q(capacity_bytes=100, head_dim=128, block_kv=1)


def test_front_holds_exactly_the_points_that_no_other_beats():
  sizes = {"seq_q": 1000, "seq_kv": 3000, "head_dim": 64}
  block_kvs = range(1, 400)
  front = hw.attention_pareto_front(capacity_bytes=65536, block_kvs=block_kvs, **sizes)
  every = {}
  for block_kv in block_kvs:
    found = hw.attention_pareto_front(capacity_bytes=65536, block_kvs=(block_kv,), **sizes)
    every.update({x.block_kv: (x.total_bytes, x.state_updates) for x in found})
  on_front = {(x.total_bytes, x.state_updates) for x in front}
  for moved, updates in every.values():
    beaten = any(
      (a <= moved and b < updates) or (a < moved and b <= updates) for a, b in every.values()
    )
    assert beaten != ((moved, updates) in on_front)
  assert len(on_front) == len(front) > 2


def test_front_skips_blocks_that_leave_no_room():
  front = hw.attention_pareto_front(
    capacity_bytes=101376, seq_q=512, seq_kv=512, head_dim=128, block_kvs=(64, 4096)
  )
  assert [point.block_kv for point in front] == [64]


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"seq_q": -1}, r"seq_q=-1: expected an integer of at least 0"),
    ({"heads": 0}, r"heads=0: expected an integer of at least 1"),
    ({"kv_heads": 3}, r"kv_heads=3: expected a divisor of heads=16"),
    ({"head_dim": 0}, r"head_dim=0"),
    ({"value_dim": 0}, r"value_dim=0"),
    ({"causal": 1}, r"causal=1: expected True or False"),
    ({"causal_alignment": "left"}, r"causal_alignment='left': expected None, 'top_left'"),
    ({"window": (-1, 0)}, r"window=\(-1, 0\): expected keys to the left"),
    ({"window": (1, 2, 3)}, r"window=\(1, 2, 3\)"),
    ({"window": True}, r"window=True"),
    ({"causal": True, "seq_q": 5}, r"causal_alignment=None: with seq_q=5 and seq_kv=8192"),
    ({"window": 4, "seq_q": 5}, r"'bottom_right' \(the last query is at the last key\)"),
    ({"dtype": "int4"}, r"dtype='int4'"),
    ({"out_dtype": "int4"}, r"dtype='int4'"),
  ],
)
def test_wrong_problems_are_named(change, message):
  fields = {"batch": 2, "seq_q": 8192, "seq_kv": 8192, "heads": 16}
  with pytest.raises(ValueError, match=message):
    hw.AttentionProblem(**{**fields, **change})


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"seq_q": 0}, r"seq_q=0: expected an integer of at least 1"),
    ({"kv_heads": 5}, r"kv_heads=5: expected a divisor of heads=32"),
    ({"lengths": (1,)}, r"lengths=\(1,\): expected a tuple of 2 lengths"),
    ({"lengths": (1, 5000)}, r"lengths\[1\]=5000: expected at most seq_kv=4096"),
    ({"lengths": (1, -2)}, r"lengths\[1\]=-2"),
    ({"page_size": 0}, r"page_size=0"),
    ({"window": -1}, r"window=-1"),
  ],
)
def test_wrong_decode_problems_are_named(change, message):
  with pytest.raises(ValueError, match=message):
    hw.DecodeProblem(**{"batch": 2, "seq_kv": 4096, "heads": 32, **change})


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(hw.AttentionConfig)])
def test_config_fields_are_positive(field):
  with pytest.raises(ValueError, match=f"AttentionConfig.{field}=0"):
    hw.AttentionConfig(**{"block_q": 64, "block_kv": 64, field: 0})


def test_configs_describe_what_differs_from_the_defaults():
  assert hw.AttentionConfig(128, 64).describe() == "block_q=128,block_kv=64,num_stages=2"
  config = hw.AttentionConfig(128, 64, 3, block_q_dkv=32)
  assert config.describe() == "block_q=128,block_kv=64,num_stages=3,block_q_dkv=32"
  assert hw.DecodeConfig(64, 4).describe() == "block_kv=64,num_splits=4,num_stages=2"


def test_flops_count_what_is_visible():
  full = hw.AttentionProblem(2, 8192, 8192, 16)
  assert full.flops == 4 * 2 * 16 * 8192**2 * 128
  backward = dataclasses.replace(full, backward=True)
  assert 2 * backward.flops == 5 * full.flops
  causal = dataclasses.replace(full, causal=True)
  assert causal.flops == 4 * 2 * 16 * (8192 * 8193 // 2) * 128


def test_backward_multiplies_seven_products_and_walks_both_ways():
  problem = hw.AttentionProblem(2, 100, 300, 8, kv_heads=2, backward=True, head_dim=64)
  config = hw.AttentionConfig(64, 64, block_q_dkv=32, block_kv_dkv=64)
  dkv, dq = attention_passes(problem, config)
  assert sum(dkv.products) + sum(dq.products) == 7 * 64
  # 2 sequences of 2 key heads, 5 blocks of keys, 4 query heads of 4 blocks of queries
  assert (dkv.visits.blocks, dkv.visits.total) == (2 * 2 * 5, 2 * 2 * 5 * 4 * 4)
  # 2 sequences of 8 heads, 1 block of 128 queries, 5 blocks of 64 keys
  assert (dq.visits.blocks, dq.visits.total) == (2 * 8 * 1, 2 * 8 * 5)


@pytest.mark.parametrize("block_kv", [1, 16, 100])
@pytest.mark.parametrize("num_splits", [1, 2, 3, 7, 1000])
def test_parts_cover_each_visible_block_once(block_kv, num_splits):
  problem = hw.DecodeProblem(4, 999, 6, kv_heads=3, lengths=(0, 1, 500, 999), window=640)
  parts = decode_parts(problem, block_kv=block_kv, num_splits=num_splits)
  blocks = 0
  for length in problem.lengths:
    first = max(length - 1 - 640, 0)
    blocks += len({key // block_kv for key in range(first, length)})
  assert parts.visits.total == 3 * blocks
  assert parts.parts == parts.visits.blocks
  assert parts.most <= num_splits
  # an empty sequence has one part, which writes zeros
  assert parts.visits.blocks_by_visits[0] == 3


def test_visible_keys_of_a_cache():
  problem = hw.DecodeProblem(3, 100, 4, lengths=(0, 10, 100), window=15, seq_q=2)
  # two queries with 15 keys before each: 17 keys in a long sequence
  assert problem.visible_keys == 0 + 10 + 17
  paged = dataclasses.replace(problem, page_size=16)
  assert paged.page_table_bytes == 4 * (0 + 1 + 7)
  assert paged.key_value_bytes - problem.key_value_bytes == paged.page_table_bytes


def test_sequences_of_a_length_are_counted_not_walked():
  problem = hw.DecodeProblem(2**40, 100, 8, kv_heads=2, window=9, page_size=16)
  one = dataclasses.replace(problem, batch=1)
  for name in ("visible_keys", "flops", "key_value_bytes", "page_table_bytes"):
    assert getattr(problem, name) == 2**40 * getattr(one, name)
  given = dataclasses.replace(problem, batch=3, lengths=(100, 7, 100))
  assert given.sequences_by_length == {100: 2, 7: 1}
  assert given.visible_keys == 2 * one.visible_keys + 7


def test_split_candidates_stay_within_the_sequence():
  problem = hw.DecodeProblem(1, 300, 8, kv_heads=8)
  counts = split_candidates(problem, block_kv=64, cores=132)
  assert counts[0] == 1
  assert counts[-1] <= 5
  assert split_candidates(dataclasses.replace(problem, batch=0), block_kv=64, cores=132) == (1,)


def test_each_sequence_may_have_its_own_length():
  lengths = np.array([0, 3, 16, 17, 40])
  blocks = key_blocks(
    np.zeros(5, int), block_q=4, block_kv=16, seq_q=4, seq_kv=lengths, right=0, shift=lengths - 4
  )
  for index, length in enumerate(lengths.tolist()):
    mask = hw.AttentionMask(4, length, right=0, shift=length - 4)
    one = mask.key_blocks(0, block_q=4, block_kv=16)
    assert [np.broadcast_to(x, 5)[index] for x in dataclasses.astuple(blocks)] == list(
      dataclasses.astuple(one)
    )


def test_a_block_past_the_last_query_visits_nothing():
  blocks = key_blocks(8, block_q=4, block_kv=16, seq_q=8, seq_kv=64)
  assert (blocks.visited, blocks.boundary) == (0, 0)
