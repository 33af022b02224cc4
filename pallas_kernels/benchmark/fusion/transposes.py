"""A transpose in blocks of several sides, and what layouts in shared memory do to its banks."""

import dataclasses

from hw_profiles import RowConfig, dtypes
from hw_profiles.rowwise.config import LAYOUTS, TileLayout
from hw_profiles.rowwise.transpose_shared import block_layout, column_read_ways, swizzle_divides
from pallas_kernels.benchmark.fusion.program import OpProgram, Program
from pallas_kernels.benchmark.ops.rowwise import QWEN_HIDDEN
from pallas_kernels.benchmark.ops.transpose import TRANSPOSE, TransposeOptions

DTYPE = "float16"
SIDES = (16, 32, 64)
LAYOUT_DTYPES = ("float32", "float16")


@dataclasses.dataclass(frozen=True)
class BlockTranspose(OpProgram[TransposeOptions]):
  """One side of the block."""

  @property
  def traffic_bytes(self) -> int:
    """Once in, once out, whatever the block."""
    return self.op.once_through_bytes(self.shape, self.dtype, self.options)

  @property
  def launches(self) -> int:
    """One."""
    return 1


@dataclasses.dataclass(frozen=True)
class Banks:
  """A block in shared memory.

  Attributes:
    side: Rows and columns.
    dtype: Of its elements.
    layout: "plain", "padded" or "swizzled".
    shared_bytes: What it takes.
    column_ways: Passes of a warp that reads it by columns, over those without
      a conflict.
  """

  side: int
  dtype: str
  layout: TileLayout
  shared_bytes: int
  column_ways: float

  @property
  def name(self) -> str:
    """Tells it from the others."""
    return f"{self.side} {self.dtype} {self.layout}"


def banks() -> tuple[Banks, ...]:
  """Every layout that a side and a dtype have."""
  found = []
  for dtype in LAYOUT_DTYPES:
    size = dtypes.size_bytes(dtype)
    for side in SIDES:
      for layout in sorted(LAYOUTS):
        config = RowConfig(side, side, 1, layout=layout)
        if layout == "swizzled" and not swizzle_divides(config, size_bytes=size):
          continue
        found.append(
          Banks(
            side,
            dtype,
            layout,
            block_layout(config, size_bytes=size).size_bytes,
            column_read_ways(config, size_bytes=size),
          )
        )
  return tuple(found)


def programs() -> tuple[Program, ...]:
  """The course's two blocks and one with rows of 128 B."""
  return tuple(
    BlockTranspose(
      "transpose",
      f"{side}x{side}",
      QWEN_HIDDEN,
      DTYPE,
      RowConfig(side, side, 1),
      TRANSPOSE,
      TransposeOptions(),
    )
    for side in SIDES
  )
