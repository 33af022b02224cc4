"""The tile configuration of the row-wise ops, which both the kernels and the planner read."""

import dataclasses
from typing import Literal

from hw_profiles import tile_config
from hw_profiles.arguments import whole_field

TileLayout = Literal["padded", "swizzled", "plain"]
LAYOUTS: tuple[TileLayout, ...] = ("padded", "swizzled", "plain")


@dataclasses.dataclass(frozen=True)
class RowConfig:
  """How a matrix of rows is cut among programs.

  One program (a thread block on an SM, a vector core's task on Ascend) works on
  `block_rows` x `block_cols` elements at a time. Sizes are in elements. No
  block has to divide the problem.

  An op that treats each element alone (swiglu, transpose) has a program for
  each block. One that needs something of the whole row first (rms_norm, row
  scales) has a program for each `block_rows` rows: with `block_cols` at least
  the row it reads the row once and keeps it; with less it walks the row twice.

  Attributes:
    block_rows: Rows of a block.
    block_cols: Columns of a block. On an SM a power of two, or up to 16 times one
      where it holds the row: 11264 is eleven pieces of 1024, and 11008 columns
      mask 256 lanes there, in 16384 they mask 5376.
    num_stages: Blocks in flight where a program walks several: shared-memory
      stages on an SM, UB buffers of a queue on Ascend. 1 means no overlap of
      copy and compute.
    num_warps: Warps per thread block. None: one for each 512 elements of a
      block, at most 8. Not read on Ascend.
    num_splits: Segments of a row, each a program's: a first launch reduces
      them, a second merges the partial results in their order, a third applies
      what came out. None: the problem's, where it fixes them, else 1.
    num_writers: Programs of a kept row: each reads the whole of it, reduces it
      and writes its part, of 2^i columns. More than 1 is for fewer rows than
      SMs. Of other forms, and on Ascend, only 1.
    layout: How a transpose keeps its block in shared memory: "padded" lengthens
      each row by one bank, "swizzled" permutes its columns by the row's number
      (rows are then whole 128 B), "plain" does neither, and conflicts. Not read
      by other ops, nor on Ascend.
  """

  block_rows: int
  block_cols: int
  num_stages: int = 2
  num_warps: int | None = dataclasses.field(default=None, kw_only=True)
  num_splits: int | None = dataclasses.field(default=None, kw_only=True)
  num_writers: int = dataclasses.field(default=1, kw_only=True)
  layout: TileLayout = dataclasses.field(default="padded", kw_only=True)

  def __post_init__(self) -> None:
    for name in ("block_rows", "block_cols", "num_stages", "num_writers"):
      whole_field(self, name, 1)
    for name in ("num_warps", "num_splits"):
      if getattr(self, name) is not None:
        whole_field(self, name, 1)
    if self.layout not in LAYOUTS:
      known = ", ".join(map(repr, LAYOUTS))
      raise ValueError(f"RowConfig.layout={self.layout!r}: expected one of {known}")

  def describe(self) -> str:
    """The config as `name=value` pairs, defaults left out: what `--tile` takes."""
    return tile_config.describe(self)
