"""Attention: memory, how many queries a buffer holds, sweeps, traffic and state updates."""

from hw_profiles.examples.attention import FRONT, point
from hw_profiles.examples.computed import MIB


def test_a_prefetch_slot_takes_queries_and_adds_sweeps():
  """Experiment 5-3, extended: one more slot of 64 keys leaves room for 66 queries, not 82.

  Fewer queries a block are more blocks, and each reads all of K and V: the slot
  hides the time of a read by reading a quarter more.
  """
  inputs = {"L": 8192, "d": 128, "b": 64, "budget": 101376}
  with_slot = point(inputs, prefetch_slots=1)
  assert (with_slot.block_q, with_slot.sweeps) == (66, 125)
  assert with_slot.total_bytes == 504 * MIB
  assert with_slot.against(point(inputs)).saved_bytes == -100 * MIB


def test_all_three_blocks_of_keys_are_on_the_front():
  assert [point.block_kv for point in FRONT] == [1, 64, 128]
