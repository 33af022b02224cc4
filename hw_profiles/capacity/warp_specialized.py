"""On-chip needs of the Hopper matmul: one TMA producer warpgroup, wgmma consumers.

One persistent block an SM: 128 threads that only copy, and 128 for each
consumer warpgroup. Operand stages and the epilogue's staging live in shared
memory, the accumulator in the consumers' registers.
"""

import dataclasses
from typing import Literal

from hw_profiles import dtypes
from hw_profiles.capacity.buffers import Buffer, Shortfall, larger_first
from hw_profiles.config import MatmulConfig
from hw_profiles.problem import MatmulProblem
from hw_profiles.profile import GpuProfile

WARPGROUP_THREADS = 128
# A producer thread keeps addresses, a phase and a loop counter; 40 is what
# JAX's Mosaic GPU pipeline emitter leaves it, too.
PRODUCER_REGISTERS = 40
# Addresses, descriptors, loop state and the epilogue's fragment in a consumer
# thread besides its accumulator. Assumed: 128 x 256 tiles (128 accumulators)
# are known to run without spills in 232 registers, 192 accumulators fill it.
CONSUMER_OVERHEAD_REGISTERS = 40
# setmaxnreg takes multiples of 8
REGISTER_STEP = 8
# Two 8-byte mbarriers a stage: "full" and "empty".
BARRIER_BYTES_PER_STAGE = 16
# A consumer stages 64 rows, one wgmma's height, while the TMA stores the other slot.
EPILOGUE_SLOTS = 2
WGMMA_ROWS = 64
WGMMA_MAX_COLUMNS = 256
# K of one 16-bit wgmma is 16 elements; the narrowest swizzle span is 32 B.
WGMMA_K_BYTES = 32
# Shared-memory rows that TMA permutes and wgmma reads back, widest first.
SWIZZLE_BYTES = (128, 64, 32)
SUPPORTED_DTYPES = ("bfloat16", "float16")
_OTHER_SCHEDULE = "schedule='multistage' takes it"


@dataclasses.dataclass(frozen=True)
class ConsumerTile:
  """The part of a tile that one consumer warpgroup computes.

  Attributes:
    rows: Rows of C.
    columns: Columns of C.
    axis: What the warpgroups split: "m" or "n".
  """

  rows: int
  columns: int
  axis: Literal["m", "n"]


def consumer_tile(config: MatmulConfig) -> ConsumerTile:
  """How consumers share a tile: along M when each gets whole 64-row wgmmas, else N."""
  consumers = config.consumer_warpgroups
  if config.block_m % (WGMMA_ROWS * consumers) == 0:
    return ConsumerTile(config.block_m // consumers, config.block_n, "m")
  return ConsumerTile(config.block_m, config.block_n // consumers, "n")


def operand_swizzle_bytes(config: MatmulConfig, *, in_dtype: str) -> int | None:
  """The widest swizzle span that divides a row of the A tile and of the B tile.

  wgmma reads both operands in one swizzle mode. None: not even 32 B divides both.
  """
  size = dtypes.size_bytes(in_dtype)
  for span in SWIZZLE_BYTES:
    if config.block_k * size % span == 0 and config.block_n * size % span == 0:
      return span
  return None


def consumer_registers(gpu: GpuProfile, consumers: int) -> int:
  """Registers a consumer thread may hold once the producer keeps 40.

      ⌊(registers_per_sm/128 - 40) / consumers⌋, rounded down to a multiple of 8

  capped at what a thread can address: 255, 232, 152 for 1, 2, 3 consumers.
  """
  share = (gpu.registers_per_sm // WARPGROUP_THREADS - PRODUCER_REGISTERS) // consumers
  return min(gpu.max_registers_per_thread, share // REGISTER_STEP * REGISTER_STEP)


def launch_registers(gpu: GpuProfile, threads: int) -> int:
  """Registers each thread is launched with, before warpgroups trade them."""
  share = gpu.registers_per_sm // threads // REGISTER_STEP * REGISTER_STEP
  return min(share, gpu.max_registers_per_thread // REGISTER_STEP * REGISTER_STEP)


def block_threads(config: MatmulConfig) -> int:
  """Threads of the block: the producer's warpgroup and the consumers'."""
  return WARPGROUP_THREADS * (config.consumer_warpgroups + 1)


def staging_columns(config: MatmulConfig, *, out_dtype: str) -> int:
  """Columns of the epilogue's sub-tile.

  `epilogue_block_n` where it is set; else 64, or fewer where block_n has fewer
  or 64 would exceed the 128 B of the widest swizzle span (32 of float32).
  """
  if config.epilogue_block_n is not None:
    return config.epilogue_block_n
  return min(config.epilogue_columns, SWIZZLE_BYTES[0] // dtypes.size_bytes(out_dtype))


def epilogue_bytes(config: MatmulConfig, *, out_dtype: str) -> int:
  """Staging of the result: 2 slots of 64 rows x staging_columns a consumer."""
  slots = config.consumer_warpgroups * EPILOGUE_SLOTS
  columns = staging_columns(config, out_dtype=out_dtype)
  return slots * WGMMA_ROWS * columns * dtypes.size_bytes(out_dtype)


def warp_specialized_shared_bytes(
  config: MatmulConfig, *, in_dtype: str, out_dtype: str | None = None
) -> int:
  """Shared memory of one block of the Hopper kernel.

      num_stages·((block_m + block_n)·block_k·size + 16)
        + consumers·2·64·staging_columns·out_size

  Args:
    config: The tile.
    in_dtype: Dtype of A and B.
    out_dtype: Dtype of C; None: `in_dtype`.

  Raises:
    ValueError: a dtype is unknown.
  """
  size = dtypes.size_bytes(in_dtype)
  stage = (config.block_m + config.block_n) * config.block_k * size + BARRIER_BYTES_PER_STAGE
  staging = epilogue_bytes(config, out_dtype=in_dtype if out_dtype is None else out_dtype)
  return config.num_stages * stage + staging


def buffers(problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile) -> tuple[Buffer, ...]:
  """Everything one block keeps on its SM."""
  size = dtypes.size_bytes(problem.dtype)
  shared = gpu.max_shared_bytes_per_block
  stages = config.num_stages
  consumers = config.consumer_warpgroups
  free_registers = consumer_registers(gpu, consumers) - CONSUMER_OVERHEAD_REGISTERS
  return (
    Buffer("A", "shared", stages * config.block_m * config.block_k * size, shared, stages),
    Buffer("B", "shared", stages * config.block_k * config.block_n * size, shared, stages),
    Buffer(
      "epilogue",
      "shared",
      epilogue_bytes(config, out_dtype=problem.result_dtype),
      shared,
      consumers * EPILOGUE_SLOTS,
    ),
    Buffer("barriers", "shared", stages * BARRIER_BYTES_PER_STAGE, shared, 2 * stages),
    Buffer(
      "accumulator",
      "registers",
      4 * config.block_m * config.block_n,
      4 * max(free_registers, 0) * WARPGROUP_THREADS * consumers,
      1,
    ),
  )


def structural_shortfalls(
  problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile
) -> tuple[Shortfall, ...]:
  """Rules of wgmma and of the kernel that no amount of memory would lift."""
  found = []
  if not gpu.has_wgmma:
    found.append(
      Shortfall(
        "device",
        (),
        f"the warp-specialised kernel needs wgmma, compute capability 9.0; {gpu.name} is"
        f" {'.'.join(map(str, gpu.compute_capability))}",
        _OTHER_SCHEDULE,
      )
    )
  if problem.dtype not in SUPPORTED_DTYPES:
    found.append(
      Shortfall(
        "dtype",
        (),
        f"dtype={problem.dtype!r}: the warp-specialised kernel takes"
        f" {' and '.join(SUPPORTED_DTYPES)}; wgmma would round float32 to TF32",
        _OTHER_SCHEDULE,
      )
    )
  if config.accumulator != "registers":
    found.append(
      Shortfall(
        "tile shape",
        (),
        f"accumulator={config.accumulator!r}: wgmma accumulates in registers only",
        _OTHER_SCHEDULE,
      )
    )
  return (*found, *_shape_shortfalls(problem, config))


def _shape_shortfalls(problem: MatmulProblem, config: MatmulConfig) -> list[Shortfall]:
  found = []
  if config.block_m % WGMMA_ROWS:
    found.append(_shape(("block_m",), f"wgmma computes multiples of {WGMMA_ROWS} rows"))
  row_bytes = config.block_k * dtypes.size_bytes(problem.dtype)
  if row_bytes % WGMMA_K_BYTES:
    found.append(
      _shape(
        ("block_k",),
        f"a K step of {row_bytes} B is not a multiple of the {WGMMA_K_BYTES} B of a wgmma",
      )
    )
  return [*found, *_column_shortfalls(problem, config), *_epilogue_shortfalls(problem, config)]


def _shape(fields: tuple[str, ...], statement: str) -> Shortfall:
  return Shortfall("tile shape", fields, statement)


def _column_shortfalls(problem: MatmulProblem, config: MatmulConfig) -> list[Shortfall]:
  consumers = config.consumer_warpgroups
  tile = consumer_tile(config)
  size = dtypes.size_bytes(problem.dtype)
  if tile.axis == "n" and config.block_n % consumers:
    return [
      _shape(
        ("block_n", "num_consumer_warpgroups"),
        f"{consumers} consumer warpgroups share block_m={config.block_m} along N, which they do"
        " not divide",
      )
    ]
  if tile.columns > WGMMA_MAX_COLUMNS:
    return [
      _shape(
        ("block_n",),
        f"a wgmma has at most {WGMMA_MAX_COLUMNS} columns, a consumer warpgroup would get"
        f" {tile.columns}",
      )
    ]
  span = operand_swizzle_bytes(config, in_dtype=problem.dtype) or SWIZZLE_BYTES[-1]
  if tile.columns * size % span:
    return [
      _shape(
        ("block_n", "num_consumer_warpgroups"),
        f"a consumer warpgroup's {tile.columns} columns of B are {tile.columns * size} B, not"
        f" whole swizzle spans of {span} B",
      )
    ]
  return []


def _epilogue_shortfalls(problem: MatmulProblem, config: MatmulConfig) -> list[Shortfall]:
  tile = consumer_tile(config)
  width = staging_columns(config, out_dtype=problem.result_dtype)
  row_bytes = width * dtypes.size_bytes(problem.result_dtype)
  found = []
  if row_bytes not in SWIZZLE_BYTES:
    found.append(
      _shape(
        ("epilogue_block_n",),
        f"the epilogue stages rows of {row_bytes} B ({width} {problem.result_dtype}), TMA swizzles"
        f" rows of {', '.join(map(str, SWIZZLE_BYTES[::-1]))} B",
      )
    )
  if tile.columns % width:
    found.append(
      _shape(
        ("epilogue_block_n", "block_n"),
        f"the epilogue stores {width} columns at a time, which do not divide the {tile.columns}"
        " of a consumer warpgroup",
      )
    )
  return found


def capacity_shortfalls(
  problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile
) -> tuple[Shortfall, ...]:
  """Shared memory, registers and threads of one block against the SM's."""
  found = []
  stages, consumers = config.num_stages, config.consumer_warpgroups
  needed = warp_specialized_shared_bytes(
    config, in_dtype=problem.dtype, out_dtype=problem.result_dtype
  )
  if needed > gpu.max_shared_bytes_per_block:
    fields = ("block_k", *larger_first(block_n=config.block_n, block_m=config.block_m))
    staged = epilogue_bytes(config, out_dtype=problem.result_dtype)
    found.append(
      Shortfall(
        "shared_memory",
        ("num_stages", *fields) if stages > 2 else (*fields, "num_stages"),
        f"shared memory needs {needed} B for {stages} stage(s) of A"
        f" ({config.block_m}x{config.block_k} {problem.dtype}) and B"
        f" ({config.block_k}x{config.block_n}), {staged} B of epilogue and"
        f" {stages * BARRIER_BYTES_PER_STAGE} B of barriers, {gpu.name} has"
        f" {gpu.max_shared_bytes_per_block} B",
      )
    )
  threads = block_threads(config)
  if threads > gpu.max_threads_per_block:
    found.append(
      Shortfall(
        "threads",
        ("num_consumer_warpgroups",),
        f"{consumers} consumer warpgroups and the producer are {threads} threads, {gpu.name} has"
        f" {gpu.max_threads_per_block}",
      )
    )
  accumulators = -(-config.block_m * config.block_n // (WARPGROUP_THREADS * consumers))
  budget = consumer_registers(gpu, consumers)
  if accumulators + CONSUMER_OVERHEAD_REGISTERS > budget:
    found.append(
      Shortfall(
        "registers",
        larger_first(block_n=config.block_n, block_m=config.block_m),
        f"registers of a consumer thread need {accumulators} for its share of the"
        f" {config.block_m}x{config.block_n} accumulator and {CONSUMER_OVERHEAD_REGISTERS}"
        f" besides, {gpu.name} has {budget} with {consumers} consumer warpgroup(s)",
      )
    )
  return tuple(found)


def shared_bytes_per_step(problem: MatmulProblem, config: MatmulConfig) -> int:
  """Shared-memory bytes moved by one K step: TMA writes and wgmma reads.

  A wgmma reads 64 rows of A once and all its columns of B, so B is read again
  for every 64 rows of the tile.
  """
  size = dtypes.size_bytes(problem.dtype)
  tile = consumer_tile(config)
  a_bytes = config.block_m * config.block_k * size
  b_bytes = config.block_k * config.block_n * size
  a_reads = config.block_n // tile.columns
  b_reads = config.block_m // WGMMA_ROWS
  return a_bytes * (1 + a_reads) + b_bytes * (1 + b_reads)
