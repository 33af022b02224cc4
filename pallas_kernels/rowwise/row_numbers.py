"""Numbers of all of a row, which the members of a group find together: maxima, sums of products.

Each member finds its pieces' number, its warps leave theirs in shared memory, and after
they have met every thread takes all of them in one order. See `row_groups`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu

from hw_profiles.capacity.warpgroups import WARPGROUP_THREADS
from pallas_kernels.compat import arith, ir, llvm, memref, nvvm, vector
from pallas_kernels.rowwise.row_groups import Share
from pallas_kernels.rowwise.warpgroup_sums import LANES, WARPS, thread_of

# Of the hardware's 16 barriers 0 is the block's, and 1 to 8 are its warpgroups', 8 at most.
_FIRST_BARRIER = 9
# The larger of a number and |x|; of a NaN the number.
LARGER_MAGNITUDE = "{ .reg .f32 a; abs.f32 a, $2; max.f32 $0, $1, a; }"
_PLUS_SQUARE = "fma.rn.f32 $0, $2, $2, $1;"
_PLUS_PRODUCT = "fma.rn.f32 $0, $2, $3, $1;"
SUM = "add.rn.f32 $0, $1, $2;"

Pair = tuple[Sequence[jax.Array], Sequence[jax.Array]]


def larger(share: Share, found: jax.Array, block: jax.Array) -> jax.Array:
  """The larger of each number and |x|, of a NaN the number; float32 pieces."""
  if share.interpreted:
    return jnp.fmax(found, jnp.abs(block))
  return _taken(share, LARGER_MAGNITUDE, found, block)


def plus_squares(share: Share, found: jax.Array, block: jax.Array) -> jax.Array:
  """Each number and x², in one rounding; float32 pieces."""
  if share.interpreted:
    return found + block * block
  return _taken(share, _PLUS_SQUARE, found, block)


def _taken(share: Share, take: str, found: jax.Array, block: jax.Array) -> jax.Array:
  """What an instruction makes of each number, $1, and x, $2."""

  @plgpu.inline_mgpu(
    arg_types=(share.block, share.block),
    return_type=plgpu.ShapeDtypeStruct((share.piece,), jnp.float32, layout=share.block),
  )
  def taken(_: Any, *blocks: Any) -> Any:
    f32 = ir.F32Type.get()
    pairs = [
      [
        vector.extract(x.registers.flat[0], dynamic_position=[], static_position=[i])
        for x in blocks
      ]
      for i in range(share.vector)
    ]
    return share.of_elements([llvm.inline_asm(f32, pair, take, "=f,f,f") for pair in pairs])

  return taken(found, block)


def largest(
  share: Share, pieces: Sequence[jax.Array], member: Any, scratch: Any, meet: Any
) -> jax.Array:
  """max |x| over the numbers of a row that are no NaN, or 0: the same in every thread.

  Args:
    pieces: A member's, float32.
    member: Which it is.
    scratch: Shared memory [warps] of the group, which no other call uses before the members
      have met once more.
    meet: A barrier with an arrival for each member; the interpreter's alone.
  """
  if share.interpreted:
    magnitudes = [jnp.where(x == x, jnp.abs(x), 0.0) for x in pieces]
    found = jnp.max(functools.reduce(jnp.maximum, magnitudes))
    return functools.reduce(jnp.maximum, _interpreted(share, found, member, scratch, meet))

  return _exchanged(share, pieces, scratch, LARGER_MAGNITUDE, LARGER_MAGNITUDE, largest_of_warp)


def largest_of_warp(mine: Any) -> Any:
  """The largest of a warp's float32 numbers, none of them negative, in all of its threads."""
  # they have the order of their bits
  i32, f32 = ir.IntegerType.get_signless(32), ir.F32Type.get()
  everyone = mgpu_utils.c(-1, i32)
  found = mgpu_utils.redux(arith.bitcast(i32, mine), everyone, mgpu_utils.ReductionKind.UMAX)
  return arith.bitcast(f32, found)


def square_sum(
  share: Share, pieces: Sequence[jax.Array], member: Any, scratch: Any, meet: Any = None
) -> jax.Array:
  """Σ x² over the row, in an order that its columns fix; arguments of `largest`."""
  if share.interpreted:
    found = jnp.sum(functools.reduce(jnp.add, [x * x for x in pieces]))
    return functools.reduce(jnp.add, _interpreted(share, found, member, scratch, meet))
  return _exchanged(share, pieces, scratch, _PLUS_SQUARE, SUM, _sum_of_a_warp)


def total(share: Share, piece: jax.Array, member: Any, scratch: Any, meet: Any = None) -> jax.Array:
  """The sum of what each member has; of `plus_squares` it is `square_sum`. Arguments likewise."""
  if share.interpreted:
    return functools.reduce(jnp.add, _interpreted(share, jnp.sum(piece), member, scratch, meet))
  return _exchanged(share, [piece], scratch, SUM, SUM, _sum_of_a_warp)


def _sum_of_a_warp(mine: Any) -> Any:
  distance = LANES // 2
  while distance:
    mine = arith.addf(mine, mgpu_utils.shfl_bfly(mine, distance))
    distance //= 2
  return mine


def products(
  share: Share, pairs: Sequence[Pair], member: Any, scratch: Any, meet: Any = None
) -> tuple[jax.Array, ...]:
  """Σ a·b over the row of each pair, in an order that its columns fix, the same in every thread.

  Args:
    pairs: Pieces of a, and as many of b.
    member: As of `largest`.
    scratch: Shared memory [pairs, warps] of the group; else likewise.
    meet: Likewise.
  """
  if share.interpreted:
    for slot, (a, b) in enumerate(pairs):
      scratch[slot, member] = jnp.sum(
        functools.reduce(jnp.add, [x * y for x, y in zip(a, b, strict=True)])
      )
    _interpreted_meet(meet)
    return tuple(
      functools.reduce(jnp.add, [scratch[slot, i] for i in range(share.members)])
      for slot in range(len(pairs))
    )

  @plgpu.inline_mgpu(
    arg_types=(*(share.block for pair in pairs for side in pair for _ in side), plgpu.RefType()),
    return_type=tuple(plgpu.ShapeDtypeStruct((), jnp.float32, layout=share.number) for _ in pairs),
  )
  def exchange(_: Any, *arguments: Any) -> Any:
    *blocks, shared = arguments
    i32, f32, index = ir.IntegerType.get_signless(32), ir.F32Type.get(), ir.IndexType.get()
    mine = products_of_warp(pairs, [x.registers.flat[0] for x in blocks])
    warp = arith.index_castui(
      index, arith.divui(thread_of(share.warps * LANES), mgpu_utils.c(LANES, i32))
    )
    for slot, x in enumerate(mine):
      # every lane of a warp has the same number
      memref.store(x, shared, [mgpu_utils.c(slot, index), warp])
    _meet(share)
    four = ir.VectorType.get((WARPS,), f32)
    found = []
    for slot in range(len(pairs)):
      parts = [
        vector.load(four, shared, [mgpu_utils.c(slot, index), mgpu_utils.c(i * WARPS, index)])
        for i in range(share.members)
      ]
      number = of_a_thread([(x,) for x in parts], SUM, SUM)
      found.append(mgpu.FragmentedArray.splat(number, (), mgpu.WGSplatFragLayout(())))
    return tuple(found)

  return exchange(*(x for pair in pairs for side in pair for x in side), scratch)


def products_of_warp(pairs: Sequence[Pair], registers: Sequence[Any]) -> list[Any]:
  """Σ a·b over a warp's numbers of each pair, in all of its threads.

  Args:
    pairs: As of `products`.
    registers: Those of all pieces, in the order of the pairs.
  """
  left = iter(registers)
  mine = []
  for a, b in pairs:
    sides = [next(left) for _ in a], [next(left) for _ in b]
    mine.append(of_a_thread(list(zip(*sides, strict=True)), _PLUS_PRODUCT, SUM))
  distance = LANES // 2
  while distance:
    mine = [arith.addf(x, mgpu_utils.shfl_bfly(x, distance)) for x in mine]
    distance //= 2
  return mine


def _interpreted(
  share: Share, found: jax.Array, member: Any, scratch: Any, meet: Any
) -> list[jax.Array]:
  """What each member found."""
  scratch[member] = found
  _interpreted_meet(meet)
  return [scratch[i] for i in range(share.members)]


def _interpreted_meet(meet: Any) -> None:
  plgpu.barrier_arrive(meet)
  plgpu.barrier_wait(meet)


def _exchanged(
  share: Share,
  pieces: Sequence[jax.Array],
  scratch: Any,
  take: str,
  combine: str,
  of_a_warp: Callable[[Any], Any],
) -> jax.Array:
  """One number of all numbers of a row, the same in every thread.

  Args:
    pieces: A member's.
    scratch: A number for each warp of the group.
    take: The instruction that adds a number $2 to what was found of others, $1.
    combine: That of two such findings.
    of_a_warp: The same of a warp's threads, in all of them.
  """

  @plgpu.inline_mgpu(
    arg_types=(*(share.block for _ in pieces), plgpu.RefType()),
    return_type=plgpu.ShapeDtypeStruct((), jnp.float32, layout=share.number),
  )
  def exchange(_: Any, *arguments: Any) -> Any:
    *blocks, shared = arguments
    i32, f32, index = ir.IntegerType.get_signless(32), ir.F32Type.get(), ir.IndexType.get()
    mine = of_a_warp(of_a_thread([(x.registers.flat[0],) for x in blocks], take, combine))
    warp = arith.divui(thread_of(share.warps * LANES), mgpu_utils.c(LANES, i32))
    # every lane of a warp has the same number
    memref.store(mine, shared, [arith.index_castui(index, warp)])
    _meet(share)
    four = ir.VectorType.get((WARPS,), f32)
    parts = [
      vector.load(four, shared, [mgpu_utils.c(i * WARPS, index)]) for i in range(share.members)
    ]
    found = of_a_thread([(x,) for x in parts], combine, combine)
    return mgpu.FragmentedArray.splat(found, (), mgpu.WGSplatFragLayout(()))

  return exchange(*pieces, scratch)


def _meet(share: Share) -> None:
  """All threads of the group wait for one another."""
  if share.members == 1:
    mgpu_utils.warpgroup_barrier()
    return
  i32 = ir.IntegerType.get_signless(32)
  threads = share.members * WARPGROUP_THREADS
  group = arith.divui(mgpu_utils.thread_idx(), mgpu_utils.c(threads, i32))
  barrier = arith.addi(group, mgpu_utils.c(_FIRST_BARRIER, i32))
  nvvm.barrier(barrier_id=barrier, number_of_threads=mgpu_utils.c(threads, i32))


def of_a_thread(terms: Sequence[tuple[Any, ...]], take: str, combine: str) -> Any:
  """What instructions make of float32 vectors of one size, beginning at 0.

  Args:
    terms: For each place a number for each operand of `take` from $2 on, as vectors.
    take: Of what was found of others, $1, and a term.
    combine: Of two findings.
  """
  (size,) = ir.VectorType(terms[0][0].type).shape
  f32 = ir.F32Type.get()

  def made(text: str, *operands: Any) -> Any:
    return llvm.inline_asm(f32, operands, text, "=f" + ",f" * len(operands))

  def element(register: Any, place: int) -> Any:
    return vector.extract(register, dynamic_position=[], static_position=[place])

  # a chain for each place of a vector
  found = [mgpu_utils.c(0.0, f32)] * size
  for term in terms:
    found = [made(take, x, *(element(one, i) for one in term)) for i, x in enumerate(found)]
  while len(found) > 1:
    found = [made(combine, a, b) for a, b in zip(found[::2], found[1::2], strict=True)]
  return found[0]
