"""What the matmul's schedules on an SM share: rates, amounts, residency."""

import dataclasses
from collections.abc import Callable

from hw_profiles import dtypes
from hw_profiles.activations import activation_cost
from hw_profiles.capacity.buffers import Buffer
from hw_profiles.capacity.residency import residency
from hw_profiles.cost.arithmetic import multiply_rate
from hw_profiles.cost.sm_time import SmAmounts, SmWork
from hw_profiles.cost.wave import wave
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.matmul.config import MatmulConfig
from hw_profiles.matmul.problem import MatmulProblem
from hw_profiles.matmul.split_k import (
  MERGE_ASSUMPTION,
  evicted_bytes,
  merge_dram_bytes,
  parts_of,
  split_time,
  workspace_bytes,
)
from hw_profiles.matmul.tile_counts import (
  L2_ASSUMPTION,
  tile_count,
  tile_counts,
  tile_notes,
  tile_traffic,
)
from hw_profiles.planner.op_model import Demand, Execution
from hw_profiles.profile import GpuProfile


@dataclasses.dataclass(frozen=True)
class SmKernel:
  """One schedule's thread block for a tile.

  Attributes:
    threads: Threads of the block.
    registers_per_thread: At launch.
    shared_bytes: Shared memory of the block.
    shared_bytes_per_step: In and out of shared memory in one K step.
    sms_per_tile: SMs that share a tile, an equal part each; threads and bytes are
      those of one.
    persistent: One block an SM, which walks tiles; else a block a tile, as many as
      fit.
    rate_fraction: Share of the tensor cores' rate that its instructions can reach.
    held_stages: As `SmWork.held_stages`.
    narrow_copies_per_step: As `SmAmounts.narrow_copies`.
    one_step_at_a_time: Whether no step's loads start before the last step's operands
      are in shared memory, however many stages the tile has.
    notes: What to say of it.
  """

  threads: int
  registers_per_thread: int
  shared_bytes: int
  shared_bytes_per_step: int
  persistent: bool
  sms_per_tile: int = 1
  rate_fraction: float = 1.0
  held_stages: int = 0
  narrow_copies_per_step: int = 0
  one_step_at_a_time: bool = False
  notes: tuple[str, ...] = ()


def shared_memory_statement(
  problem: MatmulProblem,
  config: MatmulConfig,
  gpu: GpuProfile,
  *,
  needed_bytes: int,
  besides: str,
) -> str:
  """That a block needs more shared memory than there is, and for what.

  Args:
    problem: What is computed.
    config: The tile.
    gpu: The device.
    needed_bytes: By everything the block keeps there.
    besides: What that is besides the operand stages, as a clause, or nothing.
  """
  return (
    f"shared memory needs {needed_bytes} B for {config.num_stages} stage(s) of A"
    f" ({config.block_m}x{config.block_k} {problem.dtype}) and"
    f" {'B' if problem.products == 1 else f'{problem.products} B'}"
    f" ({config.block_k}x{config.block_n}){besides}, {gpu.name} has"
    f" {gpu.max_shared_bytes_per_block} B"
  )


def sm_demand(
  problem: MatmulProblem,
  config: MatmulConfig,
  gpu: GpuProfile,
  *,
  buffers: tuple[Buffer, ...],
  kernel: Callable[[], SmKernel],
  assumptions: tuple[str, ...],
) -> Demand:
  """`Demand` of one schedule.

  Args:
    problem: What is computed.
    config: The tile.
    gpu: The device.
    buffers: What a block keeps.
    kernel: Its thread block, asked for only if the tile fits.
    assumptions: What its estimate rests on.
  """
  traffic = tile_traffic(problem, config)
  part, unsplit = parts_of(problem, config)
  split = config.split_k > 1
  if split:
    needed = workspace_bytes(problem, config)
    workspace = Buffer("partial sums", "DRAM", needed, gpu.dram_bytes, config.split_k)
    buffers = (*buffers, workspace)
  return Demand(
    buffers=buffers,
    traffic=traffic,
    tiles=tile_count(part, traffic),
    cores=gpu.sm_count,
    execution=lambda: (
      _split_execution(problem, config, gpu, _execution(part, unsplit, gpu, kernel()))
      if split
      else _execution(problem, config, gpu, kernel())
    ),
    assumptions=(L2_ASSUMPTION, *assumptions, *((MERGE_ASSUMPTION,) if split else ())),
  )


def _split_execution(
  problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile, parts: Execution
) -> Execution:
  """How the parts of K run, and their merge."""
  assert isinstance(parts.work, SmWork)
  merged = workspace_bytes(problem, config)
  result = problem.batch * problem.m * problem.n * dtypes.size_bytes(problem.result_dtype)
  traffic = parts.traffic_bytes
  # the sums' way to memory, which `parts` counts, is not taken where L2 keeps them
  kept = merged - evicted_bytes(problem, config, gpu)
  dram_bytes = parts.work.dram_bytes - kept
  return dataclasses.replace(
    parts,
    work=split_time(problem, config, gpu, dataclasses.replace(parts.work, dram_bytes=dram_bytes)),
    traffic_bytes=FrozenMap(
      dram=dram_bytes + merge_dram_bytes(problem, config, gpu),
      l2=traffic["l2"] + merged + result,
      shared=traffic["shared"],
    ),
    notes=(
      *parts.notes,
      f"K in {config.split_k} parts of {parts.work.steps} steps, {merged} B of partial sums",
    ),
  )


def _execution(
  problem: MatmulProblem,
  config: MatmulConfig,
  gpu: GpuProfile,
  kernel: SmKernel,
) -> Execution:
  traffic = tile_traffic(problem, config)
  priced = multiply_rate(problem.dtype, gpu)
  assert priced is not None
  resident = residency(
    gpu,
    threads_per_block=kernel.threads,
    registers_per_thread=kernel.registers_per_thread,
    shared_bytes_per_block=kernel.shared_bytes,
  )
  # a persistent block has its SM to itself, whatever would fit beside it
  blocks = 1 if kernel.persistent else resident.resident_blocks
  sms = kernel.sms_per_tile
  counts = tile_counts(
    problem,
    config,
    traffic,
    wave_programs=gpu.sm_count // sms * blocks,
    l2_bytes=gpu.l2_bytes,
  )
  k_steps = traffic.k_steps
  work = SmWork(
    # an SM's part of a tile
    tiles=counts.tiles * sms,
    steps=k_steps,
    per_step=SmAmounts(
      flops=2 * problem.products * config.block_m * config.block_n * config.block_k // sms,
      l2_bytes=(traffic.a_tile_bytes + traffic.b_tile_bytes) // sms,
      shared_bytes=kernel.shared_bytes_per_step,
      narrow_copies=kernel.narrow_copies_per_step,
    ),
    per_tile=_epilogue(problem, config, sms),
    flops_per_s=priced.flops_per_s
    * (kernel.rate_fraction if priced.arithmetic == "tensor_cores" else 1.0),
    arithmetic=priced.arithmetic,
    held_stages=kernel.held_stages,
    dram_bytes=counts.dram_bytes,
    resident_blocks=blocks,
    num_stages=1 if kernel.one_step_at_a_time else config.num_stages,
    persistent=kernel.persistent,
  )
  return Execution(
    work=work,
    resident_blocks=blocks,
    residency=resident,
    binding=resident.binding,
    waves=wave(programs=counts.tiles, cores=gpu.sm_count // sms, programs_per_core=blocks),
    traffic_bytes=FrozenMap(
      dram=counts.dram_bytes,
      l2=counts.l2_bytes,
      shared=work.tiles * k_steps * kernel.shared_bytes_per_step,
    ),
    notes=(*kernel.notes, *priced.notes, *tile_notes(problem, config, counts)),
  )


def _epilogue(problem: MatmulProblem, config: MatmulConfig, sms: int) -> SmAmounts:
  """C in and out of shared memory and once to L2; the activation of each element.

  From there TMA takes it; Triton passes it through as well, so that a warp stores
  runs of a row (its machine code for sm_90a has an ldmatrix for every 16 B of C a
  thread).
  """
  outputs = config.block_m * config.block_n // sms
  result_bytes = outputs * dtypes.size_bytes(problem.result_dtype)
  return SmAmounts(
    l2_bytes=result_bytes,
    shared_bytes=2 * result_bytes,
    special_functions=outputs * activation_cost(problem.activation).special_functions,
  )
