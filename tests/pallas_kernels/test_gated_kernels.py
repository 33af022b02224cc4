"""gated_matmul: results inside the derived bound, gradients, transformations, messages."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_ops import gradients
from kernel_cases import EVERY, TILED, accumulates, gated_matmul, normal

import reference
from pallas_kernels import MatmulConfig, explain

SMALL = MatmulConfig(64, 32, 32, 2, num_consumer_warpgroups=1)


def operands(rng, m, k, n, dtype="bfloat16"):
  """x and two weights of products of order 1."""
  scale = np.asarray(max(k, 1) ** -0.5, jnp.dtype(dtype))
  weights = (np.asarray(normal(rng, k, n, dtype=dtype)) * scale for _ in range(2))
  return normal(rng, m, k, dtype=dtype), *map(jnp.asarray, weights)


def assert_gated(actual, x, w_gate, w_up, implementation, **options):
  reference.assert_gated_matmul_close(
    *map(np.asarray, (actual, x, w_gate, w_up)),
    out_dtype=actual.dtype,
    accumulate=accumulates(implementation, x.dtype.name),
    **options,
  )


@pytest.mark.parametrize(
  ("m", "k", "n"), [(70, 96, 136), (1, 33, 17), (129, 64, 64), (7, 200, 250), (64, 8, 1)]
)
@pytest.mark.parametrize("intermediate_dtype", [None, "float32"])
def test_every_shape_is_inside_the_bound(implementation, m, k, n, intermediate_dtype, rng):
  x, w_gate, w_up = operands(rng, m, k, n)
  out = gated_matmul(
    x, w_gate, w_up, intermediate_dtype=intermediate_dtype, implementation=implementation
  )
  chex.assert_shape(out, (m, n))
  assert_gated(out, x, w_gate, w_up, implementation, intermediate_dtype=intermediate_dtype)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
  ("m", "k", "n", "config"),
  [
    (130, 100, 72, MatmulConfig(128, 64, 32, 2)),
    (70, 136, 104, MatmulConfig(64, 32, 64, 3, num_consumer_warpgroups=1)),
    (65, 40, 40, MatmulConfig(128, 32, 32, 1, overlap_epilogue=False)),
    (200, 72, 136, MatmulConfig(192, 128, 32, 2, num_consumer_warpgroups=3)),
    (135, 72, 72, MatmulConfig(192, 64, 32, 2, num_consumer_warpgroups=3, epilogue_block_n=32)),
  ],
  ids=str,
)
def test_the_hopper_kernel_is_right_and_free_of_races(hopper, m, k, n, config, rng, races):
  x, w_gate, w_up = operands(rng, m, k, n)
  out = gated_matmul(x, w_gate, w_up, config=config, implementation=hopper)
  assert_gated(out, x, w_gate, w_up, hopper)
  assert not races()


@pytest.mark.parametrize("name", EVERY)
def test_fused_and_unfused_agree_to_the_bit_on_exact_sums(name, rng):
  # sums of small integers are exact in float32, so only the roundings of the
  # contract are left, and they are the unfused program's
  a, b = reference.exact_integer_operands(rng, 40, 48, 56, "bfloat16")
  c = rng.permutation(b, axis=1)
  x, w_gate, w_up = (jnp.asarray(v) for v in (a, b, c))
  out = gated_matmul(x, w_gate, w_up, config=None, implementation=name)
  gate, up = (jnp.asarray(reference.matmul(a, w).astype(np.float32), jnp.bfloat16) for w in (b, c))
  reference.assert_swiglu_close(
    np.asarray(out), np.asarray(gate), np.asarray(up), intermediate_dtype="float32"
  )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TILED)
def test_both_sums_take_their_blocks_in_the_order_of_k(name):
  # 2^24 + 1 is 2^24 rounded or cut, so the first 1 is lost and what follows is not
  x = np.zeros((64, 128), np.float32)
  x[:, [0, 32, 64, 96]] = [2.0**24, 1.0, -(2.0**24), 3.0]
  w_gate, w_up = np.ones((128, 64), np.float32), np.ones((128, 64), np.float32)
  w_up[96] = 2.0
  x, w_gate, w_up = (jnp.asarray(v, jnp.bfloat16) for v in (x, w_gate, w_up))
  sums = [
    reference.emulate_matmul(np.asarray(x), np.asarray(w), block_k=32) for w in (w_gate, w_up)
  ]
  assert [np.unique(v).tolist() for v in sums] == [[3.0], [6.0]]
  out = gated_matmul(
    x, w_gate, w_up, out_dtype="float32", config=MatmulConfig(64, 64, 32, 2), implementation=name
  )
  # silu(4)·7, of the exact sums, is nowhere near
  reference.assert_swiglu_close(np.asarray(out), *sums)


def test_a_row_of_zeros_gates_to_zero(implementation, rng):
  x, w_gate, w_up = operands(rng, 5, 24, 16)
  out = gated_matmul(x.at[2].set(0), w_gate, w_up, implementation=implementation)
  np.testing.assert_array_equal(np.asarray(out[2], np.float32), 0)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 8, 8), (8, 0, 8), (8, 8, 0)])
def test_empty_sizes(implementation, m, k, n):
  x, w = jnp.ones((m, k), jnp.bfloat16), jnp.ones((k, n), jnp.bfloat16)
  out = gated_matmul(x, w, w, implementation=implementation)
  chex.assert_shape(out, (m, n))
  np.testing.assert_array_equal(np.asarray(out, np.float32), np.zeros((m, n)))


def test_the_backward_pass_computes_the_activation_from_what_was_stored():
  # else XLA keeps the forward pass's in float32, one more array of the size of the result
  x, w = jax.ShapeDtypeStruct((32, 16), jnp.bfloat16), jax.ShapeDtypeStruct((16, 48), jnp.bfloat16)
  call = functools.partial(gated_matmul, implementation="xla")

  def gradients(x, w_gate, w_up):
    out, pull = jax.vjp(call, x, w_gate, w_up)
    return pull(out)

  text = str(jax.make_jaxpr(gradients)(x, w, w))
  # the products with both weights
  (read,) = re.findall(r"= optimization_barrier (.*)", text)
  assert len(read.split()) == 2
  assert "optimization_barrier" not in str(jax.make_jaxpr(call)(x, w, w))


def assert_gradients(found, x, w_gate, w_up, d_out, implementation):
  bounds = reference.bounded_gated_matmul_gradients(
    *map(np.asarray, (x, w_gate, w_up, d_out)),
    accumulate=accumulates(implementation, x.dtype.name),
  )
  for actual, name in zip(found, ("x", "w_gate", "w_up"), strict=False):
    bounded = getattr(bounds, name).round(actual.dtype.name)
    error = np.abs(np.asarray(actual, np.float64) - bounded.exact)
    assert np.all(error <= bounded.error)


def test_gradients_are_inside_the_bound(implementation, rng):
  x, w_gate, w_up = operands(rng, 33, 40, 24, dtype="float32")
  if implementation == "mosaic_gpu":
    x, w_gate, w_up = (v.astype(jnp.bfloat16) for v in (x, w_gate, w_up))
  d_out = normal(rng, 33, 24, dtype=x.dtype.name)
  call = functools.partial(gated_matmul, implementation=implementation)
  found = gradients(call, (x, w_gate, w_up), d_out)
  assert_gradients(found, x, w_gate, w_up, d_out, implementation)


DIFFERENTIATED = [(70, 96, 136), (33, 40, 24), (7, 65, 129)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
  ("name", "m", "k", "n", "dtype"),
  [
    # five kernels each: interpreted every shape and dtype once, compiled all together
    *(
      ("mosaic_gpu_interpret", *shape, dtype)
      for shape, dtype in zip(DIFFERENTIATED, ("bfloat16", "float16", "bfloat16"), strict=True)
      if jax.default_backend() == "cpu"
    ),
    *(
      pytest.param("mosaic_gpu", *shape, dtype, marks=pytest.mark.gpu)
      for shape in DIFFERENTIATED
      for dtype in ("bfloat16", "float16")
    ),
  ],
)
def test_the_hopper_kernels_gradients_are_inside_the_bound(name, m, k, n, dtype, rng):
  x, w_gate, w_up = operands(rng, m, k, n, dtype)
  d_out = normal(rng, m, n, dtype=dtype)
  call = functools.partial(gated_matmul, implementation=name)
  found = gradients(call, (x, w_gate, w_up), d_out)
  assert_gradients(found, x, w_gate, w_up, d_out, name)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", EVERY)
def test_gradients_of_sharded_rows_with_varying_axes_checked(name, rng):
  # one device for the Mosaic interpreter, which keeps one device's state
  devices = jax.devices()[: 1 if name == "mosaic_gpu_interpret" else None]
  mesh = jax.make_mesh(
    (len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices
  )
  spec = jax.sharding.PartitionSpec
  x, w_gate, w_up = operands(rng, 8 * len(devices), 24, 16)
  d_out = normal(rng, 8 * len(devices), 16)
  sharded = jax.shard_map(
    functools.partial(gated_matmul, implementation=name),
    mesh=mesh,
    in_specs=(spec("x", None), spec(), spec()),
    out_specs=spec("x", None),
    check_vma=True,
  )
  found = gradients(sharded, (x, w_gate, w_up), d_out)
  # the weights' are summed over the devices, each share rounded: more than the bound
  assert_gradients(found[:1], x, w_gate, w_up, d_out, name)


@pytest.mark.parametrize("name", EVERY[:2])
def test_gradients_have_gradients(name, rng):
  x, w_gate, w_up = operands(rng, 5, 8, 6, "float32")
  call = functools.partial(gated_matmul, implementation=name)

  def size(x):
    return jnp.sum(jax.grad(lambda x: jnp.sum(call(x, w_gate, w_up)))(x) ** 2)

  found = jax.jit(jax.grad(size))(x)
  chex.assert_shape(found, x.shape)
  chex.assert_tree_all_finite(found)
  assert np.any(np.asarray(found))


def test_vmap_batches_and_leading_dimensions_agree(implementation, rng):
  x, w_gate, w_up = operands(rng, 12, 16, 8)
  call = functools.partial(gated_matmul, implementation=implementation)
  rows = call(x.reshape(3, 4, 16), w_gate, w_up)
  chex.assert_trees_all_equal(rows.reshape(12, 8), call(x, w_gate, w_up))
  mapped = jax.jit(jax.vmap(call, in_axes=(None, 0, 0)))(
    x, jnp.stack([w_gate, w_up]), jnp.stack([w_up, w_gate])
  )
  chex.assert_trees_all_equal(mapped[0], call(x, w_gate, w_up))
  chex.assert_trees_all_equal(mapped[1], call(x, w_up, w_gate))


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"w_up": jnp.ones((8, 5), jnp.bfloat16)}, "w_gate has shape"),
    ({"w_gate": jnp.ones((9, 4), jnp.bfloat16)}, "the last dimension of x"),
    ({"w_gate": jnp.ones((8, 4), jnp.float32)}, "expected one dtype"),
    ({"activation": None}, "activation=None: expected 'silu'"),
    ({"activation": "sily"}, "did you mean 'silu'"),
    ({"config": 3}, "expected a MatmulConfig"),
  ],
)
def test_a_wrong_argument_is_named(change, message):
  call = {
    "x": jnp.ones((4, 8), jnp.bfloat16),
    "w_gate": jnp.ones((8, 4), jnp.bfloat16),
    "w_up": jnp.ones((8, 4), jnp.bfloat16),
  } | change
  with pytest.raises(ValueError, match=message):
    gated_matmul(call.pop("x"), call.pop("w_gate"), call.pop("w_up"), **call)


def test_explain_names_the_op_and_takes_shapes():
  shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((4, 8), (8, 16), (8, 16))]
  text = str(explain(gated_matmul, *shapes, implementation="interpret"))
  assert "gated_matmul(bfloat16[4,8], bfloat16[8,16], bfloat16[8,16]" in text
