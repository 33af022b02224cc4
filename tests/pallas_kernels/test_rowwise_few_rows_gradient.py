"""The gradients of rms_norm of few long rows: their numbers first, then blocks of columns."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rowwise_cases import H200, KERNEL, arrays, assert_rms_gradients, normal, rms_norm

import pallas_kernels
import reference
from pallas_kernels import RowConfig, device
from pallas_kernels.rowwise import (
  arithmetic,
  few_rows_gradient,
  portable_rms_gradient,
  rms_gradient_tiles,
)
from pallas_kernels.rowwise.rms_gradient import RmsNormGradient
from pallas_kernels.rowwise.rms_gradient_tiles import FewRowsTiles, few_rows_tiles

# of rows of 12288 columns
ROW = RowConfig(1, 12288, 1, num_warps=8)


def run(x, weight, d_out, d_sum=None, *, tiles, eps=1e-6):
  """Both gradients of [rows, columns] in the interpreter."""
  dtypes = x.dtype, weight.dtype, d_out.dtype
  spec = RmsNormGradient(eps, 0.0, *dtypes, sum_gradient=d_sum is not None)
  d_x, d_weight = _interpreted(
    x[None], weight[None, None], d_out[None], None if d_sum is None else d_sum[None], spec, tiles
  )
  return d_x[0], d_weight[0, 0]


@functools.partial(jax.jit, static_argnums=(4, 5))
def _interpreted(x, weight, d_out, d_sum, spec, tiles):
  """Compiled once for all operands of one shape."""
  return few_rows_gradient.run(spec, x, weight, d_out, d_sum, tiles=tiles, cores=5, interpret=True)


def tiles_of(rows: int, *, row: int, columns: int) -> FewRowsTiles:
  """A block of all rows."""
  height = 1 << (rows - 1).bit_length()
  return FewRowsTiles(RowConfig(1, row, 1), RowConfig(height, columns, 1))


@pytest.mark.parametrize(
  ("rows", "columns", "found"),
  [
    (1, 8191, None),
    (1, 8192, (RowConfig(1, 8192, 1, num_warps=8), RowConfig(1, 2048, 1, num_warps=8))),
    (1, 12288, (ROW, RowConfig(1, 2048, 1, num_warps=8))),
    (1, 12289, None),
    (2, 12288, (ROW, RowConfig(2, 64, 1, num_warps=1))),
    (3, 12288, (ROW, RowConfig(4, 64, 1, num_warps=2))),
    (8, 11008, (ROW, RowConfig(8, 64, 1, num_warps=4))),
    (16, 12288, (ROW, RowConfig(16, 64, 1, num_warps=4))),
    (17, 12288, (ROW, RowConfig(32, 32, 1, num_warps=4))),
    (64, 12288, (ROW, RowConfig(64, 32, 1, num_warps=4))),
    (65, 12288, None),
  ],
)
def test_few_rows_have_the_blocks_that_were_measured_fastest(rows, columns, found):
  tiles = few_rows_tiles(groups=1, rows=rows, columns=columns, cores=132)
  assert tiles == (None if found is None else FewRowsTiles(*found))
  # several matrices, and more rows than cores, were not measured
  assert few_rows_tiles(groups=2, rows=rows, columns=columns, cores=132) is None
  assert few_rows_tiles(groups=1, rows=rows, columns=columns, cores=rows - 1) is None


def lowered(*shape: int, dtype: str = "bfloat16", residual: bool = False) -> str:
  """The gradients for an H200."""

  def loss(x, weight):
    options = {"residual": x} if residual else {}
    out = pallas_kernels.rms_norm(x, weight, **options)
    return sum(jnp.sum(part.astype(jnp.float32)) for part in (out if residual else (out,)))

  operands = [jax.ShapeDtypeStruct(part, jnp.dtype(dtype)) for part in (shape, shape[1:])]
  with device.abstract_gpu(**H200):
    traced = jax.jit(jax.grad(loss, (0, 1))).trace(*operands)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(
  ("rows", "columns"),
  [
    # one row, and many, at each length; each block of rows
    *((rows, columns) for rows in (1, 64) for columns in (8192, 11008, 12287)),
    *((2, 12287), (3, 8192), (5, 11008), (8, 12287), (9, 8192), (17, 11008)),
  ],
)
def test_the_launches_of_few_rows_lower(rows, columns):
  text = lowered(rows, columns)
  assert text.count("custom_call @__gpu$xla.gpu.triton") == (1 if rows == 1 else 2)
  if rows == 1:
    assert "rmsnorm_gradient_of_one_row_portable" in text
    return
  assert "rmsnorm_gradient_row_numbers_portable" in text
  assert "rmsnorm_gradient_portable" in text


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("rows", [1, 5])
def test_the_launches_of_other_dtypes_and_of_a_sum_lower(rows, dtype):
  text = lowered(rows, 11008, dtype=dtype, residual=True)
  name = "of_one_row" if rows == 1 else "row_numbers"
  assert f"rmsnorm_gradient_{name}_portable" in text
  assert "rmsnorm_gradient_merge" not in text


def test_longer_shorter_and_more_rows_go_the_other_way():
  for shape in ((8, 5000), (8, 16384), (65, 8192)):
    text = lowered(*shape)
    assert "rmsnorm_gradient_merge_portable" in text
    assert "row_numbers" not in text


@pytest.mark.parametrize("name", KERNEL)
@pytest.mark.parametrize(
  ("rows", "columns", "dtype", "weight_dtype"),
  [
    (1, 8193, "bfloat16", "bfloat16"),
    (1, 12288, "float32", "float32"),
    (5, 11008, "bfloat16", "float32"),
    (8, 12288, "float16", "float16"),
    (33, 8192, "float32", "float32"),
    (64, 8192, "bfloat16", "bfloat16"),
  ],
)
def test_gradients_of_few_rows(name, rows, columns, dtype, weight_dtype, monkeypatch, rng):
  def other(*_args, **_options):
    raise AssertionError("the way of other rows")

  monkeypatch.setattr(portable_rms_gradient, "run", other)
  x, d_out = (normal(rng, rows, columns, dtype=dtype) for _ in range(2))
  weight = normal(rng, columns, dtype=weight_dtype)
  out, pull = jax.vjp(lambda x, weight: rms_norm(x, weight, implementation=name), x, weight)
  d_x, d_weight = pull(d_out.astype(out.dtype))
  assert (d_x.dtype, d_weight.dtype) == (x.dtype, weight.dtype)
  assert_rms_gradients(d_x, d_weight, x, weight, d_out)


@pytest.mark.parametrize(
  ("rows", "row", "columns", "eps"),
  [
    # pieces of 16, of which the last is masked in either block
    *((rows, 112, 16, 0.0) for rows in (1, 2, 33)),
    *((rows, 128, 64, 1e-6) for rows in (1, 5, 33)),
    *((rows, 128, 128, 0.0) for rows in (2, 5)),
  ],
)
def test_blocks_that_divide_nothing(rows, row, columns, eps, rng):
  x, d_out, d_sum = (normal(rng, rows, 111) for _ in range(3))
  weight = normal(rng, 111)
  tiles = tiles_of(rows, row=row, columns=columns)
  d_x, d_weight = run(x, weight, d_out, d_sum, tiles=tiles, eps=eps)
  bounds = reference.bounded_rms_norm_gradients(*arrays(x, weight, d_out), eps=eps)
  allowed = bounds.x.add(reference.Bounded.of(np.asarray(d_sum))).round(d_x.dtype)
  reference.assert_within(np.asarray(d_x), allowed)
  reference.assert_within(np.asarray(d_weight), bounds.weight.round(d_weight.dtype))


@pytest.mark.parametrize("scale", [1.0, 2.0**90, 2.0**-80])
@pytest.mark.parametrize("rows", [1, 3, 8, 21])
def test_whole_numbers_are_exact(rows, scale, rng):
  # rows of ±scale have 1/rms = 1/scale, of 128 columns every mean is exact
  columns = 128
  sign = rng.choice([-1.0, 1.0], (rows, columns))
  weight, d_out = rng.integers(-8, 9, columns), rng.integers(-8, 9, (rows, columns))
  d_out[:, 0] += np.where((sign * d_out * weight).sum(axis=-1) == 0, 1, 0)
  g = d_out * weight
  exact = g - sign * (g * sign).mean(axis=-1, keepdims=True)
  operands = (jnp.asarray(part, jnp.float32) for part in (sign * scale, weight, d_out))
  d_x, d_weight = run(*operands, tiles=tiles_of(rows, row=columns, columns=32), eps=0.0)
  np.testing.assert_array_equal(np.asarray(d_x), (exact / scale).astype(np.float32))
  np.testing.assert_array_equal(np.asarray(d_weight), (d_out * sign).sum(axis=0))


@pytest.mark.parametrize("eps", [1e-6, 0.0])
@pytest.mark.parametrize("columns", [16, 64])
def test_rows_beside_hard_ones_keep_their_bits(columns, eps, rng):
  rows = rng.standard_normal((7, 111)).astype(np.float32)
  d_out = rng.standard_normal((7, 111)).astype(np.float32)
  weight = normal(rng, 111, dtype="float32")
  hard, hard_d_out = rows.copy(), d_out.copy()
  hard[1] *= 1e30
  # below it the bound of a result without eps is no number
  hard[2] *= 1e-25 if eps else 1e-12
  # Σ g·x vanishes, or is 0, where Σ x² is plain; and overflows
  hard_d_out[4] *= 1e-30
  hard_d_out[5] = 0
  hard_d_out[6] *= 1e31
  call = functools.partial(run, tiles=tiles_of(7, row=112, columns=columns), eps=eps)
  plain, _ = call(jnp.asarray(rows), weight, jnp.asarray(d_out))
  d_x, d_weight = call(jnp.asarray(hard), weight, jnp.asarray(hard_d_out))
  bounds = reference.bounded_rms_norm_gradients(hard, np.asarray(weight), hard_d_out, eps=eps)
  reference.assert_within(np.asarray(d_x), bounds.x.round(d_x.dtype))
  reference.assert_within(np.asarray(d_weight), bounds.weight.round(d_weight.dtype))
  ordinary = [0, 3]
  np.testing.assert_array_equal(np.asarray(plain)[ordinary], np.asarray(d_x)[ordinary])
  # infinities and NaN stay in their rows
  hard[1, 3], hard[2, 7] = np.inf, np.nan
  d_x, d_weight = call(jnp.asarray(hard), weight, jnp.asarray(hard_d_out))
  np.testing.assert_array_equal(np.asarray(plain)[ordinary], np.asarray(d_x)[ordinary])
  assert np.isnan(np.asarray(d_x)[2]).all()
  assert np.isnan(np.asarray(d_weight)).all()


@pytest.mark.parametrize(("scale", "eps"), [(1e30, 1e-6), (1e30, 0.0), (1e-25, 1e-6), (1e-12, 0.0)])
def test_a_hard_row_alone(scale, eps, rng):
  x, d_out = normal(rng, 1, 111, dtype="float32") * scale, normal(rng, 1, 111, dtype="float32")
  weight = normal(rng, 111, dtype="float32")
  d_x, d_weight = run(x, weight, d_out, tiles=tiles_of(1, row=112, columns=32), eps=eps)
  bounds = reference.bounded_rms_norm_gradients(*arrays(x, weight, d_out), eps=eps)
  reference.assert_within(np.asarray(d_x), bounds.x.round(d_x.dtype))
  reference.assert_within(np.asarray(d_weight), bounds.weight.round(d_weight.dtype))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("weights", [1, 2])
def test_matrices_with_weights_of_their_own(rows, weights, rng):
  x, d_out = normal(rng, 2, rows, 111), normal(rng, 2, rows, 111)
  weight = normal(rng, weights, 1, 111)
  spec = RmsNormGradient(1e-6, 0.0, x.dtype, weight.dtype, d_out.dtype)
  tiles = tiles_of(rows, row=128, columns=32)
  d_x, d_weight = _interpreted(x, weight, d_out, None, spec, tiles)
  for i in range(2):
    assert_rms_gradients(d_x[i], d_weight[i, 0], x[i], weight[i % weights, 0], d_out[i])


@pytest.mark.parametrize("name", KERNEL)
@pytest.mark.parametrize("rows", [1, 3])
def test_shard_map_and_vmap(name, rows, monkeypatch, rng):
  monkeypatch.setattr(rms_gradient_tiles, "_FEW_ROWS_COLUMNS", (1, 128))
  monkeypatch.setattr(rms_gradient_tiles, "_PART_COLUMNS", 32)
  mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:2]), ("x",))
  spec = jax.sharding.PartitionSpec
  x, d_out = (normal(rng, mesh.size * rows, 111, dtype="float32") for _ in range(2))
  weight = normal(rng, 111, dtype="float32")

  def gradients(x, weight, d_out):
    _, pull = jax.vjp(
      lambda x, weight: pallas_kernels.rms_norm(x, weight, implementation=name), x, weight
    )
    return pull(d_out)

  sharded = jax.jit(
    jax.shard_map(
      gradients,
      mesh=mesh,
      in_specs=(spec("x"), spec(), spec("x")),
      out_specs=(spec("x"), spec()),
      check_vma=True,
    )
  )
  # the shares of d_weight are added up in float32, whose rounding the bound has room for
  assert_rms_gradients(*sharded(x, weight, d_out), x, weight, d_out)
  parts = [part.reshape(mesh.size, rows, 111) for part in (x, d_out)]
  mapped = jax.jit(jax.vmap(gradients, in_axes=(0, None, 0)))
  d_x, d_weight = mapped(parts[0], weight, parts[1])
  for i in range(mesh.size):
    assert_rms_gradients(d_x[i], d_weight[i], parts[0][i], weight, parts[1][i])


@pytest.mark.parametrize("rows", [1, 3])
def test_a_straight_line_has_no_branch(rows):
  spec = RmsNormGradient(1e-6, 0.0, *[jnp.dtype(jnp.float32)] * 3)
  shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((1, rows, 128), (1, 1, 128))]

  def text() -> str:
    def call(x, weight):
      options = {"tiles": tiles_of(rows, row=128, columns=32), "cores": 5, "interpret": False}
      return few_rows_gradient.run(spec, x, weight, x, None, **options)

    with device.abstract_gpu(**H200):
      return str(jax.make_jaxpr(call)(*shapes))

  assert "cond[" in text()
  with arithmetic.straight_line():
    assert "cond[" not in text()
