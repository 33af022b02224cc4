"""The matmul's schedule on tcgen05: one SM or a pair, accumulators in tensor memory.

    shared memory   num_stages of A and B, which one thread's MMAs read; staging of C
    tensor memory   accumulators, 128 lanes of `block_n` float32 columns, two where they fit

A tile of 256 rows is a pair's: each SM keeps 128 rows of A and of C, and half of
B's columns, which both multiply. No kernel of this library is written so; it is
what the vendor's libraries do on compute capability 10.0, and what a tile would
take there.
"""

from hw_profiles import dtypes
from hw_profiles.capacity.buffers import Buffer, Shortfall, larger_first
from hw_profiles.cost.arithmetic import missing_rate
from hw_profiles.matmul.config import MatmulConfig
from hw_profiles.matmul.problem import MatmulProblem
from hw_profiles.matmul.sm import SmKernel, shared_memory_statement, sm_demand
from hw_profiles.planner.op_model import Demand
from hw_profiles.profile import GpuProfile

NAME = "tcgen05"
SUPPORTED_DTYPES = ("bfloat16", "float16", "float8_e4m3fn", "int8")
# Shapes: mma_sm100_umma.hpp of CUTLASS; 64 rows fill half of the lanes and are left out.
ROWS_OF_AN_SM = 128
MOST_SMS = 2
COLUMN_UNIT = 16
MOST_COLUMNS = 256
MMA_K_BYTES = 32
# Tensor memory has 128 lanes of 32-bit columns: 512 of them in 256 KiB.
LANES = 128
COLUMN_BYTES = 4 * LANES
# One warp loads, one issues MMAs, four read accumulators: each sees a quarter of the lanes.
THREADS = 6 * 32
# Of a thread that reads accumulators, 64 columns at a time beside addresses.
REGISTERS_PER_THREAD = 128
# C leaves in two slots of rows of 128 B.
EPILOGUE_SLOTS = 2
EPILOGUE_ROW_BYTES = 128
BARRIER_BYTES_PER_STAGE = 16


def sms_per_tile(config: MatmulConfig) -> int:
  """SMs that share a tile: one for each 128 rows."""
  return max(config.block_m // ROWS_OF_AN_SM, 1)


def accumulators(problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile) -> int:
  """Tiles of C in tensor memory: two let one be stored while the other is computed."""
  columns = problem.products * config.block_n
  return 2 if 2 * columns * COLUMN_BYTES <= gpu.tensor_memory_bytes_per_sm else 1


def _operand_bytes(problem: MatmulProblem, config: MatmulConfig) -> tuple[int, int]:
  """A and B of one stage in one SM's shared memory."""
  size = dtypes.size_bytes(problem.dtype)
  rows = config.block_m // sms_per_tile(config)
  columns = problem.products * config.block_n // sms_per_tile(config)
  return rows * config.block_k * size, columns * config.block_k * size


def _staging_bytes() -> int:
  return EPILOGUE_SLOTS * ROWS_OF_AN_SM * EPILOGUE_ROW_BYTES


def _shared_bytes(problem: MatmulProblem, config: MatmulConfig) -> int:
  stage = sum(_operand_bytes(problem, config)) + BARRIER_BYTES_PER_STAGE
  return config.num_stages * stage + _staging_bytes()


def _tensor_memory_bytes(problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile) -> int:
  columns = problem.products * config.block_n
  return accumulators(problem, config, gpu) * columns * COLUMN_BYTES


def unsupported(problem: MatmulProblem, gpu: GpuProfile) -> tuple[Shortfall, ...]:
  """Devices without tensor memory, and dtypes that tcgen05 does not multiply."""
  found = [*missing_rate(problem.dtype, gpu)]
  if not gpu.tensor_memory_bytes_per_sm:
    statement = (
      f"tcgen05 and tensor memory are of compute capability 10.0; {gpu.name} is"
      f" {'.'.join(map(str, gpu.compute_capability))}"
    )
    found.append(Shortfall("unsupported", "device", (), statement))
  if problem.dtype not in SUPPORTED_DTYPES:
    statement = f"dtype={problem.dtype!r}: tcgen05 takes {' and '.join(SUPPORTED_DTYPES)}"
    found.append(Shortfall("unsupported", "dtype", (), statement))
  return tuple(found)


def shortfalls(
  problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile
) -> tuple[Shortfall, ...]:
  """Rules of tcgen05, then shared and tensor memory."""
  return (*_shape_shortfalls(problem, config), *_capacity_shortfalls(problem, config, gpu))


def _shape_shortfalls(problem: MatmulProblem, config: MatmulConfig) -> list[Shortfall]:
  rules: list[tuple[tuple[str, ...], str]] = []
  if config.accumulator != "registers":
    rules.append(((), f"accumulator={config.accumulator!r}: tcgen05 accumulates in tensor memory"))
  if config.block_m not in (ROWS_OF_AN_SM, MOST_SMS * ROWS_OF_AN_SM):
    rules.append((("block_m",), "tcgen05 multiplies 128 rows an SM, by one SM or a pair"))
  if config.block_n % COLUMN_UNIT or config.block_n > MOST_COLUMNS:
    statement = f"tcgen05 has multiples of {COLUMN_UNIT} columns, at most {MOST_COLUMNS}"
    rules.append((("block_n",), statement))
  if config.split_k > 1:
    statement = f"split_k={config.split_k}: tcgen05 is priced without a split of K"
    rules.append((("split_k",), statement))
  step = config.block_k * dtypes.size_bytes(problem.dtype)
  if step % MMA_K_BYTES:
    statement = f"a K step of {step} B is not a multiple of the {MMA_K_BYTES} B of an MMA"
    rules.append((("block_k",), statement))
  return [Shortfall("shape", "tile shape", fields, statement) for fields, statement in rules]


def _capacity_shortfalls(
  problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile
) -> list[Shortfall]:
  found = []
  fields = ("block_k", *larger_first(block_n=config.block_n, block_m=config.block_m))
  needed = _shared_bytes(problem, config)
  if needed > gpu.max_shared_bytes_per_block:
    shared = f" by {sms_per_tile(config)} SMs" if sms_per_tile(config) > 1 else ""
    statement = shared_memory_statement(
      problem,
      config,
      gpu,
      needed_bytes=needed,
      besides=f"{shared}, {_staging_bytes()} B of epilogue and barriers",
    )
    order = ("num_stages", *fields) if config.num_stages > 2 else (*fields, "num_stages")
    found.append(Shortfall("capacity", "shared_memory", order, statement))
  needed = _tensor_memory_bytes(problem, config, gpu)
  if needed > gpu.tensor_memory_bytes_per_sm:
    statement = (
      f"tensor memory needs {needed} B for {problem.products} x {config.block_n} columns,"
      f" {gpu.name} has {gpu.tensor_memory_bytes_per_sm} B"
    )
    found.append(Shortfall("capacity", "tensor_memory", ("block_n",), statement))
  return found


def demand(problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile) -> Demand:
  """Stages, staging and barriers in shared memory, accumulators in tensor memory."""
  shared, stages = gpu.max_shared_bytes_per_block, config.num_stages
  a_bytes, b_bytes = _operand_bytes(problem, config)
  slots = accumulators(problem, config, gpu)
  return sm_demand(
    problem,
    config,
    gpu,
    buffers=(
      Buffer("A", "shared", stages * a_bytes, shared, stages),
      Buffer("B", "shared", stages * b_bytes, shared, stages),
      Buffer("epilogue", "shared", _staging_bytes(), shared, EPILOGUE_SLOTS),
      Buffer("barriers", "shared", stages * BARRIER_BYTES_PER_STAGE, shared, 2 * stages),
      Buffer(
        "accumulator",
        "tensor_memory",
        _tensor_memory_bytes(problem, config, gpu),
        gpu.tensor_memory_bytes_per_sm,
        slots,
      ),
    ),
    kernel=lambda: _kernel(problem, config, slots),
    assumptions=("one persistent block an SM; this library has no such kernel",),
  )


def _kernel(problem: MatmulProblem, config: MatmulConfig, slots: int) -> SmKernel:
  pair = sms_per_tile(config) > 1
  columns = problem.products * config.block_n
  return SmKernel(
    threads=THREADS,
    registers_per_thread=REGISTERS_PER_THREAD,
    shared_bytes=_shared_bytes(problem, config),
    # written by TMA, read by one MMA of all rows and columns of the SM
    shared_bytes_per_step=2 * sum(_operand_bytes(problem, config)),
    persistent=True,
    sms_per_tile=sms_per_tile(config),
    notes=(
      f"{'a pair of SMs shares' if pair else 'one SM has'} a tile; {slots} accumulator(s) of"
      f" {columns} columns in tensor memory",
    ),
  )
