"""A_0·B_0 + A_1·B_1 in one accumulator: what a gated layer's gradient is made of."""

import dataclasses
import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_cases import TILED

import hw_profiles
import reference
from pallas_kernels import MatmulConfig, device, gated_matmul
from pallas_kernels.gemm import differentiable, implementations
from pallas_kernels.gemm.operands import Operands, Transposes
from pallas_kernels.gemm.request import make_request

H200 = {"device_kind": "NVIDIA H200", "num_cores": 132}


def summing(
  dtype="bfloat16",
  *,
  out_dtype="float32",
  transposes=(False, False),
  config=None,
  implementation=None,
  batch_invariant=False,
):
  """The request of a sum of two products."""
  matrix = jax.ShapeDtypeStruct((8, 8), dtype)
  request = make_request(
    matrix,
    matrix,
    bias=None,
    activation=None,
    intermediate_dtype=None,
    out_dtype=None,
    precision=None,
    batch_invariant=batch_invariant,
    config=None,
    implementation=implementation,
  ).for_gradient(jnp.dtype(out_dtype), Transposes(*transposes), pairs=2)
  return dataclasses.replace(request, config=config)


def pairs_of(rng, m, k, n, dtype="bfloat16"):
  """Two pairs of matrices of which the sum of products is exact in float32, and that sum."""
  pairs = [reference.exact_integer_operands(rng, m, k, n, dtype) for _ in range(2)]
  return pairs, sum(reference.matmul_exact(a, b) for a, b in pairs)


def operands_of(pairs, transposes=(False, False)):
  """The pairs as stored, in a batch of one."""
  a_swapped, b_swapped = transposes
  (first, *added) = (
    (jnp.asarray(a.T if a_swapped else a)[None], jnp.asarray(b.T if b_swapped else b)[None])
    for a, b in pairs
  )
  return Operands(first[0], (first[1],), added=tuple(added))


ODD = [(70, 96, 136), (129, 40, 72), (9, 65, 8)]
STORED = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize("shape", ODD, ids=str)
@pytest.mark.parametrize("transposes", STORED, ids=str)
def test_the_sum_is_exact_on_small_integers(implementation, shape, transposes, rng):
  pairs, expected = pairs_of(rng, *shape)
  request = summing(transposes=transposes, implementation=implementation)
  out = jax.jit(functools.partial(differentiable.run_batched, request))(
    operands_of(pairs, transposes)
  )
  np.testing.assert_array_equal(np.asarray(out[0], np.float64), expected)


def run(request, operands):
  """The request on its operands, as one program."""
  return jax.jit(functools.partial(implementations.run, request))(operands)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
  ("name", "shape", "transposes"),
  [
    # interpreted every shape in two of the four ways, each of them twice or once
    *(
      ("mosaic_gpu_interpret", ODD[shape], STORED[stored])
      for shape, stored in ((0, 0), (0, 3), (1, 1), (1, 2), (2, 3), (2, 0))
      if jax.default_backend() == "cpu"
    ),
    *(
      pytest.param("mosaic_gpu", shape, transposes, marks=pytest.mark.gpu)
      for shape in ODD
      for transposes in STORED
    ),
  ],
  ids=str,
)
def test_the_hopper_kernel_sums_small_integers_exactly(name, shape, transposes, rng, races):
  pairs, expected = pairs_of(rng, *shape)
  request = summing(transposes=transposes, config=MatmulConfig(64, 64, 64, 2), implementation=name)
  out = run(request, operands_of(pairs, transposes))
  np.testing.assert_array_equal(np.asarray(out[0], np.float64), expected)
  assert not races()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_sum_is_rounded_once(hopper, dtype, rng):
  pairs, expected = pairs_of(rng, 70, 96, 136, dtype)
  request = summing(dtype, out_dtype=dtype, implementation=hopper)
  out = run(request, operands_of(pairs))
  np.testing.assert_array_equal(
    np.asarray(out[0], np.float64), reference.round_to(expected, dtype).astype(np.float64)
  )


def spikes(first, second):
  """Pairs of which the products of some steps of 32 along K are given numbers."""
  pairs = []
  for values in (first, second):
    a = np.zeros((64, 64), np.float32)
    a[:, [0, 32]] = values
    pairs.append((jnp.asarray(a, jnp.bfloat16), jnp.ones((64, 64), jnp.bfloat16)))
  return pairs


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TILED)
def test_the_second_pair_follows_the_first(name):
  # 2^24 + 1 is 2^24 rounded or cut: the first 1 is lost if the second pair is added to
  # the first, and is there if it is summed alone
  pairs = spikes([2.0**24, 0.0], [1.0, -(2.0**24)])
  request = summing(config=MatmulConfig(64, 64, 32, 2), implementation=name)
  in_one = "mosaic" in name
  if not in_one:
    request = dataclasses.replace(request, config=None)
  out = run(request, operands_of(pairs))
  assert np.unique(np.asarray(out)).tolist() == [0.0 if in_one else 1.0]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("splits", [2, 3, 5])
def test_parts_of_k_may_have_steps_of_both_pairs(hopper, splits, rng):
  # three steps a pair; in five parts of two steps the last are past the end
  pairs, expected = pairs_of(rng, 70, 130, 72)
  config = MatmulConfig(64, 64, 64, 2, split_k=splits)
  out = run(summing(config=config, implementation=hopper), operands_of(pairs))
  np.testing.assert_array_equal(np.asarray(out[0], np.float64), expected)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TILED)
def test_a_batch_may_share_one_side(name, rng):
  pairs, _ = pairs_of(rng, 24, 40, 16)
  others, _ = pairs_of(rng, 24, 40, 16)
  lefts = [jnp.stack([jnp.asarray(x[i][0]) for x in (pairs, others)]) for i in range(2)]
  rights = [jnp.asarray(b)[None] for _, b in pairs]
  request = summing(implementation=name)
  out = run(request, Operands(lefts[0], (rights[0],), added=((lefts[1], rights[1]),)))
  expected = [
    sum(reference.matmul_exact(x[i][0], pairs[i][1]) for i in range(2)) for x in (pairs, others)
  ]
  np.testing.assert_array_equal(np.asarray(out, np.float64), np.stack(expected))


def test_vmap_over_the_rows_of_both_pairs_is_more_rows(rng, monkeypatch):
  pairs, expected = pairs_of(rng, 24, 40, 16)
  request, problems = summing(implementation="interpret"), []
  kernel = implementations.run

  def recorded(request, operands):
    problems.append(request.problem(operands))
    return kernel(request, operands)

  monkeypatch.setattr(implementations, "run", recorded)
  ((a, b), (more_a, more_b)) = ((jnp.asarray(a), jnp.asarray(b)[None]) for a, b in pairs)

  def mapped_run(a, more_a):
    return differentiable.run_batched(request, Operands(a, (b,), added=((more_a, more_b),)))

  mapped = jax.vmap(mapped_run)(a.reshape(3, 1, 8, 40), more_a.reshape(3, 1, 8, 40))
  np.testing.assert_array_equal(np.asarray(mapped, np.float64).reshape(24, 16), expected)
  assert {problem.batch for problem in problems} == {1}
  assert problems[-1].m == 24


def test_the_gradients_of_the_sum_are_each_pairs_own(rng):
  pairs, _ = pairs_of(rng, 24, 40, 16, "float32")
  request = summing("float32", implementation="interpret")
  xs, ys = (tuple(jnp.asarray(x)[None] for x in side) for side in zip(*pairs, strict=True))
  out, pull = jax.vjp(lambda *x: differentiable.summed(request, *x), xs, ys)
  d_out = rng.integers(-2, 3, out.shape).astype(np.float32)
  d_xs, d_ys = pull(jnp.asarray(d_out))
  for (a, b), d_a, d_b in zip(pairs, d_xs, d_ys, strict=True):
    chex.assert_trees_all_equal(np.asarray(d_a[0]), (d_out[0] @ b.T).astype(np.float32))
    chex.assert_trees_all_equal(np.asarray(d_b[0]), (a.T @ d_out[0]).astype(np.float32))


# --- what is planned and lowered


def gated_gradient_calls(m, k, n, **options):
  """Operands of each Mosaic kernel of a gated product's forward and backward pass."""
  x, w, d_out = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((m, k), (k, n), (m, n)))

  def gradients(x, w_gate, w_up, d_out):
    out, pull = jax.vjp(lambda *o: gated_matmul(*o, **options), x, w_gate, w_up)
    return out, pull(d_out)

  with device.abstract_gpu(**H200):
    traced = jax.jit(gradients).trace(x, w, w, d_out)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
  calls = re.findall(r"custom_call @mosaic_gpu\w*\(([^)]*)\)", text)
  return sorted(len(call.split(",")) for call in calls)


def test_the_gradient_of_x_is_one_kernel():
  # both products and the two weights' gradients have two operands each
  assert gated_gradient_calls(512, 256, 768) == [2, 2, 2, 2, 4]


def test_an_odd_number_of_rows_has_the_same_kernels():
  assert gated_gradient_calls(1111, 2048, 4096) == [2, 2, 2, 2, 4]


def test_a_sum_is_planned_as_one_product_of_all_its_depth():
  shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((1, 1024, 768), (1, 768, 512))]
  operands = Operands(shapes[0], (shapes[1],), added=(tuple(shapes),))
  problem = summing().problem(operands)
  assert problem == hw_profiles.MatmulProblem(
    1024, 2 * 768, 512, "bfloat16", "float32", shared_b=True
  )


def test_the_tile_of_a_batch_invariant_sum_does_not_depend_on_its_rows():
  request, chosen = summing(batch_invariant=True), set()
  for m in (1, 7, 1111):
    shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((1, m, 768), (1, 768, 512))]
    operands = Operands(shapes[0], (shapes[1],), added=(tuple(shapes),))
    with device.abstract_gpu(**H200):
      found = implementations.choose(request, request.problem(operands), device.target_device())
    chosen.add((found.implementation.name, found.config))
  assert len(chosen) == 1
  assert next(iter(chosen))[0] == "mosaic_gpu"


def test_every_split_of_a_sum_lowers():
  shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((1, 64, 1000), (1, 1000, 256))]
  operands = Operands(shapes[0], (shapes[1],), added=(tuple(shapes),))
  for split in (1, 2, 3):
    config = MatmulConfig(64, 64, 64, 4, split_k=split)
    request = summing(config=config, implementation="mosaic_gpu")
    with device.abstract_gpu(**H200):
      text = (
        jax.jit(lambda x, request=request: implementations.run(request, x))
        .trace(operands)
        .lower(lowering_platforms=("cuda",))
        .as_text()
      )
    assert text.count("custom_call @mosaic_gpu") == 1
