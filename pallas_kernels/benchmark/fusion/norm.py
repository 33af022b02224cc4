"""RMSNorm with a row whole, or in segments that are summed apart and merged in their order."""

import dataclasses
from typing import Any

import hw_profiles
from hw_profiles import RowConfig
from pallas_kernels.benchmark.fusion.program import OpProgram, Program
from pallas_kernels.benchmark.ops.op import Function
from pallas_kernels.benchmark.ops.rms_norm import RMS_NORM, RmsNormOptions
from pallas_kernels.benchmark.ops.rowwise import QWEN_HIDDEN, RowsShape

DTYPE = "bfloat16"
SPLITS = (1, 2, 4, 8, 16, 32)
# One row so long that one SM would take as long as the whole device otherwise.
LONG_ROW = RowsShape(rows=1, columns=4 * 1024 * 1024)
LONG_SPLITS = (1, 32, 128)


@dataclasses.dataclass(frozen=True)
class SplitNorm(OpProgram[RmsNormOptions]):
  """One number of segments, a row a program."""

  @property
  def _traffic(self) -> hw_profiles.SplitReductionTraffic:
    return hw_profiles.split_reduction_traffic(
      rows=self.shape.rows,
      width=self.shape.columns,
      num_splits=self.options.num_splits or 1,
      dtype=self.dtype,
    )

  @property
  def traffic_bytes(self) -> int:
    """Each segment reads its row's scale for itself."""
    return self._traffic.total_bytes

  @property
  def launches(self) -> int:
    """1, or partial sums, their merge, the result."""
    return self._traffic.launches

  @property
  def kernels(self) -> int:
    """The last one merges the partial sums itself: each program those of its rows, in order."""
    return min(self.launches, 2)

  def call(self, implementation: str | None) -> Function:
    """The public function; interpreted a segment is one block, as each step copies the operands."""
    if implementation != "interpret":
      return super().call(implementation)
    tile = _segment(self.shape, self.options.num_splits or 1)
    return self.op.call(self.options, config=tile, implementation=implementation)


def _segment(shape: RowsShape, splits: int) -> RowConfig:
  """A row or a segment of it in one block."""
  return RowConfig(1, shape.columns // splits, 1, num_splits=splits)


def programs() -> tuple[Program, ...]:
  """The course's matrix in 1 to 32 segments a row, and one long row."""

  def program(variant: str, shape: RowsShape, splits: int) -> Program:
    options: Any = RmsNormOptions(num_splits=splits)
    tile = _segment(shape, splits)
    # too long for a block: the planner's tile
    kept = tile if tile.block_cols <= QWEN_HIDDEN.columns else None
    return SplitNorm("rms_norm", variant, shape, DTYPE, kept, RMS_NORM, options)

  return (
    *(program(str(splits), QWEN_HIDDEN, splits) for splits in SPLITS),
    *(program(f"one_row/{splits}", LONG_ROW, splits) for splits in LONG_SPLITS),
  )
