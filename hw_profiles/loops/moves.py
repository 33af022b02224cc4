"""Moves that look like scheduling and change more: what a legality check must catch."""

import dataclasses

from hw_profiles.arguments import at_least, ceil_div
from hw_profiles.loops.affine import Affine
from hw_profiles.loops.nest import Axis, Location, LoopNest, axis_index
from hw_profiles.loops.transform import compute_at, split


def without_rounding(nest: LoopNest, stage: str) -> LoopNest:
  """The nest with the stage's result passed on as it is, not rounded.

  Where a value is kept and which format it has are two choices: a value that
  stays in a register is still to be rounded.

  Raises:
    ValueError: no such stage, or it does not round.
  """
  changed = nest.stage(stage)
  if changed.statement.rounding is None:
    raise ValueError(f"stage={stage!r}: it does not round its result")
  statement = dataclasses.replace(changed.statement, rounding=None)
  return nest.replace(dataclasses.replace(changed, statement=statement))


def consume_partial(
  nest: LoopNest,
  *,
  producer: str,
  consumer: str,
  axis: str,
  factor: int,
  along: str | None = None,
) -> LoopNest:
  """Moves `consumer` into a chunked reduction loop of `producer`.

  The producer reduces `factor` terms, the consumer takes that partial result,
  and so on with the next chunk. With `along` the consumer works on its own
  elements of the chunk; without, it runs once a chunk, and its results are
  combined as the producer would have combined its terms.

  Right only if the consumer's operation and the reduction may change places,
  as a multiplication by a constant and a sum may; silu and a sum may not.

  Args:
    nest: What is changed.
    producer: The stage that reduces.
    consumer: The only stage that reads its result; no reduction itself.
    axis: The producer's reduction axis.
    factor: Terms in a chunk, at least 1.
    along: The consumer's axis that runs along the reduction, of the same size.

  Raises:
    ValueError: no such stage or axis, or the stages are not as described.
  """
  at_least("factor", factor, 1)
  reducer, taker = nest.stage(producer), nest.stage(consumer)
  reduced = reducer.axis(axis)
  if reduced.kind != "reduction":
    raise ValueError(f"axis={axis!r}: a parallel axis of {producer}; expected a reduction axis")
  if taker.statement.combine is not None:
    raise ValueError(f"consumer={consumer!r}: it reduces itself; expected one that does not")
  chunk = f"{axis}_chunk"
  start = Affine.of({chunk: factor})
  if along is None:
    chunks = Axis(chunk, ceil_div(reduced.extent, factor), "reduction")
    changed = nest.replace(
      dataclasses.replace(
        taker,
        axes=(*taker.axes, chunks),
        order=(*taker.order, chunk),
        statement=dataclasses.replace(taker.statement, combine=reducer.statement.combine),
      )
    )
  else:
    if taker.axis(along).extent != reduced.extent:
      raise ValueError(
        f"along={along!r}: {taker.axis(along).extent} iterations, {axis} of {producer} has"
        f" {reduced.extent}; expected as many"
      )
    changed = split(nest, consumer, along, factor, outer=chunk)
  changed = compute_at(changed, producer, consumer, chunk)

  limit = Affine((), reduced.extent).plus(start, -1)
  chunked = Axis(axis, min(factor, reduced.extent), "reduction", limit)
  within = axis_index(axis).plus(start)
  statement = dataclasses.replace(
    reducer.statement,
    sources=tuple(source.substitute(axis, within) for source in reducer.statement.sources),
  )
  return changed.replace(
    dataclasses.replace(
      reducer,
      axes=tuple(chunked if other.name == axis else other for other in reducer.axes),
      statement=statement,
      location=Location(consumer, chunk),
    )
  )
