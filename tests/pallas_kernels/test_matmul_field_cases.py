"""Faults that users of comparable software reported, as cases (ids BC-nn)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import MatmulConfig, matmul


@pytest.mark.parametrize("k", [1, 15, 16, 17, 31, 33, 47, 65])
def test_bc01_k_not_a_multiple_of_block_k(k):
  # Σ 0..K-1, exact; 496 at K=33 is a dropped tail, NaN an unmasked one
  a = jnp.ones((17, k), jnp.float32)
  b = jnp.tile(jnp.arange(float(k), dtype=jnp.float32)[:, None], (1, 19))
  out = matmul(a, b, config=MatmulConfig(16, 16, 32), implementation="interpret")
  np.testing.assert_array_equal(np.asarray(out), np.full((17, 19), k * (k - 1) / 2, np.float32))


def test_bc02_outer_product_of_one_row(implementation):
  a = jnp.asarray([[3.0]], jnp.bfloat16)
  b = (jnp.arange(131.0, dtype=jnp.float32) - 65)[None, :].astype(jnp.bfloat16)
  out = matmul(a, b, implementation=implementation)
  np.testing.assert_array_equal(np.asarray(out, np.float32), 3 * (np.arange(131.0)[None, :] - 65))


@pytest.mark.parametrize("shape", [(1, 1, 1), (17, 33, 1), (1, 4096, 1), (129, 1, 257)], ids=str)
def test_bc02_degenerate_shapes_of_ones(implementation, shape):
  m, k, n = shape
  out = matmul(
    jnp.ones((m, k), jnp.bfloat16), jnp.ones((k, n), jnp.bfloat16), implementation=implementation
  )
  np.testing.assert_array_equal(np.asarray(out, np.float32), np.full((m, n), float(k)))


@pytest.mark.parametrize(
  ("a_shape", "b_shape"), [((5, 0), (0, 7)), ((0, 8), (8, 7)), ((5, 8), (8, 0))]
)
def test_bc03_empty_dimensions(implementation, a_shape, b_shape):
  a, b = jnp.zeros(a_shape, jnp.float32), jnp.zeros(b_shape, jnp.float32)
  implementation = "xla" if implementation == "mosaic_gpu" else implementation

  def run(a, b):
    return matmul(a, b, activation="silu", implementation=implementation)

  out = run(a, b)
  np.testing.assert_array_equal(np.asarray(out), np.zeros((a_shape[0], b_shape[1]), np.float32))
  d_a, d_b = jax.grad(lambda a, b: run(a, b).sum(), argnums=(0, 1))(a, b)
  assert d_a.shape == a_shape
  assert d_b.shape == b_shape


def test_bc03_an_empty_sum_still_has_a_bias():
  out = matmul(jnp.zeros((2, 0)), jnp.zeros((0, 3)), bias=jnp.array([1.0, 2.0, 3.0]))
  np.testing.assert_array_equal(np.asarray(out), np.tile([1.0, 2.0, 3.0], (2, 1)))


def test_bc45_vmap_over_more_than_65535():
  # CUDA limits the y and z axes of a grid; a mapped axis must not end up there
  size = 65537
  a = (jnp.arange(size) % 200).astype(jnp.float32)[:, None, None]
  b = jnp.ones((1, 1), jnp.float32)
  out = jax.vmap(lambda a: matmul(a, b))(a)
  np.testing.assert_array_equal(np.asarray(out)[:, 0, 0], np.arange(size) % 200)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mosaic_gpu", "triton"])
def test_bc45_batches_of_both_operands_beyond_65535(name):
  size = 65537
  values = (jnp.arange(size) % 200).astype(jnp.bfloat16)
  a = jnp.broadcast_to(values[:, None, None], (size, 1, 8))
  b = jnp.broadcast_to(jnp.eye(8, dtype=jnp.bfloat16), (size, 8, 8))
  out = jax.vmap(lambda a, b: matmul(a, b, implementation=name))(a, b)
  np.testing.assert_array_equal(np.asarray(out[:, 0, 0], np.float32), np.arange(size) % 200)
