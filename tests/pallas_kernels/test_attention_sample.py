"""A random sample of all that flash_attention takes: inside the bounds, or refused by name."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
  Case,
  assert_gradients_inside_bound,
  assert_inside_bound,
  quick,
)

import pallas_kernels
from pallas_kernels import AttentionConfig, compat, device, flash_attention

LENGTHS = (0, 1, 5, 17, 33, 40, 70)
HEAD_SIZES = (8, 16, 24, 40, 64, 72, 80, 96, 128, 192, 256)
WINDOWS = (0, 3, 12, (5, 3), (9, None), (None, 4), (0, 0), (None, None), (100, 100))
DIFFERENTIATED = ("query", "key", "value", "bias")


@functools.lru_cache(maxsize=1)
def draw(seed: int) -> tuple[Case, dict[str, Any]]:
  """A call, its operands by name: any sizes, any options, each beside any others."""
  rng = np.random.default_rng([20260, seed])

  def one_of(*choices: Any) -> Any:
    return choices[rng.integers(len(choices))]

  def sometimes(share: float = 0.3) -> bool:
    return bool(rng.random() < share)

  batch, seq_q, kv_heads = one_of(0, *[1, 2, 3] * 5), one_of(*LENGTHS), one_of(1, 2, 3)
  seq_kv = seq_q if sometimes() else one_of(*LENGTHS)
  heads, size = kv_heads * one_of(1, 2, 3, 4, 7), one_of(*HEAD_SIZES)
  value_size = size if sometimes(0.5) else one_of(*HEAD_SIZES)
  dtype = one_of("float32", "bfloat16", "float16")
  options: dict[str, Any] = {"is_causal": True} if sometimes() else {}
  if sometimes():
    options["local_window_size"] = one_of(*WINDOWS)
  if options and (seq_q != seq_kv or sometimes(0.5)):
    options["causal_alignment"] = one_of("top_left", "bottom_right")
  if sometimes():
    options["logits_soft_cap"] = one_of(2.0, 5.0, 30.0)
  if sometimes():
    options["scale"] = one_of(0.7, -0.3, 0.0, 2)

  # NumPy's: JAX would compile the roundings for each shape
  def normal(*shape: int, dtype: str = dtype) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32).astype(jnp.dtype(dtype))

  def broadcast_form() -> tuple[int, ...]:
    whole = (batch, heads, seq_q, seq_kv)
    form = tuple(length if sometimes(0.6) else 1 for length in whole)
    return form[4 - one_of(2, 3, 4) :]

  def ids(length: int, *, in_order: bool) -> np.ndarray:
    found = rng.integers(-1, 3, (batch, length))
    return (np.sort(found, axis=1) if in_order else found).astype(np.int32)

  arrays = {
    "query": normal(batch, seq_q, heads, size),
    "key": normal(batch, seq_kv, kv_heads, size),
    "value": normal(batch, seq_kv, kv_heads, value_size),
  }
  if sometimes():
    arrays["bias"] = normal(*broadcast_form(), dtype=one_of("float32", dtype))
  if sometimes():
    arrays["mask"] = rng.random(broadcast_form()) < 2 / 3
  for name, length in (("query_seq_lengths", seq_q), ("key_value_seq_lengths", seq_kv)):
    if sometimes():
      arrays[name] = rng.integers(0, length + 1, batch).astype(np.int32)
  if sometimes():
    in_order = sometimes(0.7)
    arrays["query_segment_ids"] = ids(seq_q, in_order=in_order)
    arrays["key_value_segment_ids"] = ids(seq_kv, in_order=in_order)
  sizes = (batch, seq_q, seq_kv, heads, kv_heads, size, value_size)
  return Case(f"sample {seed}", sizes, dtype, options=options), arrays


def assert_right(seed: int, implementation: str | None, config: AttentionConfig | None) -> None:
  """Results and all gradients of a call are inside their bounds, and the same in a second run."""
  case, arrays = draw(seed)
  rng = np.random.default_rng(seed)
  batch, seq_q, _, heads, _, _, value_size = case.sizes
  d_out = jnp.asarray(rng.standard_normal((batch, seq_q, heads, value_size)), case.dtype)
  d_residual = jnp.asarray(rng.standard_normal((batch, seq_q, heads)), jnp.float32)
  call = functools.partial(
    flash_attention,
    **case.options,
    return_residual=True,
    implementation=implementation,
    config=config,
  )

  @quick
  def run(arrays: dict[str, Any], above: Any) -> Any:
    varied = {name: arrays[name] for name in DIFFERENTIATED if name in arrays}
    rest = {name: x for name, x in arrays.items() if name not in varied}
    result, pull = jax.vjp(lambda varied: call(**varied, **rest), varied)
    return result, pull(above)[0]

  result, gradients = run(arrays, (d_out, d_residual))
  # the wider bound of those that may have run: a GPU's sums of 16-bit products
  ran = implementation or "triton"
  assert_inside_bound(case, arrays, result, ran)
  assert_gradients_inside_bound(case, arrays, d_out, gradients, ran, d_residual=d_residual)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["xla", "interpret"])
def test_calls_are_inside_the_bounds(name, seed):
  blocks = AttentionConfig(16, 32, block_q_dkv=16, block_kv_dkv=32, block_q_dq=32, block_kv_dq=16)
  assert_right(seed, name, blocks if name == "interpret" else None)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(100))
def test_calls_are_inside_the_bounds_on_a_gpu(seed):
  assert_right(seed, None, None)


def explained(seed: int, implementation: str | None = None) -> Any:
  """What `explain` says of a call, or what it raises where an implementation lacks something."""
  case, arrays = draw(seed)
  shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in arrays.items()}
  options = {**case.options, "implementation": implementation}
  try:
    return pallas_kernels.explain(flash_attention, **shapes, **options)
  except NotImplementedError as error:
    return error


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_calls_run_somewhere_and_are_refused_elsewhere_by_name(start):
  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    for seed in range(start, start + 50):
      case, arrays = draw(seed)
      chosen = explained(seed)
      # without a name there is always one that runs, and XLA takes everything
      assert explained(seed, "xla").implementation == "xla"
      for name in ("mosaic_gpu", "triton"):
        found = explained(seed, name)
        if isinstance(found, NotImplementedError):
          reason, those_that_can = str(found).split("These can: ")
          assert f"implementation={name!r}" in reason
          assert chosen.implementation in those_that_can
          assert name in chosen.refused
        else:
          assert found.implementation == name
      for_hopper = case.dtype != "float32" and not {"bias", "mask"} & set(arrays)
      if compat.CARRIES_ARRAYS and for_hopper and 0 not in case.sizes:
        assert chosen.implementation == "mosaic_gpu"
