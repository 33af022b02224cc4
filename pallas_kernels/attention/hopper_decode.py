"""Decode attention on Hopper: TMA, wgmma and a merge inside a cluster (Pallas Mosaic GPU).

The query heads of one key head are the first rows of a 64-row tile. Its keys
are cut into parts, one a thread block, and the blocks of one tile are a
cluster. A block is one warpgroup; for each of its blocks of keys it

    waits for K, wgmma: scores in registers; masks keys past the length
    takes the online softmax
    waits for V, wgmma with the weights as its left operand, in registers
    when all warps have come so far, starts the copy of the keys `num_stages`
      blocks ahead into the freed stage

In the end each block has a state of the softmax. A block sends every other one
of the cluster its share of the columns, straight from registers to the other's
shared memory, and merges the shares it gets in ascending order of the parts:
no state goes by way of global memory, and there is no second kernel.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from hw_profiles import DecodeConfig
from pallas_kernels import compat, sharding
from pallas_kernels.attention import softmax
from pallas_kernels.attention.hopper_layout import transforms
from pallas_kernels.attention.operands import DecodeOperands, Sizes
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.attention.softmax import LogitRule, SoftmaxState
from pallas_kernels.hopper.store import finish_stores
from pallas_kernels.hopper.tma import tiled

# Rows of a wgmma; the query heads of a key head are the first of them.
ROWS = 64
# Columns of a block's softmax numbers on their way to another block: the peak
# of a row in the first half, the total in the second.
_NUMBERS = 8
_SPAN_BYTES = 128


@dataclasses.dataclass(frozen=True)
class Geometry:
  """Static facts of one kernel instance.

  Attributes:
    rule: What is computed.
    sizes: Of the attention; one query a sequence.
    block_kv: Keys of a step.
    stages: Blocks of K, and of V, in shared memory.
    parts: Thread blocks of a cluster, which share a sequence's keys.
  """

  rule: AttentionRule
  sizes: Sizes
  block_kv: int
  stages: int
  parts: int

  @property
  def logits(self) -> LogitRule:
    """From dot products to logits."""
    return self.rule.logits(has_bias=False)

  @property
  def columns(self) -> int:
    """Columns of the result that a block merges."""
    return self.sizes.value_dim // self.parts


@dataclasses.dataclass(frozen=True)
class _Refs:
  """The kernel's references, by what they are."""

  query: Any
  key: Any
  value: Any
  lengths: Any
  out: Any
  residual: Any
  q_landing: Any
  q: Any
  k: Any
  v: Any
  staged: Any
  staged_numbers: Any
  q_full: Any
  k_full: Any
  v_full: Any
  shares: Any = None
  numbers: Any = None
  arrived: Any = None


def _body(refs: _Refs, geometry: Geometry) -> None:
  """What every thread block runs."""
  sizes, block, stages = geometry.sizes, geometry.block_kv, geometry.stages
  rule, logits = geometry.rule, geometry.logits
  tile, part = lax.axis_index("tile"), lax.axis_index("part")
  batch, head = tile // sizes.kv_heads, lax.rem(tile, jnp.int32(sizes.kv_heads))
  length = jnp.clip(refs.lengths[batch], 0, sizes.seq_kv)
  left = rule.band.left
  begin = jnp.int32(0) if left is None else jnp.maximum(length - 1 - left, 0)
  first_block = begin // block
  visited = (length + (block - 1)) // block - first_block
  share = (visited + (geometry.parts - 1)) // geometry.parts
  first = first_block + part * share
  steps = jnp.maximum(jnp.minimum(share, first_block + visited - first), 0)

  def fetch(step: Any) -> None:
    stage = lax.rem(step, jnp.int32(stages))
    keys = pl.ds((first + step) * block, block)
    for source, ring, full in (
      (refs.key, refs.k, refs.k_full),
      (refs.value, refs.v, refs.v_full),
    ):
      plgpu.copy_gmem_to_smem(source.at[batch, keys, head], ring.at[stage], full.at[stage])

  for step in range(stages):
    pl.when(step < steps)(lambda step=step: fetch(jnp.int32(step)))
  row = tile * sizes.group
  span = refs.q_landing.shape[2]
  for index in range(refs.q_landing.shape[0]):
    plgpu.copy_gmem_to_smem(
      refs.query.at[pl.ds(row, ROWS), pl.ds(index * span, span)],
      refs.q_landing.at[index],
      refs.q_full,
    )

  def visit(step: Any, state: SoftmaxState) -> SoftmaxState:
    stage = lax.rem(step, jnp.int32(stages))
    start = (first + step) * block
    plgpu.barrier_wait(refs.k_full.at[stage])

    def multiply(acc: Any) -> jax.Array:
      for index in range(refs.q.shape[0]):
        columns = pl.ds(index * span, span)
        keys = refs.k.at[stage, :, columns]
        plgpu.wgmma(acc, refs.q.at[index], compat.transposed_ref(keys))
      return acc[...]

    dots = pl.run_scoped(multiply, plgpu.ACC((ROWS, block), jnp.float32))
    # Mosaic's wait names no registers: without this LLVM may read them before it
    scores = logits.scores(lax.optimization_barrier(dots))
    keys = lax.broadcasted_iota(jnp.int32, scores.shape, 1)
    seen = keys < length - start
    if left is not None:
      seen = seen & (keys >= begin - start)
    scores = jnp.where(seen, scores, jnp.full_like(scores, -jnp.inf))
    peak, total, weights, fade = softmax.reweigh(
      state.peak, state.total, scores, exponent=logits.exponent
    )
    out = state.out * softmax.along_columns(fade, state.out.shape)
    weights = weights.astype(refs.value.dtype)
    plgpu.barrier_wait(refs.v_full.at[stage])
    outside = start + block > length
    if left is not None:
      outside = outside | (start < begin)
    pl.when(outside)(lambda: _clean(refs.v.at[stage], begin - start, length - start))

    def add(acc: Any) -> None:
      plgpu.wgmma(acc, weights, refs.v.at[stage])

    out = lax.optimization_barrier(pl.run_state(add)(plgpu.ACC.init(out)))
    # a barrier of the warpgroup: no warp reads the stage any more
    plgpu.commit_smem()
    pl.when(step + stages < steps)(lambda: fetch(step + stages))
    return SoftmaxState(peak, total, out)

  plgpu.barrier_wait(refs.q_full)
  state = lax.fori_loop(jnp.int32(0), steps, visit, _nothing(sizes.value_dim))
  if geometry.parts > 1:
    state = _merged(refs, geometry, part, state)
  out, residual = softmax.finish(state)
  refs.staged[...] = out.astype(refs.out.dtype)
  refs.staged_numbers[...] = softmax.along_columns(residual, (ROWS, _NUMBERS))
  plgpu.commit_smem()
  rows = pl.ds(row, sizes.group)
  plgpu.copy_smem_to_gmem(
    refs.staged.at[pl.ds(0, sizes.group)],
    refs.out.at[rows, pl.ds(part * geometry.columns, geometry.columns)],
  )

  @pl.when(part == 0)
  def _store_residual() -> None:
    plgpu.copy_smem_to_gmem(refs.staged_numbers.at[pl.ds(0, sizes.group)], refs.residual.at[rows])

  finish_stores()


def _clean(values: Any, begin: Any, end: Any) -> None:
  """0 for values of keys before `begin` and from `end` on: 0 times what they hold may be NaN."""
  found = values[...]
  keys = lax.broadcasted_iota(jnp.int32, found.shape, 0)
  values[...] = jnp.where((keys >= begin) & (keys < end), found, jnp.zeros_like(found))
  plgpu.commit_smem()


def _merged(refs: _Refs, geometry: Geometry, part: Any, state: SoftmaxState) -> SoftmaxState:
  """The state of all parts, of this block's columns."""
  columns = geometry.columns
  shape = (ROWS, _NUMBERS)
  in_first_half = lax.broadcasted_iota(jnp.int32, shape, 1) < _NUMBERS // 2
  numbers = jnp.where(
    in_first_half,
    softmax.along_columns(state.peak, shape),
    softmax.along_columns(state.total, shape),
  )
  for peer in range(geometry.parts):
    where = {"cluster_idx": jnp.int32(peer), "cluster_dim": "part"}
    share = state.out[:, peer * columns : (peer + 1) * columns]
    plgpu.async_store_smem(share, refs.shares.at[part], refs.arrived, **where)
    plgpu.async_store_smem(numbers, refs.numbers.at[part], refs.arrived, **where)
  plgpu.barrier_wait(refs.arrived)

  def add(peer: Any, merged: SoftmaxState) -> SoftmaxState:
    found = plgpu.layout_cast(refs.numbers[peer], plgpu.Layout.WGMMA)
    peak = jnp.max(jnp.where(in_first_half, found, jnp.full_like(found, -jnp.inf)), axis=1)
    total = jnp.max(jnp.where(in_first_half, jnp.zeros_like(found), found), axis=1)
    out = plgpu.layout_cast(refs.shares[peer], plgpu.Layout.WGMMA)
    return softmax.merge(merged, SoftmaxState(peak, total, out))

  # a loop: 16 merges written out take several times as long to compile
  return lax.fori_loop(jnp.int32(0), jnp.int32(geometry.parts), add, _nothing(columns))


def _nothing(columns: int) -> SoftmaxState:
  """The state before any key, as wgmma's accumulator lies in registers."""
  state = softmax.start(ROWS, columns)
  by_row = plgpu.Layout.WGMMA.reduce(1)
  return SoftmaxState(
    plgpu.layout_cast(state.peak, by_row),
    plgpu.layout_cast(state.total, by_row),
    plgpu.layout_cast(state.out, plgpu.Layout.WGMMA),
  )


def decode(
  rule: AttentionRule,
  operands: DecodeOperands,
  *,
  config: DecodeConfig,
  num_splits: int,
  interpret: Any = None,
) -> tuple[jax.Array, jax.Array]:
  """out [batch, 1, N, Hv] in the query's dtype, and float32 residual [batch, N, 1].

  Args:
    rule: What is computed; its band is causal and "bottom_right".
    operands: bfloat16 or float16 query, key and value; one query a sequence;
      head sizes of whole swizzle spans; a capacity that is a multiple of 8.
    config: Tile sizes.
    num_splits: Parts that each sequence's keys are cut into: 1, 2, 4, 8 or 16.
    interpret: None to compile, or the interpreter's parameters.
  """
  sizes = operands.sizes
  dtype = operands.query.dtype
  geometry = Geometry(rule, sizes, config.block_kv, config.num_stages, num_splits)
  columns, stages, block = geometry.columns, config.num_stages, config.block_kv
  span = _SPAN_BYTES // dtype.itemsize
  spans = sizes.head_dim // span
  swizzled = tiled(_SPAN_BYTES, dtype)
  float_span = min(columns * 4, _SPAN_BYTES)
  merges = num_splits > 1

  def body(*flat: Any) -> None:
    inputs, (q_union, k_union), rest = flat[:6], flat[6:8], flat[8:]
    k, (staged, staged_numbers) = k_union
    v, *others = rest
    refs: list[Any] = [*inputs, *q_union, k, v, staged, staged_numbers, *others]
    _body(_Refs(*refs), geometry)

  rows = sizes.batch * sizes.heads
  kernel = plgpu.kernel(
    body,
    out_type=(
      sharding.out_struct((rows, sizes.value_dim), dtype, operands.query),
      sharding.out_struct((rows, _NUMBERS), jnp.float32, operands.query),
    ),
    scratch_types=[
      plgpu.RefUnion(
        plgpu.SMEM((spans, ROWS, span), dtype, transforms=swizzled[1:]),
        plgpu.SMEM((spans, ROWS, span), dtype, transforms=swizzled),
      ),
      # the results leave by way of the keys' stages, which are free by then
      plgpu.RefUnion(
        plgpu.SMEM(
          (stages, block, sizes.head_dim), dtype, transforms=transforms(sizes.head_dim, dtype)
        ),
        (plgpu.SMEM((ROWS, columns), dtype), plgpu.SMEM((ROWS, _NUMBERS), jnp.float32)),
      ),
      plgpu.SMEM(
        (stages, block, sizes.value_dim),
        dtype,
        transforms=transforms(sizes.value_dim, dtype, depth=block),
      ),
      plgpu.Barrier(num_arrivals=spans),
      plgpu.Barrier(num_barriers=stages),
      plgpu.Barrier(num_barriers=stages),
      *(
        [
          plgpu.SMEM(
            (num_splits, ROWS, columns), jnp.float32, transforms=tiled(float_span, jnp.float32)
          ),
          plgpu.SMEM(
            (num_splits, ROWS, _NUMBERS), jnp.float32, transforms=tiled(4 * _NUMBERS, jnp.float32)
          ),
          plgpu.Barrier(num_arrivals=2 * num_splits),
        ]
        if merges
        else []
      ),
    ],
    grid=(sizes.batch * sizes.kv_heads,),
    grid_names=("tile",),
    cluster=(num_splits,),
    cluster_names=("part",),
    compiler_params=plgpu.CompilerParams(
      lowering_semantics=plgpu.LoweringSemantics.Warpgroup,
      approx_math=True,
      reduction_scratch_bytes=0,
    ),
    interpret=interpret,
  )
  out, residual = kernel(
    operands.query.reshape(rows, sizes.head_dim), operands.key, operands.value, operands.lengths
  )
  return (
    out.reshape(sizes.batch, 1, sizes.heads, sizes.value_dim),
    residual[:, 0].reshape(sizes.batch, sizes.heads, 1),
  )
