"""flash_attention under JAX's transformations: each must give what the plain calls give."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
  IMPLEMENTATIONS,
  Case,
  accumulates,
  assert_gradients_inside_bound,
  assert_inside_bound,
  assert_within,
  bounded_gradients,
  quick,
  tile_for,
)

import reference
from pallas_kernels import DecodeConfig, decode_attention, flash_attention
from reference.bounded_arrays import bounded_sum, joined

# What `operands` makes, one example of it.
CASE = Case("one", (1, 18, 21, 2, 1, 8, 8))
CAUSAL = dataclasses.replace(CASE, options={"is_causal": True, "causal_alignment": "bottom_right"})
NAMES = ("query", "key", "value", "bias")


def attend(name, **options):
  return functools.partial(flash_attention, implementation=name, config=tile_for(name), **options)


def operands(rng, *lead, dtype="float32"):
  """Query, key, value of [*lead, T or S, heads, 8]."""
  return tuple(
    jnp.asarray(rng.standard_normal((*lead, length, heads, 8)), dtype)
    for length, heads in ((18, 2), (21, 1), (21, 1))
  )


def weighted(f, *operands):
  """Σ f(...)·d_out, whose gradients are those that d_out pulls back; d_out is the last operand."""
  *rest, d_out = operands
  return jnp.sum(f(*rest) * d_out)


def normal(rng, *shape):
  return jnp.asarray(rng.standard_normal(shape), jnp.float32)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_nested_vmap_and_its_gradient(name, rng):
  # queries mapped twice, keys once, values not at all, and a bias that each example shares
  q, k, v = operands(rng, 2, 3, 1)
  k, v = k[0], v[0, 0]
  bias, d_out = normal(rng, 3, 1, 2, 1, 21), normal(rng, *q.shape)
  inner = jax.vmap(functools.partial(weighted, attend(name)), in_axes=(0, 0, None, 0, 0))
  outer = jax.vmap(inner, in_axes=(0, None, None, None, 0))
  grads = quick(jax.grad(lambda *x: outer(*x).sum(), argnums=(0, 1, 2, 3)))(q, k, v, bias, d_out)

  # the same as three calls, one a key, of two sequences; what those share is summed afterwards
  d_value = []
  for j in range(3):
    both = {
      "query": q[:, j, 0],
      "key": jnp.broadcast_to(k[j], (2, 21, 1, 8)),
      "value": jnp.broadcast_to(v, (2, 21, 1, 8)),
      "bias": bias[j],
    }
    bounds = bounded_gradients(CASE, both, d_out[:, j, 0], name)
    assert_within("query", grads[0][:, j, 0], bounds["query"])
    assert_within("key", grads[1][j, 0], bounded_sum(bounds["key"], axis=0))
    assert_within("bias", grads[3][j], bounds["bias"])
    d_value.append(bounds["value"])
  every = functools.reduce(functools.partial(joined, axis=0), d_value)
  assert_within("value", grads[2][0], bounded_sum(every, axis=0))


def test_vmap_of_a_gradient_with_a_bias_of_each_example(rng):
  q, k, v = operands(rng, 3, 2)
  bias, d_out = normal(rng, 3, 1, 1, 18, 21), normal(rng, *q.shape)
  gradient = jax.grad(functools.partial(weighted, attend("xla")), argnums=(0, 1, 2, 3))
  mapped = quick(jax.vmap(gradient))(q, k, v, bias, d_out)
  for i in range(3):
    arrays = dict(zip(NAMES, (q[i], k[i], v[i], bias[i]), strict=True))
    found = dict(zip(NAMES, (x[i] for x in mapped), strict=True))
    assert_gradients_inside_bound(CASE, arrays, d_out[i], found, "xla")


def test_vmap_over_nothing(rng):
  q, k, v = operands(rng, 0, 1)
  assert quick(jax.vmap(attend("interpret")))(q, k, v).shape == q.shape
  grads = quick(jax.vmap(jax.grad(lambda *x: attend("interpret")(*x).sum())))(q, k, v)
  assert grads.shape == q.shape


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_remat_and_scan_give_the_same_gradient(name, rng):
  q, k, v = operands(rng, 1)
  d_out = normal(rng, *q.shape)
  one = attend(name, **CAUSAL.options)

  def loss(q):
    return weighted(one, q, k, v, d_out)

  def in_a_scan(q):
    return jax.lax.scan(lambda c, _: (c, jax.checkpoint(loss)(c)), q, None, length=1)[1][0]

  # XLA fuses the two in other ways, so that they need not have the same bits
  arrays = dict(zip(NAMES, (q, k, v), strict=False))
  for found in quick(lambda q: (jax.grad(loss)(q), jax.grad(in_a_scan)(q)))(q):
    assert_gradients_inside_bound(CAUSAL, arrays, d_out, {"query": found}, name)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_x64_changes_nothing_for_16_bit_operands(name, rng):
  case = Case(
    "x64",
    (1, 18, 21, 2, 1, 8, 8),
    "bfloat16",
    bias=(1, 2, 1, 21),
    lengths=((18,), (20,)),
    segments=2,
    options={"is_causal": True, "causal_alignment": "bottom_right"},
  )
  arrays = case.arrays(rng)

  def both(arrays):
    return case.call(name)(**arrays)

  plain = quick(both)(arrays)
  with jax.enable_x64(True):
    wide = quick(both)(arrays)
  chex.assert_trees_all_equal_dtypes(plain, wide)
  if name == "xla":
    # with other integers XLA may choose another program
    assert_inside_bound(case, arrays, wide, name)
  else:
    chex.assert_trees_all_equal(plain, wide)


def test_float64_is_computed_in_float64_by_xla(rng):
  with jax.enable_x64(True):
    q, k, v = operands(rng, 1, dtype="float64")
    out, residual = flash_attention(q, k, v, return_residual=True)
    chex.assert_type(out, jnp.float64)
    chex.assert_type(residual, jnp.float32)
    logits = np.einsum("btnh,bsh->bnts", q, k[:, :, 0]) * 8**-0.5
    weights = np.exp(logits)
    weights /= weights.sum(-1, keepdims=True)
    exact = np.einsum("bnts,bsh->btnh", weights, v[:, :, 0])
    # some 40 roundings of numbers of about 1
    assert np.abs(np.asarray(out) - exact).max() < 40 * 2.0**-52


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_strict_dtype_promotion(name, rng):
  case = Case(
    "strict",
    (1, 18, 21, 2, 1, 8, 8),
    "bfloat16",
    bias=(1, 2, 1, 21),
    mask=(18, 21),
    lengths=((18,), (20,)),
    segments=2,
    options={"local_window_size": 9, "causal_alignment": "top_left", "logits_soft_cap": 3.0},
  )
  arrays = case.arrays(rng)
  call = case.call(name)
  with jax.numpy_dtype_promotion("strict"):

    def both(query, bias):
      out, residual = call(**{**arrays, "query": query, "bias": bias})
      return out, residual

    # traced only: what is lowered is the same
    jax.eval_shape(lambda q, b: jax.vjp(both, q, b)[1](both(q, b)), arrays["query"], arrays["bias"])


@pytest.mark.parametrize("name", ["xla", "interpret"])
def test_shard_map_with_varying_axes_checked(name, rng):
  devices = jax.devices()
  mesh = jax.make_mesh(
    (len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices
  )
  spec = jax.sharding.PartitionSpec
  q, k, v = operands(rng, len(devices))
  bias, d_out = normal(rng, 1, 2, 18, 1), normal(rng, *q.shape)
  sharded = jax.shard_map(
    attend(name, **CAUSAL.options),
    mesh=mesh,
    in_specs=(spec("x"), spec("x"), spec("x"), spec()),
    out_specs=spec("x"),
    check_vma=True,
  )
  loss = functools.partial(weighted, sharded)
  grads = quick(jax.grad(loss, argnums=(0, 1, 2, 3)))(q, k, v, bias, d_out)
  arrays = dict(zip(NAMES, (q, k, v, bias), strict=True))
  case = dataclasses.replace(CAUSAL, sizes=(len(devices), *CAUSAL.sizes[1:]))
  found = dict(zip(NAMES, grads, strict=True))
  assert_gradients_inside_bound(case, arrays, d_out, found, name)


def test_decode_in_shard_map(rng):
  devices = jax.devices()
  mesh = jax.make_mesh(
    (len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices
  )
  spec = jax.sharding.PartitionSpec
  q, k, v = operands(rng, 2)
  lengths = jnp.asarray([21, 9])
  call = functools.partial(decode_attention, config=DecodeConfig(16, 2), implementation="interpret")
  sharded = jax.shard_map(
    call,
    mesh=mesh,
    in_specs=(spec(None, None, "x"), spec(), spec(), spec()),
    out_specs=spec(None, None, "x"),
    check_vma=True,
  )
  out = quick(sharded)(q, k, v, lengths)
  reference.assert_decode_attention_close(
    *(np.asarray(x) for x in (out, q, k, v, lengths)),
    num_splits=2,
    accumulate=accumulates("interpret", "float32"),
  )


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_export_and_call_again(name, rng):
  q, k, v = operands(rng, 1)
  # JAX promises no compatibility for Triton's custom call, and wants to hear that it is known
  known = [jax.export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")]
  checks = known if name == "triton" else []
  run = jax.jit(attend(name, return_residual=True))
  exported = jax.export.export(run, disabled_checks=checks)(q, k, v)
  called = quick(jax.export.deserialize(exported.serialize()).call)(q, k, v)
  assert_inside_bound(CASE, dict(zip(NAMES, (q, k, v), strict=False)), called, name)


def test_donated_operands(rng):
  q, k, v = operands(rng, 1)
  run = attend("xla")
  expected = jax.jit(run)(q, k, v)
  donating = jax.jit(run, donate_argnums=0)
  chex.assert_trees_all_equal(donating(q + 0, k, v), expected)


def test_numpy_operands_are_taken(rng):
  arrays = {name: np.asarray(x) for name, x in zip(NAMES, operands(rng, 1), strict=False)}
  arrays["mask"] = np.tri(18, 21, dtype=bool)
  arrays["query_seq_lengths"] = np.array([18])
  found = quick(lambda: flash_attention(**arrays, return_residual=True))()
  assert_inside_bound(CASE, arrays, found, "xla")
