"""quantize_matmul: fused and separate give the definition's codes; which is chosen, messages."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_cases import accumulates, normal, quantize_matmul

import reference
from pallas_kernels import MatmulConfig, device, explain

PORTABLE = ["xla", "interpret", pytest.param("triton", marks=pytest.mark.gpu)]


def operands(rng, m, k, n, dtype, a_dtype="bfloat16"):
  """A of very different rows, codes of B over their range, scales of order 1."""
  powers = (10.0 ** np.linspace(-3, 3, m)[:, None]).astype(jnp.dtype(a_dtype))
  a = np.asarray(normal(rng, m, k, dtype=a_dtype)) * powers
  if dtype == "int8":
    b_q = rng.integers(-127, 128, (k, n)).astype(np.int8)
  else:
    b_q = (rng.standard_normal((k, n)) * 60).astype(np.float32).astype(jnp.dtype(dtype))
  return tuple(map(jnp.asarray, (a, b_q, rng.uniform(0.5, 2, n).astype(np.float32))))


@pytest.mark.parametrize("name", PORTABLE)
@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
@pytest.mark.parametrize(("m", "k", "n"), [(37, 96, 72), (1, 33, 17), (64, 130, 8)])
def test_fused_and_separate_multiply_the_codes_of_the_definition(name, fuse, dtype, m, k, n, rng):
  call = operands(rng, m, k, n, dtype)
  out = quantize_matmul(
    *call,
    fuse=fuse,
    out_dtype="float32",
    config=None if name == "xla" else MatmulConfig(32, 32, 32),
    implementation=name,
  )
  chex.assert_shape(out, (m, n))
  reference.assert_quantize_matmul_close(
    *map(np.asarray, (out, *call)), out_dtype="float32", accumulate=accumulates(name, dtype)
  )


@pytest.mark.parametrize("name", PORTABLE[1:])
@pytest.mark.parametrize("fuse", [True, False])
def test_steps_are_added_in_the_order_of_k(name, fuse):
  # 448² + 2^-18 is 448² rounded or cut, so the small product is lost and 3 is not; a row's
  # scale is 1, and its numbers are codes
  a, b = np.zeros((64, 128), np.float32), np.zeros((128, 32), np.float32)
  steps = [0, 32, 64, 96]
  a[:, steps] = [448, 2.0**-9, -448, 3]
  b[steps] = np.array([448, 2.0**-9, 448, 1])[:, None]
  codes = [x.astype(jnp.float8_e4m3fn) for x in (a, b)]
  expected = reference.emulate_matmul(*codes, block_k=32)
  assert (expected == 3).all()
  assert (reference.matmul_exact(*codes) == 3 + 2.0**-18).all()
  out = quantize_matmul(
    jnp.asarray(a, jnp.bfloat16),
    jnp.asarray(codes[1]),
    jnp.ones(32),
    fuse=fuse,
    out_dtype="float32",
    config=MatmulConfig(32, 32, 32),
    implementation=name,
  )
  np.testing.assert_array_equal(np.asarray(out), expected)


def test_a_row_of_zeros_is_zero_and_not_nan(rng):
  a, b_q, b_scale = operands(rng, 4, 32, 16, "int8")
  for fuse in (True, False):
    out = quantize_matmul(
      a.at[1].set(0), b_q, b_scale, fuse=fuse, out_dtype="float32", implementation="interpret"
    )
    np.testing.assert_array_equal(np.asarray(out[1]), 0)


def test_the_traffic_chooses_separate_from_two_columns_of_tiles_on():
  def which(n):
    shapes = [
      jax.ShapeDtypeStruct((4096, 4096), jnp.float16),
      jax.ShapeDtypeStruct((4096, n), jnp.float8_e4m3fn),
      jax.ShapeDtypeStruct((n,), jnp.float32),
    ]
    with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
      return explain(quantize_matmul, *shapes, out_dtype="float16").op

  # the text's example: 444 MiB separate against 620 fused
  assert which(1536) == "quantized_matmul"
  # one column of tiles: both move the same, and separate is kept
  assert which(128) == "quantized_matmul"


def test_the_hopper_kernel_refuses_to_fuse():
  shapes = [
    jax.ShapeDtypeStruct(s, d)
    for s, d in (((64, 64), jnp.bfloat16), ((64, 64), jnp.int8), ((64,), jnp.float32))
  ]
  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    explanation = explain(quantize_matmul, *shapes, fuse=True, out_dtype="bfloat16")
  assert explanation.implementation == "triton"
  assert "quantises on the way" in explanation.refused["mosaic_gpu"]


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"b_q": jnp.ones((8, 4), jnp.bfloat16)}, "b_q is bfloat16: expected codes"),
    ({"a": jnp.ones((4, 9), jnp.bfloat16)}, "the last dimension of a"),
    ({"b_scale": jnp.ones((5,))}, "b_scale has shape"),
    ({"fuse": "yes"}, "fuse='yes'"),
  ],
)
def test_a_wrong_argument_is_named(change, message):
  call = {
    "a": jnp.ones((4, 8), jnp.bfloat16),
    "b_q": jnp.ones((8, 4), jnp.int8),
    "b_scale": jnp.ones((4,)),
    "fuse": None,
  } | change
  with pytest.raises(ValueError, match=message):
    quantize_matmul(
      call["a"], call["b_q"], call["b_scale"], fuse=call["fuse"], out_dtype="bfloat16"
    )


@pytest.mark.parametrize(
  ("implementation", "said"),
  [(None, "triton with block_rows="), ("mosaic_gpu", "triton with block_rows="), ("xla", "xla")],
)
def test_the_explanation_says_what_quantises(implementation, said):
  shapes = [
    jax.ShapeDtypeStruct((1024, 4096), jnp.bfloat16),
    jax.ShapeDtypeStruct((4096, 512), jnp.float8_e4m3fn),
    jax.ShapeDtypeStruct((512,), jnp.float32),
  ]
  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    found = explain(quantize_matmul, *shapes, out_dtype="bfloat16", implementation=implementation)
  assert found.op == "quantized_matmul"
  assert found.notes[0].startswith(f"not fused: quantize_rows runs first, {said}")
