"""matmul under JAX's transformations: each must give what the plain calls give."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_cases import EVERY, accumulates, assert_inside_bound, normal

import reference
from pallas_kernels import MatmulConfig, matmul

TILE = MatmulConfig(32, 32, 32, 2)


@pytest.fixture
def run(implementation):
  return functools.partial(matmul, implementation=implementation)


def test_jit_gives_the_same_bits_and_traces_once(run, rng):
  a, b = normal(rng, 33, 47), normal(rng, 47, 21)
  traces = []

  @jax.jit
  def jitted(a, b):
    traces.append(a)
    return run(a, b)

  chex.assert_trees_all_equal(run(a, b), jitted(a, b))
  jitted(a + 1, b)
  assert len(traces) == 1


@pytest.mark.parametrize(
  ("a_shape", "b_shape"),
  [
    ((2, 3, 17, 20), (20, 9)),
    ((4, 17, 20), (4, 20, 9)),
    ((2, 1, 17, 20), (3, 20, 9)),
    ((17, 20), (5, 20, 9)),
    ((1, 17, 20), (1, 20, 9)),
    ((2, 3, 17, 20), (1, 1, 20, 9)),
  ],
  ids=str,
)
def test_leading_dimensions_broadcast_as_numpy_matmul(run, a_shape, b_shape, rng):
  a, b = reference.exact_integer_operands(rng, 1, 20, 1, "bfloat16")
  a = jnp.asarray(rng.integers(-3, 4, a_shape), jnp.bfloat16)
  b = jnp.asarray(rng.integers(-3, 4, b_shape), jnp.bfloat16)
  expected = np.matmul(np.asarray(a, np.float64), np.asarray(b, np.float64))
  np.testing.assert_array_equal(np.asarray(run(a, b), np.float64), expected)


@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (0, 0), (1, 0), (-1, None)], ids=str)
def test_vmap(run, in_axes, rng):
  a = jnp.asarray(rng.integers(-3, 4, (17, 20)), jnp.bfloat16)
  b = jnp.asarray(rng.integers(-3, 4, (20, 9)), jnp.bfloat16)
  bias = jnp.arange(9.0)
  size = 4
  mapped_a = a if in_axes[0] is None else jnp.stack([a + i for i in range(size)], in_axes[0])
  mapped_b = b if in_axes[1] is None else jnp.stack([b - i for i in range(size)], in_axes[1])
  alone = jax.jit(lambda a, b: run(a, b, bias=bias, activation="silu"))
  out = jax.jit(jax.vmap(alone, in_axes=in_axes))(mapped_a, mapped_b)
  for i in range(size):
    one = alone(a if in_axes[0] is None else a + i, b if in_axes[1] is None else b - i)
    # the sums are exact, so both see the same values before the activation
    chex.assert_trees_all_equal(out[i], one)


@pytest.mark.parametrize("name", EVERY)
def test_vmap_over_nothing(name):
  a, b = jnp.zeros((0, 3, 4), jnp.bfloat16), jnp.zeros((4, 5), jnp.bfloat16)

  def run(a, b):
    return matmul(a, b, bias=jnp.ones(5), activation="silu", implementation=name)

  assert jax.vmap(run, in_axes=(0, None))(a, b).shape == (0, 3, 5)
  assert jax.vmap(run)(a, jnp.zeros((0, 4, 5), jnp.bfloat16)).shape == (0, 3, 5)
  grads = jax.jit(jax.vmap(jax.grad(lambda a: run(a, b).astype(jnp.float32).sum())))(a)
  assert grads.shape == a.shape


@pytest.mark.parametrize("name", EVERY)
def test_vmap_over_rows_of_no_columns(name):
  a, b = jnp.zeros((2, 3, 0), jnp.bfloat16), jnp.zeros((0, 5), jnp.bfloat16)

  def run(a):
    return matmul(a, b, bias=jnp.ones(5), implementation=name)

  np.testing.assert_array_equal(np.asarray(jax.vmap(run)(a), np.float32), np.ones((2, 3, 5)))
  grads = jax.vmap(jax.grad(lambda a: run(a).astype(jnp.float32).sum()))(a)
  assert grads.shape == a.shape


def test_nested_vmap_with_every_operand_mapped(run, rng):
  a = jnp.asarray(rng.integers(-2, 3, (2, 5, 12)), jnp.bfloat16)
  b = jnp.asarray(rng.integers(-2, 3, (3, 12, 7)), jnp.bfloat16)
  bias = jnp.asarray(rng.integers(-2, 3, (3, 7)), jnp.float32)
  inner = jax.vmap(lambda a, b, bias: run(a, b, bias=bias), in_axes=(None, 0, 0))
  out = jax.jit(jax.vmap(inner, in_axes=(0, None, None)))(a, b, bias)
  expected = np.einsum("amk,bkn->abmn", np.asarray(a, np.float64), np.asarray(b, np.float64))
  np.testing.assert_array_equal(
    np.asarray(out, np.float64), expected + np.asarray(bias, np.float64)[None, :, None, :]
  )


def test_vmap_of_a_batched_call(run, rng):
  a = jnp.asarray(rng.integers(-2, 3, (2, 3, 5, 12)), jnp.bfloat16)
  b = jnp.asarray(rng.integers(-2, 3, (3, 12, 7)), jnp.bfloat16)
  out = jax.vmap(lambda a: run(a, b))(a)
  expected = np.matmul(np.asarray(a, np.float64), np.asarray(b, np.float64))
  np.testing.assert_array_equal(np.asarray(out, np.float64), expected)


@pytest.mark.parametrize("activation", [None, "silu"])
def test_gradients_are_the_products_of_the_chain_rule(run, implementation, activation, rng):
  a, b = normal(rng, 30, 41), normal(rng, 41, 22)
  bias, d_out = normal(rng, 22, dtype="float32"), normal(rng, 30, 22)

  @jax.jit
  def gradients(a, b, bias, d_out):
    _, pull = jax.vjp(lambda a, b, bias: run(a, b, bias=bias, activation=activation), a, b, bias)
    return pull(d_out)

  d_a, d_b, d_bias = gradients(a, b, bias, d_out)
  chex.assert_type((d_a, d_b, d_bias), (a.dtype, b.dtype, bias.dtype))

  d_s = reference.Bounded.of(np.asarray(d_out))
  if activation == "silu":
    # the stored argument of the activation has the bits of the plain product
    d_s = silu_gradient(np.asarray(run(a, b, bias=bias), np.float64), d_s.exact)
  rounded = d_s.quantize("bfloat16")
  add = {"accumulate": accumulates(implementation)}
  for actual, x, y in ((d_a, rounded, np.asarray(b).T), (d_b, np.asarray(a).T, rounded)):
    expected = reference.bounded_matmul(x, y, **add).round(actual.dtype)
    reference.assert_within(np.asarray(actual), expected)
  column_sums = reference.bounded_matmul(np.ones((1, 30), np.float32), d_s).round("float32")
  reference.assert_within(np.asarray(d_bias)[None], column_sums)


def silu_gradient(s: np.ndarray, d_out: np.ndarray) -> reference.Bounded:
  """d_out·silu'(s), with a bound on its evaluation in float32.

  silu' = σ·(1 + s·(1-σ)) is computed from h = exp(-|s|/2): the exponential's
  error is |s|/2 + 2 units of 2^-24, and enters twice; a dozen further roundings
  act on terms no larger than σ·(1 + |s|·(1-σ)).
  """
  sigma = 1 / (1 + np.exp(-s))
  exact = d_out * sigma * (1 + s * (1 - sigma))
  terms = np.abs(d_out) * sigma * (1 + np.abs(s) * (1 - sigma))
  return reference.Bounded.within(exact, (16 + 2 * np.abs(s)) * 2.0**-24 * terms)


def test_gradient_of_a_shared_matrix_is_summed_over_the_batch(run, rng):
  a = jnp.asarray(rng.integers(-2, 3, (3, 4, 6)), jnp.float32).astype(jnp.bfloat16)
  b = jnp.asarray(rng.integers(-2, 3, (6, 5)), jnp.bfloat16)
  d_b = jax.jit(jax.grad(lambda b: run(a, b, out_dtype="float32").sum()))(b)
  np.testing.assert_array_equal(
    np.asarray(d_b, np.float64), np.asarray(a, np.float64).sum((0, 1))[:, None] * np.ones((1, 5))
  )
  d_a = jax.jit(jax.grad(lambda a: run(a, jnp.stack([b, b, b]), out_dtype="float32").sum()))(a[0])
  np.testing.assert_array_equal(
    np.asarray(d_a, np.float64), np.ones((4, 1)) * 3 * np.asarray(b, np.float64).sum(1)
  )


def test_gradient_under_vmap_and_remat(run, rng):
  a = jnp.asarray(rng.integers(-2, 3, (3, 4, 6)), jnp.bfloat16)
  b = jnp.asarray(rng.integers(-2, 3, (6, 5)), jnp.bfloat16)

  def loss(a, b):
    return run(a, b, out_dtype="float32").sum()

  gradients = jax.grad(loss, argnums=(0, 1))
  alone = jax.jit(gradients)
  plain = jax.jit(jax.vmap(gradients, in_axes=(0, None)))(a, b)
  for i in range(3):
    chex.assert_trees_all_equal(jax.tree.map(lambda x, i=i: x[i], plain), alone(a[i], b))
  remat = jax.jit(jax.grad(jax.checkpoint(loss), argnums=(0, 1)))(a[0], b)
  chex.assert_trees_all_equal(remat, alone(a[0], b))


def test_a_second_reverse_derivative(run):
  a = jnp.asarray([[2.0]], jnp.bfloat16)
  b = jnp.asarray([[3.0]], jnp.bfloat16)
  # d/db of (d/da of (ab)²/2) = d/db of a b² = 2ab
  first = jax.grad(lambda a, b: (run(a, b, out_dtype="float32") ** 2).sum() / 2)
  second = jax.jit(jax.grad(lambda b: first(a, b).astype(jnp.float32).sum()))(b)
  assert float(second[0, 0]) == 12.0


def test_forward_mode_says_that_it_is_not_there(run, rng):
  a, b = normal(rng, 4, 4), normal(rng, 4, 4)
  with pytest.raises(TypeError, match="forward-mode"):
    jax.jvp(run, (a, b), (a, b))


def test_x64_changes_nothing_for_16_bit_operands(run, rng):
  a, b = normal(rng, 33, 47), normal(rng, 47, 21)
  plain = run(a, b, activation="silu")
  with jax.enable_x64(True):
    wide = run(a, b, activation="silu")
  chex.assert_trees_all_equal(plain, wide)


def test_float64_is_computed_in_float64_by_xla_and_its_gradient_too(rng):
  with jax.enable_x64(True):
    a, b = jnp.asarray(rng.standard_normal((9, 30))), jnp.asarray(rng.standard_normal((30, 8)))
    out = matmul(a, b)
    chex.assert_type(out, jnp.float64)
    exact = np.asarray(a) @ np.asarray(b)
    bound = 30 * 2.0**-53 * (np.abs(a) @ np.abs(b)) * 2
    assert np.all(np.abs(np.asarray(out) - exact) <= bound)
    huge, pull = jax.vjp(
      lambda x: matmul(jnp.ones((1, 1)), x, activation="silu"), jnp.array([[1e200]])
    )
    assert float(huge[0, 0]) == 1e200
    assert float(pull(jnp.ones((1, 1)))[0][0, 0]) == 1.0


def test_float64_sums_are_rounded_to_16_bits_once():
  with jax.enable_x64(True):
    a = jnp.array([[1 + 2.0**-8 + 2.0**-40]])
    for dtype in ("bfloat16", "float16"):
      out = matmul(a, jnp.ones((1, 1)), out_dtype=dtype)
      expected = reference.round_to(np.asarray(a), jnp.dtype(dtype))
      np.testing.assert_array_equal(np.asarray(out), expected)


def test_silu_of_float64_keeps_its_tail():
  with jax.enable_x64(True):
    x = jnp.array([[-jnp.inf, -700.0, -300.0, 2.0]])
    out = np.asarray(matmul(jnp.ones((1, 1)), x, activation="silu"))
    exact = reference.silu(np.asarray(x))
    assert out[0, 0] == 0.0
    # in units of 2^-53, ours and NumPy's: h² of an exp within 1 ulp (5), again in 1 + h² (2.5),
    # that sum and its reciprocal (2), two products
    bound = 2 * 12 * 2.0**-53 * np.abs(exact)
    assert np.all(np.abs(out - exact) <= bound)


@pytest.mark.parametrize("name", EVERY)
def test_strict_dtype_promotion(name, rng):
  a, b, bias = normal(rng, 20, 24), normal(rng, 24, 30), normal(rng, 30, dtype="float32")

  def loss(a, b, bias):
    out = matmul(a, b, bias=bias, activation="silu", implementation=name)
    return out.astype(jnp.float32).sum()

  with jax.numpy_dtype_promotion("strict"):
    chex.assert_tree_all_finite(jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(a, b, bias))


@pytest.mark.parametrize("name", EVERY)
def test_a_band_higher_than_any_grid_is_the_whole_grid(name, rng):
  if name == "xla":
    return
  a, b = normal(rng, 70, 64), normal(rng, 64, 70)
  config = MatmulConfig(64, 64, 64, 2, group_m=2**30)
  assert_inside_bound(matmul(a, b, config=config, implementation=name), a, b, name)


def test_donated_operands(run, rng):
  a, b = normal(rng, 16, 16), normal(rng, 16, 16)
  expected = run(a, b)
  donating = jax.jit(run, donate_argnums=0)
  chex.assert_trees_all_equal(donating(a + 0, b), expected)


def mesh_for(name):
  """All devices; one for the Mosaic interpreter, which keeps one device's state."""
  devices = jax.devices()[: 1 if name == "mosaic_gpu_interpret" else None]
  return jax.make_mesh(
    (len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices
  )


@pytest.mark.parametrize("sharded", ["rows", "columns"])
@pytest.mark.parametrize("name", EVERY)
def test_shard_map_without_gradient(name, sharded, rng):
  mesh = mesh_for(name)
  devices = mesh.size
  spec = jax.sharding.PartitionSpec
  a, b, row = normal(rng, 8 * devices, 24), normal(rng, 24, 10 * devices), normal(rng, 10 * devices)
  by_rows = sharded == "rows"
  call = jax.shard_map(
    lambda a, b, row: matmul(a, b, bias=row, implementation=name),
    mesh=mesh,
    in_specs=(
      spec("x", None) if by_rows else spec(),
      spec() if by_rows else spec(None, "x"),
      spec() if by_rows else spec("x"),
    ),
    out_specs=spec("x", None) if by_rows else spec(None, "x"),
    check_vma=True,
  )
  assert_inside_bound(jax.jit(call)(a, b, row), a, b, name, bias=row)


@pytest.mark.parametrize("name", EVERY)
def test_shard_map_with_varying_axes_checked(name, rng):
  run = functools.partial(matmul, implementation=name)
  mesh = mesh_for(name)
  spec = jax.sharding.PartitionSpec
  a, b = normal(rng, 8 * mesh.size, 24), normal(rng, 24, 10)
  sharded = jax.shard_map(
    lambda a, b: run(a, b, activation="silu"),
    mesh=mesh,
    in_specs=(spec("x", None), spec(None, None)),
    out_specs=spec("x", None),
    check_vma=True,
  )
  out = jax.jit(sharded)(a, b)
  assert_inside_bound(out, a, b, name, activation="silu")

  def loss(f, a, b):
    return f(a, b).astype(jnp.float32).sum()

  d_b = jax.jit(jax.grad(functools.partial(loss, sharded), argnums=1))(a, b)
  unsharded = functools.partial(loss, lambda a, b: run(a, b, activation="silu"))
  alone = jax.jit(jax.grad(unsharded, argnums=1))
  # each device rounds its share of d_b to bfloat16; sigma' is at most 1.1
  share = np.abs(np.asarray(a, np.float64)).sum(0)[:, None] * 1.1
  difference = np.abs(np.asarray(d_b, np.float64) - np.asarray(alone(a, b), np.float64))
  assert np.all(difference <= 2.0**-8 * (mesh.size + 2) * share)


def test_export_and_call_again(run, implementation, rng):
  a, b = normal(rng, 16, 24), normal(rng, 24, 8)
  # JAX promises no compatibility for Triton's custom call, and wants to hear that it is known
  known = [jax.export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")]
  checks = known if implementation == "triton" else []
  exported = jax.export.export(jax.jit(run), disabled_checks=checks)(a, b)
  blob = exported.serialize()
  chex.assert_trees_all_equal(jax.export.deserialize(blob).call(a, b), run(a, b))


def test_numpy_operands_are_taken(run, rng):
  a, b = reference.exact_integer_operands(rng, 5, 6, 7, "float16")
  np.testing.assert_array_equal(
    np.asarray(run(a, b), np.float64), reference.matmul(a, b).astype(np.float64)
  )


def test_the_interpreter_in_strips_gives_the_same_bits(rng, monkeypatch):
  from pallas_kernels.gemm import portable

  a, b, bias = normal(rng, 40, 64), normal(rng, 64, 200), normal(rng, 200)
  call = functools.partial(
    matmul, bias=bias, activation="silu", config=TILE, implementation="interpret"
  )
  whole = call(a, b)
  monkeypatch.setattr(portable, "_INTERPRETED_STRIP_BYTES", 64 * 2 * 64)
  chex.assert_trees_all_equal(call(a, b), whole)
