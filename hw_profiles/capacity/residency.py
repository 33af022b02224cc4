"""How many thread blocks an SM holds at once, and what stops the next one."""

import dataclasses

from hw_profiles.arguments import at_least, ceil_div, round_up
from hw_profiles.errors import InfeasibleTileError
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.profile import GpuProfile
from hw_profiles.registry import resolve_gpu

LANES_PER_WARP = 32


@dataclasses.dataclass(frozen=True)
class Residency:
  """Thread blocks resident on one SM.

  The keys of the mappings are "threads", "registers", "shared_memory" and
  "blocks".

  Attributes:
    blocks_by: Blocks that each resource alone would allow.
    resident_blocks: The smallest of them.
    resident_warps: Warps of the resident blocks.
    occupancy: `resident_warps` over the warps an SM holds.
    binding: The resources that allow no further block.
    leftover: What the resident blocks leave: threads, 32-bit registers, bytes
      of shared memory, block slots.
  """

  blocks_by: FrozenMap[str, int]
  resident_blocks: int
  resident_warps: int
  occupancy: float
  binding: tuple[str, ...]
  leftover: FrozenMap[str, int]


def shared_allocation_bytes(gpu: GpuProfile, shared_bytes_per_block: int) -> int:
  """Shared memory an SM gives up for one block: request plus reserve, rounded up."""
  return round_up(
    shared_bytes_per_block + gpu.reserved_shared_bytes_per_block, gpu.shared_granularity_bytes
  )


def _check_block(
  gpu: GpuProfile, threads_per_block: int, registers_per_thread: int, shared_bytes_per_block: int
) -> None:
  """Raises InfeasibleTileError where not even one block runs."""
  if threads_per_block > gpu.max_threads_per_block:
    raise InfeasibleTileError(
      f"threads_per_block={threads_per_block}: {gpu.name} runs at most"
      f" {gpu.max_threads_per_block} threads in a block"
    )
  if registers_per_thread > gpu.max_registers_per_thread:
    raise InfeasibleTileError(
      f"registers_per_thread={registers_per_thread}: a thread of {gpu.name} addresses at most"
      f" {gpu.max_registers_per_thread}; more would spill to memory"
    )
  if shared_bytes_per_block > gpu.max_shared_bytes_per_block:
    raise InfeasibleTileError(
      f"shared_bytes_per_block={shared_bytes_per_block}: {gpu.name} gives one block at most"
      f" {gpu.max_shared_bytes_per_block} B of its {gpu.shared_bytes_per_sm} B per SM"
    )


def _warps_that_fit(gpu: GpuProfile, registers_per_thread: int) -> int:
  """Warps whose registers fit an SM: each sub-partition holds whole warps only."""
  per_warp = round_up(registers_per_thread * LANES_PER_WARP, gpu.register_unit_per_warp)
  return gpu.registers_per_sm // gpu.warp_granularity // per_warp * gpu.warp_granularity


def residency(
  gpu: str | GpuProfile,
  *,
  threads_per_block: int,
  registers_per_thread: int,
  shared_bytes_per_block: int,
) -> Residency:
  """Blocks an SM holds: the least of what each resource allows, rounded down.

  With w = ⌈threads/32⌉ warps a block:

      threads        ⌊max_warps / w⌋
      registers      ⌊warps the register file holds / w rounded up to 4⌋,
                     a warp taking 32·registers rounded up to 256
      shared_memory  ⌊shared per SM / (request + reserve, rounded up)⌋
      blocks         max_blocks

  Example (H100): 256 threads of 128 registers and 96 KiB give 8, 2, 2 and 32:
  2 blocks, bound by registers and shared memory, 34 KiB left over.

  Args:
    gpu: The device or its name.
    threads_per_block: At least 1.
    registers_per_thread: 32-bit registers, at least 1.
    shared_bytes_per_block: Static and dynamic shared memory together, without
      the system's reserve; 0 or more.

  Raises:
    InfeasibleTileError: not even one block runs.
    ValueError: `gpu` is no GPU, or another argument not an integer in its range.

  The granularities are those of NVIDIA's occupancy calculator
  (cuda_occupancy.h); the limits are the profile's.
  """
  gpu = resolve_gpu(gpu)
  at_least("threads_per_block", threads_per_block, 1)
  at_least("registers_per_thread", registers_per_thread, 1)
  at_least("shared_bytes_per_block", shared_bytes_per_block, 0)
  _check_block(gpu, threads_per_block, registers_per_thread, shared_bytes_per_block)

  warps = ceil_div(threads_per_block, LANES_PER_WARP)
  allocated_warps = round_up(warps, gpu.warp_granularity)
  shared_bytes = shared_allocation_bytes(gpu, shared_bytes_per_block)
  blocks_by = {
    "threads": gpu.max_warps_per_sm // warps,
    "registers": _warps_that_fit(gpu, registers_per_thread) // allocated_warps,
    "shared_memory": (
      gpu.shared_bytes_per_sm // shared_bytes if shared_bytes else gpu.max_blocks_per_sm
    ),
    "blocks": gpu.max_blocks_per_sm,
  }
  resident_blocks = min(blocks_by.values())
  if resident_blocks == 0:
    largest = max(
      count
      for count in range(1, gpu.max_registers_per_thread + 1)
      if _warps_that_fit(gpu, count) >= allocated_warps
    )
    raise InfeasibleTileError(
      f"registers_per_thread={registers_per_thread}: {threads_per_block} threads need more than"
      f" the {gpu.registers_per_sm} registers of an SM of {gpu.name};"
      f" largest registers_per_thread that fits is {largest}"
    )
  registers_per_warp = round_up(registers_per_thread * LANES_PER_WARP, gpu.register_unit_per_warp)
  return Residency(
    blocks_by=FrozenMap(blocks_by),
    resident_blocks=resident_blocks,
    resident_warps=resident_blocks * warps,
    occupancy=resident_blocks * warps / gpu.max_warps_per_sm,
    binding=tuple(name for name, count in blocks_by.items() if count == resident_blocks),
    leftover=FrozenMap(
      threads=gpu.max_threads_per_sm - resident_blocks * warps * LANES_PER_WARP,
      registers=gpu.registers_per_sm - resident_blocks * allocated_warps * registers_per_warp,
      shared_memory=gpu.shared_bytes_per_sm - resident_blocks * shared_bytes,
      blocks=gpu.max_blocks_per_sm - resident_blocks,
    ),
  )
