"""Estimated time of a chain of elementwise operators, for any cut into kernels."""

from collections.abc import Sequence

from hw_profiles.arguments import ceil_div
from hw_profiles.capacity.residency import residency
from hw_profiles.cost.device_time import DeviceTime
from hw_profiles.cost.sm_time import SmAmounts
from hw_profiles.cost.stream_time import SmPass, sm_stream_time
from hw_profiles.fusion.chain import OperatorChain
from hw_profiles.fusion.partitions import groups_of
from hw_profiles.fusion.traffic import fusion_traffic
from hw_profiles.profile import GpuProfile
from hw_profiles.registry import resolve
from hw_profiles.rowwise.block_threads import registers_per_thread, threads
from hw_profiles.rowwise.cache import is_reread_from_l2
from hw_profiles.rowwise.config import RowConfig


def fusion_time(
  chain: OperatorChain,
  *,
  partition: Sequence[int],
  profile: str | GpuProfile,
  config: RowConfig,
) -> DeviceTime:
  """Kernels one after another, each a program for every block of its elements.

  Each kernel is timed as any streaming kernel (`sm_stream_time`): by its bytes
  in `fusion_traffic`, by the special functions and the arithmetic of its
  operations, by the latency of a block. L2 serves a tensor that an earlier
  kernel moved, if what the kernels moved since then fits half of it.

  Example: the swiglu chain with codes, 1024 x 12288, on an H200: what three
  kernels take over one is the ratio of their bytes, 156 to 60 MiB, and two
  launches more.

  Args:
    chain: Operations that treat each element alone.
    partition: Operations in each kernel, in order.
    profile: A GPU's profile or its name.
    config: The block, of `block_rows`·`block_cols` neighbouring elements.

  Raises:
    ValueError: `partition` does not fit the chain, an operation spans more
      than an element, or the profile is no GPU's.
  """
  gpu = resolve(profile)
  if not isinstance(gpu, GpuProfile):
    raise ValueError(f"profile={gpu.name!r}: expected the profile of a GPU")
  wide = [operation.name for operation in chain.operations if operation.span != "element"]
  if wide:
    raise ValueError(f"{wide[0]} spans more than an element: expected operations that do not")
  traffic = fusion_traffic(chain, partition=partition)
  block = config.block_rows * config.block_cols
  moved_by: dict[str, int] = {}
  passes = []
  for step, ((start, stop), group) in enumerate(
    zip(groups_of(chain, partition), traffic.groups, strict=True)
  ):
    operations = chain.operations[start:stop]
    elements = max(chain.tensor(op.writes).elements for op in operations)
    if not elements:
      continue
    hits = sum(
      size
      for name, size in group.read_bytes.items()
      if name in moved_by
      and is_reread_from_l2(
        between_bytes=sum(one.total_bytes for one in traffic.groups[moved_by[name] : step]),
        l2_bytes=gpu.l2_bytes,
      )
    )
    read_bytes = ceil_div(sum(group.read_bytes.values()), elements)
    programs = ceil_div(elements, block)
    passes.append(
      SmPass(
        programs=programs,
        resident_blocks=residency(
          gpu,
          threads_per_block=threads(config),
          registers_per_thread=registers_per_thread(config, element_bytes=read_bytes),
          shared_bytes_per_block=0,
        ).resident_blocks,
        per_program=SmAmounts(
          l2_bytes=ceil_div(group.total_bytes, programs),
          special_functions=block * sum(op.special_functions for op in operations),
          cuda_core_operations=block * sum(op.arithmetic for op in operations),
        ),
        round_trips=1,
        dram_bytes=group.total_bytes - hits,
      )
    )
    moved_by.update(dict.fromkeys((*group.read_bytes, *group.write_bytes), step))
  return sm_stream_time(gpu, tuple(passes))
