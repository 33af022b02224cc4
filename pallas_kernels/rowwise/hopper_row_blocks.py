"""Codes and scales of rows on Hopper, a thread block for each row (Pallas Mosaic GPU).

    values     from where the row is in shared memory; of silu(gate)·up float32 values take
               the place of gate and up, so that a thread needs few registers
    maximum    exchanged by the warps of the block
    codes      from shared memory to global memory

See `row_block`. H200, us, of silu(gate)·up, a block for each row, a stream of the same bytes:
1024 x 11008 15.3 and 14.9, 1024 x 12288 16.5 and 16.4, 7239 x 4096 34.8 and 36.8, 7239 x 5000 42.4
and 45.6, 7239 x 11008 91.3 and 98.3, 7239 x 12288 101 and 109, 65536 x 4096 301 and 326, 65536 x
12288 898 and 975. With blocks that stay (`row_stream`) it was 17.3, 18.7, 37.3, 44.9, 99, 109, 318
and 950.

Rows are shifted, so that those that are no whole lines are copied and stored by whole lines all the
same: a maximum has no order that could follow from where a row lies.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import sharding
from pallas_kernels.hopper import kept_copy
from pallas_kernels.rowwise import row_encoding, row_numbers, row_stream
from pallas_kernels.rowwise.arithmetic import Arithmetic
from pallas_kernels.rowwise.row_block import WIDEST, RowBlock
from pallas_kernels.rowwise.row_groups import Share
from pallas_kernels.rowwise.specs import Part, RowCodes

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
  if columns > WIDEST:
    return None
  numbers = _MOST_NUMBERS[matrices]
  return row_stream.share_of(columns, shifted=True, interpreted=interpreted, most_numbers=numbers)


def are_kept(matrices: Sequence[jax.Array], *, l2_bytes: int) -> bool:
  """Whether L2 is told to keep what comes in longer than other lines, codes among them.

  Worth it for rows as they are that are far from fitting there. H200, kept and as they come, us:
  65536 x 4096 179 and 182, 65536 x 12288 544 and 551, 7239 x 12288 59.9 and 60.3, but 7239 x 4096
  21.0 and 20.8; of silu(gate)·up 65536 x 4096 and 12288 the same.

  Args:
    matrices: That come in.
    l2_bytes: Of the device.
  """
  return len(matrices) == 1 and row_stream.are_kept(matrices, l2_bytes=2 * l2_bytes)


@dataclasses.dataclass(frozen=True)
class _Kernel:
  """One instance: what it computes, and the block that does."""

  spec: RowCodes
  block: RowBlock

  def body(self, *refs: Any) -> None:
    """What every warpgroup of every thread block runs."""
    count, share, block = self.block.matrices, self.block.share, self.block
    matrices, (codes, scales), scratch = refs[:count], refs[count : count + 2], refs[count + 2 :]
    there, (exchange, arrived, *meet) = scratch[:count], scratch[count:]
    row, member = block.row(), block.member()
    block.start(row, matrices, there, arrived)
    shift, starts, exact = share.shift(row), share.starts(member), block.arithmetic()
    block.wait(arrived)

    def first(start: Any) -> jax.Array:
      return self.spec.values(tuple(share.load(one, start) for one in there), exact)[0]

    def again(start: Any) -> jax.Array:
      return share.get(there, start) if self._in_place else first(start)

    def largest(found: Any, slot: int) -> jax.Array:
      return row_numbers.largest(
        share, [found], member, exchange.at[slot], meet[0] if meet else None
      )

    found: Any = None
    for index, start in enumerate(starts):
      values = share.within(index, first(start), start, shift)
      found = row_numbers.larger(share, values if found is None else found, values)
      if self._in_place:
        share.put(values, there, start)

    def of_finite() -> jax.Array:
      def larger(index: Any, found: jax.Array) -> jax.Array:
        start = share.start(index, member)
        values = share.of_row(again(start), start, shift)
        values = jnp.where(jnp.abs(values) < jnp.inf, values, 0.0)
        return row_numbers.larger(share, found, values)

      # in loops, here and in `write_any`: pieces written out, of which an ordinary row has no use,
      # cost it some 0.1 us of 1024 x 12288's 16.5
      return largest(self._loop(larger, share.zeros()), 1)

    def put(start: Any, scale: jax.Array, arithmetic: Arithmetic) -> None:
      (results,) = self.spec.finish(Part(again(start), ()), [scale], arithmetic)
      share.store(results, codes.at[row], start, shift)

    def write(scale: jax.Array) -> None:
      for start in starts:
        put(start, scale, block.arithmetic(ordinary=True))

    def write_any(scale: jax.Array) -> None:
      self._loop(lambda index, _: put(share.start(index, member), scale, exact), None)

    scale = row_encoding.encode(
      self.spec,
      largest(found, 0),
      columns=share.columns,
      exact=exact,
      of_finite=of_finite,
      write=write,
      write_any=write_any,
    )

    @pl.when(member == 0)
    def _scale() -> None:
      (scales[row],) = self.spec.row_results([scale])

  @property
  def _in_place(self) -> bool:
    return self.block.matrices == 2 and not self.block.share.interpreted

  def _loop(self, body: Callable[[Any, Any], Any], carry: Any) -> Any:
    """`body` of the number of each piece."""
    return lax.fori_loop(jnp.int32(0), jnp.int32(self.block.share.pieces), body, carry)


def run(
  spec: RowCodes,
  matrices: Sequence[jax.Array],
  share: Share,
  *,
  l2_bytes: int,
  interpret: Any = None,
) -> tuple[jax.Array, jax.Array]:
  """Codes and scales.

  Args:
    spec: What to compute.
    matrices: [1, rows, columns] each, of 16-bit elements.
    share: How a block's warpgroups share a row.
    l2_bytes: Of the device.
    interpret: None to compile, or the interpreter's parameters.

  Returns:
    Codes [1, rows, columns] and scales [1, rows, 1].
  """
  like = matrices[0]
  _, rows, columns = like.shape
  policy = kept_copy.KEPT if are_kept(matrices, l2_bytes=l2_bytes) else None
  block = RowBlock(share, len(matrices), policy=policy)
  codes, scales = plgpu.kernel(
    _Kernel(spec, block).body,
    out_type=(
      sharding.out_struct((rows, share.result_columns), spec.code_dtype, like),
      sharding.out_struct((rows,), jnp.dtype(jnp.float32), like),
    ),
    scratch_types=block.scratch([x.dtype for x in matrices]),
    interpret=interpret,
    **block.kernel_params(rows),
  )(*(x.reshape(rows, columns) for x in matrices))
  return share.settled(codes).reshape(like.shape), scales.reshape(1, rows, 1)
