"""What attention has in memory beside its operands, at the seed's size, on a GPU."""

import functools

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels import flash_attention

pytestmark = pytest.mark.gpu
LENGTH, SIZE = 8192, 128
OUT_BYTES, RESIDUAL_BYTES, SCORE_BYTES = 2 * LENGTH * SIZE, 4 * LENGTH, 4 * LENGTH * LENGTH


def extra_bytes(function) -> int:
  """What XLA sets aside for a compiled call beside operands and results."""
  one = jax.ShapeDtypeStruct((1, LENGTH, 1, SIZE), jnp.bfloat16)
  return jax.jit(function).lower(one, one, one).compile().memory_analysis().temp_size_in_bytes


def with_gradients(call):
  return jax.grad(lambda *x: call(*x).astype(jnp.float32).sum(), argnums=(0, 1, 2))


@pytest.mark.parametrize("name", ["mosaic_gpu", "triton"])
def test_a_causal_head_needs_at_most_the_output_and_the_residual(name):
  call = functools.partial(flash_attention, is_causal=True, implementation=name)
  unfused = functools.partial(jax.nn.dot_product_attention, is_causal=True, implementation="xla")
  assert extra_bytes(call) <= OUT_BYTES + RESIDUAL_BYTES
  assert extra_bytes(unfused) >= SCORE_BYTES
  # dO, delta and a float32 dQ beside them
  assert extra_bytes(with_gradients(call)) <= 5 * OUT_BYTES
