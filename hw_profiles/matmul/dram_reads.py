"""Operand bytes of a tiled product that L2 does not serve."""

import dataclasses

from hw_profiles.arguments import ceil_div
from hw_profiles.cost.l2_reuse import total_wave_rows


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
          once a band, or once a wave where a wave is several bands

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
    rows = total_wave_rows(
      programs=wave_programs, tiles_m=tiles_m, tiles_n=tiles_n, group_m=group_m
    )
    a_bytes = max(a_bytes, rows * panel_bytes)
  waves = ceil_div(tiles_m * tiles_n, wave_programs)
  b_reads = 1 if b_is_kept else min(bands, waves)
  return DramOperandReads(a_bytes=a_bytes, b_bytes=b_reads * b_bytes)
