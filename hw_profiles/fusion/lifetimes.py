"""When each tensor of a fused chain is in memory, and the peak."""

import dataclasses
from collections.abc import Sequence

from hw_profiles.fusion.chain import OperatorChain
from hw_profiles.fusion.partitions import groups_of


@dataclasses.dataclass(frozen=True)
class TensorLifetime:
  """How long one tensor is in memory; steps are kernels, counted from 0.

  Attributes:
    name: The tensor.
    bytes: Its size.
    first_step: The kernel that writes it; -1 for an input of the chain.
    last_step: The last kernel during which it is in memory: its last reader,
      or the last kernel of the chain for a result.
    storage: The tensor whose storage it took, or its own name.
  """

  name: str
  bytes: int
  first_step: int
  last_step: int
  storage: str


@dataclasses.dataclass(frozen=True)
class MemoryUse:
  """Device memory over the kernels of a fused chain.

  Attributes:
    lifetimes: Tensors that reach memory, in order of their first step.
    resident_bytes: Bytes in memory during each kernel.
    peak_bytes: The largest of them.
    peak_step: The first kernel that reaches it.
  """

  lifetimes: tuple[TensorLifetime, ...]
  resident_bytes: tuple[int, ...]
  peak_bytes: int
  peak_step: int


def external_writes(chain: OperatorChain, start: int, stop: int) -> tuple[str, ...]:
  """Tensors that operations start...stop-1 write for others: these reach memory."""
  needed = set(chain.results)
  for operation in chain.operations[stop:]:
    needed.update(operation.reads)
  return tuple(op.writes for op in chain.operations[start:stop] if op.writes in needed)


def memory_use(chain: OperatorChain, partition: Sequence[int]) -> MemoryUse:
  """Simulates allocation: a kernel's outputs first, then its dead inputs are freed.

  A tensor that never leaves its kernel takes no memory. Storage is reused, so
  fusion saves more bytes moved than bytes at the peak; it can even raise the
  peak, where an input could have gone before the result came.

  Example: silu, multiply and quantise of two 24 MiB inputs peak at 72 MiB as
  three kernels (G, U and T) and at 60 MiB as one (G, U and the 12 MiB result).

  Args:
    chain: The operations.
    partition: Operations in each kernel, in order.

  Raises:
    ValueError: `partition` does not fit the chain.
  """
  groups = groups_of(chain, partition)
  last_read = dict.fromkeys(chain.inputs, -1)
  for step, (start, stop) in enumerate(groups):
    for operation in chain.operations[start:stop]:
      last_read.update(dict.fromkeys(operation.reads, step))
  for name in chain.results:
    last_read[name] = len(groups) - 1

  lifetimes = {
    name: TensorLifetime(name, chain.tensor(name).bytes, -1, last_read[name], name)
    for name in chain.inputs
  }
  for step, (start, stop) in enumerate(groups):
    leaving = external_writes(chain, start, stop)
    for operation in chain.operations[start:stop]:
      name = operation.writes
      if name not in leaving:
        continue
      reused = lifetimes.get(operation.overwrites or "")
      storage = name if reused is None or reused.first_step == step else reused.storage
      lifetimes[name] = TensorLifetime(
        name, chain.tensor(name).bytes, step, last_read[name], storage
      )

  resident = []
  for step in range(len(groups)):
    stored: dict[str, int] = {}
    for lifetime in lifetimes.values():
      if lifetime.first_step <= step <= lifetime.last_step:
        # storage keeps the size of the tensor that first had it
        stored[lifetime.storage] = lifetimes[lifetime.storage].bytes
    resident.append(sum(stored.values()))
  return MemoryUse(
    lifetimes=tuple(sorted(lifetimes.values(), key=lambda lifetime: lifetime.first_step)),
    resident_bytes=tuple(resident),
    peak_bytes=max(resident),
    peak_step=resident.index(max(resident)),
  )
