"""Where a chain may be cut into kernels."""

import itertools
from collections.abc import Iterator, Sequence

from hw_profiles.arguments import at_least, collection, instance
from hw_profiles.fusion.chain import OperatorChain


def fusion_partitions(num_operations: int) -> Iterator[tuple[int, ...]]:
  """Every way to cut a chain into groups of neighbours: 2^(n-1) of them.

  Each of the n-1 boundaries is a cut or not. (1, 2) is the first operation
  alone, the other two in one kernel. The first partition cuts everywhere, the
  last nowhere. Each can still have its own tile, layout and buffers.

  Args:
    num_operations: Operations in the chain, at least 1.

  Raises:
    ValueError: `num_operations` is no integer of at least 1.
  """
  at_least("num_operations", num_operations, 1)
  for cuts in itertools.product((True, False), repeat=num_operations - 1):
    edges = [0, *(place + 1 for place, cut in enumerate(cuts) if cut), num_operations]
    yield tuple(stop - start for start, stop in itertools.pairwise(edges))


def groups_of(chain: OperatorChain, partition: Sequence[int]) -> tuple[tuple[int, int], ...]:
  """First and one past the last operation of each group.

  Raises:
    ValueError: the sizes are not positive integers that add up to the chain.
  """
  instance("chain", chain, OperatorChain)
  collection("partition", partition)
  for size in partition:
    at_least("partition", size, 1)
  if sum(partition) != len(chain.operations):
    raise ValueError(
      f"partition={tuple(partition)}: the groups hold {sum(partition)} operation(s), expected"
      f" {len(chain.operations)}"
    )
  return tuple(itertools.pairwise(itertools.accumulate(partition, initial=0)))


def fusion_obstacle(chain: OperatorChain, partition: Sequence[int]) -> str | None:
  """Why the groups cannot each be one kernel, or None.

  Programs of one kernel do not wait for each other, so within a group nothing
  may pass to or from an operation that spans the tensor: its reader needs what
  all programs wrote. A row passes inside the program that holds it.

  Raises:
    ValueError: `partition` does not fit the chain.
  """
  for start, stop in groups_of(chain, partition):
    writers = {op.writes: op for op in chain.operations[start:stop]}
    for reader in chain.operations[start:stop]:
      for name in reader.reads:
        writer = writers.get(name)
        if writer is None:
          continue
        wide = [op.name for op in (writer, reader) if op.span == "tensor"]
        if wide:
          return (
            f"{reader.name} reads {name!r} of {writer.name} in the same kernel, but {wide[0]}"
            " spans the tensor: the programs would have to wait for each other"
          )
  return None
