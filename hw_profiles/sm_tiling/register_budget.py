"""Registers of a thread that keeps an outer product's tile, and what they cost."""

import dataclasses

from hw_profiles.arguments import at_least, ceil_div
from hw_profiles.capacity.residency import Residency, residency
from hw_profiles.profile import GpuProfile
from hw_profiles.registry import resolve_gpu

REGISTER_BYTES = 4
# Addresses, loop counters and temporaries of a hand-written float32 kernel.
# Assumed: 64 + 16 + 30 is the 110 of 110 to 128 that such kernels are known for.
INDEX_REGISTERS = 30


@dataclasses.dataclass(frozen=True)
class RegisterBudget:
  """32-bit registers of one thread and of its block.

  Attributes:
    accumulator_registers: thread_m · thread_n.
    fragment_registers: (thread_m + thread_n) for each fragment buffer.
    staging_registers: Loads on their way from global to shared memory.
    index_registers: Addresses and counters.
    needed_registers: The four together.
    registers_per_thread: What the thread gets: needed, or the limit if lower.
    spilled_registers: needed - registers_per_thread, if more: what then lives in
      local memory, as far as the index registers are as many as assumed.
    registers_per_block: registers_per_thread for each thread.
    independent_chains: Accumulators that do not wait for each other: the
      instruction-level parallelism that hides latency at low occupancy.
    residency: Blocks of it on an SM.
  """

  accumulator_registers: int
  fragment_registers: int
  staging_registers: int
  index_registers: int
  needed_registers: int
  registers_per_thread: int
  spilled_registers: int
  registers_per_block: int
  independent_chains: int
  residency: Residency

  @property
  def tile_registers(self) -> int:
    """Accumulators and fragments, before anything else."""
    return self.accumulator_registers + self.fragment_registers


def staging_registers(
  *, block_m: int, block_n: int, block_k: int, threads_per_block: int, element_bytes: int = 4
) -> int:
  """Registers a thread needs to hold its share of the next step's operands.

      ⌈(block_m + block_n) · block_k · size / threads / 4⌉

  An asynchronous copy (cp.async, from compute capability 8.0) goes to shared
  memory without them: 8 a thread for 128 x 128 x 8 tiles of float32 and 256
  threads.

  Raises:
    ValueError: a size is below 1.
  """
  for name, value in (
    ("block_m", block_m),
    ("block_n", block_n),
    ("block_k", block_k),
    ("threads_per_block", threads_per_block),
    ("element_bytes", element_bytes),
  ):
    at_least(name, value, 1)
  staged_bytes = (block_m + block_n) * block_k * element_bytes
  return ceil_div(staged_bytes, threads_per_block * REGISTER_BYTES)


def register_budget(
  gpu: str | GpuProfile,
  *,
  thread_m: int,
  thread_n: int,
  threads_per_block: int,
  fragment_buffers: int = 1,
  staging_registers: int = 0,
  index_registers: int = INDEX_REGISTERS,
  registers_per_thread: int | None = None,
  shared_bytes_per_block: int = 0,
) -> RegisterBudget:
  """needed = m·n + buffers·(m + n) + staging + index, in float32.

  Example (V100): 8 x 8 outputs need 64 + 16 + 30 = 110; held to 128 a thread,
  256 threads take 32768, so 2 blocks fit an SM, 16 warps, an occupancy of
  25 %. 16 x 16 outputs need 288 before any index, more than the 255 that a
  thread addresses: they spill.

  Args:
    gpu: The device or its name.
    thread_m: Rows of C a thread computes; at least 1.
    thread_n: Columns of C a thread computes; at least 1.
    threads_per_block: At least 1.
    fragment_buffers: 2 where the next step's fragments load during this one's
      multiply-adds.
    staging_registers: See the function of that name; 0 with asynchronous copies.
    index_registers: Everything else.
    registers_per_thread: What the compiler is held to (launch bounds); None:
      what is needed.
    shared_bytes_per_block: For the residency.

  Raises:
    InfeasibleTileError: not even one block runs, or `registers_per_thread` is
      more than a thread addresses.
    ValueError: `gpu` is no GPU, or an argument is out of range.
  """
  gpu = resolve_gpu(gpu)
  at_least("thread_m", thread_m, 1)
  at_least("thread_n", thread_n, 1)
  at_least("threads_per_block", threads_per_block, 1)
  at_least("fragment_buffers", fragment_buffers, 1)
  at_least("staging_registers", staging_registers, 0)
  at_least("index_registers", index_registers, 0)
  accumulators = thread_m * thread_n
  fragments = fragment_buffers * (thread_m + thread_n)
  needed = accumulators + fragments + staging_registers + index_registers
  if registers_per_thread is None:
    given = min(needed, gpu.max_registers_per_thread)
  else:
    at_least("registers_per_thread", registers_per_thread, 1)
    given = registers_per_thread
  return RegisterBudget(
    accumulator_registers=accumulators,
    fragment_registers=fragments,
    staging_registers=staging_registers,
    index_registers=index_registers,
    needed_registers=needed,
    registers_per_thread=given,
    spilled_registers=max(0, needed - given),
    registers_per_block=given * threads_per_block,
    independent_chains=accumulators,
    residency=residency(
      gpu,
      threads_per_block=threads_per_block,
      registers_per_thread=given,
      shared_bytes_per_block=shared_bytes_per_block,
    ),
  )
