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
the sum) and clips on store. What TMA cannot do is an array whose rows are not a
multiple of 16 bytes apart, nor, as Mosaic tiles operands for it, one whose sides
are not multiples of the tile; such an operand is padded with zeros first
(`_padded`), a copy that `explain` reports.
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
from hw_profiles.capacity.warp_specialized import (
  EPILOGUE_SLOTS,
  PRODUCER_REGISTERS,
  WGMMA_ROWS,
  consumer_tile,
  staging_columns,
)
from pallas_kernels import compat
from pallas_kernels.gemm.epilogue import Epilogue

# TMA: global strides are multiples of 16 B (CUDA driver API, cuTensorMapEncodeTiled)
TMA_PITCH_BYTES = 16


@dataclasses.dataclass(frozen=True)
class _Plan:
  """Static facts of one kernel instance, derived once from shapes and config."""

  config: MatmulConfig
  batch: int
  m: int
  n: int
  k: int
  a_batch: int
  b_batch: int
  bias_batch: int
  num_ctas: int

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
  def k_steps(self) -> int:
    return pl.cdiv(self.k, self.config.block_k)


def _operand_swizzle(config: MatmulConfig, dtype: Any) -> int:
  """Bytes of the swizzle both operands use: wgmma wants one mode for the two.

  The widest of 128, 64 and 32 whose span divides a row of both tiles.
  """
  bits = jnp.dtype(dtype).itemsize * 8
  return min(plgpu.find_swizzle(columns * bits) for columns in (config.block_k, config.block_n))


def _tiled(swizzle: int, dtype: Any) -> tuple[Any, Any]:
  """The shared-memory layout wgmma reads: 8 rows by one swizzle span, swizzled."""
  return (
    plgpu.TilingTransform((8, swizzle // jnp.dtype(dtype).itemsize)),
    plgpu.SwizzleTransform(swizzle),
  )


def _body(*refs: Any, plan: _Plan, epilogue: Epilogue, has_bias: bool, interpreted: bool) -> None:
  """What every warpgroup of every thread block runs."""
  config = plan.config
  num_inputs = 3 if has_bias else 2
  a_gmem, b_gmem = refs[:2]
  bias_gmem = refs[2] if has_bias else None
  out_gmem, a_smem, b_smem, out_smem, full, empty = refs[num_inputs:]

  warpgroup = lax.axis_index("warpgroup")
  cta = lax.axis_index("cta")
  # tiles cta, cta + num_ctas, ...: how many of them there are
  my_tiles = (plan.tiles - 1 - cta) // plan.num_ctas + 1

  def tile_origin(i: Any) -> tuple[Any, Any, Any]:
    """Batch index, first row and first column of this block's i-th tile."""
    linear = cta + i * plan.num_ctas
    per_batch = plan.tiles_m * plan.tiles_n
    batch = linear // per_batch
    tile_m, tile_n = tile_order.grouped_tile(
      linear - batch * per_batch,
      tiles_m=plan.tiles_m,
      tiles_n=plan.tiles_n,
      group_m=config.group_m,
    )
    return batch, tile_m * config.block_m, tile_n * config.block_n

  def stage_of(step: Any) -> Any:
    # int32 by name: with jax_enable_x64 a Python int would be 64 bits wide
    return lax.rem(step, jnp.int32(config.num_stages))

  def operand_batch(batch: Any, size: int) -> Any:
    return 0 if size == 1 else batch

  def memory() -> None:
    plgpu.set_max_registers(PRODUCER_REGISTERS, action="decrease")

    def load_tile(i: Any, step: Any) -> Any:
      batch, row, column = tile_origin(i)

      def load_stage(k_step: Any, step: Any) -> Any:
        stage = stage_of(step)

        @pl.when(step >= config.num_stages)
        def _wait_until_released() -> None:
          plgpu.barrier_wait(empty.at[stage])

        depth = pl.ds(k_step * config.block_k, config.block_k)
        plgpu.copy_gmem_to_smem(
          a_gmem.at[operand_batch(batch, plan.a_batch), pl.ds(row, config.block_m), depth],
          a_smem.at[stage],
          full.at[stage],
        )
        plgpu.copy_gmem_to_smem(
          b_gmem.at[operand_batch(batch, plan.b_batch), depth, pl.ds(column, config.block_n)],
          b_smem.at[stage],
          full.at[stage],
        )
        return step + 1

      return lax.fori_loop(jnp.int32(0), jnp.int32(plan.k_steps), load_stage, step)

    steps = lax.fori_loop(jnp.int32(0), my_tiles, load_tile, jnp.int32(0))
    # see every release before leaving: the interpreter checks that no barrier
    # is abandoned in mid-phase
    for stage in range(config.num_stages):

      @pl.when(stage < steps)
      def _wait_for_the_last_release(stage: int = stage) -> None:
        plgpu.barrier_wait(empty.at[stage])

  def consumer() -> None:
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
          stage = stage_of(step)
          plgpu.barrier_wait(full.at[stage])
          plgpu.wgmma(acc, a_smem.at[stage, rows], b_smem.at[stage, :, columns])
          plgpu.wgmma_wait(in_flight)

          @pl.when(k_step >= in_flight)
          def _release() -> None:
            plgpu.barrier_arrive(empty.at[stage_of(step - in_flight)])

        lax.fori_loop(jnp.int32(0), jnp.int32(plan.k_steps), multiply, None)
        if in_flight:
          plgpu.wgmma_wait(0)
          last = first_step + plan.k_steps - 1
          plgpu.barrier_arrive(empty.at[stage_of(last)])
        # Mosaic's wait names no registers, so LLVM may move what reads them, a
        # conversion say, to before it: seen on an H200 with jax 0.11.2, where two
        # K steps are unrolled into one block of code. The barrier names them.
        return lax.optimization_barrier(acc[...])

      return pl.run_scoped(with_accumulator, plgpu.ACC((share.rows, share.columns), jnp.float32))

    def store_tile(acc: jax.Array, batch: Any, row: Any, column: Any) -> None:
      width = out_smem.shape[-1]
      bias = None
      if bias_gmem is not None:
        bias = compat.load_gmem(
          bias_gmem.at[operand_batch(batch, plan.bias_batch), pl.ds(column, share.columns)],
          interpreted=interpreted,
        )
      # the ring starts over with each tile; the main loop in between has long
      # given the last stores time to read their slots
      plgpu.wait_smem_to_gmem(0, wait_read_only=True)
      slot = 0
      for i in range(0, share.rows, WGMMA_ROWS):
        for j in range(0, share.columns, width):
          block = acc[i : i + WGMMA_ROWS, j : j + width]
          block_bias = None
          if bias is not None:
            block_bias = lax.broadcast_in_dim(bias[j : j + width], block.shape, (1,))
          # the slot is free once the store issued two sub-tiles ago has read it
          plgpu.wait_smem_to_gmem(EPILOGUE_SLOTS - 1, wait_read_only=True)
          out_smem[warpgroup, slot] = epilogue(block, block_bias)
          plgpu.commit_smem()
          plgpu.copy_smem_to_gmem(
            out_smem.at[warpgroup, slot],
            out_gmem.at[batch, pl.ds(row + i, WGMMA_ROWS), pl.ds(column + j, width)],
          )
          slot = (slot + 1) % EPILOGUE_SLOTS

    def compute_tile(i: Any, step: Any) -> Any:
      batch, row, column = tile_origin(i)
      acc = accumulate(step)
      store_tile(acc, batch, row + rows.start, column + columns.start)
      return step + plan.k_steps

    lax.fori_loop(jnp.int32(0), my_tiles, compute_tile, jnp.int32(0))
    # all stores must have left shared memory before the block exits
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)

  lax.cond(warpgroup == config.consumer_warpgroups, memory, consumer)


def _padded(array: jax.Array, *multiples: int) -> jax.Array:
  """`array` with its last dimensions padded with zeros to the given multiples."""
  sizes = array.shape[-len(multiples) :]
  wanted = _rounded_up(sizes, multiples)
  if wanted == sizes:
    return array
  missing = [(0, want - have) for want, have in zip(wanted, sizes, strict=True)]
  return jnp.pad(array, [(0, 0)] * (array.ndim - len(multiples)) + missing)


def _tma_multiples(rows: int, columns: int, swizzle_columns: int) -> tuple[int, int]:
  """What the rows and columns of an operand must be multiples of.

  Mosaic describes an operand to TMA as 8-row, one-swizzle-span tiles, which
  must divide it, except that a dimension of at most one tile is taken whole.
  The row pitch must be 16 B even then.
  """
  return (8 if rows > 8 else 1, swizzle_columns if columns > swizzle_columns else 8)


@dataclasses.dataclass(frozen=True)
class _Layout:
  """Shared-memory layouts, and the multiples that global arrays must have for them.

  Attributes:
    operand: Transforms of an A or B stage.
    staging: Transforms of an output slot.
    staging_columns: Columns of an output slot.
    a_multiples, b_multiples, out_multiples: Of (rows, columns).
  """

  operand: tuple[Any, ...]
  staging: tuple[Any, ...]
  staging_columns: int
  a_multiples: tuple[int, int]
  b_multiples: tuple[int, int]
  out_multiples: tuple[int, int]


def _layout(config: MatmulConfig, *, m: int, k: int, n: int, dtype: Any, out_dtype: Any) -> _Layout:
  size, out_size = jnp.dtype(dtype).itemsize, jnp.dtype(out_dtype).itemsize
  swizzle = _operand_swizzle(config, dtype)
  a_rows, a_columns = _tma_multiples(m, k, swizzle // size)
  if m < config.block_m:
    # TMA fills rows past the edge slowly: with M=1 in 64-row tiles the whole
    # product took 62 us against 32 us for M=64 (4096 x 12288, H200)
    a_rows = config.block_m
  columns = staging_columns(config, out_dtype=jnp.dtype(out_dtype).name)
  staging: tuple[Any, ...] = _tiled(columns * out_size, out_dtype)
  if compat.SWIZZLES_UNTILED:
    staging, out_multiples = staging[1:], (1, TMA_PITCH_BYTES // out_size)
  else:
    out_multiples = _tma_multiples(m, n, columns)
  return _Layout(
    operand=_tiled(swizzle, dtype),
    staging=staging,
    staging_columns=columns,
    a_multiples=(a_rows, a_columns),
    b_multiples=_tma_multiples(k, n, swizzle // size),
    out_multiples=out_multiples,
  )


def padding_notes(
  a_shape: tuple[int, int, int],
  b_shape: tuple[int, int, int],
  *,
  config: MatmulConfig,
  dtype: Any,
  out: Any,
) -> tuple[str, ...]:
  """What `matmul` would copy to a padded array first, a sentence each."""
  m, k, n = a_shape[1], a_shape[2], b_shape[2]
  layout = _layout(config, m=m, k=k, n=n, dtype=dtype, out_dtype=out)
  notes = []
  for name, shape, multiples in (
    ("a", (m, k), layout.a_multiples),
    ("b", (k, n), layout.b_multiples),
    ("the result", (m, n), layout.out_multiples),
  ):
    padded = _rounded_up(shape, multiples)
    if padded != shape:
      notes.append(
        f"{name} is {shape[0]} x {shape[1]}, copied by way of {padded[0]} x {padded[1]}: "
        f"the kernel's TMA copies take multiples of {multiples[0]} x {multiples[1]}"
      )
  return tuple(notes)


def _rounded_up(sizes: tuple[int, ...], multiples: tuple[int, ...]) -> tuple[int, ...]:
  return tuple(size + -size % multiple for size, multiple in zip(sizes, multiples, strict=True))


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
    config: Checked by `refusal` beforehand.
    epilogue: What to do with the accumulator.
    num_ctas: Thread blocks to launch at most; one per SM.
    interpret: None to compile, or the interpreter's parameters.

  Returns:
    [batch, M, N] in `epilogue.out_dtype`.
  """
  m, k, n = a.shape[1], a.shape[2], b.shape[2]
  batch = max(a.shape[0], b.shape[0], 1 if bias is None else bias.shape[0])
  out_dtype = epilogue.out_dtype
  layout = _layout(config, m=m, k=k, n=n, dtype=a.dtype, out_dtype=out_dtype)
  out_rows, out_columns = _rounded_up((m, n), layout.out_multiples)
  if interpret is not None and not compat.INTERPRETER_CLIPS_TMA:
    a = _padded(a, config.block_m, config.block_k)
    b = _padded(b, config.block_k, config.block_n)
    out_rows, out_columns = a.shape[1], b.shape[2]
  else:
    a = _padded(a, *layout.a_multiples)
    b = _padded(b, *layout.b_multiples)
  if bias is not None:
    # read with ordinary loads, which must stay inside: whole tiles
    bias = _padded(bias, config.block_n)

  plan = _Plan(
    config=config,
    batch=batch,
    m=m,
    n=n,
    k=k,
    a_batch=a.shape[0],
    b_batch=b.shape[0],
    bias_batch=0 if bias is None else bias.shape[0],
    num_ctas=1,
  )
  plan = dataclasses.replace(plan, num_ctas=min(num_ctas, plan.tiles))
  operands = (a, b) if bias is None else (a, b, bias)
  kernel = plgpu.kernel(
    functools.partial(
      _body,
      plan=plan,
      epilogue=epilogue,
      has_bias=bias is not None,
      interpreted=interpret is not None,
    ),
    out_type=compat.out_struct((batch, out_rows, out_columns), out_dtype, a),
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
        (config.consumer_warpgroups, EPILOGUE_SLOTS, WGMMA_ROWS, layout.staging_columns),
        out_dtype,
        transforms=layout.staging,
      ),
      # one arrival for each of the two copies
      plgpu.Barrier(num_barriers=config.num_stages, num_arrivals=2),
      plgpu.Barrier(num_barriers=config.num_stages, num_arrivals=config.consumer_warpgroups),
    ],
    grid=(plan.num_ctas,),
    grid_names=("cta",),
    num_threads=config.consumer_warpgroups + 1,
    thread_name="warpgroup",
    compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    interpret=interpret,
  )
  return kernel(*operands)[:, :m, :n]
