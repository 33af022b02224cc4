"""O and the log-sum-exp on Hopper: TMA, wgmma, warp specialisation (Pallas Mosaic GPU).

One thread block computes `block_q` rows of one head. Its warpgroups have one
role each:

    memory     Q; then for each block of keys that the rows see:
                 wait until a stage of K is free (`empty`), TMA into it (`full`);
                 the same with V, in a ring of its own
    consumer   of block_q / consumers rows each; for each block of keys:
                 wait for K, wgmma: scores in registers; let go of K
                 mask, only on boundary blocks; the online softmax
                 wait for V, wgmma with the weights as its left operand, in
                   registers; let go of V
               and in the end O, by way of Q's shared memory, and L

Two consumers take turns: one's exponentials run under the other's products.
They meet twice a step, after the scores' product is issued and before the
values', and one is half a step behind.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from hw_profiles import AttentionConfig
from hw_profiles.capacity.warpgroups import PRODUCER_REGISTERS, consumer_registers
from pallas_kernels import compat
from pallas_kernels.attention import schedule, softmax
from pallas_kernels.attention.masks import Band
from pallas_kernels.attention.operands import Sizes
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.attention.schedule import Region, TileOrder, Walk
from pallas_kernels.attention.softmax import LogitRule, SoftmaxState
from pallas_kernels.hopper.ring import StageRing
from pallas_kernels.hopper.store import finish_stores


@dataclasses.dataclass(frozen=True)
class Geometry:
  """Static facts of one kernel instance.

  Attributes:
    rule: What is computed.
    sizes: Of the attention, as it was given.
    head_dim: Head size of Q and K as they are stored.
    value_dim: Head size of V and O as they are stored.
    config: The tile.
    consumers: Consumer warpgroups.
    order: The order of the tiles.
  """

  rule: AttentionRule
  sizes: Sizes
  head_dim: int
  value_dim: int
  config: AttentionConfig
  consumers: int
  order: TileOrder

  @property
  def rows(self) -> int:
    """Rows of a consumer."""
    return self.config.block_q // self.consumers

  @property
  def logits(self) -> LogitRule:
    """From dot products to logits."""
    return self.rule.logits(has_bias=False)

  @property
  def band(self) -> Band:
    """What queries see."""
    return self.rule.band.of(seq_q=self.sizes.seq_q, seq_kv=self.sizes.seq_kv)

  def regions(self, first_query: Any) -> tuple[Region, ...]:
    """Blocks of keys that a tile walks; all its consumers walk the same."""
    config = self.config
    blocks = self.band.key_blocks(first_query, block_q=config.block_q, block_kv=config.block_kv)
    walk = Walk.create(
      block=config.block_kv, extent=self.sizes.seq_kv, has_lengths=False, all_masked=False
    )
    return walk.regions(self.band, blocks)


@dataclasses.dataclass(frozen=True)
class Refs:
  """The kernel's references, by what they are.

  Attributes:
    query, key, value: [batch or 1, length, heads, head size] in global memory.
    out: [batch, T, N, head size of V] in global memory.
    residual: [batch, N, T] in global memory.
    q: [consumers, rows, head size] in shared memory.
    o: [consumers, rows, head size of V], the same memory.
    numbers: [consumers, rows], residuals on their way out.
    k: [stages, block_kv, head size].
    v: [stages, block_kv, head size of V].
    q_full: Barriers of `q`.
    k_ring, v_ring: `full` and `empty` of the stages.
    meeting: Where two consumers meet; None for another number.
  """

  query: Any
  key: Any
  value: Any
  out: Any
  residual: Any
  q: Any
  o: Any
  numbers: Any
  k: Any
  v: Any
  q_full: Any
  k_ring: tuple[Any, Any]
  v_ring: tuple[Any, Any]
  meeting: Any = None


def _at_batch(ref: Any, batch: Any) -> Any:
  return ref.at[0 if ref.shape[0] == 1 else batch]


def body(*flat: Any, refs_of: Callable[..., Refs], geometry: Geometry, interpreted: bool) -> None:
  """What every warpgroup of every thread block runs."""
  refs = refs_of(*flat)
  stages = geometry.config.num_stages
  k_ring, v_ring = (StageRing(stages, *x) for x in (refs.k_ring, refs.v_ring))
  tile = geometry.order.tile(lax.axis_index("tile"))
  first_query = tile.block * geometry.config.block_q
  regions = geometry.regions(first_query)
  first, end = regions[0].first, regions[-1].end
  lax.cond(
    lax.axis_index("warpgroup") == geometry.consumers,
    lambda: _memory(refs, k_ring, v_ring, geometry, tile, first, end),
    lambda: _consumer(refs, k_ring, v_ring, geometry, tile, regions, interpreted=interpreted),
  )


def _memory(
  refs: Refs,
  k_ring: StageRing,
  v_ring: StageRing,
  geometry: Geometry,
  tile: schedule.Tile,
  first: Any,
  end: Any,
) -> None:
  """The memory warpgroup: Q, then every block of K and V as soon as there is room."""
  plgpu.set_max_registers(PRODUCER_REGISTERS, action="decrease")
  config, rows = geometry.config, geometry.rows
  query = _at_batch(refs.query, tile.batch)
  for consumer in range(geometry.consumers):
    start = tile.block * config.block_q + consumer * rows
    plgpu.copy_gmem_to_smem(
      query.at[pl.ds(start, rows), tile.head], refs.q.at[consumer], refs.q_full.at[consumer]
    )
  head = tile.head // geometry.sizes.group

  def load(block: Any, _: None) -> None:
    keys = pl.ds(block * config.block_kv, config.block_kv)
    for ring, source, stages in ((k_ring, refs.key, refs.k), (v_ring, refs.value, refs.v)):
      window = _at_batch(source, tile.batch).at[keys, head]

      def copy(stage: Any, arrived: Any, window: Any = window, stages: Any = stages) -> None:
        plgpu.copy_gmem_to_smem(window, stages.at[stage], arrived)

      ring.fill(block - first, copy)

  lax.fori_loop(first, end, load, None)
  k_ring.drain(end - first)
  v_ring.drain(end - first)


def _consumer(
  refs: Refs,
  k_ring: StageRing,
  v_ring: StageRing,
  geometry: Geometry,
  tile: schedule.Tile,
  regions: tuple[Region, ...],
  *,
  interpreted: bool,
) -> None:
  """A consumer warpgroup: its rows of the tile."""
  plgpu.set_max_registers(consumer_registers(geometry.consumers), action="increase")
  config, rows, logits = geometry.config, geometry.rows, geometry.logits
  warpgroup = lax.axis_index("warpgroup")
  row = tile.block * config.block_q + warpgroup * rows
  dtype = refs.query.dtype

  def meet() -> None:
    if refs.meeting is not None:
      plgpu.barrier_arrive(refs.meeting)
      plgpu.barrier_wait(refs.meeting)

  def dots(step: Any) -> jax.Array:
    def multiply(acc: Any) -> jax.Array:
      stage = k_ring.wait(step)
      plgpu.wgmma(acc, refs.q.at[warpgroup], compat.transposed_ref(refs.k.at[stage]))
      meet()
      return acc[...]

    found = pl.run_scoped(multiply, plgpu.ACC((rows, config.block_kv), jnp.float32))
    # Mosaic's wait names no registers: without this LLVM may read them before it
    found = lax.optimization_barrier(found)
    k_ring.release(step)
    return found

  def add_values(out: jax.Array, weights: jax.Array, step: Any) -> jax.Array:
    def multiply(acc: Any) -> None:
      stage = v_ring.wait(step)
      plgpu.wgmma(acc, weights, refs.v.at[stage])

    if interpreted:
      # the interpreter's wgmma takes operands in shared memory only
      values = refs.v[v_ring.wait(step)]
      summed = out + jnp.dot(weights, values, preferred_element_type=jnp.float32)
      # ordinary reads come before TMA's next write to the stage
      plgpu.commit_smem()
    else:
      summed = lax.optimization_barrier(pl.run_state(multiply)(plgpu.ACC.init(out)))
    v_ring.release(step)
    return summed

  def visit(block: Any, state: SoftmaxState, masked: bool) -> SoftmaxState:
    step = block - regions[0].first
    scores = logits.scores(dots(step))
    if masked:
      scores = _masked(scores, geometry, row, block * config.block_kv)
    peak, total, weights, fade = softmax.reweigh(
      state.peak, state.total, scores, exponent=logits.exponent
    )
    out = state.out * softmax.along_columns(fade, state.out.shape)
    rounded = weights.astype(dtype)
    if refs.meeting is not None:
      # all of the softmax comes before the other's turn
      out, total, peak, rounded = lax.optimization_barrier((out, total, peak, rounded))
      meet()
    return SoftmaxState(peak, total, add_values(out, rounded, step))

  state = softmax.start(rows, geometry.value_dim)
  if not interpreted:
    # the interpreter has no layouts
    by_row = plgpu.Layout.WGMMA.reduce(1)
    state = SoftmaxState(
      plgpu.layout_cast(state.peak, by_row),
      plgpu.layout_cast(state.total, by_row),
      plgpu.layout_cast(state.out, plgpu.Layout.WGMMA),
    )
  plgpu.barrier_wait(refs.q_full.at[warpgroup])
  pl.when(warpgroup == 1)(meet)
  state = schedule.walk(regions, visit, state)
  pl.when(warpgroup == 0)(meet)

  out, residual = softmax.finish(state)
  refs.o[warpgroup] = out.astype(dtype)
  refs.numbers[warpgroup] = residual
  plgpu.commit_smem()
  window = pl.ds(row, rows)
  plgpu.copy_smem_to_gmem(refs.o.at[warpgroup], refs.out.at[tile.batch, window, tile.head])
  plgpu.copy_smem_to_gmem(
    refs.numbers.at[warpgroup], refs.residual.at[tile.batch, tile.head, window]
  )
  finish_stores()


def _masked(scores: jax.Array, geometry: Geometry, row: Any, first_key: Any) -> jax.Array:
  """-inf where a key is not visible."""
  keys = lax.broadcasted_iota(jnp.int32, scores.shape, 1)
  least, largest = geometry.band.offsets()
  seen = None
  if geometry.sizes.seq_kv % geometry.config.block_kv:
    seen = keys < geometry.sizes.seq_kv - first_key
  if least is not None or largest is not None:
    offsets = keys - lax.broadcasted_iota(jnp.int32, scores.shape, 0)
    # of the block's first key from the rows' first query
    base = first_key - row
    for inside in (
      None if least is None else offsets >= least - base,
      None if largest is None else offsets <= largest - base,
    ):
      if inside is not None:
        seen = inside if seen is None else seen & inside
  return scores if seen is None else jnp.where(seen, scores, jnp.full_like(scores, -jnp.inf))
