"""The trade-off between traffic and state updates, over the block of keys."""

import dataclasses
from collections.abc import Iterable

from hw_profiles.arguments import collection
from hw_profiles.attention.traffic import attention_max_block_q, attention_traffic
from hw_profiles.errors import InfeasibleTileError

POWERS_OF_TWO = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclasses.dataclass(frozen=True)
class AttentionPoint:
  """The largest block of queries beside one block of keys.

  Attributes:
    block_q: Queries of a block: as many as the memory holds.
    block_kv: Keys of a step.
    sweeps: Times that K and V are read.
    total_bytes: Traffic of one head.
    state_updates: Updates of running maximum, sum and output.
  """

  block_q: int
  block_kv: int
  sweeps: int
  total_bytes: int
  state_updates: int

  def against(self, other: "AttentionPoint") -> "AttentionTradeOff":
    """What choosing this point instead of `other` saves and costs."""
    return AttentionTradeOff(
      saved_bytes=other.total_bytes - self.total_bytes,
      update_ratio=self.state_updates / other.state_updates,
    )


@dataclasses.dataclass(frozen=True)
class AttentionTradeOff:
  """One point of the front against another.

  Attributes:
    saved_bytes: Traffic less; negative where it is more.
    update_ratio: State updates, as a multiple of the other's.
  """

  saved_bytes: int
  update_ratio: float


def attention_pareto_front(
  *,
  capacity_bytes: int,
  seq_q: int,
  seq_kv: int,
  head_dim: int,
  block_kvs: Iterable[int] = POWERS_OF_TWO,
  in_dtype: str = "bfloat16",
  prefetch_slots: int = 0,
  value_dim: int | None = None,
) -> tuple[AttentionPoint, ...]:
  """Blocks of which no other moves at most as much and updates at most as often.

  Each block of keys has the most queries that fit beside it
  (`attention_max_block_q`); those that leave no room for one are dropped, as
  are those that another beats in traffic or updates without losing in the
  other. The choice among the rest depends on what an update costs.

  Example: in 101376 B, 8192 x 8192 x 128: 260 MiB and 524288 updates at
  block_kv = 1, 404 MiB and 12800 at 64, 624 MiB and 9920 at 128.

  Args:
    capacity_bytes: The memory that the working set must fit.
    seq_q: Queries.
    seq_kv: Keys and values.
    head_dim: Elements of a query and of a key.
    block_kvs: Blocks of keys to compare.
    in_dtype: Dtype of Q, K, V and O.
    prefetch_slots: K/V slots beside the one in use.
    value_dim: Elements of a value; None: `head_dim`.

  Returns:
    The front, least traffic first; of equal points the one with fewer keys.

  Raises:
    ValueError: a size is out of range or a dtype is unknown.
  """
  collection("block_kvs", block_kvs)
  points = []
  for block_kv in block_kvs:
    try:
      block_q = attention_max_block_q(
        capacity_bytes=capacity_bytes,
        head_dim=head_dim,
        block_kv=block_kv,
        in_dtype=in_dtype,
        prefetch_slots=prefetch_slots,
        value_dim=value_dim,
      )
    except InfeasibleTileError:
      continue
    moved = attention_traffic(
      seq_q=seq_q,
      seq_kv=seq_kv,
      head_dim=head_dim,
      block_q=block_q,
      block_kv=block_kv,
      in_dtype=in_dtype,
      prefetch_slots=prefetch_slots,
      value_dim=value_dim,
    )
    points.append(
      AttentionPoint(block_q, block_kv, moved.sweeps, moved.total_bytes, moved.state_updates)
    )
  points.sort(key=lambda point: (point.total_bytes, point.state_updates, point.block_kv))
  front: list[AttentionPoint] = []
  for point in points:
    if not front or point.state_updates < front[-1].state_updates:
      front.append(point)
  return tuple(front)
