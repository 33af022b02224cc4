"""Bytes that a chain of operators moves, for any cut into kernels."""

import dataclasses
from collections.abc import Sequence

from hw_profiles.arguments import at_least, ceil_div, instance
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.fusion.chain import ChainOperation, OperatorChain
from hw_profiles.fusion.lifetimes import MemoryUse, external_writes, memory_use
from hw_profiles.fusion.partitions import fusion_obstacle, fusion_partitions, groups_of


@dataclasses.dataclass(frozen=True)
class GroupTraffic:
  """What one kernel moves.

  Attributes:
    operations: Names of what it computes.
    read_bytes: Tensor to bytes read.
    write_bytes: Tensor to bytes written.
    total_bytes: The two together.
    held_row_bytes: What a program must keep of a row between the passes that a
      reduction over it takes; 0 where every value is used at once.
    fits: Whether it may keep that much; if not, what would have been kept goes
      through memory, and is counted.
  """

  operations: tuple[str, ...]
  read_bytes: FrozenMap[str, int]
  write_bytes: FrozenMap[str, int]
  total_bytes: int
  held_row_bytes: int
  fits: bool


@dataclasses.dataclass(frozen=True)
class FusionTraffic:
  """What a chain moves when cut into kernels in one way.

  Attributes:
    partition: Operations in each kernel, in order.
    groups: One entry a kernel.
    read_bytes: Over all kernels, as `write_bytes` and `total_bytes`.
    write_bytes: Bytes written.
    total_bytes: Bytes read and written.
    launches: Kernels.
    memory: Lifetimes of the tensors and the peak.
  """

  partition: tuple[int, ...]
  groups: tuple[GroupTraffic, ...]
  read_bytes: int
  write_bytes: int
  total_bytes: int
  launches: int
  memory: MemoryUse


def fusion_traffic(
  chain: OperatorChain, *, partition: Sequence[int], local_capacity_bytes: int | None = None
) -> FusionTraffic:
  """Each kernel reads what it needs from outside once, and writes what others need once.

      total = Σ over kernels (inputs not written in it + outputs read outside it)

  A program handles one row at a time, so a tensor without the row dimension (a
  weight of each column) is read again for every row. An operation that spans a
  row splits its kernel into two passes over that row: what both passes need is
  kept locally, or moved again where `local_capacity_bytes` has no room for it.

  Example: silu, multiply and quantise to 8 bits of two 24 MiB inputs move 156
  MiB as three kernels, 108 with either pair fused, and 60 as one.

  Bytes between the working buffers and the next tier: a cache may serve them.
  The example's published times, 14.2 and 7.68 us for silu and multiply as two
  kernels and as one, mean 8.9 and 9.8 TB/s: more than the 1.8 TB/s of that
  device's memory, so they were served by its L2 and neither confirm nor refute
  a prediction from the memory's bandwidth (`achieved_bandwidth`).

  Args:
    chain: The operations.
    partition: Operations in each kernel, in order; (2, 1) fuses the first two.
    local_capacity_bytes: Room a program has for rows; None: always enough.

  Raises:
    ValueError: `partition` does not fit the chain, or puts an operation that
      spans the tensor into one kernel with its producer or consumer.
  """
  groups = groups_of(chain, partition)
  if local_capacity_bytes is not None:
    at_least("local_capacity_bytes", local_capacity_bytes, 0)
  obstacle = fusion_obstacle(chain, partition)
  if obstacle is not None:
    raise ValueError(f"partition={tuple(partition)}: {obstacle}")
  moved = tuple(_group_traffic(chain, start, stop, local_capacity_bytes) for start, stop in groups)
  reads = sum(sum(group.read_bytes.values()) for group in moved)
  writes = sum(sum(group.write_bytes.values()) for group in moved)
  return FusionTraffic(
    partition=tuple(partition),
    groups=moved,
    read_bytes=reads,
    write_bytes=writes,
    total_bytes=reads + writes,
    launches=len(groups),
    memory=memory_use(chain, partition),
  )


def rank_fusions(
  chain: OperatorChain, *, local_capacity_bytes: int | None = None
) -> tuple[FusionTraffic, ...]:
  """Every partition that can run, least traffic first, then fewest launches.

  Fewest bytes is where measuring starts, not its result: a kernel that holds
  more may run fewer programs at once.

  Raises:
    ValueError: `local_capacity_bytes` is negative.
  """
  instance("chain", chain, OperatorChain)
  results = [
    fusion_traffic(chain, partition=partition, local_capacity_bytes=local_capacity_bytes)
    for partition in fusion_partitions(len(chain.operations))
    if fusion_obstacle(chain, partition) is None
  ]
  return tuple(sorted(results, key=lambda result: (result.total_bytes, result.launches)))


def _passes(
  chain: OperatorChain, operations: Sequence[ChainOperation]
) -> tuple[dict[str, set[int]], dict[str, int]]:
  """In which passes over a row each tensor is read, and in which it is written."""
  read_in: dict[str, set[int]] = {}
  written_in: dict[str, int] = {}
  current = 0
  for operation in operations:
    here = {current}
    if operation.span == "row":
      current += 1
      width = max((chain.tensor(name).shape[-1:] for name in operation.reads), default=(1,))
      if chain.tensor(operation.writes).shape[-1:] == width != (1,):
        # a whole row comes out: its values are needed again once the row is known
        here.add(current)
    for name in operation.reads:
      read_in.setdefault(name, set()).update(here)
    written_in[operation.writes] = current
  return read_in, written_in


def _group_traffic(
  chain: OperatorChain, start: int, stop: int, capacity: int | None
) -> GroupTraffic:
  operations = chain.operations[start:stop]
  read_in, written_in = _passes(chain, operations)
  crossing = {
    name
    for name, passes in read_in.items()
    if (max(passes) > written_in[name] if name in written_in else len(passes) > 1)
  }
  held = sum(chain.tensor(name).row_bytes for name in crossing)
  fits = capacity is None or held <= capacity
  spilled = set() if fits else crossing

  reads: dict[str, int] = {}
  for name, passes in read_in.items():
    later = {number for number in passes if number > written_in.get(name, -1)}
    if name in written_in and name not in spilled:
      continue
    rows = max(chain.tensor(op.writes).rows for op in operations if name in op.reads)
    tensor = chain.tensor(name)
    rereads = ceil_div(rows, tensor.rows) if tensor.rows else 1
    reads[name] = tensor.bytes * max(rereads, 1) * (len(later) if name in spilled else 1)
  leaving = external_writes(chain, start, stop)
  writes = {
    name: chain.tensor(name).bytes for name in written_in if name in leaving or name in spilled
  }
  return GroupTraffic(
    operations=tuple(operation.name for operation in operations),
    read_bytes=FrozenMap(reads),
    write_bytes=FrozenMap(writes),
    total_bytes=sum(reads.values()) + sum(writes.values()),
    held_row_bytes=held,
    fits=fits,
  )
