"""C = epilogue(A·B + bias) as a plain `pl.pallas_call` with explicit BlockSpecs.

One program per tile of C, in the L2-aware order of `hw_profiles.tile_order`.
A program is handed its row panel of A and column panel of B, walks K in steps
of `block_k` with the sum in float32, and finishes the tile once at the end.

Runs interpreted anywhere, and compiles for NVIDIA GPUs through the Triton
lowering, where the K loop is pipelined `num_stages` deep by Triton. The grid
is one-dimensional because CUDA limits only its other two axes to 65535.

Edges: a block that hangs over the edge of its array is masked. Both operands
are masked along K (garbage times zero may be NaN), each along its other side
too, so that nothing outside an array is read; stores are masked likewise.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu_triton

from hw_profiles import MatmulConfig, tile_order
from hw_profiles.matmul.multistage import warps
from pallas_kernels import sharding
from pallas_kernels.batching import batch_of
from pallas_kernels.gemm.epilogue import Epilogue


def _in_bounds(shape: tuple[int, int], *, rows: Any, columns: Any) -> jax.Array | None:
  """Mask of a block's elements with row < rows and column < columns; None: no limit."""
  mask = None
  for axis, limit in enumerate((rows, columns)):
    if limit is not None:
      inside = lax.broadcasted_iota(jnp.int32, shape, axis) < limit
      mask = inside if mask is None else mask & inside
  return mask


def _body(
  a_ref: Any,
  b_ref: Any,
  *rest: Any,
  config: MatmulConfig,
  epilogue: Epilogue,
  precision: Any,
  m: int,
  n: int,
  k: int,
  tiles_m: int,
  tiles_n: int,
  interpreted: bool,
) -> None:
  """One tile of C."""
  bias_ref, out_ref = rest if len(rest) == 2 else (None, rest[0])
  block_m, block_n, block_k = config.block_m, config.block_n, config.block_k
  _, tile_m, tile_n = _tile(pl.program_id(0), tiles_m, tiles_n, config.group_m)
  # what is left of each side inside this tile; None where blocks divide it
  rows = m - tile_m * block_m if m % block_m else None
  columns = n - tile_n * block_n if n % block_n else None

  def load(ref: Any, mask: jax.Array | None) -> jax.Array:
    if mask is None:
      return ref[...]
    return plgpu_triton.load(ref, mask=mask, other=0.0)

  def load_bias() -> jax.Array | None:
    if bias_ref is None:
      return None
    inside = None
    if columns is not None:
      inside = lax.broadcasted_iota(jnp.int32, (block_n,), 0) < columns
    return load(bias_ref, inside)

  def multiply(step: Any, carry: tuple[jax.Array, jax.Array | None]) -> Any:
    acc, bias = carry
    depth = k - step * block_k if k % block_k else None
    window = pl.ds(step * block_k, block_k)
    a = load(a_ref.at[:, window], _in_bounds((block_m, block_k), rows=rows, columns=depth))
    b = load(b_ref.at[window, :], _in_bounds((block_k, block_n), rows=depth, columns=columns))
    acc = acc + lax.dot(a, b, precision=precision, preferred_element_type=jnp.float32)
    return acc, load_bias() if interpreted else bias

  acc = jnp.zeros((block_m, block_n), jnp.float32)
  # JAX's interpreter, inside shard_map, checks outside of loops but not inside
  # that operands vary over the same mesh axes, and takes what leaves a loop as
  # varying over none: there the bias has to come out of the loop as acc does
  bias = None
  if interpreted and bias_ref is not None:
    bias = jnp.zeros((block_n,), bias_ref.dtype)
  acc, bias = lax.fori_loop(jnp.int32(0), jnp.int32(pl.cdiv(k, block_k)), multiply, (acc, bias))
  if not interpreted:
    bias = load_bias()
  if bias is not None:
    bias = bias[None, :]
  out = epilogue(acc, bias)
  mask = _in_bounds((block_m, block_n), rows=rows, columns=columns)
  if mask is None:
    out_ref[...] = out
  else:
    plgpu_triton.store(out_ref, out, mask=mask)


def _tile(program: Any, tiles_m: int, tiles_n: int, group_m: int) -> tuple[Any, Any, Any]:
  """Batch index, tile row and tile column of a program."""
  per_batch = tiles_m * tiles_n
  batch = program // per_batch
  row, column = tile_order.grouped_tile(
    program - batch * per_batch, tiles_m=tiles_m, tiles_n=tiles_n, group_m=group_m
  )
  return batch, row, column


# The Pallas interpreter copies every operand at each grid step (it writes input
# blocks back). Above this size it is handed one strip of tile columns at a
# time: 1024 x 4096 x 12288 in 128 x 128 tiles takes 8 s instead of 90 s on two
# cores.
_INTERPRETED_STRIP_BYTES = 1 << 20


def _in_strips(
  run: Callable[..., jax.Array],
  a: jax.Array,
  b: jax.Array,
  bias: jax.Array | None,
  *,
  block_n: int,
) -> jax.Array:
  """`run(a, b, bias)` strip by strip along N; programs and results are the same."""
  n = b.shape[2]
  column_bytes = b.shape[0] * b.shape[1] * b.dtype.itemsize
  width = max(1, _INTERPRETED_STRIP_BYTES // (column_bytes * block_n)) * block_n
  if width >= n:
    return run(a, b, bias)

  def strip(start: Any, size: int) -> jax.Array:
    part = None if bias is None else lax.dynamic_slice_in_dim(bias, start, size, axis=1)
    return run(a, lax.dynamic_slice_in_dim(b, start, size, axis=2), part)

  whole = n // width
  strips = lax.map(lambda i: strip(i * width, width), jnp.arange(whole, dtype=jnp.int32))
  out = jnp.moveaxis(strips, 0, 2).reshape(strips.shape[1], strips.shape[2], whole * width)
  if n % width:
    out = jnp.concatenate([out, strip(whole * width, n % width)], axis=2)
  return out


def matmul(
  a: jax.Array,
  b: jax.Array,
  bias: jax.Array | None,
  *,
  config: MatmulConfig,
  epilogue: Epilogue,
  precision: Any,
  interpret: bool,
) -> jax.Array:
  """out[i] = epilogue(a[i]·b[i] + bias[i]) for i < batch.

  Args:
    a: [batch or 1, M, K], a floating-point dtype of at most 32 bits; sizes at
      least 1.
    b: [batch or 1, K, N], the dtype of a.
    bias: [batch or 1, N] or None.
    config: Tile sizes; to compile, ones that `hw_profiles.plan` says fit.
    epilogue: What to do with the accumulator.
    precision: For `lax.dot`; matters for float32 operands only.
    interpret: True runs it with the Pallas interpreter, on any device.

  Returns:
    [batch, M, N] in `epilogue.out_dtype`.
  """
  run = functools.partial(
    _call, config=config, epilogue=epilogue, precision=precision, interpret=interpret
  )
  return _in_strips(run, a, b, bias, block_n=config.block_n) if interpret else run(a, b, bias)


def _call(
  a: jax.Array,
  b: jax.Array,
  bias: jax.Array | None,
  *,
  config: MatmulConfig,
  epilogue: Epilogue,
  precision: Any,
  interpret: bool,
) -> jax.Array:
  """The `pallas_call` of `matmul`."""
  _, m, k = a.shape
  n = b.shape[2]
  batch = batch_of(a, b, bias)
  tiles_m, tiles_n = pl.cdiv(m, config.block_m), pl.cdiv(n, config.block_n)
  # whole K steps, so that no window over-runs its panel: an over-running
  # window is shifted by the interpreter, not padded
  depth = pl.cdiv(k, config.block_k) * config.block_k
  tile = functools.partial(_tile, tiles_m=tiles_m, tiles_n=tiles_n, group_m=config.group_m)

  def panel_of(array: jax.Array, index: Any) -> Any:
    """An index map reading batch 0 of an operand that all batches share."""
    shared = array.shape[0] == 1

    def index_map(program: Any) -> tuple[Any, ...]:
      batch_index, row, column = tile(program)
      return (0 if shared else batch_index, *index(row, column))

    return index_map

  operands = [a, b]
  in_specs = [
    pl.BlockSpec((None, config.block_m, depth), panel_of(a, lambda row, _: (row, 0))),
    pl.BlockSpec((None, depth, config.block_n), panel_of(b, lambda _, column: (0, column))),
  ]
  if bias is not None:
    operands.append(bias)
    in_specs.append(
      pl.BlockSpec((None, config.block_n), panel_of(bias, lambda _, column: (column,)))
    )
  return pl.pallas_call(
    functools.partial(
      _body,
      config=config,
      epilogue=epilogue,
      precision=precision,
      m=m,
      n=n,
      k=k,
      tiles_m=tiles_m,
      tiles_n=tiles_n,
      interpreted=interpret,
    ),
    out_shape=sharding.out_struct((batch, m, n), epilogue.out_dtype, a),
    grid=(batch * tiles_m * tiles_n,),
    in_specs=in_specs,
    out_specs=pl.BlockSpec((None, config.block_m, config.block_n), tile),
    compiler_params=None
    if interpret
    else plgpu_triton.CompilerParams(num_warps=warps(config), num_stages=config.num_stages),
    interpret=interpret,
    name="matmul_portable",
  )(*operands)
