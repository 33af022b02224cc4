"""Operand panels that programs running at the same time share in L2."""

import dataclasses

from hw_profiles.arguments import at_least, ceil_div

# Share of L2 that operands may keep. The other half is left to outputs, to
# operands in flight and to imperfect replacement; no source measures it.
L2_OPERAND_FRACTION = 0.5


@dataclasses.dataclass(frozen=True)
class WavePanels:
  """Tile rows and tile columns that one wave of programs touches.

  Attributes:
    programs: Tiles of C in the wave.
    rows: Distinct tile rows: panels of A.
    columns: Distinct tile columns: panels of B.
  """

  programs: int
  rows: int
  columns: int


def _columns_in_union(first: tuple[int, int], second: tuple[int, int]) -> int:
  """Columns in two half-open intervals together."""
  overlap = max(0, min(first[1], second[1]) - max(first[0], second[0]))
  return first[1] - first[0] + second[1] - second[0] - overlap


def wave_panels(
  *, first: int, programs: int, tiles_m: int, tiles_n: int, group_m: int
) -> WavePanels:
  """Panels of programs first ... first+programs-1 in the order of `grouped_tile`.

  A band of height g is walked column by column, so p programs inside one band
  touch min(g, p) rows and the columns they pass. Rows of different bands
  differ; columns may coincide, and a band passed from end to end has them all.

  Args:
    first: Position of the first program.
    programs: Programs in the wave; those past the last tile are dropped.
    tiles_m: Tile rows of C.
    tiles_n: Tile columns of C.
    group_m: Height of a band.

  Raises:
    ValueError: an argument is out of range.
  """
  at_least("first", first, 0)
  at_least("programs", programs, 0)
  at_least("tiles_m", tiles_m, 0)
  at_least("tiles_n", tiles_n, 0)
  at_least("group_m", group_m, 1)
  last = min(first + programs, tiles_m * tiles_n)
  if first >= last:
    return WavePanels(programs=0, rows=0, columns=0)
  band_tiles = group_m * tiles_n
  rows = 0
  intervals: list[tuple[int, int]] = []
  position = first
  while position < last:
    band = position // band_tiles
    height = min(group_m, tiles_m - band * group_m)
    begin = position - band * band_tiles
    end = min(last - band * band_tiles, height * tiles_n)
    rows += min(height, end - begin)
    intervals.append((begin // height, ceil_div(end, height)))
    position = band * band_tiles + end
  if len(intervals) > 2:
    columns = tiles_n  # the bands between the first and the last are whole
  elif len(intervals) == 2:
    columns = _columns_in_union(*intervals)
  else:
    columns = intervals[0][1] - intervals[0][0]
  return WavePanels(programs=last - first, rows=rows, columns=columns)


def l2_hit_rate(
  *,
  block_m: int,
  block_n: int,
  tiles_m: int,
  tiles_n: int,
  wave_programs: int,
  group_m: int = 1,
  first: int = 0,
) -> float:
  """Share of a wave's operand reads that another program of the wave brings in.

      hit = 1 - (r·block_m + c·block_n) / (w·(block_m + block_n))

  for w programs on r tile rows and c tile columns. The wave walks K in lock
  step, starts with a cold L2 and misses each panel once.

  Example: 160 programs of 128 x 128 tiles on a 128 x 128 grid hit 0.594 row by
  row, 0.9125 in bands of 8, 0.919 in bands of 10. With tiles_m x tiles_n =
  wave_programs the wave is that rectangle.

  Args:
    block_m: Rows of a tile.
    block_n: Columns of a tile.
    tiles_m: Tile rows of C.
    tiles_n: Tile columns of C.
    wave_programs: Programs that run at once (blocks an SM x SMs).
    group_m: Height of the bands of the launch order; 1 is row by row.
    first: Position of the wave's first program.

  Returns:
    0 for an empty wave, else a fraction below 1.

  Raises:
    ValueError: an argument is out of range.
  """
  at_least("block_m", block_m, 1)
  at_least("block_n", block_n, 1)
  panels = wave_panels(
    first=first, programs=wave_programs, tiles_m=tiles_m, tiles_n=tiles_n, group_m=group_m
  )
  if not panels.programs:
    return 0.0
  missed = panels.rows * block_m + panels.columns * block_n
  return 1 - missed / (panels.programs * (block_m + block_n))
