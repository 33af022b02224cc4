"""Operand panels that programs running at the same time share in L2."""

import dataclasses
import functools
import math

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


def _sum_of_minima(limit: int, step: int, count: int) -> int:
  """Sum of min(limit, i·step) over i = 0 ... count-1."""
  below = min(count, limit // step + 1)
  return step * below * (below - 1) // 2 + limit * (count - below)


def _band_rows(start: int, tiles: int, height: int, programs: int) -> int:
  """Rows touched in a band of `tiles` tiles from position `start` on, wave by wave."""
  head = min(-start % programs, tiles)
  whole, tail = divmod(tiles - head, programs)
  return min(height, head) + whole * min(height, programs) + min(height, tail)


def _period_rows(tiles: int, height: int, programs: int) -> int:
  """Sum of `_band_rows` over all places where a wave may begin within a band.

  They are the multiples of d = gcd(tiles, programs) below `programs`, each once;
  so are the tails, as `tiles` is a multiple of d.
  """
  divisor = math.gcd(tiles, programs)
  places = programs // divisor
  if tiles < programs:
    # a wave ends inside the band, or the band is whole
    cuts = tiles // divisor - 1
    return 2 * _sum_of_minima(height, divisor, cuts + 1) + (places - cuts) * height
  rows_of_ends = _sum_of_minima(height, divisor, places)
  tiles_of_ends = divisor * places * (places - 1) // 2
  whole = (places * tiles - 2 * tiles_of_ends) // programs
  return 2 * rows_of_ends + whole * min(height, programs)


@functools.lru_cache(maxsize=4096)  # a ranking asks for the same grid at every depth and stage
def total_wave_rows(*, programs: int, tiles_m: int, tiles_n: int, group_m: int) -> int:
  """Sum of `wave_panels(...).rows` over all waves of a grid, without going through them.

  Where waves begin in a band repeats after programs / gcd(programs, tiles of a
  band) bands, over which the sum has a closed form; at most one period is
  walked band by band.

  Args:
    programs: Programs in a wave.
    tiles_m: Tile rows of C.
    tiles_n: Tile columns of C.
    group_m: Height of a band.

  Raises:
    ValueError: an argument is out of range.
  """
  at_least("programs", programs, 1)
  at_least("tiles_m", tiles_m, 0)
  at_least("tiles_n", tiles_n, 0)
  at_least("group_m", group_m, 1)
  if not tiles_m or not tiles_n:
    return 0
  height = min(group_m, tiles_m)
  tiles = height * tiles_n
  bands, rest = divmod(tiles_m, height)
  period = programs // math.gcd(tiles, programs)
  periods, odd = divmod(bands, period)
  rows = periods * _period_rows(tiles, height, programs) if periods else 0
  rows += sum(_band_rows(band * tiles, tiles, height, programs) for band in range(odd))
  if rest:
    rows += _band_rows(bands * tiles, rest * tiles_n, rest, programs)
  return rows


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
  at_least("wave_programs", wave_programs, 0)
  at_least("block_m", block_m, 1)
  at_least("block_n", block_n, 1)
  panels = wave_panels(
    first=first, programs=wave_programs, tiles_m=tiles_m, tiles_n=tiles_n, group_m=group_m
  )
  if not panels.programs:
    return 0.0
  missed = panels.rows * block_m + panels.columns * block_n
  return 1 - missed / (panels.programs * (block_m + block_n))
