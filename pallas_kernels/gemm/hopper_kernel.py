"""C = epilogue(A·B, ...) on Hopper: TMA, wgmma and warp specialisation (Pallas Mosaic GPU).

One persistent thread block per SM walks the tiles of C in the L2-aware order of
`hw_profiles.tile_order`. Its warpgroups have one role each:

    memory     for each tile, for each K step:
                 wait until the stage's consumers have let go of it (`empty`)
                 TMA: A tile, B tiles -> the stage, arriving on `full`
    consumer   for each tile:
                 for each K step: wait `full`, wgmma into registers; the wgmma
                   before it is complete, so its stage is released (`empty`)
                 settle the accumulator, once
                 finish and store it, sub-tile by sub-tile through a two-slot
                   ring in shared memory, by TMA

The memory warpgroup runs ahead across tile borders, so the first K steps of a
tile arrive while the epilogue of the tile before is running. Choices beyond
that, each a field of the config or of the operands:

    overlap_epilogue   a settled tile of 16 bits waits in registers (half the
                       accumulator's) and is finished and stored between the
                       first wgmmas of the next tile, which run meanwhile
    cluster_m, _n      blocks of a cluster that need one operand tile load a
                       share of it each and multicast it
    two Bs             both tiles arrive in a stage with the tile of A, which is
                       loaded once for the two products
    added pairs        A_0·B_0 + A_1·B_1 in one accumulator: the memory warpgroup
                       walks K of the first pair, then K of the second; to the
                       consumers it is one walk
    transposes         wgmma reads a 16-bit operand stored either way round
    float8             each K step is summed on its own and added in float32
    three consumers    a tile of 192 rows; 256 columns are two wgmmas' each, as ptxas
                       compiles none with so many sums for a block of 512 threads
    split_k            a tile is summed in parts, each a tile of its own with its
                       own run of K steps and its own place in the result

Any M, N and K: TMA fills with zeros past an edge on load (0·0 adds nothing to
the sum) and clips on store; filling rows is slow, so that those past the last one
of A are not loaded (`hopper_layout`). How a tile is copied follows from the array
(`hopper.tile_copy`). What TMA cannot describe is padded with zeros first, a copy that
`explain` reports.
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

from hw_profiles import tile_order
from hw_profiles.capacity.warpgroups import consumer_registers
from hw_profiles.matmul.warp_specialized import VECTOR_SLOTS, producer_registers
from pallas_kernels import compat
from pallas_kernels.dtypes import sum_dtype
from pallas_kernels.gemm.epilogue import Epilogue
from pallas_kernels.gemm.hopper_geometry import Geometry
from pallas_kernels.gemm.operands import Operands
from pallas_kernels.hopper.ring import StageRing
from pallas_kernels.hopper.store import BlockStore, finish_stores
from pallas_kernels.hopper.tma import vector_copies

CLUSTER = "cluster"


@dataclasses.dataclass(frozen=True)
class Refs:
  """The kernel's references, by what they are.

  Attributes:
    inputs: The operands in global memory.
    out: [batch·split_k, rows, columns] in global memory.
    a_stages: [stages, *the A tile as stored], as wgmma reads it.
    a_landing: The same memory as TMA fills it.
    b_landing: The memory of B's as TMA fills it.
    b_stages: [stages, products, *the B tile as stored].
    slots: [consumers, slots, rows, columns] of output staging.
    ring: Barriers of the stages, `full` and `empty`.
    vectors: [2, block_m] of each operand `per_row`, [2, block_n] of each
      `per_column`.
    vector_ring: Their barriers; none where there are no such operands.
  """

  inputs: Operands
  out: Any
  a_landing: Any
  a_stages: Any
  b_landing: Any
  b_stages: Any
  slots: Any
  ring: tuple[Any, Any]
  vectors: tuple[Any, ...] = ()
  vector_ring: tuple[Any, Any] | None = None


def _at_batch(ref: Any, batch: Any) -> Any:
  """One product's operand of [batch or 1, ...]."""
  return ref.at[0 if ref.shape[0] == 1 else batch]


@dataclasses.dataclass(frozen=True)
class _Rings:
  """What the memory warpgroup fills ahead of the consumers.

  Attributes:
    stages: Operand tiles, counted by K steps.
    vectors: The epilogue's vectors, counted by tiles; None where there are none.
  """

  stages: StageRing
  vectors: StageRing | None


def _tile_origin(geometry: Geometry, i: Any) -> tuple[Any, Any, Any]:
  """Part index, first row and first column of this thread block's i-th tile."""
  config = geometry.config
  linear = lax.axis_index("cta") + i * geometry.num_clusters
  per_part = geometry.tiles_m * geometry.tiles_n
  part = linear // per_part
  tile_m, tile_n = tile_order.grouped_tile(
    linear - part * per_part,
    tiles_m=geometry.tiles_m,
    tiles_n=geometry.tiles_n,
    group_m=config.group_m,
  )
  row, column = tile_m * geometry.cluster_rows, tile_n * geometry.cluster_columns
  if config.cluster_m > 1:
    row = row + lax.axis_index(CLUSTER) * config.block_m
  elif config.cluster_n > 1:
    column = column + lax.axis_index(CLUSTER) * config.block_n
  return part, row, column


def _batch_and_depth(geometry: Geometry, part: Any) -> tuple[Any, Any]:
  """Batch index of a part, and its first K step."""
  split = geometry.config.split_k
  if split == 1:
    return part, 0
  batch = part // split
  return batch, (part - batch * split) * geometry.k_steps


def _pair_depth(geometry: Geometry, pair: int, first_step: Any) -> tuple[Any, Any]:
  """First K step and steps of one pair in a part that starts at `first_step` of all pairs'.

  What a part has past the end is the last pair's, and zeros.
  """
  if geometry.pairs == 1:
    return first_step, geometry.k_steps
  if geometry.config.split_k == 1:
    return 0, geometry.pair_steps
  before = pair * geometry.pair_steps
  first = lax.max(first_step - before, jnp.int32(0))
  end = first_step + geometry.k_steps - before
  if pair < geometry.pairs - 1:
    end = lax.min(end, jnp.int32(geometry.pair_steps))
  return first, lax.max(end - first, jnp.int32(0))


def body(*flat_refs: Any, refs_of: Callable[..., Refs], geometry: Geometry, **options: Any) -> None:
  """What every warpgroup of every thread block runs."""
  refs = refs_of(*flat_refs)
  rings = _Rings(
    stages=StageRing(geometry.config.num_stages, *refs.ring),
    vectors=StageRing(VECTOR_SLOTS, *refs.vector_ring) if refs.vector_ring else None,
  )
  cta = lax.axis_index("cta")
  # cluster tiles cta, cta + num_clusters, ...: how many of them there are
  my_tiles = (geometry.tiles - 1 - cta) // geometry.num_clusters + 1
  lax.cond(
    lax.axis_index("warpgroup") == geometry.consumers,
    lambda: _memory(refs, rings, my_tiles, geometry),
    lambda: _consumer(refs, rings, my_tiles, geometry, **options),
  )


def _memory(refs: Refs, rings: _Rings, my_tiles: Any, geometry: Geometry) -> None:
  """The memory warpgroup: every stage of every tile, as soon as there is room."""
  config, transposes, layout = geometry.config, geometry.transposes, geometry.layout
  plgpu.set_max_registers(producer_registers(geometry.consumers), action="decrease")
  share_a = CLUSTER if config.cluster_n > 1 else None
  share_b = CLUSTER if config.cluster_m > 1 else None

  def load_tile(i: Any, step: Any) -> Any:
    part, row, column = _tile_origin(geometry, i)
    batch, first_step = _batch_and_depth(geometry, part)

    def load_stage(k_step: Any, step: Any, *, a: Any, bs: tuple[Any, ...], first_step: Any) -> Any:
      depth = (first_step + k_step) * config.block_k
      a_row, a_column = (depth, row) if transposes.a else (row, depth)
      b_row, b_column = (column, depth) if transposes.b else (depth, column)

      def copy(stage: Any, arrived: Any) -> None:
        start_a = functools.partial(
          layout.a.start,
          _at_batch(a, batch),
          refs.a_landing.at[stage],
          arrived,
          row=a_row,
          column=a_column,
          collective_axes=share_a,
        )
        # the other rows keep what they hold; theirs are rows of C that TMA clips
        if layout.last_a_rows == layout.a_rows:
          start_a(rows=layout.a_rows)
        else:
          lax.cond(
            row + config.block_m <= geometry.sizes.m,
            lambda: start_a(rows=layout.a_rows),
            lambda: start_a(rows=layout.last_a_rows),
          )
        for product, b in enumerate(bs):
          layout.b.start(
            _at_batch(b, batch),
            refs.b_landing.at[stage, product],
            arrived,
            row=b_row,
            column=b_column,
            rows=layout.b.rows,
            collective_axes=share_b,
          )

      rings.stages.fill(step, copy)
      return step + 1

    def copy_vectors(slot: Any, arrived: Any) -> None:
      sources = (
        *((_at_batch(x, batch), row) for x in refs.inputs.per_row),
        *((_at_batch(x, batch), column) for x in refs.inputs.per_column),
      )
      for (source, first), slots in zip(sources, refs.vectors, strict=True):
        for start, size in vector_copies(slots.shape[1]):
          window, target = source.at[pl.ds(first + start, size)], slots.at[slot]
          if size != slots.shape[1]:
            target = slots.at[slot, pl.ds(start, size)]
          plgpu.copy_gmem_to_smem(window, target, arrived)

    if rings.vectors:
      rings.vectors.fill(i, copy_vectors)
    for pair, (a, bs) in enumerate(refs.inputs.pairs):
      first, steps = _pair_depth(geometry, pair, first_step)
      load = functools.partial(load_stage, a=a, bs=bs, first_step=first)
      step = lax.fori_loop(jnp.int32(0), jnp.asarray(steps, jnp.int32), load, step)
    return step

  rings.stages.drain(lax.fori_loop(jnp.int32(0), my_tiles, load_tile, jnp.int32(0)))
  if rings.vectors:
    rings.vectors.drain(my_tiles)


def _consumer(
  refs: Refs,
  rings: _Rings,
  my_tiles: Any,
  geometry: Geometry,
  *,
  epilogue: Epilogue,
  interpreted: bool,
) -> None:
  """A consumer warpgroup: its part of every tile, multiplied, settled, finished, stored."""
  consumers, share = geometry.consumers, geometry.share
  registers = consumer_registers(consumers, producer=producer_registers(consumers))
  plgpu.set_max_registers(registers, action="increase")
  warpgroup = lax.axis_index("warpgroup")
  first_row = warpgroup * share.rows if share.axis == "m" else 0
  first_column = warpgroup * share.columns if share.axis == "n" else 0
  store = BlockStore(refs.slots.at[warpgroup], rows=share.rows, columns=share.columns)

  def zeros(dtype: Any) -> jax.Array:
    """An accumulator's block that a loop carries."""
    block = jnp.zeros((share.rows, geometry.wgmma_columns), dtype)
    # the interpreter has no layouts
    return block if interpreted else plgpu.layout_cast(block, plgpu.Layout.WGMMA)

  row_vectors = len(refs.inputs.per_row)

  def vectors_of(slot: Any, column: int) -> tuple[jax.Array, ...]:
    """The epilogue's vectors over an accumulator that begins at a column of this consumer's."""
    shape = (share.rows, geometry.wgmma_columns)
    starts = (first_row, first_column + column)
    return tuple(
      lax.broadcast_in_dim(
        compat.load_elementwise(
          slots.at[slot, pl.ds(starts[axis], shape[axis])], interpreted=interpreted
        ),
        shape,
        (axis,),
      )
      for slots, axis in zip(
        refs.vectors, (0,) * row_vectors + (1,) * len(refs.inputs.per_column), strict=True
      )
    )

  def settle(accs: tuple[jax.Array, ...], i: Any) -> tuple[jax.Array, ...]:
    """Each accumulator's block."""
    columns = range(0, share.columns, geometry.wgmma_columns)
    if not rings.vectors:
      return tuple(epilogue.settle(acc, (), ()) for acc in accs)
    slot = rings.vectors.wait(i)
    loaded = [vectors_of(slot, column) for column in columns]
    # ordinary reads come before TMA's next write to the slot
    plgpu.commit_smem()
    rings.vectors.release(i)
    return tuple(
      epilogue.settle(acc, vectors[:row_vectors], vectors[row_vectors:])
      for acc, vectors in zip(accs, loaded * geometry.products, strict=True)
    )

  def store_sub_tile(
    index: int, settled: tuple[jax.Array, ...], part: Any, row: Any, column: Any
  ) -> None:
    def sub_tile(i: slice, j: slice) -> jax.Array:
      # the K loop does not change what waits, so that LLVM would finish all of it
      # ahead of the loop if nothing held it here
      which, first = divmod(j.start, geometry.wgmma_columns)
      blocks = settled[which :: len(settled) // geometry.products]
      here = slice(first, first + j.stop - j.start)
      held = (lax.optimization_barrier(block[i, here]) for block in blocks)
      return epilogue.finish(*held, native_exp2=not interpreted)

    store.store(index, sub_tile, out=refs.out.at[part], row=row, column=column)

  sub_tiles = range(len(store.sub_tiles))

  def compute_tile(i: Any, carry: Any) -> Any:
    step, *waiting = carry
    part, row, column = _tile_origin(geometry, i)
    row, column = row + first_row, column + first_column

    def store_waiting(index: int) -> None:
      pl.when(i > 0)(lambda: store_sub_tile(index, *waiting))

    accs = _accumulate(
      refs,
      rings.stages,
      step,
      geometry,
      between=tuple(functools.partial(store_waiting, x) for x in sub_tiles) if waiting else (),
      zeros=zeros,
    )
    settled = settle(accs, i)
    step = step + geometry.k_steps
    if geometry.overlaps:
      return step, settled, part, row, column
    for index in sub_tiles:
      store_sub_tile(index, settled, part, row, column)
    return (step,)

  start = jnp.int32(0)
  if not geometry.overlaps:
    lax.fori_loop(jnp.int32(0), my_tiles, compute_tile, (start,))
  else:
    nothing = zeros(epilogue.settled_dtype)
    _, *last = lax.fori_loop(
      jnp.int32(0),
      my_tiles,
      compute_tile,
      (start, (nothing,) * geometry.accumulators, start, start, start),
    )
    for index in sub_tiles:
      store_sub_tile(index, *last)
  finish_stores()


def _accumulate(
  refs: Refs,
  ring: StageRing,
  first_step: Any,
  geometry: Geometry,
  *,
  between: tuple[Callable[[], None], ...],
  zeros: Callable[[Any], jax.Array],
) -> tuple[jax.Array, ...]:
  """A consumer's accumulators after all K steps of a tile.

  Args:
    refs: The kernel's references.
    ring: Its stages.
    first_step: The ring's step at the tile's first K step.
    geometry: The kernel instance.
    between: Work to do while wgmmas run, spread over the K steps; none where
      steps are promoted.
    zeros: Makes a block of a dtype that a loop carries.

  Returns:
    The accumulators of each product, from its first column on.
  """
  config, transposes, share = geometry.config, geometry.transposes, geometry.share
  warpgroup = lax.axis_index("warpgroup")
  rows = pl.ds(warpgroup * share.rows if share.axis == "m" else 0, share.rows)
  first_column = warpgroup * share.columns if share.axis == "n" else 0
  # one step's wgmmas run while the next stage is awaited, and keep their stage
  # until the next are issued; with a single stage there is no next to wait for
  in_flight = 0 if config.num_stages == 1 else 1

  def a_operand(stage: Any) -> Any:
    if transposes.a:
      return compat.transposed_ref(refs.a_stages.at[stage, :, rows])
    return refs.a_stages.at[stage, rows]

  halves = geometry.accumulators // geometry.products

  def b_operand(stage: Any, accumulator: int) -> Any:
    product, half = divmod(accumulator, halves)
    columns = pl.ds(first_column + half * geometry.wgmma_columns, geometry.wgmma_columns)
    if transposes.b:
      return compat.transposed_ref(refs.b_stages.at[stage, product, columns])
    return refs.b_stages.at[stage, product, :, columns]

  k_steps = geometry.k_steps
  schedule = _spread(between, steps=k_steps, warpgroup=warpgroup, of=geometry.consumers)

  def with_accumulators(*accs: Any) -> tuple[jax.Array, ...]:
    def multiply(k_step: Any, _: None) -> None:
      step = first_step + k_step
      stage = ring.wait(step)
      for index, acc in enumerate(accs):
        plgpu.wgmma(acc, a_operand(stage), b_operand(stage, index))
      for at, piece in schedule:
        pl.when(k_step == at)(piece)
      plgpu.wgmma_wait(in_flight * len(accs))

      @pl.when(k_step >= in_flight)
      def _release() -> None:
        ring.release(step - in_flight)

    for piece in between[: len(between) - len(schedule)]:
      piece()
    lax.fori_loop(jnp.int32(0), jnp.int32(k_steps), multiply, None)
    if in_flight:
      plgpu.wgmma_wait(0)
      ring.release(first_step + k_steps - 1)
    # Mosaic's wait names no registers, so LLVM may move what reads them, a
    # conversion say, to before it: seen on an H200 with jax 0.11.2, where two
    # K steps are unrolled into one block of code. The barrier names them.
    return tuple(lax.optimization_barrier(acc[...]) for acc in accs)

  def promoted(k_step: Any, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    step = first_step + k_step
    stage = ring.wait(step)

    def product_of_step(*accs: Any) -> tuple[jax.Array, ...]:
      for index, acc in enumerate(accs):
        plgpu.wgmma(acc, a_operand(stage), b_operand(stage, index))
      plgpu.wgmma_wait(0)
      return tuple(lax.optimization_barrier(acc[...]) for acc in accs)

    parts = pl.run_scoped(product_of_step, *accumulators)
    ring.release(step)
    return tuple(x + part for x, part in zip(sums, parts, strict=True))

  dtype = sum_dtype(refs.inputs.a.dtype)
  accumulator = plgpu.ACC((share.rows, geometry.wgmma_columns), dtype)
  accumulators = (accumulator,) * geometry.accumulators
  if geometry.promotes:
    # the other consumer's products run under this one's wait and additions
    start = (zeros(dtype),) * geometry.accumulators
    return lax.fori_loop(jnp.int32(0), jnp.int32(k_steps), promoted, start)
  return pl.run_scoped(with_accumulators, *accumulators)


def _spread(
  pieces: tuple[Callable[[], None], ...], *, steps: int, warpgroup: Any, of: int
) -> tuple[tuple[Any, Callable[[], None]], ...]:
  """The K step of each piece; the first are left out where there are more than steps.

  Evenly over the walk, and each consumer's between the others', whose wgmmas
  keep the tensor cores busy meanwhile: silu costs 4 % more than nothing at
  1024 x 4096 x 12288 on an H200, 7 % where all consumers do it at once.
  """
  in_time = pieces[max(len(pieces) - steps, 0) :]
  if not in_time:
    return ()
  distance = steps // len(in_time)
  return tuple(
    (distance * index + distance * warpgroup // of, piece) for index, piece in enumerate(in_time)
  )
