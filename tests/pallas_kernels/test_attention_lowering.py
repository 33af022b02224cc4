"""Every tile that the planner offers for attention lowers for CUDA on a machine without a GPU."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import pytest

import hw_profiles
from hw_profiles import AttentionProblem, DecodeProblem
from pallas_kernels import (
  AttentionConfig,
  DecodeConfig,
  compat,
  decode_attention,
  device,
  flash_attention,
)
from pallas_kernels.lowering import jax_private

H200 = {"device_kind": "NVIDIA H200", "num_cores": 132}
FORWARD = AttentionProblem(2, 4096, 4096, 16, 4, causal=True)
BACKWARD = AttentionProblem(2, 4096, 4096, 16, 4, causal=True, backward=True)
DECODE = DecodeProblem(8, 8192, 32, 8)


def struct(*shape, dtype="bfloat16"):
  return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def lower(function, *operands, **named) -> str:
  with device.abstract_gpu(**H200):
    traced = jax.jit(function).trace(*operands, **named)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


def operands(
  seq_q=300, seq_kv=300, heads=4, kv_heads=2, size=128, value_size=128, dtype="bfloat16"
):
  return (
    struct(1, seq_q, heads, size, dtype=dtype),
    struct(1, seq_kv, kv_heads, size, dtype=dtype),
    struct(1, seq_kv, kv_heads, value_size, dtype=dtype),
  )


def attend(**options):
  options = {"is_causal": True, "causal_alignment": "bottom_right", **options}
  options.setdefault("implementation", "triton")
  return functools.partial(flash_attention, **options)


def gradient(**options):
  def loss(*x):
    return attend(**options)(*x).astype(jnp.float32).sum()

  return lambda *x: jax.grad(loss, argnums=tuple(range(len(x))))(*x)


def _one_of_each(candidates, fields):
  """The candidates' blocks, each once, with the most stages that fit."""
  return list({tuple(getattr(one, f) for f in fields): one for one in candidates}.values())


@pytest.mark.parametrize(
  "config",
  _one_of_each(
    hw_profiles.attention_candidates("h200_sxm", FORWARD, schedule="multistage"),
    ("block_q", "block_kv"),
  ),
  ids=AttentionConfig.describe,
)
def test_every_candidate_lowers(config):
  assert "triton" in lower(attend(config=config), *operands())


def _backward_pairs():
  """Each pair of blocks of either kernel once: all candidates are combinations of these."""
  found = hw_profiles.attention_candidates("h200_sxm", BACKWARD, schedule="multistage")
  by_dkv = _one_of_each(found, ("block_q_dkv", "block_kv_dkv"))
  by_dq = _one_of_each(found, ("block_q_dq", "block_kv_dq"))
  return list(dict.fromkeys((*by_dkv, *by_dq)))


@pytest.mark.parametrize("config", _backward_pairs(), ids=AttentionConfig.describe)
def test_every_backward_candidate_lowers(config):
  text = lower(gradient(config=config), *operands())
  # forward, dq and dkv
  assert text.count("custom_call @__gpu$xla.gpu.triton") == 3


@pytest.mark.parametrize(
  "config",
  _one_of_each(
    hw_profiles.decode_candidates("h200_sxm", DECODE, schedule="multistage"), ("block_kv",)
  ),
  ids=DecodeConfig.describe,
)
def test_every_decode_candidate_lowers(config):
  q, cache = struct(8, 32, 128), struct(8, 8192, 8, 128)
  call = functools.partial(decode_attention, config=config, num_splits=4, implementation="triton")
  assert "decode_portable_merge" in lower(call, q, cache, cache, struct(8, dtype="int32"))


ARRAYS = {
  "bias": struct(1, 4, 1, 150),
  "mask": struct(1, 1, 200, 150, dtype="bool"),
  "query_seq_lengths": struct(1, dtype="int32"),
  "key_value_seq_lengths": struct(1, dtype="int32"),
  "query_segment_ids": struct(1, 200, dtype="int32"),
  "key_value_segment_ids": struct(1, 150, dtype="int32"),
}


@pytest.mark.parametrize("x64", [False, True])
def test_every_option_lowers_forward_and_backward(x64):
  q, k, v = operands(200, 150, size=72, value_size=40)

  def loss(q, k, v, arrays):
    call = attend(is_causal=False, local_window_size=(20, 9), logits_soft_cap=10.0)
    return call(q, k, v, **arrays).astype(jnp.float32).sum()

  def both(q, k, v, bias, rest):
    return jax.grad(lambda *x: loss(*x[:3], {"bias": x[3], **rest}), argnums=(0, 1, 2, 3))(
      q, k, v, bias
    )

  rest = {name: x for name, x in ARRAYS.items() if name != "bias"}
  with jax.enable_x64(x64):
    text = lower(both, q, k, v, ARRAYS["bias"], rest)
  assert text.count("custom_call @__gpu$xla.gpu.triton") == 4


@pytest.mark.parametrize(
  ("size", "dtype"),
  [
    *((size, "bfloat16") for size in (8, 16, 24, 64, 80, 96, 192, 256)),
    *((size, "float32") for size in (24, 80, 256)),
  ],
)
def test_every_head_size_lowers_with_the_planned_tile(size, dtype):
  text = lower(gradient(), *operands(size=size, value_size=size, dtype=dtype))
  assert text.count("custom_call @__gpu$xla.gpu.triton") == 3


def test_float32_products_are_ieee_unless_less_is_asked_for():
  found = operands(64, 64, size=32, value_size=32, dtype="float32")
  ieee = lower(attend(), *found)
  assert lower(attend(precision="highest"), *found) == ieee
  assert lower(attend(precision="default"), *found) != ieee


@pytest.mark.parametrize("page_size", [16, 64, 100])
def test_pages_lower(page_size):
  q, cache = struct(4, 3, 12, 80), struct(50, page_size, 4, 80)
  call = functools.partial(
    decode_attention, local_window_size=100, logits_soft_cap=5.0, implementation="triton"
  )
  text = lower(
    lambda *x: call(*x[:4], page_table=x[4]),
    q,
    cache,
    cache,
    struct(4, dtype="int32"),
    struct(4, 9, dtype="int32"),
  )
  assert "decode_portable" in text


LONG = 8192
WITHOUT_PAIRS = {
  "causal": {},
  "window": {"local_window_size": (1000, 0), "logits_soft_cap": 5.0},
  "lengths": {
    "query_seq_lengths": struct(1, dtype="int32"),
    "key_value_seq_lengths": struct(1, dtype="int32"),
  },
  "segments": {
    "query_segment_ids": struct(1, LONG, dtype="int32"),
    "key_value_segment_ids": struct(1, LONG, dtype="int32"),
  },
}


@pytest.mark.parametrize("case", WITHOUT_PAIRS.values(), ids=WITHOUT_PAIRS)
@pytest.mark.parametrize("name", ["triton", "mosaic_gpu"])
def test_nothing_of_queries_times_keys_is_in_memory(name, case):
  """What is lowered has no array larger than the operands: neither scores nor a mask."""
  if name == "mosaic_gpu" and not compat.CARRIES_ARRAYS:
    pytest.skip("jax 0.10 has no Hopper attention")
  arrays = {key: x for key, x in case.items() if isinstance(x, jax.ShapeDtypeStruct)}
  options = {key: x for key, x in case.items() if key not in arrays}

  def loss(q, k, v, arrays):
    out = attend(implementation=name, **options)(q, k, v, **arrays)
    return out.astype(jnp.float32).sum()

  gradients = jax.grad(loss, argnums=(0, 1, 2))
  text = lower(gradients, *operands(LONG, LONG, heads=2, kv_heads=1), arrays)
  assert f"x{LONG}x" in text
  largest = max(
    math.prod(int(size) for size in shape[:-1].split("x"))
    for shape in re.findall(r"tensor<((?:\d+x)+)", text)
  )
  assert largest == LONG * 2 * 128 < LONG * LONG


def _divisions_by_no_constant(ir: str) -> list[str]:
  """The integer divisions of a Triton module by anything but a positive constant."""
  defined = dict(re.findall(r"(%\w+) = (.*)", ir))

  def is_positive_constant(value: str) -> bool:
    name, *inputs = re.findall(r"%\w+|[\w.]+", defined.get(value, "argument"))
    if name == "arith.constant":
      return re.search(r"constant (?:dense<)?[1-9]", defined[value]) is not None
    if name == "arith.select":
      return all(map(is_positive_constant, inputs[1:3]))
    return name in ("tt.splat", "tt.broadcast") and is_positive_constant(inputs[0])

  divisions = re.findall(r"= (arith\.(?:ceil|floor)?(?:div|rem)[su]i \S+, (%\w+).*)", ir)
  assert divisions
  return [text for text, divisor in divisions if not is_positive_constant(divisor)]


needs_triton_ir = pytest.mark.skipif(
  jax.__version__ not in jax_private.SUPPORTED_JAX, reason="no Triton IR with this JAX"
)
DIVIDED = {
  # blocks of 64, so that a region has one block at most
  "one head": (operands(100, 100, heads=2, kv_heads=2), ()),
  "two heads": (operands(100, 100, heads=2, kv_heads=1), ()),
  "short blocks": (operands(200, 150, size=32, value_size=32), ()),
  "arrays": (operands(200, 150, size=32, value_size=32), tuple(ARRAYS)),
}


@needs_triton_ir
@pytest.mark.parametrize("case", DIVIDED.values(), ids=DIVIDED)
@pytest.mark.parametrize("causal", [False, True])
def test_no_kernel_divides_by_what_is_not_a_constant(causal, case):
  """Triton takes x / y to be undefined in the first steps of a loop that do not run.

  Then so are the masks made of it, and LLVM may leave their loads without one.
  """
  sizes, named = case
  rest = {name: ARRAYS[name] for name in named}
  bias = rest.pop("bias", None)

  def loss(q, k, v, bias, rest):
    options = {"is_causal": causal, "causal_alignment": "bottom_right"}
    return attend(**options)(q, k, v, bias=bias, **rest).astype(jnp.float32).sum()

  with device.abstract_gpu(**H200):
    kernels = jax_private.triton_kernels(jax.grad(loss, argnums=(0, 1, 2, 3)), *sizes, bias, rest)
  assert {one.name.removeprefix("attention_portable") for one in kernels} == {
    "",
    "_dq",
    "_dkv",
    *(["_dbias"] if named else []),
  }
  for kernel in kernels:
    assert not _divisions_by_no_constant(kernel.ir), kernel.name


@needs_triton_ir
@pytest.mark.parametrize("seq_kv", [40, 64, 65])
def test_the_biass_gradient_needs_no_more_shared_memory_than_that_of_queries(seq_kv):
  """Of one block of keys it has Q and dO in stages too; the planner counts those of K and V."""
  stages, block_q, block_kv = 4, 64, 64
  config = AttentionConfig(
    64, 32, stages, block_q_dkv=64, block_kv_dkv=64, block_q_dq=block_q, block_kv_dq=block_kv
  )

  def loss(q, k, v, bias):
    call = attend(is_causal=False, config=config)
    return call(q, k, v, bias=bias).astype(jnp.float32).sum()

  bias = struct(1, 2, 40, seq_kv, dtype="float32")
  with device.abstract_gpu(**H200):
    *_, kernel = jax_private.triton_kernels(
      jax.grad(loss, argnums=3), *operands(40, seq_kv, heads=2), bias
    )
  assert kernel.name == "attention_portable_dbias"
  if seq_kv > block_kv:
    assert kernel.num_stages == stages
  else:
    assert kernel.num_stages >= 1
    assert kernel.num_stages * (block_q + block_kv) <= block_q + stages * block_kv


@needs_triton_ir
@pytest.mark.parametrize("paged", [False, True])
def test_nor_does_decoding(paged):
  cache, table = struct(50, 64, 4, 80), struct(4, 9, dtype="int32")
  call = functools.partial(decode_attention, local_window_size=100, implementation="triton")

  def run(q, k, v, lengths, table):
    return call(q, k, v, lengths, page_table=table) if paged else call(q, k, v, lengths)

  q, lengths = struct(4, 3, 12, 80), struct(4, dtype="int32")
  keys = cache if paged else struct(4, 500, 4, 80)
  with device.abstract_gpu(**H200):
    kernels = jax_private.triton_kernels(run, q, keys, keys, lengths, table)
  assert kernels
  for kernel in kernels:
    assert not _divisions_by_no_constant(kernel.ir), kernel.name


def test_export_for_cuda_from_a_cpu():
  known = [jax.export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")]
  with device.abstract_gpu(**H200):
    exported = jax.export.export(jax.jit(attend()), platforms=["cuda"], disabled_checks=known)(
      *operands()
    )
  assert exported.platforms == ("cuda",)
