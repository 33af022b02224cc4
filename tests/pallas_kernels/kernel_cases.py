"""Operands, and how each implementation adds up: what `reference` bounds its error with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference

# Where a test is about an implementation, not about numbers: each that runs here.
EVERY = (
  ["xla", "interpret", "mosaic_gpu_interpret"]
  if jax.default_backend() == "cpu"
  else [pytest.param(name, marks=pytest.mark.gpu) for name in ("xla", "triton", "mosaic_gpu")]
)
ACCUMULATES = {
  # XLA on a GPU is cuBLAS, on tensor cores
  "xla": "tensor_core" if jax.default_backend() == "gpu" else "ieee",
  "interpret": "ieee",
  "mosaic_gpu_interpret": "ieee",
  "triton": "tensor_core",
  "mosaic_gpu": "tensor_core",
}


def normal(rng: np.random.Generator, *shape: int, dtype: str = "bfloat16") -> jax.Array:
  """Standard normal operands."""
  return jnp.asarray(rng.standard_normal(shape), dtype)


def assert_inside_bound(
  actual: jax.Array, a: jax.Array, b: jax.Array, implementation: str, *, bias=None, **options
) -> None:
  """Every element of a matmul result is within the derived bound of float64."""
  reference.assert_matmul_close(
    np.asarray(actual),
    np.asarray(a),
    np.asarray(b),
    bias=None if bias is None else np.asarray(bias),
    out_dtype=actual.dtype,
    accumulate=ACCUMULATES[implementation],
    **options,
  )
