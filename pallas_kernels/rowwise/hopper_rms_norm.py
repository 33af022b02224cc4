"""rms_norm on Hopper: rows by TMA, read once (Pallas Mosaic GPU).

By blocks of a row each where that is quicker, see `hopper_norm_blocks`. Else, as `row_stream` says,
of a row

    x, x + residual    from shared memory into registers; the sum to global memory
    Σ x²               exchanged by the warps of the group
    results            from registers, and weights in shared memory, to global memory

Rows that are no whole lines are shifted, as those of `hopper_rows` are, so that they are
copied by whole lines. A thread has the same columns of every row all the same, or the
order of the sum would follow from a row's number; results begin anywhere. 65536 x 5000,
which came here then, took an H200 320 us so, as they come 352, in the portable kernel 345.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import sharding
from pallas_kernels.rowwise import hopper_norm_blocks, row_inverse, row_numbers, row_stream
from pallas_kernels.rowwise.row_stream import COPIED_COLUMNS, RowStream, Turn
from pallas_kernels.rowwise.specs import Blocks, Part, RmsNorm


def stages(spec: RmsNorm, columns: int, *, shared_bytes: int) -> int:
  """`row_stream.stages` beside the weights."""
  options = _options(spec, columns, shared_bytes)
  return row_stream.stages(columns, shared_bytes=shared_bytes, **options)


def _stored_weight(spec: RmsNorm) -> jnp.dtype:
  """The dtype in which the weights lie in shared memory: 16 bits as they come, else float32."""
  return spec.weight_dtype if spec.weight_dtype.itemsize == 2 else jnp.dtype(jnp.float32)


def _options(spec: RmsNorm, columns: int, shared_bytes: int) -> dict[str, Any]:
  """Of a stream of rows: shifted if there are stages for them with the room before a row."""
  options: dict[str, Any] = {
    "matrices": 1 + len(spec.sum_dtypes),
    "column_bytes": _stored_weight(spec).itemsize,
    # two rows in and two out, far apart in memory: of rows that came here then 65536 x 4096 took an
    # H200 515 us with 8 stages, 517 with the 12 that fit and 518 with 4; 1024 x 4096 8.91, 9.14 and
    # 8.89, 7239 x 4096 54.8, 54.7 and 56.2
    "few": bool(spec.sum_dtypes),
  }
  shifted = {**options, "shifted": True, "fixed": True}
  found = row_stream.stages(columns, shared_bytes=shared_bytes, **shifted)
  # others are whole lines
  return shifted if found and columns % COPIED_COLUMNS else options


@dataclasses.dataclass(frozen=True)
class _Kernel:
  """One instance: what it computes, and of which rows."""

  spec: RmsNorm
  stream: RowStream

  def body(self, *refs: Any) -> None:
    """What every warpgroup of every thread block runs."""
    count, outs = self.stream.matrices, 1 + len(self.spec.sum_dtypes)
    matrices, (weight, *results) = refs[:count], refs[count : count + 1 + outs]
    weights, arrived, *scratch = refs[count + 1 + outs :]

    def copy_weights() -> None:
      self.stream.clear(weights)
      self.stream.copy(weight, weights, arrived)

    def values(blocks: Blocks) -> jax.Array:
      return self.spec.values(blocks, self.stream.arithmetic())[0]

    def finish(turn: Turn, kept: list[jax.Array]) -> None:
      self._finish(turn, kept, weights, results)

    self.stream.run(
      matrices,
      scratch,
      values=values,
      finish=finish,
      before_rows=copy_weights,
      before_turns=lambda: plgpu.barrier_wait(arrived),
    )

  def _finish(
    self, turn: Turn, kept: list[jax.Array], weights: Any, results: Sequence[Any]
  ) -> None:
    """Stores a member's results of a row."""
    share = self.stream.share
    pieces = list(zip(share.starts(turn.member), kept, strict=True))
    for dtype, summed in zip(self.spec.sum_dtypes, results[1:], strict=True):
      for start, block in pieces:
        # rounded to it before: exact
        share.store(block.astype(dtype), summed.at[turn.row], start)
    square = row_numbers.square_sum(share, kept, turn.member, turn.exchange.at[0], turn.meet)
    inverse = row_inverse.of_row(
      share,
      square,
      lambda: kept,
      eps=self.spec.eps,
      member=turn.member,
      exchange=turn.exchange,
      meet=turn.meet,
    )
    for start, block in pieces:
      part = Part(block, (share.load(weights, start),))
      (found,) = self.spec.finish(part, [inverse], self.stream.arithmetic())
      share.store(found, results[0].at[turn.row], start)


def run(
  spec: RmsNorm,
  matrices: Sequence[jax.Array],
  weight: jax.Array,
  *,
  cores: int,
  shared_bytes: int,
  l2_bytes: int,
  interpret: Any = None,
) -> tuple[jax.Array, ...]:
  """The normalised rows, and x + residual where there is one.

  Args:
    spec: What to compute, of 16-bit results.
    matrices: [1, rows, columns] each, of 16-bit elements, sizes at least 1 and such
      that there are `stages`.
    weight: [1, 1, columns].
    cores: Streaming multiprocessors.
    shared_bytes: Of a thread block.
    l2_bytes: Of the device.
    interpret: None to compile, or the interpreter's parameters.
  """
  like = matrices[0]
  _, rows, columns = like.shape
  kept = row_stream.are_kept(matrices, l2_bytes=l2_bytes)
  weight = weight.astype(_stored_weight(spec))
  share = hopper_norm_blocks.share_of(columns, is_kept=kept, interpreted=interpret is not None)
  if share is not None:
    return hopper_norm_blocks.run(spec, matrices, weight, share, is_kept=kept, interpret=interpret)
  stream = RowStream.create(
    columns,
    rows=rows,
    cores=cores,
    shared_bytes=shared_bytes,
    interpreted=interpret is not None,
    kept=kept,
    **_options(spec, columns, shared_bytes),
  )
  found = plgpu.kernel(
    _Kernel(spec, stream).body,
    out_type=tuple(
      sharding.out_struct((rows, stream.share.result_columns), dtype, like)
      for dtype in (*spec.out_dtypes, *spec.sum_dtypes)
    ),
    scratch_types=(
      plgpu.SMEM((stream.share.stored,), weight.dtype),
      plgpu.Barrier(num_arrivals=len(stream.copies)),
      *stream.scratch([x.dtype for x in matrices]),
    ),
    interpret=interpret,
    **stream.kernel_params(),
  )(*(x.reshape(rows, columns) for x in matrices), weight.reshape(columns))
  return tuple(out[:, :columns].reshape(like.shape) for out in found)
