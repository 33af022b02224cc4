"""The copies that a thread block begins with, and the barrier at which they arrive.

The thread that makes the barrier asks for them at once, and the others meet it afterwards. By
barriers of Mosaic's the block meets twice before a copy can be asked for: on an H200 silu(gate)·up
1024 x 12288, which 1024 blocks encode, takes 16.7 us so and 16.4 to 16.5 with copies of its own.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.compat import ir, nvvm
from pallas_kernels.hopper import kept_copy


@dataclasses.dataclass(frozen=True)
class FirstCopies:
  """Copies of a block, all of which arrive before any is read.

  Attributes:
    count: Of them.
    policy: What L2 is told of their source, as of `kept_copy.issue`.
    interpreted: Whether an interpreter runs it.
  """

  count: int
  policy: str | None = None
  interpreted: bool = False

  def scratch(self) -> Any:
    """Scratch type of `arrived`."""
    if self.interpreted:
      return plgpu.Barrier(num_arrivals=self.count)
    return kept_copy.Arrivals.scratch(1)

  def start(self, copies: Sequence[tuple[Any, Any]], arrived: Any, is_first: Any) -> None:
    """Before all else: every thread of the block runs it.

    Args:
      copies: (a part of global memory, where in shared memory), contiguous, of sizes and at
        places that are multiples of 16 bytes.
      arrived: What `scratch` made.
      is_first: Whether the warpgroup is the block's first.
    """
    assert len(copies) == self.count
    if self.interpreted:

      @pl.when(is_first)
      def _copy() -> None:
        for part, place in copies:
          plgpu.copy_gmem_to_smem(part, place, arrived)

      return

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),) * (2 * self.count + 1))
    def started(_: Any, *arguments: Any) -> None:
      *parts, words = arguments
      i32 = ir.IntegerType.get_signless(32)
      barrier = kept_copy.barrier_of(words, mgpu_utils.c(0, i32))
      with mgpu_utils.when(mgpu_utils.single_thread_predicate()):
        nvvm.mbarrier_init(barrier, mgpu_utils.c(1, i32))
        # copies are of another proxy
        nvvm.fence_mbarrier_init()
        kept_copy.issue(parts, barrier, self.policy)
      nvvm.barrier()

    started(*(part for pair in copies for part in pair), arrived)

  def wait(self, arrived: Any) -> None:
    """Until all are there."""
    if self.interpreted:
      plgpu.barrier_wait(arrived)
      return
    kept_copy.Arrivals(arrived, 1).wait(jnp.int32(0), jnp.int32(0))
