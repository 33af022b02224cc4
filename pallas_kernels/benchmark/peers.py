"""What people would use instead, written as they would write it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from pallas_kernels.benchmark.flags import Options


def row_name(peer: str) -> str:
  """What a peer's row says in its `implementation` field: no kernel of ours has such a name."""
  return f"peer:{peer}"


def xla(options: Options) -> Callable[[jax.Array, jax.Array, jax.Array | None], jax.Array]:
  """silu(A·B + bias) in plain jax.numpy, compiled by XLA: cuBLAS on a GPU.

  float32 operands ask for float32 accuracy, as the kernels give it; XLA's
  default on a GPU would be TF32, another computation.
  """

  def function(a: jax.Array, b: jax.Array, bias: jax.Array | None) -> jax.Array:
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    out_dtype = jnp.dtype(options.out_dtype or a.dtype)
    intermediate_dtype = jnp.dtype(options.intermediate_dtype or out_dtype)
    plain = bias is None and options.activation is None
    x = jnp.matmul(
      a,
      b,
      precision=precision,
      preferred_element_type=out_dtype if plain else jnp.float32,
    )
    if bias is not None:
      x = x + bias.astype(x.dtype)
    if options.activation == "silu":
      x = jax.nn.silu(x.astype(intermediate_dtype).astype(jnp.float32))
    return x.astype(out_dtype)

  return function
