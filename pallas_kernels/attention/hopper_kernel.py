"""O and the log-sum-exp on Hopper: TMA, wgmma, warp specialisation (Pallas Mosaic GPU).

Each thread block computes tiles of `block_q` rows of one head, one after the
other. Its warpgroups have one role each:

    memory     for each tile Q, as soon as the one before is done with it; then
               for each block of keys that the rows see:
                 wait until a stage of K is free (`empty`), TMA into it (`full`);
                 the same with V, in a ring of its own
    consumer   of block_q / consumers rows each; for each block of keys:
                 issue the product of its scores, and the one of the values of
                   the block before with that block's weights
                 where it pays, add up those weights (`sums_late`)
                 wait for the scores; let go of K
                 mask, only on boundary blocks; the online softmax
                 wait for the values; let go of V
               and in the end O and L through shared memory, which TMA stores
               while the next tile is computed

What rows see is the band of the call, known when traced, or, with lengths or
segment ids, an interval a row that is computed before (`intervals`).

So a consumer's exponentials run under its own products, and where consumers
take turns at issuing, under each other's. Walks of a ring are counted across
tiles: the memory warpgroup does not stop at their borders.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from hw_profiles.capacity.warpgroups import PRODUCER_REGISTERS, consumer_registers
from pallas_kernels import compat
from pallas_kernels.attention import schedule, softmax
from pallas_kernels.attention.hopper_columns import columns_before, columns_from, visible_columns
from pallas_kernels.attention.hopper_geometry import Geometry
from pallas_kernels.attention.schedule import Region
from pallas_kernels.attention.softmax import SoftmaxState
from pallas_kernels.hopper.ring import StageRing
from pallas_kernels.hopper.store import finish_stores
from pallas_kernels.portable_support import batch_index

Panels = tuple[jax.Array, ...]


class Stored(NamedTuple):
  """One memory, as copies land in it and as wgmma reads it."""

  landing: Any
  tiles: Any


@dataclasses.dataclass(frozen=True)
class Refs:
  """The kernel's references, by what they are.

  Attributes:
    agenda: [1 + rounds, blocks], int32: `schedule.agenda`.
    query, key, value: [batch or 1, length, heads, head size] in global memory.
    out: [batch, T, N, head size of V] in global memory.
    vectors: The residual, and `HopperResult.doubt` where it is made; [batch, N, T] in global
      memory.
    q: [consumers, panels, rows, columns] in shared memory.
    o: [consumers, panels, rows, columns].
    numbers: [vectors, consumers, rows], those on their way out.
    k: [stages, panels, block_kv, columns].
    v: [stages, panels, block_kv, columns].
    q_full, q_empty: Barriers of `q`.
    k_ring, v_ring: `full` and `empty` of the stages.
    turns: A barrier for each consumer: its turn to issue products. None where they take none.
    walks: int32 [b, blocks of rows, 4] in global memory, `intervals.Walks`; None: the
      band says it.
    seen: int32 [b, rows of whole tiles], two of them in global memory, `intervals.Intervals`
      of the rows.
  """

  agenda: Any
  query: Any
  key: Any
  value: Any
  out: Any
  vectors: tuple[Any, ...]
  q: Stored
  o: Any
  numbers: Any
  k: Stored
  v: Stored
  q_full: Any
  q_empty: Any
  k_ring: tuple[Any, Any]
  v_ring: tuple[Any, Any]
  turns: Any = None
  walks: Any = None
  seen: tuple[Any, ...] = ()


def body(*flat: Any, refs_of: Callable[..., Refs], geometry: Geometry, interpreted: bool) -> None:
  """What every warpgroup of every thread block runs."""
  refs = refs_of(*flat)
  stages = geometry.config.num_stages
  k_ring, v_ring = (StageRing(stages, *x) for x in (refs.k_ring, refs.v_ring))
  lax.cond(
    lax.axis_index("warpgroup") == geometry.consumers,
    lambda: _memory(refs, k_ring, v_ring, geometry),
    lambda: _consumer(refs, k_ring, v_ring, geometry, interpreted=interpreted),
  )


def _tile(refs: Refs, geometry: Geometry, i: Any) -> schedule.Tile:
  """The i-th tile of this thread block."""
  return geometry.order.tile(refs.agenda[i + 1, lax.axis_index("block")])


def _rounds(refs: Refs) -> Any:
  """Tiles of this thread block."""
  return refs.agenda[0, lax.axis_index("block")]


def _panels(ref: Any) -> tuple[tuple[int, Any], ...]:
  """The panels of [panels, rows, columns], each with its columns in the whole array."""
  panels, _, columns = ref.shape
  return tuple((panel, pl.ds(panel * columns, columns)) for panel in range(panels))


def _copy_panels(source: Any, landing: Any, arrived: Any) -> None:
  """Every panel of [rows, columns] by a copy of its own."""
  for panel, columns in _panels(landing):
    plgpu.copy_gmem_to_smem(source.at[:, columns], landing.at[panel], arrived)


def _memory(refs: Refs, k_ring: StageRing, v_ring: StageRing, geometry: Geometry) -> None:
  """The memory warpgroup: Q, then every block of K and V as soon as there is room."""
  plgpu.set_max_registers(PRODUCER_REGISTERS, action="decrease")
  config, rows = geometry.config, geometry.rows

  def load_tile(i: Any, steps: Any) -> Any:
    tile = _tile(refs, geometry, i)
    first, end, _ = geometry.regions(tile, refs.walks)
    query = refs.query.at[batch_index(refs.query, tile.batch)]
    head = tile.head // geometry.sizes.group

    def load(ring: StageRing, source: Any, stages: Stored, block: Any) -> None:
      keys = pl.ds(block * config.block_kv, config.block_kv)

      def copy(stage: Any, arrived: Any) -> None:
        window = source.at[batch_index(source, tile.batch)].at[keys, head]
        _copy_panels(window, stages.landing.at[stage], arrived)

      ring.fill(steps + block - first, copy)

    for consumer in range(geometry.consumers):
      start = tile.block * config.block_q + consumer * rows

      @pl.when(i > 0)
      def _wait_until_released(consumer: int = consumer) -> None:
        plgpu.barrier_wait(refs.q_empty.at[consumer])

      _copy_panels(
        query.at[pl.ds(start, rows), tile.head],
        refs.q.landing.at[consumer],
        refs.q_full.at[consumer],
      )

    def load_pair(block: Any, _: None) -> None:
      load(k_ring, refs.key, refs.k, block)
      load(v_ring, refs.value, refs.v, block)

    lax.fori_loop(first, end, load_pair, None)
    return steps + end - first

  rounds = _rounds(refs)
  steps = lax.fori_loop(jnp.int32(0), rounds, load_tile, jnp.int32(0))
  k_ring.drain(steps)
  v_ring.drain(steps)
  for consumer in range(geometry.consumers):
    plgpu.barrier_wait(refs.q_empty.at[consumer])


class _Rows(NamedTuple):
  """A consumer's rows of a tile.

  Attributes:
    first: The first of them.
    seen: First key that each sees, and one past the last; none where the band says it.
  """

  first: Any
  seen: tuple[jax.Array, ...]


class _Carry(NamedTuple):
  """A softmax state without the values of the last block, and that block's weights.

  Attributes:
    peak: As in `SoftmaxState`.
    total: As there; without what is `unsummed`.
    outs: As there, in panels.
    weights: The last block's, as the product takes them.
    unsummed: The same in float32 where they are added up late, else none.
  """

  peak: jax.Array
  total: jax.Array
  outs: Panels
  weights: jax.Array
  unsummed: tuple[jax.Array, ...]


def _consumer(
  refs: Refs, k_ring: StageRing, v_ring: StageRing, geometry: Geometry, *, interpreted: bool
) -> None:
  """A consumer warpgroup: its rows of the tile."""
  plgpu.set_max_registers(consumer_registers(geometry.consumers), action="increase")
  config, rows, logits = geometry.config, geometry.rows, geometry.logits
  warpgroup = lax.axis_index("warpgroup")
  dtype = refs.query.dtype
  consumers = geometry.consumers
  turns = refs.turns

  def await_turn() -> None:
    if turns is not None:
      plgpu.barrier_wait(turns.at[warpgroup])

  def end_turn() -> None:
    if turns is not None:
      plgpu.barrier_arrive(turns.at[lax.rem(warpgroup + 1, jnp.int32(consumers))])

  def issue_scores(acc: Any, stage: Any) -> None:
    for panel in range(geometry.head_panels):
      keys = compat.transposed_ref(refs.k.tiles.at[stage, panel])
      plgpu.wgmma(acc, refs.q.tiles.at[warpgroup, panel], keys)

  def issue_values(accs: Any, weights: jax.Array, stage: Any) -> None:
    for panel, acc in enumerate(accs):
      plgpu.wgmma(acc, weights, refs.v.tiles.at[stage, panel])

  def settle(found: jax.Array) -> jax.Array:
    # Mosaic's wait names no registers: without this LLVM may read them before it
    return lax.optimization_barrier(found)

  # late sums: keys and values are waited for where they are no wait any more, once each
  early = geometry.sums_late and not interpreted

  def await_next_keys(step: Any, end: Any) -> None:
    """Those of the next block of `end` steps.

    ptxas moves the wait for products before what is computed beside them, unless a
    loop lies between, as this one does, and that of the values after their issue.
    """
    if early:

      @pl.when(step + 1 < end)
      def _await_keys() -> None:
        k_ring.wait(step + 1)

  def await_next_values(step: Any) -> None:
    """Those that are multiplied in the step after `step`."""
    if early:
      v_ring.wait(step)

  def keys_of(step: Any) -> Any:
    return k_ring.stage(step) if early else k_ring.wait(step)

  def values_of(step: Any) -> Any:
    return v_ring.stage(step) if early else v_ring.wait(step)

  def late(weights: jax.Array) -> tuple[jax.Array, ...]:
    return (weights,) if geometry.sums_late else ()

  def with_sums(total: jax.Array, unsummed: tuple[jax.Array, ...]) -> jax.Array:
    return sum((jnp.sum(weights, axis=1) for weights in unsummed), start=total)

  def dots(step: Any, keys_of: Callable[[Any], Any]) -> jax.Array:
    def multiply(acc: Any) -> jax.Array:
      issue_scores(acc, keys_of(step))
      return acc[...]

    found = settle(pl.run_scoped(multiply, plgpu.ACC((rows, config.block_kv), jnp.float32)))
    k_ring.release(step)
    return found

  def interpreted_values(outs: Panels, weights: jax.Array, step: Any) -> Panels:
    # the interpreter's wgmma takes operands in shared memory only
    stage = v_ring.wait(step)
    summed = tuple(
      out + jnp.dot(weights, refs.v.tiles[stage, panel], preferred_element_type=jnp.float32)
      for panel, out in enumerate(outs)
    )
    # ordinary reads come before TMA's next write to the stage
    plgpu.commit_smem()
    v_ring.release(step)
    return summed

  def add_values(outs: Panels, weights: jax.Array, step: Any) -> Panels:
    if interpreted:
      return interpreted_values(outs, weights, step)

    def multiply(accs: Any) -> None:
      issue_values(accs, weights, values_of(step))

    summed = pl.run_state(multiply)(tuple(map(plgpu.ACC.init, outs)))
    summed = lax.optimization_barrier(summed)
    v_ring.release(step)
    return summed

  def weigh(
    dots: jax.Array, peak: jax.Array, total: jax.Array, row: _Rows, block: Any, masked: bool
  ) -> softmax.Reweighed:
    scores = logits.scores(dots)
    if masked:
      scores = _masked(scores, geometry, row, block * config.block_kv)
    return softmax.reweigh(
      peak, total, scores, exponent=logits.exponent, sums=not geometry.sums_late
    )

  def as_scores(x: jax.Array) -> jax.Array:
    """`x` as a wgmma holds it; the interpreter has no layouts."""
    return x if interpreted else plgpu.layout_cast(x, plgpu.Layout.WGMMA)

  def start_tile(row: _Rows, block: Any, step: Any, end: Any) -> _Carry:
    width = geometry.value_dim // geometry.value_panels
    peak, total, out = softmax.start(rows, width)
    if not interpreted:
      by_row = plgpu.Layout.WGMMA.reduce(1)
      peak, total = (plgpu.layout_cast(x, by_row) for x in (peak, total))
    found = dots(step, k_ring.wait)
    await_next_keys(step, end)
    await_next_values(step)
    peak, total, weights, _ = weigh(found, peak, total, row, block, True)
    outs = (as_scores(out),) * geometry.value_panels
    return _Carry(peak, total, outs, settle(weights.astype(dtype)), late(weights))

  def visit(carry: _Carry, row: _Rows, block: Any, step: Any, end: Any, masked: bool) -> _Carry:
    """Scores of `block` while the values of the one before are added."""
    peak, total, outs, weights, unsummed = carry
    if interpreted:
      total = with_sums(total, unsummed)
      await_turn()
      found = dots(step, keys_of)
      end_turn()
      peak, total, new_weights, fade = weigh(found, peak, total, row, block, masked)
      outs = interpreted_values(outs, weights, step - 1)
      unsummed, new_weights = late(new_weights), new_weights.astype(dtype)
    else:
      # before any product is issued: what writes a wgmma's registers between the
      # first and the wait makes the compiler run them one by one
      def both(states: Any) -> None:
        out_accs, others = states
        k_stage, v_stage = keys_of(step), values_of(step - 1)
        await_turn()

        def with_scores(s_acc: Any) -> softmax.Reweighed:
          issue_scores(s_acc, k_stage)
          issue_values(out_accs, weights, v_stage)
          end_turn()
          await_next_values(step)
          # ahead of the wait for the scores
          summed = settle(with_sums(total, tuple(map(settle, unsummed))))
          found = settle(plgpu.wgmma_accumulator_load(s_acc, wait_n=geometry.value_panels))
          k_ring.release(step)
          return weigh(found, peak, summed, row, block, masked)

        reweighed = pl.run_scoped(with_scores, plgpu.ACC((rows, config.block_kv), jnp.float32))
        if early:
          reweighed = softmax.Reweighed(*lax.optimization_barrier(tuple(reweighed)))
          await_next_keys(step, end)
        for ref, value in zip(others, reweighed, strict=True):
          ref[...] = value

      nothing = as_scores(jnp.zeros((rows, config.block_kv), jnp.float32))
      outs, (peak, total, new_weights, fade) = pl.run_state(both)(
        (tuple(map(plgpu.ACC.init, outs)), (peak, total, nothing, peak))
      )
      outs, new_weights = lax.optimization_barrier((outs, new_weights))
      unsummed, new_weights = late(new_weights), settle(new_weights.astype(dtype))
      v_ring.release(step - 1)
    outs = tuple(out * softmax.along_columns(fade, out.shape) for out in outs)
    return _Carry(peak, total, outs, new_weights, unsummed)

  def compute_tile(i: Any, steps: Any) -> Any:
    tile = _tile(refs, geometry, i)
    first, end, regions = geometry.regions(tile, refs.walks)
    row = tile.block * config.block_q + warpgroup * rows
    seen = tuple(
      compat.load_elementwise(
        ends.at[batch_index(ends, tile.batch)].at[pl.ds(row, rows)], interpreted=interpreted
      )
      for ends in refs.seen
    )
    plgpu.barrier_wait(refs.q_full.at[warpgroup])
    rows_at = _Rows(row, seen)
    carry = start_tile(rows_at, first, steps, steps + end - first)
    rest = tuple(
      Region(jnp.maximum(region.first, first + 1), region.end, region.masked) for region in regions
    )

    def one(block: Any, carry: _Carry, masked: bool) -> _Carry:
      return visit(carry, rows_at, block, steps + block - first, steps + end - first, masked)

    peak, total, outs, weights, unsummed = schedule.walk(rest, one, carry)
    total = with_sums(total, unsummed)
    plgpu.barrier_arrive(refs.q_empty.at[warpgroup])
    steps = steps + end - first
    outs = add_values(outs, weights, steps - 1)
    # the slots are free once the stores of the tile before have read them
    finish_stores()
    doubt = jnp.zeros_like(total)
    for panel, out in enumerate(outs):
      found, residual = softmax.finish(SoftmaxState(peak, total, out))
      refs.o[warpgroup, panel] = found.astype(dtype)
      doubt = doubt + jnp.sum(found * 0.0, axis=1)
    for slot, value in enumerate((residual, doubt)[: len(refs.vectors)]):
      refs.numbers[slot, warpgroup] = value
    plgpu.commit_smem()
    window = pl.ds(row, rows)
    for panel, columns in _panels(refs.o.at[warpgroup]):
      plgpu.copy_smem_to_gmem(
        refs.o.at[warpgroup, panel], refs.out.at[tile.batch, window, tile.head, columns]
      )
    for slot, vector in enumerate(refs.vectors):
      plgpu.copy_smem_to_gmem(
        refs.numbers.at[slot, warpgroup], vector.at[tile.batch, tile.head, window]
      )
    return steps

  if turns is not None:
    pl.when(warpgroup == consumers - 1)(end_turn)
  lax.fori_loop(jnp.int32(0), _rounds(refs), compute_tile, jnp.int32(0))
  if turns is not None:
    pl.when(warpgroup == 0)(await_turn)
  finish_stores()


def _masked(scores: jax.Array, geometry: Geometry, rows: _Rows, first_key: Any) -> jax.Array:
  """-inf where a key is not visible."""
  seen = (
    visible_columns(scores.shape, *(ends - first_key for ends in rows.seen))
    if rows.seen
    else _in_band(scores.shape, geometry, rows.first, first_key)
  )
  return scores if seen is None else jnp.where(seen, scores, jnp.full_like(scores, -jnp.inf))


def _in_band(
  shape: tuple[int, ...], geometry: Geometry, row: Any, first_key: Any
) -> jax.Array | None:
  """Whether keys from `first_key` on are visible to queries from `row` on; None: all are."""
  query = lax.broadcasted_iota(jnp.int32, shape, 0)
  least, largest = geometry.band.offsets()
  # of the block's first key from the rows' first query
  base = first_key - row
  seen = []
  if geometry.sizes.seq_kv % geometry.config.block_kv:
    seen.append(columns_before(shape, geometry.sizes.seq_kv - first_key))
  if least is not None:
    seen.append(columns_from(shape, query + (least - base)))
  if largest is not None:
    seen.append(columns_before(shape, query + (largest - base + 1)))
  return functools.reduce(lax.bitwise_and, seen) if seen else None
