"""The transpose on Hopper where rows of the result begin anywhere (Pallas Mosaic GPU).

A thread block for each core stays and takes every n-th block of x, of those that
`transpose_blocks` cuts. Its memory warpgroup copies them by TMA into a ring of stages
in shared memory; all consumer warps take each block together and store whole sectors
of the result.

The kernel moves bits: elements come as 16-bit unsigned integers.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu

from hw_profiles.capacity.warpgroups import (
  FEWEST_REGISTERS,
  WARPGROUP_THREADS,
  consumer_registers,
)
from pallas_kernels import sharding
from pallas_kernels.compat import arith, ir, llvm, vector
from pallas_kernels.hopper.fence import fence_smem
from pallas_kernels.hopper.ring import StageRing
from pallas_kernels.hopper.thread_numbers import ThreadNumber
from pallas_kernels.rowwise.row_stream import OTHER_BYTES
from pallas_kernels.rowwise.transpose_blocks import (
  CONSUMER_COLUMNS,
  CONSUMERS,
  HEIGHT,
  ROWS,
  SECTOR,
  STEP,
  SWIZZLE_BYTES,
  TURNS,
  VECTOR,
  VECTORS,
  WIDTH,
  TransposeBlocks,
  Vectors,
  element,
)

_BYTES = 2
_TRANSFORMS = (plgpu.SwizzleTransform(SWIZZLE_BYTES),)


def stages(shared_bytes: int) -> int:
  """Blocks of x that fit in a thread block's shared memory."""
  return (shared_bytes - OTHER_BYTES) // (_BYTES * HEIGHT * WIDTH)


def _turned_back(pairs: list[Any], turned: ThreadNumber) -> list[Any]:
  """Pairs of elements of which element i ^ turned stands at i, in order."""
  i32 = ir.IntegerType.get_signless(32)
  for bit in TURNS:
    masked = arith.andi(turned.value, mgpu_utils.c(bit, i32))
    is_turned = arith.cmpi(arith.CmpIPredicate.ne, masked, mgpu_utils.c(0, i32))
    pairs = [arith.select(is_turned, pairs[i ^ (bit // 2)], pairs[i]) for i in range(len(pairs))]
  return pairs


def _unless(condition: Any) -> Any:
  true = mgpu_utils.c(1, ir.IntegerType.get_signless(1))
  return mgpu_utils.when(arith.xori(condition, true))


@dataclasses.dataclass(frozen=True)
class _Moves:
  """A thread's loads from a block in shared memory and stores to the result.

  Attributes:
    blocks: How x is cut.
    mine: What the thread has of the block.
    places: Of the first vector's elements in shared memory, as they are loaded; the others' are
      whole swizzles further.
    first_row: The row of x that is the block's first in shared memory.
    shared: Pointer to the block.
    result: Pointer to the result.
  """

  blocks: TransposeBlocks
  mine: Vectors
  places: list[ThreadNumber]
  first_row: ThreadNumber
  shared: Any
  result: Any

  def load(self, place: ThreadNumber, further: int = 0) -> Any:
    """The bits of an element."""
    i16 = ir.IntegerType.get_signless(16)
    start = mgpu_utils.getelementptr(self.shared, [place.value], i16)
    return llvm.load(i16, mgpu_utils.getelementptr(start, [further], i16))

  def vector_of(self, unit: int) -> Any:
    """A vector's bits, in the order of its rows."""
    i16, i32 = (ir.IntegerType.get_signless(bits) for bits in (16, 32))
    elements = [self.load(place, unit * STEP * WIDTH) for place in self.places]
    found = vector.from_elements(ir.VectorType.get((VECTOR,), i16), elements)
    words = mgpu_utils.bitcast(found, ir.VectorType.get((VECTOR // 2,), i32))
    pairs = [
      vector.extract(words, dynamic_position=[], static_position=[i]) for i in range(VECTOR // 2)
    ]
    return vector.from_elements(words.type, _turned_back(pairs, self.mine.turned))

  def store(self, bits: Any, row: ThreadNumber, count: int) -> None:
    """`count` neighbours of the thread's column, from a row on."""
    i16, i64 = (ir.IntegerType.get_signless(bits) for bits in (16, 64))
    offset = arith.extsi(i64, (self.mine.column * self.blocks.rows + row).value)
    target = mgpu_utils.getelementptr(self.result, [offset], i16)
    llvm.store(bits, target, alignment=_BYTES * count)

  def whole(self) -> None:
    """Every vector of a block inside of x."""
    # every load before the first store, which no load is moved across
    found = [self.vector_of(unit) for unit in range(VECTORS)]
    for row, bits in zip(self.mine.rows, found, strict=True):
      self.store(bits, row, VECTOR)

  def clipped(self) -> None:
    """What is there of a block at an edge of x."""
    rows = self.blocks.rows
    here = self.mine.column < self.blocks.columns
    for unit, first in enumerate(self.mine.rows):
      whole = (here & (first >= 0) & (first + VECTOR <= rows)).value
      with mgpu_utils.when(whole):
        self.store(self.vector_of(unit), first, VECTOR)
      with _unless(whole):
        for i in range(VECTOR):
          row = first + i
          with mgpu_utils.when((here & (row >= 0) & (row < rows)).value):
            self.store(self.load(element(row - self.first_row, self.mine.within)), row, 1)


@dataclasses.dataclass(frozen=True)
class _Kernel:
  """One instance: by `programs` thread blocks with rings of `stages` stages."""

  blocks: TransposeBlocks
  programs: int
  stages: int
  interpreted: bool

  def body(self, x: Any, out: Any, ring_blocks: Any, full: Any, empty: Any) -> None:
    """What every warpgroup of every thread block runs."""
    program = lax.axis_index("program")
    warpgroup = lax.axis_index("warpgroup")
    ring = StageRing(self.stages, full, empty)
    steps = lax.div(self.blocks.count - program + self.programs - 1, jnp.int32(self.programs))

    def place(step: Any) -> tuple[Any, Any, Any]:
      block_row, block_column = self.blocks.place(program + step * self.programs)
      # above the first block there are no rows
      return block_row, block_column, jnp.maximum(block_row * ROWS - SECTOR, 0)

    @pl.when(warpgroup == CONSUMERS)
    def _memory() -> None:
      plgpu.set_max_registers(FEWEST_REGISTERS, action="decrease")

      def one(step: Any, _: None) -> None:
        _, block_column, first_row = place(step)
        rows, columns = pl.ds(first_row, HEIGHT), pl.ds(block_column * WIDTH, WIDTH)

        def copy(stage: Any, arrived: Any) -> None:
          # the consumers' loads, of which `empty` told, before what the copy writes
          fence_smem(interpreted=self.interpreted)
          plgpu.copy_gmem_to_smem(x.at[rows, columns], ring_blocks.at[stage], arrived)

        ring.fill(step, copy)

      lax.fori_loop(jnp.int32(0), steps, one, None)
      ring.drain(steps)

    @pl.when(warpgroup < CONSUMERS)
    def _consumer() -> None:
      registers = consumer_registers(CONSUMERS, producer=FEWEST_REGISTERS)
      plgpu.set_max_registers(registers, action="increase")

      def one(step: Any, _: None) -> None:
        stage = ring.wait(step)
        if self.interpreted:
          self._store_columns(ring_blocks.at[stage], out, warpgroup, *place(step))
        else:
          self._store(ring_blocks.at[stage], out, *place(step))
        ring.release(step)

      lax.fori_loop(jnp.int32(0), steps, one, None)

  def _store(self, block: Any, out: Any, *place: Any) -> None:
    """What a block has of the result [columns · rows]."""
    number = plgpu.Layout.WG_SPLAT(())

    @plgpu.inline_mgpu(
      arg_types=(plgpu.RefType(_TRANSFORMS), plgpu.RefType(), number, number, number)
    )
    def put(_: Any, block: Any, out: Any, *place: Any) -> None:
      row, column, first_row = (ThreadNumber(x.registers.flat[0]) for x in place)
      thread = ThreadNumber(mgpu_utils.thread_idx()) % (WARPGROUP_THREADS * CONSUMERS)
      mine = self.blocks.vectors(thread, row, column)
      moves = _Moves(
        self.blocks,
        mine,
        mine.places(first_row),
        first_row,
        mgpu_utils.memref_ptr(block),
        mgpu_utils.memref_ptr(out),
      )
      inside = self.blocks.is_inside(row, column).value
      with mgpu_utils.when(inside):
        moves.whole()
      with _unless(inside):
        moves.clipped()

    put(block, out, *(jnp.asarray(x, jnp.int32) for x in place))

  def _store_columns(
    self, block: Any, out: Any, warpgroup: Any, block_row: Any, block_column: Any, first_row: Any
  ) -> None:
    """What an interpreted warpgroup has of a block, a column at a time.

    The result is [all columns of the blocks, all of their rows], what is above the first of
    x in front.
    """
    found = block[...]
    for i in range(CONSUMER_COLUMNS):
      within = warpgroup * CONSUMER_COLUMNS + i
      column = block_column * WIDTH + within
      # of the block's rows without the rows above it
      start = block_row * ROWS + self.blocks.shift(column)
      local = start - SECTOR - first_row + lax.iota(jnp.int32, ROWS)
      out[column, pl.ds(start, ROWS)] = jnp.take(found, within, axis=1)[jnp.maximum(local, 0)]


def run(x: jax.Array, *, cores: int, shared_bytes: int, interpret: Any = None) -> jax.Array:
  """[1, columns, rows] of x [1, rows, columns].

  Args:
    x: 16-bit unsigned integers, at most 2^31 - 1, of at least `HEIGHT` rows and `WIDTH` columns,
      a row a multiple of 16 bytes.
    cores: Streaming multiprocessors.
    shared_bytes: Of a thread block.
    interpret: None to compile, or the interpreter's parameters.
  """
  _, rows, columns = x.shape
  blocks, interpreted = TransposeBlocks(rows, columns), interpret is not None
  kernel = _Kernel(blocks, min(blocks.count, cores), stages(shared_bytes), interpreted)
  shape = (blocks.across * WIDTH, blocks.down * ROWS + SECTOR) if interpreted else (x.size,)
  (found,) = plgpu.kernel(
    kernel.body,
    out_type=(sharding.out_struct(shape, x.dtype, x),),
    scratch_types=(
      plgpu.SMEM((kernel.stages, HEIGHT, WIDTH), x.dtype, transforms=_TRANSFORMS),
      *StageRing.barriers(num_stages=kernel.stages, copies=1, consumers=CONSUMERS),
    ),
    grid=(kernel.programs,),
    grid_names=("program",),
    num_threads=CONSUMERS + 1,
    thread_name="warpgroup",
    compiler_params=plgpu.CompilerParams(
      lowering_semantics=plgpu.LoweringSemantics.Lane,
      # blocks are written by copies alone, of which a barrier tells
      unsafe_no_auto_barriers=True,
      reduction_scratch_bytes=0,
    ),
    interpret=interpret,
  )(x.reshape(rows, columns))
  if interpreted:
    found = found[:columns, SECTOR : SECTOR + rows]
  return found.reshape(1, columns, rows)
