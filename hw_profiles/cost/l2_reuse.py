"""Operand panels that programs running at the same time share in L2."""

import dataclasses

from hw_profiles.arguments import at_least, ceil_div


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


@dataclasses.dataclass(frozen=True)
class Wave:
  """How a grid of programs fills a device round by round.

  Attributes:
    programs_per_wave: Programs that run at once.
    waves: Rounds, the last of which may be part filled.
    tail_efficiency: programs / (waves x programs_per_wave); 0 for an empty grid.
  """

  programs_per_wave: int
  waves: int
  tail_efficiency: float


def wave(*, programs: int, cores: int, programs_per_core: int = 1) -> Wave:
  """waves = ⌈programs / (cores·programs_per_core)⌉.

  Example: 384 tiles on 132 SMs take 3 waves and use 97 % of them.

  Args:
    programs: Programs to run.
    cores: SMs or AIC cores.
    programs_per_core: Programs resident on each.

  Raises:
    ValueError: an argument is out of range.
  """
  at_least("programs", programs, 0)
  at_least("cores", cores, 1)
  at_least("programs_per_core", programs_per_core, 1)
  capacity = cores * programs_per_core
  waves = ceil_div(programs, capacity)
  return Wave(
    programs_per_wave=capacity,
    waves=waves,
    tail_efficiency=programs / (waves * capacity) if waves else 0.0,
  )


@dataclasses.dataclass(frozen=True)
class DramOperandReads:
  """Operand bytes fetched from device memory, what L2 holds subtracted.

  Attributes:
    a_bytes: Of A.
    b_bytes: Of B.
  """

  a_bytes: int
  b_bytes: int


def dram_operand_reads(
  *,
  m: int,
  k: int,
  n: int,
  block_m: int,
  block_n: int,
  size_bytes: int,
  group_m: int,
  wave_programs: int,
  l2_bytes: float,
) -> DramOperandReads:
  """Operand reads that miss L2 when tiles are walked in bands of `group_m`.

      A   once, while the rows of a band stay in L2; else each wave fetches the
          rows it touches
      B   once, where there is one band or B stays in L2 beside the band; else
          once a band

  Within a wave programs walk K in step, so a shared panel is fetched once
  whatever its length. Caches replace lines less neatly than this: a lower
  bound of the misses.

  Args:
    m: Rows of A.
    k: Columns of A.
    n: Columns of B.
    block_m: Rows of a tile.
    block_n: Columns of a tile.
    size_bytes: Bytes an element.
    group_m: Height of a band in tiles.
    wave_programs: Programs that run at once.
    l2_bytes: L2 capacity that operands may use.
  """
  a_bytes, b_bytes = m * k * size_bytes, k * n * size_bytes
  if not a_bytes or not b_bytes:
    return DramOperandReads(a_bytes=0, b_bytes=0)
  tiles_m, tiles_n = ceil_div(m, block_m), ceil_div(n, block_n)
  bands = ceil_div(tiles_m, group_m)
  panel_bytes = block_m * k * size_bytes
  band_bytes = min(a_bytes, group_m * panel_bytes)
  b_is_kept = bands == 1 or b_bytes + band_bytes <= l2_bytes
  if band_bytes > l2_bytes:
    rows = sum(
      wave_panels(
        first=first, programs=wave_programs, tiles_m=tiles_m, tiles_n=tiles_n, group_m=group_m
      ).rows
      for first in range(0, tiles_m * tiles_n, wave_programs)
    )
    a_bytes = max(a_bytes, rows * panel_bytes)
  return DramOperandReads(a_bytes=a_bytes, b_bytes=b_bytes if b_is_kept else bands * b_bytes)
