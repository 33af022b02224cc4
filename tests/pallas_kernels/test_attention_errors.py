"""Every way to call flash_attention wrongly, and what the message must say."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hw_profiles
from pallas_kernels import AttentionConfig, device, explain, flash_attention

Q = jnp.ones((2, 6, 4, 16), jnp.bfloat16)
K = jnp.ones((2, 9, 2, 16), jnp.bfloat16)


def call(q=Q, k=K, v=K, *rest, **options):
  return lambda: flash_attention(q, k, v, *rest, **options)


WRONG = {
  "no array": (call(1.0), r"query is a float: expected an array"),
  "no batch": (call(Q[0]), r"query has shape \(6, 4, 16\): expected 4 dimensions.*query\[None\]"),
  "integers": (call(Q.astype(int)), r"query is int32: expected one of bfloat16"),
  "two dtypes": (
    call(Q, K.astype(jnp.float32)),
    r"query is bfloat16 and key is float32.*key\.astype\(bfloat16\)",
  ),
  "batches": (call(Q, K[:1], K[:1]), r"query has 2 sequences and key 1.*jax\.vmap"),
  "keys and values": (call(Q, K, K[:, :8]), r"value has shape \(2, 8, 2, 16\) and key"),
  "head size": (call(Q, K[..., :8], K), r"query has head size 16 and key 8"),
  "heads": (
    call(Q[:, :, :3]),
    r"query has 3 heads and key 2: expected a multiple of the key's; key with 1 would do",
  ),
  "alignment missing": (
    call(is_causal=True),
    r'causal_alignment=None: is_causal=True with 6 queries and 9 keys needs "top_left".*'
    r'"bottom_right"',
  ),
  "alignment of a window": (
    call(local_window_size=(3, 0)),
    r"causal_alignment=None: local_window_size=\(3, 0\) with 6 queries",
  ),
  "alignment": (
    call(is_causal=True, causal_alignment="bottom"),
    r"causal_alignment='bottom'.*did you mean 'bottom_right'",
  ),
  "causal": (call(is_causal="yes"), r"is_causal='yes': expected True or False"),
  "negative window": (
    call(local_window_size=-1, causal_alignment="top_left"),
    r"local_window_size=-1: expected an int of at least 0, or a pair",
  ),
  "three sides": (
    call(local_window_size=(1, 2, 3)),
    r"local_window_size=\(1, 2, 3\): expected an int of at least 0, or a pair",
  ),
  "bias shape": (
    call(Q, K, K, jnp.ones((2, 4, 9, 6))),
    r"bias has shape \(2, 4, 9, 6\): expected what broadcasts to \(2, 4, 6, 9\).*swapaxes",
  ),
  "bias heads": (call(Q, K, K, jnp.ones((2, 2, 6, 9))), r"bias has shape \(2, 2, 6, 9\): expected"),
  "integer bias": (call(Q, K, K, jnp.ones((6, 9), int)), r"bias is int32: expected one of"),
  "additive mask": (
    call(Q, K, K, None, jnp.zeros((6, 9))),
    r"mask is float32: expected bool.*additive ones are bias",
  ),
  "lengths": (
    call(query_seq_lengths=jnp.ones(3, int)),
    r"query_seq_lengths has shape \(3,\): expected \(2,\)",
  ),
  "float lengths": (
    call(key_value_seq_lengths=jnp.ones(2)),
    r"key_value_seq_lengths is float32: expected integers",
  ),
  "long": (
    call(key_value_seq_lengths=[3, 10]),
    r"key_value_seq_lengths=\[3, 10\]: expected numbers from 0 to 9",
  ),
  "one side of segments": (
    call(query_segment_ids=jnp.zeros((2, 6), int)),
    r"key_value_segment_ids=None: expected ids too",
  ),
  "segments": (
    call(query_segment_ids=jnp.zeros((2, 6), int), key_value_segment_ids=jnp.zeros((2, 6), int)),
    r"key_value_segment_ids has shape \(2, 6\): expected \(2, 9\)",
  ),
  "cap": (call(logits_soft_cap=0.0), r"logits_soft_cap=0\.0: expected a number above 0"),
  "scale": (call(scale=float("nan")), r"scale=nan: expected a finite Python number"),
  "an array of a scale": (
    call(scale=jnp.ones(3)),
    r"scale=.*: expected a finite Python number; .* multiply the query",
  ),
  "precision": (call(precision="best"), r"precision='best'"),
  "residual": (call(return_residual=1), r"return_residual=1: expected True or False"),
  "config": (call(config=(128, 64)), r"config is a tuple: expected AttentionConfig"),
  "implementation": (call(implementation="trition"), r"'trition'.*did you mean 'triton'"),
  "a shape": (
    call(jax.ShapeDtypeStruct(Q.shape, Q.dtype)),
    r"query is a ShapeDtypeStruct: expected an array; pallas_kernels\.explain takes shapes",
  ),
}


@pytest.mark.parametrize(("wrong", "message"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_say_what_would_work(wrong, message):
  with pytest.raises(ValueError, match=message):
    wrong()


def test_a_traced_scale_is_refused():
  with pytest.raises(ValueError, match="multiply the query"):
    jax.jit(lambda s: flash_attention(Q, K, K, scale=s))(0.5)


def test_what_an_implementation_cannot_do_names_those_that_can():
  q, k = (jnp.ones(x.shape, jnp.float32) for x in (Q, K))
  with pytest.raises(NotImplementedError, match=r"NVIDIA GPUs only.*These can: xla, interpret"):
    flash_attention(q, k, k, implementation="triton")
  with pytest.raises(NotImplementedError, match=r"XLA takes no tile.*These can: interpret"):
    flash_attention(q, k, k, config=AttentionConfig(16, 16), implementation="xla")
  with jax.enable_x64(True):
    wide = jnp.ones((1, 4, 1, 8), np.float64)
    with pytest.raises(NotImplementedError, match=r"float64 is wider.*These can: xla"):
      flash_attention(wide, wide, wide, implementation="interpret")


def struct(*shape, dtype="bfloat16"):
  return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def test_a_tile_that_does_not_fit_is_refused_with_one_that_does():
  q = struct(1, 4096, 8, 128)
  with (
    device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132),
    pytest.raises(hw_profiles.InfeasibleTileError, match=r"largest .* that fits"),
  ):
    explain(flash_attention, q, q, q, config=AttentionConfig(128, 1024), implementation="triton")


def test_explain_says_what_runs_forward_and_backward():
  q, k = struct(2, 4096, 16, 128), struct(2, 4096, 4, 128)
  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    found = explain(flash_attention, q, k, k, is_causal=True, implementation="triton")
  assert found.implementation == "triton"
  assert isinstance(found.config, AttentionConfig)
  assert found.plan is not None
  assert found.plan.fits
  assert any("its gradients run: triton with block_q=" in note for note in found.notes)
  text = str(found)
  assert "flash_attention(bfloat16[2,4096,16,128]" in text
  assert "window=(None, 0)" in text
  on_cpu = explain(flash_attention, q, k, k, is_causal=True)
  assert on_cpu.implementation == "xla"
  assert "NVIDIA GPUs only" in on_cpu.refused["triton"]


@pytest.mark.parametrize("one", [2**31, -(2**31) - 1])
def test_segment_ids_that_int32_makes_others_of_are_refused(one):
  q = jnp.zeros((1, 4, 1, 8))
  ids = np.array([[0, 0, 1, 1]])
  wide = np.array([[0, 0, one, one]])
  for name, (queries, keys) in {
    "query_segment_ids": (wide, ids),
    "key_value_segment_ids": (ids, wide.tolist()),
  }.items():
    with pytest.raises(ValueError, match=rf"{name} has {one}: expected ids of int32.*np\.unique"):
      flash_attention(q, q, q, query_segment_ids=queries, key_value_segment_ids=keys)


def test_a_tile_that_only_gradients_refuse_is_no_error_of_the_call():
  q = struct(1, 128, 1, 64)
  config = AttentionConfig(64, 64, block_q_dkv=96, block_kv_dkv=64, block_q_dq=64, block_kv_dq=64)
  with device.abstract_gpu(device_kind="NVIDIA A100-SXM4-80GB", num_cores=108):
    found = explain(flash_attention, q, q, q, config=config)
    call = functools.partial(flash_attention, config=config)
    assert jax.eval_shape(call, q, q, q).shape == q.shape
    with pytest.raises(hw_profiles.InfeasibleTileError, match="block_q_dkv=96"):
      jax.eval_shape(lambda *qkv: jax.vjp(call, *qkv)[1](qkv[0]), q, q, q)
  assert found.implementation == "triton"
  (note,) = (note for note in found.notes if "gradients" in note)
  assert note.startswith("its gradients raise TileShapeError: triton: block_q_dkv=96: ")


def test_a_head_size_that_no_tile_holds_goes_to_xla():
  q = struct(1, 128, 1, 4096)
  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    found = explain(flash_attention, q, q, q)
  assert found.implementation == "xla"
  assert "fits" in found.refused["triton"]
