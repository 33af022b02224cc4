"""rms_norm of rows on Hopper, a thread block for each row (Pallas Mosaic GPU).

    squares    of the row, from where it is in shared memory, added up by the warps of the block;
               x + residual goes out at once, and takes the place of x
    results    from shared memory, by the inverse root and the weights, to global memory

See `row_block`. H200, us, a block for each row and blocks that stay (`row_stream`): 65536 x 4096
246 and 260, 65536 x 5000 311 and 321, 65536 x 12288 739 and 783, 7239 x 4096 26.2 and 27.5, 7239 x
5000 33.9 and 33.2, 7239 x 12288 82.0 and 85.3; with a residual, and a stream of the same bytes,
65536 x 4096 499, 517 and 505, 7239 x 4096 54.3, 55.2 and 54.2, by a prototype 7239 x 11008 148, 153
and 149, 7239 x 12288 165, 172 and 166.

Squares are added up in the order of `row_stream`'s kernel, `Share`'s.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import sharding
from pallas_kernels.hopper import kept_copy
from pallas_kernels.rowwise import row_inverse, row_numbers, row_stream
from pallas_kernels.rowwise.row_block import WIDEST, RowBlock
from pallas_kernels.rowwise.row_groups import Share
from pallas_kernels.rowwise.specs import Part, RmsNorm


def share_of(columns: int, *, is_kept: bool, interpreted: bool = False) -> Share | None:
  """How the warpgroups of a block share a row; None: blocks that stay are as quick, or have to be.

  Where L2 holds what comes in, of rows that warpgroups share: 1024 x 12288 takes an H200 12.4 us
  and 12.7 so, but with a residual 23.5 and 22.7, and 2048 x 8192 with the kernel that comes next,
  for which it leaves less in L2, 29.1 and 27.2.

  Args:
    columns: Of a row.
    is_kept: `row_stream.are_kept` of what comes in.
    interpreted: Whether an interpreter runs it.
  """
  if columns > WIDEST:
    return None
  # others are whole lines
  shifted = columns % row_stream.COPIED_COLUMNS > 0
  found = row_stream.share_of(columns, shifted=shifted, fixed=shifted, interpreted=interpreted)
  return found if found is not None and (found.members == 1 or is_kept) else None


@dataclasses.dataclass(frozen=True)
class _Kernel:
  """One instance: what it computes, and the block that does."""

  spec: RmsNorm
  block: RowBlock

  def body(self, *refs: Any) -> None:
    """What every warpgroup of every thread block runs."""
    block, share, spec = self.block, self.block.share, self.spec
    count, outs = block.matrices, 1 + len(spec.sum_dtypes)
    (*matrices, weight), results = refs[: count + 1], refs[count + 1 : count + 1 + outs]
    scratch, places = refs[count + 1 + outs :], count + block.vectors
    there, (exchange, arrived, *meet) = scratch[:places], scratch[places:]
    row, member = block.row(), block.member()
    block.start(row, (*matrices, weight)[:places], there, arrived)
    starts, arithmetic = share.starts(member), block.arithmetic()
    early: list[jax.Array] = []
    if not block.vectors:
      early = [share.load_global(weight, index, start) for index, start in enumerate(starts)]
    shift = share.shift(row) if share.fixed else 0
    block.wait(arrived)

    def first(start: Any) -> jax.Array:
      rows = tuple(share.load(one, start + shift) for one in there[:count])
      return spec.values(rows, arithmetic)[0]

    def again(start: Any) -> jax.Array:
      return share.load(there[0], start + shift) if self._in_place else first(start)

    squares = share.zeros()
    for index, start in enumerate(starts):
      values = share.within(index, first(start), start, 0)
      for dtype, summed in zip(spec.sum_dtypes, results[1:], strict=True):
        # rounded to it before: exact
        share.store(values.astype(dtype), summed.at[row], start)
        if self._in_place:
          share.store_shared(values.astype(dtype), there[0], start + shift)
      squares = row_numbers.plus_squares(share, squares, values)
    del values
    square = row_numbers.total(share, squares, member, exchange.at[0], meet[0] if meet else None)
    inverse = row_inverse.of_row(
      share,
      square,
      lambda: [share.within(i, again(start), start, 0) for i, start in enumerate(starts)],
      eps=spec.eps,
      member=member,
      exchange=exchange,
      meet=meet[0] if meet else None,
    )
    for index, start in enumerate(starts):
      own = share.wide(early[index]) if early else share.load(there[-1], start)
      (found,) = spec.finish(Part(again(start), (own,)), [inverse], arithmetic)
      share.store(found, results[0].at[row], start)

  @property
  def _in_place(self) -> bool:
    return bool(self.spec.sum_dtypes) and not self.block.share.interpreted


def run(
  spec: RmsNorm,
  matrices: Sequence[jax.Array],
  weight: jax.Array,
  share: Share,
  *,
  is_kept: bool,
  interpret: Any = None,
) -> tuple[jax.Array, ...]:
  """The normalised rows, and x + residual where there is one.

  Args:
    spec: What to compute, of 16-bit results.
    matrices: [1, rows, columns] each, of 16-bit elements, sizes at least 1.
    weight: [1, 1, columns], of 16 or 32 bits.
    share: How a block's warpgroups share a row.
    is_kept: Whether L2 is told to keep what comes in longer than other lines.
    interpret: None to compile, or the interpreter's parameters.
  """
  like = matrices[0]
  _, rows, columns = like.shape
  # One warpgroup has its weights from L1, where the core's other blocks left them: 7239 x 4096
  # 26.1 us, with copies to shared memory 27.2. Several are long ones' and would have them late:
  # 7239 x 12288 82.3, with copies 81.6, 1024 x 12288 13.4 and 12.4.
  vectors = int(share.members > 1 or share.interpreted)
  policy = kept_copy.KEPT if is_kept else None
  block = RowBlock(share, len(matrices), vectors, policy)
  found = plgpu.kernel(
    _Kernel(spec, block).body,
    out_type=tuple(
      sharding.out_struct((rows, share.result_columns), dtype, like)
      for dtype in (*spec.out_dtypes, *spec.sum_dtypes)
    ),
    scratch_types=block.scratch([x.dtype for x in (*matrices, *[weight] * vectors)]),
    interpret=interpret,
    **block.kernel_params(rows),
  )(*(x.reshape(rows, columns) for x in matrices), weight.reshape(columns))
  return tuple(out[:, :columns].reshape(like.shape) for out in found)
