"""The order in which programs walk the tiles of C.

Plain arithmetic only, so that the same function serves the planner on Python
ints and the kernels on traced integers: the order has one definition.
"""

from typing import Any


def grouped_tile(linear: Any, *, tiles_m: int, tiles_n: int, group_m: int) -> tuple[Any, Any]:
  """Tile coordinates of the `linear`-th program.

  The grid is cut into bands of `group_m` tile rows (the last may be lower).
  A band is walked column by column, top to bottom:

      group_m=2, 3 x 3 tiles      0 2 4
                                  1 3 5
                                  6 7 8

  Programs close in time then share rows of A and columns of B in L2. For a
  wave of w programs in a band g high, g + w/g operand panels are read instead
  of w/tiles_n + min(w, tiles_n).

  Args:
    linear: Position in the walk, 0 <= linear < tiles_m·tiles_n; int or traced.
    tiles_m: Tile rows.
    tiles_n: Tile columns.
    group_m: Height of a band in tiles.

  Returns:
    (tile row, tile column).
  """
  # a band no higher than the grid: the same walk, and no overflow of 32 bits
  group_m = min(group_m, tiles_m)
  band_tiles = group_m * tiles_n
  band = linear // band_tiles
  within = linear - band * band_tiles
  first_row = band * group_m
  rows_left = tiles_m - first_row
  # the last band may be lower; a traced integer has `clip`, which `min` does not take
  height = min(group_m, rows_left) if isinstance(rows_left, int) else rows_left.clip(max=group_m)
  column = within // height
  return first_row + within - column * height, column
