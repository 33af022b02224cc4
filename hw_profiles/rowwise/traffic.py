"""Working set and traffic of a row-wise op, counted at the working buffers."""

import dataclasses

from hw_profiles import dtypes
from hw_profiles.arguments import ceil_div
from hw_profiles.rowwise.config import RowConfig
from hw_profiles.rowwise.problem import RowProblem, TransposeProblem
from hw_profiles.rowwise.streams import STATISTIC_BYTES, RowOp, element_bytes, row_op
from hw_profiles.rowwise.tiling import RowTiling, row_tiling


@dataclasses.dataclass(frozen=True)
class RowTraffic:
  """Bytes between the working buffers and the next tier, all launches together.

  Attributes:
    working_set_bytes: One block of every operand and result, and of weights a row.
    input_read_bytes: Operands, each read of an element counted.
    weight_read_bytes: Rows of weights, once for each program that reads them.
    output_write_bytes: Results, and what a fused addition stores.
    statistic_bytes: Row scales written; in a split form partial statistics and
      what is merged from them, written and read.
    total_bytes: Sum of the four above.
    operations: Float32 operations, an exp or a reciprocal counting as one; those
      of masked lanes are left out.
    intensity: Operations per byte of `total_bytes`; 0 where nothing moves.
    grid: Tiles along rows and columns.
    launches: Kernels, one after another.
  """

  working_set_bytes: int
  input_read_bytes: int
  weight_read_bytes: int
  output_write_bytes: int
  statistic_bytes: int
  total_bytes: int
  operations: int
  intensity: float
  grid: tuple[int, ...]
  launches: int


def row_traffic(problem: RowProblem, config: RowConfig) -> RowTraffic:
  """Counts what one tile moves.

      elementwise, kept   inputs + weights·row blocks + outputs + scales
      kept, w writers     w times the inputs
      walked twice        + a second read of what the outputs need
      split in s          + that, and per row 2·s partial statistics, their merge
                          written once and read by each of the s segments

  A statistic is 4 B. Each program reads the weights for itself: one for each
  `block_rows` rows, and again where the statistics depend on them.

  Example: rms_norm of 1024 x 4096 bfloat16, a row a program: 8 MiB of x, 8 of
  weight and 8 of y are 24 MiB in one launch. Split in 8: x again and 100 KiB of
  statistics, 32.1 MiB in three. (A statistic read once a row instead of once a
  segment would make 72 KiB.)

  Args:
    problem: Of a row-wise op, a transpose apart.
    config: The tile.

  Raises:
    ValueError: `problem` or `config` is of another kind.
  """
  if not isinstance(config, RowConfig):
    raise ValueError(f"config={config!r}: expected a RowConfig")
  op = row_op(problem)
  tiling = row_tiling(problem, config, op)
  return _traffic(problem, config, op, tiling)


def _traffic(problem: RowProblem, config: RowConfig, op: RowOp, tiling: RowTiling) -> RowTraffic:
  walks = 2 if tiling.form in ("walked_twice", "split") else 1
  read = problem.elements * element_bytes(op.inputs)
  weight_row = problem.columns * element_bytes(op.weights)
  weights = weight_row * tiling.row_blocks
  if tiling.form == "kept":
    # each of several writers reads the row
    read *= max(tiling.column_blocks, 1)
  if walks > 1:
    read += problem.elements * element_bytes(op.reread)
    weights *= 1 + op.reduce_reads_weights
  written = problem.elements * element_bytes((*op.sum_outputs, *op.outputs))
  row_statistics = problem.rows * op.statistics * STATISTIC_BYTES
  if tiling.form == "split":
    # partials written and read, the merged ones written, and read a segment
    statistics = (3 * tiling.column_blocks + 1) * row_statistics
  else:
    statistics = problem.rows * op.row_outputs * STATISTIC_BYTES
  total = read + weights + written + statistics
  block = config.block_rows * config.block_cols
  cost = op.twice if walks > 1 else op.once
  operations = problem.elements * (cost.operations + cost.special_functions)
  return RowTraffic(
    working_set_bytes=block * element_bytes((*op.inputs, *op.sum_outputs, *op.outputs))
    + config.block_cols * element_bytes(op.weights),
    input_read_bytes=read,
    weight_read_bytes=weights,
    output_write_bytes=written,
    statistic_bytes=statistics,
    total_bytes=total,
    operations=operations,
    intensity=operations / total if total else 0.0,
    grid=tiling.grid,
    launches=tiling.launches,
  )


def once_through_bytes(problem: RowProblem | TransposeProblem) -> int:
  """Bytes that any program must move: operands and weights read once, results written once.

  Raises:
    ValueError: `problem` is of another kind.
  """
  if isinstance(problem, TransposeProblem):
    return 2 * problem.elements * dtypes.size_bytes(problem.dtype)
  op = row_op(problem)
  streams = (*op.inputs, *op.sum_outputs, *op.outputs)
  weights = problem.columns * element_bytes(op.weights) if problem.rows else 0
  scales = problem.rows * op.row_outputs * STATISTIC_BYTES
  return problem.elements * element_bytes(streams) + weights + scales


def transpose_traffic(problem: TransposeProblem, config: RowConfig) -> RowTraffic:
  """Each element read once and written once; the working set is a block of both.

  Raises:
    ValueError: `problem` or `config` is of another kind.
  """
  if not isinstance(problem, TransposeProblem):
    raise ValueError(f"problem={problem!r}: expected a TransposeProblem")
  if not isinstance(config, RowConfig):
    raise ValueError(f"config={config!r}: expected a RowConfig")
  size = dtypes.size_bytes(problem.dtype)
  moved = problem.elements * size
  return RowTraffic(
    working_set_bytes=config.block_rows * config.block_cols * size,
    input_read_bytes=moved,
    weight_read_bytes=0,
    output_write_bytes=moved,
    statistic_bytes=0,
    total_bytes=2 * moved,
    operations=0,
    intensity=0.0,
    grid=(
      ceil_div(problem.rows, config.block_rows),
      ceil_div(problem.columns, config.block_cols),
    ),
    launches=1,
  )
