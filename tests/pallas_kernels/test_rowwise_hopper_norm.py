"""The Hopper kernel of rms_norm, interpreted or on a GPU; what it refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rowwise_cases import (
  H200,
  H200_SHARED_BYTES,
  HOPPER,
  HOPPER_MARKS,
  ON_CPU,
  arrays,
  normal,
  rms_norm,
  runs_hopper,
)

import reference
from pallas_kernels import RowConfig, device, explain
from pallas_kernels.rowwise import hopper_norm_blocks, hopper_rms_norm, row_stream
from pallas_kernels.rowwise.specs import RmsNorm

pytestmark = HOPPER_MARKS


@runs_hopper
@pytest.mark.parametrize(
  ("rows", "columns", "dtype", "weight_dtype"),
  [
    (11, 1024, "bfloat16", "bfloat16"),  # more rows than blocks
    (1, 2048, "float16", "float32"),  # one row: most groups have none
    (45, 512, "bfloat16", "float32"),  # more turns than stages
    (5, 7168, "bfloat16", "bfloat16"),  # warpgroups share a row
  ],
)
def test_rows_and_their_sums(rows, columns, dtype, weight_dtype, cores, races, rng):
  x, residual = normal(rng, rows, columns, dtype=dtype), normal(rng, rows, columns, dtype=dtype)
  weight = normal(rng, columns, dtype=weight_dtype)
  out, total = rms_norm(x, weight, residual=residual, implementation=HOPPER)
  assert not races()
  np.testing.assert_array_equal(*arrays(total, x + residual))
  reference.assert_rms_norm_close(*arrays(out, total, weight))


@runs_hopper
@pytest.mark.parametrize("columns", [72, 5000])
def test_rows_of_any_multiple_of_eight_and_the_other_convention(columns, cores, rng):
  x, weight = normal(rng, 5, columns), normal(rng, columns)
  options = {"eps": 0.125, "weight_offset": 1.0, "cast_before_weight": True}
  out = rms_norm(x, weight, implementation=HOPPER, **options)
  reference.assert_rms_norm_close(*arrays(out, x, weight), **options)


@runs_hopper
@pytest.mark.parametrize(("columns", "residual"), [(1000, False), (72, True), (6152, True)])
def test_a_row_has_the_same_bits_wherever_it_begins(columns, residual, cores, rng):
  x, weight = jnp.tile(normal(rng, 1, columns), (5, 1)), normal(rng, columns)
  outs = rms_norm(x, weight, residual=x if residual else None, implementation=HOPPER)
  for out in outs if residual else (outs,):
    np.testing.assert_array_equal(*arrays(out, jnp.tile(out[:1], (5, 1))))


@runs_hopper
@pytest.mark.parametrize(("columns", "residual"), [(1024, True), (6152, True), (7168, False)])
def test_a_block_for_each_row_has_the_bits_of_blocks_that_stay(
  columns, residual, cores, rng, monkeypatch
):
  x, weight = normal(rng, 5, columns), normal(rng, columns)
  x = x.at[1].multiply(2.0**70)  # with a power of two
  outs = []
  for is_kept in (True, False):
    monkeypatch.setattr(row_stream, "are_kept", lambda *_, kept=is_kept, **__: kept)
    if not is_kept:
      monkeypatch.setattr(hopper_norm_blocks, "share_of", lambda *_, **__: None)
    outs.append(rms_norm(x, weight, residual=x if residual else None, implementation=HOPPER))
  jax.tree.map(lambda *pair: np.testing.assert_array_equal(*arrays(*pair)), *outs)


@runs_hopper
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_squares_neither_overflow_nor_vanish(eps, cores, rng):
  scales = np.array([1e30, 3e38 / 8, 1e-30, 2.0**-116, 1, 0])[: 5 if eps == 0.0 else 6]
  x = jnp.asarray(rng.standard_normal((len(scales), 512)) * scales[:, None], jnp.bfloat16)
  weight = jnp.ones(512, jnp.bfloat16)
  out = rms_norm(x, weight, eps=eps, implementation=HOPPER)
  reference.assert_rms_norm_close(*arrays(out, x, weight), eps=eps)


@runs_hopper
def test_nans_and_infinities_are_where_the_portable_kernel_has_them(cores, rng):
  x = np.array(normal(rng, 4, 256, dtype="float32"))
  x[1, 3], x[2, 5], x[3] = np.nan, -np.inf, np.inf
  x = jnp.asarray(x, jnp.bfloat16)
  weight = normal(rng, 256)
  found = rms_norm(x, weight, implementation=HOPPER)
  portable = rms_norm(x, weight, implementation="interpret" if ON_CPU else "triton")
  np.testing.assert_array_equal(np.isnan(found), np.isnan(portable))
  np.testing.assert_array_equal(*arrays(found[2] == 0, portable[2] == 0))
  assert np.all(np.isfinite(np.asarray(found[0], np.float32)))


@pytest.mark.parametrize(
  ("columns", "weight", "residual", "expected"),
  [
    (12288, "float32", False, 6),
    (12288, "bfloat16", False, 8),  # weights of 16 bits lie there as they come
    (11008, "float32", True, 4),
    (5000, "float32", True, 8),
    (4096, "float16", False, 16),
    (4096, "float16", True, 8),  # two of a group, though more would fit
    (12288, "bfloat16", True, 4),
    (12288, "float32", True, 0),
    (12288, "float64", True, 0),  # computed in float32
    (100, "bfloat16", False, 0),
  ],
)
def test_every_group_has_stages_of_its_own_beside_the_weights(columns, weight, residual, expected):
  bf16 = jnp.dtype(jnp.bfloat16)
  spec = RmsNorm(1e-6, 0.0, None, jnp.dtype(weight), bf16, bf16 if residual else None, None)
  found = hopper_rms_norm.stages(spec, columns, shared_bytes=H200_SHARED_BYTES)
  assert found == expected


@runs_hopper
@pytest.mark.parametrize(
  ("columns", "dtype", "options", "reason"),
  [
    (4096, "float32", {}, "rows of 16 bits"),
    (4096, "bfloat16", {"out_dtype": "float32"}, "results of 16 bits"),
    (4096, "bfloat16", {"quantize_dtype": "int8"}, "a second round"),
    (4096, "bfloat16", {"num_splits": 2}, "num_splits"),
    (4096, "bfloat16", {"config": RowConfig(1, 4096, 1)}, "follow from its columns"),
    (5001, "bfloat16", {}, "5001 columns: the kernel takes a multiple of 8 from 64 on"),
    (56, "bfloat16", {}, "56 columns: the kernel takes a multiple of 8 from 64 on"),
    (32776, "bfloat16", {}, "32776 columns: the kernel takes 32768 at most"),
    (32768, "bfloat16", {"residual": True}, "fit in 232448 bytes .* those of 22528 columns do"),
  ],
)
def test_what_it_refuses(columns, dtype, options, reason):
  x, weight = (jax.ShapeDtypeStruct(s, jnp.dtype(dtype)) for s in ((7239, columns), (columns,)))
  options = {k: x if k == "residual" else v for k, v in options.items()}
  with device.abstract_gpu(**H200), pytest.raises(NotImplementedError, match=reason):
    explain(rms_norm.__wrapped__, x, weight, implementation="mosaic_gpu", **options)


@runs_hopper
def test_a_batch_with_one_weight_is_more_rows(cores, rng):
  x, residual, weight = normal(rng, 2, 3, 256), normal(rng, 2, 3, 256), normal(rng, 256)
  norm = functools.partial(rms_norm.__wrapped__, implementation=HOPPER)
  mapped = jax.jit(jax.vmap(lambda x, r: norm(x, weight, residual=r)))
  out, total = mapped(x, residual)
  np.testing.assert_array_equal(*arrays(total, x + residual))
  reference.assert_rms_norm_close(*arrays(out, total, weight))
  alone = rms_norm(total, weight, implementation=HOPPER)
  np.testing.assert_array_equal(*arrays(out, alone))


@runs_hopper
def test_what_it_refuses_of_a_batch_says_whether_it_is_the_gradient():
  x, weight = jnp.ones((3, 2, 256), jnp.bfloat16), jnp.ones((3, 256), jnp.bfloat16)
  norm = functools.partial(rms_norm.__wrapped__, implementation=HOPPER)
  with pytest.raises(NotImplementedError, match=r"^rms_norm: .* a batch of 3 matrices: .* one w"):
    jax.vmap(norm)(x, weight)

  def loss(x):
    return norm(x, weight[0]).astype(jnp.float32).sum()

  told = r"^the gradient of rms_norm: .* a batch of 3: the kernel has one weight"
  with pytest.raises(NotImplementedError, match=told):
    jax.vmap(jax.grad(loss))(x)


@runs_hopper
def test_two_rows_of_a_residuals_call_fit_beside_weights_of_16_bits():
  x, weight = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((7239, 12288), (12288,)))
  wide = jax.ShapeDtypeStruct(weight.shape, jnp.float32)
  with device.abstract_gpu(**H200):
    assert explain(rms_norm.__wrapped__, x, weight, residual=x).implementation == "mosaic_gpu"
    found = explain(rms_norm.__wrapped__, x, wide, residual=x)
  assert found.implementation == "triton"
  assert "beside float32 weights" in found.refused["mosaic_gpu"]
  assert "of narrower rows those of 11264 columns do" in found.refused["mosaic_gpu"]


@runs_hopper
@pytest.mark.parametrize("columns", [4096, 5000, 12288])
def test_long_rows_lower_with_gradients_of_their_own(columns):
  def loss(x, residual, weight):
    out, total = rms_norm.__wrapped__(x, weight, residual=residual, implementation="mosaic_gpu")
    return out.astype(jnp.float32).sum() + total.astype(jnp.float32).sum()

  x, weight = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((7239, columns), (columns,)))
  with device.abstract_gpu(**H200), jax.enable_x64(columns == 5000):
    lowered = jax.jit(loss).trace(x, x, weight).lower(lowering_platforms=("cuda",))
  text = lowered.as_text()
  assert "mosaic_gpu" in text
  assert "portable" not in text


@runs_hopper
@pytest.mark.parametrize(
  ("rows", "plain_is_kept", "summed_is_kept"),
  [(7239, True, True), (3200, False, True), (1600, False, False)],  # 16 KB each, of 50 MiB
)
def test_l2_keeps_what_comes_in_where_it_does_not_hold_all(rows, plain_is_kept, summed_is_kept):
  def text(x, weight, *residual):
    def call(x, weight, residual=None):
      return rms_norm.__wrapped__(x, weight, residual=residual, implementation="mosaic_gpu")

    traced = jax.jit(call).trace(x, weight, *residual)
    return traced.lower(lowering_platforms=("cuda",)).as_text()

  x, weight = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((rows, 8192), (8192,)))
  with device.abstract_gpu(**H200):
    assert ("evict_last" in text(x, weight)) == plain_is_kept
    assert ("evict_last" in text(x, weight, x)) == summed_is_kept


@runs_hopper
@pytest.mark.parametrize(
  ("shape", "plain_runs_there", "summed_runs_there"),
  [
    ((7239, 11008), True, True),
    ((1024, 12288), True, True),
    ((7239, 4096), True, True),
    ((3, 2413, 4160), True, True),
    ((4096, 4096), False, True),  # L2 holds x
    ((7239, 5000), True, True),  # neighbours share lines
    ((2048, 5000), False, False),  # those, and L2 holds them
    ((7239, 2048), False, False),  # short rows
    ((1024, 4096), False, False),  # all in L2
    ((64, 12288), False, False),  # few of them
  ],
  ids=str,
)
def test_long_rows_from_memory_are_its_own(shape, plain_runs_there, summed_runs_there):
  x, weight = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in (shape, shape[-1:]))
  with device.abstract_gpu(**H200):
    plain = explain(rms_norm.__wrapped__, x, weight)
    summed = explain(rms_norm.__wrapped__, x, weight, residual=x)
    codes = explain(rms_norm.__wrapped__, x, weight, residual=x, quantize_dtype="int8")
  assert plain.implementation == ("mosaic_gpu" if plain_runs_there else "triton")
  assert summed.implementation == ("mosaic_gpu" if summed_runs_there else "triton")
  assert codes.implementation == "triton"
