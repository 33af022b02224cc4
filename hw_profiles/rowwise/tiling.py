"""How a tile cuts a row-wise problem: programs, segments, steps and walks of a row."""

import dataclasses
from typing import Literal

from hw_profiles.arguments import ceil_div
from hw_profiles.capacity.buffers import Shortfall
from hw_profiles.rowwise.config import RowConfig
from hw_profiles.rowwise.problem import RmsNormProblem, RowProblem
from hw_profiles.rowwise.streams import RowOp, row_op

# The launches of a split reduction: partial statistics, their merge, the outputs.
SPLIT_LAUNCHES = 3

Form = Literal["elementwise", "kept", "walked_twice", "split"]


@dataclasses.dataclass(frozen=True)
class RowTiling:
  """One tile's cut of one problem.

  Attributes:
    form: "elementwise": a program for each block. "kept": a program reads its
      rows once, reduces them and writes them, or its part of them. "walked_twice": it reads them
      block by block, first to reduce and then to write. "split": each segment
      of a row is a program's, in three launches.
    row_blocks: Tiles along the rows.
    column_blocks: Along the columns: blocks of an elementwise op, segments,
      writers of a kept row.
    segment_columns: Columns of a program, of a kept row those that it writes.
    steps: Blocks of a program's segment.
    launches: Kernels, one after another.
  """

  form: Form
  row_blocks: int
  column_blocks: int
  segment_columns: int
  steps: int
  launches: int

  @property
  def grid(self) -> tuple[int, int]:
    """Tiles along rows and columns."""
    return self.row_blocks, self.column_blocks

  @property
  def programs(self) -> int:
    """Of a launch that reads the matrix."""
    return self.row_blocks * self.column_blocks

  @property
  def walks(self) -> int:
    """Times a program of the largest launch goes through its segment."""
    return 2 if self.form == "walked_twice" else 1


@dataclasses.dataclass(frozen=True)
class Pieces:
  """What a kept row's block is computed in: `count` pieces of `columns` = 2^i each."""

  count: int
  columns: int


def pieces(block_cols: int) -> Pieces:
  """The fewest equal pieces of 2^i columns that make a block."""
  columns = block_cols & -block_cols
  return Pieces(block_cols // columns, columns)


def num_splits(problem: RowProblem, config: RowConfig) -> int:
  """The config's, else the problem's, else 1."""
  if config.num_splits is not None:
    return config.num_splits
  fixed = problem.num_splits if isinstance(problem, RmsNormProblem) else None
  return 1 if fixed is None else fixed


def most_splits(problem: RowProblem) -> int:
  """The largest `num_splits` that no rule of `split_shortfalls` refuses."""
  if not row_op(problem).statistics:
    return 1
  columns = max(problem.columns, 1)
  fixed = problem.num_splits if isinstance(problem, RmsNormProblem) else None
  return columns if fixed is None else min(fixed, columns)


def row_tiling(problem: RowProblem, config: RowConfig, op: RowOp | None = None) -> RowTiling:
  """Cuts the problem; a tile that breaks a rule of `split_shortfalls` is cut as if it did not.

  Args:
    problem: What is computed.
    config: The tile.
    op: `row_op(problem)`, if it is at hand.
  """
  op = row_op(problem) if op is None else op
  rows = ceil_div(problem.rows, config.block_rows)
  if not op.statistics:
    columns = ceil_div(problem.columns, config.block_cols)
    return RowTiling("elementwise", rows, columns, config.block_cols, 1, 1)
  splits = num_splits(problem, config)
  if splits == 1:
    steps = ceil_div(problem.columns, config.block_cols)
    if steps <= 1 < config.num_writers and problem.columns:
      part = 1 << (ceil_div(problem.columns, config.num_writers) - 1).bit_length()
      writers = ceil_div(problem.columns, part)
      return RowTiling("kept", rows, writers, min(part, problem.columns), steps, 1)
    form: Form = "walked_twice" if steps > 1 else "kept"
    return RowTiling(form, rows, min(problem.columns, 1), problem.columns, steps, 1)
  segment = ceil_div(problem.columns, splits)
  return RowTiling(
    form="split",
    row_blocks=rows,
    column_blocks=ceil_div(problem.columns, segment) if segment else 0,
    segment_columns=segment,
    steps=ceil_div(segment, config.block_cols),
    launches=SPLIT_LAUNCHES,
  )


def writer_shortfalls(config: RowConfig, form: str) -> tuple[Shortfall, ...]:
  """Refuses several writers where no program has whole rows to reduce.

  Args:
    config: The tile.
    form: What it is that has none: "kept" has.
  """
  if form == "kept" or config.num_writers == 1:
    return ()
  statement = (
    f"num_writers={config.num_writers} is for rows that a program keeps whole on an SM, and this"
    f" is {form.replace('_', ' ')}"
  )
  return (Shortfall("shape", "tile shape", ("num_writers",), statement),)


def split_shortfalls(
  problem: RowProblem, config: RowConfig, op: RowOp | None = None
) -> tuple[Shortfall, ...]:
  """Rules of `num_splits`, the same on both vendors' cores; `op` as for `row_tiling`."""
  splits = num_splits(problem, config)
  fixed = problem.num_splits if isinstance(problem, RmsNormProblem) else None

  def broken(statement: str) -> tuple[Shortfall, ...]:
    return (Shortfall("shape", "tile shape", ("num_splits",), statement),)

  if fixed is not None and splits != fixed:
    return broken(f"the problem fixes num_splits={fixed}, which moves the bits of the result")
  if splits > 1 and not (row_op(problem) if op is None else op).statistics:
    return broken("each element stands alone, so there is no reduction to split")
  if splits > max(problem.columns, 1):
    return broken(f"a row has {problem.columns} columns to split")
  return ()
