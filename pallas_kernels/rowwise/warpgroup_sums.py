"""Sums over a block that one warpgroup has in registers, four warps of it beside others.

Pallas reduces such a block only where a kernel has no other warpgroup: the
reduction's scratch would be theirs, too. Interpreted all of this is plain JAX.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu

from hw_profiles.capacity.warpgroups import WARPGROUP_THREADS
from pallas_kernels.compat import arith, ir, llvm, memref, vector

LANES = 32
WARPS = WARPGROUP_THREADS // LANES


def thread_of(count: int) -> Any:
  """The thread's number in its `count` neighbours."""
  i32 = ir.IntegerType.get_signless(32)
  return arith.remui(mgpu_utils.thread_idx(), mgpu_utils.c(count, i32))


def _layout(shape: tuple[int, ...], vec_size: int) -> Any:
  return plgpu.Layout.WG_STRIDED(shape, vec_size=vec_size)


def zeros(shape: tuple[int, ...], vec_size: int, *, interpreted: bool) -> jax.Array:
  """A block of float32 zeros that a loop can carry."""
  found = jnp.zeros(shape, jnp.float32)
  return found if interpreted else plgpu.layout_cast(found, _layout(shape, vec_size))


def load(ref: Any, shape: tuple[int, ...], vec_size: int, *, interpreted: bool) -> jax.Array:
  """A block from shared memory, `vec_size` neighbours a thread."""
  return ref[...] if interpreted else plgpu.load(ref, layout=_layout(shape, vec_size))


def clear(ref: Any, *, interpreted: bool) -> None:
  """Zeros in all of [rows, columns] of shared memory, or in a part of one row."""
  if interpreted:
    ref[...] = jnp.zeros(ref.shape, ref.dtype)
    return

  @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))
  def fill(_: Any, shared: Any) -> None:
    index = ir.IndexType.get()
    thread = arith.index_castui(index, thread_of(WARPGROUP_THREADS))
    zero = mgpu_utils.c(0, ir.MemRefType(shared.type).element_type)
    width = mgpu_utils.c(ref.shape[-1], index)
    for start in range(0, ref.size, WARPGROUP_THREADS):
      # a short last step: its threads store the last zeros again
      last = mgpu_utils.c(ref.size - 1, index)
      place = arith.minui(arith.addi(thread, mgpu_utils.c(start, index)), last)
      row = [arith.divui(place, width)] if ref.ndim == 2 else []
      memref.store(zero, shared, [*row, arith.remui(place, width)])

  fill(ref)


def here(x: jax.Array, vec_size: int, *, interpreted: bool) -> jax.Array:
  """float32 x, computed where it stands.

  LLVM moves the additions to a sum that a loop carries below the last branch of
  its body, and keeps what is added until then: registers as many as the sum's.
  """
  if interpreted:
    return x
  layout = _layout(x.shape, vec_size)

  @plgpu.inline_mgpu(
    arg_types=(layout,), return_type=plgpu.ShapeDtypeStruct(x.shape, jnp.float32, layout=layout)
  )
  def kept(_: Any, x: Any) -> Any:
    registers = x.registers.copy()
    f32 = ir.F32Type.get()
    for place, register in np.ndenumerate(registers):
      elements: list[Any] = [
        llvm.inline_asm(
          f32,
          [vector.extract(register, dynamic_position=[], static_position=[i])],
          "mov.b32 $0, $1;",
          "=f,f",
          has_side_effects=True,
        )
        for i in range(ir.VectorType(register.type).shape[0])
      ]
      registers[place] = vector.from_elements(register.type, elements)
    return mgpu.FragmentedArray(_registers=registers, _layout=x.layout, _is_signed=None)

  return kept(x)


def reduced(
  blocks: tuple[jax.Array, ...],
  scratch: Any,
  *,
  vector_size: int,
  largest: bool,
  interpreted: bool,
) -> tuple[jax.Array, ...]:
  """The sum, or the maximum, of each float32 block, the same in every thread.

  Args:
    blocks: Of one shape.
    scratch: Shared memory [blocks, 4] of this warpgroup. Until it is written
      again the warpgroup must have passed another barrier.
    vector_size: Neighbours a thread has.
    largest: Whether the maximum of non-negative elements is wanted.
    interpreted: Whether an interpreter runs it.
  """
  if interpreted:
    return tuple((jnp.max if largest else jnp.sum)(x) for x in blocks)
  layout = _layout(blocks[0].shape, vector_size)

  def combine(a: Any, b: Any) -> Any:
    return arith.maximumf(a, b) if largest else arith.addf(a, b)

  @plgpu.inline_mgpu(arg_types=(*(layout for _ in blocks), plgpu.RefType()))
  def exchange(_: Any, *arguments: Any) -> None:
    *arrays, shared = arguments
    i32, index = ir.IntegerType.get_signless(32), ir.IndexType.get()
    found = [_of_a_thread(x, combine) for x in arrays]
    distance = LANES // 2
    while distance:
      found = [combine(x, mgpu_utils.shfl_bfly(x, distance)) for x in found]
      distance //= 2
    thread = thread_of(WARPGROUP_THREADS)
    warp = arith.index_castui(index, arith.divui(thread, mgpu_utils.c(LANES, i32)))
    for i, x in enumerate(found):
      # every lane of a warp has the same number
      memref.store(x, shared, [mgpu_utils.c(i, index), warp])
    mgpu_utils.warpgroup_barrier()

  exchange(*blocks, scratch)
  both = jnp.maximum if largest else jnp.add
  parts = [[scratch[i, warp] for warp in range(WARPS)] for i in range(len(blocks))]
  return tuple(both(both(a, b), both(c, d)) for a, b, c, d in parts)


def _of_a_thread(x: Any, combine: Any) -> Any:
  """Of a thread's elements, neighbours in pairs, then the pairs."""
  parts = list(x.registers.flat)
  while len(parts) > 1:
    odd = parts[-1:] if len(parts) % 2 else []
    parts = [combine(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)] + odd
  elements = [
    vector.extract(parts[0], dynamic_position=[], static_position=[i])
    for i in range(ir.VectorType(parts[0].type).shape[0])
  ]
  while len(elements) > 1:
    elements = [combine(a, b) for a, b in zip(elements[::2], elements[1::2], strict=True)]
  return elements[0]
