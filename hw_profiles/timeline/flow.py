"""Blocks that pass through stages in order and hold one buffer slot on the way."""

import dataclasses
from collections.abc import Sequence

from hw_profiles.arguments import at_least, collection, not_negative


@dataclasses.dataclass(frozen=True)
class BlockFlow:
  """When each block was in each stage.

  Attributes:
    start_us: `[block][stage]`, when the stage took it up.
    end_us: `[block][stage]`, when the stage was done with it.
    slot_wait_us: How long the first stage stood still although it was free,
      because no slot was: backpressure.
    total_us: End of the last block's last stage; 0 without blocks.
  """

  start_us: tuple[tuple[float, ...], ...]
  end_us: tuple[tuple[float, ...], ...]
  slot_wait_us: float
  total_us: float


def block_flow(
  stage_us: Sequence[Sequence[float]], *, num_slots: int | None = None, hop_us: float = 0.0
) -> BlockFlow:
  """Runs blocks through stages, each of which works on one block at a time.

      start[b][0] = max(end[b-1][0], end[b-num_slots][last])
      start[b][s] = max(end[b-1][s], end[b][s-1] + hop)
      end[b][s]   = start[b][s] + stage_us[b][s]

  A block holds its slot from the start of its first stage to the end of its
  last. Blocks keep their order, so unequal times are jitter, not overtaking.

  Args:
    stage_us: `[block][stage]`, microseconds; every block has the same stages.
    num_slots: Blocks that may be under way at once; None: any number.
    hop_us: From a stage to the next, in which neither is occupied: the latency
      of a copy.

  Raises:
    ValueError: a time below 0, blocks of different numbers of stages, no stage
      at all, or no slot.
  """
  collection("stage_us", stage_us)
  for block, times_us in enumerate(stage_us):
    collection(f"stage_us[{block}]", times_us)
  if num_slots is not None:
    at_least("num_slots", num_slots, 1)
  not_negative("hop_us", hop_us)
  num_stages = len(stage_us[0]) if stage_us else 1
  at_least("stages of a block", num_stages, 1)
  free_us = [0.0] * num_stages
  starts: list[tuple[float, ...]] = []
  ends: list[tuple[float, ...]] = []
  slot_wait_us = 0.0
  for block, times_us in enumerate(stage_us):
    if len(times_us) != num_stages:
      raise ValueError(
        f"stage_us[{block}] has {len(times_us)} stages, block 0 has {num_stages}: expected the same"
      )
    arrived_us = free_us[0]
    if num_slots is not None and block >= num_slots:
      arrived_us = max(arrived_us, ends[block - num_slots][-1])
      slot_wait_us += arrived_us - free_us[0]
    block_starts, block_ends = [], []
    for stage, duration_us in enumerate(times_us):
      not_negative(f"stage_us[{block}][{stage}]", duration_us)
      start_us = max(arrived_us, free_us[stage])
      free_us[stage] = start_us + duration_us
      arrived_us = free_us[stage] + hop_us
      block_starts.append(start_us)
      block_ends.append(free_us[stage])
    starts.append(tuple(block_starts))
    ends.append(tuple(block_ends))
  return BlockFlow(
    start_us=tuple(starts),
    end_us=tuple(ends),
    slot_wait_us=slot_wait_us,
    total_us=ends[-1][-1] if ends else 0.0,
  )
