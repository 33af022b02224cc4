"""The Hopper kernel of rms_norm's gradient, interpreted or on a GPU; what it refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rowwise_cases import (
  H200_SHARED_BYTES,
  HOPPER,
  HOPPER_MARKS,
  ON_CPU,
  arrays,
  assert_rms_gradients,
  normal,
  runs_hopper,
)

import reference
from pallas_kernels import device, explain, rms_norm
from pallas_kernels.rowwise import hopper_refusals, hopper_rms_gradient, implementations
from pallas_kernels.rowwise.inverse_rms import coarse_power
from pallas_kernels.rowwise.request import RowOperands, RowRequest
from pallas_kernels.rowwise.rms_gradient import RmsNormGradient
from pallas_kernels.rowwise.sizes import Sizes

pytestmark = HOPPER_MARKS


def request(dtype: str = "bfloat16", *, name: str | None = "mosaic_gpu", **fields) -> RowRequest:
  kind = jnp.dtype(dtype)
  spec = RmsNormGradient(1e-6, 0.0, dtype=kind, weight_dtype=kind, out_dtype=kind)
  return RowRequest("rms_norm", dataclasses.replace(spec, **fields), kind, None, name)


def gradients(x, weight, d_out, **fields):
  operands = RowOperands((x[None], d_out[None]), (weight[None, None],))
  d_x, d_weight = implementations.run(request(x.dtype.name, name=HOPPER, **fields), operands)
  return d_x[0], d_weight[0, 0]


@runs_hopper
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
  ("rows", "columns"),
  [
    (11, 1024),  # every block has several rows
    (1, 2048),  # one row: a consumer has none
    (5, 704),  # 11 x 64: zeros beyond the end of a row
    (45, 512),  # more turns than stages
    (7, 1000),  # rows that begin at any multiple of 16 bytes
    (3, 72),  # shorter than what a thread loads at once
    (5, 6152),  # two warpgroups share a row, the second one's end is no whole load
    (5, 6272),  # compiled two blocks of a cluster, whose halves are no whole loads
  ],
)
def test_gradients(rows, columns, dtype, cores, races, rng):
  x, d_out = normal(rng, rows, columns, dtype=dtype), normal(rng, rows, columns, dtype=dtype)
  weight = normal(rng, columns, dtype=dtype)
  d_x, d_weight = gradients(x, weight, d_out)
  assert not races()
  assert (d_x.dtype, d_weight.dtype) == (x.dtype, weight.dtype)
  assert_rms_gradients(d_x, d_weight, x, weight, d_out)


@runs_hopper
@pytest.mark.parametrize("scale", [2.0**-110, 2.0**-60, 2.0**-33, 2.0**40, 2.0**70, 2.0**120])
@pytest.mark.parametrize("d_scale", [2.0**-50, 1.0, 2.0**60])
# compiled also of rows that blocks share, which go through such a row together
@pytest.mark.parametrize("columns", [512] if ON_CPU else [512, 6272])
def test_rows_whose_squares_or_products_leave_the_range(scale, d_scale, columns, monkeypatch, rng):
  if ON_CPU:
    monkeypatch.setattr(implementations, "cores_of", lambda _: 1)
  # beside ordinary rows, and one whose gradient is zero
  x = np.asarray(rng.standard_normal((4, columns)), np.float64)
  d_out = np.asarray(rng.standard_normal((4, columns)), np.float64)
  x[1] *= scale
  d_out[1] *= d_scale * min(scale, 1.0)
  d_out[2] = 0.0
  x, d_out = (jnp.asarray(a, jnp.bfloat16) for a in (x, d_out))
  weight = normal(rng, columns)
  d_x, d_weight = gradients(x, weight, d_out, eps=0.0)
  exact = reference.rms_norm_gradients(
    *(np.asarray(a, np.float64) for a in (x, weight, d_out)), eps=0.0
  )
  for found, value in zip(arrays(d_x, d_weight), (exact.x, exact.weight), strict=True):
    largest = np.max(np.abs(value), axis=-1, keepdims=True)
    error = np.abs(found.astype(np.float64) - value)
    assert np.all(error <= 2.0**-8 * np.abs(value) + 2.0**-18 * largest + 2.0**-126)


@runs_hopper
def test_the_weights_offset_and_eps_enter(monkeypatch, rng):
  if ON_CPU:
    monkeypatch.setattr(implementations, "cores_of", lambda _: 2)
  x, weight, d_out = normal(rng, 6, 512), normal(rng, 512), normal(rng, 6, 512)
  found = gradients(x, weight, d_out, eps=0.125, weight_offset=1.0)
  same = implementations.run(
    request(name="interpret" if ON_CPU else "triton", eps=0.125, weight_offset=1.0),
    RowOperands((x[None], d_out[None]), (weight[None, None],)),
  )
  for ours, portable in zip(arrays(*found), arrays(*same), strict=True):
    ours, portable = ours.astype(np.float64), portable.astype(np.float64).reshape(ours.shape)
    assert np.all(np.abs(ours - portable) <= 2.0**-7 * np.abs(portable) + 2.0**-16)


@runs_hopper
def test_a_row_has_the_same_bits_wherever_it_begins(cores, rng):
  x, d_out = (jnp.tile(normal(rng, 1, 1000), (9, 1)) for _ in range(2))
  d_x, _ = gradients(x, normal(rng, 1000), d_out)
  np.testing.assert_array_equal(*arrays(d_x, jnp.tile(d_x[:1], (9, 1))))


@pytest.mark.parametrize(
  ("columns", "blocks", "members"),
  [
    (128, 1, 1), (704, 1, 1), (4096, 1, 1), (5000, 1, 1), (6144, 1, 1), (6152, 1, 2), (6272, 2, 1),
    (11008, 2, 1), (11072, 1, 2), (12288, 2, 1), (12416, 1, 2), (16384, 1, 2),
  ],
)  # fmt: skip
def test_a_thread_has_the_same_columns_of_every_row(columns, blocks, members):
  assert hopper_rms_gradient.blocks_of(columns) == blocks
  share = hopper_rms_gradient.share_of(columns)
  assert share.fixed
  assert share.members == members
  assert share.columns * blocks == columns
  assert share.stored - share.columns < members * share.piece
  # the last member has some
  assert (members - 1) * share.pieces * share.piece < share.columns
  shifts = {row * columns % 64 for row in range(64)}
  if columns % 64:
    assert max(shifts) <= share.most_shift
    assert all(int(share.shift(jnp.int32(row))) % 64 == row * columns % 64 for row in range(64))
  else:
    assert share.most_shift == 0


@pytest.mark.parametrize(
  ("columns", "expected"),
  [
    (16384, 3), (12288, 8), (11072, 4), (11008, 8), (6144, 8), (5120, 8), (5000, 8), (64, 8),
    (16392, 0), (5004, 0), (111, 0), (56, 0), (0, 0),
  ],
)  # fmt: skip
def test_the_ring_has_two_stages_for_each_group_or_none(columns, expected):
  assert hopper_rms_gradient.stages(columns, shared_bytes=H200_SHARED_BYTES) == expected


@runs_hopper
@pytest.mark.parametrize(
  ("rows", "columns", "expected"),
  [
    (1024, 12288, (2, 64, 6144)),  # 16 halves of rows for every block
    (1024, 11008, (2, 64, 5632)),  # with zeros beyond the end of a half
    (1024, 16384, (1, 128, 16384)),
    (7239, 12288, (2, 66, 6144)),
    (7239, 4096, (1, 132, 4096)),
    (1, 12288, (2, 1, 6144)),
  ],
)
def test_blocks_that_share_rows_have_half_of_the_sums(rows, columns, expected, monkeypatch):
  found = []
  merge = hopper_rms_gradient.portable_rms_gradient.merge

  def seen(partial, *args, **options):
    found.append(partial.shape)
    return merge(partial, *args, **options)

  monkeypatch.setattr(hopper_rms_gradient.portable_rms_gradient, "merge", seen)

  def run(x, weight, d_out):
    one = request(name=None).spec
    return hopper_rms_gradient.run(one, x, weight, d_out, cores=132, shared_bytes=H200_SHARED_BYTES)

  x, weight = (
    jax.ShapeDtypeStruct((1, one, columns), jnp.bfloat16) for one in (rows, 1)
  )  # fmt: skip
  d_x, d_weight = jax.eval_shape(run, x, weight, x)
  assert found == [expected]
  assert (d_x.shape, d_weight.shape) == (x.shape, weight.shape)


def test_a_coarse_power_leaves_squares_in_range():
  largest = np.exp2(np.arange(-149, 128, dtype=np.float64)).astype(np.float32)
  power = np.asarray(coarse_power(jnp.asarray(largest)))
  scaled = largest.astype(np.float64) * power
  assert np.all(np.frexp(power)[0] == 0.5)
  assert np.all((scaled >= 1) | (power == 2.0**126))
  assert np.all(scaled < 2.0**32)


def refused(sizes, **fields):
  one = implementations._RMS_GRADIENTS[0]
  h200 = device.TargetDevice("gpu", "NVIDIA H200", 132, (9, 0))
  found = hopper_refusals.of_rms_gradient(one, request(**fields), None, h200, sizes)
  return None if found is None else found.reason


@runs_hopper
@pytest.mark.parametrize(
  ("sizes", "fields", "reason"),
  [
    ((1, 7239, 11008), {"dtype": "float32"}, "rows and weights of 16 bits"),
    ((1, 7239, 11008), {"weight_dtype": jnp.dtype("float32")}, "rows and weights of 16 bits"),
    ((1, 7239, 11008), {"out_dtype": jnp.dtype("float32")}, "rows and weights of 16 bits"),
    ((3, 7239, 11008), {}, "a batch of 3"),
    ((1, 7239, 11008), {"sum_gradient": True}, "a third row"),
    ((1, 7239, 5004), {}, "a multiple of 8 from 64 to 16384"),
    ((1, 7239, 16392), {}, "a multiple of 8 from 64 to 16384"),
    ((1, 7239, 1984), {"name": None}, "1984 columns: the kernel is preferred from 2048 on"),
    ((1, 64, 11008), {"name": None}, "64 rows: the kernel is preferred from 528, 4 for each core,"),
    ((1, 900, 4096), {"name": None}, "4000000 elements"),
    ((1, 5000, 2048), {"name": None}, "14000000 elements"),
  ],
)
def test_what_it_refuses(sizes, fields, reason):
  assert reason in refused(Sizes(*sizes), **fields)


@runs_hopper
@pytest.mark.parametrize("columns", [2048, 4096, 5000, 6144, 11008, 12288, 16376, 16384])
def test_long_rows_are_its_own_and_lower(columns):
  assert refused(Sizes(1, 7239, columns), name=None) is None

  def loss(x, weight):
    return rms_norm(x, weight).astype(jnp.float32).sum()

  x, weight = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((7239, columns), (columns,)))
  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    lowered = jax.jit(jax.grad(loss, (0, 1))).trace(x, weight).lower(lowering_platforms=("cuda",))
  text = lowered.as_text()
  assert "mosaic_gpu" in text
  assert "rmsnorm_gradient_merge_portable" in text
  assert "rmsnorm_gradient_portable" not in text


@runs_hopper
@pytest.mark.parametrize("columns", [2048, 11008])
def test_wide_gradients_that_come_in_are_the_portable_kernels(columns):
  def gradients(x, weight, d_out):
    return jax.vjp(lambda *a: rms_norm(*a, out_dtype=jnp.float32), x, weight)[1](d_out)

  x, weight = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((7239, columns), (columns,)))
  d_out = jax.ShapeDtypeStruct(x.shape, jnp.float32)
  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    lowered = jax.jit(gradients).trace(x, weight, d_out).lower(lowering_platforms=("cuda",))
  text = lowered.as_text()
  assert "mosaic_gpu" not in text
  assert "rmsnorm_gradient_portable" in text


@runs_hopper
@pytest.mark.parametrize(
  ("rows", "options", "said"),
  [
    (7239, {}, ["its gradients run: mosaic_gpu"]),
    (7239, {"implementation": "triton"}, ["its gradients run: triton"]),
    (64, {}, ["its gradients run: triton"]),
    (7239, {"quantize_dtype": "int8"}, []),
    (0, {}, ["there are no elements: no kernel runs"]),
  ],
)
def test_the_explanation_says_which_kernel_the_gradients_get(rows, options, said):
  x, weight = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((rows, 4096), (4096,)))
  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    assert list(explain(rms_norm, x, weight, **options).notes) == said
