"""Operands, and results held against the bound that `reference` derives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_ops import compiled

import pallas_kernels
import reference
from pallas_kernels import dispatch

matmul, gated_matmul, quantized_matmul, quantize_matmul = map(
  compiled,
  (
    pallas_kernels.matmul,
    pallas_kernels.gated_matmul,
    pallas_kernels.quantized_matmul,
    pallas_kernels.quantize_matmul,
  ),
)

# Where a test is about an implementation, not about numbers: each that runs here.
EVERY = (
  ["xla", "interpret", "mosaic_gpu_interpret"]
  if jax.default_backend() == "cpu"
  else [pytest.param(name, marks=pytest.mark.gpu) for name in ("xla", "triton", "mosaic_gpu")]
)
# Those of them that take a tile: all but XLA.
TILED = EVERY[1:]


def accumulates(implementation: str, dtype: str = "bfloat16") -> str:
  """How an implementation adds up on this machine."""
  return dispatch.accumulation(implementation, dtype, jax.default_backend())


def normal(rng: np.random.Generator, *shape: int, dtype: str = "bfloat16") -> jax.Array:
  """Standard normal operands."""
  # rounded by NumPy, to the same bits: nothing is compiled for it
  return jnp.asarray(rng.standard_normal(shape).astype(np.float32).astype(jnp.dtype(dtype)))


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
    accumulate=accumulates(implementation, a.dtype.name),
    **options,
  )
