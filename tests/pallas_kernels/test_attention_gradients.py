"""Gradients of flash_attention against float64, within bounds derived from every rounding."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
  IMPLEMENTATIONS,
  Case,
  assert_gradients_inside_bound,
  quick,
)

from pallas_kernels import flash_attention

CASES = [
  Case("plain", (1, 20, 35, 2, 1, 16, 16)),
  Case(
    "causal to the end",
    (2, 37, 45, 6, 2, 24, 40),
    "bfloat16",
    options={"is_causal": True, "causal_alignment": "bottom_right"},
  ),
  Case(
    "lengths, column bias",
    (2, 33, 33, 2, 2, 16, 16),
    bias=(1, 2, 33, 1),
    lengths=((10, 33), (33, 0)),
    options={"is_causal": True, "causal_alignment": "bottom_right"},
  ),
  Case(
    "everything",
    (2, 37, 21, 4, 2, 20, 12),
    "float16",
    bias=(2, 1, 1, 21),
    mask=(37, 21),
    segments=2,
    options={
      "local_window_size": (12, 9),
      "causal_alignment": "bottom_right",
      "logits_soft_cap": 2.0,
      "scale": -0.3,
    },
  ),
]
DIFFERENTIATED = ("query", "key", "value", "bias")


def pull(case: Case, name: str):
  """(arrays, (d_out, d_residual)) -> gradients by name."""
  call = case.call(name)

  def gradients(arrays, above):
    varied = {key: arrays[key] for key in DIFFERENTIATED if key in arrays}
    rest = {key: x for key, x in arrays.items() if key not in varied}
    return jax.vjp(lambda varied: call(**varied, **rest), varied)[1](above)[0]

  return quick(gradients)


def upstream(case: Case, rng):
  """A random dO and dL."""
  batch, seq_q, _, heads, _, _, value_size = case.sizes
  d_out = jnp.asarray(rng.standard_normal((batch, seq_q, heads, value_size)), case.dtype)
  return d_out, jnp.asarray(rng.standard_normal((batch, seq_q, heads)), jnp.float32)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_every_gradient_is_inside_its_bound(name, case, rng):
  arrays = case.arrays(rng)
  d_out, d_residual = upstream(case, rng)
  actual = pull(case, name)(arrays, (d_out, d_residual))
  assert set(actual) == {key for key in DIFFERENTIATED if key in arrays}
  assert_gradients_inside_bound(case, arrays, d_out, actual, name, d_residual=d_residual)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_rows_and_keys_that_see_nothing_have_zero_gradients(name, rng):
  # queries 0 ... 24 see no key, and what unused slots hold does not matter
  case = Case(
    "masked",
    (1, 45, 20, 1, 1, 16, 16),
    lengths=((45,), (18,)),
    options={"is_causal": True, "causal_alignment": "bottom_right"},
  )
  arrays = case.arrays(rng)
  d_out, d_residual = upstream(case, rng)
  run = pull(case, name)
  clean = run(arrays, (d_out, d_residual))
  np.testing.assert_array_equal(np.asarray(clean["query"])[0, :27], 0)
  for key in ("key", "value"):
    np.testing.assert_array_equal(np.asarray(clean[key])[0, 18:], 0)
    arrays[key] = arrays[key].at[:, 18:].set(jnp.nan)
  arrays["query"] = arrays["query"].at[:, :27].set(jnp.inf)
  dirty = run(arrays, (d_out.at[:, :27].set(jnp.nan), d_residual))
  chex.assert_trees_all_equal(clean, dirty)


@pytest.mark.parametrize("name", ["interpret", pytest.param("triton", marks=pytest.mark.gpu)])
def test_the_same_gradients_have_the_same_bits(name, rng):
  # BC-41; GQA sums, bias sums and all
  case = Case("bits", (2, 33, 33, 4, 2, 16, 16), "bfloat16", bias=(1, 1, 33, 33))
  arrays = case.arrays(rng)
  above = upstream(case, rng)
  run = pull(case, name)
  first = run(arrays, above)
  for _ in range(3):
    chex.assert_trees_all_equal(first, run(arrays, above))


def test_a_gradient_of_a_gradient(rng):
  # against the same derivative of plain JAX
  case = Case("twice", (1, 9, 12, 2, 1, 8, 8), bias=(1, 2, 9, 12))
  case.options["logits_soft_cap"] = 4.0
  arrays = case.arrays(rng)

  def plain(query, key, value, bias):
    key, value = (jnp.repeat(x, 2, axis=2) for x in (key, value))
    z = jnp.einsum("btnh,bsnh->bnts", query, key, precision="highest") * 8**-0.5 + bias
    p = jax.nn.softmax(4.0 * jnp.tanh(z / 4.0), axis=-1)
    return jnp.einsum("bnts,bsnh->btnh", p, value, precision="highest")

  def twice(f, *operands):
    def first(*operands):
      grads = jax.grad(lambda *x: jnp.sum(jnp.sin(f(*x))), argnums=(0, 1, 2, 3))(*operands)
      return sum(jnp.sum(jnp.cos(g)) for g in grads)

    return jax.grad(first, argnums=(0, 1, 2, 3))(*operands)

  operands = tuple(arrays[key] for key in DIFFERENTIATED)
  wanted = quick(lambda *x: twice(plain, *x))(*operands)

  def ours(query, key, value, bias):
    return flash_attention(query, key, value, bias, logits_soft_cap=4.0, implementation="xla")

  actual = quick(lambda *x: twice(ours, *x))(*operands)
  for one, other in zip(actual, wanted, strict=True):
    # both are float32 programs of some hundred operations: a thousand units of 2^-24
    largest = float(jnp.max(jnp.abs(other)))
    assert float(jnp.max(jnp.abs(one - other))) <= 1000 * 2.0**-24 * largest


def test_forward_mode_says_that_it_is_not_there(rng):
  arrays = Case("jvp", (1, 4, 4, 1, 1, 8, 8)).arrays(rng)
  operands = tuple(arrays.values())
  with pytest.raises(TypeError, match="forward-mode"):
    jax.jit(lambda x: jax.jvp(flash_attention, x, x)).lower(operands)
