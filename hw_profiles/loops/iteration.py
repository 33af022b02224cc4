"""From the values of loops to the values of axes, through splits and fusions."""

from collections.abc import Iterable, Mapping

from hw_profiles.arguments import ceil_div
from hw_profiles.loops.affine import Interval
from hw_profiles.loops.nest import Split, Stage


def loop_extents(stage: Stage, axis_extents: Mapping[str, int]) -> dict[str, int]:
  """Sizes of all axes and loops, given those of the stage's axes."""
  extents = dict(axis_extents)
  for relation in stage.relations:
    if isinstance(relation, Split):
      parent = extents[relation.parent]
      extents[relation.outer] = ceil_div(parent, relation.factor)
      extents[relation.inner] = min(relation.factor, parent)
    else:
      extents[relation.fused] = extents[relation.outer] * extents[relation.inner]
  return extents


def axis_values(
  stage: Stage, extents: Mapping[str, int], loops: Mapping[str, int]
) -> dict[str, int] | None:
  """Values of the axes where the loops have these; None beyond the end of one.

  Args:
    stage: Whose loops.
    extents: `loop_extents`.
    loops: A value for each of the stage's loops.
  """
  values = dict(loops)
  for relation in reversed(stage.relations):
    if isinstance(relation, Split):
      parent = relation.factor * values[relation.outer] + values[relation.inner]
      # also of an axis that was split itself: its excess would repeat its successor
      if parent >= extents[relation.parent]:
        return None
      values[relation.parent] = parent
    else:
      values[relation.outer], values[relation.inner] = divmod(
        values[relation.fused], extents[relation.inner]
      )
  return values


def axis_intervals(
  stage: Stage, extents: Mapping[str, int], fixed: Mapping[str, int]
) -> dict[str, Interval]:
  """Ranges of the axes while the loops not in `fixed` run; empty ones included.

  The hull: an axis whose inner loop is fixed and whose outer loop runs has
  gaps, which the range contains.
  """
  ranges: dict[str, Interval] = {
    loop: (fixed[loop], fixed[loop]) if loop in fixed else (0, extents[loop] - 1)
    for loop in stage.order
  }
  for relation in reversed(stage.relations):
    if isinstance(relation, Split):
      outer, inner = ranges[relation.outer], ranges[relation.inner]
      highest = min(relation.factor * outer[1] + inner[1], extents[relation.parent] - 1)
      ranges[relation.parent] = (relation.factor * outer[0] + inner[0], highest)
    else:
      size = extents[relation.inner]
      lowest, highest = ranges[relation.fused]
      first, last = lowest // size, highest // size
      ranges[relation.outer] = (first, last)
      ranges[relation.inner] = (lowest % size, highest % size) if first == last else (0, size - 1)
  return {axis.name: ranges[axis.name] for axis in stage.axes}


def changing_loops(stage: Stage, axes: Iterable[str]) -> frozenset[str]:
  """`loops_of` without those that run only once and so change nothing."""
  extents = loop_extents(stage, stage.extents)
  return frozenset(loop for loop in loops_of(stage, axes) if extents[loop] > 1)


def loops_of(stage: Stage, axes: Iterable[str]) -> frozenset[str]:
  """Loops that the values of `axes` depend on."""
  found = set(axes)
  for relation in stage.relations:
    if isinstance(relation, Split) and relation.parent in found:
      found |= {relation.outer, relation.inner}
    elif not isinstance(relation, Split) and {relation.outer, relation.inner} & found:
      found.add(relation.fused)
  return frozenset(found & set(stage.order))
