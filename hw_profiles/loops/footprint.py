"""Which part of an array a piece of a loop nest touches."""

import dataclasses
import itertools
import math
from collections.abc import Mapping

from hw_profiles import dtypes
from hw_profiles.loops.affine import Access
from hw_profiles.loops.iteration import axis_intervals, loop_extents, loops_of
from hw_profiles.loops.nest import Fuse, LoopNest, Split, Stage


@dataclasses.dataclass(frozen=True)
class Footprint:
  """The box of an array that one access touches while some loops run.

  Attributes:
    array: The array.
    shape: Its size in each dimension, where no tail is short.
    elements: Their product.
    bytes: The same in bytes.
  """

  array: str
  shape: tuple[int, ...]
  elements: int
  bytes: int


def fixed_loops(stage: Stage, at: str | None) -> tuple[str, ...]:
  """Loops from the outermost to `at`; none for None.

  Raises:
    ValueError: the stage has no such loop.
  """
  if at is None:
    return ()
  if at not in stage.order:
    raise ValueError(f"at={at!r}: {stage.name} has {', '.join(stage.order)}")
  return stage.order[: stage.order.index(at) + 1]


def footprint(nest: LoopNest, stage: str, array: str, *, at: str | None = None) -> Footprint:
  """What the loops inside `at` touch of an array, in one iteration of it.

  From the index expressions: Σ coefficient·axis over the ranges that the axes
  still have. The smallest box; an index like 2·i skips elements inside it.
  Sources of the same array count together.

  Example: tiles of 64 x 64 with chunks of 32 need 64 x 32 of A, 32 x 64 of W
  and 64 x 64 of C.

  Args:
    nest: The nest.
    stage: The stage whose accesses count.
    array: One it reads or writes.
    at: The innermost loop that is held fixed; None: all loops run.

  Raises:
    ValueError: no such stage, array or loop.
  """
  found = nest.stage(stage)
  accesses = accesses_of(found, array)
  fixed = dict.fromkeys(fixed_loops(found, at), 0)
  ranges = axis_intervals(found, loop_extents(found, found.extents), fixed)
  boxes = [[index.interval(ranges) for index in access.indices] for access in accesses]
  shape = tuple(
    max(high for _, high in sides) - min(low for low, _ in sides) + 1
    for sides in zip(*boxes, strict=True)
  )
  elements = math.prod(shape)
  return Footprint(array, shape, elements, elements * dtypes.size_bytes(nest.dtypes[array]))


def accesses_of(stage: Stage, array: str) -> tuple[Access, ...]:
  """The stage's accesses to one array.

  Raises:
    ValueError: it has none.
  """
  accesses = tuple(access for access in stage.accesses if access.array == array)
  if not accesses:
    known = ", ".join(dict.fromkeys(access.array for access in stage.accesses))
    raise ValueError(f"array={array!r}: {stage.name} uses {known}")
  return accesses


def basic_order(stage: Stage, loops: tuple[str, ...]) -> tuple[str, ...]:
  """`loops` with each fused loop replaced by the two that it stands for.

  Raises:
    ValueError: a fused loop was split, so that it no longer stands for whole
      loops.
  """
  made = {relation.fused: relation for relation in stage.relations if isinstance(relation, Fuse)}
  split = {relation.parent for relation in stage.relations if isinstance(relation, Split)}
  result: list[str] = []
  pending = list(reversed(loops))
  while pending:
    loop = pending.pop()
    if loop in made:
      pending.extend((made[loop].inner, made[loop].outer))
    else:
      result.append(loop)
  cut = sorted(set(made) & split)
  if cut:
    raise ValueError(
      f"loop={cut[0]!r} of {stage.name}: a fused loop that was split; its tiles are no boxes"
    )
  return tuple(result)


def without_fusions(stage: Stage) -> Stage:
  """The stage with its fused loops taken apart: the same iterations in the same order."""
  return dataclasses.replace(
    stage,
    relations=tuple(r for r in stage.relations if isinstance(r, Split)),
    order=basic_order(stage, stage.order),
  )


def tile_sizes(
  stage: Stage, extents: Mapping[str, int], axis: str, fixed: tuple[str, ...]
) -> tuple[int, ...]:
  """Sizes of the ranges that one axis takes, over all values of the fixed loops.

  Empty ones, beyond the end of a split that does not divide, are left out.
  """
  mine = [loop for loop in fixed if loop in loops_of(stage, (axis,))]
  sizes = []
  for values in itertools.product(*(range(extents[loop]) for loop in mine)):
    low, high = axis_intervals(stage, extents, dict(zip(mine, values, strict=True)))[axis]
    if low <= high:
      sizes.append(high - low + 1)
  return tuple(sizes)
