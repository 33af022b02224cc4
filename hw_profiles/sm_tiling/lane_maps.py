"""Which outputs of a tile each lane, warp and thread computes."""

import abc
import collections
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Literal

from hw_profiles.arguments import at_least, collection
from hw_profiles.capacity.residency import LANES_PER_WARP

LaneOrder = Literal["row_first", "column_first", "z_order"]
LANE_ORDERS: tuple[LaneOrder, ...] = ("row_first", "column_first", "z_order")


def spread_coordinate(position: int, index: int, *, positions: int, run: int) -> int:
  """Coordinate of a thread's `index`-th output along one direction.

      run · position + ⌊index / run⌋ · run · positions + index mod run

  A thread owns runs of `run` neighbours; between two of its runs lie one run
  of each other position. With P = 16 positions, run = 1 is the scalar map
  (position + 16·index), run = 4 the float4 map (4·position + 64·⌊index/4⌋ +
  index mod 4), and run = all of a thread's outputs its contiguous patch.
  """
  return run * position + index // run * run * positions + index % run


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaneMap:
  """Places of a warp's 32 lanes in a grid of rows x columns.

  Attributes:
    rows: Lanes along M; rows · columns = 32.
    columns: Lanes along N.
    order: "row_first": neighbours along N. "column_first": along M. "z_order":
      column first within strips of two rows, so that 8 lanes are 2 x 4, lanes i
      and i xor 1 share a column, and i and i xor 2 a row.

  Raises:
    ValueError: the grid has not 32 places, or rows are odd in z_order.
  """

  rows: int
  columns: int
  order: LaneOrder = "row_first"

  def __post_init__(self) -> None:
    at_least("rows", self.rows, 1)
    at_least("columns", self.columns, 1)
    if self.rows * self.columns != LANES_PER_WARP:
      shapes = ", ".join(f"{rows}x{LANES_PER_WARP // rows}" for rows in (1, 2, 4, 8, 16, 32))
      raise ValueError(
        f"rows={self.rows}, columns={self.columns}: a warp has {LANES_PER_WARP} lanes;"
        f" expected one of {shapes}"
      )
    if self.order not in LANE_ORDERS:
      raise ValueError(f"order={self.order!r}: expected one of {', '.join(LANE_ORDERS)}")
    if self.order == "z_order" and self.rows % 2:
      raise ValueError(f"rows={self.rows}: z_order walks pairs of rows; expected at least 2")

  def place(self, lane: int) -> tuple[int, int]:
    """Row and column of `lane`.

    Raises:
      ValueError: no warp has such a lane.
    """
    at_least("lane", lane, 0)
    if lane >= LANES_PER_WARP:
      raise ValueError(f"lane={lane}: expected 0 to {LANES_PER_WARP - 1}")
    if self.order == "row_first":
      return lane // self.columns, lane % self.columns
    if self.order == "column_first":
      return lane % self.rows, lane // self.rows
    strip, inside = divmod(lane, 2 * self.columns)
    return 2 * strip + inside % 2, inside // 2


def _check_runs(thread_m: int, thread_n: int, run_m: int, run_n: int) -> None:
  for name, value, outputs in (("run_m", run_m, thread_m), ("run_n", run_n, thread_n)):
    if outputs % value:
      divisors = [count for count in range(1, outputs + 1) if outputs % count == 0]
      nearest = min(divisors, key=lambda count: abs(count - value))
      raise ValueError(
        f"{name}={value}: expected a divisor of the thread's {outputs} outputs that way;"
        f" nearest is {nearest}"
      )


class _Tiling(abc.ABC):
  """A tile shared out over the threads of a block."""

  thread_m: int
  thread_n: int

  @property
  @abc.abstractmethod
  def threads(self) -> int:
    """Of the block."""

  @abc.abstractmethod
  def output(self, thread: int, i: int, j: int) -> tuple[int, int]:
    """Row and column of output (i, j) of `thread`."""

  def _check_output(self, thread: int, i: int, j: int) -> None:
    for name, value, count in (
      ("thread", thread, self.threads),
      ("i", i, self.thread_m),
      ("j", j, self.thread_n),
    ):
      at_least(name, value, 0)
      if value >= count:
        raise ValueError(f"{name}={value}: expected 0 to {count - 1}")

  def outputs(self) -> Iterator[tuple[int, int]]:
    """Outputs of all threads."""
    for thread in range(self.threads):
      for i in range(self.thread_m):
        for j in range(self.thread_n):
          yield self.output(thread, i, j)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreadTiling(_Tiling):
  """A tile shared out over a grid of threads, warps not considered.

  Attributes:
    thread_rows: Threads along M.
    thread_columns: Threads along N; thread ids run along N first.
    thread_m: Outputs of a thread along M.
    thread_n: Outputs of a thread along N.
    run_m: Neighbouring outputs along M; divides thread_m.
    run_n: Neighbouring outputs along N; divides thread_n.

  Raises:
    ValueError: a size is below 1, or a run does not divide.
  """

  thread_rows: int
  thread_columns: int
  thread_m: int
  thread_n: int
  run_m: int = 1
  run_n: int = 1

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      at_least(field.name, getattr(self, field.name), 1)
    _check_runs(self.thread_m, self.thread_n, self.run_m, self.run_n)

  @property
  def threads(self) -> int:
    """Of the block."""
    return self.thread_rows * self.thread_columns

  @property
  def tile(self) -> tuple[int, int]:
    """Rows and columns of the tile."""
    return self.thread_rows * self.thread_m, self.thread_columns * self.thread_n

  def output(self, thread: int, i: int, j: int) -> tuple[int, int]:
    """Row and column of output (i, j) of `thread`.

    Raises:
      ValueError: there is no such thread or output.
    """
    self._check_output(thread, i, j)
    row, column = divmod(thread, self.thread_columns)
    return (
      spread_coordinate(row, i, positions=self.thread_rows, run=self.run_m),
      spread_coordinate(column, j, positions=self.thread_columns, run=self.run_n),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarpTiling(_Tiling):
  """A tile shared out over warps, and each warp's part over its lanes.

  Attributes:
    lanes: Places of the lanes in a warp.
    thread_m: Outputs of a thread along M.
    thread_n: Outputs of a thread along N.
    warp_rows: Warps along M.
    warp_columns: Warps along N; warp ids run along N first.
    run_m: Neighbouring outputs of a thread along M, which is also the distance
      between lanes: thread_m (None) is one contiguous patch, 4 the sub-blocks
      whose float4s lie side by side.
    run_n: The same along N.

  Raises:
    ValueError: a size is below 1, or a run does not divide.
  """

  lanes: LaneMap
  thread_m: int
  thread_n: int
  warp_rows: int = 1
  warp_columns: int = 1
  run_m: int | None = None
  run_n: int | None = None

  def __post_init__(self) -> None:
    for name in ("thread_m", "thread_n", "warp_rows", "warp_columns"):
      at_least(name, getattr(self, name), 1)
    for name in ("run_m", "run_n"):
      if getattr(self, name) is not None:
        at_least(name, getattr(self, name), 1)
    _check_runs(self.thread_m, self.thread_n, *self.runs)

  @property
  def runs(self) -> tuple[int, int]:
    """`run_m` and `run_n`, or their defaults."""
    return self.run_m or self.thread_m, self.run_n or self.thread_n

  @property
  def warps(self) -> int:
    """Of the block."""
    return self.warp_rows * self.warp_columns

  @property
  def threads(self) -> int:
    """Of the block."""
    return self.warps * LANES_PER_WARP

  @property
  def warp_tile(self) -> tuple[int, int]:
    """Rows and columns of a warp's part."""
    return self.lanes.rows * self.thread_m, self.lanes.columns * self.thread_n

  @property
  def tile(self) -> tuple[int, int]:
    """Rows and columns of the tile."""
    rows, columns = self.warp_tile
    return self.warp_rows * rows, self.warp_columns * columns

  def output(self, thread: int, i: int, j: int) -> tuple[int, int]:
    """Row and column of output (i, j) of `thread`.

    Example: 4 x 2 warps of 4 x 8 lanes with 8 x 8 outputs: output (0, 0) of
    thread 18 is (16, 16), of thread 255 (120, 120).

    Raises:
      ValueError: there is no such thread or output.
    """
    self._check_output(thread, i, j)
    warp, lane = divmod(thread, LANES_PER_WARP)
    warp_row, warp_column = divmod(warp, self.warp_columns)
    lane_row, lane_column = self.lanes.place(lane)
    warp_m, warp_n = self.warp_tile
    run_m, run_n = self.runs
    return (
      warp_row * warp_m + spread_coordinate(lane_row, i, positions=self.lanes.rows, run=run_m),
      warp_column * warp_n
      + spread_coordinate(lane_column, j, positions=self.lanes.columns, run=run_n),
    )


@dataclasses.dataclass(frozen=True)
class Coverage:
  """How often a map's outputs meet the elements of a tile.

  Attributes:
    covered: Different elements of the tile that some thread owns.
    missed: Elements of the tile that none owns.
    repeated: Outputs beyond an element's first owner.
    outside: Outputs that lie outside the tile.
  """

  covered: int
  missed: int
  repeated: int
  outside: int

  @property
  def is_bijection(self) -> bool:
    """Whether every element has exactly one owner, and no output is outside."""
    return not (self.missed or self.repeated or self.outside)


def coverage(outputs: Iterable[tuple[int, int]], *, rows: int, columns: int) -> Coverage:
  """Counts a map's outputs against a tile of rows x columns, by enumeration.

  Raises:
    ValueError: `outputs` has no items, or a size is out of range.
  """
  collection("outputs", outputs, tuple)
  at_least("rows", rows, 0)
  at_least("columns", columns, 0)
  owners = collections.Counter(outputs)
  inside = {
    place: count
    for place, count in owners.items()
    if 0 <= place[0] < rows and 0 <= place[1] < columns
  }
  return Coverage(
    covered=len(inside),
    missed=rows * columns - len(inside),
    repeated=sum(inside.values()) - len(inside),
    outside=owners.total() - sum(inside.values()),
  )
