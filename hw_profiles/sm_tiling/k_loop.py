"""The K loop of a tiled kernel as a sequence of operations: order, barriers, buffers."""

import dataclasses
from typing import Literal

from hw_profiles.arguments import at_least, ceil_div, few_enough, positive

# A scheduler of Volta has 16 float32 lanes, so a warp's FFMA takes two cycles.
FFMA_ISSUE_CYCLES = 2

Operation = Literal["ldg", "sts", "lds", "ffma", "barrier"]


@dataclasses.dataclass(frozen=True)
class KLoopEvent:
  """One operation of every thread of the block.

  Attributes:
    operation: "ldg": next operands from global memory to registers. "sts": from
      there to shared memory. "lds": one step's fragments from shared memory.
      "ffma": one step's outer product. "barrier": all threads wait.
    tile: Which step of block_k it serves; a "barrier" carries the tile whose
      operands it guards.
    step: Which of the tile's block_k steps, for "lds" and "ffma"; else 0.
    buffer: Of shared memory ("sts", "lds") or of fragments ("ffma"); else 0.
    fragment_buffer: Written by "lds", read by "ffma"; else 0.
    used: Whether a later operation needs it: the last "lds" of a double-buffered
      loop reads a buffer that nobody filled, and nothing reads its result.
  """

  operation: Operation
  tile: int
  step: int = 0
  buffer: int = 0
  fragment_buffer: int = 0
  used: bool = True


@dataclasses.dataclass(frozen=True)
class KLoop:
  """The operations of a block along K.

  Attributes:
    events: In program order.
    tiles: Steps of block_k.
    prologue_barriers: Before the loop.
    loop_barriers: In the loop.
    unused_loads: "lds" whose fragments nothing uses.
  """

  events: tuple[KLoopEvent, ...]
  tiles: int
  prologue_barriers: int
  loop_barriers: int
  unused_loads: int


def k_loop(*, k: int, block_k: int, shared_buffers: Literal[1, 2]) -> KLoop:
  """Program order of a kernel that stages operands through registers.

  One buffer: load, store, barrier, all steps, barrier. The first barrier keeps
  the steps from reading what has not arrived, the second the next store from
  overwriting what is still read: 2·⌈k / block_k⌉.

  Two buffers: the next tile's global loads are issued before this one's steps
  and stored into the other buffer after them, so their latency passes under the
  multiply-adds; one barrier a tile is enough, and one before the loop. Within a
  tile the fragments of step p + 1 load into the other fragment buffer while
  step p is computed; with block_k = 1 there is no such step, and nothing hides
  the fragment loads. After the last tile the loop reads fragments once more from
  a buffer that was not filled again; nothing uses them.

  Example: k = 4096 in steps of 8: 1024 barriers with one buffer, 512 (and the
  one before) with two.

  Args:
    k: Depth; 0 or more.
    block_k: Depth of a tile; at least 1. A last tile that is cut off is filled
      with zeros and computed whole.
    shared_buffers: 1 or 2.

  Raises:
    ValueError: an argument is out of range.
  """
  at_least("k", k, 0)
  at_least("block_k", block_k, 1)
  if shared_buffers not in (1, 2):
    raise ValueError(f"shared_buffers={shared_buffers!r}: expected 1 or 2")
  tiles = ceil_div(k, block_k)
  few_enough("k", tiles * block_k, instead="a longer loop repeats the same tiles")
  events: list[KLoopEvent] = []
  if shared_buffers == 1:
    for tile in range(tiles):
      events += [KLoopEvent("ldg", tile), KLoopEvent("sts", tile), KLoopEvent("barrier", tile)]
      for step in range(block_k):
        events += [KLoopEvent("lds", tile, step), KLoopEvent("ffma", tile, step)]
      events.append(KLoopEvent("barrier", tile))
  elif tiles:
    events += [KLoopEvent("ldg", 0), KLoopEvent("sts", 0), KLoopEvent("barrier", 0)]
    events.append(KLoopEvent("lds", 0))
    for tile in range(tiles):
      events += _double_buffered_tile(tile, block_k, is_last=tile + 1 == tiles)
  barriers = sum(1 for event in events if event.operation == "barrier")
  prologue = 1 if shared_buffers == 2 and tiles else 0
  return KLoop(
    events=tuple(events),
    tiles=tiles,
    prologue_barriers=prologue,
    loop_barriers=barriers - prologue,
    unused_loads=sum(1 for event in events if not event.used),
  )


def _double_buffered_tile(tile: int, block_k: int, *, is_last: bool) -> list[KLoopEvent]:
  buffer, other = tile % 2, (tile + 1) % 2
  events = []
  for step in range(block_k):
    if step + 1 < block_k:
      events.append(KLoopEvent("lds", tile, step + 1, buffer, (step + 1) % 2))
    if step == 0 and not is_last:
      events.append(KLoopEvent("ldg", tile + 1))
    events.append(KLoopEvent("ffma", tile, step, buffer, step % 2))
  if not is_last:
    events.append(KLoopEvent("sts", tile + 1, buffer=other))
  events.append(KLoopEvent("barrier", tile + 1))
  events.append(KLoopEvent("lds", tile + 1, buffer=other, used=not is_last))
  return events


def register_pipeline(*, block_k: int) -> tuple[tuple[int | None, int | None], ...]:
  """Pairs (step computed, step loaded) of a loop that double-buffers fragments.

  Iteration p computes step p - 1 from buffer (p - 1) mod 2 while it loads step
  p into buffer p mod 2: block_k + 1 iterations, the first without a step to
  compute, the last without one to load.

  Raises:
    ValueError: `block_k` is below 1.
  """
  at_least("block_k", block_k, 1)
  few_enough("block_k", block_k, instead="each step reads what the one before it wrote")
  at_least("block_k", block_k, 1)
  return tuple((p - 1 if p > 0 else None, p if p < block_k else None) for p in range(block_k + 1))


@dataclasses.dataclass(frozen=True)
class LatencyCover:
  """Multiply-adds that pass while a load is under way.

  Attributes:
    ffma_cycles: Issue cycles of one warp's multiply-adds.
    coverage: ffma_cycles / latency; from 1 on the warp hides the load alone.
  """

  ffma_cycles: int
  coverage: float


def latency_cover(
  *,
  thread_m: int,
  thread_n: int,
  steps: int,
  latency_cycles: float,
  issue_cycles: int = FFMA_ISSUE_CYCLES,
) -> LatencyCover:
  """steps · thread_m · thread_n · issue cycles of one warp, against a latency.

  Example (V100, 8 x 8 outputs): a tile of 8 steps takes 1024 cycles, above the
  300 to 500 of a global load; one step takes 128, above the 20 to 30 of a
  shared load.

  Args:
    thread_m: Rows of C a thread computes; at least 1, as all sizes.
    thread_n: Columns of C a thread computes.
    steps: block_k for a global load, 1 for a shared one.
    latency_cycles: Of the load; above 0.
    issue_cycles: Between a warp's multiply-adds.

  Raises:
    ValueError: an argument is out of range.
  """
  for name, value in (
    ("thread_m", thread_m),
    ("thread_n", thread_n),
    ("steps", steps),
    ("issue_cycles", issue_cycles),
  ):
    at_least(name, value, 1)
  positive("latency_cycles", latency_cycles)
  cycles = steps * thread_m * thread_n * issue_cycles
  return LatencyCover(ffma_cycles=cycles, coverage=cycles / latency_cycles)
