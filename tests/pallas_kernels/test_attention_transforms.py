"""flash_attention under JAX's transformations: each must give what the plain calls give."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import IMPLEMENTATIONS, Case, quick, tile_for

from pallas_kernels import DecodeConfig, decode_attention, flash_attention

CLOSE = {"rtol": 2.0**-16, "atol": 2.0**-18}  # float32 sums of other shapes


def attend(name, **options):
  return functools.partial(flash_attention, implementation=name, config=tile_for(name), **options)


def operands(rng, *lead, dtype="float32"):
  """Query, key, value of [*lead, T or S, heads, 8]."""
  return tuple(
    jnp.asarray(rng.standard_normal((*lead, length, heads, 8)), dtype)
    for length, heads in ((18, 2), (21, 1), (21, 1))
  )


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_nested_vmap_and_its_gradient(name, rng):
  # queries mapped twice, keys once, values not at all, and a bias that each example shares
  q, k, v = operands(rng, 2, 3, 1)
  k, v = k[0], v[0, 0]
  bias = jnp.asarray(rng.standard_normal((3, 1, 2, 1, 21)), jnp.float32)
  one = attend(name)

  def loss(q, k, v, bias):
    return jnp.sum(jnp.sin(one(q, k, v, bias)))

  inner = jax.vmap(loss, in_axes=(0, 0, None, 0))
  outer = jax.vmap(inner, in_axes=(0, None, None, None))
  grads = quick(jax.grad(lambda *x: outer(*x).sum(), argnums=(0, 1, 2, 3)))(q, k, v, bias)

  xla = attend("xla")

  def loss_of_xla(q, k, v, bias):
    return sum(jnp.sum(jnp.sin(xla(q[i, j], k[j], v, bias[j]))) for i in range(2) for j in range(3))

  wanted = quick(jax.grad(loss_of_xla, argnums=(0, 1, 2, 3)))(q, k, v, bias)
  chex.assert_trees_all_close(grads, wanted, **CLOSE)


def test_vmap_of_a_gradient_with_a_bias_of_each_example(rng):
  q, k, v = operands(rng, 3, 2)
  bias = jnp.asarray(rng.standard_normal((3, 1, 1, 18, 21)), jnp.float32)
  one = attend("xla")
  gradient = jax.grad(lambda *x: jnp.sum(jnp.sin(one(*x))), argnums=(0, 1, 2, 3))
  mapped = quick(jax.vmap(gradient))(q, k, v, bias)
  single = quick(gradient)
  for i in range(3):
    alone = single(q[i], k[i], v[i], bias[i])
    chex.assert_trees_all_close(jax.tree.map(lambda x, i=i: x[i], mapped), alone, **CLOSE)


def test_vmap_over_nothing(rng):
  q, k, v = operands(rng, 0, 1)
  assert quick(jax.vmap(attend("interpret")))(q, k, v).shape == q.shape
  grads = quick(jax.vmap(jax.grad(lambda *x: attend("interpret")(*x).sum())))(q, k, v)
  assert grads.shape == q.shape


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_remat_and_scan_give_the_same_gradient(name, rng):
  q, k, v = operands(rng, 1)
  one = attend(name, is_causal=True, causal_alignment="bottom_right")

  def loss(q):
    return jnp.sum(jnp.sin(one(q, k, v)))

  def in_a_scan(q):
    return jax.lax.scan(lambda c, _: (c, jax.checkpoint(loss)(c)), q, None, length=1)[1][0]

  plain, again = quick(lambda q: (jax.grad(loss)(q), jax.grad(in_a_scan)(q)))(q)
  chex.assert_trees_all_close(plain, again, rtol=2.0**-20, atol=2.0**-22)


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
  chex.assert_trees_all_close(plain, wide, rtol=2.0**-7, atol=2.0**-12)


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
  bias = jnp.asarray(rng.standard_normal((1, 2, 18, 1)), jnp.float32)
  one = attend(name, is_causal=True, causal_alignment="bottom_right")
  sharded = jax.shard_map(
    one,
    mesh=mesh,
    in_specs=(spec("x"), spec("x"), spec("x"), spec()),
    out_specs=spec("x"),
    check_vma=True,
  )

  def loss(f, *operands):
    return jnp.sum(jnp.sin(f(*operands)))

  argnums = (0, 1, 2, 3)
  grads = quick(jax.grad(functools.partial(loss, sharded), argnums=argnums))(q, k, v, bias)
  alone = attend("xla", is_causal=True, causal_alignment="bottom_right")
  wanted = quick(jax.grad(functools.partial(loss, alone), argnums=argnums))(q, k, v, bias)
  chex.assert_trees_all_close(grads, wanted, **CLOSE)


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
  wanted = quick(functools.partial(decode_attention, implementation="xla"))(q, k, v, lengths)
  chex.assert_trees_all_close(out, wanted, **CLOSE)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_export_and_call_again(name, rng):
  q, k, v = operands(rng, 1)
  # JAX promises no compatibility for Triton's custom call, and wants to hear that it is known
  known = [jax.export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")]
  checks = known if name == "triton" else []
  exported = jax.export.export(jax.jit(attend(name)), disabled_checks=checks)(q, k, v)
  called = quick(jax.export.deserialize(exported.serialize()).call)(q, k, v)
  wanted = quick(attend("xla"))(q, k, v)
  chex.assert_trees_all_close(called, wanted, **CLOSE)


def test_donated_operands(rng):
  q, k, v = operands(rng, 1)
  run = attend("xla")
  expected = jax.jit(run)(q, k, v)
  donating = jax.jit(run, donate_argnums=0)
  chex.assert_trees_all_equal(donating(q + 0, k, v), expected)


def test_numpy_operands_are_taken(rng):
  q, k, v = (np.asarray(x) for x in operands(rng, 1))
  ours = quick(
    lambda: flash_attention(
      q, k, v, mask=np.tri(18, 21, dtype=bool), query_seq_lengths=np.array([18])
    )
  )()
  same = quick(lambda *x: flash_attention(*x, is_causal=True, causal_alignment="top_left"))
  chex.assert_trees_all_close(ours, same(q, k, v), **CLOSE)
