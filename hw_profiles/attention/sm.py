"""What the attention schedules on an SM share: amounts, traffic, waves, notes."""

import dataclasses
import math
from collections.abc import Callable

from hw_profiles.attention.config import AttentionConfig
from hw_profiles.attention.pass_traffic import passes_traffic
from hw_profiles.attention.passes import AttentionPass
from hw_profiles.attention.problem import AttentionProblem
from hw_profiles.attention.sm_capacity import BlockCapacity
from hw_profiles.attention.sm_phase import SmPhase, sm_phases_time
from hw_profiles.capacity.residency import LANES_PER_WARP, Residency, residency
from hw_profiles.cost.arithmetic import Rate, multiply_rate
from hw_profiles.cost.l2_reuse import L2_OPERAND_FRACTION
from hw_profiles.cost.sm_time import SmAmounts
from hw_profiles.cost.wave import wave
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.planner.op_model import Demand, Execution
from hw_profiles.profile import GpuProfile

# Float32 instructions a score beside exp2. Forward: scale and subtract the
# maximum in one multiply-add, compare for the maximum, add to the sum, half of a
# conversion of two to 16 bits. Backward: the same multiply-add, dP - delta, its
# product with P, and the conversions of P and dS.
OPERATIONS = FrozenMap(forward=3.5, dkv=4.0, dq=4.0, gradients=4.0)
SM_ASSUMPTIONS = (
  "L2 starts cold and keeps what the programs of one head walk, up to"
  f" {100 * L2_OPERAND_FRACTION:.0f} % of it",
  "programs are dealt out longest first to whichever SM is free",
)
# A score in a boundary block is compared with both ends of its row, and selected.
MASK_OPERATIONS = 3


@dataclasses.dataclass(frozen=True)
class PassKernel:
  """One schedule's thread block for one pass.

  Attributes:
    threads: Threads of the block.
    registers_per_thread: At launch.
    shared_bytes: Shared memory of the block.
    kept_dims: Sizes of what a program keeps, as the schedule pads them.
    streamed_dims: Of what it walks.
    product_dims: Of the matrix products of a step.
    accumulator_dims: Of the results.
    operand_reads_per_step: Times that a step reads the streamed block from
      shared memory, each product counted.
    kept_reads_per_step: The same of what is kept.
    exposed_softmax: Share of the softmax that no product runs beside.
    step_overhead_cycles: What a step costs whatever its size.
    rate_fraction: Share of the arithmetic's rate that the schedule can reach.
    chain_us: See `SmPhase`.
    exposed_chain: The same.
    notes: What to say of it.
  """

  threads: int
  registers_per_thread: int
  shared_bytes: int
  kept_dims: tuple[int, ...]
  streamed_dims: tuple[int, ...]
  product_dims: tuple[int, ...]
  accumulator_dims: tuple[int, ...]
  operand_reads_per_step: int
  kept_reads_per_step: int
  exposed_softmax: float
  step_overhead_cycles: float = 0.0
  rate_fraction: float = 1.0
  chain_us: float = 0.0
  exposed_chain: float = 0.0
  notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class SmSchedule(BlockCapacity):
  """One schedule of attention on an SM: what its modules do not have in common.

  Attributes:
    kernel: The thread block of a pass that fits.
    assumptions: What its estimate rests on beside `SM_ASSUMPTIONS`.
  """

  kernel: Callable[[GpuProfile, AttentionPass], PassKernel]
  assumptions: Callable[[GpuProfile], tuple[str, ...]]

  def demand(self, problem: AttentionProblem, config: AttentionConfig, gpu: GpuProfile) -> Demand:
    """What the blocks of all passes keep, and how they would run."""
    passes = self.passes(problem, config)
    buffers = self.pass_buffers(gpu, passes)
    streamed: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    if problem.backward:
      # O and dO in, delta out
      streamed = (2 * problem.output_bytes + problem.residual_bytes,)
      rest = "two" if len(passes) > 1 else "kernel"
      notes = (f"a pass before the {rest} sums delta = rowsum(dO·O)",)
    if any(one.added for one in passes):
      streamed += (problem.summed_query_bytes + problem.query_bytes,)
      notes += ("a pass after it rounds dQ",)
    return Demand(
      buffers=buffers,
      traffic=passes_traffic(problem, passes, buffers=buffers, on_chip=("shared", "registers")),
      tiles=passes[0].visits.blocks,
      cores=gpu.sm_count,
      execution=lambda: sm_execution(
        passes, gpu, kernel=lambda one: self.kernel(gpu, one), streamed_passes=streamed
      ),
      notes=notes,
      assumptions=(*SM_ASSUMPTIONS, *self.assumptions(gpu)),
    )


def sm_execution(
  passes: tuple[AttentionPass, ...],
  gpu: GpuProfile,
  *,
  kernel: Callable[[AttentionPass], PassKernel],
  streamed_passes: tuple[int, ...] = (),
  serial_us: float = 0.0,
  plain_start: bool = False,
) -> Execution:
  """How the kernels run.

  Args:
    passes: The kernels.
    gpu: The device.
    kernel: The thread block of each.
    streamed_passes: Bytes of each pass beside them that only streams.
    serial_us: See `sm_phases_time`.
    plain_start: The same.
  """
  priced = multiply_rate(passes[0].dtype, gpu)
  assert priced is not None
  phases: list[SmPhase] = []
  fullest: Residency | None = None
  notes: list[str] = []
  for one in passes:
    block = kernel(one)
    resident = residency(
      gpu,
      threads_per_block=block.threads,
      registers_per_thread=block.registers_per_thread,
      shared_bytes_per_block=block.shared_bytes,
    )
    if fullest is None or resident.resident_blocks < fullest.resident_blocks:
      fullest = resident
    phase = _phase(gpu, one, block, resident.resident_blocks, priced)
    phases.append(phase)
    prefix = f"{one.name}: " if len(passes) > 1 else ""
    notes += [f"{prefix}{note}" for note in (*block.notes, _steps_note(one, phase))]
  assert fullest is not None
  return Execution(
    work=sm_phases_time(
      gpu,
      tuple(phases),
      streamed_passes=streamed_passes,
      serial_us=serial_us,
      plain_start=plain_start,
    ),
    resident_blocks=fullest.resident_blocks,
    residency=fullest,
    binding=fullest.binding,
    waves=wave(
      programs=passes[0].visits.blocks,
      cores=gpu.sm_count,
      programs_per_core=phases[0].resident_blocks,
    ),
    traffic_bytes=FrozenMap(
      dram=sum(phase.dram_bytes for phase in phases) + sum(streamed_passes),
      l2=sum(
        one.streamed_bytes + one.once_bytes + one.visits.total * one.added_bytes for one in passes
      ),
      shared=sum(
        one.visits.total * phase.per_step.shared_bytes
        for one, phase in zip(passes, phases, strict=True)
      ),
    ),
    notes=(*notes, *priced.notes),
  )


def _phase(
  gpu: GpuProfile, one: AttentionPass, block: PassKernel, resident_blocks: int, priced: Rate
) -> SmPhase:
  scores = one.rows * one.columns
  kept_bytes = one.rows * sum(block.kept_dims) * one.size_bytes
  streamed_bytes = one.columns * sum(block.streamed_dims) * one.size_bytes
  accumulated = one.rows * sum(block.accumulator_dims)
  # forward every step rescales the accumulator; backward nothing is rescaled
  rescaled = accumulated if one.name == "forward" else 0
  operations = OPERATIONS[one.name] + MASK_OPERATIONS * one.visits.boundary_fraction
  on_tensor_cores = priced.arithmetic == "tensor_cores"
  return SmPhase(
    tiles=one.visits.blocks,
    load=one.visits.busiest(cores=gpu.sm_count),
    per_step=SmAmounts(
      flops=2 * scores * sum(block.product_dims),
      l2_bytes=one.step_bytes + one.added_bytes,
      shared_bytes=(
        streamed_bytes * (1 + block.operand_reads_per_step)
        + kept_bytes * block.kept_reads_per_step
        + 2 * one.added_bytes
      ),
      special_functions=scores,
      cuda_core_operations=math.ceil(scores * operations) + rescaled,
    ),
    per_tile=SmAmounts(
      l2_bytes=one.tile_bytes,
      shared_bytes=kept_bytes + 2 * accumulated * one.result_size_bytes,
      # a reciprocal and a logarithm a row
      special_functions=2 * one.rows,
      cuda_core_operations=accumulated,
    ),
    flops_per_s=priced.flops_per_s * (block.rate_fraction if on_tensor_cores else 1.0),
    arithmetic=priced.arithmetic,
    # products on the CUDA cores leave them no time for the softmax
    exposed_softmax=block.exposed_softmax if on_tensor_cores else 1.0,
    step_overhead_us=block.step_overhead_cycles / gpu.clock_hz * 1e6,
    dram_bytes=one.dram_bytes(
      wave_programs=gpu.sm_count * resident_blocks, l2_bytes=gpu.l2_bytes * L2_OPERAND_FRACTION
    ),
    resident_blocks=resident_blocks,
    num_stages=one.num_stages,
    chain_us=block.chain_us,
    warps=math.ceil(block.threads / LANES_PER_WARP),
    exposed_chain=block.exposed_chain,
  )


def _steps_note(one: AttentionPass, phase: SmPhase) -> str:
  return (
    f"{one.visits.blocks} programs walk {one.visits.total} blocks,"
    f" {one.visits.boundary} of them masked; the busiest SM {phase.load.steps} in"
    f" {phase.load.tiles} program(s)"
  )


def padding_notes(one: AttentionPass, padded: Callable[[int], int]) -> tuple[str, ...]:
  """Which head sizes are computed larger than they are."""
  operands = dict((*one.kept, *one.streamed))
  larger = [
    f"{name} {dim} wide as {padded(dim)}" for name, dim in operands.items() if padded(dim) != dim
  ]
  return (f"padded: {', '.join(larger)}",) if larger else ()
