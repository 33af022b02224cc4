"""quantized_matmul: int8 exactly, float8 inside its bound, scales, shapes, messages."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_cases import EVERY, accumulates, quantized_matmul

import pallas_kernels
import reference
from pallas_kernels import MatmulConfig

DTYPES = ["float8_e4m3fn", "int8"]


def operands(rng, m, k, n, dtype):
  """Codes over the whole range, and scales of order 1."""
  if dtype == "int8":
    codes = [rng.integers(-127, 128, s).astype(np.int8) for s in ((m, k), (k, n))]
  else:
    codes = [
      (rng.standard_normal(s) * 60).astype(np.float32).astype(jnp.dtype(dtype))
      for s in ((m, k), (k, n))
    ]
  scales = [rng.uniform(0.5, 2, s).astype(np.float32) for s in ((m, 1), (n,))]
  return tuple(map(jnp.asarray, (*codes, *scales)))


def assert_scaled(actual, a_q, b_q, a_scale, b_scale, implementation):
  reference.assert_quantized_matmul_close(
    *map(np.asarray, (actual, a_q, b_q, a_scale, b_scale)),
    out_dtype=actual.dtype,
    accumulate=accumulates(implementation, a_q.dtype.name),
  )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
  ("m", "k", "n"), [(70, 96, 136), (1, 33, 17), (129, 256, 64), (7, 16, 250)]
)
def test_every_shape_is_inside_the_bound(implementation, m, k, n, dtype, out_dtype, rng):
  call = operands(rng, m, k, n, dtype)
  out = quantized_matmul(*call, out_dtype=out_dtype, implementation=implementation)
  chex.assert_shape(out, (m, n))
  assert_scaled(out, *call, implementation)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
  ("m", "k", "n", "config"),
  [
    (130, 300, 72, MatmulConfig(128, 64, 128, 2)),
    (65, 144, 104, MatmulConfig(64, 64, 64, 3, num_consumer_warpgroups=1)),
  ],
  ids=str,
)
def test_the_hopper_kernel_is_right_and_free_of_races(hopper, m, k, n, config, dtype, rng, races):
  call = operands(rng, m, k, n, dtype)
  out = quantized_matmul(*call, out_dtype="bfloat16", config=config, implementation=hopper)
  assert_scaled(out, *call, hopper)
  assert not races()


@pytest.mark.gpu
@pytest.mark.parametrize("k", [256, 4096, 16384])
@pytest.mark.parametrize("block_k", [128, 256])
def test_long_float8_sums_are_added_up_in_float32(k, block_k, rng):
  # all of 16384 positive products in one accumulator lost 22 % of the sum
  a, b = (
    jnp.asarray(np.abs(rng.standard_normal(s)) * 64, jnp.float32).astype("float8_e4m3fn")
    for s in ((128, k), (k, 192))
  )
  call = a, b, jnp.ones((128, 1)), jnp.ones(192)
  config = MatmulConfig(128, 64, block_k, 2)
  out = quantized_matmul(*call, out_dtype="float32", config=config, implementation="mosaic_gpu")
  reference.assert_quantized_matmul_close(
    *map(np.asarray, (out, *call)),
    out_dtype="float32",
    accumulate="tensor_core_fp8",
    accumulation_chunk=block_k,
  )


@pytest.mark.parametrize(
  "name",
  [
    *(["interpret", "mosaic_gpu_interpret"] if jax.default_backend() == "cpu" else []),
    pytest.param("mosaic_gpu", marks=pytest.mark.gpu),
  ],
)
@pytest.mark.parametrize("block_k", [32, 128])
def test_float8_steps_are_added_in_the_order_of_k(name, block_k, rng):
  """A step's sum is exact, and those of steps 2^28 apart round as they are added in float32."""
  steps = 4
  # integers up to 3 times 2^-7, or 2^7: products of a step are 2^-14, or 2^14, times at
  # most 9, and 128 of them have 11 bits
  power = np.repeat(np.where(np.arange(steps) % 2, -7.0, 7.0), block_k)
  a, b = (
    rng.integers(-3, 4, shape) * 2.0**power_of
    for shape, power_of in (((70, steps * block_k), power), ((steps * block_k, 72), power[:, None]))
  )
  a, b = (jnp.asarray(x, jnp.float32).astype("float8_e4m3fn") for x in (a, b))
  # float32 takes a step of the small ones and drops its last bits
  a = a.at[:, :block_k].multiply(jnp.asarray(0.5, a.dtype))
  out = quantized_matmul(
    a,
    b,
    jnp.ones((70, 1)),
    jnp.ones(72),
    out_dtype="float32",
    config=MatmulConfig(64, 64, block_k, 2),
    implementation=name,
  )
  emulate = functools.partial(reference.emulate_matmul, np.asarray(a), np.asarray(b))
  expected = emulate(block_k=block_k)
  np.testing.assert_array_equal(np.asarray(out), expected)
  # the operands tell orders apart
  assert (emulate(block_k=steps * block_k) != expected).any()


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_code_is_multiplied_as_the_number_it_stands_for(name, dtype):
  codes = np.arange(256).astype(np.uint8).view(np.dtype(dtype))
  values = codes.astype(np.float32)
  one = jnp.ones((1, 1), dtype)
  ones = jnp.ones((256, 1)), jnp.ones(1)
  column = quantized_matmul(
    jnp.asarray(codes)[:, None], one, *ones, out_dtype="float32", implementation=name
  )
  row = quantized_matmul(
    one, jnp.asarray(codes)[None], ones[1][:, None], ones[0][:, 0], out_dtype="float32",
    implementation=name,
  )  # fmt: skip
  np.testing.assert_array_equal(np.asarray(column)[:, 0], values)
  np.testing.assert_array_equal(np.asarray(row)[0], values)


@pytest.mark.parametrize("name", EVERY)
def test_int8_sums_are_exact_where_float32_would_round(name, rng):
  # 127·127·2048 = 3.3e7 is beyond the 2^24 up to which float32 counts
  a = jnp.full((2, 2048), 127, jnp.int8)
  b = jnp.full((2048, 2), 127, jnp.int8).at[0, 1].set(126)
  one = jnp.ones((2, 1), jnp.float32)
  out = quantized_matmul(a, b, one, one[:, 0], out_dtype="float32", implementation=name)
  exact = np.asarray(a, np.int64) @ np.asarray(b, np.int64)
  np.testing.assert_array_equal(np.asarray(out), exact.astype(np.float32))


def test_scales_apply_to_their_row_and_column(implementation):
  a, b = jnp.ones((3, 16), jnp.int8), jnp.ones((16, 2), jnp.int8)
  rows, columns = jnp.asarray([[1.0], [2.0], [4.0]]), jnp.asarray([0.5, 8.0])
  out = quantized_matmul(a, b, rows, columns, out_dtype="float32", implementation=implementation)
  np.testing.assert_array_equal(np.asarray(out), 16 * np.asarray(rows) * np.asarray(columns))


@pytest.mark.parametrize("terms", [1, 8, 16, 31, 48, 80, 144])
def test_few_terms_are_summed_exactly_however_b_is_stored(implementation, terms, rng):
  a = jnp.asarray(rng.integers(-127, 128, (7, terms)), jnp.int8)
  b = jnp.asarray(rng.integers(-127, 128, (terms, 18)), jnp.int8)
  rows, columns = 2.0 ** np.arange(-3, 4)[:, None], 2.0 ** np.arange(-9, 9)
  exact = np.asarray(a, np.int64) @ np.asarray(b, np.int64) * rows * columns
  scales = jnp.asarray(rows, jnp.float32), jnp.asarray(columns, jnp.float32)
  call = functools.partial(quantized_matmul, out_dtype="float32", implementation=implementation)
  # under jit XLA makes one kernel of product and scales, and another where b is transposed
  as_it_is = jax.jit(call)(a, b, *scales)
  transposed = jax.jit(lambda a, bt, *scales: call(a, bt.T, *scales))(a, b.T, *scales)
  np.testing.assert_array_equal(np.asarray(as_it_is), exact)
  np.testing.assert_array_equal(np.asarray(transposed), exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_and_vmap(implementation, dtype, rng):
  a, b, a_scale, b_scale = operands(rng, 12, 32, 16, dtype)
  call = functools.partial(quantized_matmul, out_dtype="float32", implementation=implementation)
  plain = call(a, b, a_scale, b_scale)
  folded = call(a.reshape(3, 4, 32), b, a_scale.reshape(3, 4, 1), b_scale)
  chex.assert_trees_all_equal(folded.reshape(12, 16), plain)
  batched = call(jnp.stack([a, a]), jnp.stack([b, b]), jnp.stack([a_scale] * 2), b_scale)
  chex.assert_trees_all_equal(batched, jnp.stack([plain, plain]))
  mapped = jax.vmap(call, in_axes=(0, None, 0, None))(
    jnp.stack([a, a]), b, jnp.stack([a_scale] * 2), b_scale
  )
  chex.assert_trees_all_equal(mapped, jnp.stack([plain, plain]))


@pytest.mark.parametrize(("m", "k", "n"), [(0, 8, 8), (8, 0, 8), (8, 8, 0)])
def test_empty_sizes(implementation, m, k, n):
  out = quantized_matmul(
    jnp.ones((m, k), jnp.int8),
    jnp.ones((k, n), jnp.int8),
    jnp.ones((m, 1)),
    jnp.ones((n,)),
    out_dtype="bfloat16",
    implementation=implementation,
  )
  np.testing.assert_array_equal(np.asarray(out, np.float32), np.zeros((m, n)))


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"a_q": jnp.ones((4, 8), jnp.bfloat16)}, "a_q is bfloat16: expected codes"),
    ({"b_q": jnp.ones((8, 4), jnp.float8_e4m3fn)}, "expected one dtype"),
    ({"a_scale": jnp.ones((4,))}, r"shape \(4,\): expected \(4, 1\).*; a_scale\[:, None\] has it"),
    ({"a_scale": jnp.ones((1, 4))}, r"expected \(4, 1\).*; a_scale\.reshape\(\(4, 1\)\) has it"),
    ({"a_scale": jnp.ones(1)}, r"jnp\.broadcast_to\(a_scale\.ravel\(\), \(4, 1\)\).* every row"),
    ({"a_scale": jnp.float32(1)}, r"shape \(\): .*broadcast_to\(a_scale\.ravel\(\), \(4, 1\)\)"),
    ({"b_scale": jnp.ones((4, 1))}, r"expected \(4,\).*; b_scale\.reshape\(\(4,\)\) has it"),
    ({"b_scale": jnp.ones((1, 1))}, r"broadcast_to\(b_scale\.ravel\(\), \(4,\)\).* every column"),
    ({"b_scale": jnp.ones((3,))}, r"b_scale has shape \(3,\): expected \(4,\), .* of b_q$"),
    ({"b_scale": jnp.ones((4,), jnp.bfloat16)}, "b_scale is bfloat16: expected float32"),
    ({"out_dtype": "int8"}, "out_dtype='int8'"),
  ],
)
def test_a_wrong_argument_is_named(change, message):
  call = {
    "a_q": jnp.ones((4, 8), jnp.int8),
    "b_q": jnp.ones((8, 4), jnp.int8),
    "a_scale": jnp.ones((4, 1)),
    "b_scale": jnp.ones((4,)),
    "out_dtype": "bfloat16",
  } | change
  arrays = [call.pop(name) for name in ("a_q", "b_q", "a_scale", "b_scale")]
  with pytest.raises(ValueError, match=message):
    pallas_kernels.quantized_matmul(*arrays, **call)
