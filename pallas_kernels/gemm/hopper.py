"""The Hopper matmul's launch: operands, layouts, scratch memory, grid. See `hopper_kernel`."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from hw_profiles import MatmulConfig
from hw_profiles.matmul.warp_specialized import (
  EPILOGUE_SLOTS,
  PROMOTED_DTYPES,
  VECTOR_SLOTS,
  WGMMA_ROWS,
  settled_tile_fits,
)
from pallas_kernels import compat, sharding
from pallas_kernels.gemm.epilogue import Epilogue
from pallas_kernels.gemm.hopper_geometry import Geometry
from pallas_kernels.gemm.hopper_kernel import CLUSTER, Refs, body
from pallas_kernels.gemm.hopper_layout import hopper_layout
from pallas_kernels.gemm.operands import Operands, Transposes
from pallas_kernels.hopper.ring import StageRing
from pallas_kernels.hopper.tma import padded, rounded_up, vector_copies


def promotes_steps(dtype: Any, *, interpreted: bool) -> bool:
  """Whether each K step is summed on its own and added to the others in float32.

  Of a sum of float8 products the tensor cores keep 13 fraction bits: of 16384
  positive ones 22 % are lost on an H200, and XLA, which adds up in float32 on
  the way, loses 0.2 %.
  """
  return jnp.dtype(dtype).name in PROMOTED_DTYPES and (interpreted or compat.CARRIES_ARRAYS)


def overlaps_epilogue(
  config: MatmulConfig, epilogue: Epilogue, *, products: int, promotes: bool
) -> bool:
  """Whether the settled tile waits in registers while the next is multiplied."""
  if promotes:
    # a step's sum and the tile's fill them
    return False
  if config.overlap_epilogue is not None:
    return config.overlap_epilogue
  if not compat.CARRIES_ARRAYS:
    return False
  size = epilogue.settled_dtype.itemsize
  return size <= 2 and settled_tile_fits(config, products=products, settled_bytes=size)


def matmul(
  operands: Operands,
  *,
  transposes: Transposes,
  config: MatmulConfig,
  epilogue: Epilogue,
  num_ctas: int,
  interpret: Any = None,
) -> jax.Array:
  """out[i] = epilogue(a[i]·b[i], ...) for i < batch, or where K is split of each part.

  With added pairs the epilogue gets the sum of all products, in their order.

  Args:
    operands: bfloat16 or float16 matrices, or float8_e4m3fn or int8 ones with K
      innermost in both; sizes at least 1.
    transposes: How they are stored.
    config: A tile that `hw_profiles.plan` says fits.
    epilogue: What to do with the accumulators.
    num_ctas: Thread blocks to launch at most; one per SM.
    interpret: None to compile, or the interpreter's parameters.

  Returns:
    [batch·split_k, M, N] in `epilogue.out_dtype`.
  """
  interpreted = interpret is not None
  untransposed = interpreted and not compat.INTERPRETER_TRANSPOSES and transposes.any
  if untransposed:
    operands, transposes = _untransposed(operands, transposes)
  sizes = operands.sizes(transposes)
  products = len(operands.bs)
  dtype, out_dtype = operands.a.dtype, epilogue.out_dtype
  layout = hopper_layout(
    config,
    m=sizes.m,
    k=sizes.k,
    n=sizes.n,
    dtype=dtype,
    out_dtype=out_dtype,
    transposes=transposes,
    interpreted=interpreted,
  )
  if untransposed:
    # 8-bit tiles this way round are not made of whole swizzle spans, which the
    # interpreter does not need
    layout = dataclasses.replace(
      layout, operand=(), a_rows=config.block_m, last_a_rows=config.block_m
    )
  if interpreted and not compat.INTERPRETER_CLIPS_TMA:
    operands, out_multiples = _whole_tiles(operands, config, transposes)
  else:
    out_multiples = layout.out_multiples
  out_rows, out_columns = rounded_up((sizes.m, sizes.n), out_multiples)
  promotes = promotes_steps(dtype, interpreted=interpreted)
  geometry = Geometry(
    config=config,
    # padded for an interpreter without clipping, K is whole steps of every part
    sizes=sizes._replace(k=operands.sizes(transposes).k),
    products=products,
    layout=layout,
    transposes=transposes,
    overlaps=overlaps_epilogue(config, epilogue, products=products, promotes=promotes),
    promotes=promotes,
    max_ctas=num_ctas,
    pairs=len(operands.pairs),
  )
  described = Operands(
    layout.a.described(operands.a),
    tuple(map(layout.b.described, operands.bs)),
    # short, so whole tiles are as good as whole TMA pitches
    tuple(padded(x, config.block_m * config.cluster_m) for x in operands.per_row),
    tuple(padded(x, config.block_n * config.cluster_n) for x in operands.per_column),
    tuple((layout.a.described(a), layout.b.described(b)) for a, b in operands.added),
  )
  structure: Any = jax.tree.structure(described)

  def refs_of(*flat: Any) -> Refs:
    inputs: Operands = jax.tree.unflatten(structure, flat[: structure.num_leaves])
    out, a, b, *rest = flat[structure.num_leaves :]
    return Refs(inputs, out, *layout.a.views(a), *layout.b.views(b), *rest)

  stages = config.num_stages
  clustered = geometry.cluster > 1
  kernel = plgpu.kernel(
    functools.partial(
      body,
      refs_of=refs_of,
      geometry=geometry,
      epilogue=epilogue,
      interpreted=interpreted,
    ),
    out_type=sharding.out_struct((geometry.parts, out_rows, out_columns), out_dtype, operands.a),
    scratch_types=[
      layout.a.scratch(stages, transforms=layout.operand),
      layout.b.scratch(stages, products, transforms=layout.operand),
      plgpu.SMEM(
        (geometry.consumers, EPILOGUE_SLOTS, WGMMA_ROWS, layout.staging_columns),
        out_dtype,
        transforms=layout.staging,
      ),
      StageRing.barriers(
        num_stages=stages,
        copies=layout.a.count(layout.a_rows) + products * layout.b.count(layout.b.rows),
        consumers=geometry.consumers,
        cluster_axis=CLUSTER if clustered else None,
      ),
      *_vector_scratch(operands, config, consumers=geometry.consumers),
    ],
    grid=(geometry.num_clusters,),
    grid_names=("cta",),
    cluster=(geometry.cluster,) if clustered else (),
    cluster_names=(CLUSTER,) if clustered else (),
    num_threads=geometry.consumers + 1,
    thread_name="warpgroup",
    compiler_params=plgpu.CompilerParams(
      lowering_semantics=plgpu.LoweringSemantics.Warpgroup,
      # ex2.approx and rcp.approx, whose errors `reference` allows an activation:
      # 5 us less for silu at 1024 x 4096 x 12288 on an H200
      approx_math=True,
    ),
    interpret=interpret,
  )
  return kernel(*jax.tree.leaves(described))[:, : sizes.m, : sizes.n]


def _vector_scratch(operands: Operands, config: MatmulConfig, *, consumers: int) -> tuple[Any, ...]:
  """Slots of the epilogue's vectors and their ring's barriers; none where there are none."""
  vectors = (
    *((x.dtype, config.block_m) for x in operands.per_row),
    *((x.dtype, config.block_n) for x in operands.per_column),
  )
  if not vectors:
    return ()
  return (
    tuple(plgpu.SMEM((VECTOR_SLOTS, size), dtype) for dtype, size in vectors),
    StageRing.barriers(
      num_stages=VECTOR_SLOTS,
      copies=sum(len(vector_copies(size)) for _, size in vectors),
      consumers=consumers,
    ),
  )


def _untransposed(operands: Operands, transposes: Transposes) -> tuple[Operands, Transposes]:
  """The same product with operands stored as they are multiplied."""

  def left(a: jax.Array) -> jax.Array:
    return jnp.swapaxes(a, 1, 2) if transposes.a else a

  def right(b: jax.Array) -> jax.Array:
    return jnp.swapaxes(b, 1, 2) if transposes.b else b

  untransposed = operands._replace(
    a=left(operands.a),
    bs=tuple(map(right, operands.bs)),
    added=tuple((left(a), right(b)) for a, b in operands.added),
  )
  return untransposed, Transposes()


def _whole_tiles(
  operands: Operands, config: MatmulConfig, transposes: Transposes
) -> tuple[Operands, tuple[int, int]]:
  """Operands of whole tiles and parts, and what the result's sizes must be multiples of."""
  rows, depth, columns = (
    config.block_m * config.cluster_m,
    config.block_k * config.split_k,
    config.block_n * config.cluster_n,
  )
  a_multiples = (depth, rows) if transposes.a else (rows, depth)
  b_multiples = (columns, depth) if transposes.b else (depth, columns)
  whole = operands._replace(
    a=padded(operands.a, *a_multiples),
    bs=tuple(padded(b, *b_multiples) for b in operands.bs),
    added=tuple((padded(a, *a_multiples), padded(b, *b_multiples)) for a, b in operands.added),
  )
  return whole, (rows, columns)
