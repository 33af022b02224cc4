"""Rearranging loops: each function returns a new nest."""

import dataclasses
from collections.abc import Sequence

from hw_profiles.arguments import at_least
from hw_profiles.loops.nest import Fuse, Location, LoopNest, Split, Stage


def _position(stage: Stage, loop: str) -> int:
  if loop not in stage.order:
    raise ValueError(
      f"loop={loop!r}: {stage.name} has {', '.join(stage.order)}; split or fused loops are gone"
    )
  return stage.order.index(loop)


def _check_new(stage: Stage, *names: str) -> None:
  taken = {axis.name for axis in stage.axes}
  for relation in stage.relations:
    made = (relation.outer, relation.inner) if isinstance(relation, Split) else (relation.fused,)
    taken.update(made)
  for name in names:
    if name in taken or names.count(name) > 1:
      raise ValueError(f"loop name {name!r}: {stage.name} has it already; expected a new one")


def split(
  nest: LoopNest,
  stage: str,
  loop: str,
  factor: int,
  *,
  outer: str | None = None,
  inner: str | None = None,
) -> LoopNest:
  """loop = factor·outer + inner, the two in its place; the last chunk may be short.

  Args:
    nest: What is changed.
    stage: Name of the stage.
    loop: The loop to split.
    factor: Iterations of the inner loop, at least 1.
    outer: Name of the outer loop; None: the loop's with "o" behind it.
    inner: Name of the inner loop; None: with "i".

  Raises:
    ValueError: no such stage or loop, a factor below 1, or a name that is taken.
  """
  changed = nest.stage(stage)
  position = _position(changed, loop)
  at_least("factor", factor, 1)
  relation = Split(loop, outer or f"{loop}o", inner or f"{loop}i", factor)
  _check_new(changed, relation.outer, relation.inner)
  order = list(changed.order)
  order[position : position + 1] = [relation.outer, relation.inner]
  return nest.replace(
    dataclasses.replace(changed, relations=(*changed.relations, relation), order=tuple(order))
  )


def reorder(nest: LoopNest, stage: str, order: Sequence[str]) -> LoopNest:
  """The loops in the order given; those not named keep their places.

  Iterations of parallel axes may run in any order. A reduction adds its terms
  in the order in which the loops reach them: see `check_legality`.

  Raises:
    ValueError: no such stage or loop, or a loop is named twice.
  """
  changed = nest.stage(stage)
  places = sorted(_position(changed, loop) for loop in order)
  if len(set(places)) != len(places):
    raise ValueError(f"order={tuple(order)}: a loop is named twice; expected each once")
  loops = list(changed.order)
  for place, loop in zip(places, order, strict=True):
    loops[place] = loop
  return nest.replace(dataclasses.replace(changed, order=tuple(loops)))


def fuse(
  nest: LoopNest, stage: str, outer: str, inner: str, *, fused: str | None = None
) -> LoopNest:
  """One loop for two neighbours: fused = (size of inner)·outer + inner.

  Example: 16 x 192 tiles become one loop of 3072, dealt out to thread blocks.

  Args:
    nest: What is changed.
    stage: Name of the stage.
    outer: The outer of the two.
    inner: The loop directly inside it.
    fused: Its name; None: both names joined by "_".

  Raises:
    ValueError: no such stage or loop, the loops are not neighbours, or the name
      is taken.
  """
  changed = nest.stage(stage)
  position = _position(changed, outer)
  if _position(changed, inner) != position + 1:
    raise ValueError(
      f"inner={inner!r}: expected the loop directly inside {outer!r} in"
      f" {', '.join(changed.order)}; reorder first"
    )
  relation = Fuse(outer, inner, fused or f"{outer}_{inner}")
  _check_new(changed, relation.fused)
  order = list(changed.order)
  order[position : position + 2] = [relation.fused]
  return nest.replace(
    dataclasses.replace(changed, relations=(*changed.relations, relation), order=tuple(order))
  )


def compute_at(nest: LoopNest, producer: str, consumer: str, loop: str) -> LoopNest:
  """Runs `producer` inside loop `loop` of `consumer`, for what that iteration reads.

  The region follows from the consumer's accesses. What several iterations
  read is computed by each: less to keep, more to compute.

  Args:
    nest: What is changed.
    producer: The stage that moves; only `consumer` may read what it writes.
    consumer: The stage it moves into.
    loop: The consumer's loop; the producer runs before the loops inside it.

  Raises:
    ValueError: no such stage or loop, `consumer` does not read it, another
      stage does, or it runs before the stage would have.
  """
  moved, host = nest.stage(producer), nest.stage(consumer)
  _position(host, loop)
  array = moved.statement.target.array
  readers = [
    other.name
    for other in nest.stages
    if other.name != producer and array in (access.array for access in other.statement.sources)
  ]
  if readers != [consumer]:
    raise ValueError(
      f"consumer={consumer!r}: {array} of {producer} is read by {', '.join(readers) or 'none'};"
      " expected its only reader"
    )
  names = [other.name for other in nest.stages]
  if names.index(producer) > names.index(consumer):
    raise ValueError(f"producer={producer!r}: it runs after {consumer}; expected an earlier stage")
  return nest.replace(dataclasses.replace(moved, location=Location(consumer, loop)))
