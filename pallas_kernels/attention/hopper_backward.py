"""The Hopper attention gradients' launch: see `hopper_backward_kernel`."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from hw_profiles import AttentionConfig
from hw_profiles.attention.passes import DEFAULT_BLOCK_KV_DKV, DEFAULT_BLOCK_Q_DKV
from hw_profiles.attention.warp_specialized import GRADIENT_COLUMNS, WGMMA_ROWS
from pallas_kernels import sharding
from pallas_kernels.attention import intervals, softmax
from pallas_kernels.attention.hopper_backward_geometry import Geometry
from pallas_kernels.attention.hopper_backward_kernel import Refs, body
from pallas_kernels.attention.hopper_layout import ROWS
from pallas_kernels.attention.operands import AttentionOperands, Sizes, Upstream
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.attention.schedule import TileOrder
from pallas_kernels.hopper.ring import StageRing
from pallas_kernels.hopper.tma import padded, tiled

_SWIZZLE = 128

# Thread blocks that run at once on the smallest GPU with wgmma, H100 PCIe
FEW_TILES = 114

# Heads that run at once. A tile waits for the part of dQ of the tile before it of its head, some
# 3 us, so that the fewer tiles of a head there are at a time the better, but what heads walk
# competes for L2. H200, 8192 queries and keys, 32 heads of 128: 4938, 4890, 5426 us with 2, 8, 32
# heads; causal 3775, 2727, 2574 us.
_HEADS_AT_ONCE, _HEADS_AT_ONCE_CAUSAL = 8, 32


class HopperGradients(NamedTuple):
  """What the kernel makes.

  Attributes:
    d_query: [batch, T, N, H] in the operands' dtype.
    d_key: [batch, S, K, H].
    d_value: [batch, S, K, Hv].
    query_doubt: float32 [batch, N, T]: NaN for a row with an infinity or NaN in
      `d_query`, else 0; None where every query sees all keys. As
      `hopper.HopperResult.doubt`.
    key_doubt: float32 [batch, K, S], the same of `d_key` and `d_value`.
  """

  d_query: jax.Array
  d_key: jax.Array
  d_value: jax.Array
  query_doubt: jax.Array | None = None
  key_doubt: jax.Array | None = None


def gradients(
  rule: AttentionRule,
  operands: AttentionOperands,
  upstream: Upstream,
  *,
  config: AttentionConfig,
  interpret: Any = None,
) -> HopperGradients:
  """dQ, dK and dV, and where to doubt them.

  Args:
    rule: What is computed.
    operands: bfloat16 or float16 query, key and value; sizes at least 1, of heads at most 128.
    upstream: What came from the forward pass and from above.
    config: `block_q_dkv`, `block_kv_dkv` and `num_stages` are read.
    interpret: None to compile, or the interpreter's parameters.
  """
  sizes = operands.sizes
  dtype = operands.query.dtype
  query, key, value, d_out = (
    padded(x, ROWS, 1, GRADIENT_COLUMNS)
    for x in (operands.query, operands.key, operands.value, upstream.d_out)
  )
  stored_q, stored_kv = query.shape[1], key.shape[1]
  head_dim, value_dim = query.shape[3], value.shape[3]
  geometry = _geometry(rule, sizes, config, head_dim=head_dim, value_dim=value_dim)
  # a query that there is none of has weights of 0. Whole blocks: a copy of one dimension is not
  # clipped at the end of its row, it reads on into the next one, whose exponent may be low enough
  # for a weight of infinity
  missing = [(0, 0), (0, 0), (0, -sizes.seq_q % geometry.block_q)]
  exponent = jnp.pad(softmax.stored_exponent(upstream.residual), missing, constant_values=jnp.inf)
  delta = jnp.pad(upstream.delta, missing)
  visible = None
  if intervals.are_needed(operands):
    visible = intervals.of_keys(rule.band, operands, interpret=interpret is not None)
  order = _order(geometry, visible)
  block_q, block_kv, stages = geometry.block_q, geometry.block_kv, geometry.num_stages
  consumers, slots = geometry.consumers, geometry.slots
  # consumers that make a step's part of dQ
  makers = 1 if geometry.takes_turns else consumers
  operand = functools.partial(plgpu.SMEM, dtype=dtype, transforms=tiled(_SWIZZLE, dtype))
  part = (block_q, head_dim)
  ring = StageRing.barriers(num_stages=stages, copies=2, consumers=consumers)
  scratch = {
    "k": operand((block_kv, head_dim)),
    "v": operand((block_kv, value_dim)),
    "q": operand((stages, block_q, head_dim)),
    "d_o": operand((stages, block_q, value_dim)),
    # one buffer: each begins at a multiple of 1024 B
    "numbers": plgpu.SMEM((2, stages, block_q), jnp.float32),
    "d_z": operand((slots, block_kv, block_q)),
    "d_q": plgpu.SMEM((slots, *part), jnp.float32, transforms=tiled(_SWIZZLE, jnp.float32)),
    "doubtful": plgpu.SMEM((consumers, WGMMA_ROWS), jnp.float32),
    "kv_full": plgpu.Barrier(num_arrivals=2),
    "q_ring": ring,
    "d_o_ring": ring,
    "d_z_ring": StageRing.barriers(num_stages=slots, copies=consumers, consumers=makers),
    "d_q_ring": StageRing.barriers(num_stages=slots, copies=makers, consumers=1),
    "scratch": None
    if interpret is None
    else (
      operand((consumers, WGMMA_ROWS, block_q)),
      plgpu.SMEM(part, jnp.float32),
      plgpu.Barrier(),
    ),
  }
  names = tuple(scratch)
  like = query
  doubt: tuple[jax.ShapeDtypeStruct, ...] = ()
  if visible is not None or not rule.band.is_open:
    # whole tiles, for the same reason
    doubt_shape = (sizes.batch, sizes.kv_heads, sizes.seq_kv + -sizes.seq_kv % geometry.block_kv)
    doubt = (sharding.out_struct(doubt_shape, jnp.float32, like),)

  def refs_of(*flat: Any) -> Refs:
    arrays, scratch = flat[: -len(names)], flat[-len(names) :]
    given, made = arrays[: 7 + len(order.sight)], arrays[7 + len(order.sight) :]
    ordered: tuple[Any, ...] = (*given[:7], given[7:], *made[:3], made[3:])
    return Refs(*ordered, **dict(zip(names, scratch, strict=True)))

  kernel = plgpu.kernel(
    functools.partial(body, refs_of=refs_of, geometry=geometry),
    out_type=(
      sharding.out_struct((sizes.batch, stored_q, sizes.heads, head_dim), jnp.float32, like),
      sharding.out_struct((sizes.batch, stored_kv, sizes.kv_heads, head_dim), dtype, like),
      sharding.out_struct((sizes.batch, stored_kv, sizes.kv_heads, value_dim), dtype, like),
      *doubt,
    ),
    scratch_types=tuple(scratch.values()),
    grid=(geometry.order.programs,),
    grid_names=("tile",),
    num_threads=consumers + 1,
    thread_name="warpgroup",
    compiler_params=plgpu.CompilerParams(
      lowering_semantics=plgpu.LoweringSemantics.Warpgroup,
      # ex2.approx, whose error `reference` allows the softmax
      approx_math=True,
      reduction_scratch_bytes=0,
      # by the rules of `hopper.fence`
      unsafe_no_auto_barriers=geometry.is_lean(has_sight=visible is not None),
    ),
    interpret=interpret,
  )
  d_query, d_key, d_value, *key_doubt = kernel(
    query, key, value, d_out, exponent, delta, order.leads, *order.sight
  )
  d_query = d_query[:, : sizes.seq_q, :, : sizes.head_dim] * rule.scale
  if order.visited is not None:
    d_query = jnp.where(order.visited[:, :, None, None], d_query, jnp.zeros_like(d_query))
  found = (
    d_query.astype(dtype),
    d_key[:, : sizes.seq_kv, :, : sizes.head_dim],
    d_value[:, : sizes.seq_kv, :, : sizes.value_dim],
  )
  if not key_doubt:
    return HopperGradients(*found)
  query_doubt = jnp.swapaxes(jnp.sum(d_query * 0.0, axis=-1), 1, 2)
  doubts = [query_doubt, key_doubt[0][:, :, : sizes.seq_kv]]
  if visible is not None and visible.exact is not None:
    doubts = [intervals.in_doubt_unless(visible.exact, x) for x in doubts]
  return HopperGradients(*found, *doubts)


def _geometry(
  rule: AttentionRule, sizes: Sizes, config: AttentionConfig, *, head_dim: int, value_dim: int
) -> Geometry:
  """The kernel instance of a tile, for head sizes as they are stored."""
  block_kv = config.block_kv_dkv or DEFAULT_BLOCK_KV_DKV
  block_q = config.block_q_dkv or DEFAULT_BLOCK_Q_DKV
  # 16-bit Q and dO, float32 dQ
  walked = 2 * (head_dim + value_dim) + 4 * head_dim
  blocks = pl.cdiv(sizes.seq_kv, block_kv)
  # they run at once, and the longest does not start late
  early = rule.band.later_queries_see_more and sizes.batch * sizes.kv_heads * blocks <= FEW_TILES
  return Geometry(
    rule=rule,
    sizes=sizes,
    head_dim=head_dim,
    value_dim=value_dim,
    block_q=block_q,
    consumers=block_kv // WGMMA_ROWS,
    num_stages=config.num_stages,
    order=TileOrder.create(
      batch=sizes.batch,
      heads=sizes.kv_heads,
      sharing=1,
      blocks=blocks,
      walked_bytes=sizes.group * sizes.seq_q * walked,
      # the counters of dQ want a tile's predecessors first
      grows=early,
      at_once=_HEADS_AT_ONCE if rule.band.is_open else _HEADS_AT_ONCE_CAUSAL,
    ),
    early_queries_first=early,
  )


class _Order(NamedTuple):
  """In which order tiles add to dQ, and what they walk where only the run knows it.

  Attributes:
    leads: `Refs.leads`.
    sight: `Refs.sight`.
    visited: bool [b, T], whether a tile adds to a query's dQ; None: to all.
  """

  leads: jax.Array
  sight: tuple[jax.Array, ...]
  visited: jax.Array | None


def _order(geometry: Geometry, visible: intervals.Sight | None) -> _Order:
  block_q, seq_q = geometry.block_q, geometry.sizes.seq_q
  if visible is None:
    leads, visited = geometry.visits()
    rows = None if visited.all() else jnp.asarray(np.repeat(visited, block_q)[None, :seq_q])
    return _Order(jnp.asarray(leads), (), rows)
  keys = visible.seen
  # keys past the last one have weights, and add to dQ
  walks = intervals.walks(keys, block=geometry.block_kv, other_block=block_q, whole=True)
  before, comes = intervals.ranks(
    walks, blocks=pl.cdiv(seq_q, block_q), descending=geometry.early_queries_first
  )
  sight = (walks.table, *intervals.in_whole_blocks(keys, geometry.block_kv))
  return _Order(before, sight, jnp.repeat(comes, block_q, axis=1)[:, :seq_q])
