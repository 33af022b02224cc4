"""Warps and registers of a row-wise kernel's thread block, shared by its schedules on an SM."""

from hw_profiles.arguments import ceil_div, round_up
from hw_profiles.capacity.buffers import Shortfall, larger_first
from hw_profiles.capacity.residency import LANES_PER_WARP
from hw_profiles.profile import GpuProfile
from hw_profiles.rowwise.config import RowConfig
from hw_profiles.rowwise.tiling import pieces

# Addresses, masks and loop state of a thread, as for any hand-written register tile.
ADDRESS_REGISTERS = 32
REGISTER_STEP = 8
# Each piece is code of its own, some 200 instructions.
_MOST_PIECES = 16
# 16 elements a thread are two 16-byte loads of a 16-bit operand.
_ELEMENTS_PER_WARP = 512
# Of rows in one piece: on an H200 4096 columns take rms_norm 28.5 us with 8 warps, 28.7
# with 4 and 31.9 with 16 (7239 rows).
_MOST_DEFAULT_WARPS = 8


def warps(config: RowConfig) -> int:
  """`num_warps`, or its default: one for each 512 elements of a block, a power of two up to 8."""
  if config.num_warps is not None:
    return config.num_warps
  wanted = ceil_div(config.block_rows * config.block_cols, _ELEMENTS_PER_WARP)
  return min(1 << (wanted - 1).bit_length(), _MOST_DEFAULT_WARPS)


def threads(config: RowConfig) -> int:
  """Threads of a block."""
  return LANES_PER_WARP * warps(config)


def registers_per_thread(config: RowConfig, *, element_bytes: int) -> int:
  """Registers of a thread, estimated: its elements as loaded and as float32, and 32 besides.

  Args:
    config: The tile.
    element_bytes: Bytes that one element of every operand takes as loaded.
  """
  elements = ceil_div(config.block_rows * config.block_cols, threads(config))
  loaded = ceil_div(elements * element_bytes, 4)
  return round_up(loaded + elements + ADDRESS_REGISTERS, REGISTER_STEP)


def register_limit(config: RowConfig, gpu: GpuProfile) -> int:
  """Registers a thread may have so that its block still runs."""
  return min(gpu.max_registers_per_thread, gpu.registers_per_sm // threads(config))


def register_bytes(config: RowConfig, gpu: GpuProfile) -> int:
  """Bytes of a block's registers that may hold elements."""
  return 4 * max(register_limit(config, gpu) - ADDRESS_REGISTERS, 0) * threads(config)


def power_of_two_shortfalls(config: RowConfig, *, in_pieces: bool = False) -> list[Shortfall]:
  """Blocks are loaded by Triton, whose arrays have powers of two on each side.

  Args:
    config: The tile.
    in_pieces: Whether the block is that of a kept row: up to 16 equal pieces.
  """
  found = []
  for name in ("block_rows", "block_cols"):
    value = getattr(config, name)
    if in_pieces and name == "block_cols":
      if pieces(value).count > _MOST_PIECES:
        statement = f"a kept row is at most {_MOST_PIECES} times a power of two wide"
        found.append(Shortfall("shape", "tile shape", (name,), statement))
    elif value & (value - 1):
      found.append(Shortfall("shape", "tile shape", (name,), "Triton's blocks are powers of two"))
  count = warps(config)
  if count & (count - 1):
    found.append(Shortfall("shape", "tile shape", ("num_warps",), "Triton takes powers of two"))
  return found


def thread_shortfalls(
  config: RowConfig, gpu: GpuProfile, *, element_bytes: int, kept: str
) -> list[Shortfall]:
  """Threads and registers.

  Args:
    config: The tile.
    gpu: The device.
    element_bytes: See `registers_per_thread`.
    kept: What the registers hold, as a phrase.
  """
  count = threads(config)
  if count > gpu.max_threads_per_block:
    return [
      Shortfall(
        "capacity",
        "threads",
        ("num_warps",),
        f"{warps(config)} warps are {count} threads, {gpu.name} has {gpu.max_threads_per_block}"
        " in a block",
      )
    ]
  needed = registers_per_thread(config, element_bytes=element_bytes)
  limit = register_limit(config, gpu)
  if needed <= limit:
    return []
  blocks = larger_first(block_cols=config.block_cols, block_rows=config.block_rows)
  return [
    Shortfall(
      "capacity",
      "registers",
      (*blocks, "num_warps"),
      f"registers of a thread need about {needed} for its share of {kept}, {gpu.name} has {limit}"
      f" with {warps(config)} warps",
    )
  ]
