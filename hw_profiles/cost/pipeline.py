"""Copy and compute of a sequence of blocks, overlapped over a few buffer slots."""

import dataclasses
from collections.abc import Sequence

from hw_profiles.arguments import at_least, few_enough, not_negative
from hw_profiles.timeline.flow import block_flow


@dataclasses.dataclass(frozen=True)
class BlockEvents:
  """When one block was copied and computed.

  Attributes:
    block: Position in the sequence, from 0.
    slot: The buffer it was copied into.
    copy_start_us: The mover takes it up: mover and slot are free.
    copy_end_us: It has arrived.
    compute_start_us: It has arrived and the compute unit is free.
    compute_end_us: It is done, and its slot is free again.
  """

  block: int
  slot: int
  copy_start_us: float
  copy_end_us: float
  compute_start_us: float
  compute_end_us: float


@dataclasses.dataclass(frozen=True)
class Pipeline:
  """A simulated pipeline.

  Attributes:
    total_us: End of the last block's compute.
    events: One entry a block, in order.
    copy_busy: Share of `total_us` the mover worked.
    compute_busy: Share of `total_us` the compute unit worked.
    slot_wait_us: Time the mover was free and no slot was: backpressure.
  """

  total_us: float
  events: tuple[BlockEvents, ...]
  copy_busy: float
  compute_busy: float
  slot_wait_us: float


def _per_block(name: str, times_us: float | Sequence[float], num_blocks: int) -> list[float]:
  """One time a block, given one time for all or one for each."""
  if not isinstance(times_us, Sequence):
    not_negative(name, times_us)
    return [times_us] * num_blocks
  if len(times_us) != num_blocks:
    raise ValueError(
      f"{name} has {len(times_us)} times: expected one number, or one for each of"
      f" num_blocks={num_blocks}"
    )
  for block, time_us in enumerate(times_us):
    not_negative(f"{name}[{block}]", time_us)
  return list(times_us)


def pipeline(
  *,
  copy_us: float | Sequence[float],
  compute_us: float | Sequence[float],
  num_slots: int,
  num_blocks: int,
  copy_latency_us: float = 0.0,
) -> Pipeline:
  """Simulates one mover and one compute unit sharing `num_slots` buffers.

  The mover copies block j as soon as it is free and slot j mod num_slots has
  been computed; blocks are computed in order.

  Example: copies of 1.29 us and computes of 0.28 us, 4 blocks: 6.28 us in one
  slot, 5.44 us in two, and no less in three: the mover never waits. A third
  slot helps where times vary from block to block, or where a copy arrives
  later than the mover could begin the next (`copy_latency_us`).

  Args:
    copy_us: Time the mover spends on a block, microseconds; one for each block
      where they vary.
    compute_us: Time to compute one block, microseconds; likewise.
    num_slots: Buffers; 1 means that nothing overlaps.
    num_blocks: Blocks in the sequence; 0 takes no time.
    copy_latency_us: From the mover's last byte sent to the block's arrival, in
      which the mover is free for the next.

  Raises:
    ValueError: an argument is out of range.
  """
  at_least("num_slots", num_slots, 1)
  at_least("num_blocks", num_blocks, 0)
  few_enough("num_blocks", num_blocks, instead="pipeline_total_us has the closed form")
  not_negative("copy_latency_us", copy_latency_us)
  copies_us = _per_block("copy_us", copy_us, num_blocks)
  computes_us = _per_block("compute_us", compute_us, num_blocks)
  run = block_flow(
    list(zip(copies_us, computes_us, strict=True)), num_slots=num_slots, hop_us=copy_latency_us
  )
  events = tuple(
    BlockEvents(
      block=block,
      slot=block % num_slots,
      copy_start_us=starts_us[0],
      copy_end_us=ends_us[0] + copy_latency_us,
      compute_start_us=starts_us[1],
      compute_end_us=ends_us[1],
    )
    for block, (starts_us, ends_us) in enumerate(zip(run.start_us, run.end_us, strict=True))
  )
  total_us = run.total_us
  return Pipeline(
    total_us=total_us,
    events=events,
    copy_busy=sum(copies_us) / total_us if total_us else 0.0,
    compute_busy=sum(computes_us) / total_us if total_us else 0.0,
    slot_wait_us=run.slot_wait_us,
  )


def pipeline_total_us(
  *,
  copy_us: float,
  compute_us: float,
  num_slots: int,
  num_blocks: int,
  copy_latency_us: float = 0.0,
) -> float:
  """The closed form of `pipeline(...).total_us` for constant times.

  With p = copy + latency + compute, the time of a block that waits for nothing,
  b = max(copy, compute), n blocks and S slots, a block starts either behind the
  slower unit or behind the block that had its slot, so the longest chain has q
  blocks of the second kind and

      T = max over q in {0, ⌊(n-1)/S⌋} of (q+1)·p + (n-1-q·S)·b

  (a chain between the two is a mean of them). Without latency that is n·p in
  one slot and copy + (n-1)·b + compute in two or more: constant times make a
  third slot useless. With it, S slots keep the slower unit busy from S·b ≥ p on.

  Raises:
    ValueError: an argument is out of range.
  """
  not_negative("copy_us", copy_us)
  not_negative("compute_us", compute_us)
  not_negative("copy_latency_us", copy_latency_us)
  at_least("num_slots", num_slots, 1)
  at_least("num_blocks", num_blocks, 0)
  if num_blocks == 0:
    return 0.0
  block_us = copy_us + copy_latency_us + compute_us
  slower_us = max(copy_us, compute_us)
  returns = (num_blocks - 1) // num_slots
  return max(
    block_us + (num_blocks - 1) * slower_us,
    (returns + 1) * block_us + (num_blocks - 1 - returns * num_slots) * slower_us,
  )
