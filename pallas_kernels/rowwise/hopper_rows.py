"""Codes and scales of rows on Hopper: rows by TMA, read once (Pallas Mosaic GPU).

Rows that a core has room for several of are `hopper_row_blocks`'. Of longer ones, as `row_stream`
says, of a row

    values     from shared memory into registers, whereupon the stage is free
    maximum    exchanged by the warps of the group
    codes      from registers to global memory

Against the portable kernel, whose programs wait for the loads of a row and then
compute, one on each core: rows are on their way while others are encoded.

Rows are shifted, so that those that are no whole lines are copied and stored by
whole lines all the same.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import sharding
from pallas_kernels.rowwise import hopper_row_blocks, row_encoding, row_numbers, row_stream
from pallas_kernels.rowwise.arithmetic import Arithmetic
from pallas_kernels.rowwise.row_stream import RowStream, Turn
from pallas_kernels.rowwise.specs import Blocks, Part, RowCodes


def stages(columns: int, *, matrices: int, shared_bytes: int) -> int:
  """`row_stream.stages` of rows that are shifted where they can be."""
  shifted = _is_shifted(columns, matrices=matrices, shared_bytes=shared_bytes)
  return row_stream.stages(columns, matrices=matrices, shared_bytes=shared_bytes, shifted=shifted)


def _is_shifted(columns: int, *, matrices: int, shared_bytes: int) -> bool:
  """Whether rows are shifted, which is free to choose: a maximum has no order.

  Not where the room before them leaves too few stages: of gate and up on an H200, from 28568 to
  28664 columns.
  """
  found = row_stream.stages(columns, matrices=matrices, shared_bytes=shared_bytes, shifted=True)
  return found > 0


@dataclasses.dataclass(frozen=True)
class _Kernel:
  """One instance: what it computes, and of which rows."""

  spec: RowCodes
  stream: RowStream

  def body(self, *refs: Any) -> None:
    """What every warpgroup of every thread block runs."""
    count = self.stream.matrices
    matrices, (codes, scales), scratch = refs[:count], refs[count : count + 2], refs[count + 2 :]

    def values(blocks: Blocks) -> jax.Array:
      return self.spec.values(blocks, self.stream.arithmetic())[0]

    def finish(turn: Turn, kept: list[jax.Array]) -> None:
      self._encode(turn, kept, codes, scales)

    self.stream.run(matrices, scratch, values=values, finish=finish)

  def _encode(self, turn: Turn, values: list[jax.Array], codes: Any, scales: Any) -> None:
    """Stores a member's codes of a row, and one member its scale."""
    spec, share, exact = self.spec, self.stream.share, self.stream.arithmetic()

    def largest(values: list[jax.Array], slot: int) -> jax.Array:
      return row_numbers.largest(share, values, turn.member, turn.exchange.at[slot], turn.meet)

    def of_finite() -> jax.Array:
      return largest([jnp.where(jnp.abs(x) < jnp.inf, x, 0.0) for x in values], 1)

    def write(scale: jax.Array, arithmetic: Arithmetic) -> None:
      for start, block in zip(share.starts(turn.member), values, strict=True):
        (found,) = spec.finish(Part(block, ()), [scale], arithmetic)
        share.store(found, codes.at[turn.row], start, turn.shift)

    scale = row_encoding.encode(
      spec,
      largest(values, 0),
      columns=share.columns,
      exact=exact,
      of_finite=of_finite,
      write=lambda scale: write(scale, self.stream.arithmetic(ordinary=True)),
      write_any=lambda scale: write(scale, exact),
    )

    @pl.when(turn.member == 0)
    def _scale() -> None:
      (scales[turn.row],) = spec.row_results([scale])


def run(
  spec: RowCodes,
  matrices: Sequence[jax.Array],
  *,
  cores: int,
  shared_bytes: int,
  l2_bytes: int,
  interpret: Any = None,
) -> tuple[jax.Array, jax.Array]:
  """Codes and scales.

  Args:
    spec: What to compute.
    matrices: [1, rows, columns] each, of 16-bit elements, sizes at least 1 and such
      that there are `stages`.
    cores: Streaming multiprocessors.
    shared_bytes: Of a thread block.
    l2_bytes: Of the device.
    interpret: None to compile, or the interpreter's parameters.

  Returns:
    Codes [1, rows, columns] and scales [1, rows, 1].
  """
  like = matrices[0]
  _, rows, columns = like.shape
  share = hopper_row_blocks.share_of(
    columns, matrices=len(matrices), interpreted=interpret is not None
  )
  if share is not None:
    return hopper_row_blocks.run(spec, matrices, share, l2_bytes=l2_bytes, interpret=interpret)
  stream = RowStream.create(
    columns,
    matrices=len(matrices),
    shared_bytes=shared_bytes,
    rows=rows,
    cores=cores,
    shifted=_is_shifted(columns, matrices=len(matrices), shared_bytes=shared_bytes),
    # of silu(gate)·up nothing is won: with shorter rows, which came here then, 65536 x 11008 took
    # an H200 847.1 us and 847.9, 7239 x 11008 99.8 and 99.4
    kept=len(matrices) == 1 and row_stream.are_kept(matrices, l2_bytes=l2_bytes),
    interpreted=interpret is not None,
  )
  codes, scales = plgpu.kernel(
    _Kernel(spec, stream).body,
    out_type=(
      sharding.out_struct((rows, stream.share.result_columns), spec.code_dtype, like),
      sharding.out_struct((rows,), jnp.dtype(jnp.float32), like),
    ),
    scratch_types=stream.scratch([x.dtype for x in matrices]),
    interpret=interpret,
    **stream.kernel_params(),
  )(*(x.reshape(rows, columns) for x in matrices))
  return stream.share.settled(codes).reshape(like.shape), scales.reshape(1, rows, 1)
