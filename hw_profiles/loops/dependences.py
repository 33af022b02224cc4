"""Which iterations must run before which others."""

import dataclasses
from typing import Literal

from hw_profiles.loops.affine import Access
from hw_profiles.loops.nest import LoopNest, Stage


@dataclasses.dataclass(frozen=True)
class Dependence:
  """An order that every rearrangement has to keep.

  Attributes:
    kind: "flow": a stage reads what another wrote, once it is complete.
      "reduction": the iterations update one element; they may change places as
      far as the sum may. "recurrence": an iteration reads what an earlier one
      of its own stage wrote.
    array: The array between them.
    source: The stage that writes.
    sink: The stage that reads or updates; for the last two kinds the same.
    axes: The axes along which it runs: those of the reduction, or those whose
      distance is not 0; empty for a flow.
    distance: For a recurrence, how far apart the iterations are in each of the
      target's axes; None where it is not the same everywhere.
  """

  kind: Literal["flow", "reduction", "recurrence"]
  array: str
  source: str
  sink: str
  axes: tuple[str, ...]
  distance: tuple[int, ...] | None = None


def dependences(nest: LoopNest) -> tuple[Dependence, ...]:
  """All dependences of a nest, in the order of the stages that wait.

  Axes that no reduction or recurrence names are free: their iterations may run
  in any order and at once. In C[i, j] = Σ A[i, k]·W[k, j] those are i and j.
  """
  found: list[Dependence] = []
  for position, stage in enumerate(nest.stages):
    target = stage.statement.target
    writers = {other.statement.target.array: other.name for other in nest.stages[:position]}
    read = dict.fromkeys(source.array for source in stage.statement.sources)
    found.extend(
      Dependence("flow", array, writers[array], stage.name, ())
      for array in read
      if array in writers and array != target.array
    )
    reduced = tuple(axis.name for axis in stage.axes if axis.kind == "reduction")
    if reduced:
      found.append(Dependence("reduction", target.array, stage.name, stage.name, reduced))
    found.extend(
      _recurrence(stage, source)
      for source in stage.statement.sources
      if source.array == target.array
    )
  return tuple(found)


def _recurrence(stage: Stage, source: Access) -> Dependence:
  target = stage.statement.target
  axes = tuple(index.axes[0] for index in target.indices)
  steps = [
    written.plus(read, -1) for written, read in zip(target.indices, source.indices, strict=True)
  ]
  if any(step.terms for step in steps):
    return Dependence("recurrence", target.array, stage.name, stage.name, axes)
  distance = tuple(step.constant for step in steps)
  moving = tuple(axis for axis, step in zip(axes, distance, strict=True) if step)
  return Dependence("recurrence", target.array, stage.name, stage.name, moving, distance)
