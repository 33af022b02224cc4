"""The Hopper attention's launch: operands, layouts, scratch memory, grid. See `hopper_kernel`."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from hw_profiles import AttentionConfig
from hw_profiles.attention.warp_specialized import consumers_of
from pallas_kernels import sharding
from pallas_kernels.attention import intervals, schedule
from pallas_kernels.attention.hopper_geometry import Geometry
from pallas_kernels.attention.hopper_kernel import Refs, Stored, body
from pallas_kernels.attention.hopper_layout import ROWS, PanelLayout, needs_rows, pad_operands
from pallas_kernels.attention.operands import AttentionOperands
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.attention.schedule import TileOrder
from pallas_kernels.hopper.ring import StageRing


class HopperResult(NamedTuple):
  """What the kernel makes.

  Attributes:
    out: [batch, T, N, Hv] in the query's dtype.
    residual: float32 [batch, N, T].
    doubt: float32 [batch, N, T]: NaN for a row with an infinity or NaN in `out`,
      else 0; None where every query sees all keys. The kernel multiplies values
      that a row does not see by a weight of 0, which is not enough for those
      that are not finite. NaN, too, for a sequence with a segment id in more
      than one run.
  """

  out: jax.Array
  residual: jax.Array
  doubt: jax.Array | None = None


def attention(
  rule: AttentionRule,
  operands: AttentionOperands,
  *,
  config: AttentionConfig,
  num_ctas: int,
  interpret: Any = None,
) -> HopperResult:
  """The attention, and where to doubt it.

  Args:
    rule: What is computed.
    operands: bfloat16 or float16 query, key and value; sizes at least 1.
    config: A tile that `hw_profiles.plan` says fits.
    num_ctas: Thread blocks to launch at most; one per SM.
    interpret: None to compile, or the interpreter's parameters.
  """
  sizes = operands.sizes
  dtype = operands.query.dtype
  consumers = consumers_of(config.block_q, config.num_consumer_warpgroups)
  interpreted = interpret is not None
  by_rows = needs_rows(sizes.seq_q, sizes.seq_kv)
  visible = None
  if intervals.are_needed(operands):
    visible = intervals.of_queries(rule.band, operands, interpret=interpreted)
  # the interpreter copies by tiles
  operands = pad_operands(operands, rows=ROWS if interpreted else 1)
  stored = operands.sizes
  row_bytes = (stored.head_dim + stored.value_dim) * dtype.itemsize
  heads = PanelLayout.create(stored.head_dim, dtype, by_rows=by_rows)
  values = PanelLayout.create(stored.value_dim, dtype, by_rows=by_rows, depth=config.block_kv)
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
    blocks=min(num_ctas, sizes.batch * sizes.heads * pl.cdiv(sizes.seq_q, config.block_q)),
    head_panels=heads.panels,
    value_panels=values.panels,
  )
  rows = geometry.rows
  stages = config.num_stages
  k_ring, v_ring = (
    StageRing.barriers(num_stages=stages, copies=one.panels, consumers=consumers)
    for one in (heads, values)
  )

  vector = sharding.out_struct(
    # whole tiles: a copy of one dimension is not clipped at the end of its row, it
    # writes on into the next one
    (sizes.batch, sizes.heads, sizes.seq_q + -sizes.seq_q % config.block_q),
    jnp.float32,
    operands.query,
  )
  vector_types = (vector,) if rule.band.is_open and visible is None else (vector, vector)
  sight: tuple[jax.Array, ...] = ()
  agenda = jnp.asarray(geometry.agenda())
  if visible is not None:
    # what rows past the last one compute is dropped
    walks = intervals.walks(
      visible.seen, block=config.block_q, other_block=config.block_kv, whole=False
    )
    sight = (walks.table, *intervals.in_whole_blocks(visible.seen, config.block_q))
    agenda = schedule.dealt_agenda(
      # a tile that sees nothing walks a block; and its ends take as long as one
      jnp.maximum(walks.end - walks.first, 1) + 1,
      geometry.order,
      blocks=geometry.blocks,
    )

  def refs_of(*flat: Any) -> Refs:
    looks, flat = flat[4 : 4 + len(sight)], (*flat[:4], *flat[4 + len(sight) :])
    inputs, out, vectors = flat[:4], flat[4], flat[5 : 5 + len(vector_types)]
    (q, o, numbers, k, v), rest = flat[5 + len(vectors) :][:5], flat[10 + len(vectors) :]
    # two references to one memory, or one for both
    united = by_rows and not interpreted
    q, k, v = (Stored(*x) if united else Stored(x, x) for x in (q, k, v))
    refs: list[Any] = [*inputs, out, vectors, q, o, numbers, k, v, *rest]
    how = {"walks": looks[0], "seen": looks[1:]} if looks else {}
    return Refs(*refs, **how)

  kernel = plgpu.kernel(
    functools.partial(body, refs_of=refs_of, geometry=geometry, interpreted=interpreted),
    out_type=(
      sharding.out_struct(
        (sizes.batch, stored.seq_q, sizes.heads, stored.value_dim), dtype, operands.query
      ),
      *vector_types,
    ),
    scratch_types=[
      heads.scratch(consumers, rows, dtype, interpreted=interpreted),
      plgpu.SMEM(
        (consumers, values.panels, rows, values.columns),
        dtype,
        # O lies in the panels that the products of V's are summed in
        transforms=values.tiles if interpreted else values.landing or values.tiles,
      ),
      plgpu.SMEM((len(vector_types), consumers, rows), jnp.float32),
      heads.scratch(stages, config.block_kv, dtype, interpreted=interpreted),
      values.scratch(stages, config.block_kv, dtype, interpreted=interpreted),
      plgpu.Barrier(num_barriers=consumers, num_arrivals=heads.panels),
      plgpu.Barrier(num_barriers=consumers),
      k_ring,
      v_ring,
      *([plgpu.Barrier(num_barriers=consumers)] if geometry.takes_turns else []),
    ],
    grid=(geometry.blocks,),
    grid_names=("block",),
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
  out, *vectors = kernel(agenda, operands.query, operands.key, operands.value, *sight)
  residual, *doubt = (x[:, :, : sizes.seq_q] for x in vectors)
  if visible is not None and visible.exact is not None:
    doubt = [intervals.in_doubt_unless(visible.exact, x) for x in doubt]
  return HopperResult(out[:, : sizes.seq_q, :, : sizes.value_dim], residual, *doubt)
