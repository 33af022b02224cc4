"""Working set and traffic of one tiled attention head, and how many queries a memory holds."""

import dataclasses

from hw_profiles import dtypes
from hw_profiles.arguments import at_least, ceil_div
from hw_profiles.errors import InfeasibleTileError

# Row maximum, row sum and the factor that rescales both, for each query.
ROW_STATES = 3


@dataclasses.dataclass(frozen=True)
class AttentionTraffic:
  """Working set and traffic of tiled attention.

  Attributes:
    working_set_bytes: What one program keeps in its working buffers.
    q_read_bytes: Q, once (backward: dO, O's log-sum-exp and delta with it).
    kv_read_bytes: What is streamed: K and V, once for each sweep.
    o_write_bytes: O, once (backward: the gradients).
    total_bytes: The three together.
    sweeps: Blocks of queries, each of which walks the keys it sees.
    state_updates: Steps of all sweeps: how often running maximum, sum and
      output are updated.
    intensity: FLOP per byte of `total_bytes`; 0 where nothing moves.
    grid: Tiles along each axis that is cut: blocks of rows, heads of all sequences.
    required_bytes: Q, K, V and O once, which any program moves.
    score_bytes: S of one head in the accumulator's dtype; P is as large.
    unfused_intermediate_bytes: What the unfused program moves beside
      `required_bytes`: S written and read, P written and read.
  """

  working_set_bytes: int
  q_read_bytes: int
  kv_read_bytes: int
  o_write_bytes: int
  total_bytes: int
  sweeps: int
  state_updates: int
  intensity: float
  grid: tuple[int, int]
  required_bytes: int
  score_bytes: int
  unfused_intermediate_bytes: int


@dataclasses.dataclass(frozen=True)
class _Sizes:
  """Bytes a row of each array takes."""

  query: int
  slot: int
  key_value: int
  output: int
  row: int
  score: int


def _sizes(
  *, head_dim: int, value_dim: int | None, in_dtype: str, out_dtype: str | None, acc_dtype: str
) -> _Sizes:
  at_least("head_dim", head_dim, 1)
  dv = head_dim if value_dim is None else value_dim
  at_least("value_dim", dv, 1)
  size = dtypes.size_bytes(in_dtype, name="in_dtype")
  acc = dtypes.size_bytes(acc_dtype, name="acc_dtype")
  return _Sizes(
    query=head_dim * size,
    slot=max(head_dim, dv) * size,
    key_value=(head_dim + dv) * size,
    output=dv * (size if out_dtype is None else dtypes.size_bytes(out_dtype, name="out_dtype")),
    row=dv * acc + ROW_STATES * acc,
    score=acc,
  )


def attention_traffic(
  *,
  seq_q: int,
  seq_kv: int,
  head_dim: int,
  block_q: int,
  block_kv: int,
  in_dtype: str,
  prefetch_slots: int = 0,
  value_dim: int | None = None,
  out_dtype: str | None = None,
  acc_dtype: str = "float32",
) -> AttentionTraffic:
  """Each block of queries walks all keys and values of its head; O is written once.

      working set = a·d·size + (1 + prefetch_slots)·b·max(d, dv)·size
                    + a·b·acc + a·dv·acc + 3·a·acc
      traffic     = ⌈seq_q/a⌉·seq_kv·(d + dv)·size + seq_q·(d·size + dv·out_size)

  with a = block_q and b = block_kv: Q, one slot that K and then V pass through,
  scores that turn into probabilities in place, the accumulator, and three
  float32 numbers a row. One head, no mask: masks only take steps away.

  Example: 8192 x 8192 x 128 in bfloat16 in blocks of 82 x 64 sweeps K and V 100
  times: 404 MiB and 12800 updates.

  Args:
    seq_q: Queries; 0 or more, as `seq_kv`.
    seq_kv: Keys and values.
    head_dim: Elements of a query and of a key.
    block_q: Queries of a block; at least 1, as `block_kv`.
    block_kv: Keys of a step.
    in_dtype: Dtype of Q, K and V.
    prefetch_slots: K/V slots beside the one in use.
    value_dim: Elements of a value; None: `head_dim`.
    out_dtype: Dtype of O; None: `in_dtype`.
    acc_dtype: Dtype of scores, accumulator and row states.

  Raises:
    ValueError: a size is out of range or a dtype is unknown.
  """
  for name, size in (("seq_q", seq_q), ("seq_kv", seq_kv), ("prefetch_slots", prefetch_slots)):
    at_least(name, size, 0)
  at_least("block_q", block_q, 1)
  at_least("block_kv", block_kv, 1)
  sizes = _sizes(
    head_dim=head_dim,
    value_dim=value_dim,
    in_dtype=in_dtype,
    out_dtype=out_dtype,
    acc_dtype=acc_dtype,
  )
  dv = head_dim if value_dim is None else value_dim
  sweeps = ceil_div(seq_q, block_q)
  scores = seq_q * seq_kv * sizes.score
  q_read, kv_read = seq_q * sizes.query, sweeps * seq_kv * sizes.key_value
  o_write = seq_q * sizes.output
  total = q_read + kv_read + o_write
  return AttentionTraffic(
    working_set_bytes=(
      block_q * (sizes.query + block_kv * sizes.score + sizes.row)
      + (1 + prefetch_slots) * block_kv * sizes.slot
    ),
    q_read_bytes=q_read,
    kv_read_bytes=kv_read,
    o_write_bytes=o_write,
    total_bytes=total,
    sweeps=sweeps,
    state_updates=sweeps * ceil_div(seq_kv, block_kv),
    intensity=2 * seq_q * seq_kv * (head_dim + dv) / total if total else 0.0,
    grid=(sweeps, 1),
    required_bytes=q_read + seq_kv * sizes.key_value + o_write,
    score_bytes=scores,
    unfused_intermediate_bytes=4 * scores,
  )


def attention_max_block_q(
  *,
  capacity_bytes: int,
  head_dim: int,
  block_kv: int,
  in_dtype: str = "bfloat16",
  prefetch_slots: int = 0,
  value_dim: int | None = None,
  acc_dtype: str = "float32",
) -> int:
  """The most queries whose working set (see `attention_traffic`) a memory holds.

      a = ⌊(capacity - (1 + prefetch_slots)·b·max(d, dv)·size)
           / (d·size + b·acc + dv·acc + 3·acc)⌋

  Larger blocks of keys leave less room for queries, so K and V are swept more
  often; smaller ones update the state more often.

  Example: 101376 B at d = 128 hold 128, 82 and 53 queries beside 1, 64 and 128
  keys, and 66 beside 64 keys and a second slot.

  Args:
    capacity_bytes: The memory.
    head_dim: Elements of a query and of a key.
    block_kv: Keys of a step.
    in_dtype: Dtype of Q, K and V.
    prefetch_slots: K/V slots beside the one in use.
    value_dim: Elements of a value; None: `head_dim`.
    acc_dtype: Dtype of scores, accumulator and row states.

  Raises:
    InfeasibleTileError: it does not hold one query.
    ValueError: a size is out of range or a dtype is unknown.
  """
  at_least("capacity_bytes", capacity_bytes, 0)
  at_least("block_kv", block_kv, 1)
  at_least("prefetch_slots", prefetch_slots, 0)
  sizes = _sizes(
    head_dim=head_dim, value_dim=value_dim, in_dtype=in_dtype, out_dtype=None, acc_dtype=acc_dtype
  )
  slots = (1 + prefetch_slots) * sizes.slot
  row = sizes.query + sizes.row
  held = (capacity_bytes - block_kv * slots) // (row + block_kv * sizes.score)
  if held >= 1:
    return held
  needed = block_kv * (slots + sizes.score) + row
  most = (capacity_bytes - row) // (slots + sizes.score)
  nearest = (
    f"largest block_kv that fits is {most}"
    if most >= 1
    else f"not even one key does, which takes {row + slots + sizes.score} B"
  )
  raise InfeasibleTileError(
    f"block_kv={block_kv}: one query with {1 + prefetch_slots} slot(s) of keys or values needs"
    f" {needed} B, there are {capacity_bytes} B; {nearest}"
  )
