"""K summed in parts: their merge to the bit, their bounds, and what refuses them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_cases import (
  assert_inside_bound,
  gated_matmul,
  matmul,
  normal,
  quantize_matmul,
  quantized_matmul,
)

import hw_profiles
import reference
from pallas_kernels import MatmulConfig, explain

# the interpreter of jax 0.10 hangs where a kernel is wrong; the limit says so
pytestmark = pytest.mark.timeout(300)

TILE = functools.partial(MatmulConfig, 64, 64, 32, 2)
KERNELS = [
  *(["interpret", "mosaic_gpu_interpret"] if jax.default_backend() == "cpu" else []),
  *(pytest.param(name, marks=pytest.mark.gpu) for name in ("mosaic_gpu", "triton")),
]


def parts_that_round(rng, rows, columns, *, block_k, splits):
  """Operands whose parts have exact sums that float32 cannot add exactly.

  Small integers, every other part of A times 2^18: the sum of a part is such a
  multiple below 2^12, exact in any order, and two neighbours span up to 30 bits.
  """
  a = rng.integers(-8, 9, (rows, splits * block_k)).astype(np.float64)
  b = rng.integers(-8, 9, (splits * block_k, columns)).astype(np.float64)
  a *= np.where(np.arange(splits * block_k) // block_k % 2, 1.0, 2.0**18)
  return jnp.asarray(a, jnp.bfloat16), jnp.asarray(b, jnp.bfloat16)


@pytest.mark.parametrize("implementation", KERNELS)
@pytest.mark.parametrize("splits", [2, 3, 4])
def test_parts_are_added_in_the_order_of_k(implementation, splits, rng):
  a, b = parts_that_round(rng, 70, 100, block_k=32, splits=splits)
  out = matmul(
    a, b, out_dtype="float32", config=TILE(split_k=splits), implementation=implementation
  )
  emulate = functools.partial(
    reference.emulate_matmul, np.asarray(a), np.asarray(b), block_k=32, num_splits=splits
  )
  np.testing.assert_array_equal(np.asarray(out), emulate())
  if splits > 2:
    # the operands tell orders apart
    backwards = emulate(merge=tuple(range(splits))[::-1])
    assert (backwards != emulate()).any()


@pytest.mark.gpu
@pytest.mark.parametrize(
  ("implementation", "config"),
  [
    # consumers along M, along N, and one; wide tiles; a cluster; blocks that share an SM
    ("mosaic_gpu", MatmulConfig(128, 128, 64, 6, group_m=4, split_k=3)),
    ("mosaic_gpu", MatmulConfig(64, 128, 128, 4, group_m=1, split_k=4)),
    ("mosaic_gpu", MatmulConfig(128, 192, 64, 4, num_consumer_warpgroups=1, split_k=2)),
    ("mosaic_gpu", MatmulConfig(128, 256, 64, 4, split_k=8)),
    ("mosaic_gpu", MatmulConfig(128, 128, 64, 4, cluster_m=2, split_k=3)),
    ("triton", MatmulConfig(128, 128, 64, 3, split_k=3)),
    ("triton", MatmulConfig(16, 32, 128, 2, num_warps=4, split_k=4)),
  ],
  ids=str,
)
def test_parts_of_tuned_tiles_are_added_in_the_order_of_k(implementation, config, rng):
  # a last part of fewer steps, rows and columns that no tile divides
  depth, splits = 3 * config.block_k, config.split_k
  a, b = parts_that_round(rng, 300, 520, block_k=depth, splits=splits)
  a, b = a[:, : -config.block_k - 8], b[: -config.block_k - 8]
  out = matmul(a, b, out_dtype="float32", config=config, implementation=implementation)
  emulate = functools.partial(
    reference.emulate_matmul,
    np.asarray(a),
    np.asarray(b),
    block_k=config.block_k,
    num_splits=splits,
  )
  np.testing.assert_array_equal(np.asarray(out), emulate())
  if splits > 2:
    assert (emulate(merge=tuple(range(splits))[::-1]) != emulate()).any()


@pytest.mark.parametrize("implementation", KERNELS)
def test_a_sum_in_one_part_takes_its_blocks_in_the_order_of_k(implementation):
  # 2^24 + 1 is 2^24 rounded or cut, so the first 1 is lost and 3 is not
  values = np.zeros((64, 128))
  values[:, [0, 32, 64, 96]] = [2.0**24, 1.0, -(2.0**24), 3.0]
  a, b = jnp.asarray(values, jnp.bfloat16), jnp.ones((128, 64), jnp.bfloat16)
  expected = reference.emulate_matmul(np.asarray(a), np.asarray(b), block_k=32)
  assert (expected == 3.0).all()
  out = matmul(a, b, out_dtype="float32", config=TILE(), implementation=implementation)
  np.testing.assert_array_equal(np.asarray(out), expected)


@pytest.mark.parametrize("implementation", KERNELS)
@pytest.mark.parametrize("shape", [(1, 100, 257), (70, 330, 100)], ids=str)
def test_odd_sizes_and_the_epilogue_are_inside_the_bound(implementation, shape, rng):
  m, k, n = shape
  a, b, bias = normal(rng, m, k), normal(rng, k, n), normal(rng, n)
  out = matmul(
    a, b, bias=bias, activation="silu", config=TILE(split_k=2), implementation=implementation
  )
  assert_inside_bound(out, a, b, implementation, bias=bias, activation="silu")


@pytest.mark.parametrize("implementation", KERNELS)
def test_a_batch_is_split_product_by_product(implementation, rng):
  a, b = reference.exact_integer_operands(rng, 40, 200, 72, "bfloat16")
  a, b = jnp.stack([jnp.asarray(a), -jnp.asarray(a)]), jnp.asarray(b)
  split = functools.partial(matmul, config=TILE(split_k=3), implementation=implementation)
  out = jax.vmap(split)(a, jnp.stack([b, b]))
  expected = reference.matmul_exact(np.asarray(a[0]), np.asarray(b))
  np.testing.assert_array_equal(
    np.asarray(out, np.float64), np.stack([expected, -expected]).astype(jnp.bfloat16)
  )


@pytest.mark.parametrize("implementation", KERNELS)
def test_int8_sums_are_exact_in_any_split(implementation, rng):
  a = jnp.asarray(rng.integers(-127, 128, (64, 256)), jnp.int8)
  b = jnp.asarray(rng.integers(-127, 128, (256, 64)), jnp.int8)
  ones = jnp.ones((64, 1)), jnp.ones((1, 64))
  out = quantized_matmul(
    a, b, *ones, out_dtype="float32", config=TILE(split_k=4), implementation=implementation
  )
  np.testing.assert_array_equal(np.asarray(out), np.asarray(a, np.int32) @ np.asarray(b, np.int32))


@pytest.mark.parametrize("implementation", KERNELS)
def test_a_rows_bits_do_not_depend_on_the_others(implementation, rng):
  a, b = normal(rng, 70, 256), normal(rng, 256, 64)
  split = functools.partial(
    matmul, batch_invariant=True, config=TILE(split_k=4), implementation=implementation
  )
  whole = np.asarray(split(a, b), np.float32)
  np.testing.assert_array_equal(np.asarray(split(a[5:6], b), np.float32), whole[5:6])


def test_the_gradient_of_a_split_product_is_that_of_any(rng):
  a, b = normal(rng, 24, 128), normal(rng, 128, 40)

  def loss(a, b, **options):
    return jnp.sum(matmul(a, b, out_dtype="float32", implementation="interpret", **options))

  split = jax.grad(functools.partial(loss, config=TILE(split_k=2)), (0, 1))(a, b)
  plain = jax.grad(loss, (0, 1))(a, b)
  for got, wanted in zip(split, plain, strict=True):
    np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(wanted, np.float32))


def test_explain_tells_of_the_parts():
  shapes = jax.ShapeDtypeStruct((64, 330), "bfloat16"), jax.ShapeDtypeStruct((330, 70), "bfloat16")
  said = explain(matmul, *shapes, config=TILE(split_k=3), implementation="interpret")
  assert any("3 parts" in note and f"{3 * 64 * 70 * 4} B" in note for note in said.notes)


@pytest.mark.parametrize("implementation", ["interpret", "mosaic_gpu_interpret"])
def test_what_splits_nothing_is_refused(implementation):
  x = jnp.zeros((64, 160), jnp.bfloat16)
  options = {"config": TILE(split_k=2), "implementation": implementation}
  with pytest.raises(NotImplementedError, match="split_k with two products"):
    gated_matmul(x, x.T, x.T, **options)


def test_a_fused_quantisation_is_not_split():
  x = jnp.zeros((64, 160), jnp.bfloat16)
  codes, scale = jnp.zeros((160, 64), jnp.float8_e4m3fn), jnp.ones((1, 64))
  with pytest.raises(NotImplementedError, match="a row's scale needs all of K"):
    quantize_matmul(
      x,
      codes,
      scale,
      fuse=True,
      out_dtype="bfloat16",
      config=TILE(split_k=2),
      implementation="interpret",
    )


def test_an_empty_part_is_refused_with_the_nearest_that_is_not():
  x = jnp.zeros((64, 160), jnp.bfloat16)
  with pytest.raises(hw_profiles.InfeasibleTileError, match=r"split_k=4: .* 3 and 5"):
    matmul(x, x.T, config=TILE(split_k=4), implementation="mosaic_gpu_interpret")
