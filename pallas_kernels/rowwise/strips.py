"""Rows in strips, for the interpreter.

The Pallas interpreter copies every operand at each program (it writes input
blocks back). Above 1 MiB it is handed some rows at a time: swiglu of
1024 x 12288 takes seconds instead of minutes on two cores. Programs and results
are the same.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.rowwise.request import RowOperands

_STRIP_BYTES = 1 << 20


def in_strips(
  run: Callable[[RowOperands], tuple[jax.Array, ...]], operands: RowOperands, *, block_rows: int
) -> tuple[jax.Array, ...]:
  """`run(operands)` strip by strip along the rows, each of whole blocks.

  Args:
    run: Returns arrays of [groups, rows, ...].
    operands: Those of an op on rows; numbers that there are one of for each row
      are cut as the matrices are.
    block_rows: Rows of a block.
  """
  rows = operands.matrices[0].shape[1]
  row_bytes = sum(x.nbytes // rows for x in operands.matrices)
  height = max(1, _STRIP_BYTES // (row_bytes * block_rows)) * block_rows
  if height >= rows:
    return run(operands)

  def strip(start: jax.Array, size: int) -> tuple[jax.Array, ...]:
    def cut(x: jax.Array) -> jax.Array:
      return lax.dynamic_slice_in_dim(x, start, size, axis=1) if x.shape[1] == rows else x

    return run(RowOperands(*(tuple(map(cut, part)) for part in operands)))

  whole = rows // height
  strips = lax.map(lambda i: strip(i * height, height), jnp.arange(whole, dtype=jnp.int32))
  outs = tuple(
    jnp.moveaxis(x, 0, 1).reshape(x.shape[1], whole * height, x.shape[-1]) for x in strips
  )
  if rows % height:
    rest = strip(jnp.int32(whole * height), rows % height)
    outs = tuple(jnp.concatenate(pair, axis=1) for pair in zip(outs, rest, strict=True))
  return outs
