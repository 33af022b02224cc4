"""C = epilogue(A·B, ...) as a plain `pl.pallas_call` with explicit BlockSpecs.

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
from pallas_kernels.dtypes import sum_dtype
from pallas_kernels.gemm.epilogue import Epilogue, complete
from pallas_kernels.gemm.operands import Operands, Sizes, Transposes
from pallas_kernels.portable_support import in_bounds
from pallas_kernels.rowwise import arithmetic, codec


def _body(
  *flat_refs: Any,
  refs_of: Callable[..., tuple[Operands, Any]],
  transposes: Transposes,
  config: MatmulConfig,
  epilogue: Epilogue,
  precision: Any,
  code_dtype: jnp.dtype | None,
  sizes: Sizes,
  tiles_m: int,
  tiles_n: int,
  interpreted: bool,
) -> None:
  """One tile of C."""
  refs, out_ref = refs_of(*flat_refs)
  _, m, k, n = sizes
  block_m, block_n, block_k = config.block_m, config.block_n, config.block_k
  part, tile_m, tile_n = _tile(pl.program_id(0), tiles_m, tiles_n, config.group_m)
  # what is left of each side inside this tile; None where blocks divide it
  rows = m - tile_m * block_m if m % block_m else None
  columns = n - tile_n * block_n if n % block_n else None

  def load(ref: Any, mask: jax.Array | None) -> jax.Array:
    if mask is None:
      return ref[...]
    return plgpu_triton.load(ref, mask=mask, other=0.0)

  def load_matrix(
    ref: Any, step: Any, *, side: int, limit: Any, depth: Any, depth_first: bool
  ) -> jax.Array:
    """One K step of an operand as stored: side x block_k, or block_k x side."""
    window = pl.ds(step * block_k, block_k)
    if depth_first:
      return load(ref.at[window, :], in_bounds((block_k, side), rows=depth, columns=limit))
    return load(ref.at[:, window], in_bounds((side, block_k), rows=limit, columns=depth))

  def load_vectors() -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    def one(ref: Any, size: int, limit: Any) -> jax.Array:
      inside = None if limit is None else lax.broadcasted_iota(jnp.int32, (size,), 0) < limit
      return load(ref, inside)

    return (
      tuple(one(ref, block_m, rows) for ref in refs.per_row),
      tuple(one(ref, block_n, columns) for ref in refs.per_column),
    )

  def depth_of(step: Any) -> Any:
    return k - step * block_k if k % (block_k * config.split_k) else None

  def load_a(step: Any) -> jax.Array:
    a = load_matrix(
      refs.a, step, side=block_m, limit=rows, depth=depth_of(step), depth_first=transposes.a
    )
    return a.T if transposes.a else a

  k_steps = jnp.int32(pl.cdiv(k, block_k * config.split_k))
  first_step = 0 if config.split_k == 1 else part % config.split_k * k_steps
  exact = arithmetic.in_kernel(interpreted=interpreted)
  scale = None
  if code_dtype is not None:
    # a row's scale depends on all of it: one walk along K finds it, the next quantises
    amax = lax.fori_loop(
      jnp.int32(0),
      k_steps,
      lambda step, amax: jnp.maximum(
        amax, codec.largest_magnitude(load_a(step).astype(jnp.float32))
      ),
      jnp.zeros((block_m, 1), jnp.float32),
    )
    scale = codec.scale_of(amax, code_dtype, exact)

  def multiply(step: Any, carry: tuple[Any, Any]) -> Any:
    accs, vectors = carry
    step = first_step + step
    depth = depth_of(step)
    a = load_a(step)
    if scale is not None and code_dtype is not None:
      a = codec.encode(a.astype(jnp.float32), scale, code_dtype, exact)
    sums = []
    for acc, ref in zip(accs, refs.bs, strict=True):
      b = load_matrix(
        ref, step, side=block_n, limit=columns, depth=depth, depth_first=not transposes.b
      )
      b = b.T if transposes.b else b
      sums.append(
        acc + lax.dot(a, b, precision=precision, preferred_element_type=acc.dtype).astype(acc.dtype)
      )
    return tuple(sums), load_vectors() if interpreted else vectors

  accumulate = sum_dtype(refs.a.dtype if code_dtype is None else code_dtype)
  accs = tuple(jnp.zeros((block_m, block_n), accumulate) for _ in refs.bs)
  # JAX's interpreter, inside shard_map, checks outside of loops but not inside
  # that operands vary over the same mesh axes, and takes what leaves a loop as
  # varying over none: there the vectors have to come out of the loop as acc does
  vectors: Any = ((), ())
  if interpreted:
    vectors = (
      tuple(jnp.zeros((block_m,), ref.dtype) for ref in refs.per_row),
      tuple(jnp.zeros((block_n,), ref.dtype) for ref in refs.per_column),
    )
  accs, vectors = lax.fori_loop(jnp.int32(0), k_steps, multiply, (accs, vectors))
  if not interpreted:
    vectors = load_vectors()
  per_row = (*(() if scale is None else (scale,)), *(x[:, None] for x in vectors[0]))
  per_column = tuple(x[None, :] for x in vectors[1])
  out = complete(epilogue, accs, per_row, per_column)
  mask = in_bounds((block_m, block_n), rows=rows, columns=columns)
  if mask is None:
    out_ref[...] = out
  else:
    plgpu_triton.store(out_ref, out, mask=mask)


def _tile(program: Any, tiles_m: int, tiles_n: int, group_m: int) -> tuple[Any, Any, Any]:
  """Part index, tile row and tile column of a program; each product has `split_k` parts."""
  per_part = tiles_m * tiles_n
  part = program // per_part
  row, column = tile_order.grouped_tile(
    program - part * per_part, tiles_m=tiles_m, tiles_n=tiles_n, group_m=group_m
  )
  return part, row, column


# The Pallas interpreter copies every operand at each grid step (it writes input
# blocks back). Above this size it is handed one strip of tile columns at a
# time: 1024 x 4096 x 12288 in 128 x 128 tiles takes 8 s instead of 90 s on two
# cores.
_INTERPRETED_STRIP_BYTES = 1 << 20


def _in_strips(
  run: Callable[[Operands], jax.Array],
  operands: Operands,
  *,
  transposes: Transposes,
  block_n: int,
) -> jax.Array:
  """`run(operands)` strip by strip along N; programs and results are the same."""
  sizes = operands.sizes(transposes)
  axis = 1 if transposes.b else 2
  b_bytes = sum(b.size // sizes.n * b.dtype.itemsize for b in operands.bs)
  width = max(1, _INTERPRETED_STRIP_BYTES // (b_bytes * block_n)) * block_n
  if width >= sizes.n:
    return run(operands)

  def strip(start: Any, size: int) -> jax.Array:
    return run(
      operands._replace(
        bs=tuple(lax.dynamic_slice_in_dim(b, start, size, axis=axis) for b in operands.bs),
        per_column=tuple(
          lax.dynamic_slice_in_dim(x, start, size, axis=1) for x in operands.per_column
        ),
      )
    )

  whole = sizes.n // width
  strips = lax.map(lambda i: strip(i * width, width), jnp.arange(whole, dtype=jnp.int32))
  out = jnp.moveaxis(strips, 0, 2).reshape(strips.shape[1], strips.shape[2], whole * width)
  if sizes.n % width:
    out = jnp.concatenate([out, strip(whole * width, sizes.n % width)], axis=2)
  return out


def matmul(
  operands: Operands,
  *,
  transposes: Transposes,
  config: MatmulConfig,
  epilogue: Epilogue,
  precision: Any,
  interpret: bool,
  code_dtype: jnp.dtype | None = None,
) -> jax.Array:
  """out[i] = epilogue(a[i]·b[i], ...) for i < batch, or where K is split of each part.

  Args:
    operands: Matrices of a dtype of at most 32 bits; sizes at least 1.
    transposes: How they are stored.
    config: Tile sizes; to compile, ones that `hw_profiles.plan` says fit.
    epilogue: What to do with the accumulators.
    precision: For `lax.dot`; matters for float32 operands only.
    interpret: True runs it with the Pallas interpreter, on any device.
    code_dtype: Quantise the rows of A to it on the way; the epilogue's first
      operand a row is then their scale, and K is not split.

  Returns:
    [batch·split_k, M, N] in `epilogue.out_dtype`.
  """
  run = functools.partial(
    _call,
    transposes=transposes,
    config=config,
    epilogue=epilogue,
    precision=precision,
    interpret=interpret,
    code_dtype=code_dtype,
  )
  if not interpret:
    return run(operands)
  return _in_strips(run, operands, transposes=transposes, block_n=config.block_n)


def _call(
  operands: Operands,
  *,
  transposes: Transposes,
  config: MatmulConfig,
  epilogue: Epilogue,
  precision: Any,
  interpret: bool,
  code_dtype: jnp.dtype | None = None,
) -> jax.Array:
  """The `pallas_call` of `matmul`."""
  sizes = operands.sizes(transposes)
  tiles_m, tiles_n = pl.cdiv(sizes.m, config.block_m), pl.cdiv(sizes.n, config.block_n)
  # whole K steps, so that no window over-runs its panel: an over-running
  # window is shifted by the interpreter, not padded
  split = config.split_k
  depth = pl.cdiv(sizes.k, config.block_k * split) * config.block_k * split
  tile = functools.partial(_tile, tiles_m=tiles_m, tiles_n=tiles_n, group_m=config.group_m)

  def panel(array: jax.Array, block: tuple[int, ...], index: Any) -> pl.BlockSpec:
    """A panel of an operand; batch 0 of one that all batches share."""
    shared = array.shape[0] == 1

    def index_map(program: Any) -> tuple[Any, ...]:
      part, row, column = tile(program)
      return (0 if shared else part // split, *index(row, column))

    return pl.BlockSpec((None, *block), index_map)

  def matrix(array: jax.Array, side: int, index: Any, *, depth_first: bool) -> pl.BlockSpec:
    if depth_first:
      return panel(array, (depth, side), lambda row, column: (0, index(row, column)))
    return panel(array, (side, depth), lambda row, column: (index(row, column), 0))

  in_specs = Operands(
    matrix(operands.a, config.block_m, lambda row, _: row, depth_first=transposes.a),
    tuple(
      matrix(b, config.block_n, lambda _, column: column, depth_first=not transposes.b)
      for b in operands.bs
    ),
    tuple(panel(x, (config.block_m,), lambda row, _: (row,)) for x in operands.per_row),
    tuple(panel(x, (config.block_n,), lambda _, column: (column,)) for x in operands.per_column),
  )
  structure = jax.tree.structure(operands)

  def refs_of(*flat: Any) -> tuple[Operands, Any]:
    return jax.tree.unflatten(structure, flat[:-1]), flat[-1]

  return pl.pallas_call(
    functools.partial(
      _body,
      refs_of=refs_of,
      transposes=transposes,
      config=config,
      epilogue=epilogue,
      precision=precision,
      code_dtype=code_dtype,
      sizes=sizes,
      tiles_m=tiles_m,
      tiles_n=tiles_n,
      interpreted=interpret,
    ),
    out_shape=sharding.out_struct(
      (sizes.batch * split, sizes.m, sizes.n), epilogue.out_dtype, operands.a
    ),
    grid=(sizes.batch * split * tiles_m * tiles_n,),
    in_specs=jax.tree.leaves(in_specs, is_leaf=lambda x: isinstance(x, pl.BlockSpec)),
    out_specs=pl.BlockSpec((None, config.block_m, config.block_n), tile),
    compiler_params=None
    if interpret
    else plgpu_triton.CompilerParams(
      num_warps=warps(config, products=len(operands.bs)), num_stages=config.num_stages
    ),
    interpret=interpret,
    name="matmul_portable",
  )(*jax.tree.leaves(operands))
