"""What a thread block of an attention pass keeps on an SM, and what it has too little of.

Each schedule says what its block needs (`BlockNeeds`); that a memory is too
small, and which fields would change it, is the same for all of them.
"""

import dataclasses
from collections.abc import Callable

from hw_profiles.attention.config import AttentionConfig
from hw_profiles.attention.passes import AttentionPass
from hw_profiles.attention.problem import AttentionProblem
from hw_profiles.capacity.buffers import Buffer, Shortfall
from hw_profiles.profile import GpuProfile

# Registers of a computing thread beside accumulators, scores and fragments: row maxima and
# sums, scale, addresses and loop state. With it FlashAttention-2's 128 x 64 tile of head size
# 128 in 4 warps comes to 248 registers, and FlashAttention-3's 192 x 128 of head size 64 in
# three consumers to 152 of 160: both are known to run.
OVERHEAD_REGISTERS = 24


@dataclasses.dataclass(frozen=True)
class BlockNeeds:
  """What one block of a pass needs.

  Attributes:
    shared: Bytes and copies of each buffer in shared memory.
    threads: Of the block.
    crew: Who they are, for messages.
    crew_field: The config field that says how many there are.
    computing_threads: Those that hold accumulators and scores.
    values: Registers of each of them for accumulators, scores and fragments.
    budget: Registers that each of them may have.
    share: What the values are and who shares them, for messages; `{}` stands for the
      results.
    register_fields: Config fields beside the sides of a step that change them.
    overhead: Registers of each thread for all else.
  """

  shared: dict[str, tuple[int, int]]
  threads: int
  crew: str
  crew_field: str
  computing_threads: int
  values: int
  budget: int
  share: str
  register_fields: tuple[str, ...] = ()
  overhead: int = OVERHEAD_REGISTERS

  @property
  def shared_bytes(self) -> int:
    """Shared memory of the block."""
    return sum(needed for needed, _ in self.shared.values())


@dataclasses.dataclass(frozen=True)
class BlockCapacity:
  """What the blocks of one schedule keep and lack.

  Attributes:
    needs: Of a block of a pass.
    shapes: Rules of the matrix unit that a pass breaks.
    passes: The schedule's kernels.
  """

  needs: Callable[[GpuProfile, AttentionPass], BlockNeeds]
  shapes: Callable[[AttentionPass], list[Shortfall]]
  passes: Callable[[AttentionProblem, AttentionConfig], tuple[AttentionPass, ...]]

  def pass_buffers(self, gpu: GpuProfile, passes: tuple[AttentionPass, ...]) -> tuple[Buffer, ...]:
    """Of the forward kernel, or of the backward ones under their names."""
    found = []
    for one in passes:
      needs = self.needs(gpu, one)
      prefix = f"{one.name}: " if len(passes) > 1 else ""
      for name, (needed, count) in needs.shared.items():
        space = gpu.max_shared_bytes_per_block
        found.append(Buffer(f"{prefix}{name}", "shared", needed, space, count))
      free = max(needs.budget - needs.overhead, 0)
      results = ", ".join(name for name, _ in one.accumulators)
      found.append(
        Buffer(
          f"{prefix}{results}, scores and fragments",
          "registers",
          4 * needs.values * needs.computing_threads,
          4 * free * needs.computing_threads,
          1,
        )
      )
    return tuple(found)

  def shortfalls(
    self, problem: AttentionProblem, config: AttentionConfig, gpu: GpuProfile
  ) -> tuple[Shortfall, ...]:
    """Rules of the matrix unit, then shared memory, threads and registers, pass by pass."""
    passes = self.passes(problem, config)
    return (
      *(found for one in passes for found in self.shapes(one)),
      *(found for one in passes for found in self.shortfalls_of_pass(gpu, one)),
    )

  def shortfalls_of_pass(self, gpu: GpuProfile, one: AttentionPass) -> list[Shortfall]:
    """Shared memory, threads and registers that a pass has too little of."""
    needs = self.needs(gpu, one)
    found = []
    sides = one.side_fields
    if needs.shared_bytes > gpu.max_shared_bytes_per_block:
      found.append(
        _capacity(
          "shared_memory",
          ("num_stages", *sides) if one.num_stages > 2 else (*sides, "num_stages"),
          _shared_statement(gpu, one, needs.shared_bytes),
        )
      )
    if needs.threads > gpu.max_threads_per_block:
      found.append(
        _capacity(
          "threads",
          (needs.crew_field,),
          f"{needs.crew} are {needs.threads} threads, {gpu.name} has"
          f" {gpu.max_threads_per_block} in a block",
        )
      )
    if needs.values + needs.overhead > needs.budget:
      results = " and ".join(f"{name} ({one.rows}x{dim})" for name, dim in one.accumulators)
      found.append(
        _capacity(
          "registers",
          (*sides, *needs.register_fields),
          f"registers of a {needs.share.format(results)}, {gpu.name} has {needs.budget} with"
          f" {needs.crew}",
        )
      )
    return found


def _capacity(resource: str, fields: tuple[str, ...], statement: str) -> Shortfall:
  return Shortfall("capacity", resource, fields, statement)


def _shared_statement(gpu: GpuProfile, one: AttentionPass, needed_bytes: int) -> str:
  held = (*one.kept, *one.accumulators) if one.persistent else one.kept
  kept = " and ".join(f"{name} ({one.rows}x{dim})" for name, dim in held)
  streamed = " and ".join(f"{name} ({one.columns}x{dim})" for name, dim in one.streamed)
  return (
    f"shared memory needs {needed_bytes} B for {kept} and {one.num_stages} stage(s) of {streamed},"
    f" {gpu.name} has {gpu.max_shared_bytes_per_block} B"
  )
