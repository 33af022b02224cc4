"""Rows that warpgroups of a thread block share: their pieces and results.

Numbers of all of a row are in `row_numbers`.

A group is some neighbouring warpgroups. A row lies in shared memory as pieces of
128 vectors, one for each thread of a warpgroup; the members of a group take the
pieces in turn. Interpreted all of this is plain JAX.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu

from hw_profiles.capacity.warpgroups import WARPGROUP_THREADS
from pallas_kernels.compat import arith, ir, llvm, vector
from pallas_kernels.rowwise.warpgroup_sums import WARPS, thread_of, zeros

# Of 8-bit results a line of 128 bytes, of 16-bit ones and of rows that come in two.
LINE_COLUMNS = 128
# Of a thread, to shared memory.
_LARGEST_ACCESS_BYTES = 16


@dataclasses.dataclass(frozen=True)
class Share:
  """How the members of a group share a row.

  Attributes:
    columns: Of a row.
    members: Warpgroups of a group.
    vector: Neighbours that a thread has of a piece, a divisor of `columns` and of every shift.
    interpreted: Whether an interpreter runs it.
    most_shift: Columns that lie before a row in its shared memory, at most. Where that is
      not 0, `shift` says how many, and they and those behind the row hold anything.
    fixed: Whether a thread has the same columns of every row, however the row is shifted:
      the order of a sum is then that of the columns. Else pieces begin where lines do.
  """

  columns: int
  members: int
  vector: int
  interpreted: bool = False
  most_shift: int = 0
  fixed: bool = False

  @property
  def piece(self) -> int:
    """Columns of a piece."""
    return WARPGROUP_THREADS * self.vector

  @property
  def pieces(self) -> int:
    """Of each member; the last of some may lie beyond the end of the row."""
    before = 0 if self.fixed else self.most_shift
    return -(-(before + self.columns) // (self.members * self.piece))

  @property
  def stored(self) -> int:
    """Columns of all pieces of all members."""
    return self.pieces * self.members * self.piece

  @property
  def room(self) -> int:
    """Columns that a row has in shared memory: whole lines, or those behind were shifted, too.

    Of 7239 x 5000 the gradient of rms_norm takes an H200 53 us so, with 8 columns less 57.
    """
    return self.stored + (LINE_COLUMNS if self.fixed and self.most_shift else 0)

  @property
  def warps(self) -> int:
    """Of a group."""
    return WARPS * self.members

  @property
  def block(self) -> Any:
    """Register layout of a piece."""
    return plgpu.Layout.WG_STRIDED((self.piece,), vec_size=self.vector)

  @property
  def number(self) -> Any:
    """Register layout of one number that every thread has."""
    return plgpu.Layout.WG_SPLAT(())

  def start(self, index: Any, member: Any) -> Any:
    """First column of a member's piece of this index."""
    return (index * self.members + member) * self.piece

  def starts(self, member: Any) -> list[Any]:
    """First columns of a member's pieces."""
    return [self.start(index, member) for index in range(self.pieces)]

  def shift(self, row: Any) -> Any:
    """Columns before the row of this number in its shared memory: those before it in its first
    line of global memory."""
    if not self.most_shift:
      return 0
    line = jnp.int32(LINE_COLUMNS)
    return lax.rem(lax.rem(row, line) * (self.columns % LINE_COLUMNS), line)

  def inside(self, pieces: Sequence[jax.Array], member: Any, shift: Any) -> list[jax.Array]:
    """A member's pieces of a row, float32, 0 where memory goes beyond a row that is shifted.

    Args:
      pieces: As `starts` has them.
      member: Which.
      shift: `shift` of a row whose pieces begin where lines do.
    """
    if not self.most_shift:
      return list(pieces)
    if self.fixed:
      starts = self.starts(member)
      return [self.of_row(x, start) for x, start in zip(pieces, starts, strict=True)]
    starts = self.starts(member)
    return [self.within(i, x, starts[i], shift) for i, x in enumerate(pieces)]

  def within(self, index: int, block: jax.Array, start: Any, shift: Any) -> jax.Array:
    """A member's piece of this index, float32, 0 where memory goes beyond the row.

    Args:
      index: Of the piece.
      block: The piece.
      start: Its first column.
      shift: `shift` of a row whose pieces begin where lines do, else 0.
    """
    before = 0 if self.fixed else self.most_shift
    across = self.members * self.piece
    if index * across >= before and (index + 1) * across <= self.columns:
      return block
    return self._within(block, start, shift)

  def _within(self, block: jax.Array, start: Any, shift: Any) -> jax.Array:
    """A piece, 0 beyond the row."""
    if self.interpreted:
      column = start - shift + jnp.arange(self.piece)
      return jnp.where((column >= 0) & (column < self.columns), block, 0.0)

    @plgpu.inline_mgpu(
      arg_types=(self.block, self.number),
      return_type=plgpu.ShapeDtypeStruct((self.piece,), jnp.float32, layout=self.block),
    )
    def masked(_: Any, block: Any, first: Any) -> Any:
      (register,) = block.registers.flat
      _, is_inside = self._column(first)
      zero = mgpu_utils.c(0.0, ir.F32Type.get())
      zeros = vector.from_elements(register.type, [zero] * self.vector)
      register = arith.select(is_inside, register, zeros)
      return mgpu.FragmentedArray(
        _registers=np.array([register], dtype=object), _layout=block.layout, _is_signed=None
      )

    return masked(block, jnp.asarray(start - shift, jnp.int32))

  def _column(self, first: Any) -> tuple[Any, Any]:
    """The column of a row at which a thread's vector of a piece begins, and whether it has it.

    Args:
      first: The piece's first column of the row, which may lie before it.
    """
    i32 = ir.IntegerType.get_signless(32)
    column = arith.addi(
      first.registers.flat[0],
      arith.muli(thread_of(WARPGROUP_THREADS), mgpu_utils.c(self.vector, i32)),
    )
    # without a sign what lies before the row is behind it, too
    end = mgpu_utils.c(self.columns, i32)
    return column, arith.cmpi(arith.CmpIPredicate.ult, column, end)

  def zeros(self) -> jax.Array:
    """A piece of float32 zeros that a loop can carry."""
    return zeros((self.piece,), self.vector, interpreted=self.interpreted)

  def of_row(self, block: jax.Array, start: Any, shift: Any = 0) -> jax.Array:
    """`within` of a piece of any index."""
    return block if self.columns == self.stored else self._within(block, start, shift)

  def load(self, row: Any, start: Any) -> jax.Array:
    """A piece of a row in shared memory, as float32."""
    at = row.at[pl.ds(start, self.piece)]
    if self.interpreted:
      return at[...].astype(jnp.float32)
    narrow = jnp.dtype(row.dtype)
    size = self.vector * narrow.itemsize

    @plgpu.inline_mgpu(
      arg_types=(plgpu.RefType(),),
      return_type=plgpu.ShapeDtypeStruct((self.piece,), narrow, layout=self.block),
    )
    def loaded(_: Any, shared: Any) -> Any:
      # LLVM does not see how a row that is shifted is aligned, and would load 2 bytes at once
      words = llvm.load(
        ir.VectorType.get((size // 4,), ir.IntegerType.get_signless(32)),
        self._place(shared),
        alignment=min(size, _LARGEST_ACCESS_BYTES),
      )
      return self._of_register(vector.bitcast(self._narrow(shared), words))

    return self.wide(loaded(at))

  def load_global(self, row: Any, index: int, start: Any) -> jax.Array:
    """A member's piece of this index of a vector in global memory, by way of L1, in its dtype.

    Behind the vector's end any numbers. Compiled alone.
    """
    narrow = jnp.dtype(row.dtype)
    size = self.vector * narrow.itemsize

    @plgpu.inline_mgpu(
      arg_types=(plgpu.RefType(), self.number),
      return_type=plgpu.ShapeDtypeStruct((self.piece,), narrow, layout=self.block),
    )
    def loaded(_: Any, row: Any, first: Any) -> Any:
      i32, i64 = (ir.IntegerType.get_signless(bits) for bits in (32, 64))
      column, _ = self._column(first)
      if (index + 1) * self.members * self.piece > self.columns:
        column = arith.minui(column, mgpu_utils.c(self.columns - self.vector, i32))
      place = mgpu_utils.getelementptr(
        mgpu_utils.memref_ptr(row),
        [arith.extui(i64, column)],
        ir.IntegerType.get_signless(8 * narrow.itemsize),
      )
      words = llvm.load(
        ir.VectorType.get((size // 4,), i32), place, alignment=min(size, _LARGEST_ACCESS_BYTES)
      )
      return self._of_register(vector.bitcast(self._narrow(row), words))

    return loaded(row, jnp.asarray(start, jnp.int32))

  def wide(self, block: jax.Array) -> jax.Array:
    """A piece as float32."""
    if self.interpreted or block.dtype != jnp.bfloat16:
      return block.astype(jnp.float32)

    @plgpu.inline_mgpu(
      arg_types=(self.block,),
      return_type=plgpu.ShapeDtypeStruct((self.piece,), jnp.float32, layout=self.block),
    )
    def widened(_: Any, block: Any) -> Any:
      # the upper half in one instruction; a conversion of its own takes two
      i32, f32 = ir.IntegerType.get_signless(32), ir.F32Type.get()
      (register,) = block.registers.flat
      words = vector.bitcast(ir.VectorType.get((self.vector // 2,), i32), register)
      elements = []
      for i in range(self.vector // 2):
        pair = vector.extract(words, dynamic_position=[], static_position=[i])
        halves = (
          arith.shli(pair, mgpu_utils.c(16, i32)),
          arith.andi(pair, mgpu_utils.c(-(1 << 16), i32)),
        )
        elements += [arith.bitcast(f32, half) for half in halves]
      return self.of_elements(elements)

    return widened(block)

  def store_shared(self, block: jax.Array, row: Any, start: Any) -> None:
    """A piece of numbers of 16 or 32 bits to shared memory, all of it."""
    at = row.at[pl.ds(start, self.piece)]
    if self.interpreted:
      at[...] = block
      return

    @plgpu.inline_mgpu(arg_types=(self.block, plgpu.RefType()))
    def put(_: Any, block: Any, shared: Any) -> None:
      (register,) = block.registers.flat
      i32 = ir.IntegerType.get_signless(32)
      size = self.vector * mgpu_utils.bitwidth(block.mlir_dtype) // 8
      words = mgpu_utils.bitcast(register, ir.VectorType.get((size // 4,), i32))
      llvm.store(words, self._place(shared), alignment=min(size, _LARGEST_ACCESS_BYTES))

    put(block, at)

  def put(self, block: jax.Array, rows: Sequence[Any], start: Any) -> None:
    """float32 numbers of a piece in the place of those of two 16-bit rows in shared memory.

    Compiled alone. A thread puts its numbers where its own of the rows were, and reads them
    by `get`. By the rows' indices: with addresses as `load` has them the kernel of 11008 columns
    takes 76 registers, with indices 64, of which a core has room for four blocks.
    """
    at = [row.at[pl.ds(start, self.piece)] for row in rows]

    @plgpu.inline_mgpu(arg_types=(self.block, *(plgpu.RefType() for _ in at)))
    def replaced(_: Any, block: Any, *places: Any) -> None:
      (register,) = block.registers.flat
      i32 = ir.IntegerType.get_signless(32)
      words = mgpu_utils.bitcast(register, ir.VectorType.get((self.vector,), i32))
      elements = [
        vector.extract(words, dynamic_position=[], static_position=[i]) for i in range(self.vector)
      ]
      half = self.vector // 2
      for i, place in enumerate(places):
        part = vector.from_elements(
          ir.VectorType.get((half,), i32), elements[i * half : (i + 1) * half]
        )
        vector.store(vector.bitcast(self._narrow(place), part), place, [self._first()])

    replaced(block, *at)

  def get(self, rows: Sequence[Any], start: Any) -> jax.Array:
    """What `put` put there."""
    at = [row.at[pl.ds(start, self.piece)] for row in rows]

    @plgpu.inline_mgpu(
      arg_types=tuple(plgpu.RefType() for _ in at),
      return_type=plgpu.ShapeDtypeStruct((self.piece,), jnp.float32, layout=self.block),
    )
    def found(_: Any, *places: Any) -> Any:
      half = self.vector // 2
      part = ir.VectorType.get((half,), ir.F32Type.get())
      loaded = [
        vector.bitcast(part, vector.load(self._narrow(place), place, [self._first()]))
        for place in places
      ]
      return self.of_elements(
        [
          vector.extract(one, dynamic_position=[], static_position=[i])
          for one in loaded
          for i in range(half)
        ]
      )

    return found(*at)

  def of_elements(self, elements: Sequence[Any]) -> Any:
    """A piece of which a thread has these float32 numbers."""
    register = vector.from_elements(ir.VectorType.get((self.vector,), ir.F32Type.get()), elements)
    return self._of_register(register)

  def _of_register(self, register: Any) -> Any:
    """A piece of which a thread has this vector."""
    layout = mgpu.WGStridedFragLayout((self.piece,), self.vector)
    return mgpu.FragmentedArray(
      _registers=np.array([register], dtype=object), _layout=layout, _is_signed=None
    )

  def _first(self) -> Any:
    """Where a thread's vector of a piece begins."""
    i32, index = ir.IntegerType.get_signless(32), ir.IndexType.get()
    first = arith.muli(thread_of(WARPGROUP_THREADS), mgpu_utils.c(self.vector, i32))
    return arith.index_castui(index, first)

  def _narrow(self, piece: Any) -> Any:
    """The type of a thread's vector of a piece."""
    return ir.VectorType.get((self.vector,), ir.MemRefType(piece.type).element_type)

  def _place(self, shared: Any) -> Any:
    """The address of a thread's vector of a piece."""
    i32 = ir.IntegerType.get_signless(32)
    first = arith.muli(thread_of(WARPGROUP_THREADS), mgpu_utils.c(self.vector, i32))
    element = ir.MemRefType(shared.type).element_type
    bits = ir.IntegerType.get_signless(mgpu_utils.bitwidth(element))
    return mgpu_utils.getelementptr(mgpu_utils.memref_ptr(shared), [first], bits)

  def store(self, block: jax.Array, row: Any, start: Any, shift: Any = 0) -> None:
    """A piece of a row of 8-bit or 16-bit results in global memory, as far as the row goes.

    Interpreted the row has all `stored` columns, and begins where it is shifted to.
    """
    if self.interpreted:
      row[pl.ds(start, self.piece)] = block
      return

    @plgpu.inline_mgpu(arg_types=(self.block, plgpu.RefType(), self.number))
    def put(_: Any, block: Any, row: Any, start: Any) -> None:
      (register,) = block.registers.flat
      i32, i64 = (ir.IntegerType.get_signless(bits) for bits in (32, 64))
      column, is_inside = self._column(start)
      bits = mgpu_utils.bitwidth(block.mlir_dtype)
      element = ir.IntegerType.get_signless(bits)
      words = ir.VectorType.get((self.vector * bits // 32,), i32)

      def write() -> None:
        place = mgpu_utils.getelementptr(
          mgpu_utils.memref_ptr(row), [arith.extui(i64, column)], element
        )
        llvm.store(mgpu_utils.bitcast(register, words), place, alignment=self.vector * bits // 8)

      if self.columns == self.stored:
        write()
        return
      with mgpu_utils.when(is_inside):
        write()

    put(block, row, jnp.asarray(start - shift, jnp.int32))

  @property
  def result_columns(self) -> int:
    """Of a row of results; see `store`."""
    return self.stored if self.interpreted else self.columns

  def settled(self, results: jax.Array) -> jax.Array:
    """Rows of results of which each has `result_columns`: the columns of the row alone."""
    if not self.interpreted:
      return results
    rows = results.shape[0]
    shifts = self.shift(jnp.arange(rows, dtype=jnp.int32))
    places = jnp.reshape(shifts, (-1, 1)) + jnp.arange(self.columns)
    return jnp.take_along_axis(results, jnp.broadcast_to(places, (rows, self.columns)), 1)
