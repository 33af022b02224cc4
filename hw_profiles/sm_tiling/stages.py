"""What more pipeline stages cost: shared memory, and with it resident blocks."""

import dataclasses

from hw_profiles.arguments import at_least, few_enough
from hw_profiles.capacity.residency import Residency, residency
from hw_profiles.errors import InfeasibleTileError
from hw_profiles.profile import GpuProfile
from hw_profiles.registry import resolve_gpu
from hw_profiles.sm_tiling.block_tile import block_tile, operand_bytes


@dataclasses.dataclass(frozen=True)
class StageOption:
  """A block with one number of stages.

  Attributes:
    num_stages: Pairs of operand tiles held at once.
    shared_bytes_per_block: Of these pairs.
    residency: Blocks on an SM; None: not even one fits.
    bytes_ahead_per_sm: Loads under way on an SM while its blocks compute: all
      stages but the one in use. What Little's law needs (see `in_flight`).
  """

  num_stages: int
  shared_bytes_per_block: int
  residency: Residency | None
  bytes_ahead_per_sm: int


def stage_options(
  gpu: str | GpuProfile,
  *,
  block_m: int,
  block_n: int,
  block_k: int,
  in_dtype: str,
  threads_per_block: int,
  registers_per_thread: int,
  max_stages: int = 4,
) -> tuple[StageOption, ...]:
  """One to `max_stages` stages of operand tiles, accumulators in registers.

  Example: 128 x 128 x 8 tiles of float32 take 8 KiB a stage: 16, 24 and 32 KiB
  for 2, 3 and 4. Whether a third stage pays depends on the times: with constant
  ones two suffice, since copy and compute then overlap fully; a third absorbs
  jitter, or a latency above a step's compute time (see `pipeline`).

  Raises:
    InfeasibleTileError: threads or registers alone do not fit.
    ValueError: `gpu` is no GPU, or another argument is out of range.
  """
  at_least("max_stages", max_stages, 1)
  few_enough("max_stages", max_stages, instead="no block has more")
  gpu = resolve_gpu(gpu)
  at_least("max_stages", max_stages, 1)
  block = {"threads_per_block": threads_per_block, "registers_per_thread": registers_per_thread}
  residency(gpu, **block, shared_bytes_per_block=0)
  options = []
  for num_stages in range(1, max_stages + 1):
    tile = block_tile(
      block_m=block_m,
      block_n=block_n,
      block_k=block_k,
      in_dtype=in_dtype,
      num_stages=num_stages,
    )
    shared = operand_bytes(tile)
    resident: Residency | None
    try:
      resident = residency(gpu, **block, shared_bytes_per_block=shared)
    except InfeasibleTileError:
      resident = None
    blocks = resident.resident_blocks if resident else 0
    options.append(
      StageOption(
        num_stages=num_stages,
        shared_bytes_per_block=shared,
        residency=resident,
        bytes_ahead_per_sm=blocks * (num_stages - 1) * (tile.a_tile_bytes + tile.b_tile_bytes),
      )
    )
  return tuple(options)
