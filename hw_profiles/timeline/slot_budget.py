"""How many pipeline slots are left once other buffers and other blocks have theirs."""

import dataclasses

from hw_profiles.arguments import at_least
from hw_profiles.profile import GpuProfile
from hw_profiles.registry import resolve_gpu


@dataclasses.dataclass(frozen=True)
class SlotBudget:
  """Slots of one thread block among several resident on an SM.

  Attributes:
    wanted_bytes: All slots asked for, and the other buffers.
    budget_bytes: What one block may ask for so that all are resident.
    fitting_slots: Slots that fit; may exceed those wanted, and is 0 where the
      other buffers already take too much.
    num_slots: Slots the block gets: the lesser of wanted and fitting.
  """

  wanted_bytes: int
  budget_bytes: int
  fitting_slots: int
  num_slots: int


def slot_budget(
  gpu: str | GpuProfile,
  *,
  resident_blocks: int,
  slot_bytes: int,
  wanted_slots: int,
  other_bytes: int = 0,
) -> SlotBudget:
  """slots = ⌊(budget - other) / slot_bytes⌋.

      budget = min(what one block may have, shared per SM / blocks - reserve)

  with each block's allocation, reserve included, rounded down to the unit of
  allocation. With fewer slots than two a mover waits for each block's compute:
  `pipeline(num_slots=...)` says what that backpressure costs.

  Example (RTX PRO 6000): three slots of 16 KiB and 32 KiB to reorder need
  80 KiB, which one block has; two blocks on an SM have 49 KiB each, one slot.

  Args:
    gpu: The device or its name.
    resident_blocks: Blocks that share the SM.
    slot_bytes: One slot.
    wanted_slots: Slots the pipeline would use.
    other_bytes: What the block keeps in shared memory besides.

  Raises:
    ValueError: `gpu` is no GPU, or another argument is out of range.
  """
  gpu = resolve_gpu(gpu)
  at_least("resident_blocks", resident_blocks, 1)
  at_least("slot_bytes", slot_bytes, 1)
  at_least("wanted_slots", wanted_slots, 0)
  at_least("other_bytes", other_bytes, 0)
  if resident_blocks > gpu.max_blocks_per_sm:
    raise ValueError(
      f"resident_blocks={resident_blocks}: an SM of {gpu.name} holds at most"
      f" {gpu.max_blocks_per_sm}"
    )
  unit = gpu.shared_granularity_bytes
  allocation = gpu.shared_bytes_per_sm // resident_blocks // unit * unit
  budget = min(
    gpu.max_shared_bytes_per_block, max(0, allocation - gpu.reserved_shared_bytes_per_block)
  )
  fitting = max(0, budget - other_bytes) // slot_bytes
  return SlotBudget(
    wanted_bytes=wanted_slots * slot_bytes + other_bytes,
    budget_bytes=budget,
    fitting_slots=fitting,
    num_slots=min(wanted_slots, fitting),
  )
