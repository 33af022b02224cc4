"""What rows see as intervals, from lengths and segment ids, against the pairs themselves."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.attention import intervals, schedule
from pallas_kernels.attention.masks import BandRule
from pallas_kernels.attention.operands import AttentionOperands
from pallas_kernels.attention.schedule import TileOrder
from pallas_kernels.attention.segment_runs import segment_runs

BATCH, SEQ_Q, SEQ_KV = 3, 37, 50
BANDS = {
  "open": BandRule(),
  "causal": BandRule(right=0),
  "to the end": BandRule(right=0, bottom_right=True),
  "window": BandRule(left=9, right=4, bottom_right=True),
  "look ahead": BandRule(left=None, right=3),
}
RAGGED = ([37, 11, 0], [20, 50, 7])


def packed(rng, length):
  """Ids in runs, in an order that is not theirs, with padding of 0 at the end."""
  ids = np.zeros((BATCH, length), np.int32)
  cuts = [np.sort(rng.choice(np.arange(1, length), 3, replace=False)) for _ in range(BATCH)]
  for row, (a, b, c) in zip(ids, cuts, strict=True):
    row[:a], row[a:b], row[b:c] = 7, 2, 5
  return ids


def operands(rng, *, lengths=None, segments=False, ids=None):
  def arrays(seq):
    return jnp.zeros((BATCH, seq, 1, 8), jnp.bfloat16)

  found = AttentionOperands(arrays(SEQ_Q), arrays(SEQ_KV), arrays(SEQ_KV))
  if lengths is not None:
    used = [jnp.asarray(one, jnp.int32) for one in lengths]
    found = found._replace(query_lengths=used[0], key_lengths=used[1])
  if segments or ids is not None:
    ids = ids or (packed(rng, SEQ_Q), packed(rng, SEQ_KV))
    found = found._replace(query_segments=jnp.asarray(ids[0]), key_segments=jnp.asarray(ids[1]))
  return found


@functools.partial(jax.jit, static_argnums=0)
def of_queries(rule, given):
  return intervals.of_queries(rule, given, interpret=jax.default_backend() == "cpu")


@functools.partial(jax.jit, static_argnums=0)
def of_keys(rule, given):
  return intervals.of_keys(rule, given, interpret=jax.default_backend() == "cpu")


def pairs(rule, given):
  """bool [batch, T, S], pair by pair."""
  given = given._replace(
    **{name: None if x is None else np.asarray(x) for name, x in given._asdict().items()}
  )
  seen = np.zeros((BATCH, SEQ_Q, SEQ_KV), bool)
  for batch in range(BATCH):
    used_q = SEQ_Q if given.query_lengths is None else int(given.query_lengths[batch])
    used_kv = SEQ_KV if given.key_lengths is None else int(given.key_lengths[batch])
    shift = used_kv - used_q if rule.bottom_right else 0
    for i in range(used_q):
      for j in range(used_kv):
        seen[batch, i, j] = (
          (rule.left is None or j >= i + shift - rule.left)
          and (rule.right is None or j <= i + shift + rule.right)
          and (
            given.query_segments is None
            or given.query_segments[batch, i] == given.key_segments[batch, j]
          )
        )
  return seen


def covered(found, size):
  """bool [batch, rows, size] of intervals."""
  position = np.arange(size)
  ends = [np.broadcast_to(x, (BATCH, x.shape[1]))[..., None] for x in found]
  return (position >= ends[0]) & (position < ends[1])


CASES = {
  "lengths": {"lengths": RAGGED},
  "segments": {"segments": True},
  "both": {"lengths": RAGGED, "segments": True},
}


@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize("case", CASES)
def test_both_sides_have_exactly_the_visible_pairs(band, case, rng):
  given = operands(rng, **CASES[case])
  expected = pairs(BANDS[band], given)
  queries, keys = of_queries(BANDS[band], given), of_keys(BANDS[band], given)
  np.testing.assert_array_equal(covered(queries.seen, SEQ_KV), expected)
  np.testing.assert_array_equal(covered(keys.seen, SEQ_Q), expected.swapaxes(1, 2))
  for sight in (queries, keys):
    assert sight.exact is None or np.asarray(sight.exact).all()


def test_an_id_in_two_runs_is_told_and_its_hull_covers_what_is_seen(rng):
  ids = packed(rng, SEQ_Q), packed(rng, SEQ_KV)
  ids[1][1, -1] = 7  # the first segment's id once more, after the padding
  given = operands(rng, ids=ids)
  found = of_queries(BandRule(), given)
  np.testing.assert_array_equal(np.asarray(found.exact), [True, False, True])
  assert (covered(found.seen, SEQ_KV) | ~pairs(BandRule(), given)).all()


def test_ids_past_the_used_lengths_do_not_count(rng):
  ids = packed(rng, SEQ_Q), packed(rng, SEQ_KV)
  ids[1][:, -1] = 7
  given = operands(rng, ids=ids, lengths=([SEQ_Q] * BATCH, [SEQ_KV - 1] * BATCH))
  assert np.asarray(of_queries(BandRule(), given).exact).all()


@pytest.mark.parametrize("whole", [False, True], ids=["edge", "whole"])
@pytest.mark.parametrize("band", BANDS)
def test_walks_visit_all_that_is_seen_and_mask_all_that_is_not(band, whole, rng):
  given = operands(rng, lengths=RAGGED, segments=True)
  seen = pairs(BANDS[band], given)
  block, other = 8, 16
  found = intervals.walks(
    of_queries(BANDS[band], given).seen, block=block, other_block=other, whole=whole
  )
  table = np.broadcast_to(found.table, (BATCH, *found.table.shape[1:]))
  for (batch, tile), (first, full_first, full_end, end) in zip(
    np.ndindex(table.shape[:2]), table.reshape(-1, 4), strict=True
  ):
    assert 0 <= first <= full_first <= full_end <= end <= -(-SEQ_KV // other)
    rows = seen[batch, tile * block : (tile + 1) * block]
    columns = np.nonzero(rows.any(axis=0))[0]
    if columns.size:
      assert first == columns[0] // other
      assert end == columns[-1] // other + 1
    else:
      assert first == end
    assert rows[:, full_first * other : full_end * other].all()
    if whole and len(rows) < block:
      assert full_first == full_end


@pytest.mark.parametrize("descending", [False, True])
def test_ranks_count_the_blocks_that_come_before(descending, rng):
  walks = intervals.walks(
    of_keys(BANDS["window"], operands(rng, lengths=RAGGED)).seen,
    block=8,
    other_block=8,
    whole=True,
  )
  blocks = -(-SEQ_Q // 8)
  before, comes = intervals.ranks(walks, blocks=blocks, descending=descending)
  chex.assert_shape(before, (BATCH, -(-SEQ_KV // 8), blocks))
  for batch in range(BATCH):
    for other in range(blocks):
      walking = [
        tile
        for tile in range(walks.table.shape[1])
        if walks.first[batch, tile] <= other < walks.end[batch, tile]
      ]
      order = walking[::-1] if descending else walking
      assert [int(before[batch, tile, other]) for tile in order] == list(range(len(order)))
      assert bool(comes[batch, other]) == bool(walking)


def test_ids_are_found_through_many_blocks(rng):
  rows = np.repeat([4, 9, 1, 0], [200, 90, 300, 43])[None]
  others = np.repeat([9, 4, 1, 0], [400, 1, 222, 150])[None]
  used = 700
  found = segment_runs(
    *(jnp.asarray(x, jnp.int32) for x in (rows, others)),
    jnp.asarray([used], jnp.int32),
    interpret=jax.default_backend() == "cpu",
  )
  expected = {9: (0, 400), 4: (400, 401), 1: (401, 623), 0: (623, used)}
  for row, (first, end, count) in zip(rows[0], np.stack(found)[:, 0].T, strict=True):
    assert (first, end, count) == (*expected[row], expected[row][1] - expected[row][0])


@pytest.mark.parametrize("blocks", [1, 5, 132])
def test_work_that_is_known_when_run_is_dealt_out_whole_and_evenly(blocks, rng):
  order = TileOrder.create(batch=2, heads=8, sharing=1, blocks=32, walked_bytes=4 << 20, grows=True)
  work = np.stack([np.arange(1, 33), np.minimum(np.arange(1, 33), 9)]).astype(np.int32)
  dealt = np.asarray(schedule.dealt_agenda(jnp.asarray(work), order, blocks=blocks))
  programs = [dealt[1 : 1 + dealt[0, block], block] for block in range(blocks)]
  assert sorted(itertools.chain(*programs)) == list(range(order.programs))
  times = [
    sum(work[order.tile(int(x)).batch, order.tile(int(x)).block] for x in one) for one in programs
  ]
  # no block is more than half a longest tile behind the mean
  assert max(times) - sum(times) / blocks <= work.max() / 2
