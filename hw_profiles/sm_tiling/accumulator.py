"""Where a tile's accumulator lives: in shared memory or in registers."""

import dataclasses
from typing import Literal

from hw_profiles import dtypes
from hw_profiles.arguments import at_least, ceil_div
from hw_profiles.capacity.residency import Residency, residency
from hw_profiles.profile import GpuProfile
from hw_profiles.sm_tiling.block_tile import block_tile, operand_bytes
from hw_profiles.sm_tiling.register_budget import REGISTER_BYTES

Placement = Literal["shared_memory", "registers"]


@dataclasses.dataclass(frozen=True)
class AccumulatorPlacement:
  """A thread block with its accumulator in one place.

  Attributes:
    placement: "shared_memory" or "registers".
    accumulator_registers_per_thread: What it takes or would take there.
    registers_per_thread: The base, with the accumulator if it is in registers.
    shared_bytes_per_block: Operand stages, with the accumulator if it is there.
    shared_traffic_bytes_per_step: What each step of K moves between registers
      and shared memory for the accumulator: once in, once out; 0 in registers.
    residency: Blocks of it on an SM, and what binds.
  """

  placement: Placement
  accumulator_registers_per_thread: int
  registers_per_thread: int
  shared_bytes_per_block: int
  shared_traffic_bytes_per_step: int
  residency: Residency


def accumulator_placement(
  gpu: str | GpuProfile,
  *,
  placement: Placement,
  block_m: int,
  block_n: int,
  block_k: int,
  threads_per_block: int,
  base_registers_per_thread: int,
  in_dtype: str = "bfloat16",
  acc_dtype: str = "float32",
  num_stages: int = 1,
) -> AccumulatorPlacement:
  """Residency of a block with block_m x block_n accumulators here or there.

      accumulator registers = ⌈block_m · block_n · acc_size / 4 / threads⌉

  Example (H100, 128 x 128 x 64 of bfloat16, 256 threads): with the accumulator
  in shared memory and 128 registers a thread 2 blocks fit, bound by registers
  and by shared memory. In registers it takes 64 more: on a base of 64 there are
  again 128 and again 2 blocks, bound by registers alone, though shared memory
  would hold 6. On the base of 128 there are 192, and only 1 block fits: moving
  the accumulator gains no block, and costs one unless the base is small. (An
  example that speaks of 128 throughout and gets 2 blocks has changed its base
  to 64 on the way.)

  A third block needs fewer registers and, in shared memory, a smaller tile:
  64 x 64 fits 2 blocks with 128 registers and 4 with 64, registers binding both
  times.

  Args:
    gpu: The device or its name.
    placement: "shared_memory" or "registers".
    block_m: Rows of the tile; at least 1, as all sizes.
    block_n: Columns of the tile.
    block_k: Depth of a step along K.
    threads_per_block: That share the accumulator.
    base_registers_per_thread: Of everything but the accumulator.
    in_dtype: Dtype of A and B.
    acc_dtype: Dtype of the accumulator.
    num_stages: Pairs of operand tiles in shared memory.

  Raises:
    InfeasibleTileError: not even one block runs.
    ValueError: `gpu` is no GPU, or another argument is out of range.
  """
  if placement not in ("shared_memory", "registers"):
    raise ValueError(f"placement={placement!r}: expected 'shared_memory' or 'registers'")
  at_least("threads_per_block", threads_per_block, 1)
  at_least("base_registers_per_thread", base_registers_per_thread, 1)
  tile = block_tile(
    block_m=block_m,
    block_n=block_n,
    block_k=block_k,
    in_dtype=in_dtype,
    acc_dtype=acc_dtype,
    num_stages=num_stages,
  )
  extra = ceil_div(
    block_m * block_n * dtypes.size_bytes(acc_dtype), threads_per_block * REGISTER_BYTES
  )
  in_registers = placement == "registers"
  registers = base_registers_per_thread + (extra if in_registers else 0)
  shared = operand_bytes(tile) if in_registers else tile.working_set_bytes
  return AccumulatorPlacement(
    placement=placement,
    accumulator_registers_per_thread=extra,
    registers_per_thread=registers,
    shared_bytes_per_block=shared,
    shared_traffic_bytes_per_step=0 if in_registers else 2 * tile.accumulator_bytes,
    residency=residency(
      gpu,
      threads_per_block=threads_per_block,
      registers_per_thread=registers,
      shared_bytes_per_block=shared,
    ),
  )
