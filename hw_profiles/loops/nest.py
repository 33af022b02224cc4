"""Loop nests: stages of one statement each, with the loops that run it."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Literal

from hw_profiles.arguments import at_least
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.loops.affine import Access, Affine, parse_access
from hw_profiles.loops.operations import ScalarOperation
from hw_profiles.loops.rounding import check_format

AxisKind = Literal["parallel", "reduction"]
Combine = Literal["sum", "max"]
COMBINES: tuple[Combine, ...] = ("sum", "max")


@dataclasses.dataclass(frozen=True)
class Axis:
  """One dimension of a stage's iterations, 0 to extent - 1.

  Attributes:
    name: What accesses call it.
    extent: Its size, at least 1.
    kind: "parallel": its iterations write different elements. "reduction":
      they contribute to the same one.
    limit: A second bound on the size, in loops of the stage that this one runs
      inside: the size of the last, incomplete chunk.
  """

  name: str
  extent: int
  kind: AxisKind = "parallel"
  limit: Affine | None = None

  def __post_init__(self) -> None:
    at_least(f"extent of axis {self.name}", self.extent, 1)
    if self.kind not in ("parallel", "reduction"):
      raise ValueError(f"kind={self.kind!r} of axis {self.name}: expected parallel or reduction")


@dataclasses.dataclass(frozen=True)
class Split:
  """parent = factor·outer + inner."""

  parent: str
  outer: str
  inner: str
  factor: int


@dataclasses.dataclass(frozen=True)
class Fuse:
  """fused = (size of inner)·outer + inner."""

  outer: str
  inner: str
  fused: str


@dataclasses.dataclass(frozen=True)
class Statement:
  """target = operation(sources), or target ⊕= operation(sources).

  Attributes:
    target: Where the result goes: plain parallel axes, one a dimension.
    sources: What is read.
    operation: What is computed of the sources.
    combine: None: assigned. "sum", "max": combined over the reduction axes.
    rounding: Format that the complete result is rounded to; None: kept exact.
  """

  target: Access
  sources: tuple[Access, ...]
  operation: ScalarOperation
  combine: Combine | None = None
  rounding: str | None = None


@dataclasses.dataclass(frozen=True)
class Location:
  """Inside loop `loop` of stage `stage`, before the loops within it."""

  stage: str
  loop: str


@dataclasses.dataclass(frozen=True)
class Stage:
  """One statement and its loops.

  Attributes:
    name: The stage's name.
    axes: What it iterates over, as the mathematics has it.
    statement: What each iteration does.
    relations: Splits and fusions, in the order in which they were made.
    order: The loops that result, outermost first.
    location: Where it runs; None: on its own, in the order of the stages.
  """

  name: str
  axes: tuple[Axis, ...]
  statement: Statement
  relations: tuple[Split | Fuse, ...] = ()
  order: tuple[str, ...] = ()
  location: Location | None = None

  def __post_init__(self) -> None:
    statement = self.statement
    names = [axis.name for axis in self.axes]
    if len(set(names)) != len(names):
      raise ValueError(f"axes of {self.name}: {names}; expected different names")
    if statement.combine is not None and statement.combine not in COMBINES:
      raise ValueError(
        f"combine={statement.combine!r} of {self.name}: expected None or one of"
        f" {', '.join(COMBINES)}"
      )
    check_format(f"rounding of {self.name}", statement.rounding)
    parallel = {axis.name for axis in self.axes if axis.kind == "parallel"}
    plain = [index.axes[0] for index in statement.target.indices if index in map(axis_index, names)]
    if len(plain) != len(statement.target.indices) or sorted(plain) != sorted(parallel):
      raise ValueError(
        f"target {statement.target} of {self.name}: expected each of the parallel axes"
        f" {sorted(parallel)} as one index, and nothing else"
      )
    if (statement.combine is not None) != (len(parallel) < len(names)):
      raise ValueError(
        f"{self.name} has {len(names) - len(parallel)} reduction axes and"
        f" combine={statement.combine!r}; expected both or neither"
      )
    if not self.order:
      object.__setattr__(self, "order", tuple(names))

  def axis(self, name: str) -> Axis:
    """The axis called `name`.

    Raises:
      ValueError: there is none.
    """
    for axis in self.axes:
      if axis.name == name:
        return axis
    known = ", ".join(axis.name for axis in self.axes)
    raise ValueError(f"axis={name!r}: {self.name} has {known}")

  @property
  def extents(self) -> dict[str, int]:
    """Size of each axis."""
    return {axis.name: axis.extent for axis in self.axes}

  @property
  def accesses(self) -> tuple[Access, ...]:
    """Sources and target."""
    return (*self.statement.sources, self.statement.target)


def axis_index(name: str) -> Affine:
  """The index that is one axis."""
  return Affine(((name, 1),))


@dataclasses.dataclass(frozen=True)
class LoopNest:
  """Stages in the order in which they run.

  Attributes:
    stages: At least one; their names differ.
    dtypes: Array to the dtype it has in memory.

  Raises:
    ValueError: two stages share a name, or an array has no dtype.
  """

  stages: tuple[Stage, ...]
  dtypes: Mapping[str, str]

  def __post_init__(self) -> None:
    object.__setattr__(self, "dtypes", FrozenMap(self.dtypes))
    names = [stage.name for stage in self.stages]
    if not names or len(set(names)) != len(names):
      raise ValueError(f"stages: {names}; expected at least one, with different names")
    for stage in self.stages:
      for access in stage.accesses:
        if access.array not in self.dtypes:
          raise ValueError(f"dtypes has no {access.array!r}, which {stage.name} uses")

  def stage(self, name: str) -> Stage:
    """The stage called `name`.

    Raises:
      ValueError: there is none.
    """
    for stage in self.stages:
      if stage.name == name:
        return stage
    known = ", ".join(stage.name for stage in self.stages)
    raise ValueError(f"stage={name!r}: expected one of {known}")

  def replace(self, *stages: Stage) -> "LoopNest":
    """The nest with stages of the same names in their place."""
    by_name = {stage.name: stage for stage in stages}
    return dataclasses.replace(
      self, stages=tuple(by_name.get(stage.name, stage) for stage in self.stages)
    )

  @property
  def results(self) -> tuple[str, ...]:
    """Arrays that are written and that no other stage reads."""
    read = {
      access.array
      for stage in self.stages
      for access in stage.statement.sources
      if access.array != stage.statement.target.array
    }
    written = [stage.statement.target.array for stage in self.stages]
    return tuple(array for array in dict.fromkeys(written) if array not in read)


def stage(
  name: str,
  target: str,
  operation: ScalarOperation,
  sources: Iterable[str],
  *,
  extents: dict[str, int],
  combine: Combine | None = None,
  rounding: str | None = None,
) -> Stage:
  """A stage from text; axes that the target does not have are reductions.

  Example: stage("matmul", "C[i, j]", MULTIPLY, ["A[i, k]", "W[k, j]"],
  extents={"i": 4, "j": 4, "k": 8}, combine="sum").

  Args:
    name: The stage's name.
    target: The element written.
    operation: What is computed of the sources.
    sources: The elements read.
    extents: Axis to size, in loop order, outermost first.
    combine: How reduction axes combine.
    rounding: Format of the complete result.

  Raises:
    ValueError: an access is no affine access or names an axis without extent.
  """
  written = parse_access(target)
  statement = Statement(
    target=written,
    sources=tuple(parse_access(source) for source in sources),
    operation=operation,
    combine=combine,
    rounding=rounding,
  )
  for access in (written, *statement.sources):
    for axis in access.axes:
      if axis not in extents:
        raise ValueError(f"{access} of {name}: axis {axis!r} has no extent")
  axes = tuple(
    Axis(axis, extent, "parallel" if axis in written.axes else "reduction")
    for axis, extent in extents.items()
  )
  return Stage(name=name, axes=axes, statement=statement)
