"""The lowest steps of the ladder: products on CUDA cores, through Pallas's Triton lowering.

Both take sizes that their blocks divide, as the course texts' kernels do; they
are there to be measured, not to be used.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu_triton

_WARP = 32


def _row_of_outputs(a_ref: Any, b_ref: Any, out_ref: Any, *, k: int) -> None:
  """Each thread one output: a row of A against a column of B, element by element."""

  def add(i: Any, acc: jax.Array) -> jax.Array:
    return acc + a_ref[i].astype(jnp.float32) * b_ref[i, :].astype(jnp.float32)

  acc = lax.fori_loop(jnp.int32(0), jnp.int32(k), add, jnp.zeros(out_ref.shape, jnp.float32))
  out_ref[...] = acc.astype(out_ref.dtype)


def _register_tile(a_ref: Any, b_ref: Any, out_ref: Any, *, k: int) -> None:
  """A tile of outputs in registers: for each k the outer product of a column and a row."""

  def add(i: Any, acc: jax.Array) -> jax.Array:
    column, row = a_ref[:, i].astype(jnp.float32), b_ref[i, :].astype(jnp.float32)
    return acc + column[:, None] * row[None, :]

  acc = lax.fori_loop(jnp.int32(0), jnp.int32(k), add, jnp.zeros(out_ref.shape, jnp.float32))
  out_ref[...] = acc.astype(out_ref.dtype)


def one_output_a_thread(a: jax.Array, b: jax.Array, *, columns: int, interpret: bool) -> jax.Array:
  """A·B with `columns` neighbouring outputs of a row in a program, one a thread."""
  (m, k), n = a.shape, b.shape[1]
  return pl.pallas_call(
    functools.partial(_row_of_outputs, k=k),
    out_shape=jax.ShapeDtypeStruct((m, n), a.dtype),
    grid=(m * (n // columns),),
    in_specs=[
      pl.BlockSpec((None, k), lambda i: (i // (n // columns), 0)),
      pl.BlockSpec((k, columns), lambda i: (0, i % (n // columns))),
    ],
    out_specs=pl.BlockSpec((None, columns), lambda i: (i // (n // columns), i % (n // columns))),
    compiler_params=None
    if interpret
    else plgpu_triton.CompilerParams(num_warps=max(columns // _WARP, 1), num_stages=1),
    interpret=interpret,
  )(a, b)


def register_tiles(a: jax.Array, b: jax.Array, *, side: int, interpret: bool) -> jax.Array:
  """A·B with a `side` x `side` tile of outputs in the registers of a program."""
  (m, k), n = a.shape, b.shape[1]
  return pl.pallas_call(
    functools.partial(_register_tile, k=k),
    out_shape=jax.ShapeDtypeStruct((m, n), a.dtype),
    grid=(m // side, n // side),
    in_specs=[
      pl.BlockSpec((side, k), lambda i, j: (i, 0)),
      pl.BlockSpec((k, side), lambda i, j: (0, j)),
    ],
    out_specs=pl.BlockSpec((side, side), lambda i, j: (i, j)),
    compiler_params=None if interpret else plgpu_triton.CompilerParams(num_warps=8, num_stages=1),
    interpret=interpret,
  )(a, b)
