"""The row-wise ops under JAX's transformations: each must give what the plain calls give."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rowwise_cases import KERNEL, ROWS, arrays, assert_rms_gradients, normal

import reference
from pallas_kernels import (
  RowConfig,
  compat,
  quantize_rows,
  rms_norm,
  swiglu,
  swiglu_quantize,
  transpose,
)

FORMS = {"kept": RowConfig(2, 16, 1), "walked": RowConfig(2, 8, 1)}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (-1, 1)], ids=str)
def test_vmap(name, in_axes, rng):
  x, weight = normal(rng, 3, 9), normal(rng, 9)
  residual = normal(rng, 3, 9)
  run = jax.jit(functools.partial(rms_norm, quantize_dtype="int8", implementation=name))
  mapped_x = x if in_axes[0] is None else jnp.stack([x + i for i in range(2)], in_axes[0])
  axis = None if in_axes[1] is None else min(in_axes[1], weight.ndim)
  mapped_w = weight if axis is None else jnp.stack([weight - i for i in range(2)], axis)

  def call(x, weight):
    return run(x, weight, residual=residual)

  out = jax.vmap(call, in_axes=(in_axes[0], axis))(mapped_x, mapped_w)
  for i in range(2):
    one = call(x if in_axes[0] is None else x + i, weight if axis is None else weight - i)
    chex.assert_trees_all_equal(jax.tree.map(lambda o, i=i: o[i], out), one)


@pytest.mark.parametrize("name", ROWS)
def test_nested_vmap_with_operands_shared(name, rng):
  gate, up = normal(rng, 2, 3, 9), normal(rng, 3, 9)
  run = functools.partial(swiglu, implementation=name)
  out = jax.vmap(jax.vmap(run, in_axes=(0, 0)), in_axes=(0, None))(gate, up)
  reference.assert_swiglu_close(*arrays(out, gate, jnp.broadcast_to(up, gate.shape)))
  scales = jnp.asarray([0.5, 0.25])
  codes, scale = jax.vmap(
    lambda g, s: swiglu_quantize(g, up, scale=s, implementation=name), in_axes=(0, 0)
  )(gate, scales)
  given = np.broadcast_to(np.asarray(scale)[:, None, None], (2, 3, 1))
  reference.assert_swiglu_quantize_close(
    *arrays(codes, given, gate, jnp.broadcast_to(up, gate.shape)), given_scale=given
  )
  x = normal(rng, 2, 4, 5)
  out = jax.vmap(lambda x: transpose(x, implementation=name))(x)
  reference.assert_transpose_equal(*arrays(out, x))


@pytest.mark.parametrize("name", ROWS)
def test_gradients_of_mapped_calls_are_those_of_each(name, rng):
  x, d_out = (normal(rng, 2, 3, 9, dtype="float32") for _ in range(2))
  weight = normal(rng, 9, dtype="float32")

  def loss(x, weight, d_out):
    return (rms_norm(x, weight, implementation=name) * d_out).sum()

  gradient = jax.grad(loss, (0, 1))
  each = jax.jit(jax.vmap(gradient, in_axes=(0, None, 0)))(x, weight, d_out)
  for i in range(2):
    assert_rms_gradients(each[0][i], each[1][i], x[i], weight, d_out[i])

  # a weight that all share has the sum of their gradients
  def total(x, weight):
    return jax.vmap(loss, in_axes=(0, None, 0))(x, weight, d_out).sum()

  assert_rms_gradients(*jax.jit(jax.grad(total, (0, 1)))(x, weight), x, weight, d_out)


@pytest.mark.parametrize("name", ROWS)
def test_remat_donation_and_jit_give_the_same_bits(name, rng):
  x, weight = normal(rng, 3, 9), normal(rng, 9)

  def loss(x, weight):
    return rms_norm(swiglu(x, x, implementation=name), weight, implementation=name).sum()

  plain = jax.jit(jax.grad(loss))(x, weight)
  chex.assert_trees_all_equal(jax.jit(jax.grad(jax.checkpoint(loss)))(x, weight), plain)
  donated = jax.jit(functools.partial(swiglu, implementation=name), donate_argnums=0)
  expected = swiglu(x, x + 1, implementation=name)
  chex.assert_trees_all_equal(donated(jnp.array(x), x + 1), expected)


def mesh_of_two() -> jax.sharding.Mesh:
  """Two devices, or the one there is."""
  return jax.sharding.Mesh(np.asarray(jax.devices()[:2]), ("x",))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("form", FORMS)
def test_shard_map_with_varying_axes_checked(name, form, rng):
  config = None if name == "xla" else FORMS[form]
  if name == "xla" and form != "kept":
    return
  mesh = mesh_of_two()
  spec = jax.sharding.PartitionSpec
  x, weight = normal(rng, 6, 9), normal(rng, 9)
  run = functools.partial(rms_norm, config=config, implementation=name)
  options = {"mesh": mesh, "in_specs": (spec("x"), spec()), "check_vma": True}
  out = jax.jit(jax.shard_map(run, out_specs=spec("x"), **options))(x, weight)
  reference.assert_rms_norm_close(*arrays(out, x, weight))
  codes = jax.jit(
    jax.shard_map(
      lambda x, w: tuple(run(x, w, quantize_dtype="int8")),
      out_specs=(spec("x"), spec("x")),
      **options,
    )
  )(x, weight)
  reference.assert_rms_norm_quantize_close(*arrays(*codes, x, weight), dtype="int8")
  if name != "xla":  # which sums in another order where a device has other rows
    chex.assert_trees_all_equal(tuple(codes), tuple(run(x, weight, quantize_dtype="int8")))
  if form == "walked":
    return

  def loss(f, x, weight):
    return f(x, weight).astype(jnp.float32).sum()

  sharded = jax.shard_map(run, out_specs=spec("x"), **options)
  d_weight = jax.jit(jax.grad(functools.partial(loss, sharded), 1))(x, weight)
  # each device rounds its share to bfloat16, and the sum is rounded again
  shares = [
    reference.bounded_rms_norm_gradients(part, np.asarray(weight), np.ones_like(part)).weight
    for part in np.split(np.asarray(x), mesh.size)
  ]
  total = functools.reduce(reference.Bounded.add, (share.round(x.dtype) for share in shares))
  reference.assert_within(np.asarray(d_weight), total.round(x.dtype))


@pytest.mark.parametrize("name", ROWS)
def test_x64_changes_nothing_for_16_bit_operands(name, rng):
  x, weight = normal(rng, 5, 9), normal(rng, 9)

  def everything(x, weight):
    loss = lambda x: rms_norm(x, weight, implementation=name).sum()  # noqa: E731
    return (
      swiglu(x, x, implementation=name),
      tuple(quantize_rows(x, implementation=name)),
      rms_norm(x, weight, num_splits=2, implementation=name),
      transpose(x, implementation=name),
      jax.grad(loss)(x),
    )

  plain = jax.jit(everything)(x, weight)
  with jax.enable_x64(True):
    wide = jax.jit(everything)(x, weight)
  chex.assert_trees_all_equal(plain, wide)


def test_float64_is_computed_in_float64_by_xla(rng):
  # Units of 2^-53. Ours: half of what `reference` counts of a mean of 9 squares (8 + 13), an rsqrt
  # within 2 ulp (4), two products. NumPy's: half of 9 squares' mean (10), a root, a reciprocal and
  # a product, each rounded to nearest.
  norm = (17 + 8) * 2.0**-53
  # Either: h² of an exp within 1 ulp (5), which counts again in 1 + h² (2.5), that sum and its
  # reciprocal (2), three products of x and with `up`.
  gated = 2 * 13 * 2.0**-53
  with jax.enable_x64(True):
    x, weight = jnp.asarray(rng.standard_normal((3, 9))), jnp.ones(9)
    out = rms_norm(x * 1e200, weight, eps=0.0)
    exact = np.asarray(x) * reference.inverse_rms(np.asarray(x), eps=0.0)
    np.testing.assert_allclose(np.asarray(out), exact, rtol=norm)
    out = swiglu(x, x)
    np.testing.assert_allclose(np.asarray(out), reference.swiglu(x, x), rtol=gated)
    assert transpose(x).dtype == jnp.float64


@pytest.mark.parametrize("name", ROWS)
def test_what_has_no_derivative_says_so(name):
  x = jnp.ones((2, 4))
  with pytest.raises(NotImplementedError, match=r"quantize_rows has no gradient.*stop_gradient"):
    jax.grad(lambda x: quantize_rows(x, implementation=name).scale.sum())(x)
  frozen = jax.grad(
    lambda x: (x * quantize_rows(jax.lax.stop_gradient(x), implementation=name).scale).sum()
  )(x)
  assert frozen.shape == x.shape
  with pytest.raises(NotImplementedError, match="swiglu has first derivatives only"):
    jax.grad(lambda x: jax.grad(lambda x: swiglu(x, x, implementation=name).sum())(x).sum())(x)
  with pytest.raises(TypeError, match="forward-mode"):
    jax.jvp(lambda x: swiglu(x, x, implementation=name), (x,), (x,))


@pytest.mark.parametrize("name", KERNEL)
def test_transposes_are_differentiated_any_number_of_times(name):
  x = jnp.arange(6.0).reshape(2, 3)

  def loss(x):
    return (transpose(x, implementation=name) ** 3).sum()

  np.testing.assert_array_equal(np.asarray(jax.grad(loss)(x)), 3 * np.asarray(x) ** 2)
  twice = jax.grad(lambda x: jax.grad(loss)(x).sum())(x)
  np.testing.assert_array_equal(np.asarray(twice), 6 * np.asarray(x))


@pytest.mark.skipif(not compat.CARRIES_ARRAYS, reason="refused on this JAX version")
@pytest.mark.skipif(jax.default_backend() == "gpu", reason="traced for a CPU")
def test_results_of_the_hopper_kernels_vary_over_the_mesh_as_their_operands_do():
  # else the transpose of a cast, which adds up over devices, is in a gradient
  name, spec = "mosaic_gpu_interpret", jax.sharding.PartitionSpec
  found = []

  def step(x, weight, blocks):
    norm = functools.partial(rms_norm, implementation=name)
    out, pull = jax.vjp(norm, x, weight)
    turned, pull_turned = jax.vjp(functools.partial(transpose, implementation=name), blocks)
    results = (
      turned,
      pull_turned(turned)[0],
      out,
      pull(out)[0],
      *quantize_rows(x, implementation=name),
      *swiglu_quantize(x, x, implementation=name),
    )
    found.extend(jax.typeof(result).manual_axis_type.varying for result in results)
    return out

  mapped = jax.shard_map(
    step,
    mesh=mesh_of_two(),
    in_specs=(spec("x"), spec(), spec("x")),
    out_specs=spec("x"),
    check_vma=True,
  )
  operands = (jax.ShapeDtypeStruct(x, jnp.bfloat16) for x in ((8, 256), (256,), (1000, 64)))
  jaxpr = str(jax.make_jaxpr(mapped)(*operands))
  assert len(found) == 8
  assert set(found) == {frozenset({"x"})}
  # of the weight's gradient alone, over the devices that share it
  assert jaxpr.count("psum") <= 1
