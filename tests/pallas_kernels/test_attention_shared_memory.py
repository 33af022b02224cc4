"""Shared memory of the Hopper attention kernels: the planner counts what Mosaic allocates."""

import jax
import jax.numpy as jnp
import pytest

import hw_profiles
from hw_profiles import AttentionProblem
from pallas_kernels import AttentionConfig, compat, device, flash_attention
from pallas_kernels.lowering import jax_private

pytestmark = pytest.mark.skipif(not compat.CARRIES_ARRAYS, reason="no Hopper attention")
FORWARD = [
  (128, AttentionConfig(128, 128, 2)),
  (64, AttentionConfig(128, 128, 3)),
  (64, AttentionConfig(192, 96, 2)),
  (256, AttentionConfig(64, 48, 2)),
]
BACKWARD = [
  (128, AttentionConfig(128, 128, 2, block_q_dkv=64, block_kv_dkv=128)),
  (64, AttentionConfig(128, 128, 3, block_q_dkv=64, block_kv_dkv=128)),
  (64, AttentionConfig(64, 64, 2, block_q_dkv=64, block_kv_dkv=64)),
]


def allocated(call, size: int) -> list[int]:
  operands = [jax.ShapeDtypeStruct((1, 1024, 4, size), jnp.bfloat16)] * 3
  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    return [one.shared_bytes for one in jax_private.mosaic_modules(call, *operands)]


def planned(size: int, config: AttentionConfig, *, causal: bool, backward: bool) -> int:
  problem = AttentionProblem(1, 1024, 1024, 4, 4, head_dim=size, causal=causal, backward=backward)
  plan = hw_profiles.plan(problem, config, "h200_sxm", schedule="warp_specialized")
  assert plan.fits
  return sum(one.needed_bytes for one in plan.buffers if one.space == "shared")


def attention(config: AttentionConfig, *, causal: bool):
  return lambda *x: flash_attention(
    *x, is_causal=causal, causal_alignment="top_left", config=config, implementation="mosaic_gpu"
  )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("size", "config"), FORWARD, ids=str)
def test_of_the_forward_kernel(size, config, causal):
  found = allocated(attention(config, causal=causal), size)
  assert found == [planned(size, config, causal=causal, backward=False)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("size", "config"), BACKWARD, ids=str)
def test_of_the_gradients(size, config, causal):
  def loss(*x):
    return attention(config, causal=causal)(*x).astype(jnp.float32).sum()

  found = allocated(jax.grad(loss, argnums=(0, 1, 2)), size)
  assert found[-1] == planned(size, config, causal=causal, backward=True)
