"""Tile configurations: the one description both the kernels and the planner read.

The classes hold numbers only. They live here, and not beside the kernels,
because the planner must read them without importing JAX; `pallas_kernels`
re-exports them as its public configs.
"""

import dataclasses
from typing import Literal


def _check_positive_int(owner: str, name: str, value: object) -> None:
  if isinstance(value, bool) or not isinstance(value, int) or value < 1:
    raise ValueError(f"{owner}.{name}={value!r}: expected an integer of at least 1")


@dataclasses.dataclass(frozen=True)
class MatmulConfig:
  """How one C = A·B tile is cut, staged and finished.

  One program (a thread block on an SM, an AIC core's task on Ascend) computes
  a `block_m` x `block_n` tile of C, walking K in steps of `block_k` with
  `num_stages` operand tiles in flight. Sizes are in elements. No block has to
  divide the problem.

  Attributes:
    block_m: Rows of C per program.
    block_n: Columns of C per program.
    block_k: Depth of one K step: the A tile is block_m x block_k, the B tile
      block_k x block_n.
    num_stages: Operand tiles held at once: shared-memory stages on an SM, L1
      buffers on Ascend. 1 means no overlap of copy and compute.
    group_m: Tile rows walked together before the next tile column, so that
      programs resident at the same time share operands in L2. 1 walks row by
      row.
    accumulator: Where the float32 accumulator lives on an SM. The kernels keep
      it in registers; "shared" is for what-if questions to the planner
      (Ascend always uses L0C).
    num_warps: Warps per thread block of the portable kernel's Triton lowering.
      None: chosen from the tile. Not read elsewhere.
    num_consumer_warpgroups: wgmma warpgroups of the Hopper kernel, which share
      the tile along M when block_m has 64 rows for each, else along N. None:
      2 for tiles of at least 128 x 64 outputs, else 1. Not read elsewhere.
    epilogue_block_n: Columns of the output sub-tile that the Hopper kernel
      stages in shared memory for one TMA store. None: 64, or block_n if
      smaller. Not read elsewhere.
  """

  block_m: int
  block_n: int
  block_k: int
  num_stages: int = 2
  group_m: int = dataclasses.field(default=8, kw_only=True)
  accumulator: Literal["registers", "shared"] = dataclasses.field(default="registers", kw_only=True)
  num_warps: int | None = dataclasses.field(default=None, kw_only=True)
  num_consumer_warpgroups: int | None = dataclasses.field(default=None, kw_only=True)
  epilogue_block_n: int | None = dataclasses.field(default=None, kw_only=True)

  def __post_init__(self) -> None:
    for name in ("block_m", "block_n", "block_k", "num_stages", "group_m"):
      _check_positive_int("MatmulConfig", name, getattr(self, name))
    for name in ("num_warps", "num_consumer_warpgroups", "epilogue_block_n"):
      value = getattr(self, name)
      if value is not None:
        _check_positive_int("MatmulConfig", name, value)
    if self.accumulator not in ("registers", "shared"):
      raise ValueError(
        f"MatmulConfig.accumulator={self.accumulator!r}: expected 'registers' or 'shared'"
      )

  @property
  def warps(self) -> int:
    """`num_warps`, or its default: 4, 8 from 128 x 128 outputs on.

    8 warps keep the accumulator of a 128 x 128 tile at 64 registers a thread.
    """
    if self.num_warps is not None:
      return self.num_warps
    return 8 if self.block_m * self.block_n >= 128 * 128 else 4

  @property
  def consumer_warpgroups(self) -> int:
    """`num_consumer_warpgroups`, or its default: 2 from 128 x 64 outputs on.

    Two warpgroups of a 128 x 256 tile hold 128 accumulator registers a thread;
    one would hold 256 and spill.
    """
    if self.num_consumer_warpgroups is not None:
      return self.num_consumer_warpgroups
    return 2 if self.block_m * self.block_n >= 128 * 64 else 1

  @property
  def epilogue_columns(self) -> int:
    """`epilogue_block_n`, or its default: 64, block_n where that is smaller.

    64 columns of a 16-bit dtype are the 128 B of the widest TMA swizzle.
    """
    if self.epilogue_block_n is not None:
      return self.epilogue_block_n
    return min(64, self.block_n)

  def describe(self) -> str:
    """The config as `name=value` pairs, defaults left out: what `--tile` takes."""
    parts = []
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.name == "num_stages" or value != field.default:
        parts.append(f"{field.name}={value}")
    return ",".join(parts)
