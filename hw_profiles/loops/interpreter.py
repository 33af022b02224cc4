"""Runs a small nest, statement by statement, in the order its loops give."""

import collections
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from hw_profiles.loops.affine import Interval
from hw_profiles.loops.arithmetic import Arithmetic, Index, Numbers
from hw_profiles.loops.iteration import axis_intervals, axis_values, loop_extents
from hw_profiles.loops.nest import LoopNest, Stage

MAX_STATEMENTS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Execution:
  """What a run left behind.

  Attributes:
    arrays: Every array written, by index: all elements, also those of an array
      that only a part of is kept at a time.
    executions: How often each stage's statement ran.
    element_reads: Elements read, by array, each time counted.
    element_writes: Elements written, by array; a reduction's once, complete.
  """

  arrays: dict[str, dict[Index, Any]]
  executions: dict[str, int]
  element_reads: dict[str, int]
  element_writes: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Region:
  """The part of a stage's iterations that one run of it covers."""

  lowest: dict[str, int]
  extents: dict[str, int]


def run(
  nest: LoopNest,
  inputs: Mapping[str, object],
  *,
  accumulator: str | None = None,
  max_statements: int = MAX_STATEMENTS,
) -> Execution:
  """Runs the nest on numbers: Fractions stay exact, and so do ints.

  A reduction starts with its first term and is rounded, if at all, after its
  last. A stage inside a loop of another computes the region that iteration reads.

  Args:
    nest: What is run.
    inputs: Array to nested sequences, or to a mapping from index to number.
    accumulator: Format of every partial sum; None: sums are exact.
    max_statements: The most statements to run.

  Raises:
    ValueError: an element is read that has no value, or the nest is larger than
      `max_statements`.
  """
  return run_on(nest, Numbers(inputs, accumulator), max_statements=max_statements)


def run_on(
  nest: LoopNest, arithmetic: Arithmetic, *, max_statements: int = MAX_STATEMENTS
) -> Execution:
  """`run` on the values of any arithmetic."""
  machine = _Machine(nest, arithmetic, max_statements)
  for stage in nest.stages:
    if stage.location is None:
      machine.stage(stage, Region(dict.fromkeys(stage.extents, 0), stage.extents), {})
  return machine.execution


class _Machine:
  def __init__(self, nest: LoopNest, arithmetic: Arithmetic, max_statements: int) -> None:
    self._nest = nest
    self._arithmetic = arithmetic
    self._statements_left = max_statements
    self._inside: dict[tuple[str, str], list[Stage]] = collections.defaultdict(list)
    for stage in nest.stages:
      if stage.location is not None:
        self._inside[stage.location.stage, stage.location.loop].append(stage)
    self.execution = Execution(
      arrays={},
      executions=collections.Counter(),
      element_reads=collections.Counter(),
      element_writes=collections.Counter(),
    )

  def stage(self, stage: Stage, region: Region, outside: Mapping[str, int]) -> None:
    """Runs one stage over a region, given the loops around it."""
    extents = loop_extents(stage, region.extents)
    target = stage.statement.target
    if stage.location is not None and target.array not in (
      source.array for source in stage.statement.sources
    ):
      self.execution.arrays[target.array] = {}
    terms = math.prod(region.extents[axis.name] for axis in stage.axes if axis.kind == "reduction")
    progress: collections.Counter[Index] = collections.Counter()

    def walk(depth: int, loops: dict[str, int]) -> None:
      if depth == len(stage.order):
        local = axis_values(stage, extents, loops)
        if local is not None:
          shifted = {name: region.lowest[name] + local[name] for name in region.extents}
          self._statement(stage, {**outside, **local, **shifted}, progress, terms)
        return
      loop = stage.order[depth]
      for value in range(extents[loop]):
        here = {**loops, loop: value}
        for inner in self._inside[stage.name, loop]:
          self._attached(inner, stage, region, extents, here, outside)
        walk(depth + 1, here)

    walk(0, {})

  def _attached(
    self,
    stage: Stage,
    host: Stage,
    host_region: Region,
    host_extents: Mapping[str, int],
    loops: Mapping[str, int],
    outside: Mapping[str, int],
  ) -> None:
    values = {**outside, **loops}
    ranges: dict[str, Interval] = {name: (value, value) for name, value in values.items()}
    for name, (low, high) in axis_intervals(host, host_extents, loops).items():
      start = host_region.lowest[name]
      ranges[name] = (start + low, start + high)
      if low > high:
        return
    region = needed_region(stage, host, ranges, values)
    if region is not None:
      self.stage(stage, region, values)

  def _statement(
    self,
    stage: Stage,
    values: Mapping[str, int],
    progress: collections.Counter[Index],
    terms: int,
  ) -> None:
    self._statements_left -= 1
    if self._statements_left < 0:
      raise ValueError("nest: more statements than max_statements; expected a smaller instance")
    statement, done = stage.statement, self.execution
    done.executions[stage.name] += 1
    operands = []
    for source in statement.sources:
      index = source.at(values)
      done.element_reads[source.array] += 1
      written = done.arrays.get(source.array, {})
      operands.append(
        written[index] if index in written else self._arithmetic.initial(source.array, index)
      )
    value = self._arithmetic.apply(statement.operation, operands)
    index = statement.target.at(values)
    array = done.arrays.setdefault(statement.target.array, {})
    progress[index] += 1
    if statement.combine is not None and progress[index] > 1:
      value = self._arithmetic.combine(statement.combine, array[index], value)
    if progress[index] == terms:
      done.element_writes[statement.target.array] += 1
      if statement.rounding is not None:
        value = self._arithmetic.round(statement.rounding, value)
    array[index] = value


def needed_region(
  stage: Stage, host: Stage, ranges: Mapping[str, Interval], values: Mapping[str, int]
) -> Region | None:
  """What `host` reads of the stage's target while its axes have these ranges.

  None where that is nothing. Reductions are always whole, or as long as their
  limit allows.
  """
  target = stage.statement.target
  lowest, highest = {}, {}
  for axis in stage.axes:
    if axis.kind == "reduction":
      limit = axis.extent if axis.limit is None else axis.limit.at(values)
      lowest[axis.name], highest[axis.name] = 0, min(axis.extent, limit) - 1
      continue
    place = next(d for d, index in enumerate(target.indices) if index.axes == (axis.name,))
    read = [
      source.indices[place].interval(ranges)
      for source in host.statement.sources
      if source.array == target.array
    ]
    lowest[axis.name] = max(min(low for low, _ in read), 0)
    highest[axis.name] = min(max(high for _, high in read), axis.extent - 1)
  extents = {name: highest[name] - lowest[name] + 1 for name in lowest}
  return None if min(extents.values()) < 1 else Region(lowest, extents)
