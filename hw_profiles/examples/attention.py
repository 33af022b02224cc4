"""Attention: memory, how many queries a buffer holds, sweeps, traffic and state updates."""

import hw_profiles as hw
from hw_profiles.examples.computed import MIB, Computed, Inputs


def _unfused(inputs: Inputs) -> hw.AttentionTraffic:
  """One head in blocks of 64 x 64, which do not change what the unfused program moves."""
  return hw.attention_traffic(
    seq_q=inputs["L"],
    seq_kv=inputs["L"],
    head_dim=inputs.get("d", 128),
    block_q=64,
    block_kv=64,
    in_dtype="bfloat16",
  )


def point(inputs: Inputs, prefetch_slots: int = 0) -> hw.AttentionPoint:
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


def _max_block_q(inputs: Inputs) -> int:
  return hw.attention_max_block_q(
    capacity_bytes=inputs["budget"], head_dim=inputs["d"], block_kv=inputs["b"]
  )


FRONT = hw.attention_pareto_front(
  capacity_bytes=101376, seq_q=8192, seq_kv=8192, head_dim=128, block_kvs=(1, 64, 128)
)

_BLOCKS = ("b1", "b64", "b128")

_BY_TRAFFIC_MIB = {point.total_bytes / MIB: point for point in FRONT}

_BY_UPDATES = {point.state_updates: point for point in FRONT}

COMPUTED: Computed = {
  "s004.attn.qkvo": lambda i: _unfused(i).q_read_bytes / MIB,
  "s004.attn.S": lambda i: _unfused(i).score_bytes / MIB,
  "s004.attn.required": lambda i: _unfused(i).required_bytes / MIB,
  "s004.attn.intermediate": lambda i: _unfused(i).unfused_intermediate_bytes / MIB,
  "s004.attn.read_drop": lambda i: (
    _BY_TRAFFIC_MIB[i["b"]].against(_BY_TRAFFIC_MIB[i["a"]]).saved_bytes / MIB
  ),
  "s004.attn.update_ratio": lambda i: _BY_UPDATES[i["a"]].against(_BY_UPDATES[i["b"]]).update_ratio,
  "s004.attn.measured_speedup": lambda i: hw.time_change(before_us=i["a"], after_us=i["b"]).speedup,
  **{f"s004.attn.{block}.a": _max_block_q for block in _BLOCKS},
  **{f"s004.attn.{block}.passes": lambda i: point(i).sweeps for block in _BLOCKS},
  **{f"s004.attn.{block}.traffic": lambda i: point(i).total_bytes / MIB for block in _BLOCKS},
  **{f"s004.attn.{block}.updates": lambda i: point(i).state_updates for block in _BLOCKS},
}
