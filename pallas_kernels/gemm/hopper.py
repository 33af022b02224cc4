"""C = epilogue(A·B + bias) on Hopper: TMA, wgmma and warp specialisation (Pallas Mosaic GPU).

One persistent thread block per SM walks the tiles of C in the L2-aware order of
`hw_profiles.tile_order`. Its warpgroups have one role each:

    memory     for each tile, for each K step:
                 wait until the stage's consumers have let go of it (`empty`)
                 TMA: A tile, B tile -> the stage, arriving on `full`
    consumer   for each tile:
                 for each K step: wait `full`, wgmma into registers; the wgmma
                   before it is complete, so its stage is released (`empty`)
                 epilogue on the accumulator, once, sub-tile by sub-tile through
                   a two-slot ring in shared memory, stored by TMA

The memory warpgroup runs ahead across tile borders, so the first K steps of a
tile arrive while the epilogue of the tile before is running.

Any M, N and K: TMA fills with zeros past an edge on load (0·0 adds nothing to
the sum) and clips on store. What it cannot describe is padded with zeros first
(`hopper_layout`), a copy that `explain` reports.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from hw_profiles import MatmulConfig, tile_order
from hw_profiles.capacity.warpgroups import PRODUCER_REGISTERS, consumer_registers
from hw_profiles.matmul.warp_specialized import (
  EPILOGUE_SLOTS,
  WGMMA_ROWS,
  consumer_tile,
  consumer_warpgroups,
)
from pallas_kernels import compat, sharding
from pallas_kernels.batching import batch_of
from pallas_kernels.gemm.epilogue import Epilogue
from pallas_kernels.gemm.hopper_layout import hopper_layout
from pallas_kernels.hopper.ring import StageRing
from pallas_kernels.hopper.store import finish_stores, store_block
from pallas_kernels.hopper.tma import padded, rounded_up


@dataclasses.dataclass(frozen=True)
class _Geometry:
  """Static facts of one kernel instance, derived once from shapes and config."""

  config: MatmulConfig
  batch: int
  m: int
  n: int
  k: int
  a_batch: int
  b_batch: int
  bias_batch: int
  max_ctas: int

  @property
  def tiles_m(self) -> int:
    return pl.cdiv(self.m, self.config.block_m)

  @property
  def tiles_n(self) -> int:
    return pl.cdiv(self.n, self.config.block_n)

  @property
  def tiles(self) -> int:
    return self.batch * self.tiles_m * self.tiles_n

  @property
  def num_ctas(self) -> int:
    return min(self.max_ctas, self.tiles)

  @property
  def k_steps(self) -> int:
    return pl.cdiv(self.k, self.config.block_k)


def _body(
  *refs: Any, geometry: _Geometry, epilogue: Epilogue, has_bias: bool, interpreted: bool
) -> None:
  """What every warpgroup of every thread block runs."""
  config = geometry.config
  num_inputs = 3 if has_bias else 2
  a_gmem, b_gmem = refs[:2]
  bias_gmem = refs[2] if has_bias else None
  out_gmem, a_smem, b_smem, out_smem, full, empty = refs[num_inputs:]

  ring = StageRing(num_stages=config.num_stages, full=full, empty=empty)

  warpgroup = lax.axis_index("warpgroup")
  cta = lax.axis_index("cta")
  # tiles cta, cta + num_ctas, ...: how many of them there are
  my_tiles = (geometry.tiles - 1 - cta) // geometry.num_ctas + 1

  def tile_origin(i: Any) -> tuple[Any, Any, Any]:
    """Batch index, first row and first column of this block's i-th tile."""
    linear = cta + i * geometry.num_ctas
    per_batch = geometry.tiles_m * geometry.tiles_n
    batch = linear // per_batch
    tile_m, tile_n = tile_order.grouped_tile(
      linear - batch * per_batch,
      tiles_m=geometry.tiles_m,
      tiles_n=geometry.tiles_n,
      group_m=config.group_m,
    )
    return batch, tile_m * config.block_m, tile_n * config.block_n

  def operand_batch(batch: Any, size: int) -> Any:
    return 0 if size == 1 else batch

  def memory() -> None:
    plgpu.set_max_registers(PRODUCER_REGISTERS, action="decrease")

    def load_tile(i: Any, step: Any) -> Any:
      batch, row, column = tile_origin(i)

      def load_stage(k_step: Any, step: Any) -> Any:
        depth = pl.ds(k_step * config.block_k, config.block_k)
        rows, columns = pl.ds(row, config.block_m), pl.ds(column, config.block_n)
        a_tile = a_gmem.at[operand_batch(batch, geometry.a_batch), rows, depth]
        b_tile = b_gmem.at[operand_batch(batch, geometry.b_batch), depth, columns]

        def copy(stage: Any, arrived: Any) -> None:
          plgpu.copy_gmem_to_smem(a_tile, a_smem.at[stage], arrived)
          plgpu.copy_gmem_to_smem(b_tile, b_smem.at[stage], arrived)

        ring.fill(step, copy)
        return step + 1

      return lax.fori_loop(jnp.int32(0), jnp.int32(geometry.k_steps), load_stage, step)

    ring.drain(lax.fori_loop(jnp.int32(0), my_tiles, load_tile, jnp.int32(0)))

  def consumer() -> None:
    plgpu.set_max_registers(consumer_registers(consumer_warpgroups(config)), action="increase")
    share = consumer_tile(config)
    rows = pl.ds(warpgroup * share.rows if share.axis == "m" else 0, share.rows)
    columns = pl.ds(warpgroup * share.columns if share.axis == "n" else 0, share.columns)
    # one wgmma runs while the next stage is awaited, and keeps its stage until
    # the next wgmma is issued; with a single stage there is no next to wait for
    in_flight = 0 if config.num_stages == 1 else 1

    def accumulate(first_step: Any) -> jax.Array:
      def with_accumulator(acc: Any) -> jax.Array:
        def multiply(k_step: Any, _: None) -> None:
          step = first_step + k_step
          stage = ring.wait(step)
          plgpu.wgmma(acc, a_smem.at[stage, rows], b_smem.at[stage, :, columns])
          plgpu.wgmma_wait(in_flight)

          @pl.when(k_step >= in_flight)
          def _release() -> None:
            ring.release(step - in_flight)

        lax.fori_loop(jnp.int32(0), jnp.int32(geometry.k_steps), multiply, None)
        if in_flight:
          plgpu.wgmma_wait(0)
          ring.release(first_step + geometry.k_steps - 1)
        # Mosaic's wait names no registers, so LLVM may move what reads them, a
        # conversion say, to before it: seen on an H200 with jax 0.11.2, where two
        # K steps are unrolled into one block of code. The barrier names them.
        return lax.optimization_barrier(acc[...])

      return pl.run_scoped(with_accumulator, plgpu.ACC((share.rows, share.columns), jnp.float32))

    def store_tile(acc: jax.Array, batch: Any, row: Any, column: Any) -> None:
      bias = None
      if bias_gmem is not None:
        bias = compat.load_gmem(
          bias_gmem.at[operand_batch(batch, geometry.bias_batch), pl.ds(column, share.columns)],
          interpreted=interpreted,
        )

      def finish(block: jax.Array, first_column: int) -> jax.Array:
        if bias is None:
          return epilogue(block, None)
        part = bias[first_column : first_column + block.shape[1]]
        return epilogue(block, lax.broadcast_in_dim(part, block.shape, (1,)))

      store_block(
        acc,
        finish=finish,
        slots=out_smem.at[warpgroup],
        out=out_gmem.at[batch],
        row=row,
        column=column,
      )

    def compute_tile(i: Any, step: Any) -> Any:
      batch, row, column = tile_origin(i)
      acc = accumulate(step)
      store_tile(acc, batch, row + rows.start, column + columns.start)
      return step + geometry.k_steps

    lax.fori_loop(jnp.int32(0), my_tiles, compute_tile, jnp.int32(0))
    finish_stores()

  lax.cond(warpgroup == consumer_warpgroups(config), memory, consumer)


def matmul(
  a: jax.Array,
  b: jax.Array,
  bias: jax.Array | None,
  *,
  config: MatmulConfig,
  epilogue: Epilogue,
  num_ctas: int,
  interpret: Any = None,
) -> jax.Array:
  """out[i] = epilogue(a[i]·b[i] + bias[i]) for i < batch.

  Args:
    a: [batch or 1, M, K], bfloat16 or float16; sizes at least 1.
    b: [batch or 1, K, N], the dtype of a.
    bias: [batch or 1, N] or None.
    config: A tile that `hw_profiles.plan` says fits.
    epilogue: What to do with the accumulator.
    num_ctas: Thread blocks to launch at most; one per SM.
    interpret: None to compile, or the interpreter's parameters.

  Returns:
    [batch, M, N] in `epilogue.out_dtype`.
  """
  m, k, n = a.shape[1], a.shape[2], b.shape[2]
  batch = batch_of(a, b, bias)
  out_dtype = epilogue.out_dtype
  layout = hopper_layout(
    config, m=m, k=k, n=n, a_batch=a.shape[0], dtype=a.dtype, out_dtype=out_dtype
  )
  out_rows, out_columns = rounded_up((m, n), layout.out_multiples)
  if interpret is not None and not compat.INTERPRETER_CLIPS_TMA:
    a = padded(a, config.block_m, config.block_k)
    b = padded(b, config.block_k, config.block_n)
    out_rows, out_columns = a.shape[1], b.shape[2]
  else:
    a = padded(a, *layout.a_multiples)
    b = padded(b, *layout.b_multiples)
  if bias is not None:
    # read with ordinary loads, which must stay inside: whole tiles
    bias = padded(bias, config.block_n)

  geometry = _Geometry(
    config=config,
    batch=batch,
    m=m,
    n=n,
    k=k,
    a_batch=a.shape[0],
    b_batch=b.shape[0],
    bias_batch=0 if bias is None else bias.shape[0],
    max_ctas=num_ctas,
  )
  operands = (a, b) if bias is None else (a, b, bias)
  kernel = plgpu.kernel(
    functools.partial(
      _body,
      geometry=geometry,
      epilogue=epilogue,
      has_bias=bias is not None,
      interpreted=interpret is not None,
    ),
    out_type=sharding.out_struct((batch, out_rows, out_columns), out_dtype, a),
    scratch_types=[
      plgpu.SMEM(
        (config.num_stages, config.block_m, config.block_k),
        a.dtype,
        transforms=layout.operand,
      ),
      plgpu.SMEM(
        (config.num_stages, config.block_k, config.block_n),
        b.dtype,
        transforms=layout.operand,
      ),
      plgpu.SMEM(
        (consumer_warpgroups(config), EPILOGUE_SLOTS, WGMMA_ROWS, layout.staging_columns),
        out_dtype,
        transforms=layout.staging,
      ),
      *StageRing.barriers(
        num_stages=config.num_stages, copies=2, consumers=consumer_warpgroups(config)
      ),
    ],
    grid=(geometry.num_ctas,),
    grid_names=("cta",),
    num_threads=consumer_warpgroups(config) + 1,
    thread_name="warpgroup",
    compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    interpret=interpret,
  )
  return kernel(*operands)[:, :m, :n]
