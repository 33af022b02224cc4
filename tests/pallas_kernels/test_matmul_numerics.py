"""matmul against the float64 reference, inside the bound that its sum derives."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_cases import assert_inside_bound, matmul, normal

import reference
from pallas_kernels import MatmulConfig

# odd on purpose: no block divides them, some are smaller than any block
SHAPES = [(1, 1, 1), (1, 7, 131), (17, 33, 1), (129, 1, 257), (113, 203, 95), (64, 128, 64)]
TILES = [
  MatmulConfig(16, 16, 16, 1),
  MatmulConfig(32, 64, 32, 2, group_m=1),
  MatmulConfig(64, 32, 64, 3, group_m=2),
  MatmulConfig(128, 128, 32, 2),
]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_and_dtype_is_inside_the_bound(implementation, shape, dtype, rng):
  if implementation == "mosaic_gpu" and dtype == "float32":
    pytest.skip("refused: wgmma would use TF32 (tested with the errors)")
  m, k, n = shape
  a, b = normal(rng, m, k, dtype=dtype), normal(rng, k, n, dtype=dtype)
  out = matmul(a, b, implementation=implementation)
  chex.assert_shape(out, (m, n))
  chex.assert_type(out, dtype)
  assert_inside_bound(out, a, b, implementation)


@pytest.mark.parametrize("shape", [(100, 70, 90), (128, 256, 128)], ids=str)
@pytest.mark.parametrize("config", TILES, ids=MatmulConfig.describe)
@pytest.mark.parametrize("name", ["interpret", pytest.param("triton", marks=pytest.mark.gpu)])
def test_portable_tiles_agree_with_float64(name, config, shape, rng):
  m, k, n = shape
  a, b, bias = normal(rng, m, k), normal(rng, k, n), normal(rng, n)
  out = matmul(a, b, bias=bias, activation="silu", config=config, implementation=name)
  assert_inside_bound(out, a, b, name, bias=bias, activation="silu")


@pytest.mark.parametrize("out_dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("intermediate_dtype", [None, "float32", "bfloat16"])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_epilogue_dtypes(implementation, activation, intermediate_dtype, out_dtype, rng):
  a, b, bias = normal(rng, 30, 50), normal(rng, 50, 40), normal(rng, 40, dtype="float32")
  out = matmul(
    a,
    b,
    bias=bias,
    activation=activation,
    intermediate_dtype=intermediate_dtype,
    out_dtype=out_dtype,
    implementation=implementation,
  )
  chex.assert_type(out, out_dtype)
  assert_inside_bound(
    out,
    a,
    b,
    implementation,
    bias=bias,
    activation=activation,
    intermediate_dtype=None if intermediate_dtype is None else jnp.dtype(intermediate_dtype),
  )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("shape", [(3, 40, 5), (65, 129, 33), (16, 700, 16)], ids=str)
def test_small_integers_are_exact(implementation, shape, dtype, rng):
  if implementation == "mosaic_gpu" and dtype == "float32":
    pytest.skip("refused: wgmma would use TF32")
  a, b = reference.exact_integer_operands(rng, *shape, dtype)
  out = matmul(jnp.asarray(a), jnp.asarray(b), implementation=implementation)
  np.testing.assert_array_equal(
    np.asarray(out, np.float64), reference.matmul(a, b).astype(np.float64)
  )


def test_the_sum_is_rounded_before_the_activation_unless_asked_otherwise(implementation):
  # 257 needs 9 significand bits: bfloat16 rounds it to 256, and bias brings it
  # to where silu is far from flat
  a = jnp.asarray([[257.0, 1.0]], jnp.bfloat16).at[0, 0].set(256.0)
  b = jnp.asarray([[1.0], [1.0]], jnp.bfloat16)  # 256 + 1 = 257
  bias = jnp.asarray([-256.0 + 1.0 / 512.0], jnp.float32)  # 1 + 2^-9: 1 in bfloat16
  rounded = matmul(
    a, b, bias=bias, activation="silu", out_dtype="bfloat16", implementation=implementation
  )
  kept = matmul(
    a,
    b,
    bias=bias,
    activation="silu",
    out_dtype="float32",
    intermediate_dtype="float32",
    implementation=implementation,
  )
  before = matmul(
    a,
    b,
    bias=bias,
    activation="silu",
    out_dtype="float32",
    intermediate_dtype="bfloat16",
    implementation=implementation,
  )
  exact = reference.silu(np.array([[1.0, 1.0 + 2.0**-9]]))[0]
  bounds = reference.silu_error_bound(np.array([1.0, 1.0 + 2.0**-9]), np.zeros(2))
  assert float(rounded[0, 0]) == float(reference.round_to(exact[0], "bfloat16"))
  assert abs(float(before[0, 0]) - exact[0]) <= bounds[0] + 2.0**-24
  assert abs(float(kept[0, 0]) - exact[1]) <= bounds[1] + 2.0**-24
  # the two differ by far more than either error
  assert float(kept[0, 0]) - float(before[0, 0]) > 100 * bounds[0]


@pytest.mark.parametrize(
  "options",
  [
    {"implementation": "xla"},
    {"implementation": "interpret", "config": MatmulConfig(16, 16, 16, split_k=2)},
  ],
  ids=["xla", "split"],
)
def test_xla_is_not_free_to_leave_that_rounding_out(options):
  # a conversion and the one back it is: 1 + 2^-9 went into silu where the sum of 1 x 1 is 1
  def lowered(**more):
    a, b = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((4, 32), (32, 4)))
    call = functools.partial(matmul, activation="silu", **options, **more)
    return jax.jit(call).lower(a, b).as_text()

  assert "reduce_precision" in lowered()
  assert "reduce_precision" not in lowered(intermediate_dtype="float32")


def test_the_activation_sees_the_whole_sum(implementation):
  # silu of each partial sum, 1 and -1, would leave 0.46 (the seed's 5.4.3)
  a = jnp.ones((1, 64), jnp.float32).at[0, 32:].set(-1.0)
  if implementation == "mosaic_gpu":
    a = a.astype(jnp.bfloat16)
  b = jnp.ones((64, 1), a.dtype)
  out = matmul(a, b, activation="silu", implementation=implementation)
  assert float(out[0, 0]) == 0.0


def test_float32_is_never_tf32(implementation):
  # BC-06: 1 + 2^-12 needs 13 significand bits, TF32 has 11
  if implementation == "mosaic_gpu":
    pytest.skip("refused: wgmma would use TF32")
  a = jnp.full((16, 64), 1 + 2.0**-12, jnp.float32)
  b = jnp.ones((64, 16), jnp.float32)
  out = matmul(a, b, implementation=implementation)
  np.testing.assert_array_equal(np.asarray(out), np.full((16, 16), 64.015625, np.float32))


def test_silu_tail_and_special_values(implementation):
  # BC-11; K = 1, so that each output is silu of one input
  x = np.array(
    [-np.inf, -1000.0, -91.0, -90.0, -87.5, -20.0, -0.0, 0.0, 1.0, 89.0, np.inf, np.nan], np.float32
  )
  dtype = jnp.bfloat16 if implementation == "mosaic_gpu" else jnp.float32
  a = jnp.asarray(x, dtype)[:, None]
  out = matmul(
    a,
    jnp.ones((1, 1), dtype),
    activation="silu",
    out_dtype="float32",
    implementation=implementation,
  )[:, 0]
  inputs = np.asarray(a[:, 0], np.float64)
  exact = reference.silu(inputs)
  actual = np.asarray(out, np.float64)
  assert actual[0] == 0.0
  assert actual[-2] == np.inf
  assert np.isnan(actual[-1])
  finite = np.isfinite(inputs)
  bound = reference.silu_error_bound(inputs[finite], np.zeros(finite.sum()))
  chex.assert_trees_all_equal(
    np.abs(actual[finite] - exact[finite]) <= bound, np.ones(finite.sum(), bool)
  )


def test_non_finite_operands_reach_only_their_row_and_column(implementation, rng):
  a, b = normal(rng, 40, 50), normal(rng, 50, 60)
  a = a.at[7, 3].set(jnp.nan)
  b = b.at[9, 11].set(jnp.inf)
  out = np.asarray(matmul(a, b, implementation=implementation), np.float32)
  bad = ~np.isfinite(out)
  expected = np.zeros_like(bad)
  expected[7, :] = True
  expected[:, 11] = True
  np.testing.assert_array_equal(bad, expected)


def test_the_same_call_gives_the_same_bits(implementation, rng):
  a, b = normal(rng, 70, 300), normal(rng, 300, 90)
  first = matmul(a, b, implementation=implementation)
  for _ in range(3):
    chex.assert_trees_all_equal(first, matmul(a, b, implementation=implementation))


@pytest.mark.parametrize(
  "name", ["interpret", *[pytest.param(x, marks=pytest.mark.gpu) for x in ("mosaic_gpu", "triton")]]
)
def test_batch_invariant_rows_keep_their_bits(name, rng):
  a, b = normal(rng, 300, 256), normal(rng, 256, 96)
  whole = np.asarray(matmul(a, b, batch_invariant=True, implementation=name), np.float32)
  for rows in (slice(0, 1), slice(7, 14), slice(100, 300)):
    part = matmul(a[rows], b, batch_invariant=True, implementation=name)
    np.testing.assert_array_equal(np.asarray(part, np.float32), whole[rows])


@pytest.mark.parametrize(
  ("name", "k", "n"),
  [
    # K long enough to be split where only few rows are
    *(pytest.param(name, 4096, 392, marks=pytest.mark.gpu) for name in ("mosaic_gpu", "triton")),
    ("interpret", 320, 24),
  ],
)
def test_a_rows_bits_are_those_of_any_number_of_rows(name, k, n, rng):
  a, b = normal(rng, 7239, k), normal(rng, k, n)
  call = {"batch_invariant": True, "out_dtype": "float32", "implementation": name}
  whole = np.asarray(matmul(a, b, **call))
  for count in (1, 7, 256):
    for first in (0, 3001, 7239 - count):
      rows = slice(first, first + count)
      np.testing.assert_array_equal(np.asarray(matmul(a[rows], b, **call)), whole[rows])
