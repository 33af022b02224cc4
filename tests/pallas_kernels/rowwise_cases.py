"""Row-wise ops: what runs here, operands, and bounds of what `reference` leaves open."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_ops import compiled

import hw_profiles
import pallas_kernels
import reference
from pallas_kernels import compat

# Each implementation that runs on this machine.
ROWS = (
  ["xla", "interpret"]
  if jax.default_backend() == "cpu"
  else [pytest.param(name, marks=pytest.mark.gpu) for name in ("xla", "triton")]
)
KERNEL = (
  ["interpret"]
  if jax.default_backend() == "cpu"
  else [pytest.param("triton", marks=pytest.mark.gpu)]
)
# The Hopper kernels of rows: compiled on a GPU, interpreted beside it.
ON_CPU = jax.default_backend() == "cpu"
HOPPER = "mosaic_gpu_interpret" if ON_CPU else "mosaic_gpu"
HOPPER_MARKS = [] if ON_CPU else [pytest.mark.gpu]
runs_hopper = pytest.mark.skipif(not compat.CARRIES_ARRAYS, reason="refused on this JAX version")
H200 = {"device_kind": "NVIDIA H200", "num_cores": 132}
H200_SHARED_BYTES = hw_profiles.get_profile("h200_sxm").max_shared_bytes_per_block
U = 2.0**-24


def normal(rng: np.random.Generator, *shape: int, dtype: str = "bfloat16") -> jax.Array:
  """Standard normal operands."""
  # rounded by NumPy, to the same bits: nothing is compiled for it
  return jnp.asarray(rng.standard_normal(shape).astype(np.float32).astype(jnp.dtype(dtype)))


quantize_rows, rms_norm, swiglu, swiglu_quantize, transpose = map(
  compiled,
  (
    pallas_kernels.quantize_rows,
    pallas_kernels.rms_norm,
    pallas_kernels.swiglu,
    pallas_kernels.swiglu_quantize,
    pallas_kernels.transpose,
  ),
)


def arrays(*values):
  """NumPy arrays of JAX ones."""
  return tuple(np.asarray(value) for value in values)


def assert_rms_gradients(d_x, d_weight, x, weight, d_out) -> None:
  """Both gradients are within the error of their float32 evaluation."""
  bounds = reference.bounded_rms_norm_gradients(*arrays(x, weight, d_out))
  for actual, bound in ((d_x, bounds.x), (d_weight, bounds.weight)):
    reference.assert_within(np.asarray(actual), bound.round(actual.dtype))


def assert_swiglu_gradients(d_gate, d_up, gate, up, d_out) -> None:
  """Both gradients are within the error of their float32 evaluation.

  `reference.bounded_swiglu_gradients` holds for every form of silu' and is twice
  as wide; this is for the kernels' own. silu' and silu are made of h = exp(-|x|/2),
  which is off by |x|/2 + 2 units of 2^-24 and enters twice, and of a dozen
  further roundings of terms no larger than σ·(1 + |x|·(1 - σ)); two products
  follow. (In compiled ones of 2^(-x·log2(e)), off by 1.23·|x| + 4, and its sum's
  inverse root, off by 2.2, which enters twice.) Subnormal results may be zero.
  """
  x, upper, d = (np.asarray(a, np.float64) for a in (gate, up, d_out))
  exact = reference.swiglu_gradients(x, upper, d)
  decay = np.exp(-np.abs(x))
  sigma = np.where(x < 0, decay, 1.0) / (1 + decay)
  relative = (18 + 2 * np.abs(x)) * U
  slope = sigma * (1 + np.abs(x) * (1 - sigma))
  tiny = 2.0**-126 * (1 + np.abs(d)) * (1 + np.abs(upper))
  for actual, value, terms in (
    (d_gate, exact.gate, np.abs(d * upper) * slope),
    (d_up, exact.up, np.abs(d * x) * sigma),
  ):
    bound = reference.Bounded.within(value, relative * terms + tiny)
    reference.assert_within(np.asarray(actual), bound.round(np.asarray(actual).dtype))
