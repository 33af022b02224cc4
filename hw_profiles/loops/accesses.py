"""How often tiles are loaded into a buffer, and in what pattern the innermost loop reads."""

import dataclasses
import itertools
import math
from typing import Literal

from hw_profiles import dtypes
from hw_profiles.arguments import at_least
from hw_profiles.loops.affine import Access
from hw_profiles.loops.footprint import (
  accesses_of,
  basic_order,
  fixed_loops,
  footprint,
  tile_sizes,
  without_fusions,
)
from hw_profiles.loops.iteration import axis_values, changing_loops, loop_extents
from hw_profiles.loops.nest import LoopNest, Stage
from hw_profiles.sm_tiling.coalescing import LINE_BYTES

ACCUMULATOR = "float32"  # what a sum that is not complete is kept in


@dataclasses.dataclass(frozen=True)
class TileAccess:
  """Movement between one array and a buffer that holds a tile of it.

  Attributes:
    array: The array.
    tile_shape: Size of the buffer.
    loads: Tiles brought in; for a result, partial sums that are brought back.
    stores: Tiles written out; 0 for a source.
    load_bytes: Bytes brought in; a tail tile counts what exists of it.
    store_bytes: Bytes written out.
  """

  array: str
  tile_shape: tuple[int, ...]
  loads: int
  stores: int
  load_bytes: int
  store_bytes: int


def tile_accesses(nest: LoopNest, stage: str, *, at: str) -> tuple[TileAccess, ...]:
  """Counts at the interface of buffers that are filled in each iteration of `at`.

  A tile stays until its indices change: it is loaded once for each iteration of
  the loops down to the innermost one (not inside `at`) that they depend on. A
  sum whose reduction loops run outside such a loop leaves the buffer before it
  is complete, is written in the accumulator's 4 bytes, and comes back.

  Example: 1024 x 4096 x 12288 in tiles of 64 x 64 x 32: loops io, jo, ko load
  393216 pairs of tiles, 1536 MiB of A and of W, and store C once. In the order
  io, ko, jo a tile of A serves a whole row of tiles, 8 MiB in all, but C leaves
  and returns for every ko.

  Args:
    nest: The nest.
    stage: The stage whose accesses count; not inside another stage's loop.
    at: The loop whose iteration works on one set of tiles.

  Raises:
    ValueError: no such stage or loop; a loop was fused and then split; the tiles
      of an access are no boxes; a source is accessed in two ways.
  """
  found = nest.stage(stage)
  if found.location is not None:
    raise ValueError(
      f"stage={stage!r}: it runs inside {found.location.stage}; expected one that does not"
    )
  # fused loops run in the order of the two they stand for, so those are counted
  fixed = basic_order(found, fixed_loops(found, at))
  plain = without_fusions(found)
  results = []
  for array in dict.fromkeys(access.array for access in found.accesses):
    accesses = accesses_of(plain, array)
    if len(set(accesses)) > 1:
      raise ValueError(f"array={array!r}: {stage} accesses it in several ways; expected one")
    counts = _count(plain, accesses[0], fixed)
    is_target = array == found.statement.target.array
    size = dtypes.size_bytes(nest.dtypes[array])
    partial = counts.visits - 1 if is_target else 0
    partial_bytes = counts.elements * partial * dtypes.size_bytes(ACCUMULATOR)
    results.append(
      TileAccess(
        array=array,
        tile_shape=footprint(nest, stage, array, at=at).shape,
        loads=counts.tiles * (partial if is_target else counts.visits),
        stores=counts.tiles * counts.visits if is_target else 0,
        load_bytes=partial_bytes if is_target else counts.elements * counts.visits * size,
        store_bytes=partial_bytes + counts.elements * size if is_target else 0,
      )
    )
  return tuple(results)


@dataclasses.dataclass(frozen=True)
class _Counts:
  tiles: int  # different tiles of the array
  elements: int  # of all of them together
  visits: int  # how often each is worked on with others in between


def _count(stage: Stage, access: Access, fixed: tuple[str, ...]) -> _Counts:
  extents = loop_extents(stage, stage.extents)
  used = [axis for index in access.indices for axis in index.axes]
  if len(set(used)) != len(used):
    raise ValueError(f"access {access} of {stage.name}: an axis in two indices makes no box")
  tiles = elements = 1
  for index in access.indices:
    sizes = [tile_sizes(stage, extents, axis, fixed) for axis in index.axes]
    coefficients = [abs(coefficient) for _, coefficient in index.terms]
    boxes = [
      1 + sum(c * (size - 1) for c, size in zip(coefficients, combination, strict=True))
      for combination in itertools.product(*sizes)
    ]
    tiles *= len(boxes)
    elements *= sum(boxes)
  mine = changing_loops(stage, used)
  last = max((place for place, loop in enumerate(fixed) if loop in mine), default=-1)
  others = (axis for axis in stage.extents if axis not in used)
  visits = math.prod(len(tile_sizes(stage, extents, axis, fixed[: last + 1])) for axis in others)
  return _Counts(tiles, elements, visits)


@dataclasses.dataclass(frozen=True)
class AccessPattern:
  """How the innermost loop walks through one array, stored row by row.

  Attributes:
    access: The access, as text.
    stride_elements: From one iteration to the next.
    kind: "invariant": the same element. "contiguous": the next one. "strided".
    lines_per_sweep: Memory lines touched by one run of the innermost loop.
    line_fetches: The same over all runs, if nothing but the line in use stays.
  """

  access: str
  stride_elements: int
  kind: Literal["invariant", "contiguous", "strided"]
  lines_per_sweep: int
  line_fetches: int


def access_patterns(
  nest: LoopNest, stage: str, *, line_bytes: int = LINE_BYTES
) -> tuple[AccessPattern, ...]:
  """Strides of the innermost loop, and the lines that it uses.

  Example: W[k, j] with loops i, j, k strides by a row of W and uses one element
  of every line it fetches; with loops i, k, j it reads line after line, A[i, k]
  stays the same, and a whole row of C must be kept (`buffer_lifetimes`).

  Args:
    nest: The nest.
    stage: The stage whose accesses count.
    line_bytes: Size of a memory line, at least 1; an NVIDIA GPU's unless given.

  Raises:
    ValueError: no such stage, or an argument out of range.
  """
  at_least("line_bytes", line_bytes, 1)
  found = nest.stage(stage)
  extents = loop_extents(found, found.extents)
  innermost = found.order[-1]
  length = extents[innermost]
  runs = math.prod(extents[loop] for loop in found.order[:-1])
  start = axis_values(found, extents, dict.fromkeys(found.order, 0)) or {}
  step = axis_values(
    found, extents, {**dict.fromkeys(found.order, 0), innermost: min(1, length - 1)}
  )
  results = []
  for access in dict.fromkeys(found.accesses):
    shape = footprint(nest, stage, access.array).shape
    stride, pitch = 0, 1
    for index, size in zip(reversed(access.indices), reversed(shape), strict=True):
      stride += pitch * (index.at(step or start) - index.at(start))
      pitch *= size
    stride_bytes = abs(stride) * dtypes.size_bytes(nest.dtypes[access.array])
    lines = min(length, (length - 1) * stride_bytes // line_bytes + 1)
    results.append(
      AccessPattern(
        access=str(access),
        stride_elements=stride,
        kind="invariant" if stride == 0 else "contiguous" if abs(stride) == 1 else "strided",
        lines_per_sweep=lines,
        line_fetches=runs * lines,
      )
    )
  return tuple(results)


def intermediate_bytes(nest: LoopNest) -> dict[str, int]:
  """Bytes of each array that one loop nest writes whole and another reads back.

  One write, and one read for each stage that uses it. An array whose producer
  runs inside its consumer (`compute_at`) never exists whole and is not here.

  Example: C between a 1024 x 12288 bfloat16 product and its silu: 48 MiB; with
  the product computed in silu's tiles, nothing.
  """
  moved = {}
  for producer in nest.stages:
    array = producer.statement.target.array
    readers = [
      stage
      for stage in nest.stages
      if stage.name != producer.name and array in {s.array for s in stage.statement.sources}
    ]
    if producer.location is None and readers:
      written = footprint(nest, producer.name, array).bytes
      moved[array] = written + sum(footprint(nest, r.name, array).bytes for r in readers)
  return moved
