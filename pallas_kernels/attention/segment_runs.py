"""Where each row's segment id is on the other side: a portable kernel.

XLA compares every row with every position: 161 us for both sides of 2 x 8192 on
an H200, a fifth of the attention that needs them. Most blocks have no id in
common, which their least and largest ids tell.

What a row has found is kept by column, and put together once in the end: with
rows of 128, put together after each block, this took 67 us where segments have
1024 positions.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import sharding
from pallas_kernels.attention.blocks import kernel_body
from pallas_kernels.attention.portable import compiler_params
from pallas_kernels.attention.schedule import segment_limits

_ROWS, _POSITIONS = 16, 128
_WARPS = 4


class Runs(NamedTuple):
  """Where the ids of rows are, int32 [b, rows] each.

  Attributes:
    first: The first position that has a row's id; 0 where none has.
    end: One past the last; 0 where none has.
    found: How many have it.
  """

  first: jax.Array
  end: jax.Array
  found: jax.Array


def segment_runs(rows: jax.Array, others: jax.Array, used: jax.Array, *, interpret: bool) -> Runs:
  """Looks for each row's id on the other side.

  Args:
    rows: int32 [b, R], ids.
    others: int32 [b, C].
    used: int32 [b], positions of the other side that count.
    interpret: Whether the Pallas interpreter runs it.
  """
  batch, length = rows.shape
  limits = segment_limits(rows, others, block_rows=_ROWS, block_columns=_POSITIONS)
  rows, others = (_whole(ids, block) for ids, block in ((rows, _ROWS), (others, _POSITIONS)))
  blocks = rows.shape[1] // _ROWS

  def body(program: Any, *refs: Any) -> None:
    del program
    rows_ref, others_ref, used_ref, limits_ref = refs[:4]
    ids, count = rows_ref[...], used_ref[0]

    column = lax.broadcasted_iota(jnp.int32, (_ROWS, _POSITIONS), 1)
    none = jnp.full_like(column, others_ref.shape[0])

    def look(block: Any, runs: Runs) -> Runs:
      others = others_ref[pl.ds(block * _POSITIONS, _POSITIONS)]
      position = block * _POSITIONS + column
      same = (ids[:, None] == others[None, :]) & (position < count)
      return Runs(
        jnp.where(same, jnp.minimum(runs.first, position), runs.first),
        jnp.where(same, position + 1, runs.end),
        runs.found + same.astype(jnp.int32),
      )

    nothing = jnp.zeros_like(column)
    by_column = lax.fori_loop(limits_ref[0], limits_ref[1], look, Runs(none, nothing, nothing))
    end = jnp.max(by_column.end, axis=1)
    first = jnp.minimum(jnp.min(by_column.first, axis=1), end)
    found = Runs(first, end, jnp.sum(by_column.found, axis=1))
    for ref, value in zip(refs[4:], found, strict=True):
      ref[...] = value

  def at(program: Any) -> tuple[Any, Any]:
    return lax.div(program, jnp.int32(blocks)), lax.rem(program, jnp.int32(blocks))

  block_of_rows = pl.BlockSpec((None, _ROWS), at)
  result = sharding.out_struct(rows.shape, jnp.int32, rows)
  found = pl.pallas_call(
    kernel_body(body, interpret=interpret, like=rows),
    out_shape=(result,) * 3,
    grid=(batch * blocks,),
    in_specs=[
      block_of_rows,
      pl.BlockSpec((None, others.shape[1]), lambda program: (at(program)[0], 0)),
      pl.BlockSpec((1,), lambda program: (at(program)[0],)),
      pl.BlockSpec((None, None, 2), lambda program: (*at(program), 0)),
    ],
    out_specs=(block_of_rows,) * 3,
    compiler_params=None if interpret else compiler_params(num_warps=_WARPS, num_stages=2),
    interpret=interpret,
    name="attention_segment_runs",
  )(rows, others, used, limits)
  return Runs(*(x[:, :length] for x in found))


def _whole(ids: jax.Array, block: int) -> jax.Array:
  """Filled up to whole blocks with the last id."""
  return jnp.pad(ids, ((0, 0), (0, -ids.shape[1] % block)), mode="edge")
