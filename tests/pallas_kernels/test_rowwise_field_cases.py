"""Faults that users of comparable software reported, as cases (ids BC-nn), of the row-wise ops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rowwise_cases import (
  KERNEL,
  ROWS,
  arrays,
  assert_swiglu_gradients,
  quantize_rows,
  rms_norm,
  swiglu,
  swiglu_quantize,
)

import reference
from pallas_kernels import RowConfig

INFINITY = np.inf


@pytest.mark.gpu
def test_bc08_more_than_2_31_elements():
  rows, columns = 2097153, 1024
  gate = jnp.ones((rows, columns), jnp.bfloat16).at[-1].set(5.0)
  up = jnp.full((rows, columns), 2.0, jnp.bfloat16)
  out = swiglu(gate, up, implementation="triton")
  one, last = (reference.swiglu([x], [2.0], out_dtype=jnp.bfloat16)[0] for x in (1.0, 5.0))
  assert bool(jnp.all(out[:-1] == one))
  assert bool(jnp.all(out[-1] == last))
  del out, up
  normal = rms_norm(gate, jnp.ones(columns, jnp.bfloat16), implementation="triton")
  assert bool(jnp.all(normal == 1))
  del normal
  codes, scale = quantize_rows(gate)
  assert bool(jnp.all(codes.astype(jnp.bfloat16) == 448))
  np.testing.assert_array_equal(np.asarray(scale[-2:, 0]), np.float32([1 / 448, 5 / 448]))


@pytest.mark.parametrize("name", ROWS)
def test_bc10_gate_and_up_are_not_exchanged(name):
  # silu(2)·3 = 5.28478..., and silu(3)·2 = 5.71544...
  gate, up = jnp.full((3, 17), 2.0), jnp.full((3, 17), 3.0)
  out = swiglu(gate, up, implementation=name)
  reference.assert_swiglu_close(*arrays(out, gate, up))


@pytest.mark.parametrize("name", ROWS)
def test_bc11_tail_and_special_values(name):
  x = np.float32([-INFINITY, -100, -91, -90, -87.5, -20, -0.0, 0.0, 1e-40, 1, 89, INFINITY, np.nan])
  out = np.asarray(swiglu(jnp.asarray(x), jnp.ones(x.size), implementation=name))
  reference.assert_swiglu_close(out, x, np.ones(x.size, np.float32))
  assert out[0] == 0
  assert out[3] < -7e-38
  assert out[11] == INFINITY
  assert np.isnan(out[12])


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bc13_gradient_of_large_gates(name, dtype):
  gates = {"float32": [-1000, -90, -20, 0, 1, 90, 1000], "float16": [-60000, -12, 12, 60000]}
  gate = jnp.asarray(gates[dtype], dtype)
  up, d_out = jnp.full(gate.shape, 2.0, dtype), jnp.ones(gate.shape, dtype)
  _, pull = jax.vjp(lambda gate, up: swiglu(gate, up, implementation=name), gate, up)
  d_gate, d_up = pull(d_out)
  assert np.all(np.isfinite(np.asarray(d_gate)))
  assert_swiglu_gradients(d_gate, d_up, gate, up, d_out)
  if dtype == "float32" and name != "triton":
    # exact where the sigmoid is a quotient; compiled it is the square of an approximate root
    np.testing.assert_array_equal(np.asarray(d_gate)[[3, 5, 6]], [1, 2, 2])


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("code", ["float8_e4m3fn", "int8"])
def test_bc15_rows_of_zeros(name, code):
  x = jnp.asarray(np.stack([np.zeros(33), np.linspace(-4, 4, 33), np.zeros(33)]), jnp.bfloat16)
  codes, scale = arrays(*quantize_rows(x, dtype=code, implementation=name))
  np.testing.assert_array_equal(codes[[0, 2]].astype(np.float32), 0)
  largest = {"float8_e4m3fn": 448, "int8": 127}[code]
  np.testing.assert_array_equal(scale[:, 0], np.float32([1, np.float32(4) / largest, 1]))
  reference.assert_quantize_rows_close(codes, scale, np.asarray(x))


# swiglu of a gate that large is the gate itself, so that the codec alone is seen
FAR = 256.0


def _codes(name, x, code):
  """Codes for the scale 1 of values of which some are as small as 2^-10."""
  x = np.float32(x)
  # silu(FAR) = FAR in float32, and x / FAR·FAR is x for these x, which have few digits
  gate, up = np.full(x.shape, FAR, np.float32), x / np.float32(FAR)
  with np.errstate(invalid="ignore"):
    exact = (gate * up == x) | ~np.isfinite(x)
  assert np.all(exact)
  result = swiglu_quantize(
    jnp.asarray(gate), jnp.asarray(up), scale=1.0, dtype=code, implementation=name
  )
  return np.asarray(result.codes).astype(np.float64)


@pytest.mark.parametrize("name", ROWS)
def test_bc16_a_given_scale_saturates(name):
  x = [
    448,
    449,
    464,
    480,
    1e6,
    -1e6,
    INFINITY,
    -INFINITY,
    np.nan,
    2.0**-9,
    2.0**-10,
    1.5 * 2.0**-10,
  ]
  expected = [448, 448, 448, 448, 448, -448, 448, -448, np.nan, 2.0**-9, 0, 2.0**-9]
  np.testing.assert_array_equal(_codes(name, x, "float8_e4m3fn"), expected)
  x = [127.5, 200, -127.5, -1000, INFINITY, -INFINITY, np.nan]
  np.testing.assert_array_equal(_codes(name, x, "int8"), [127, 127, -127, -127, 127, -127, 0])


@pytest.mark.parametrize("name", ROWS)
def test_bc17_int8_rounds_halves_to_even(name):
  x = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.75, -0.75, 2.75, 126.5, -126.5] * 3
  expected = [0, 2, 2, 0, -2, -2, 1, -1, 3, 126, -126] * 3
  np.testing.assert_array_equal(_codes(name, x, "int8"), expected)


@pytest.mark.parametrize("name", ROWS)
def test_bc20_squares_of_halves(name):
  x = jnp.full((4, 2048), 300.0, jnp.float16)
  out = rms_norm(x, jnp.ones(2048, jnp.float16), implementation=name)
  np.testing.assert_array_equal(np.asarray(out), 1)


@pytest.mark.parametrize("name", KERNEL)
@pytest.mark.parametrize("block", [512, 1024, 8192])
def test_bc23_rows_longer_than_a_block_or_shorter(name, block):
  # four float32 rows of 8192 do not fit the registers of a block
  options = {"config": RowConfig(1 if block > 1024 else 4, block, 1), "implementation": name}
  for x in (
    np.full((3, 5000), 2.0, np.float32),
    np.concatenate([np.zeros((3, 4999)), np.full((3, 1), np.sqrt(5000.0))], 1).astype(np.float32),
  ):
    weight = np.ones(x.shape[1], x.dtype)
    out = np.asarray(rms_norm(jnp.asarray(x), jnp.asarray(weight), **options))
    reference.assert_rms_norm_close(out, x, weight)
  assert np.all(out[:, -1] > 70.7)
  np.testing.assert_array_equal(out[:, :-1], 0)


@pytest.mark.parametrize("name", ROWS)
def test_bc23_the_tail_of_an_odd_row_stays_in_it(name):
  x = np.concatenate([np.zeros((7, 768)), np.full((7, 1), np.sqrt(769.0))], 1).astype(np.float16)
  out = np.asarray(rms_norm(jnp.asarray(x), jnp.ones(769, jnp.float16), implementation=name))
  reference.assert_rms_norm_close(out, x, np.ones(769, np.float16))
  np.testing.assert_array_equal(out[:, :-1], 0)


@pytest.mark.parametrize("name", ["xla", pytest.param("triton", marks=pytest.mark.gpu)])
def test_bc45_vmap_over_more_than_65535(name):
  if jax.default_backend() == "gpu" and name == "xla":
    pytest.skip("the CPU half of the suite")
  size = 65537
  x = ((jnp.arange(size) % 200) + 1).astype(jnp.float32)[:, None, None] * jnp.ones((1, 1, 4))
  out = jax.vmap(jax.vmap(lambda x: rms_norm(x, jnp.ones(4), eps=0.0, implementation=name)))(x)
  reference.assert_rms_norm_close(*arrays(out, x), np.ones(4, np.float32), eps=0.0)
  out = jax.vmap(lambda x: swiglu(x, x * 0 + 1, implementation=name))(x)
  reference.assert_swiglu_close(np.asarray(out), np.asarray(x), np.ones_like(x))
