"""How the gradient of rms_norm cuts its rows: the block, programs, and what is loaded ahead."""

import dataclasses
from typing import Any

from jax.experimental import pallas as pl

from hw_profiles import RowConfig
from pallas_kernels.rowwise.blocks import Window, kept_pieces, left, unravel

# The longest row in registers: x, d_y, weight and the partial sum, 32 elements of
# each for 512 threads.
_LONGEST_KEPT = 16384
# Rows up to here are one piece, several rows of short ones a block: 1024 elements (7239 x
# 111: 8.1 us, with 2048 9.0).
_ONE_PIECE = 4096
_SHORT_ROWS = 1024
_WALKED_COLUMNS = 2048
# Up to so many elements of a thread the next block of rows is loaded while one is
# computed (7239 x 4096 on an H200: 54 us, without 66). With 24 the registers of two
# blocks, the sums and the weights leave none (7239 x 11008: 199 us, without 168), and a
# second block ahead is slower at any length (7239 x 5000: 91 us, with one 72).
_MOST_AHEAD = 16
# Elements of a thread's 16-byte load.
_LOADED_AT_ONCE = 8
_LANES = 32
# With 128 registers a thread an SM holds 16 warps; more would mean more partial sums
# to write and add up.
_WARPS_PER_CORE = 16
_MOST_WARPS = 16
# Of no more rows than there are cores, each core has one program and its wait counts, the
# exchange of its warps among it: 8 x 12288 takes 4.70 us with 8 warps, 4.80 with 16, 8 x 11008
# 4.52 and 4.62, 8 x 5000 3.26 and 3.36. So many columns at most: more would leave a thread no
# registers.
_ALONE_WARPS = 8
_ALONE_COLUMNS = 12288
# Short rows that leave most cores without a program: those that have one share its arithmetic
# out (blocks of 8 x 111, 8 warps and 2: of 32 rows 2.67 and 2.82 us, of 64 2.72 and 2.86, of 128
# 2.75 and 2.86, of 256 2.82 and 2.93; of 16 rows a block 3.3, of 32 4.5).
_FEW_SHORT_WARPS = 8
# Of the shortest of them, in several blocks, some 64 programs: blocks of so many rows for up to so
# many rows (64 x 111 takes 2.34 us in blocks of 1 row and of 2, 2.43 of 4, 2.56 of 8; 128 x 111
# 2.62, 2.43, 2.53 and 2.62; 256 x 111 2.98, 2.80, 2.59 and 2.74). Two elements a thread: 2 rows by
# 4 warps, 0.10 more by 8, and 4 rows by 8, 0.03 to 0.06 more by 4.
_SHORTEST = 128
_SHORTEST_ROWS = {2: 128, 4: 256}
_FEW_SHORT_ROWS = max(_SHORTEST_ROWS.values())
_SHORTEST_PER_THREAD = 2
# So many rows at most, of so many columns, go another way: `few_rows_gradient`. The launches of
# the gradients on an H200, us, that way and a program a row: 1 x 12288 2.11 and 2.88; 8 x 12288
# 3.5 and 4.7, 8 x 11008 3.5 and 4.5, 64 x 12288 4.8 and 5.8, 64 x 11008 4.9 and 5.6. Shorter rows
# than 11008 and other numbers of rows were not measured. The numbers of 8 x 12288 take 1.95 us with
# 8 warps a row, 2.13 with 16, of 64 x 12288 2.18 and 2.30.
_MOST_FEW_ROWS = 64
_FEW_ROWS_COLUMNS = (8192, _ALONE_COLUMNS)
# A single row has a program for so many columns (12288: 6 programs 2.11 us, 12 2.14; with 16
# warps 2.46 and 2.40, 3 programs 2.34).
_PART_COLUMNS = 2048
# Several have 4 warps for so many columns of up to so many rows: of 8 rows 1.36 us for 64 columns,
# 1.54 with 2 warps, 1.50 for 128 columns; of 64 rows 2.59 for 32 columns, 2.82 with 8 warps, 2.75
# for 64 columns with 8 and 3.42 with 16. A warp has four elements a thread at least.
_COLUMNS_OF_ROWS = {16: 64, _MOST_FEW_ROWS: 32}
_COLUMN_WARPS = 4
_LEAST_PER_THREAD = 4
# A merging program's columns are 128 B of float32; it takes so many partial sums at once.
_MERGED = RowConfig(256, 32, 1, num_warps=8)
# Of half as many in columns for more of those blocks than there are cores (2 x 64 sums of 6144
# columns: 2.22 us, 2.50 by 8 warps; 64 columns by 4 2.27; 128 sums of 12288 2.72 and 2.88).
_HALF_MERGED = RowConfig(128, 32, 1, num_warps=4)
# Of more partial sums than that, in so few columns that no core has two of these blocks
# (7239 x 111, 905 sums: 2.4 us, 4.4 in the block above).
_MANY_MERGED = RowConfig(1024, 8, 1, num_warps=8)
# Of so few that a block of the first kind has less than a load for each thread, and columns
# for more of those than there are cores (8 x 11008: 1.15 us, 1.28 in the block above).
_FEW_MERGED = RowConfig(16, 128, 1, num_warps=4)


def default_config(*, groups: int, rows: int, columns: int, cores: int) -> RowConfig:
  """Whole rows where they fit, in pieces of a load a thread each; several of short ones.

  Args:
    groups: Independent matrices.
    rows: Of each.
    columns: Of each.
    cores: Streaming multiprocessors.
  """
  if columns > _LONGEST_KEPT:
    return RowConfig(1, _WALKED_COLUMNS, 1, num_warps=4)
  if columns <= _ONE_PIECE:
    block_cols = pl.next_power_of_2(columns)
    block_rows = min(max(1, _SHORT_ROWS // block_cols), pl.next_power_of_2(rows))
    few = block_rows > 1 and groups * rows <= _FEW_SHORT_ROWS
    # of one block there are no partial sums to merge
    if few and columns <= _SHORTEST and rows > block_rows:
      block_rows = next(one for one, most in _SHORTEST_ROWS.items() if groups * rows <= most)
      threads = block_rows * block_cols // _SHORTEST_PER_THREAD
      return RowConfig(block_rows, block_cols, 1, num_warps=max(1, threads // _LANES))
    warps = _FEW_SHORT_WARPS if few else _warps(block_rows * block_cols)
    return RowConfig(block_rows, block_cols, 1, num_warps=warps)
  piece = _MOST_WARPS * _LANES * _LOADED_AT_ONCE
  if columns <= 3 * piece // 2:
    piece //= 2
  block_cols = pl.cdiv(columns, piece) * piece
  alone = groups * rows <= cores and block_cols <= _ALONE_COLUMNS
  return RowConfig(1, block_cols, 1, num_warps=_ALONE_WARPS if alone else _MOST_WARPS)


@dataclasses.dataclass(frozen=True)
class FewRowsTiles:
  """How few long rows are cut.

  Attributes:
    row: The block that holds a row, whose numbers are computed from it.
    columns: The block of all rows that a program of the second launch has; of a single
      row, for which there is one launch, the columns that a program of it stores.
  """

  row: RowConfig
  columns: RowConfig


def few_rows_tiles(*, groups: int, rows: int, columns: int, cores: int) -> FewRowsTiles | None:
  """Of rows that are faster that way; None: of all others.

  Args:
    groups: Independent matrices; of several nothing was measured.
    rows: Of each.
    columns: Of each.
    cores: Streaming multiprocessors, of which each row has one for itself.
  """
  shortest, longest = _FEW_ROWS_COLUMNS
  if groups > 1 or rows > min(cores, _MOST_FEW_ROWS) or not shortest <= columns <= longest:
    return None
  row = default_config(groups=groups, rows=rows, columns=columns, cores=cores)
  if rows == 1:
    return FewRowsTiles(row, RowConfig(1, _PART_COLUMNS, 1, num_warps=row.num_warps))
  width = next(width for most, width in _COLUMNS_OF_ROWS.items() if rows <= most)
  height = pl.next_power_of_2(rows)
  warps = min(_COLUMN_WARPS, height * width // (_LANES * _LEAST_PER_THREAD))
  return FewRowsTiles(row, RowConfig(height, width, 1, num_warps=warps))


def _warps(elements: int) -> int:
  wanted = pl.next_power_of_2(pl.cdiv(elements, 2 * _LANES * _LOADED_AT_ONCE))
  return min(wanted, _MOST_WARPS)


def warps_of(config: RowConfig) -> int:
  """Of a program: the config's, or its default."""
  return config.num_warps or _warps(config.block_rows * config.block_cols)


@dataclasses.dataclass(frozen=True)
class Tiles:
  """How the rows are dealt out.

  Attributes:
    groups: Independent matrices.
    rows: Of each.
    columns: Of each.
    block_rows: Rows of a block.
    block_cols: Columns of a block.
    programs: Programs for each group and column block, each with consecutive rows.
    loads_ahead: Whether the next block of rows is loaded while one is computed.
  """

  groups: int
  rows: int
  columns: int
  block_rows: int
  block_cols: int
  programs: int
  loads_ahead: bool

  @property
  def row_blocks(self) -> int:
    """Of a group."""
    return pl.cdiv(self.rows, self.block_rows)

  @property
  def steps(self) -> int:
    """Row blocks of a program."""
    return pl.cdiv(self.row_blocks, self.programs)

  @property
  def column_blocks(self) -> int:
    """Of a row; 1 where a block holds it."""
    return pl.cdiv(self.columns, self.block_cols)

  @property
  def chunk(self) -> int:
    """Rows of a program."""
    return self.steps * self.block_rows

  @property
  def grid(self) -> tuple[int]:
    """Programs of the main launch."""
    return (self.groups * self.programs * self.column_blocks,)

  def place(self, program: Any) -> tuple[Any, Any, Any]:
    """Group, chunk of rows and column block."""
    group, chunk, column = unravel(program, self.groups, self.programs, self.column_blocks)
    return group, chunk, column

  def pieces(self, column: Any) -> list[Window]:
    """A column block in pieces of 2^i columns, as far as there are columns in them."""
    if self.column_blocks > 1:
      start = column * self.block_cols
      return [
        Window(
          self.block_rows,
          self.block_cols,
          columns_left=left(self.columns, start, self.block_cols),
        )
      ]
    return kept_pieces(self.block_rows, self.columns, self.block_cols)


def make_tiles(shape: tuple[int, ...], config: RowConfig, cores: int) -> Tiles:
  """Cuts [groups, rows, columns] so that every core has as many programs as it has room for."""
  groups, rows, columns = shape
  warps = warps_of(config)
  blocks = pl.cdiv(rows, config.block_rows)
  column_blocks = pl.cdiv(columns, config.block_cols)
  programs_per_core = max(1, _WARPS_PER_CORE // warps)
  wanted = max(1, programs_per_core * cores // (groups * column_blocks))
  steps = pl.cdiv(blocks, min(blocks, wanted))
  # so that no program is without rows
  programs = pl.cdiv(blocks, steps)
  elements = pl.cdiv(config.block_rows * config.block_cols, warps * _LANES)
  return Tiles(
    groups,
    rows,
    columns,
    config.block_rows,
    config.block_cols,
    programs,
    loads_ahead=elements <= _MOST_AHEAD and steps > 1,
  )


def merging_block(*, programs: int, columns: int, cores: int) -> RowConfig:
  """The block of partial sums that a merging program takes at once."""
  block = _MERGED
  if programs > block.block_rows and pl.cdiv(columns, _MANY_MERGED.block_cols) <= cores:
    block = _MANY_MERGED
  elif programs <= _FEW_MERGED.block_rows and pl.cdiv(columns, block.block_cols) > cores:
    block = _FEW_MERGED
  elif programs <= _HALF_MERGED.block_rows and pl.cdiv(columns, block.block_cols) > cores:
    block = _HALF_MERGED
  rows = min(pl.next_power_of_2(programs), block.block_rows)
  return dataclasses.replace(block, block_rows=rows)
