"""The portable matmul's schedule on an SM, compiled through Triton.

All warps of a block copy and compute. Operand stages live in shared memory,
the accumulator in registers, or in shared memory for what-if questions. Warps
multiply with mma.sync, each from fragments that it reads for itself, or on
Hopper four at a time with wgmma, which reads shared memory once for the four.
"""

import math

from hw_profiles import dtypes
from hw_profiles.arguments import ceil_div, round_up
from hw_profiles.capacity.buffers import Buffer, Shortfall, larger_first
from hw_profiles.capacity.residency import LANES_PER_WARP
from hw_profiles.cost.arithmetic import missing_rate, mma_sync_assumption, multiply_rate
from hw_profiles.matmul.config import MatmulConfig
from hw_profiles.matmul.problem import MatmulProblem
from hw_profiles.matmul.sm import SmKernel, shared_memory_statement, sm_demand
from hw_profiles.matmul.split_k import parts_of, split_shortfalls
from hw_profiles.planner.op_model import Demand
from hw_profiles.profile import GpuProfile

NAME = "multistage"
# Addresses, masks and loop state of a thread; the usual budget of a hand-written register
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
# A wgmma is four warps' and reads 64 rows of A, as deep as an mma.
WGMMA_WARPS = 4
WGMMA_ROWS = 64
# Operands of which Triton makes wgmmas. Of float8 it does not, as JAX's lowering does
# not allow the sums of few bits that wgmma makes of them.
WGMMA_DTYPES = ("bfloat16", "float16", "int8")
# Share of the full rate that they reach: ten tiles of 1024 x 4096 x 12288 take an H200 145 to
# 227 us, 8 to 25 % longer than at the rate of the warp-specialised kernel's wgmmas, which
# other warps keep supplied (docs/results/h200-gemm.json, session_5).
WGMMA_RATE_FRACTION = 0.9
# Bytes that a lane copies at once, and the fewest that it copies without waiting.
LANE_COPY_BYTES = 16
ASYNC_COPY_BYTES = 4


def warps(config: MatmulConfig, *, products: int = 1) -> int:
  """`num_warps`, or its default: 4, 8 from 128 x 128 accumulators on.

  8 warps keep the accumulator of a 128 x 128 tile at 64 registers a thread.
  """
  if config.num_warps is not None:
    return config.num_warps
  return 8 if products * config.block_m * config.block_n >= 128 * 128 else 4


def _block_threads(problem: MatmulProblem, config: MatmulConfig) -> int:
  return LANES_PER_WARP * warps(config, products=problem.products)


def uses_wgmma(problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile) -> bool:
  """Whether Triton multiplies the tile with wgmma; else, on tensor cores, with mma.sync.

  Where there is wgmma it takes it for whole warpgroups, a tile of 64 rows or a
  multiple, and K steps as deep as one. So it is in the machine code that XLA's
  Triton makes for sm_90a with jax 0.11.2: HGMMA.64x128x16 of 128 x 128 x 64,
  HGMMA.64x16x16 of 64 x 16 x 64, IGMMA of int8; HMMA.16816 of 32 x 64 x 64 and of
  float8.
  """
  return (
    gpu.has_wgmma
    and problem.dtype in WGMMA_DTYPES
    and config.accumulator == "registers"
    and warps(config, products=problem.products) % WGMMA_WARPS == 0
    and config.block_m % WGMMA_ROWS == 0
    and config.block_k * dtypes.size_bytes(problem.dtype) >= MMA_K_BYTES
  )


def _warpgroup_columns(problem: MatmulProblem, config: MatmulConfig) -> int:
  """Warpgroups side by side along N: those that find no 64 rows of their own along M."""
  warpgroups = warps(config, products=problem.products) // WGMMA_WARPS
  return ceil_div(warpgroups, config.block_m // WGMMA_ROWS)


def _warp_grid(problem: MatmulProblem, config: MatmulConfig) -> tuple[int, int]:
  """Warps along M and N: of the power-of-two splits the one that reads least.

  A warp reads block_m/rows + block_n/columns operand rows a K slice, as its
  neighbours read the same ones again.
  """
  count = warps(config, products=problem.products)
  splits = [(1 << i, count >> i) for i in range(count.bit_length()) if count % (1 << i) == 0]
  # times the count of warps, so that it is exact for any size
  return min(splits, key=lambda s: config.block_m * s[1] + config.block_n * s[0])


def _registers_per_thread(problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile) -> int:
  """Registers of a thread, estimated.

      accumulator  products·block_m·block_n / threads
      + fragments  (block_m/warps_m + block_n/warps_n)·32 B / (32 lanes · 4 B)
      + 32         addresses and loop state

  rounded up to 8. A fragment is one mma deep: 16 x 16 of A in 4 registers a
  lane, 16 x 8 of B in 2 (PTX ISA, mma.m16n8k16); wgmma has none, as it reads
  shared memory. The compiler may do better or worse; a count above what a
  thread can address means spills.
  """
  fragments = 0
  if not uses_wgmma(problem, config, gpu):
    warps_m, warps_n = _warp_grid(problem, config)
    rows = ceil_div(config.block_m, warps_m) + ceil_div(config.block_n, warps_n)
    fragments = ceil_div(rows * MMA_K_BYTES, LANES_PER_WARP * 4)
  if config.accumulator == "registers":
    outputs = problem.products * config.block_m * config.block_n
    accumulator = ceil_div(outputs, _block_threads(problem, config))
  else:
    accumulator = SHARED_ACCUMULATOR_REGISTERS
  return round_up(accumulator + fragments + INDEX_REGISTERS, REGISTER_STEP)


def _shared_bytes(problem: MatmulProblem, config: MatmulConfig) -> int:
  """Shared memory of a block: operand stages, and the accumulator if it is there."""
  size = dtypes.size_bytes(problem.dtype)
  stage = (config.block_m + problem.products * config.block_n) * config.block_k * size
  outputs = problem.products * config.block_m * config.block_n
  accumulator = 4 * outputs if config.accumulator == "shared" else 0
  return config.num_stages * stage + accumulator


def _buffers(problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile) -> tuple[Buffer, ...]:
  """Everything one block keeps on its SM."""
  size = dtypes.size_bytes(problem.dtype)
  shared = gpu.max_shared_bytes_per_block
  stages = config.num_stages
  b_bytes = problem.products * config.block_k * config.block_n * size
  accumulator_bytes = 4 * problem.products * config.block_m * config.block_n
  if config.accumulator == "shared":
    accumulator = Buffer("accumulator", "shared", accumulator_bytes, shared, 1)
  else:
    threads = _block_threads(problem, config)
    accumulators = ceil_div(accumulator_bytes // 4, threads)
    used = _registers_per_thread(problem, config, gpu)
    free = gpu.max_registers_per_thread - (used - accumulators)
    accumulator = Buffer(
      "accumulator", "registers", accumulator_bytes, 4 * max(free, 0) * threads, 1
    )
  return (
    Buffer("A", "shared", stages * config.block_m * config.block_k * size, shared, stages),
    Buffer("B", "shared", stages * b_bytes, shared, stages),
    accumulator,
  )


def unsupported(problem: MatmulProblem, gpu: GpuProfile) -> tuple[Shortfall, ...]:
  """A dtype that the device does not multiply."""
  return missing_rate(problem.dtype, gpu)


def shortfalls(
  problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile
) -> tuple[Shortfall, ...]:
  """What Triton's dot refuses, then shared memory, threads and registers."""
  part, unsplit = parts_of(problem, config)
  return (
    *split_shortfalls(problem, config),
    *_shape_shortfalls(config),
    *_capacity_shortfalls(part, unsplit, gpu),
  )


def _shape_shortfalls(config: MatmulConfig) -> list[Shortfall]:
  found = []
  for name in ("block_m", "block_n", "block_k"):
    value = getattr(config, name)
    if value < MIN_BLOCK or value & (value - 1):
      statement = f"Triton's dot takes powers of two of at least {MIN_BLOCK}"
      found.append(Shortfall("shape", "tile shape", (name,), statement))
  if warps(config) & (warps(config) - 1):
    found.append(Shortfall("shape", "tile shape", ("num_warps",), "Triton takes powers of two"))
  return found


def _capacity_shortfalls(
  problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile
) -> list[Shortfall]:
  found = []
  blocks = larger_first(block_n=config.block_n, block_m=config.block_m)
  needed = _shared_bytes(problem, config)
  if needed > gpu.max_shared_bytes_per_block:
    held = (
      f" and a {config.block_m}x{config.block_n} float32 accumulator"
      if config.accumulator == "shared"
      else ""
    )
    fields = ("block_k", *blocks)
    found.append(
      Shortfall(
        "capacity",
        "shared_memory",
        ("num_stages", *fields) if config.num_stages > 2 else (*fields, "num_stages"),
        shared_memory_statement(problem, config, gpu, needed_bytes=needed, besides=held),
      )
    )
  threads = _block_threads(problem, config)
  if threads > gpu.max_threads_per_block:
    found.append(
      Shortfall(
        "capacity",
        "threads",
        ("num_warps",),
        f"{threads // LANES_PER_WARP} warps are {threads} threads, {gpu.name} has"
        f" {gpu.max_threads_per_block} in a block",
      )
    )
  registers = _registers_per_thread(problem, config, gpu)
  # all warps of the block must fit the register file as well
  file_share = gpu.registers_per_sm // max(threads, 1)
  limit = min(gpu.max_registers_per_thread, file_share)
  if registers > limit:
    found.append(
      Shortfall(
        "capacity",
        "registers",
        (*blocks, "num_warps"),
        f"registers of a thread need about {registers} for its share of the"
        f" {config.block_m}x{config.block_n} accumulator, operand fragments and addresses,"
        f" {gpu.name} has {limit} with {threads // LANES_PER_WARP} warps",
      )
    )
  return found


def _shared_bytes_per_step(problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile) -> int:
  """Shared-memory bytes moved by one K step: copies in, operands out.

  Warps side by side read the same operand rows, each for itself, into
  fragments. A wgmma reads its 64 rows of A and all of its columns of B for four
  warps. An accumulator in shared memory is read and written in every step.
  """
  size = dtypes.size_bytes(problem.dtype)
  a_bytes = config.block_m * config.block_k * size
  b_bytes = problem.products * config.block_k * config.block_n * size
  if uses_wgmma(problem, config, gpu):
    a_reads = problem.products * _warpgroup_columns(problem, config)
    b_reads = config.block_m // WGMMA_ROWS
  else:
    b_reads, a_reads = _warp_grid(problem, config)
  moved = a_bytes * (1 + a_reads) + b_bytes * (1 + b_reads)
  if config.accumulator == "shared":
    moved += 2 * 4 * problem.products * config.block_m * config.block_n
  return moved


def demand(problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile) -> Demand:
  """Stages and accumulator of one block."""
  return sm_demand(
    problem,
    config,
    gpu,
    buffers=_buffers(problem, config, gpu),
    kernel=lambda: _kernel(problem, config, gpu),
    assumptions=(
      "registers of the compiled kernel estimated from the tile, not read from a binary",
      *_rate_assumption(problem, config, gpu),
    ),
  )


def _rate_assumption(
  problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile
) -> tuple[str, ...]:
  """What the tile's products are taken to reach, where that is not the full rate."""
  fraction = _rate_fraction(problem, config, gpu)
  if fraction == 1:
    return ()
  if not uses_wgmma(problem, config, gpu):
    return mma_sync_assumption(gpu)
  return (
    f"Triton's wgmmas, which wait for one another's operands, reach {fraction:.0%} of the rate",
  )


def _rate_fraction(problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile) -> float:
  """Share of the tensor cores' peak that the tile's instructions reach.

  All of it with mma.sync where there is nothing newer. float8 is multiplied as
  float16 by Hopper's mma.sync.
  """
  rate = multiply_rate(problem.dtype, gpu)
  if rate is None or rate.arithmetic == "cuda_cores":
    return 1.0
  if uses_wgmma(problem, config, gpu):
    return WGMMA_RATE_FRACTION
  if not (gpu.has_wgmma or gpu.tensor_memory_bytes_per_sm):
    return 1.0
  narrowed = gpu.has_wgmma and problem.dtype.startswith("float8")
  of_peak = gpu.peak_flops["float16"] / rate.flops_per_s if narrowed else 1.0
  return gpu.synchronous_mma_fraction * of_peak


def lane_copy_bytes(problem: MatmulProblem) -> tuple[int, int]:
  """Bytes of A and of B that a lane copies at once: 16, or less if rows do not begin at them.

  Rows are taken to lie as in `MatmulProblem`, A's K and B's N elements apart.
  """
  size = dtypes.size_bytes(problem.dtype)
  return (
    math.gcd(problem.k * size, LANE_COPY_BYTES),
    math.gcd(problem.n * size, LANE_COPY_BYTES),
  )


def one_step_at_a_time(problem: MatmulProblem) -> bool:
  """Whether a step's loads wait for the last step's, however many stages a tile has.

  cp.async takes 4, 8 or 16 bytes; fewer pass through registers, and Triton's
  pipeline does not load those ahead.
  """
  return min(lane_copy_bytes(problem)) < ASYNC_COPY_BYTES


def _narrow_copies(problem: MatmulProblem, config: MatmulConfig) -> int:
  """Copies by a warp that one K step takes of the operands with a pitch of less than 16 bytes."""
  size = dtypes.size_bytes(problem.dtype)
  a_lane, b_lane = lane_copy_bytes(problem)
  blocks = (
    (a_lane, config.block_m * config.block_k),
    (b_lane, problem.products * config.block_k * config.block_n),
  )
  return sum(
    ceil_div(elements * size, lane * LANES_PER_WARP)
    for lane, elements in blocks
    if lane < LANE_COPY_BYTES
  )


def _kernel(problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile) -> SmKernel:
  return SmKernel(
    threads=_block_threads(problem, config),
    registers_per_thread=_registers_per_thread(problem, config, gpu),
    shared_bytes=_shared_bytes(problem, config),
    shared_bytes_per_step=_shared_bytes_per_step(problem, config, gpu),
    persistent=False,
    rate_fraction=_rate_fraction(problem, config, gpu),
    narrow_copies_per_step=_narrow_copies(problem, config),
    one_step_at_a_time=one_step_at_a_time(problem),
  )
