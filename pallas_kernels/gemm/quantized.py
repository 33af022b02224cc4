"""The public `quantized_matmul` and its explanation."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from hw_profiles import MatmulConfig
from pallas_kernels import arguments, dispatch, sharding
from pallas_kernels.device import target_device
from pallas_kernels.gemm import differentiable
from pallas_kernels.gemm.epilogue import ScaledEpilogue
from pallas_kernels.gemm.operands import Operands, Transposes
from pallas_kernels.gemm.request import GemmRequest, check_matrices, check_options
from pallas_kernels.gemm.shapes import as_matrices, explain_request, kernel_shapes


def check_codes(name: str, array: Any) -> None:
  """Raise ValueError unless `array` holds codes."""
  dtype = getattr(array.dtype, "name", str(array.dtype))
  known = arguments.CODE_DTYPES
  if dtype not in known:
    raise ValueError(
      f"{name} is {dtype}: expected codes, {' or '.join(known)}; quantize_rows makes them"
    )


def _check_scale(name: str, scale: Any, expected: tuple[int, ...], of: str) -> None:
  arguments.check_array(name, scale, min_ndim=0)
  if scale.dtype != jnp.float32:
    raise ValueError(f"{name} is {scale.dtype}: expected float32")
  shape = tuple(scale.shape)
  if shape != expected:
    raise ValueError(
      f"{name} has shape {shape}: expected {expected}, one for each {of}"
      f"{_reshaped(name, shape, expected, of)}"
    )


def _reshaped(name: str, shape: tuple[int, ...], expected: tuple[int, ...], of: str) -> str:
  """What makes scales of one shape those of another, as a clause; nothing where nothing does."""
  if (*shape, 1) == expected:
    return f"; {name}[{':' if len(shape) == 1 else '...'}, None] has it"
  if math.prod(shape) == math.prod(expected):
    return f"; {name}.reshape({expected}) has it"
  if math.prod(shape) == 1:
    return f"; jnp.broadcast_to({name}.ravel(), {expected}) has the one for every {of}"
  return ""


def check_column_scale(b_scale: Any, b_q: Any) -> None:
  """Raise ValueError unless `b_scale` is [N] or [..., 1, N] of b_q's [..., K, N]."""
  columns = b_q.shape[-1]
  one = tuple(getattr(b_scale, "shape", ())) == (columns,) or b_q.ndim == 2
  expected = (columns,) if one else (*b_q.shape[:-2], 1, columns)
  if tuple(getattr(b_scale, "shape", ())) == (*b_q.shape[:-2], 1, columns):
    expected = tuple(b_scale.shape)
  _check_scale("b_scale", b_scale, expected, "column of b_q")


def column_scale(b_scale: jax.Array, b3: jax.Array, lead: tuple[int, ...]) -> jax.Array:
  """The column scales as the kernels' [batch or 1, N], for b3 of [batch or 1, K, N]."""
  columns = b_scale if b_scale.ndim == 1 else b_scale[..., 0, :]
  return _vectors(columns, (b3.shape[0], b3.shape[2]), lead)


def _request(
  a_q: Any,
  b_q: Any,
  a_scale: Any,
  b_scale: Any,
  *,
  out_dtype: Any,
  config: MatmulConfig | None,
  implementation: str | None,
) -> GemmRequest:
  """Check the arguments of `quantized_matmul`; raises ValueError."""
  check_matrices(("a_q", a_q), ("b_q", b_q), check_dtype=check_codes)
  _check_scale("a_scale", a_scale, (*a_q.shape[:-1], 1), "row of a_q")
  check_column_scale(b_scale, b_q)
  check_options(config, implementation=implementation)
  return GemmRequest(
    op="quantized_matmul",
    dtype=jnp.dtype(a_q.dtype),
    epilogue=ScaledEpilogue(out_dtype=arguments.float_dtype("out_dtype", out_dtype)),
    precision=None,
    batch_invariant=False,
    config=config,
    implementation=implementation,
    # wgmma and cuBLAS multiply 8-bit operands with K innermost in both. Where the
    # caller's b_q is itself the transpose of a stored [N, K], XLA sees the two
    # transposes cancel and nothing is copied.
    transposes=Transposes(b=True),
  )


def _explain(
  a_q: Any, b_q: Any, a_scale: Any, b_scale: Any, **options: Any
) -> dispatch.Explanation:
  """What `quantized_matmul(...)` would run."""
  request = _request(a_q, b_q, a_scale, b_scale, **options)
  _, a_shape, b_shape = kernel_shapes(tuple(a_q.shape), tuple(b_q.shape))
  batch, _, n = b_shape
  operands = Operands(
    jax.ShapeDtypeStruct(a_shape, a_q.dtype),
    (jax.ShapeDtypeStruct((batch, n, b_shape[1]), b_q.dtype),),
    (jax.ShapeDtypeStruct(a_shape[:2], jnp.float32),),
    (jax.ShapeDtypeStruct((batch, n), jnp.float32),),
  )
  call = ", ".join(
    (
      *map(arguments.describe_array, (a_q, b_q, a_scale, b_scale)),
      f"out={request.epilogue.out_dtype.name}",
    )
  )
  return explain_request(request, operands, call, target_device())


@dispatch.explained_by(_explain)
def quantized_matmul(
  a_q: jax.Array,
  b_q: jax.Array,
  a_scale: jax.Array,
  b_scale: jax.Array,
  *,
  out_dtype: Any,
  config: MatmulConfig | None = None,
  implementation: str | None = None,
) -> jax.Array:
  """C = round_out((A_q·B_q) ⊙ a_scale ⊙ b_scale).

  The product of two quantised matrices, A ≈ a_q·a_scale by rows and
  B ≈ b_q·b_scale by columns. Products of float8 codes accumulate in float32,
  of int8 codes in int32, exactly; the scales are applied to the finished sum in
  float32, the row's first, and the result is rounded once.

  On Hopper the tensor cores keep only 13 fraction bits of a sum of float8
  products. The Hopper kernel therefore sums `config.block_k` products there and
  adds these sums in float32 (from jax 0.11 on): `reference` bounds it with
  accumulate="tensor_core_fp8", accumulation_chunk=block_k.

  Args:
    a_q: [..., M, K], float8_e4m3fn or int8; any size, 0 too.
    b_q: [K, N], or [..., K, N] with leading dimensions that broadcast against
      a_q's; the dtype of a_q. Kept as [N, K] and passed as its transpose, it is
      read where it lies; a [K, N] array is transposed first, a copy.
    a_scale: [..., M, 1], float32.
    b_scale: [N] or [..., 1, N], float32.
    out_dtype: Dtype of C: bfloat16, float16 or float32.
    config: Tile sizes; None: a tuned one, else the planner's choice.
    implementation: As for `matmul`.

  Returns:
    [..., M, N] in `out_dtype`. With K = 0 zeros; an empty result is empty.

  Raises:
    ValueError: an argument is wrong.
    hw_profiles.InfeasibleTileError: `config` does not fit the device; not of
      "interpret", which runs any tile (`explain` says which no GPU would).
    NotImplementedError: the implementation asked for cannot run this call.

  Not differentiable: the codes are integers in all but name. JAX says so.
  """
  named = (("a_q", a_q), ("b_q", b_q), ("a_scale", a_scale), ("b_scale", b_scale))
  for name, array in named:
    arguments.require_values(name, array)
  request = _request(
    a_q,
    b_q,
    a_scale,
    b_scale,
    out_dtype=out_dtype,
    config=config,
    implementation=implementation,
  )
  lead, a3, (b3,) = as_matrices(a_q, (b_q,))
  n = b_q.shape[-1]
  rows = _vectors(a_scale[..., 0], (a3.shape[0], a3.shape[1]), lead)
  columns = column_scale(b_scale, b3, lead)
  a3, b3, rows, columns = sharding.vary_together(a3, jnp.swapaxes(b3, 1, 2), rows, columns)
  out = differentiable.run_batched(request, Operands(a3, (b3,), (rows,), (columns,)))
  return out.reshape(*lead, a_q.shape[-2], n)


def _vectors(scale: jax.Array, shape: tuple[int, int], lead: tuple[int, ...]) -> jax.Array:
  """Scales of [..., size] as the kernels' [batch or 1, size]."""
  if scale.size == shape[0] * shape[1]:
    return scale.reshape(shape)
  return jnp.broadcast_to(scale, (*lead, scale.shape[-1])).reshape(shape)
