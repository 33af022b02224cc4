"""The portable attention's schedule on an SM, compiled through Triton.

All warps of a block copy and compute, and split its rows; what a program keeps
and the stages of what it walks live in shared memory, accumulator and scores in
registers. A step's products wait for its softmax and the other way round.
"""

from hw_profiles.arguments import ceil_div, round_up
from hw_profiles.attention.passes import AttentionPass, attention_passes
from hw_profiles.attention.problem import AttentionProblem
from hw_profiles.attention.sm import PassKernel, SmSchedule, padding_notes
from hw_profiles.attention.sm_capacity import OVERHEAD_REGISTERS, BlockNeeds
from hw_profiles.capacity.buffers import Shortfall
from hw_profiles.capacity.residency import LANES_PER_WARP
from hw_profiles.cost.arithmetic import missing_rate, mma_sync_assumption
from hw_profiles.profile import GpuProfile

NAME = "multistage"
# Triton's dot takes powers of two of at least 16, and pads head sizes to them.
MIN_BLOCK = 16
REGISTER_STEP = 8
WARPS_PER_WGMMA = 4
WGMMA_ROWS = 64


def warps(one: AttentionPass) -> int:
  """`num_warps`, or its default: 8 from 128 rows a program on, else 4."""
  if one.num_warps is not None:
    return one.num_warps
  return 8 if one.rows >= 128 else 4


def padded_dim(dim: int) -> int:
  """A head size as Triton computes it: the next power of two, at least 16."""
  return max(MIN_BLOCK, 1 << (dim - 1).bit_length())


def _padded(operands: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
  return tuple(padded_dim(dim) for _, dim in operands)


def _registers_per_thread(one: AttentionPass) -> int:
  """Registers of a thread, estimated.

      rows·(Σ accumulator sizes + score tiles·columns + columns·size/4) / threads + 24

  rounded up to 8: accumulators, scores, and one tile of them as operands. The
  compiler may do better or worse; more than a thread addresses means spills.
  """
  threads = LANES_PER_WARP * warps(one)
  operand = one.columns * one.size_bytes
  values = 4 * (sum(_padded(one.accumulators)) + one.score_tiles * one.columns) + operand
  return round_up(ceil_div(one.rows * values, 4 * threads) + OVERHEAD_REGISTERS, REGISTER_STEP)


def _shared_buffers(one: AttentionPass) -> dict[str, tuple[int, int]]:
  """Bytes and copies of what one block of a pass has in shared memory."""
  size = one.size_bytes
  stages = one.num_stages
  held = {name: (one.rows * padded_dim(dim) * size, 1) for name, dim in one.kept}
  for name, dim in one.streamed:
    held[name] = (stages * one.columns * padded_dim(dim) * size, stages)
  return held


def _needs(gpu: GpuProfile, one: AttentionPass) -> BlockNeeds:
  """Of a block whose warps all copy and compute."""
  count = warps(one)
  threads = LANES_PER_WARP * count
  registers = _registers_per_thread(one)
  return BlockNeeds(
    shared=_shared_buffers(one),
    threads=threads,
    crew=f"{count} warps",
    crew_field="num_warps",
    computing_threads=threads,
    values=registers - OVERHEAD_REGISTERS,
    # what a thread addresses, and what the register file gives each of a block's
    budget=min(gpu.max_registers_per_thread, gpu.registers_per_sm // max(threads, 1)),
    share=(
      f"thread need about {registers} for its share of {{}}, {one.score_tiles} score tile(s),"
      " fragments and addresses"
    ),
    register_fields=("num_warps",),
  )


def unsupported(problem: AttentionProblem, gpu: GpuProfile) -> tuple[Shortfall, ...]:
  """A dtype that the device does not multiply."""
  return missing_rate(problem.dtype, gpu)


def shape_shortfalls(one: AttentionPass) -> list[Shortfall]:
  """Rules of the matrix unit that a pass breaks."""
  found = []
  for field, value in ((one.rows_field, one.rows), (one.columns_field, one.columns)):
    if field and (value < MIN_BLOCK or value & (value - 1)):
      statement = f"Triton's dot takes powers of two of at least {MIN_BLOCK}"
      found.append(Shortfall("shape", "tile shape", (field,), statement))
  count = warps(one)
  if count & (count - 1):
    found.append(Shortfall("shape", "tile shape", ("num_warps",), "Triton takes powers of two"))
  return found


def _assumptions(gpu: GpuProfile) -> tuple[str, ...]:
  estimated = "registers of the compiled kernel estimated from the tile, not read from a binary"
  if not gpu.has_wgmma:
    return (estimated, *mma_sync_assumption(gpu))
  waited = gpu.source("synchronous_mma_fraction")
  return (
    estimated,
    f"products that are waited for reach {100 * waited.value:.0f} % of the wgmma rate"
    f" ({waited.confidence})",
  )


def pass_kernel(gpu: GpuProfile, one: AttentionPass) -> PassKernel:
  """The thread block of a pass."""
  count = warps(one)
  products = tuple(padded_dim(dim) for dim in one.products)
  # rows that read a streamed operand together: a wgmma's, else a warp's
  readers = ceil_div(one.rows, WGMMA_ROWS) if gpu.has_wgmma else count
  return PassKernel(
    threads=LANES_PER_WARP * count,
    registers_per_thread=_registers_per_thread(one),
    shared_bytes=_needs(gpu, one).shared_bytes,
    kept_dims=_padded(one.kept),
    streamed_dims=_padded(one.streamed),
    product_dims=products,
    accumulator_dims=_padded(one.accumulators),
    operand_reads_per_step=readers * ceil_div(len(products), len(one.streamed)),
    kept_reads_per_step=1,
    exposed_softmax=1.0,
    rate_fraction=gpu.synchronous_mma_fraction,
    notes=padding_notes(one, padded_dim),
  )


_SCHEDULE = SmSchedule(
  needs=_needs,
  shapes=shape_shortfalls,
  passes=attention_passes,
  kernel=pass_kernel,
  assumptions=_assumptions,
)
pass_buffers = _SCHEDULE.pass_buffers
shortfalls = _SCHEDULE.shortfalls
capacity_shortfalls = _SCHEDULE.shortfalls_of_pass
demand = _SCHEDULE.demand
