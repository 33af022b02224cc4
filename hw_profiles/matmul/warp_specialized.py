"""The Hopper matmul's schedule: one TMA producer warpgroup, wgmma consumers.

One persistent block an SM: 128 threads that only copy, and 128 for each
consumer warpgroup. Operand stages and the epilogue's staging live in shared
memory, the accumulator in the consumers' registers. The kernel takes its
layout from here.
"""

import dataclasses
import functools
from typing import Literal

from hw_profiles import dtypes
from hw_profiles.arguments import ceil_div, round_up
from hw_profiles.capacity.buffers import Buffer, Shortfall, larger_first
from hw_profiles.capacity.warpgroups import (
  MOST_CONSUMERS,
  PRODUCER_REGISTERS,
  WARPGROUP_THREADS,
  block_threads,
  consumer_registers,
  launch_registers,
)
from hw_profiles.cost.arithmetic import missing_rate
from hw_profiles.matmul.config import MatmulConfig
from hw_profiles.matmul.problem import MatmulProblem
from hw_profiles.matmul.sm import SmKernel, shared_memory_statement, sm_demand
from hw_profiles.matmul.split_k import parts_of, split_shortfalls, sum_dtype
from hw_profiles.planner.op_model import Demand
from hw_profiles.profile import GpuProfile

NAME = "warp_specialized"
# Addresses, descriptors, loop state and the epilogue's fragment in a consumer thread
# besides its accumulator: tiles of 192 x 256 (128 accumulators) take 151 of 160 registers,
# and spill 528 bytes into 152. 192 accumulators of two consumers have 40.
CONSUMER_OVERHEAD_REGISTERS = 32
# The same where a settled tile waits: 128 x 256 of 16 bits take 209 of 232, 192 x 192 of three
# consumers 154 of 160.
_WAITING_OVERHEAD_REGISTERS = 16
# Three consumers have 160 registers beside a producer with 32, which it does with, too;
# 152 beside one with 40.
_PRODUCER_REGISTERS_OF_MANY = 32
_MANY_CONSUMERS = 3
# What else a wgmma needs besides the accumulators of its 64 rows; ptxas holds the sum against
# the registers that a thread is launched with, whatever setmaxnreg says (C7602: at least 154
# for 256 columns).
_WGMMA_OTHER_REGISTERS = 26
# Two 8-byte mbarriers a stage: "full" and "empty".
BARRIER_BYTES_PER_STAGE = 16
# A consumer stages 64 rows, one wgmma's height, while the TMA stores the other slot.
EPILOGUE_SLOTS = 2
EPILOGUE_MAX_COLUMNS = 64
# The epilogue's vectors (bias, scales) of a tile arrive while the tile before is
# finished; they are float32 at most.
VECTOR_SLOTS = 2
VECTOR_ITEM_BYTES = 4
# Mosaic begins each buffer of shared memory at a multiple of this; stages and staging have it.
BUFFER_ALIGNMENT_BYTES = 1024
WGMMA_ROWS = 64
WGMMA_MAX_COLUMNS = 256
# K of one 16-bit wgmma is 16 elements; the narrowest swizzle span is 32 B.
WGMMA_K_BYTES = 32
# Shared-memory rows that TMA permutes and wgmma reads back, widest first.
SWIZZLE_BYTES = (128, 64, 32)
# The portable limit of thread blocks in a cluster (CUDA programming guide).
MAX_CLUSTER_BLOCKS = 8
# Sums of which the tensor cores keep few bits: each K step has an accumulator of its
# own, which is added to the tile's in float32.
PROMOTED_DTYPES = ("float8_e4m3fn",)
SUPPORTED_DTYPES = ("bfloat16", "float16", "float8_e4m3fn", "int8")


def consumer_warpgroups(config: MatmulConfig) -> int:
  """`num_consumer_warpgroups`, or its default: 2 from 128 x 64 outputs on.

  Two warpgroups of a 128 x 256 tile hold 128 accumulator registers a thread;
  one would hold 256 and spill.
  """
  if config.num_consumer_warpgroups is not None:
    return config.num_consumer_warpgroups
  return 2 if config.block_m * config.block_n >= 128 * 64 else 1


def producer_registers(consumers: int) -> int:
  """Registers that a thread of the producer keeps beside so many consumer warpgroups."""
  return PRODUCER_REGISTERS if consumers < _MANY_CONSUMERS else _PRODUCER_REGISTERS_OF_MANY


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
  consumers = consumer_warpgroups(config)
  if config.block_m % (WGMMA_ROWS * consumers) == 0:
    return ConsumerTile(config.block_m // consumers, config.block_n, "m")
  return ConsumerTile(config.block_m, config.block_n // consumers, "n")


def wgmma_columns(config: MatmulConfig) -> int:
  """Columns of one wgmma: a consumer's, or half of them where none may hold as many sums.

  A wgmma of 64 rows holds columns / 2 accumulators a thread, and compiles only where these
  and 26 more are no more than the registers that the block is launched with: three consumers
  (128) take up to 204 columns at once, and 256 in two halves, each of which reads A.
  """
  columns = consumer_tile(config).columns
  most = launch_registers(consumer_warpgroups(config)) - _WGMMA_OTHER_REGISTERS
  return columns if columns * WGMMA_ROWS <= most * WARPGROUP_THREADS else columns // 2


def settled_tile_fits(config: MatmulConfig, *, products: int, settled_bytes: int) -> bool:
  """Whether consumers have registers for a settled tile beside the next one's accumulators.

  Args:
    config: The tile.
    products: Matrices B.
    settled_bytes: Of an element that waits.
  """
  consumers = consumer_warpgroups(config)
  sums = ceil_div(products * config.block_m * config.block_n, WARPGROUP_THREADS * consumers)
  waiting = ceil_div(sums * settled_bytes, 4)
  budget = consumer_registers(consumers, producer=producer_registers(consumers))
  return sums + waiting + _WAITING_OVERHEAD_REGISTERS <= budget


def operand_swizzle_bytes(
  config: MatmulConfig, *, in_dtype: str, a_transposed: bool = False, b_transposed: bool = False
) -> int | None:
  """The widest swizzle span that divides a row of the A tile and of the B tile, as stored.

  wgmma reads both operands in one swizzle mode, and 8-bit ones only with K
  innermost, so that there B is stored transposed. None: not even 32 B divides
  both.
  """
  size = dtypes.size_bytes(in_dtype)
  b_transposed = b_transposed or size == 1
  a_row = (config.block_m if a_transposed else config.block_k) * size
  b_row = (config.block_k if b_transposed else config.block_n) * size
  for span in SWIZZLE_BYTES:
    if a_row % span == 0 and b_row % span == 0:
      return span
  return None


def staging_columns(config: MatmulConfig, *, out_dtype: str) -> int:
  """Columns of the epilogue's sub-tile: `epilogue_block_n`, or its default.

  The default fills the widest swizzle span, of 128, 64 or 32 B, that holds at
  most 64 columns and divides a consumer's columns: 64 of bfloat16, 32 of
  float32; of bfloat16 32 for 96 columns, 16 for 80. Where none divides them
  the narrowest, which `shortfalls` then refuses.
  """
  if config.epilogue_block_n is not None:
    return config.epilogue_block_n
  columns = wgmma_columns(config)
  size = dtypes.size_bytes(out_dtype)
  for span in SWIZZLE_BYTES:
    width = span // size
    if width <= EPILOGUE_MAX_COLUMNS and columns % width == 0:
      break
  return width


def epilogue_bytes(config: MatmulConfig, *, out_dtype: str) -> int:
  """Staging of the result: 2 slots of 64 rows x staging_columns a consumer."""
  slots = consumer_warpgroups(config) * EPILOGUE_SLOTS
  columns = staging_columns(config, out_dtype=out_dtype)
  return slots * WGMMA_ROWS * columns * dtypes.size_bytes(out_dtype)


def warp_specialized_shared_bytes(
  config: MatmulConfig,
  *,
  in_dtype: str,
  out_dtype: str | None = None,
  products: int = 1,
  bias: bool = False,
  scaled: bool = False,
) -> int:
  """Shared memory of one block of the Hopper kernel.

      num_stages·((block_m + products·block_n)·block_k·size + 16)
        + consumers·2·64·staging_columns·out_size
        + 2·16 + Σ ⌈2·columns·4⌉ to 1 KiB      vectors; bias: block_n; scaled: block_m, block_n

  Args:
    config: The tile.
    in_dtype: Dtype of A and B.
    out_dtype: Dtype of C; None: `in_dtype`. Where K is split the sums are stored.
    products: Matrices B whose tiles lie in a stage side by side.
    bias: Whether a bias is added; where K is split, by another kernel.
    scaled: Whether rows and columns are scaled; the same.

  Raises:
    ValueError: `config` is no MatmulConfig, or a dtype is unknown.
  """
  if not isinstance(config, MatmulConfig):
    raise ValueError(f"config={config!r}: expected a MatmulConfig")
  size = dtypes.size_bytes(in_dtype)
  if config.split_k > 1:
    out_dtype, bias, scaled = sum_dtype(in_dtype), False, False
  operands = (config.block_m + products * config.block_n) * config.block_k * size
  stage = operands + BARRIER_BYTES_PER_STAGE
  staging = epilogue_bytes(config, out_dtype=in_dtype if out_dtype is None else out_dtype)
  return config.num_stages * stage + staging + _vector_bytes(config, bias=bias, scaled=scaled)


def _vector_bytes(config: MatmulConfig, *, bias: bool, scaled: bool) -> int:
  """Slots and barriers of the epilogue's vectors."""
  columns = (config.block_n,) * (int(bias) + int(scaled)) + (config.block_m,) * int(scaled)
  if not columns:
    return 0
  slots = (VECTOR_SLOTS * x * VECTOR_ITEM_BYTES for x in columns)
  aligned = sum(round_up(x, BUFFER_ALIGNMENT_BYTES) for x in slots)
  return aligned + VECTOR_SLOTS * BARRIER_BYTES_PER_STAGE


def _shared_bytes(problem: MatmulProblem, config: MatmulConfig) -> int:
  """`warp_specialized_shared_bytes` of a problem."""
  return warp_specialized_shared_bytes(
    config,
    in_dtype=problem.dtype,
    out_dtype=problem.result_dtype,
    products=problem.products,
    bias=problem.bias,
    scaled=problem.scaled,
  )


def _buffers(problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile) -> tuple[Buffer, ...]:
  """Everything one block keeps on its SM."""
  size = dtypes.size_bytes(problem.dtype)
  shared = gpu.max_shared_bytes_per_block
  stages = config.num_stages
  consumers = consumer_warpgroups(config)
  free_registers = _register_budget(gpu.registers_per_sm, consumers) - CONSUMER_OVERHEAD_REGISTERS
  return (
    Buffer("A", "shared", stages * config.block_m * config.block_k * size, shared, stages),
    Buffer(
      "B",
      "shared",
      stages * problem.products * config.block_k * config.block_n * size,
      shared,
      stages,
    ),
    Buffer(
      "epilogue",
      "shared",
      epilogue_bytes(config, out_dtype=problem.result_dtype),
      shared,
      consumers * EPILOGUE_SLOTS,
    ),
    Buffer("barriers", "shared", stages * BARRIER_BYTES_PER_STAGE, shared, 2 * stages),
    *(
      (Buffer("vectors", "shared", vectors, shared, VECTOR_SLOTS),)
      if (vectors := _vector_bytes(config, bias=problem.bias, scaled=problem.scaled))
      else ()
    ),
    Buffer(
      "accumulator",
      "registers",
      4 * _accumulators(problem) * config.block_m * config.block_n,
      4 * max(free_registers, 0) * WARPGROUP_THREADS * consumers,
      _accumulators(problem),
    ),
  )


def _accumulators(problem: MatmulProblem) -> int:
  """Float32 blocks as large as the tile that the consumers hold."""
  return problem.products * (2 if problem.dtype in PROMOTED_DTYPES else 1)


def unsupported(problem: MatmulProblem, gpu: GpuProfile) -> tuple[Shortfall, ...]:
  """Devices without wgmma, and dtypes the kernel does not take."""
  found = [*missing_rate(problem.dtype, gpu)]
  if not gpu.has_wgmma:
    found.append(
      Shortfall(
        "unsupported",
        "device",
        (),
        f"the warp-specialised kernel needs wgmma, compute capability 9.0; {gpu.name} is"
        f" {'.'.join(map(str, gpu.compute_capability))}",
      )
    )
  if problem.dtype not in SUPPORTED_DTYPES:
    found.append(
      Shortfall(
        "unsupported",
        "dtype",
        (),
        f"dtype={problem.dtype!r}: the warp-specialised kernel takes"
        f" {' and '.join(SUPPORTED_DTYPES)}"
        f"{'; wgmma would round float32 to TF32' if problem.dtype == 'float32' else ''}",
      )
    )
  return tuple(found)


def shortfalls(
  problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile
) -> tuple[Shortfall, ...]:
  """Rules of wgmma and of the kernel, then shared memory, threads and registers."""
  part, unsplit = parts_of(problem, config)
  return (
    *split_shortfalls(problem, config),
    *_shape_shortfalls(part, unsplit),
    *_capacity_shortfalls(part, unsplit, gpu),
  )


def _shape_shortfalls(problem: MatmulProblem, config: MatmulConfig) -> list[Shortfall]:
  found = []
  if config.accumulator != "registers":
    found.append(
      _shape((), f"accumulator={config.accumulator!r}: wgmma accumulates in registers only")
    )
  if config.cluster_m > 1 and config.cluster_n > 1:
    found.append(
      _shape(
        ("cluster_m", "cluster_n"),
        f"cluster_m={config.cluster_m} and cluster_n={config.cluster_n}: a cluster shares one"
        " operand, so one of them is 1",
      )
    )
  blocks = config.cluster_m * config.cluster_n
  if blocks > MAX_CLUSTER_BLOCKS:
    found.append(
      _shape(
        ("cluster_m", "cluster_n"),
        f"a cluster has at most {MAX_CLUSTER_BLOCKS} thread blocks on every device",
      )
    )
  if blocks & (blocks - 1):
    found.append(
      _shape(
        ("cluster_m", "cluster_n"),
        "thread blocks of a cluster share a tile evenly if they are a power of two",
      )
    )
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
  return Shortfall("shape", "tile shape", fields, statement)


def _column_shortfalls(problem: MatmulProblem, config: MatmulConfig) -> list[Shortfall]:
  consumers = consumer_warpgroups(config)
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
  if tile.axis == "n" and problem.products > 1 and consumers > 1:
    return [
      _shape(
        ("block_m", "num_consumer_warpgroups"),
        f"{consumers} consumer warpgroups of {problem.products} products share a tile along M:"
        f" block_m={config.block_m} has no {WGMMA_ROWS} rows for each",
      )
    ]
  width = problem.products * tile.columns
  if width > WGMMA_MAX_COLUMNS:
    of = "" if problem.products == 1 else f" of {problem.products} products"
    return [
      _shape(
        ("block_n",),
        f"a wgmma has at most {WGMMA_MAX_COLUMNS} columns, a consumer warpgroup would get"
        f" {width}{of}",
      )
    ]
  span = operand_swizzle_bytes(config, in_dtype=problem.dtype) or SWIZZLE_BYTES[-1]
  columns = wgmma_columns(config)
  if size > 1 and columns * size % span:
    of = "a consumer warpgroup's" if columns == tile.columns else "a wgmma's"
    return [
      _shape(
        ("block_n", "num_consumer_warpgroups"),
        f"{of} {columns} columns of B are {columns * size} B, not whole swizzle spans of {span} B",
      )
    ]
  return []


def _epilogue_shortfalls(problem: MatmulProblem, config: MatmulConfig) -> list[Shortfall]:
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
  columns = wgmma_columns(config)
  if columns % width:
    of = "consumer warpgroup" if columns == consumer_tile(config).columns else "wgmma"
    found.append(
      _shape(
        ("epilogue_block_n", "block_n"),
        f"the epilogue stores {width} columns at a time, which do not divide the {columns}"
        f" of a {of}",
      )
    )
  return found


def _capacity_shortfalls(
  problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile
) -> list[Shortfall]:
  found = []
  stages, consumers = config.num_stages, consumer_warpgroups(config)
  needed = _shared_bytes(problem, config)
  if needed > gpu.max_shared_bytes_per_block:
    fields = ("block_k", *larger_first(block_n=config.block_n, block_m=config.block_m))
    staged = epilogue_bytes(config, out_dtype=problem.result_dtype)
    found.append(
      Shortfall(
        "capacity",
        "shared_memory",
        ("num_stages", *fields) if stages > 2 else (*fields, "num_stages"),
        shared_memory_statement(
          problem,
          config,
          gpu,
          needed_bytes=needed,
          besides=f", {staged} B of epilogue and {stages * BARRIER_BYTES_PER_STAGE} B of barriers",
        ),
      )
    )
  threads = block_threads(consumers)
  if threads > gpu.max_threads_per_block:
    found.append(
      Shortfall(
        "capacity",
        "threads",
        ("num_consumer_warpgroups",),
        f"{consumers} consumer warpgroups and the producer are {threads} threads, {gpu.name} has"
        f" {gpu.max_threads_per_block}",
      )
    )
  blocks = _accumulators(problem)
  accumulators = ceil_div(blocks * config.block_m * config.block_n, WARPGROUP_THREADS * consumers)
  budget = _register_budget(gpu.registers_per_sm, consumers)
  if accumulators + CONSUMER_OVERHEAD_REGISTERS > budget:
    found.append(
      Shortfall(
        "capacity",
        "registers",
        larger_first(block_n=config.block_n, block_m=config.block_m),
        f"registers of a consumer thread need {accumulators} for its share of the"
        f" {config.block_m}x{config.block_n} accumulator{'s' if blocks > 1 else ''} and"
        f" {CONSUMER_OVERHEAD_REGISTERS}"
        f" besides, {gpu.name} has {budget} with {consumers} consumer warpgroup(s)",
      )
    )
  return found


@functools.cache
def _register_budget(registers_per_sm: int, consumers: int) -> int:
  """`consumer_registers`; 0 for more consumers than a block has threads for."""
  if consumers > MOST_CONSUMERS:
    return 0
  return consumer_registers(
    consumers, registers_per_sm=registers_per_sm, producer=producer_registers(consumers)
  )


def _shared_bytes_per_step(problem: MatmulProblem, config: MatmulConfig) -> int:
  """Shared-memory bytes moved by one K step: TMA writes and wgmma reads.

  A wgmma reads 64 rows of A once and all its columns of B, so B is read again
  for every 64 rows of the tile, and A for each wgmma along N and each product.
  """
  size = dtypes.size_bytes(problem.dtype)
  a_bytes = config.block_m * config.block_k * size
  b_bytes = problem.products * config.block_k * config.block_n * size
  a_reads = problem.products * (config.block_n // wgmma_columns(config))
  b_reads = config.block_m // WGMMA_ROWS
  return a_bytes * (1 + a_reads) + b_bytes * (1 + b_reads)


def demand(problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile) -> Demand:
  """Stages, staging, barriers and accumulator of the one block of an SM."""
  part, unsplit = parts_of(problem, config)
  return sm_demand(
    problem,
    config,
    gpu,
    buffers=_buffers(part, unsplit, gpu),
    kernel=lambda: _kernel(part, unsplit, gpu),
    assumptions=("one persistent block an SM, whose copies run ahead through the epilogue",),
  )


def _kernel(problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile) -> SmKernel:
  consumers = consumer_warpgroups(config)
  tile = consumer_tile(config)
  note = (
    f"{consumers} consumer warpgroup(s) split {tile.axis.upper()}: {tile.rows}x{tile.columns}"
    f" each, up to {_register_budget(gpu.registers_per_sm, consumers)} registers a thread"
  )
  return SmKernel(
    threads=block_threads(consumers),
    registers_per_thread=launch_registers(consumers, registers_per_sm=gpu.registers_per_sm),
    shared_bytes=_shared_bytes(problem, config),
    shared_bytes_per_step=_shared_bytes_per_step(problem, config),
    persistent=True,
    # a step's wgmmas run while the next stage is awaited, and keep their own until
    # the next are issued; float8 steps are waited for
    held_stages=int(config.num_stages > 1 and problem.dtype not in PROMOTED_DTYPES),
    notes=(note,),
  )
