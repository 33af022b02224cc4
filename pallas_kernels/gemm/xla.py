"""C = epilogue(A·B + bias) left to XLA: cuBLAS on a GPU, and any device JAX has.

The fallback where no kernel applies. It keeps the contract of the kernels: the
sum in float32 (float64 for float64 operands), the epilogue after it, one
rounding to the output dtype.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.batching import batch_of
from pallas_kernels.dtypes import accumulator_dtype
from pallas_kernels.gemm.epilogue import Epilogue


def matmul(
  a: jax.Array, b: jax.Array, bias: jax.Array | None, *, epilogue: Epilogue, precision: Any
) -> jax.Array:
  """out[i] = epilogue(a[i]·b[i] + bias[i]) for i < batch.

  Args:
    a: [batch or 1, M, K], any floating-point dtype.
    b: [batch or 1, K, N], the dtype of a.
    bias: [batch or 1, N] or None.
    epilogue: What to do with the sum.
    precision: For `lax.dot_general`; matters for float32 operands only.

  Returns:
    [batch, M, N] in `epilogue.out_dtype`.
  """
  batch = batch_of(a, b, bias)
  accumulate = accumulator_dtype(a.dtype)
  if a.shape[0] == b.shape[0]:
    acc = lax.dot_general(
      a,
      b,
      (((2,), (1,)), ((0,), (0,))),
      precision=precision,
      preferred_element_type=accumulate,
    )
  elif b.shape[0] == 1:
    acc = lax.dot_general(
      a, b[0], (((2,), (0,)), ((), ())), precision=precision, preferred_element_type=accumulate
    )
  else:
    acc = lax.dot_general(
      b, a[0], (((1,), (1,)), ((), ())), precision=precision, preferred_element_type=accumulate
    )
    acc = jnp.swapaxes(acc, 1, 2)
  out = epilogue(acc, None if bias is None else bias[:, None, :])
  return jnp.broadcast_to(out, (batch, *out.shape[1:]))
