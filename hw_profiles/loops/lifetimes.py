"""Where buffers are made, last used and released."""

import dataclasses
from typing import Literal

from hw_profiles import dtypes
from hw_profiles.loops.accesses import ACCUMULATOR
from hw_profiles.loops.footprint import accesses_of, fixed_loops, footprint
from hw_profiles.loops.iteration import changing_loops, loops_of
from hw_profiles.loops.nest import LoopNest


@dataclasses.dataclass(frozen=True)
class BufferLifetime:
  """One buffer of a stage.

  Attributes:
    array: What it holds a part of.
    shape: Its size.
    elements: Their number.
    bytes: In the array's dtype; an accumulator's in float32.
    created_in: The loop in each of whose iterations it is made anew; None: once.
    lives_through: Loops that run to their end before it is released.
    ends: How, at the end of an iteration of `created_in`: "replaced" by the next
      part, or "stored".
  """

  array: str
  shape: tuple[int, ...]
  elements: int
  bytes: int
  created_in: str | None
  lives_through: tuple[str, ...]
  ends: Literal["replaced", "stored"]


def buffer_lifetimes(nest: LoopNest, stage: str, *, at: str) -> tuple[BufferLifetime, ...]:
  """Buffers of a stage that works on tiles in each iteration of `at`.

  A source's tile is made where the innermost loop down to `at` changes its
  indices, and can be replaced as soon as the loops inside that have run. An
  accumulator is made before the outermost reduction loop and lives through all
  reduction loops; everything those loops write in between lives with it.

  Example: tiles of 64 x 64 x 32 in loops io, jo, ko: 4 KiB of A and of W,
  replaced for each ko; 4096 accumulators, 16 KiB, made in jo, through ko. In
  loops i, k, j a whole row of C is live, in i, j, k one element.

  Args:
    nest: The nest.
    stage: The stage whose accesses count.
    at: The loop whose iteration works on one set of tiles.

  Raises:
    ValueError: no such stage or loop.
  """
  found = nest.stage(stage)
  fixed = fixed_loops(found, at)
  reductions = loops_of(found, [axis.name for axis in found.axes if axis.kind == "reduction"])
  target = found.statement.target.array
  results = []
  for array in dict.fromkeys(access.array for access in found.accesses):
    is_sum = array == target and bool(reductions)
    if is_sum:
      outermost = min(found.order.index(loop) for loop in reductions)
      # the reduction may start inside `at`; the buffer is then one iteration's
      outside = found.order[: min(outermost, len(fixed))]
    else:
      used = [axis for access in accesses_of(found, array) for axis in access.axes]
      mine = changing_loops(found, used)
      last = max((place for place, loop in enumerate(fixed) if loop in mine), default=-1)
      outside = fixed[: last + 1]
    box = footprint(nest, stage, array, at=outside[-1] if outside else None)
    size = dtypes.size_bytes(ACCUMULATOR if is_sum else nest.dtypes[array])
    results.append(
      BufferLifetime(
        array=array,
        shape=box.shape,
        elements=box.elements,
        bytes=box.elements * size,
        created_in=outside[-1] if outside else None,
        lives_through=found.order[len(outside) :],
        ends="stored" if array == target else "replaced",
      )
    )
  return tuple(results)
