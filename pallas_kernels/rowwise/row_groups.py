"""Rows that warpgroups of a thread block share: pieces, numbers of all of a row, results.

A group is some neighbouring warpgroups. A row lies in shared memory as pieces of
128 vectors, one for each thread of a warpgroup; the members of a group take the
pieces in turn. Interpreted all of this is plain JAX.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
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
from pallas_kernels.compat import arith, ir, llvm, memref, nvvm, vector
from pallas_kernels.rowwise.warpgroup_sums import LANES, WARPS, thread_of, zeros

# Of 8-bit results a line of 128 bytes, of 16-bit ones and of rows that come in two.
LINE_COLUMNS = 128
# Of a thread, to shared memory.
_LARGEST_ACCESS_BYTES = 16
# Of the hardware's 16 barriers 0 is the block's, and 1 to 8 are its warpgroups', 8 at most.
_FIRST_BARRIER = 9
# The larger of a number and |x|; of a NaN the number.
_LARGER_MAGNITUDE = "{ .reg .f32 a; abs.f32 a, $2; max.f32 $0, $1, a; }"
_PLUS_SQUARE = "fma.rn.f32 $0, $2, $2, $1;"
_PLUS_PRODUCT = "fma.rn.f32 $0, $2, $3, $1;"
_SUM = "add.rn.f32 $0, $1, $2;"

Pair = tuple[Sequence[jax.Array], Sequence[jax.Array]]


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
  def _block(self) -> Any:
    return plgpu.Layout.WG_STRIDED((self.piece,), vec_size=self.vector)

  @property
  def _number(self) -> Any:
    return plgpu.Layout.WG_SPLAT(())

  def starts(self, member: Any) -> list[Any]:
    """First columns of a member's pieces."""
    return [(i * self.members + member) * self.piece for i in range(self.pieces)]

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
    """A member's piece of this index, float32, 0 where memory goes beyond a row whose pieces begin
    where lines do."""
    across = self.members * self.piece
    if index * across >= self.most_shift and (index + 1) * across <= self.columns:
      return block
    return self._within(block, start, shift)

  def _within(self, block: jax.Array, start: Any, shift: Any) -> jax.Array:
    """A piece, 0 beyond the row."""
    if self.interpreted:
      column = start - shift + jnp.arange(self.piece)
      return jnp.where((column >= 0) & (column < self.columns), block, 0.0)

    @plgpu.inline_mgpu(
      arg_types=(self._block, self._number),
      return_type=plgpu.ShapeDtypeStruct((self.piece,), jnp.float32, layout=self._block),
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

  def of_row(self, block: jax.Array, start: Any) -> jax.Array:
    """A piece that begins at a column of a row, 0 beyond the row's end."""
    return block if self.columns == self.stored else self._within(block, start, 0)

  def load(self, row: Any, start: Any) -> jax.Array:
    """A piece of a row in shared memory, as float32."""
    at = row.at[pl.ds(start, self.piece)]
    if self.interpreted:
      return at[...].astype(jnp.float32)
    narrow = jnp.dtype(row.dtype)
    kept = jnp.dtype(jnp.float32) if narrow == jnp.bfloat16 else narrow

    @plgpu.inline_mgpu(
      arg_types=(plgpu.RefType(),),
      return_type=plgpu.ShapeDtypeStruct((self.piece,), kept, layout=self._block),
    )
    def loaded(_: Any, shared: Any) -> Any:
      i32, f32 = ir.IntegerType.get_signless(32), ir.F32Type.get()
      element = ir.MemRefType(shared.type).element_type
      size = self.vector * narrow.itemsize
      # LLVM does not see how a row that is shifted is aligned, and would load 2 bytes at once
      words = llvm.load(
        ir.VectorType.get((size // 4,), i32),
        self._place(shared),
        alignment=min(size, _LARGEST_ACCESS_BYTES),
      )
      if kept == narrow:
        register = vector.bitcast(ir.VectorType.get((self.vector,), element), words)
      else:
        # the upper half in one instruction; a conversion of its own takes two
        elements = []
        for i in range(self.vector // 2):
          pair = vector.extract(words, dynamic_position=[], static_position=[i])
          halves = (
            arith.shli(pair, mgpu_utils.c(16, i32)),
            arith.andi(pair, mgpu_utils.c(-(1 << 16), i32)),
          )
          elements += [arith.bitcast(f32, half) for half in halves]
        register = vector.from_elements(ir.VectorType.get((self.vector,), f32), elements)
      layout = mgpu.WGStridedFragLayout((self.piece,), self.vector)
      return mgpu.FragmentedArray(
        _registers=np.array([register], dtype=object), _layout=layout, _is_signed=None
      )

    return loaded(at).astype(jnp.float32)

  def store_shared(self, block: jax.Array, row: Any, start: Any) -> None:
    """A piece of numbers of 16 or 32 bits to shared memory, all of it."""
    at = row.at[pl.ds(start, self.piece)]
    if self.interpreted:
      at[...] = block
      return

    @plgpu.inline_mgpu(arg_types=(self._block, plgpu.RefType()))
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

    @plgpu.inline_mgpu(arg_types=(self._block, *(plgpu.RefType() for _ in at)))
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
      return_type=plgpu.ShapeDtypeStruct((self.piece,), jnp.float32, layout=self._block),
    )
    def found(_: Any, *places: Any) -> Any:
      half = self.vector // 2
      part = ir.VectorType.get((half,), ir.F32Type.get())
      loaded = [
        vector.bitcast(part, vector.load(self._narrow(place), place, [self._first()]))
        for place in places
      ]
      return self._numbers(
        [
          vector.extract(one, dynamic_position=[], static_position=[i])
          for one in loaded
          for i in range(half)
        ]
      )

    return found(*at)

  def larger(self, found: jax.Array, block: jax.Array) -> jax.Array:
    """The larger of each number and |x|, of a NaN the number; float32 pieces."""
    if self.interpreted:
      return jnp.fmax(found, jnp.abs(block))

    @plgpu.inline_mgpu(
      arg_types=(self._block, self._block),
      return_type=plgpu.ShapeDtypeStruct((self.piece,), jnp.float32, layout=self._block),
    )
    def taken(_: Any, *blocks: Any) -> Any:
      f32 = ir.F32Type.get()
      pairs = [
        [
          vector.extract(x.registers.flat[0], dynamic_position=[], static_position=[i])
          for x in blocks
        ]
        for i in range(self.vector)
      ]
      return self._numbers(
        [llvm.inline_asm(f32, pair, _LARGER_MAGNITUDE, "=f,f,f") for pair in pairs]
      )

    return taken(found, block)

  def _numbers(self, elements: Sequence[Any]) -> Any:
    """A piece of which a thread has these float32 numbers."""
    register = vector.from_elements(ir.VectorType.get((self.vector,), ir.F32Type.get()), elements)
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

    @plgpu.inline_mgpu(arg_types=(self._block, plgpu.RefType(), self._number))
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

  def largest_magnitude(
    self, pieces: Sequence[jax.Array], member: Any, scratch: Any, meet: Any = None
  ) -> tuple[jax.Array, jax.Array]:
    """max |x| over the finite numbers of a row, 0 where there are none; whether it has no infinity.

    Both are single numbers, the same in every thread. A maximum that passes over
    NaNs is one instruction a number; where it finds an infinity the row is gone
    through again.

    Args:
      pieces: A member's, float32.
      member: Which it is.
      scratch: Shared memory [2, warps] of the group, which no other call uses
        before the members have met once more.
      meet: A barrier with an arrival for each member; the interpreter's alone.
    """
    found = self.largest(pieces, member, scratch.at[0], meet)
    finite = found < jnp.inf

    def again() -> jax.Array:
      kept = [jnp.where(jnp.abs(x) < jnp.inf, x, 0.0) for x in pieces]
      return self.largest(kept, member, scratch.at[1], meet)

    return lax.cond(finite, lambda: found, again), finite

  def largest(self, pieces: Sequence[jax.Array], member: Any, scratch: Any, meet: Any) -> jax.Array:
    """max |x| over the numbers of a row that are no NaN, or 0; arguments of `largest_magnitude`."""
    if self.interpreted:
      magnitudes = [jnp.where(x == x, jnp.abs(x), 0.0) for x in pieces]
      found = jnp.max(functools.reduce(jnp.maximum, magnitudes))
      return functools.reduce(jnp.maximum, self._interpreted(found, member, scratch, meet))

    def of_a_warp(mine: Any) -> Any:
      # numbers that are not negative have the order of their bits
      i32, f32 = ir.IntegerType.get_signless(32), ir.F32Type.get()
      bits = arith.bitcast(i32, mine)
      everyone = mgpu_utils.c(-1, i32)
      return arith.bitcast(f32, mgpu_utils.redux(bits, everyone, mgpu_utils.ReductionKind.UMAX))

    return self._exchanged(pieces, scratch, _LARGER_MAGNITUDE, _LARGER_MAGNITUDE, of_a_warp)

  def square_sum(
    self, pieces: Sequence[jax.Array], member: Any, scratch: Any, meet: Any = None
  ) -> jax.Array:
    """Σ x² over the row, in an order that its columns fix; arguments of `largest_magnitude`."""
    if self.interpreted:
      found = jnp.sum(functools.reduce(jnp.add, [x * x for x in pieces]))
      return functools.reduce(jnp.add, self._interpreted(found, member, scratch, meet))

    def of_a_warp(mine: Any) -> Any:
      distance = LANES // 2
      while distance:
        mine = arith.addf(mine, mgpu_utils.shfl_bfly(mine, distance))
        distance //= 2
      return mine

    return self._exchanged(pieces, scratch, _PLUS_SQUARE, _SUM, of_a_warp)

  def products(
    self, pairs: Sequence[Pair], member: Any, scratch: Any, meet: Any = None
  ) -> tuple[jax.Array, ...]:
    """Σ a·b over the row of each pair, in an order that its columns fix, the same in every thread.

    Args:
      pairs: Pieces of a, and as many of b.
      member: As of `largest_magnitude`.
      scratch: Shared memory [pairs, warps] of the group; else likewise.
      meet: Likewise.
    """
    if self.interpreted:
      for slot, (a, b) in enumerate(pairs):
        scratch[slot, member] = jnp.sum(
          functools.reduce(jnp.add, [x * y for x, y in zip(a, b, strict=True)])
        )
      self._interpreted_meet(meet)
      return tuple(
        functools.reduce(jnp.add, [scratch[slot, i] for i in range(self.members)])
        for slot in range(len(pairs))
      )

    @plgpu.inline_mgpu(
      arg_types=(*(self._block for pair in pairs for side in pair for _ in side), plgpu.RefType()),
      return_type=tuple(
        plgpu.ShapeDtypeStruct((), jnp.float32, layout=self._number) for _ in pairs
      ),
    )
    def exchange(_: Any, *arguments: Any) -> Any:
      *blocks, shared = arguments
      i32, f32, index = ir.IntegerType.get_signless(32), ir.F32Type.get(), ir.IndexType.get()
      registers = iter([x.registers.flat[0] for x in blocks])
      mine = []
      for a, b in pairs:
        sides = [next(registers) for _ in a], [next(registers) for _ in b]
        mine.append(_of_a_thread(list(zip(*sides, strict=True)), _PLUS_PRODUCT, _SUM))
      distance = LANES // 2
      while distance:
        mine = [arith.addf(x, mgpu_utils.shfl_bfly(x, distance)) for x in mine]
        distance //= 2
      warp = arith.index_castui(
        index, arith.divui(thread_of(self.warps * LANES), mgpu_utils.c(LANES, i32))
      )
      for slot, x in enumerate(mine):
        # every lane of a warp has the same number
        memref.store(x, shared, [mgpu_utils.c(slot, index), warp])
      self._meet()
      four = ir.VectorType.get((WARPS,), f32)
      found = []
      for slot in range(len(pairs)):
        parts = [
          vector.load(four, shared, [mgpu_utils.c(slot, index), mgpu_utils.c(i * WARPS, index)])
          for i in range(self.members)
        ]
        number = _of_a_thread([(x,) for x in parts], _SUM, _SUM)
        found.append(mgpu.FragmentedArray.splat(number, (), mgpu.WGSplatFragLayout(())))
      return tuple(found)

    return exchange(*(x for pair in pairs for side in pair for x in side), scratch)

  def _interpreted(self, found: jax.Array, member: Any, scratch: Any, meet: Any) -> list[jax.Array]:
    """What each member found."""
    scratch[member] = found
    self._interpreted_meet(meet)
    return [scratch[i] for i in range(self.members)]

  @staticmethod
  def _interpreted_meet(meet: Any) -> None:
    plgpu.barrier_arrive(meet)
    plgpu.barrier_wait(meet)

  def _exchanged(
    self,
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
      arg_types=(*(self._block for _ in pieces), plgpu.RefType()),
      return_type=plgpu.ShapeDtypeStruct((), jnp.float32, layout=self._number),
    )
    def exchange(_: Any, *arguments: Any) -> Any:
      *blocks, shared = arguments
      i32, f32, index = ir.IntegerType.get_signless(32), ir.F32Type.get(), ir.IndexType.get()
      mine = of_a_warp(_of_a_thread([(x.registers.flat[0],) for x in blocks], take, combine))
      warp = arith.divui(thread_of(self.warps * LANES), mgpu_utils.c(LANES, i32))
      # every lane of a warp has the same number
      memref.store(mine, shared, [arith.index_castui(index, warp)])
      self._meet()
      four = ir.VectorType.get((WARPS,), f32)
      parts = [
        vector.load(four, shared, [mgpu_utils.c(i * WARPS, index)]) for i in range(self.members)
      ]
      found = _of_a_thread([(x,) for x in parts], combine, combine)
      return mgpu.FragmentedArray.splat(found, (), mgpu.WGSplatFragLayout(()))

    return exchange(*pieces, scratch)

  def _meet(self) -> None:
    """All threads of the group wait for one another."""
    if self.members == 1:
      mgpu_utils.warpgroup_barrier()
      return
    i32 = ir.IntegerType.get_signless(32)
    threads = self.members * WARPGROUP_THREADS
    group = arith.divui(mgpu_utils.thread_idx(), mgpu_utils.c(threads, i32))
    barrier = arith.addi(group, mgpu_utils.c(_FIRST_BARRIER, i32))
    nvvm.barrier(barrier_id=barrier, number_of_threads=mgpu_utils.c(threads, i32))


def _of_a_thread(terms: Sequence[tuple[Any, ...]], take: str, combine: str) -> Any:
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
