"""Attention: memory, how many queries a buffer holds, sweeps, traffic and state updates."""

import golden

import hw_profiles as hw

MIB = 1024**2


def unfused(inputs):
  """One head in blocks of 64 x 64, which do not change what the unfused program moves."""
  return hw.attention_traffic(
    seq_q=inputs["L"],
    seq_kv=inputs["L"],
    head_dim=inputs.get("d", 128),
    block_q=64,
    block_kv=64,
    in_dtype="bfloat16",
  )


def point(inputs, prefetch_slots=0):
  """The one point of a front over one block of keys."""
  (found,) = hw.attention_pareto_front(
    capacity_bytes=inputs["budget"],
    seq_q=inputs["L"],
    seq_kv=inputs["L"],
    head_dim=inputs["d"],
    block_kvs=(inputs["b"],),
    prefetch_slots=prefetch_slots,
  )
  return found


def max_block_q(inputs):
  return hw.attention_max_block_q(
    capacity_bytes=inputs["budget"], head_dim=inputs["d"], block_kv=inputs["b"]
  )


FRONT = hw.attention_pareto_front(
  capacity_bytes=101376, seq_q=8192, seq_kv=8192, head_dim=128, block_kvs=(1, 64, 128)
)
BY_TRAFFIC_MIB = {point.total_bytes / MIB: point for point in FRONT}
BY_UPDATES = {point.state_updates: point for point in FRONT}

COMPUTED = {
  "s004.attn.qkvo": lambda i: unfused(i).q_read_bytes / MIB,
  "s004.attn.S": lambda i: unfused(i).score_bytes / MIB,
  "s004.attn.required": lambda i: unfused(i).required_bytes / MIB,
  "s004.attn.intermediate": lambda i: unfused(i).unfused_intermediate_bytes / MIB,
  "s004.attn.read_drop": lambda i: (
    BY_TRAFFIC_MIB[i["b"]].against(BY_TRAFFIC_MIB[i["a"]]).saved_bytes / MIB
  ),
  "s004.attn.update_ratio": lambda i: BY_UPDATES[i["a"]].against(BY_UPDATES[i["b"]]).update_ratio,
  "s004.attn.measured_speedup": lambda i: hw.time_change(before_us=i["a"], after_us=i["b"]).speedup,
}
for _block in ("b1", "b64", "b128"):
  COMPUTED[f"s004.attn.{_block}.a"] = max_block_q
  COMPUTED[f"s004.attn.{_block}.passes"] = lambda i: point(i).sweeps
  COMPUTED[f"s004.attn.{_block}.traffic"] = lambda i: point(i).total_bytes / MIB
  COMPUTED[f"s004.attn.{_block}.updates"] = lambda i: point(i).state_updates


@golden.each(COMPUTED)
def test_golden_value(identifier):
  golden.check(identifier, COMPUTED)


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
