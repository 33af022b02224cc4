"""Codes and scales of rows on Hopper, a thread block for each row (Pallas Mosaic GPU).

    values     from where TMA left the row in shared memory; of silu(gate)·up float32 values take
               the place of gate and up, so that a thread needs few registers
    maximum    exchanged by the warps of the block
    codes      from shared memory to global memory

A core has several blocks at once: some wait for their rows while others compute. As soon as one is
done the hardware starts the next, on whichever core that is. Blocks that stay, one a core, and take
every n-th row (`row_stream`) end far apart, as memory serves cores unevenly: of silu(gate)·up
1024 x 12288 an H200's cores were busy for 26200 to 34900 cycles, 30800 on average, where those that
streamed the same bytes in small blocks took 31800 to 32800.

H200, us, of silu(gate)·up, a block for each row, blocks that stay, a stream of the same bytes: 7239
x 12288 102, 109 and 108, 65536 x 12288 904, 950 and 971, 7239 x 11008 92, 99 and 98, 7239 x 5000
42.7, 44.9 and 44.9, 7239 x 4096 35.1, 37.3 and 36.7, 1024 x 11008 15.7, 17.3 and 14.8, 1024 x
12288 17.0, 18.7 and 16.4. Of rows as they are, the first two: 7239 x 12288 61 and 64, 1024 x 11008
9.9 and 11.1.

Rows are shifted, so that those that are no whole lines are copied and stored by whole lines all the
same: a maximum has no order that could follow from where a row lies.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import sharding
from pallas_kernels.rowwise import row_numbers, row_stream
from pallas_kernels.rowwise.arithmetic import INTERPRETED, Arithmetic
from pallas_kernels.rowwise.mosaic_arithmetic import MosaicArithmetic, is_ordinary
from pallas_kernels.rowwise.row_groups import Share
from pallas_kernels.rowwise.specs import Part, RowCodes

# Wider rows were not measured, and leave a core room for fewer blocks.
_WIDEST = 16384
# Of a thread: of two operands fewer, since each number takes two of the special function unit, of
# which every warp has its turn. On an H200 silu(gate)·up of 7239 x 8192 takes 68.4 us by two
# warpgroups a row and 68.7 by one; rows as they are of 7239 x 11008 55.0 by one and 58.7 by two.
_MOST_NUMBERS = {1: 96, 2: 48}


def share_of(columns: int, *, matrices: int, interpreted: bool = False) -> Share | None:
  """How the warpgroups of a block share a row; None: its kernel is another's, or there is none.

  Args:
    columns: Of a row.
    matrices: That come in.
    interpreted: Whether an interpreter runs it.
  """
  if columns > _WIDEST:
    return None
  numbers = _MOST_NUMBERS[matrices]
  found = row_stream.share_of(columns, shifted=True, interpreted=interpreted, most_numbers=numbers)
  if found is None or matrices == 1 or found.members != 2:
    return found
  # as many blocks of more threads: 1024 x 12288 16.97 us and 17.3 by two, 7239 x 12288 102.0 and
  # 102.4; where they would have numbers beyond the row, 1024 x 11008 16.5 and 15.7
  three = dataclasses.replace(found, members=3, vector=max(row_stream.VECTORS))
  return three if three.stored == columns else found


@dataclasses.dataclass(frozen=True)
class _Kernel:
  """One instance: what it computes, and how the warpgroups of a block share a row."""

  spec: RowCodes
  share: Share
  matrices: int

  def body(self, *refs: Any) -> None:
    """What every warpgroup of every thread block runs."""
    count, share = self.matrices, self.share
    matrices, (codes, scales), scratch = refs[:count], refs[count : count + 2], refs[count + 2 :]
    there, (exchange, arrived, *meet) = scratch[:count], scratch[count:]
    row, member = lax.axis_index("row"), lax.axis_index("warpgroup")
    shift = share.shift(row)

    @pl.when(member == 0)
    def _copy() -> None:
      for matrix, place in zip(matrices, there, strict=True):
        row_stream.copy_row(share.columns, matrix.at[row], place, arrived, shift)

    plgpu.barrier_wait(arrived)
    starts = share.starts(member)
    exact = self._arithmetic()
    kept: list[jax.Array] = []
    largest: Any = None
    for index, start in enumerate(starts):
      blocks = tuple(share.load(place, start) for place in there)
      block = share.within(index, self.spec.values(blocks, exact)[0], start, shift)
      largest = row_numbers.larger(share, block if largest is None else largest, block)
      kept.append(block)
      if self._in_place:
        share.put(block, there, start)
    del blocks, block

    def values(index: int) -> jax.Array:
      start = starts[index]
      if self._in_place:
        return share.get(there, start)
      if share.interpreted:
        return kept[index]
      return share.load(there[0], start)

    found = row_numbers.largest(share, [largest], member, exchange.at[0], meet[0] if meet else None)
    finite = found < jnp.inf

    def again() -> jax.Array:
      largest: Any = None
      for index, start in enumerate(starts):
        block = share.within(index, values(index), start, shift)
        block = jnp.where(jnp.abs(block) < jnp.inf, block, 0.0)
        largest = row_numbers.larger(share, block if largest is None else largest, block)
      return row_numbers.largest(
        share, [largest], member, exchange.at[1], meet[0] if meet else None
      )

    largest = lax.cond(finite, lambda: found, again)
    scale = self.spec.settle(0, (largest,), columns=share.columns, arithmetic=exact)

    def write(arithmetic: Arithmetic) -> None:
      for index, start in enumerate(starts):
        (block,) = self.spec.finish(Part(values(index), ()), [scale], arithmetic)
        share.store(block, codes.at[row], start, shift)

    ordinary = finite & is_ordinary(scale)
    pl.when(ordinary)(lambda: write(self._arithmetic(ordinary=True)))
    pl.when(jnp.logical_not(ordinary))(lambda: write(exact))

    @pl.when(member == 0)
    def _scale() -> None:
      (scales[row],) = self.spec.row_results([scale])

  @property
  def _in_place(self) -> bool:
    return self.matrices == 2 and not self.share.interpreted

  def _arithmetic(self, *, ordinary: bool = False) -> Arithmetic:
    if self.share.interpreted:
      return INTERPRETED
    return MosaicArithmetic(vector_size=self.share.vector, ordinary=ordinary)


def run(
  spec: RowCodes, matrices: Sequence[jax.Array], share: Share, *, interpret: Any = None
) -> tuple[jax.Array, jax.Array]:
  """Codes and scales.

  Args:
    spec: What to compute.
    matrices: [1, rows, columns] each, of 16-bit elements.
    share: How a block's warpgroups share a row.
    interpret: None to compile, or the interpreter's parameters.

  Returns:
    Codes [1, rows, columns] and scales [1, rows, 1].
  """
  like = matrices[0]
  _, rows, columns = like.shape
  meet = plgpu.Barrier(num_arrivals=share.members)
  codes, scales = plgpu.kernel(
    _Kernel(spec, share, len(matrices)).body,
    out_type=(
      sharding.out_struct((rows, share.result_columns), spec.code_dtype, like),
      sharding.out_struct((rows,), jnp.dtype(jnp.float32), like),
    ),
    scratch_types=(
      *(plgpu.SMEM((share.stored,), x.dtype) for x in matrices),
      plgpu.SMEM((2, share.warps), jnp.float32),
      plgpu.Barrier(num_arrivals=len(matrices) * len(row_stream.copies_of(columns))),
      *([meet] if share.interpreted else []),
    ),
    interpret=interpret,
    grid=(rows,),
    grid_names=("row",),
    num_threads=share.members,
    thread_name="warpgroup",
    compiler_params=row_stream.RowStream.compiler_params(),
  )(*(x.reshape(rows, columns) for x in matrices))
  return share.settled(codes).reshape(like.shape), scales.reshape(1, rows, 1)
