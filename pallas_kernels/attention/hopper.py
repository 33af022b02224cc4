"""The Hopper attention's launch: operands, layouts, scratch memory, grid. See `hopper_kernel`."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from hw_profiles import AttentionConfig
from hw_profiles.attention.warp_specialized import WGMMA_ROWS
from pallas_kernels import sharding
from pallas_kernels.attention.hopper_kernel import Geometry, Refs, body
from pallas_kernels.attention.hopper_layout import pad_operands, transforms
from pallas_kernels.attention.operands import AttentionOperands
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.attention.schedule import TileOrder
from pallas_kernels.hopper.ring import StageRing

_MOST_CONSUMERS = 3


def consumer_warpgroups(config: AttentionConfig) -> int:
  """`num_consumer_warpgroups`, or its default; see there."""
  if config.num_consumer_warpgroups is not None:
    return config.num_consumer_warpgroups
  counts = range(1, _MOST_CONSUMERS + 1)
  return max((x for x in counts if config.block_q % (WGMMA_ROWS * x) == 0), default=1)


def attention(
  rule: AttentionRule,
  operands: AttentionOperands,
  *,
  config: AttentionConfig,
  interpret: Any = None,
) -> tuple[jax.Array, jax.Array]:
  """out [batch, T, N, Hv] in the query's dtype, and float32 residual [batch, N, T].

  Args:
    rule: What is computed.
    operands: bfloat16 or float16 query, key and value; sizes at least 1.
    config: A tile that `hw_profiles.plan` says fits.
    interpret: None to compile, or the interpreter's parameters.
  """
  sizes = operands.sizes
  dtype = operands.query.dtype
  consumers = consumer_warpgroups(config)
  operands = pad_operands(operands)
  stored = operands.sizes
  row_bytes = (stored.head_dim + stored.value_dim) * dtype.itemsize
  geometry = Geometry(
    rule=rule,
    sizes=sizes,
    head_dim=stored.head_dim,
    value_dim=stored.value_dim,
    config=config,
    consumers=consumers,
    order=TileOrder.create(
      batch=sizes.batch,
      heads=sizes.heads,
      sharing=sizes.group,
      blocks=pl.cdiv(sizes.seq_q, config.block_q),
      walked_bytes=sizes.seq_kv * row_bytes,
      grows=rule.band.later_queries_see_more,
    ),
  )
  rows = geometry.rows
  q_scratch, o_scratch = (
    plgpu.SMEM((consumers, rows, size), dtype, transforms=transforms(size, dtype))
    for size in (stored.head_dim, stored.value_dim)
  )
  shared = stored.head_dim == stored.value_dim
  # the interpreter waits for ever at a union's barriers
  union: Any = plgpu.RefUnion if interpret is None else lambda *refs: refs

  def refs_of(
    query: Any, key: Any, value: Any, out: Any, residual: Any, q: Any, *rest: Any
  ) -> Refs:
    kept, staged = (q, q) if shared else q
    return Refs(query, key, value, out, residual, kept, staged, *rest)

  stages = config.num_stages
  ring = StageRing.barriers(num_stages=stages, copies=1, consumers=consumers)
  kernel = plgpu.kernel(
    functools.partial(body, refs_of=refs_of, geometry=geometry, interpreted=interpret is not None),
    out_type=(
      sharding.out_struct(
        (sizes.batch, stored.seq_q, sizes.heads, stored.value_dim), dtype, operands.query
      ),
      sharding.out_struct((sizes.batch, sizes.heads, stored.seq_q), jnp.float32, operands.query),
    ),
    scratch_types=[
      q_scratch if shared else union(q_scratch, o_scratch),
      plgpu.SMEM((consumers, rows), jnp.float32),
      *(
        plgpu.SMEM(
          (stages, config.block_kv, size),
          dtype,
          transforms=transforms(size, dtype, depth=depth),
        )
        for size, depth in ((stored.head_dim, 0), (stored.value_dim, config.block_kv))
      ),
      plgpu.Barrier(num_barriers=consumers),
      ring,
      ring,
      *([plgpu.Barrier(num_arrivals=2)] if consumers == 2 else []),
    ],
    grid=(geometry.order.programs,),
    grid_names=("tile",),
    num_threads=consumers + 1,
    thread_name="warpgroup",
    compiler_params=plgpu.CompilerParams(
      lowering_semantics=plgpu.LoweringSemantics.Warpgroup,
      # ex2.approx and rcp.approx, whose errors `reference` allows the softmax
      approx_math=True,
      # rows are reduced among the four lanes that hold them
      reduction_scratch_bytes=0,
    ),
    interpret=interpret,
  )
  out, residual = kernel(operands.query, operands.key, operands.value)
  return out[:, : sizes.seq_q, :, : sizes.value_dim], residual[:, :, : sizes.seq_q]
