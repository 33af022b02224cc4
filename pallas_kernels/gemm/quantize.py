"""The public `quantize_matmul`: the rows of A quantised, then multiplied."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

import hw_profiles
from hw_profiles import MatmulConfig
from pallas_kernels import arguments, dispatch, sharding
from pallas_kernels.device import target_device
from pallas_kernels.gemm import differentiable, quantized
from pallas_kernels.gemm.epilogue import ScaledEpilogue
from pallas_kernels.gemm.operands import Operands
from pallas_kernels.gemm.request import GemmRequest, check_options, check_product_shapes
from pallas_kernels.gemm.shapes import as_matrices, explain_request, kernel_shapes
from pallas_kernels.rowwise import quantize_rows

# The tile that the traffic of both programs is compared with where none is given.
_TILE = (128, 128)

# What quantises where one implementation of the product was asked for.
_QUANTIZER = {
  "mosaic_gpu": None,
  "triton": "triton",
  "interpret": "interpret",
  "mosaic_gpu_interpret": "interpret",
  "xla": "xla",
  None: None,
}


def _check(
  a: Any,
  b_q: Any,
  b_scale: Any,
  *,
  fuse: bool | None,
  config: MatmulConfig | None,
  implementation: str | None,
) -> None:
  """Check the arguments of `quantize_matmul`; raises ValueError."""
  arguments.check_array("a", a, min_ndim=2)
  arguments.check_float("a", a)
  arguments.check_array("b_q", b_q, min_ndim=2)
  quantized.check_codes("b_q", b_q)
  check_product_shapes(("a", a), ("b_q", b_q))
  quantized.check_column_scale(b_scale, b_q)
  if fuse not in (None, True, False):
    raise ValueError(f"fuse={fuse!r}: expected True, False or None")
  check_options(config, implementation=implementation)


def _fuses(a: Any, b_q: Any, config: MatmulConfig | None, fuse: bool | None) -> bool:
  """The caller's choice, or the one that moves fewer bytes."""
  if fuse is not None:
    return fuse
  block_m, block_n = _TILE if config is None else (config.block_m, config.block_n)
  _, (batch, m, k), (_, _, n) = kernel_shapes(tuple(a.shape), tuple(b_q.shape))
  traffic = hw_profiles.quantized_projection_traffic(
    m=batch * m,
    k=k,
    n=n,
    block_m=block_m,
    block_n=block_n,
    fuse=None,
    in_dtype=jnp.dtype(a.dtype).name,
    quantized_dtype=jnp.dtype(b_q.dtype).name,
  )
  # at one column block both move the same, and two kernels of which each does
  # one thing are the faster ones
  return traffic.fused and traffic.grid[1] > 1


def _fused_request(
  a: Any, b_q: Any, *, out_dtype: Any, config: MatmulConfig | None, implementation: str | None
) -> GemmRequest:
  return GemmRequest(
    op="quantize_matmul",
    dtype=jnp.dtype(a.dtype),
    epilogue=ScaledEpilogue(out_dtype=arguments.float_dtype("out_dtype", out_dtype)),
    precision=None,
    batch_invariant=False,
    config=config,
    implementation=implementation,
    code_dtype=jnp.dtype(b_q.dtype),
  )


def _explain(a: Any, b_q: Any, b_scale: Any, **options: Any) -> dispatch.Explanation:
  """What `quantize_matmul(...)` would run; unfused, its product, with a note on the rest."""
  fuse, rest = options.pop("fuse"), options
  checked = {name: rest[name] for name in ("config", "implementation")}
  _check(a, b_q, b_scale, fuse=fuse, **checked)
  if not _fuses(a, b_q, rest["config"], fuse):
    codes = jax.ShapeDtypeStruct(a.shape, b_q.dtype)
    scale = jax.ShapeDtypeStruct((*a.shape[:-1], 1), jnp.float32)
    product = dispatch.explain(quantized.quantized_matmul, codes, b_q, scale, b_scale, **rest)
    quantizer = _QUANTIZER[rest["implementation"]]
    rows = dispatch.explain(quantize_rows, a, dtype=b_q.dtype, implementation=quantizer)
    tile = "" if rows.config is None else f" with {rows.config.describe()}"
    note = f"not fused: quantize_rows runs first, {rows.implementation}{tile}"
    return dataclasses.replace(product, notes=(note, *product.notes))
  request = _fused_request(a, b_q, **rest)
  _, a_shape, b_shape = kernel_shapes(tuple(a.shape), tuple(b_q.shape))
  operands = Operands(
    jax.ShapeDtypeStruct(a_shape, a.dtype),
    (jax.ShapeDtypeStruct(b_shape, b_q.dtype),),
    (),
    (jax.ShapeDtypeStruct((b_shape[0], b_shape[2]), jnp.float32),),
  )
  call = ", ".join((*map(arguments.describe_array, (a, b_q, b_scale)), "fuse=True"))
  return explain_request(request, operands, call, target_device())


@dispatch.explained_by(_explain)
def quantize_matmul(
  a: jax.Array,
  b_q: jax.Array,
  b_scale: jax.Array,
  *,
  fuse: bool | None = None,
  out_dtype: Any,
  config: MatmulConfig | None = None,
  implementation: str | None = None,
) -> jax.Array:
  """C = round_out((A_q·B_q) ⊙ a_scale ⊙ b_scale), (A_q, a_scale) = quantize_rows(A).

  The rows of A take the dtype of b_q, as `quantize_rows` defines it to the bit,
  and are multiplied as by `quantized_matmul`. Fused, each tile of C quantises
  its rows of A on the way: nothing is written in between, but every column of
  tiles reads A, in its own wider dtype, twice. Separate, A is read and written
  once and its codes are read by the tiles. `fuse=None` takes the one that moves
  fewer bytes (`hw_profiles.quantized_projection_traffic`): separate, from two
  columns of tiles on.

  Args:
    a: [..., M, K] in bfloat16, float16 or float32; any size, 0 too.
    b_q: [K, N], or [..., K, N] with leading dimensions that broadcast against
      a's; float8_e4m3fn or int8.
    b_scale: [N] or [..., 1, N], float32.
    fuse: Whether the matmul quantises; None: as the traffic says.
    out_dtype: Dtype of C: bfloat16, float16 or float32.
    config: Tile of the product; None: a tuned one, else the planner's choice.
    implementation: Of the product, as for `matmul`; fused, not the Hopper kernel.

  Returns:
    [..., M, N] in `out_dtype`. With K = 0 zeros; an empty result is empty.

  Raises:
    ValueError: an argument is wrong.
    hw_profiles.InfeasibleTileError: `config` does not fit the device; not of
      "interpret", which runs any tile (`explain` says which no GPU would).
    NotImplementedError: the implementation asked for cannot run this call.

  Not differentiable: a quantisation has no gradient. JAX says so.
  """
  named = (("a", a), ("b_q", b_q), ("b_scale", b_scale))
  for name, array in named:
    arguments.require_values(name, array)
  a = arguments.as_array("a", a)
  _check(a, b_q, b_scale, fuse=fuse, config=config, implementation=implementation)
  if not _fuses(a, b_q, config, fuse):
    codes, scale = quantize_rows(a, dtype=b_q.dtype, implementation=_QUANTIZER[implementation])
    return quantized.quantized_matmul(
      codes,
      b_q,
      scale,
      b_scale,
      out_dtype=out_dtype,
      config=config,
      implementation=implementation,
    )
  request = _fused_request(
    a, b_q, out_dtype=out_dtype, config=config, implementation=implementation
  )
  lead, a3, (b3,) = as_matrices(a, (b_q,))
  columns = quantized.column_scale(b_scale, b3, lead)
  a3, b3, columns = sharding.vary_together(a3, b3, columns)
  out = differentiable.run_batched(request, Operands(a3, (b3,), (), (columns,)))
  return out.reshape(*lead, a.shape[-2], b_q.shape[-1])
