"""C = epilogue(A·B, ...) left to XLA: cuBLAS on a GPU, and any device JAX has.

The fallback where no kernel applies. It keeps the contract of the kernels: the
sum in float32 (float64 for float64 operands, int32 for integers), the epilogue
after it, one rounding to the output dtype.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.dtypes import sum_dtype
from pallas_kernels.gemm.epilogue import Epilogue, complete
from pallas_kernels.gemm.operands import Operands, Transposes
from pallas_kernels.hopper.tma import padded
from pallas_kernels.rowwise import arithmetic, codec

# The terms that one int8 instruction of a tensor core sums up. Where 32 do not divide K
# but 16 do, a Triton kernel of XLA's own takes 16 terms a step, and its sums come out
# exactly twice too large: of 7 x 16 x 250 and 7 x 48 x 18, B stored [K, N] and scaled
# under jit (jax 0.11.2 on an H200).
INT8_INSTRUCTION_TERMS = 32


def matmul(
  operands: Operands,
  *,
  transposes: Transposes,
  epilogue: Epilogue,
  precision: Any,
  code_dtype: jnp.dtype | None = None,
) -> jax.Array:
  """out[i] = epilogue(a[i]·b[i], ...) for i < batch.

  Args:
    operands: Matrices of any floating-point dtype, or integers.
    transposes: How they are stored.
    epilogue: What to do with the sums.
    precision: For `lax.dot_general`; matters for float32 operands only.
    code_dtype: Quantise the rows of A, stored [M, K], to it first; the epilogue's
      first operand a row is then their scale.

  Returns:
    [batch, M, N] in `epilogue.out_dtype`.
  """
  a: jax.Array = operands.a
  scales: tuple[jax.Array, ...] = ()
  if code_dtype is not None:
    wide = a.astype(jnp.float32)
    scale = codec.scale_of(codec.largest_magnitude(wide), code_dtype, arithmetic.XLA)
    a, scales = codec.encode(wide, scale, code_dtype, arithmetic.XLA), (scale,)
  accs = tuple(_product(a, b, transposes, precision) for b in operands.bs)
  out = complete(
    epilogue,
    accs,
    (*scales, *(x[:, :, None] for x in operands.per_row)),
    tuple(x[:, None, :] for x in operands.per_column),
    by_xla=True,
  )
  return jnp.broadcast_to(out, (operands.sizes(transposes).batch, *out.shape[1:]))


def _product(a: jax.Array, b: jax.Array, transposes: Transposes, precision: Any) -> jax.Array:
  """The sums of one product, [batch, M, N]; a shared operand is not copied."""
  # the axes that are summed over, as stored
  a_depth, b_depth = (1 if transposes.a else 2), (2 if transposes.b else 1)
  if a.dtype == jnp.int8:
    # multiples of that axis and, where it is not the last, of the last
    a, b = (
      padded(x, *(INT8_INSTRUCTION_TERMS, 1)[: 3 - depth])
      for x, depth in ((a, a_depth), (b, b_depth))
    )
  options = {"precision": precision, "preferred_element_type": sum_dtype(a.dtype)}
  if a.shape[0] == b.shape[0]:
    return lax.dot_general(a, b, (((a_depth,), (b_depth,)), ((0,), (0,))), **options)
  if b.shape[0] == 1:
    return lax.dot_general(a, b[0], (((a_depth,), (b_depth - 1,)), ((), ())), **options)
  acc = lax.dot_general(b, a[0], (((b_depth,), (a_depth - 1,)), ((), ())), **options)
  return jnp.swapaxes(acc, 1, 2)
