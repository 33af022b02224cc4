"""A thread block for each row, on Hopper: how a row comes to it, for kernels of whole rows.

A core has several blocks at once: some wait for their rows while others compute. As soon as one is
done the hardware starts the next, on whichever core that is. Blocks that stay, one a core, and take
every n-th row (`row_stream`) end far apart, as memory serves cores unevenly: of silu(gate)·up
1024 x 12288 an H200's cores were busy for 26200 to 34900 cycles, 30800 on average, where those that
streamed the same bytes in small blocks took 31800 to 32800.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.first_copies import FirstCopies
from pallas_kernels.rowwise import row_stream
from pallas_kernels.rowwise.arithmetic import INTERPRETED, Arithmetic
from pallas_kernels.rowwise.mosaic_arithmetic import MosaicArithmetic
from pallas_kernels.rowwise.row_groups import Share

# Wider rows were not measured, and leave a core room for fewer blocks.
WIDEST = 16384


@dataclasses.dataclass(frozen=True)
class RowBlock:
  """One instance.

  Attributes:
    share: How the warpgroups of a block share a row.
    matrices: Of which a row comes in.
    vectors: That come in with it, in shared memory behind the rows.
    policy: What L2 is told of all that comes in, as of `kept_copy.issue`.
  """

  share: Share
  matrices: int
  vectors: int = 0
  policy: str | None = None

  @property
  def _copies(self) -> FirstCopies:
    count = (self.matrices + self.vectors) * len(row_stream.copies_of(self.share.columns))
    return FirstCopies(count, self.policy, self.share.interpreted)

  def scratch(self, dtypes: Sequence[Any]) -> tuple[Any, ...]:
    """Of matrices and vectors of these dtypes: their rows, `exchange`, `arrived`, `meet`.

    `meet` is a barrier of the block's warpgroups, the interpreter's alone.
    """
    share = self.share
    meet = plgpu.Barrier(num_arrivals=share.members)
    return (
      *(plgpu.SMEM((share.room,), dtype) for dtype in dtypes),
      plgpu.SMEM((2, share.warps), jnp.float32),
      self._copies.scratch(),
      *([meet] if share.interpreted else []),
    )

  def start(self, row: Any, sources: Sequence[Any], there: Sequence[Any], arrived: Any) -> None:
    """Before all else: asks for a row of each matrix, shifted, and for the vectors."""
    copies = []
    for index, (source, place) in enumerate(zip(sources, there, strict=True)):
      is_row = index < self.matrices
      part, shift = (source.at[row], self.share.shift(row)) if is_row else (source, 0)
      for first, size in row_stream.copies_of(self.share.columns):
        copies.append((part.at[pl.ds(first, size)], place.at[pl.ds(first + shift, size)]))
    self._copies.start(copies, arrived, self.member() == 0)

  def wait(self, arrived: Any) -> None:
    """Until all that `start` asked for is there."""
    self._copies.wait(arrived)

  @staticmethod
  def row() -> Any:
    """The block's row."""
    return lax.axis_index("row")

  @staticmethod
  def member() -> Any:
    """Which of its warpgroups this is."""
    return lax.axis_index("warpgroup")

  def arithmetic(self, *, ordinary: bool = False) -> Arithmetic:
    """What specs compute with; see `MosaicArithmetic`."""
    if self.share.interpreted:
      return INTERPRETED
    return MosaicArithmetic(vector_size=self.share.vector, ordinary=ordinary)

  def kernel_params(self, rows: int) -> dict[str, Any]:
    """Grid and threads, for `plgpu.kernel`."""
    return {
      "grid": (rows,),
      "grid_names": ("row",),
      "num_threads": self.share.members,
      "thread_name": "warpgroup",
      "compiler_params": row_stream.RowStream.compiler_params(),
    }
