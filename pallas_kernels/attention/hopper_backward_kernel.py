"""dQ, dK and dV on Hopper in one kernel: TMA, wgmma, warp specialisation (Pallas Mosaic GPU).

With P the probabilities, computed again from the log-sum-exp L, and dZ the
gradient of scale·Q·Kᵀ:

    dP = dO·Vᵀ,    dZ = P ⊙ (dP - delta)·slope
    dV = Pᵀ·dO,    dK = scale·dZᵀ·Q,    dQ = scale·dZ·K

One thread block keeps `block_kv` rows of K and V of one key head and walks the
queries that see them, each block of every head of the group: five products a
step. Its warpgroups have one role each:

    memory     K and V; then for each step Q, L and dO, delta through two rings,
               and the step's part of dQ from shared memory to global memory
    consumer   of 64 keys each; for each step
                 Sᵀ = K·Qᵀ and dPᵀ = V·dOᵀ in registers; Pᵀ; dV += Pᵀ·dO
                 dZᵀ, to shared memory, too
                 once all have: its columns of dZ·K of the tile, or in its turn all
                 dK += dZᵀ·Q, and meanwhile dZ·K to shared memory
               and in the end dK and dV, by way of K's and V's shared memory

Scores are [keys, queries], so that Pᵀ and dZᵀ are left operands in registers.
dQ of a block of queries is a sum over thread blocks: each adds its part to a
float32 array by TMA when those before it have added theirs, which a counter in
global memory tells, so that the sum has one order and its bits do not change.
The first one stores instead. Those before it have lower numbers: they are on
the device by then, and are not waited for in vain. There are two orders:

    late queries first    after tiles of earlier keys. Tiles of one length start
                          together, wait once for the one before, and stay a
                          moment behind it
    early queries first   after tiles of later keys, which are the shorter ones
                          under a causal mask and have lower numbers. Each starts
                          where it is the first, and none waits; but the longest
                          tile starts last, which costs nothing where all tiles
                          run at once

In one or two loops (`Geometry.is_lean`) warpgroups meet at barriers of rings
only: none of Mosaic's own is needed in a step (six of each consumer), by the
rules of `hopper.fence`. What a consumer writes, dZ and dQ, products and copies
read, each told by its ring; Q's and dO's numbers, which it reads, TMA writes;
K's and V's memory takes dK and dV when the last part of dQ was made, which all
threads that read K or V have come before. Without them, and with accumulators
that need no zeros first, the kernel takes 4.63 to 4.68 ms in place of 5.09 at
2 x 8192, 16 heads of 128, every key seen; 0.715 for 0.776 at 8 x 2048, causal;
3.18 for 3.34 with 32 heads of 64, causal (H200).

The heads of a group are the inner loop: were they the outer one, a tile that
few queries see would wait at its second head until the longest walk of the
first is done.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from hw_profiles.attention.warp_specialized import WGMMA_ROWS
from hw_profiles.capacity.warpgroups import FEWEST_REGISTERS, consumer_registers
from pallas_kernels import compat
from pallas_kernels.attention import softmax
from pallas_kernels.attention.hopper_backward_geometry import Geometry
from pallas_kernels.attention.hopper_columns import columns_before, columns_from, visible_columns
from pallas_kernels.attention.schedule import Region, Tile
from pallas_kernels.hopper.fence import fence_smem
from pallas_kernels.hopper.ring import StageRing
from pallas_kernels.hopper.store import finish_stores
from pallas_kernels.portable_support import batch_index


@dataclasses.dataclass(frozen=True)
class Refs:
  """The kernel's references, by what they are.

  Attributes:
    query, key, value, d_out: [batch or 1, length, heads, head size] in global memory.
    stored: [batch, N, T], `softmax.stored_exponent` of L, in global memory.
    delta: [batch, N, T] in global memory.
    leads: int32 [blocks of queries], the tile of keys that stores dQ of each, before others add;
      where `walks` are given [b, blocks of keys, blocks of queries], how many add before a tile.
    d_query: float32 [batch, T, N, head size], dQ / scale, in global memory.
    d_key, d_value: [batch, S, K, head size] in global memory.
    sight: None, or what is only known when run, in global memory: int32 [b, blocks of keys, 4],
      `intervals.Walks`, and first and end of `intervals.Intervals` of the keys of whole tiles.
    doubt: float32 [batch, K, S]: NaN for keys of which a gradient is not finite, else 0,
      in global memory; none where every query sees all keys.
    k, v: [block_kv, head size] in shared memory.
    q, d_o: [stages, block_q, head size].
    numbers: Of `stored` and of `delta`, [2, stages, block_q].
    d_z: [slots, block_kv, block_q], transposed as the scores are.
    d_q: [slots, block_q, head size], a step's part of dQ.
    doubtful: [consumers, 64], doubt on its way out.
    kv_full: Barrier of `k` and `v`.
    q_ring, d_o_ring: `full` and `empty` of the stages.
    d_z_ring, d_q_ring: The same of `d_z` and `d_q`.
    scratch: Interpreted: P of each consumer, what dQ was, and its barrier.
  """

  query: Any
  key: Any
  value: Any
  d_out: Any
  stored: Any
  delta: Any
  leads: Any
  sight: tuple[Any, ...]
  d_query: Any
  d_key: Any
  d_value: Any
  doubt: tuple[Any, ...]
  k: Any
  v: Any
  q: Any
  d_o: Any
  numbers: Any
  d_z: Any
  d_q: Any
  doubtful: Any
  kv_full: Any
  q_ring: tuple[Any, Any]
  d_o_ring: tuple[Any, Any]
  d_z_ring: tuple[Any, Any]
  d_q_ring: tuple[Any, Any]
  scratch: tuple[Any, Any, Any] | None = None


@dataclasses.dataclass(frozen=True)
class _Program:
  """One thread block: its references and what it walks."""

  refs: Refs
  geometry: Geometry
  tile: Tile
  regions: tuple[Region, ...]
  q_ring: StageRing
  d_o_ring: StageRing
  d_z_ring: StageRing
  d_q_ring: StageRing

  @property
  def first(self) -> Any:
    """The first block of queries."""
    return self.regions[0].first

  @property
  def end(self) -> Any:
    """One past the last block of queries."""
    return self.regions[-1].end

  @property
  def walk(self) -> tuple[Region, ...]:
    """The regions in the order of the walk, their blocks counted from its beginning."""
    if self.geometry.early_queries_first:
      return tuple(
        x._replace(first=x.first - self.first, end=x.end - self.first) for x in self.regions
      )
    return tuple(
      x._replace(first=self.end - x.end, end=self.end - x.first) for x in reversed(self.regions)
    )

  @property
  def steps(self) -> Any:
    """Steps of the tile."""
    return jnp.maximum(self.end - self.first, 0) * self.geometry.sizes.group

  def at(self, step: Any) -> tuple[Any, Any]:
    """Query head and block of queries of a step."""
    group = self.geometry.sizes.group
    passed = lax.div(step, jnp.int32(group))
    block = self.first + passed if self.geometry.early_queries_first else self.end - 1 - passed
    return self.tile.head * group + step - passed * group, block

  def rank(self, block: Any) -> Any:
    """How many tiles of keys add to dQ of a block of queries before this one."""
    if self.refs.sight:
      before: Any = self.batch_of(self.refs.leads)[self.tile.block, block]
      return before
    lead = self.refs.leads[block]
    return lead - self.tile.block if self.geometry.early_queries_first else self.tile.block - lead

  def batch_of(self, ref: Any) -> Any:
    """A global operand's part of this sequence."""
    return ref.at[batch_index(ref, self.tile.batch)]


def body(*flat: Any, refs_of: Callable[..., Refs], geometry: Geometry) -> None:
  """What every warpgroup of every thread block runs."""
  refs = refs_of(*flat)
  tile = geometry.order.tile(lax.axis_index("tile"))
  regions = tuple(
    Region(
      lax.convert_element_type(one.first, jnp.int32),
      lax.convert_element_type(one.end, jnp.int32),
      one.masked,
    )
    for one in geometry.regions(
      tile.block,
      refs.sight[0].at[batch_index(refs.sight[0], tile.batch)] if refs.sight else None,
    )
  )
  rings = (
    *(StageRing(geometry.num_stages, *x) for x in (refs.q_ring, refs.d_o_ring)),
    *(StageRing(geometry.slots, *x) for x in (refs.d_z_ring, refs.d_q_ring)),
  )
  program = _Program(refs, geometry, tile, regions, *rings)
  counters = None
  if refs.scratch is None:
    sizes = geometry.sizes
    blocks = pl.cdiv(sizes.seq_q, geometry.block_q)
    shape = (sizes.batch * sizes.heads * blocks,)
    counters = pl.get_global(plgpu.SemaphoreType.REGULAR(shape))
  lax.cond(
    lax.axis_index("warpgroup") == geometry.consumers,
    lambda: _memory(program, counters),
    lambda: _consumer(program),
  )


def _memory(program: _Program, counters: Any) -> None:
  """The memory warpgroup: operands as soon as there is room, and dQ as soon as it is there."""
  plgpu.set_max_registers(FEWEST_REGISTERS, action="decrease")
  refs, geometry, tile = program.refs, program.geometry, program.tile
  keys = pl.ds(tile.block * geometry.block_kv, geometry.block_kv)
  for source, target in ((refs.key, refs.k), (refs.value, refs.v)):
    plgpu.copy_gmem_to_smem(program.batch_of(source).at[keys, tile.head], target, refs.kv_full)
  stages, steps = geometry.num_stages, program.steps

  def load(step: Any) -> None:
    head, block = program.at(step)
    rows = pl.ds(block * geometry.block_q, geometry.block_q)
    for ring, source, target, numbers, slots in (
      (program.q_ring, refs.query, refs.q, refs.stored, refs.numbers.at[0]),
      (program.d_o_ring, refs.d_out, refs.d_o, refs.delta, refs.numbers.at[1]),
    ):
      window = program.batch_of(source).at[rows, head]
      vector = program.batch_of(numbers).at[head, rows]

      def copy(
        stage: Any,
        arrived: Any,
        window: Any = window,
        vector: Any = vector,
        target: Any = target,
        slots: Any = slots,
      ) -> None:
        plgpu.copy_gmem_to_smem(window, target.at[stage], arrived)
        plgpu.copy_gmem_to_smem(vector, slots.at[stage], arrived)

      ring.fill(step, copy)

  parts = _QueryParts(program, counters)

  def ahead(step: Any, _: None) -> None:
    load(step)

  def one(step: Any, _: None) -> None:
    pl.when(step + stages < steps)(lambda: load(step + stages))
    parts.add(step)
    # a write and the word of it take as long as a step: they run under the next one
    pl.when(step > 0)(lambda: parts.settle(step - 1, in_flight=1))

  lax.fori_loop(jnp.int32(0), jnp.minimum(steps, stages), ahead, None)
  lax.fori_loop(jnp.int32(0), steps, one, None)
  pl.when(steps > 0)(lambda: parts.settle(steps - 1, in_flight=0))
  program.q_ring.drain(steps)
  program.d_o_ring.drain(steps)


@dataclasses.dataclass(frozen=True)
class _QueryParts:
  """The memory warpgroup's part in the sum of dQ: from shared to global memory, in order.

  Attributes:
    program: The thread block.
    counters: How many parts each block of queries has, in global memory; None: interpreted.
  """

  program: _Program
  counters: Any

  def _counter(self, head: Any, block: Any) -> Any:
    geometry, tile = self.program.geometry, self.program.tile
    heads, blocks = geometry.sizes.heads, pl.cdiv(geometry.sizes.seq_q, geometry.block_q)
    return self.counters.at[(tile.batch * heads + head) * blocks + block]

  def add(self, step: Any) -> None:
    """Begin to add a step's part to those of earlier keys, after them."""
    program = self.program
    refs, geometry = program.refs, program.geometry
    head, block = program.at(step)
    rank = program.rank(block)
    rows = pl.ds(block * geometry.block_q, geometry.block_q)
    window = refs.d_query.at[program.tile.batch, rows, head]
    source = refs.d_q.at[program.d_q_ring.wait(step)]
    if refs.scratch is not None:
      pl.when(rank > 0)(lambda: _add_what_was(refs.scratch, source, window))
      plgpu.copy_smem_to_gmem(source, window)
      return

    def after_others() -> None:
      plgpu.semaphore_wait(self._counter(head, block), rank, decrement=False, memory_scope="gpu")
      plgpu.copy_smem_to_gmem(source, window, reduction_op="add")

    lax.cond(rank == 0, lambda: plgpu.copy_smem_to_gmem(source, window), after_others)

  def settle(self, step: Any, *, in_flight: int) -> None:
    """Wait until all parts but the last `in_flight` were added, `step`'s as well, and say so."""
    # not only read: the next block may add once this one's is written
    plgpu.wait_smem_to_gmem(in_flight)
    self.program.d_q_ring.release(step)
    if self.counters is not None:
      plgpu.semaphore_signal(self._counter(*self.program.at(step)), 1, memory_scope="gpu")


def _add_what_was(scratch: Any, source: Any, window: Any) -> None:
  """The interpreter has no adding copy, and runs the thread blocks in order."""
  _, was, arrived = scratch
  plgpu.copy_gmem_to_smem(window, was, arrived)
  plgpu.barrier_wait(arrived)
  source[...] = source[...] + was[...]
  plgpu.commit_smem()


def _consumer(program: _Program) -> None:
  """A consumer warpgroup: its keys of the tile."""
  refs, geometry, tile = program.refs, program.geometry, program.tile
  # 232 beside the usual producer are too few at a head size of 128: ptxas 13.0 then
  # waits for every wgmma and spills
  registers = consumer_registers(geometry.consumers, producer=FEWEST_REGISTERS)
  plgpu.set_max_registers(registers, action="increase")
  warpgroup = lax.axis_index("warpgroup")
  sizes, scale = geometry.sizes, geometry.rule.scale
  keys = pl.ds(warpgroup * WGMMA_ROWS, WGMMA_ROWS)

  def with_accumulators(d_key: Any, d_value: Any) -> tuple[jax.Array, jax.Array]:
    plgpu.barrier_wait(refs.kv_full)

    for region in program.walk:

      def one(step: Any, _: None, masked: bool = region.masked) -> None:
        _step(program, step, d_key, d_value, masked=masked)

      lax.fori_loop(region.first * sizes.group, region.end * sizes.group, one, None)
    return d_key[...], d_value[...]

  d_key, d_value = pl.run_scoped(
    with_accumulators,
    plgpu.ACC((WGMMA_ROWS, geometry.head_dim), jnp.float32),
    plgpu.ACC((WGMMA_ROWS, geometry.value_dim), jnp.float32),
  )
  d_key, d_value = lax.optimization_barrier((d_key, d_value))

  # K has been read for every part of dQ
  program.d_z_ring.drain(program.steps)

  if geometry.takes_turns:

    @pl.when(warpgroup < program.steps)
    def _wait_until_its_last_part_left() -> None:
      plgpu.barrier_wait(program.d_q_ring.empty.at[warpgroup])
  else:
    program.d_q_ring.drain(program.steps)

  dtype = refs.key.dtype
  rows = pl.ds(tile.block * geometry.block_kv + warpgroup * WGMMA_ROWS, WGMMA_ROWS)
  refs.k[keys] = (d_key * scale).astype(dtype)
  refs.v[keys] = d_value.astype(dtype)
  if refs.doubt:
    refs.doubtful[warpgroup] = jnp.sum(d_key * 0.0, axis=1) + jnp.sum(d_value * 0.0, axis=1)
  plgpu.commit_smem()
  for source, target in ((refs.k, refs.d_key), (refs.v, refs.d_value)):
    plgpu.copy_smem_to_gmem(source.at[keys], target.at[tile.batch, rows, tile.head])
  for target in refs.doubt:
    plgpu.copy_smem_to_gmem(refs.doubtful.at[warpgroup], target.at[tile.batch, tile.head, rows])
  finish_stores()


def _step(program: _Program, step: Any, d_key: Any, d_value: Any, *, masked: bool) -> None:
  """What a block of queries adds to dK / scale and dV, and this tile's part of its dQ / scale."""
  refs, geometry = program.refs, program.geometry
  interpreted = refs.scratch is not None
  warpgroup = lax.axis_index("warpgroup")
  keys = pl.ds(warpgroup * WGMMA_ROWS, WGMMA_ROWS)
  is_lean = geometry.is_lean(has_sight=bool(refs.sight))
  shape = (WGMMA_ROWS, geometry.block_q)
  dtype = refs.query.dtype
  logits = geometry.logits

  def share_smem() -> None:
    if is_lean:
      fence_smem(interpreted=interpreted)
    else:
      plgpu.commit_smem()

  def along_queries(numbers: Any, stage: Any) -> jax.Array:
    loaded = compat.load_elementwise(numbers.at[stage], interpreted=interpreted)
    return lax.broadcast_in_dim(loaded, shape, (1,))

  def add_product(acc: Any, left: jax.Array, right: Any, copy: Any) -> None:
    if interpreted:
      # the interpreter's wgmma takes operands in shared memory only
      copy[...] = left
      plgpu.commit_smem()
      plgpu.wgmma(acc, copy, right)
    else:
      plgpu.wgmma(acc, left, right)

  def scores_and_gradients(scores_acc: Any, *others: Any, stage: Any | None = None) -> Any:
    stage = program.q_ring.wait(step) if stage is None else stage
    plgpu.wgmma(scores_acc, refs.k.at[keys], compat.transposed_ref(refs.q.at[stage]))
    # under the product, not after it: shared memory is so busy that consumers waited for these
    # loads in a sixth of their samples (ncu, H200)
    stored = along_queries(refs.numbers.at[0], stage)
    d_o_stage = program.d_o_ring.wait(step)
    found = functools.partial(
      gradients, scores_acc, stage=stage, d_o_stage=d_o_stage, stored=stored
    )
    d_z = found(*others) if others else pl.run_scoped(found, scores_type)
    return d_z, stage

  def gradients(
    scores_acc: Any, d_weights_acc: Any, *, stage: Any, d_o_stage: Any, stored: jax.Array
  ) -> jax.Array:
    plgpu.wgmma(d_weights_acc, refs.v.at[keys], compat.transposed_ref(refs.d_o.at[d_o_stage]))
    scores = logits.scores(_settled(scores_acc, in_flight=1))
    if masked:
      seen = _visible(program, step, shape)
      scores = jnp.where(seen, scores, jnp.full_like(scores, -jnp.inf))
    weights = softmax.weights_again(scores, stored, exponent=logits.exponent)
    add_product(
      d_value,
      weights.astype(dtype),
      refs.d_o.at[d_o_stage],
      refs.scratch[0].at[warpgroup] if refs.scratch is not None else None,
    )
    delta = along_queries(refs.numbers.at[1], d_o_stage)
    d_weights = _settled(d_weights_acc, in_flight=1)
    d_scores = weights * (d_weights - delta)
    slope = logits.slope(scores)
    if slope is not None:
      d_scores = d_scores * slope
    if masked:
      # by the weights, not by the mask, which would have to be kept until here
      d_scores = jnp.where(weights != 0, d_scores, jnp.zeros_like(d_scores))
    d_z = d_scores.astype(dtype)

    def share(slot: Any, all_shared: Any) -> None:
      refs.d_z[slot, keys] = d_z
      share_smem()
      if interpreted:
        plgpu.wgmma(d_key, refs.d_z.at[slot, keys], refs.q.at[stage])
      plgpu.barrier_arrive(all_shared)

    program.d_z_ring.fill(step, share)
    return d_z

  # zeros in an accumulator are part of its first product only where no wait, which is a loop,
  # lies between: else they are 48 instructions a step. So each is made after the waits
  scores_type = plgpu.ACC(shape, jnp.float32)
  if is_lean:
    stage = program.q_ring.wait(step)
    d_z, stage = pl.run_scoped(functools.partial(scores_and_gradients, stage=stage), scores_type)
  else:
    d_z, stage = pl.run_scoped(scores_and_gradients, scores_type, scores_type)

  def add_to_keys() -> None:
    if not interpreted:
      plgpu.wgmma(d_key, d_z, refs.q.at[stage])

  width = geometry.head_dim // geometry.parts
  columns = pl.ds(warpgroup * width if geometry.parts > 1 else 0, width)

  def query_part(acc: Any, slot: Any | None = None) -> None:
    slot = program.d_z_ring.wait(step) if slot is None else slot
    plgpu.wgmma(acc, compat.transposed_ref(refs.d_z.at[slot]), refs.k.at[:, columns])
    # it is stored while dK is being multiplied
    add_to_keys()
    part = _settled(acc, in_flight=0 if interpreted else 1)
    program.d_z_ring.release(step)

    def hand_over(slot: Any, there: Any) -> None:
      refs.d_q[slot, :, columns] = part
      share_smem()
      plgpu.barrier_arrive(there)

    program.d_q_ring.fill(step, hand_over)

  def with_query_part() -> None:
    part = functools.partial(query_part, slot=program.d_z_ring.wait(step) if is_lean else None)
    pl.run_scoped(part, plgpu.ACC((geometry.block_q, width), jnp.float32))

  if geometry.takes_turns:
    lax.cond(program.d_z_ring.stage(step) == warpgroup, with_query_part, add_to_keys)
  else:
    with_query_part()
  plgpu.wgmma_wait(0)
  program.q_ring.release(step)
  program.d_o_ring.release(step)


def _settled(acc: Any, *, in_flight: int) -> jax.Array:
  """An accumulator once all but the `in_flight` last products are complete.

  Mosaic's wait names no registers: without the barrier LLVM may read them before it.
  """
  found: jax.Array = lax.optimization_barrier(plgpu.wgmma_accumulator_load(acc, wait_n=in_flight))
  return found


def _first_key(program: _Program) -> Any:
  """The first of the warpgroup's keys."""
  block_kv = program.geometry.block_kv
  return program.tile.block * block_kv + lax.axis_index("warpgroup") * WGMMA_ROWS


def _seeing(program: _Program) -> tuple[jax.Array, ...]:
  """First query that sees each of the warpgroup's keys, and one past the last; none: the band's."""
  keys = pl.ds(_first_key(program), WGMMA_ROWS)
  interpreted = program.refs.scratch is not None
  return tuple(
    compat.load_elementwise(program.batch_of(ends).at[keys], interpreted=interpreted)
    for ends in program.refs.sight[1:]
  )


def _visible(program: _Program, step: Any, shape: tuple[int, int]) -> jax.Array:
  """Which queries see which of the warpgroup's keys, [keys, queries]."""
  geometry = program.geometry
  _, block = program.at(step)
  first_query = block * geometry.block_q
  sees = _seeing(program)
  if sees:
    return visible_columns(shape, *(ends - first_query for ends in sees))
  keys = _first_key(program) + lax.broadcasted_iota(jnp.int32, shape, 0)
  turned = geometry.band.transposed()
  first, end = turned.interval(keys)
  # queries past the end have no weights in any case
  if turned.right is None:
    beyond = jnp.full_like(first, geometry.sizes.seq_q + geometry.block_q)
    return columns_from(shape, jnp.where(first < end, first, beyond) - first_query)
  before = columns_before(shape, end - first_query)
  return before if turned.left is None else before & columns_from(shape, first - first_query)
