"""On-chip needs of the portable matmul, compiled through Triton.

All warps of a block copy and compute. Operand stages live in shared memory,
the accumulator in registers, or in shared memory for what-if questions.
"""

from hw_profiles import dtypes
from hw_profiles.arguments import ceil_div, round_up
from hw_profiles.capacity.buffers import Buffer, Shortfall, larger_first
from hw_profiles.capacity.residency import LANES_PER_WARP
from hw_profiles.config import MatmulConfig
from hw_profiles.problem import MatmulProblem
from hw_profiles.profile import GpuProfile

# Addresses, masks and loop state of a thread; the seed's budget of a register
# tile allows 30 for the same.
INDEX_REGISTERS = 32
# Fragments of the accumulator that pass through a thread's registers when the
# accumulator itself is in shared memory: one 16 x 8 tile is 4 values a lane.
SHARED_ACCUMULATOR_REGISTERS = 4
# An mma reads 32 B of each row at a time: m16n8k16 for 16-bit operands.
MMA_K_BYTES = 32
REGISTER_STEP = 8
# Triton's dot takes no side below 16.
MIN_BLOCK = 16


def block_threads(config: MatmulConfig) -> int:
  """Threads of the block."""
  return LANES_PER_WARP * config.warps


def warp_grid(config: MatmulConfig) -> tuple[int, int]:
  """Warps along M and N: of the power-of-two splits the one that reads least.

  A warp reads block_m/rows + block_n/columns operand rows a K slice, as its
  neighbours read the same ones again.
  """
  splits = [
    (rows, config.warps // rows) for rows in range(1, config.warps + 1) if config.warps % rows == 0
  ]
  return min(splits, key=lambda s: config.block_m / s[0] + config.block_n / s[1])


def registers_per_thread(config: MatmulConfig) -> int:
  """Registers of a thread, estimated.

      accumulator  block_m·block_n / threads
      + fragments  (block_m/warps_m + block_n/warps_n)·32 B / (32 lanes · 4 B)
      + 32         addresses and loop state

  rounded up to 8. A fragment is one mma deep: 16 x 16 of A in 4 registers a
  lane, 16 x 8 of B in 2 (PTX ISA, mma.m16n8k16). The compiler may do better or
  worse; a count above what a thread can address means spills.
  """
  warps_m, warps_n = warp_grid(config)
  rows = ceil_div(config.block_m, warps_m) + ceil_div(config.block_n, warps_n)
  fragments = ceil_div(rows * MMA_K_BYTES, LANES_PER_WARP * 4)
  if config.accumulator == "registers":
    accumulator = ceil_div(config.block_m * config.block_n, block_threads(config))
  else:
    accumulator = SHARED_ACCUMULATOR_REGISTERS
  return round_up(accumulator + fragments + INDEX_REGISTERS, REGISTER_STEP)


def shared_bytes(problem: MatmulProblem, config: MatmulConfig) -> int:
  """Shared memory of a block: operand stages, and the accumulator if it is there."""
  size = dtypes.size_bytes(problem.dtype)
  stage = (config.block_m + config.block_n) * config.block_k * size
  accumulator = 4 * config.block_m * config.block_n if config.accumulator == "shared" else 0
  return config.num_stages * stage + accumulator


def buffers(problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile) -> tuple[Buffer, ...]:
  """Everything one block keeps on its SM."""
  size = dtypes.size_bytes(problem.dtype)
  shared = gpu.max_shared_bytes_per_block
  stages = config.num_stages
  accumulator_bytes = 4 * config.block_m * config.block_n
  if config.accumulator == "shared":
    accumulator = Buffer("accumulator", "shared", accumulator_bytes, shared, 1)
  else:
    accumulators = ceil_div(config.block_m * config.block_n, block_threads(config))
    free = gpu.max_registers_per_thread - (registers_per_thread(config) - accumulators)
    accumulator = Buffer(
      "accumulator", "registers", accumulator_bytes, 4 * max(free, 0) * block_threads(config), 1
    )
  return (
    Buffer("A", "shared", stages * config.block_m * config.block_k * size, shared, stages),
    Buffer("B", "shared", stages * config.block_k * config.block_n * size, shared, stages),
    accumulator,
  )


def structural_shortfalls(
  problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile
) -> tuple[Shortfall, ...]:
  """What Triton's dot refuses whatever the memory."""
  del problem, gpu  # the rules are the compiler's
  found = []
  for name in ("block_m", "block_n", "block_k"):
    value = getattr(config, name)
    if value < MIN_BLOCK or value & (value - 1):
      found.append(
        Shortfall(
          "tile shape", (name,), f"Triton's dot takes powers of two of at least {MIN_BLOCK}"
        )
      )
  if config.warps & (config.warps - 1):
    found.append(Shortfall("tile shape", ("num_warps",), "Triton takes powers of two"))
  return tuple(found)


def capacity_shortfalls(
  problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile
) -> tuple[Shortfall, ...]:
  """Shared memory, registers and threads of one block against the SM's."""
  found = []
  blocks = larger_first(block_n=config.block_n, block_m=config.block_m)
  needed = shared_bytes(problem, config)
  if needed > gpu.max_shared_bytes_per_block:
    held = (
      f" and a {config.block_m}x{config.block_n} float32 accumulator"
      if config.accumulator == "shared"
      else ""
    )
    fields = ("block_k", *blocks)
    found.append(
      Shortfall(
        "shared_memory",
        ("num_stages", *fields) if config.num_stages > 2 else (*fields, "num_stages"),
        f"shared memory needs {needed} B for {config.num_stages} stage(s) of A"
        f" ({config.block_m}x{config.block_k} {problem.dtype}) and B"
        f" ({config.block_k}x{config.block_n}){held}, {gpu.name} has"
        f" {gpu.max_shared_bytes_per_block} B",
      )
    )
  threads = block_threads(config)
  if threads > gpu.max_threads_per_block:
    found.append(
      Shortfall(
        "threads",
        ("num_warps",),
        f"{config.warps} warps are {threads} threads, {gpu.name} has"
        f" {gpu.max_threads_per_block} in a block",
      )
    )
  registers = registers_per_thread(config)
  # all warps of the block must fit the register file as well
  file_share = gpu.registers_per_sm // max(threads, 1)
  limit = min(gpu.max_registers_per_thread, file_share)
  if registers > limit:
    found.append(
      Shortfall(
        "registers",
        (*blocks, "num_warps"),
        f"registers of a thread need about {registers} for its share of the"
        f" {config.block_m}x{config.block_n} accumulator, operand fragments and addresses,"
        f" {gpu.name} has {limit} with {config.warps} warps",
      )
    )
  return tuple(found)


def shared_bytes_per_step(problem: MatmulProblem, config: MatmulConfig) -> int:
  """Shared-memory bytes moved by one K step: copies in, fragments out.

  Warps side by side read the same operand rows, each for itself. An
  accumulator in shared memory is read and written in every step.
  """
  size = dtypes.size_bytes(problem.dtype)
  warps_m, warps_n = warp_grid(config)
  a_bytes = config.block_m * config.block_k * size
  b_bytes = config.block_k * config.block_n * size
  moved = a_bytes * (1 + warps_n) + b_bytes * (1 + warps_m)
  if config.accumulator == "shared":
    moved += 2 * 4 * config.block_m * config.block_n
  return moved
