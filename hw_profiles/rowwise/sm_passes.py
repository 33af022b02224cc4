"""The launches of a row-wise op on SMs: what each program does and what DRAM sees."""

import dataclasses

from hw_profiles.arguments import ceil_div
from hw_profiles.cost.sm_time import SmAmounts
from hw_profiles.cost.stream_time import SmPass
from hw_profiles.profile import GpuProfile
from hw_profiles.rowwise.cache import is_reread_from_l2, is_warm
from hw_profiles.rowwise.config import RowConfig
from hw_profiles.rowwise.problem import RowProblem
from hw_profiles.rowwise.streams import STATISTIC_BYTES, ElementCost, RowOp, element_bytes
from hw_profiles.rowwise.tiling import RowTiling
from hw_profiles.rowwise.traffic import once_through_bytes


@dataclasses.dataclass(frozen=True)
class Passes:
  """The launches, in order.

  Attributes:
    passes: What `sm_stream_time` takes.
    warm: Whether L2 serves everything.
    reread_from_l2: Whether it serves a second read.
  """

  passes: tuple[SmPass, ...]
  warm: bool
  reread_from_l2: bool


@dataclasses.dataclass(frozen=True)
class _Bytes:
  """Bytes of the whole matrix by stream."""

  read: int
  reread: int
  summed: int
  written: int
  weights: int
  row_statistics: int


def _bytes(problem: RowProblem, op: RowOp) -> _Bytes:
  return _Bytes(
    read=problem.elements * element_bytes(op.inputs),
    reread=problem.elements * element_bytes(op.reread),
    summed=problem.elements * element_bytes(op.sum_outputs),
    written=problem.elements * element_bytes(op.outputs),
    weights=problem.columns * element_bytes(op.weights) if problem.rows else 0,
    row_statistics=problem.rows * op.statistics * STATISTIC_BYTES,
  )


def sm_passes(
  problem: RowProblem,
  config: RowConfig,
  op: RowOp,
  tiling: RowTiling,
  gpu: GpuProfile,
  *,
  resident_blocks: int,
) -> Passes:
  """The launches of one tile.

  A kept row's weights are asked for after the reduction: they are not needed
  before, and no compiler moves a load across its barrier. That is a second wait.
  Of several writers each asks for its few before it.

  Args:
    problem: What is computed.
    config: The tile.
    op: `row_op(problem)`.
    tiling: How the tile cuts it.
    gpu: The device.
    resident_blocks: Thread blocks an SM holds.
  """
  total = _bytes(problem, op)
  warm = is_warm(
    asked=problem.warm_l2,
    input_bytes=total.read + total.weights,
    output_bytes=total.summed + total.written,
    l2_bytes=gpu.l2_bytes,
  )
  rows = min(config.block_rows, max(problem.rows, 1))
  columns = min(tiling.segment_columns, problem.columns)
  block = config.block_rows * config.block_cols * tiling.steps
  walk_trips = ceil_div(tiling.steps, min(config.num_stages, tiling.steps)) if tiling.steps else 0

  def launch(
    cost: ElementCost,
    *,
    element_traffic: int,
    column_traffic: int,
    again: int = 0,
    row_traffic: int,
    dram_bytes: int,
    round_trips: int,
  ) -> SmPass:
    return SmPass(
      programs=tiling.programs,
      resident_blocks=resident_blocks,
      per_program=SmAmounts(
        l2_bytes=rows * (columns * element_traffic + row_traffic + again)
        + columns * column_traffic,
        special_functions=block * cost.special_functions,
        cuda_core_operations=block * cost.operations,
      ),
      round_trips=round_trips,
      dram_bytes=0 if warm else dram_bytes,
    )

  read, written = element_bytes(op.inputs), element_bytes(op.outputs)
  summed, again = element_bytes(op.sum_outputs), element_bytes(op.reread)
  weight = element_bytes(op.weights)

  if tiling.form in ("elementwise", "kept"):
    several = tiling.form == "kept" and tiling.column_blocks > 1
    waits_for_weights = bool(op.weights) and not op.reduce_reads_weights and not several
    one = launch(
      op.once,
      element_traffic=read + summed + written,
      column_traffic=weight,
      row_traffic=op.row_outputs * STATISTIC_BYTES,
      # the rest of the row
      again=(problem.columns - columns) * read if several else 0,
      dram_bytes=once_through_bytes(problem),
      round_trips=1 + waits_for_weights,
    )
    return Passes((one,), warm, reread_from_l2=True)

  if tiling.form == "walked_twice":
    # the rows of all programs that run at once pass before one is read again
    between = min(gpu.sm_count * resident_blocks * rows, problem.rows) * columns * (read + summed)
    hit = warm or is_reread_from_l2(between_bytes=between, l2_bytes=gpu.l2_bytes)
    one = launch(
      op.twice,
      element_traffic=read + summed + again + written,
      column_traffic=weight * (1 + op.reduce_reads_weights),
      row_traffic=op.row_outputs * STATISTIC_BYTES,
      dram_bytes=once_through_bytes(problem) + (0 if hit else total.reread),
      round_trips=2 * walk_trips,
    )
    return Passes((one,), warm, reread_from_l2=hit)

  segments = tiling.column_blocks
  statistic = op.statistics * STATISTIC_BYTES
  hit = warm or is_reread_from_l2(between_bytes=total.read + total.summed, l2_bytes=gpu.l2_bytes)
  partial = launch(
    op.reduce,
    element_traffic=read + summed,
    column_traffic=weight if op.reduce_reads_weights else 0,
    row_traffic=statistic,
    dram_bytes=total.read
    + total.summed
    + (total.weights if op.reduce_reads_weights else 0)
    + segments * total.row_statistics,
    round_trips=walk_trips,
  )
  merge = SmPass(
    programs=tiling.row_blocks,
    resident_blocks=resident_blocks,
    per_program=SmAmounts(
      l2_bytes=rows * (segments + 1) * statistic,
      cuda_core_operations=rows * segments * op.statistics,
    ),
    round_trips=1,
    # the partial statistics were just written: L2 has them
    dram_bytes=0 if warm else total.row_statistics,
  )
  outputs = launch(
    op.recompute + op.apply,
    element_traffic=again + written,
    column_traffic=weight,
    row_traffic=statistic,
    dram_bytes=total.written + total.weights + (0 if hit else total.reread),
    round_trips=walk_trips,
  )
  return Passes((partial, merge, outputs), warm, reread_from_l2=hit)
