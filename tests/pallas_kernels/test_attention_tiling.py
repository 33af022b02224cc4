"""The trade-off of key blocks in the portable kernel: counted as it runs, against the model."""

from collections import Counter

import jax
import pytest
from attention_cases import Case, quick

import hw_profiles
from hw_profiles import AttentionConfig, AttentionProblem
from pallas_kernels.attention import softmax
from pallas_kernels.attention.query_tiles import QueryTiles

ITEM_BYTES = 2


@pytest.fixture
def counted(monkeypatch):
  """Counts updates of the running softmax, and bytes of keys and values that are read."""
  found = Counter()
  step, load_keys = softmax.step, QueryTiles.load_keys

  def counting_step(*args, **kwargs):
    jax.debug.callback(lambda: found.update(state_updates=1))
    return step(*args, **kwargs)

  def counting_load(self, ref, size, keys, program, *, masked):
    read_bytes = self.walked_block * size * ITEM_BYTES
    jax.debug.callback(lambda: found.update(kv_read_bytes=read_bytes))
    return load_keys(self, ref, size, keys, program, masked=masked)

  monkeypatch.setattr(softmax, "step", counting_step)
  monkeypatch.setattr(QueryTiles, "load_keys", counting_load)
  return found


def run(case: Case, config: AttentionConfig, rng) -> None:
  jax.block_until_ready(quick(case.call("interpret", config=config))(**case.arrays(rng)))
  jax.effects_barrier()


# 8 KB hold 59, 38 or 28 queries of 16 features: the seed's trade-off, a hundredth as large
@pytest.mark.parametrize("block_kv", [1, 16, 32])
def test_sweeps_traffic_and_updates_are_the_models(block_kv, counted, rng):
  length, size = 192, 16
  block_q = hw_profiles.attention_max_block_q(capacity_bytes=8000, head_dim=size, block_kv=block_kv)
  model = hw_profiles.attention_traffic(
    seq_q=length,
    seq_kv=length,
    head_dim=size,
    block_q=block_q,
    block_kv=block_kv,
    in_dtype="bfloat16",
  )
  case = Case("one head", (1, length, length, 1, 1, size, size), "bfloat16")
  run(case, AttentionConfig(block_q, block_kv), rng)
  assert counted["state_updates"] == model.state_updates
  assert counted["kv_read_bytes"] == model.kv_read_bytes
  # every sweep reads all keys and values once
  assert counted["kv_read_bytes"] == model.sweeps * length * 2 * size * ITEM_BYTES


def test_blocks_that_no_query_sees_are_not_visited(counted, rng):
  # as the planner counts them for the kernel that Triton compiles
  problem = AttentionProblem(1, 192, 192, 2, 1, head_dim=16, causal=True)
  config = AttentionConfig(32, 16)
  plan = hw_profiles.plan(problem, config, "h200_sxm", schedule="multistage")
  case = Case("causal", (1, 192, 192, 2, 1, 16, 16), "bfloat16", options={"is_causal": True})
  run(case, config, rng)
  # 2, 4, ... 12 blocks of keys for the six blocks of queries of each head
  assert counted["state_updates"] == plan.traffic.state_updates == 2 * (2 + 4 + 6 + 8 + 10 + 12)
