"""Copies to shared memory whose source L2 keeps, and the barriers at which they arrive.

`plgpu.copy_gmem_to_smem` takes no cache hint, and Pallas gives instructions of one's own
no address of its barriers. So these copies have barriers of theirs in shared memory, one
a stage. Only compiled: an interpreter has no caches.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.compat import ir, llvm, nvvm
from pallas_kernels.hopper.ring import StageRing

# What the barriers take of shared memory, where every array begins at a multiple of it.
BARRIER_BYTES = 1024
_NUMBER = plgpu.Layout.WG_SPLAT(())
# A barrier is 64 bits, which JAX has only where it is told to.
_WORDS = 2
# For which a waiting thread sleeps at most before it looks again, as in Mosaic's own waits.
_PATIENCE_NS = 10_000_000
# Of lines that L2 keeps longer than others; ptxas makes a constant of it.
KEPT = "createpolicy.fractional.L2::evict_last.b64 $0, 1.0;"
_COPY = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
_PLAIN = f"{_COPY} [$0], [$1], $2, [$3];"
_HINTED = f"{_COPY}.L2::cache_hint [$0], [$1], $2, [$3], $4;"


@dataclasses.dataclass(frozen=True)
class Arrivals:
  """The barriers of all stages.

  Attributes:
    words: Shared memory, `scratch`.
    num_stages: Of the ring.
  """

  words: Any
  num_stages: int

  @staticmethod
  def scratch(num_stages: int) -> Any:
    """Scratch type of `words`."""
    assert 8 * num_stages <= BARRIER_BYTES
    return plgpu.SMEM((_WORDS * num_stages,), jnp.int32)

  def start(self) -> None:
    """Before all else: every thread of the block runs it, and waits for the others."""

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))
    def initialised(_: Any, words: Any) -> None:
      i32 = ir.IntegerType.get_signless(32)
      one_thread = mgpu_utils.single_thread_predicate()
      for stage in range(self.num_stages):
        barrier = barrier_of(words, mgpu_utils.c(stage, i32))
        nvvm.mbarrier_init(barrier, mgpu_utils.c(1, i32), predicate=one_thread)
      # copies are of another proxy
      nvvm.fence_mbarrier_init()
      nvvm.barrier()

    initialised(self.words)

  def copy(self, copies: Sequence[tuple[Any, Any]], stage: Any) -> None:
    """By one thread of the warpgroup that runs it: all that fills a stage.

    Args:
      copies: (a part of a row in global memory, where in shared memory), of sizes and at
        places that are multiples of 16 bytes.
      stage: Its number.
    """

    @plgpu.inline_mgpu(arg_types=(*(plgpu.RefType() for _ in copies for _ in range(2)),
                                  plgpu.RefType(), _NUMBER))  # fmt: skip
    def copied(_: Any, *arguments: Any) -> None:
      *parts, words, stage = arguments
      barrier = barrier_of(words, stage.registers.flat[0])
      with mgpu_utils.when(mgpu_utils.single_thread_predicate(mgpu_utils.ThreadSubset.WARPGROUP)):
        issue(parts, barrier, KEPT)

    flat = [part for pair in copies for part in pair]
    copied(*flat, self.words, jnp.asarray(stage, jnp.int32))

  def wait(self, stage: Any, parity: Any) -> None:
    """Until a stage has been filled for a time whose number, from 0, has this parity."""

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), _NUMBER, _NUMBER))
    def waited(_: Any, words: Any, stage: Any, parity: Any) -> None:
      barrier = barrier_of(words, stage.registers.flat[0])
      i32 = ir.IntegerType.get_signless(32)
      patience = mgpu_utils.c(_PATIENCE_NS, i32)
      nvvm.mbarrier_try_wait_parity(barrier, parity.registers.flat[0], patience)

    waited(self.words, jnp.asarray(stage, jnp.int32), jnp.asarray(parity, jnp.int32))


@dataclasses.dataclass(frozen=True)
class KeptRing(StageRing):
  """A ring whose `full` is `Arrivals`, which `fill` gives to its copy: one `Arrivals.copy`."""

  def arrivals(self, stage: Any) -> Arrivals:
    """Where a stage's copy arrives: a barrier of all, which are told the stage."""
    del stage
    return self.full

  def wait(self, step: Any) -> Any:
    """Consumer side: wait until the step's stage is full; returns the stage."""
    stage = self.stage(step)
    self.full.wait(stage, lax.rem(lax.div(step, jnp.int32(self.num_stages)), jnp.int32(2)))
    return stage


def started_ring(num_stages: int, full: Any, empty: Any, *, kept: bool) -> StageRing:
  """A ring of the references of its barriers, before all else.

  Args:
    num_stages: Of the ring.
    full: Barriers, or where the ring is kept what `Arrivals.scratch` made.
    empty: Barriers.
    kept: Whether L2 is told to keep what is copied.
  """
  if not kept:
    return StageRing(num_stages, full, empty)
  arrivals = Arrivals(full, num_stages)
  arrivals.start()
  return KeptRing(num_stages, arrivals, empty)


def issue(parts: Sequence[Any], barrier: Any, policy: str | None) -> None:
  """In MLIR, by the thread that runs it: copies, and their arrival at a barrier.

  Args:
    parts: Of each copy a part of global memory and where in shared memory, memrefs of one size,
      contiguous, at places that are multiples of 16 bytes.
    barrier: Its address.
    policy: What L2 is told of the source, e.g. `KEPT`; None: nothing.
  """
  i32, i64 = (ir.IntegerType.get_signless(bits) for bits in (32, 64))
  sizes = [_bytes(there) for there in parts[1::2]]
  pointers = [mgpu_utils.memref_ptr(part) for part in parts]
  hint: list[Any] = [] if policy is None else [llvm.inline_asm(i64, [], policy, "=l")]
  nvvm.mbarrier_arrive_expect_tx(barrier, mgpu_utils.c(sum(sizes), i32))
  for source, there, size in zip(pointers[::2], pointers[1::2], sizes, strict=True):
    llvm.inline_asm(
      ir.Type.parse("!llvm.void"),
      [there, source, mgpu_utils.c(size, i32), barrier, *hint],
      _HINTED if hint else _PLAIN,
      "l,l,r,l" + ",l" * len(hint),
      has_side_effects=True,
    )


def barrier_of(words: Any, stage: Any) -> Any:
  """The address of a stage's barrier."""
  i64 = ir.IntegerType.get_signless(64)
  return mgpu_utils.getelementptr(mgpu_utils.memref_ptr(words), [stage], i64)


def _bytes(part: Any) -> int:
  """Of a memref."""
  kind = ir.MemRefType(part.type)
  size = mgpu_utils.bitwidth(kind.element_type) // 8
  for length in kind.shape:
    size *= length
  return size
