"""A block's threads loading a tile together, and storing it to shared memory."""

import dataclasses
from collections.abc import Iterator

from hw_profiles.arguments import at_least, ceil_div
from hw_profiles.capacity.residency import LANES_PER_WARP
from hw_profiles.sm_tiling.banks import BankConflicts, bank_conflicts
from hw_profiles.sm_tiling.coalescing import Coalescing, coalescing
from hw_profiles.sm_tiling.shared_layout import SharedLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class CooperativeLoad:
  """Threads over a tile of global memory, row by row, round by round.

  Thread t takes `vector` elements from column vector·(t mod threads_per_row) of
  row ⌊t / threads_per_row⌋. The rounds move first right, then down, until the
  tile is covered; a tail round leaves threads without work.

  Attributes:
    tile_rows: Rows of the tile.
    tile_columns: Columns of the tile, contiguous in global memory.
    threads: Threads of the block.
    threads_per_row: Neighbouring threads that share a row.
    vector: Elements of one load: 1, 2 or 4 floats for 32, 64 or 128 bits.

  Raises:
    ValueError: a size is below 1, threads do not fill rows, or a vector would
      leave its row.
  """

  tile_rows: int
  tile_columns: int
  threads: int
  threads_per_row: int
  vector: int = 1

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      at_least(field.name, getattr(self, field.name), 1)
    if self.threads % self.threads_per_row:
      raise ValueError(
        f"threads_per_row={self.threads_per_row}: expected a divisor of threads={self.threads}"
      )
    if self.tile_columns % self.vector:
      raise ValueError(
        f"vector={self.vector}: expected a divisor of tile_columns={self.tile_columns},"
        " or a load would run into the next row"
      )

  @property
  def rows_per_round(self) -> int:
    """Rows that the threads cover at once."""
    return self.threads // self.threads_per_row

  @property
  def columns_per_round(self) -> int:
    """Columns that the threads cover at once."""
    return self.threads_per_row * self.vector

  @property
  def rounds(self) -> int:
    """Loads of a thread (the tile's, where every thread has work each time)."""
    return ceil_div(self.tile_rows, self.rows_per_round) * ceil_div(
      self.tile_columns, self.columns_per_round
    )

  def element(self, thread: int, load_round: int) -> tuple[int, int] | None:
    """Row and first column of what `thread` loads in a round; None: nothing."""
    across = ceil_div(self.tile_columns, self.columns_per_round)
    down, right = divmod(load_round, across)
    row = down * self.rows_per_round + thread // self.threads_per_row
    column = right * self.columns_per_round + thread % self.threads_per_row * self.vector
    return (row, column) if row < self.tile_rows and column < self.tile_columns else None

  def elements(self) -> Iterator[tuple[int, int]]:
    """Every element that some thread loads, vectors taken apart."""
    for load_round in range(self.rounds):
      for thread in range(self.threads):
        first = self.element(thread, load_round)
        if first is not None:
          for step in range(self.vector):
            yield first[0], first[1] + step

  def _warp_elements(self, warp: int, load_round: int) -> list[tuple[int, int] | None]:
    """What each lane of a warp loads."""
    at_least("warp", warp, 0)
    at_least("load_round", load_round, 0)
    first = warp * LANES_PER_WARP
    if first >= self.threads:
      raise ValueError(
        f"warp={warp}: expected at most {ceil_div(self.threads, LANES_PER_WARP) - 1}"
      )
    if load_round >= self.rounds:
      raise ValueError(f"load_round={load_round}: expected at most {self.rounds - 1}")
    last = min(first + LANES_PER_WARP, self.threads)
    return [self.element(thread, load_round) for thread in range(first, last)]

  def global_sectors(
    self, *, pitch_bytes: int, element_bytes: int = 4, warp: int = 0, load_round: int = 0
  ) -> Coalescing:
    """Sectors of global memory that one load of a warp touches.

    Args:
      pitch_bytes: From one row of the matrix to the next.
      element_bytes: Bytes of an element.
      warp: Which warp.
      load_round: Which of its loads.

    Raises:
      ValueError: there is no such warp or round, or a size is below 1.
    """
    at_least("pitch_bytes", pitch_bytes, 1)
    at_least("element_bytes", element_bytes, 1)
    addresses = [
      None if place is None else place[0] * pitch_bytes + place[1] * element_bytes
      for place in self._warp_elements(warp, load_round)
    ]
    return coalescing(addresses, width_bytes=self.vector * element_bytes)

  def transposed_store(
    self, layout: SharedLayout, *, warp: int = 0, load_round: int = 0
  ) -> tuple[BankConflicts, ...]:
    """Bank conflicts of storing what a warp loaded, element by element, transposed.

    Element (row, column) of the tile goes to (column, row) of `layout`, so that
    a column of the tile is contiguous for the loads that follow. With 8 lanes a
    row and rows of 128 floats these stores conflict 8 ways; with float4 loads,
    2 lanes a row, 2 ways; with 4 floats of padding, or columns permuted in
    groups of 4, not at all.

    Args:
      layout: At least tile_columns x tile_rows.
      warp: Which warp.
      load_round: Which of its loads.

    Returns:
      One store for each element of the vector.

    Raises:
      ValueError: the layout lacks an element, or there is no such warp or round.
    """
    places = self._warp_elements(warp, load_round)
    return tuple(
      bank_conflicts(
        [None if place is None else layout.address(place[1] + step, place[0]) for place in places],
        width_bytes=layout.element_bytes,
      )
      for step in range(self.vector)
    )
