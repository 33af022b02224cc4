"""The parameter set of a CUDA-core matmul, and whether its parts agree."""

import dataclasses

from hw_profiles.arguments import at_least, ceil_div, instance, round_up
from hw_profiles.capacity.residency import LANES_PER_WARP, Residency
from hw_profiles.errors import InfeasibleTileError
from hw_profiles.profile import GpuProfile
from hw_profiles.registry import resolve_gpu
from hw_profiles.sm_tiling.block_tile import block_tile, operand_bytes
from hw_profiles.sm_tiling.lane_maps import LaneMap, LaneOrder, WarpTiling
from hw_profiles.sm_tiling.register_budget import (
  REGISTER_BYTES,
  RegisterBudget,
  register_budget,
  staging_registers,
)

VECTOR_BYTES = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class GemmParameters:
  """Sizes of a float32 matmul on the CUDA cores; the defaults are a well-known set.

  Attributes:
    block_m: Rows of a block's tile.
    block_n: Columns of a block's tile.
    block_k: Depth of a step along K.
    thread_m: Rows of a thread's outputs.
    thread_n: Columns of a thread's outputs.
    lane_rows: Lanes of a warp along M.
    lane_columns: Lanes of a warp along N.
    lane_order: How lanes are placed in that grid.
    threads_per_block: As launched; None: what the tile needs.
    shared_buffers: Operand tiles held at once.
    registers_per_thread: What the compiler is held to; None: what is needed.
    asynchronous_copies: Whether cp.async fills shared memory, without registers.
  """

  block_m: int = 128
  block_n: int = 128
  block_k: int = 8
  thread_m: int = 8
  thread_n: int = 8
  lane_rows: int = 4
  lane_columns: int = 8
  lane_order: LaneOrder = "row_first"
  threads_per_block: int | None = None
  shared_buffers: int = 2
  registers_per_thread: int | None = 128
  asynchronous_copies: bool = False

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.name not in ("lane_order", "asynchronous_copies") and value is not None:
        at_least(field.name, value, 1)


@dataclasses.dataclass(frozen=True)
class CheckedParameters:
  """What a consistent parameter set amounts to.

  Attributes:
    threads_per_block: (block_m / thread_m) · (block_n / thread_n).
    tiling: Its warps, lanes and outputs.
    shared_bytes_per_block: Operand tiles, all buffers.
    loads_per_thread: float4 loads of A and B in a step.
    registers: Of a thread and of the block.
    residency: Blocks on an SM.
  """

  threads_per_block: int
  tiling: WarpTiling
  shared_bytes_per_block: int
  loads_per_thread: tuple[int, int]
  registers: RegisterBudget
  residency: Residency


def _problems(parameters: GemmParameters) -> list[str]:
  """What does not fit together, each with the nearest thing that would."""
  p = parameters
  problems = []
  if p.lane_rows * p.lane_columns != LANES_PER_WARP:
    rows = min((1, 2, 4, 8, 16, 32), key=lambda count: abs(count - p.lane_rows))
    problems.append(
      f"lane_rows={p.lane_rows}, lane_columns={p.lane_columns}: a warp has {LANES_PER_WARP}"
      f" lanes; nearest is {rows}x{LANES_PER_WARP // rows}"
    )
  for block, size, thread, outputs, lanes in (
    ("block_m", p.block_m, "thread_m", p.thread_m, p.lane_rows),
    ("block_n", p.block_n, "thread_n", p.thread_n, p.lane_columns),
  ):
    warp = outputs * lanes
    if size % warp:
      problems.append(
        f"{block}={size}: expected a multiple of the {warp} that a warp covers with {lanes} lanes"
        f" of {thread}={outputs}; nearest is {round_up(size, warp)}"
      )
    if outputs * REGISTER_BYTES % VECTOR_BYTES:
      problems.append(
        f"{thread}={outputs}: float4 loads take multiples of 4; nearest is {round_up(outputs, 4)}"
      )
  if p.block_k * REGISTER_BYTES % VECTOR_BYTES:
    problems.append(
      f"block_k={p.block_k}: float4 loads of A take multiples of 4;"
      f" nearest is {round_up(p.block_k, 4)}"
    )
  if p.threads_per_block is not None:
    problems += _thread_problems(p, p.threads_per_block)
  return problems


def _thread_problems(p: GemmParameters, threads: int) -> list[str]:
  if p.block_m % p.thread_m or p.block_n % p.thread_n:
    return []
  needed = p.block_m // p.thread_m * (p.block_n // p.thread_n)
  if threads == needed:
    return []
  return [
    f"threads_per_block={threads}: a {p.block_m}x{p.block_n} tile in {p.thread_m}x{p.thread_n}"
    f" patches takes {needed}"
  ]


def check_gemm_parameters(
  gpu: str | GpuProfile, parameters: GemmParameters | None = None
) -> CheckedParameters:
  """Threads, warps, registers, shared memory and residency of a consistent set.

      threads = (block_m / thread_m) · (block_n / thread_n)

  Example (V100, the defaults): 16 · 16 = 256 threads in 4 x 2 warps of 32 x 64
  outputs, one float4 load of each operand a thread, 16 KiB of shared memory, and
  2 blocks resident. Of 128 registers 104 hold accumulators, two sets of
  fragments and loads in flight, which leaves 24 for addresses: fewer than the
  30 that are assumed elsewhere, so `registers.spilled_registers` warns of 6.
  With asynchronous copies there are 32.

  Args:
    gpu: The device or its name.
    parameters: The set; None: the defaults.

  Raises:
    InfeasibleTileError: the set is consistent but does not fit the device.
    ValueError: parts contradict each other (the message lists every
      contradiction), or `gpu` is no GPU.
  """
  if parameters is not None:
    instance("parameters", parameters, GemmParameters)
  gpu = resolve_gpu(gpu)
  p = GemmParameters() if parameters is None else parameters
  problems = _problems(p)
  if problems:
    raise ValueError("; ".join(problems))
  tiling = WarpTiling(
    lanes=LaneMap(rows=p.lane_rows, columns=p.lane_columns, order=p.lane_order),
    thread_m=p.thread_m,
    thread_n=p.thread_n,
    warp_rows=p.block_m // (p.lane_rows * p.thread_m),
    warp_columns=p.block_n // (p.lane_columns * p.thread_n),
  )
  threads = tiling.threads
  tile = block_tile(
    block_m=p.block_m,
    block_n=p.block_n,
    block_k=p.block_k,
    in_dtype="float32",
    num_stages=p.shared_buffers,
  )
  shared = operand_bytes(tile)
  staging = 0
  if p.shared_buffers > 1 and not p.asynchronous_copies:
    staging = staging_registers(
      block_m=p.block_m, block_n=p.block_n, block_k=p.block_k, threads_per_block=threads
    )
  registers = register_budget(
    gpu,
    thread_m=p.thread_m,
    thread_n=p.thread_n,
    threads_per_block=threads,
    fragment_buffers=min(p.shared_buffers, 2),
    staging_registers=staging,
    registers_per_thread=p.registers_per_thread,
    shared_bytes_per_block=shared,
  )
  # the index registers are an estimate, so they alone refuse nothing
  certain = registers.tile_registers + staging
  if certain >= registers.registers_per_thread:
    raise InfeasibleTileError(
      f"registers_per_thread={registers.registers_per_thread}: thread_m={p.thread_m} and"
      f" thread_n={p.thread_n} take {certain} for accumulators, fragments and staging, which"
      f" leaves none for addresses; expected at least {certain + 1}"
    )
  vector_elements = VECTOR_BYTES // REGISTER_BYTES
  return CheckedParameters(
    threads_per_block=threads,
    tiling=tiling,
    shared_bytes_per_block=shared,
    loads_per_thread=(
      ceil_div(p.block_m * p.block_k, threads * vector_elements),
      ceil_div(p.block_k * p.block_n, threads * vector_elements),
    ),
    registers=registers,
    residency=registers.residency,
  )
