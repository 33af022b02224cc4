"""The row-wise ops as the planner sees them."""

from collections.abc import Iterator

from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.rowwise import compiled, streaming, transpose_tile, transpose_vector, vector
from hw_profiles.rowwise.block_threads import warps
from hw_profiles.rowwise.candidates import row_candidates, transpose_candidates
from hw_profiles.rowwise.config import RowConfig
from hw_profiles.rowwise.problem import (
  QuantizeRowsProblem,
  RmsNormProblem,
  RowProblem,
  SwigluProblem,
  SwigluQuantizeProblem,
  TransposeProblem,
)
from hw_profiles.rowwise.tiling import most_splits, num_splits
from hw_profiles.tile_config import TileField, TileFields


def _tile_fields(config: RowConfig, *, splits: int, most_splits: int) -> TileFields:
  """Blocks and stages, then what one vendor, or a reduction, reads."""
  return {
    "block_cols": TileField(
      config.block_cols, larger_needs_more=True, is_block=True, is_output=True
    ),
    "block_rows": TileField(
      config.block_rows, larger_needs_more=True, is_block=True, is_output=True
    ),
    "num_stages": TileField(
      config.num_stages, larger_needs_more=True, fallback=min(config.num_stages, 2)
    ),
    # more warps need fewer registers each
    "num_warps": TileField(warps(config)),
    "num_splits": TileField(splits, most=most_splits),
    "num_writers": TileField(config.num_writers, larger_needs_more=True),
  }


class RowModel:
  """`OpModel` of an op on rows; see there for the attributes."""

  config_class = RowConfig
  gpu_schedules = (streaming,)
  npu_schedules = (compiled, vector)

  def __init__(self, name: str, problem_class: type[RowProblem]) -> None:
    """The op of one problem class."""
    self.name = name
    self.problem_class = problem_class

  def candidates(
    self, problem: RowProblem, device: GpuProfile | NpuProfile, schedule: str
  ) -> Iterator[RowConfig]:
    """Blocks, stages and, where a row is reduced, splits."""
    return row_candidates(problem, device, schedule)

  def tile_fields(self, problem: RowProblem, config: RowConfig) -> TileFields:
    """Every field that could mend a tile."""
    return _tile_fields(
      config, splits=num_splits(problem, config), most_splits=most_splits(problem)
    )


class TransposeModel:
  """`OpModel` of the transpose; see there for the attributes."""

  name = "transpose"
  problem_class = TransposeProblem
  config_class = RowConfig
  gpu_schedules = (transpose_tile,)
  npu_schedules = (compiled, transpose_vector)

  def candidates(
    self, problem: TransposeProblem, device: GpuProfile | NpuProfile, schedule: str
  ) -> Iterator[RowConfig]:
    """Blocks near squares."""
    return transpose_candidates(problem, device)

  def tile_fields(self, problem: TransposeProblem, config: RowConfig) -> TileFields:
    """Every field that could mend a tile."""
    splits = 1 if config.num_splits is None else config.num_splits
    return _tile_fields(config, splits=splits, most_splits=1)


SWIGLU = RowModel("swiglu", SwigluProblem)
SWIGLU_QUANTIZE = RowModel("swiglu_quantize", SwigluQuantizeProblem)
QUANTIZE_ROWS = RowModel("quantize_rows", QuantizeRowsProblem)
RMS_NORM = RowModel("rms_norm", RmsNormProblem)
TRANSPOSE = TransposeModel()
