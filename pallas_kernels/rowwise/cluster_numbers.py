"""Sums of products over all of a row whose parts the blocks of a cluster have.

Each warp sends what it found to every block of the cluster, its own among them, by a store
that arrives at a barrier there (st.async); every thread then takes all of it in one order, so
that the sums are the same bits in all blocks. Only compiled: in an interpreter no block writes
into another's shared memory.

There are two places of exchange, used in turn: a warp that sends to one again has had, at the
other one, what every warp of the cluster sent after it had read the first. No block leaves
before it has had what the others send to it.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu

from hw_profiles.capacity.warpgroups import WARPGROUP_THREADS
from pallas_kernels.compat import arith, ir, llvm, nvvm, vector
from pallas_kernels.rowwise.row_groups import Share
from pallas_kernels.rowwise.row_numbers import (
  LARGER_MAGNITUDE,
  Pair,
  largest_of_warp,
  of_a_thread,
  products_of_warp,
)
from pallas_kernels.rowwise.warpgroup_sums import LANES, thread_of

_NUMBER = plgpu.Layout.WG_SPLAT(())
# Of exchange, for each group.
_PLACES = 2
# Numbers that a warp sends at once; one is sent twice.
_PAIR = 2
# A barrier is 64 bits, which JAX has only where it is told to.
_WORDS = 2
# To block $2 of the cluster, numbers $3 and $4: to where it has what is at $0 here, and for its
# barrier $1.
_SEND = (
  "{ .reg .b32 there, barrier;"
  " mapa.shared::cluster.u32 there, $0, $2;"
  " mapa.shared::cluster.u32 barrier, $1, $2;"
  " st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32"
  " [there], {$3, $4}, [barrier]; }"
)
_WAIT = (
  "{ .reg .pred done;"
  " WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [$0], $1, $2;"
  " @!done bra WAIT; }"
)
# For which a waiting thread sleeps at most before it looks again, as in Mosaic's own waits.
_PATIENCE_NS = 10_000_000


@dataclasses.dataclass(frozen=True)
class Exchange:
  """Where the members of groups of all blocks of a cluster exchange what their warps found.

  Attributes:
    share: How a group of warpgroups shares its block's part of a row.
    blocks: Of the cluster.
    groups: Of a block.
    words: Shared memory of the barriers.
    found: Shared memory of what was sent here.
  """

  share: Share
  blocks: int
  groups: int
  words: Any
  found: Any

  @staticmethod
  def scratch(share: Share, *, blocks: int, groups: int) -> tuple[Any, Any]:
    """Scratch types of `words` and `found`."""
    return (
      plgpu.SMEM((_WORDS * _PLACES * groups,), jnp.int32),
      plgpu.SMEM((groups * _PLACES, _PAIR * blocks * share.warps), jnp.float32),
    )

  def start(self) -> None:
    """Before all else: every thread of the cluster runs it, and waits for the others."""

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))
    def initialised(_: Any, words: Any) -> None:
      i32 = ir.IntegerType.get_signless(32)
      one_thread = mgpu_utils.single_thread_predicate()
      for place in range(_PLACES * self.groups):
        barrier = _barrier(words, mgpu_utils.c(place, i32))
        nvvm.mbarrier_init(barrier, mgpu_utils.c(1, i32), predicate=one_thread)
      nvvm.fence_mbarrier_init()
      for text in ("arrive.release", "wait.acquire"):
        llvm.inline_asm(
          ir.Type.parse("!llvm.void"), [], f"barrier.cluster.{text}.aligned;", "~{memory}",
          has_side_effects=True,
        )  # fmt: skip

    initialised(self.words)

  def products(self, pairs: Sequence[Pair], group: Any, count: Any) -> tuple[jax.Array, ...]:
    """Σ a·b over the row of each pair, of one or two, the same in every thread of the cluster.

    Args:
      pairs: A member's pieces of a, and as many of b.
      group: Of this block.
      count: Exchanges of this group before this one.
    """
    pieces = [x for pair in pairs for side in pair for x in side]
    of_a_warp = functools.partial(products_of_warp, pairs)
    return self._round(pieces, of_a_warp, arith.addf, len(pairs), group, count)

  def largest(self, pieces: Sequence[jax.Array], group: Any, count: Any) -> jax.Array:
    """max |x| over the numbers of a row that are no NaN, or 0; arguments of `products`."""

    def of_a_warp(registers: Sequence[Any]) -> list[Any]:
      mine = of_a_thread([(x,) for x in registers], LARGER_MAGNITUDE, LARGER_MAGNITUDE)
      return [largest_of_warp(mine)]

    (found,) = self._round(pieces, of_a_warp, arith.maximumf, 1, group, count)
    return found

  def _round(
    self,
    pieces: Sequence[jax.Array],
    of_a_warp: Callable[[Sequence[Any]], list[Any]],
    combine: Callable[[Any, Any], Any],
    results: int,
    group: Any,
    count: Any,
  ) -> tuple[jax.Array, ...]:
    """One exchange: numbers of all of the row, of what each warp has of it.

    Args:
      pieces: A member's.
      of_a_warp: What a warp finds in the registers of its pieces, in all of its threads.
      combine: Of what two warps found.
      results: Numbers, one or two.
      group: As of `products`.
      count: Likewise.
    """
    share = self.share
    shape = plgpu.ShapeDtypeStruct((), jnp.float32, layout=share.number)

    @plgpu.inline_mgpu(
      arg_types=(
        *(share.block for _ in pieces), plgpu.RefType(), plgpu.RefType(), _NUMBER, _NUMBER,
      ),
      return_type=(shape,) * results,
    )  # fmt: skip
    def exchange(_: Any, *arguments: Any) -> Any:
      *blocks, words, found, place, parity = arguments
      mine = of_a_warp([x.registers.flat[0] for x in blocks])
      barrier = _barrier(words, place.registers.flat[0])
      self._send((mine * _PAIR)[:_PAIR], found, barrier)
      i32, f32, index = ir.IntegerType.get_signless(32), ir.F32Type.get(), ir.IndexType.get()
      llvm.inline_asm(
        ir.Type.parse("!llvm.void"),
        [_address(barrier), parity.registers.flat[0], mgpu_utils.c(_PATIENCE_NS, i32)],
        _WAIT,
        "r,r,r,~{memory}",
        has_side_effects=True,
      )
      four = ir.VectorType.get((2 * _PAIR,), f32)
      parts = [
        vector.load(four, found, [mgpu_utils.c(i, index)])
        for i in range(0, _PAIR * self.blocks * share.warps, 2 * _PAIR)
      ]
      taken = []
      for slot in range(results):
        numbers = [
          vector.extract(part, dynamic_position=[], static_position=[place])
          for part in parts
          for place in (slot, slot + _PAIR)
        ]
        while len(numbers) > 1:
          numbers = [combine(a, b) for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
        taken.append(mgpu.FragmentedArray.splat(numbers[0], (), mgpu.WGSplatFragLayout(())))
      return tuple(taken)

    places = jnp.int32(_PLACES)
    place = jnp.asarray(group, jnp.int32) * _PLACES + lax.rem(count, places)
    parity = lax.rem(lax.div(count, places), jnp.int32(2))
    return exchange(*pieces, self.words, self.found.at[place], place, parity)

  def _send(self, mine: Sequence[Any], found: Any, barrier: Any) -> None:
    """Two numbers of a warp to all blocks, by a lane for each."""
    share = self.share
    i32 = ir.IntegerType.get_signless(32)
    threads = share.members * WARPGROUP_THREADS
    thread = thread_of(threads)
    lane, warp = (
      make(thread, mgpu_utils.c(LANES, i32)) for make in (arith.remui, arith.divui)
    )  # fmt: skip
    first = arith.cmpi(arith.CmpIPredicate.eq, thread, mgpu_utils.c(0, i32))
    with mgpu_utils.when(first):
      size = 4 * _PAIR * self.blocks * share.warps
      nvvm.mbarrier_arrive_expect_tx(barrier, mgpu_utils.c(size, i32))
    rank: Any = llvm.inline_asm(i32, [], "mov.u32 $0, %cluster_ctarank;", "=r")
    place = arith.muli(
      arith.addi(arith.muli(rank, mgpu_utils.c(share.warps, i32)), warp), mgpu_utils.c(_PAIR, i32)
    )
    here = mgpu_utils.getelementptr(mgpu_utils.memref_ptr(found), [place], ir.F32Type.get())
    sends = arith.cmpi(arith.CmpIPredicate.ult, lane, mgpu_utils.c(self.blocks, i32))
    with mgpu_utils.when(sends):
      llvm.inline_asm(
        ir.Type.parse("!llvm.void"),
        [_address(here), _address(barrier), lane, *mine],
        _SEND,
        "r,r,r,f,f,~{memory}",
        has_side_effects=True,
      )


def _address(pointer: Any) -> Any:
  """Of shared memory, as PTX has it."""
  return llvm.ptrtoint(ir.IntegerType.get_signless(32), pointer)


def _barrier(words: Any, place: Any) -> Any:
  """The address of a barrier."""
  i64 = ir.IntegerType.get_signless(64)
  return mgpu_utils.getelementptr(mgpu_utils.memref_ptr(words), [place], i64)
