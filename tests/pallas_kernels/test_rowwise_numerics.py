"""swiglu, quantisation, rms_norm and transpose held against the float64 reference."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from rowwise_cases import (
  KERNEL,
  ROWS,
  arrays,
  assert_rms_gradients,
  assert_swiglu_gradients,
  normal,
  quantize_rows,
  rms_norm,
  swiglu,
  swiglu_quantize,
  transpose,
)

import reference
from pallas_kernels import RowConfig
from pallas_kernels.rowwise import (
  arithmetic,
  inverse_rms,
  portable_elements,
  portable_rms_gradient,
  rms_gradient_tiles,
)
from pallas_kernels.rowwise.rms_gradient import RmsNormGradient
from pallas_kernels.rowwise.specs import SwigluGradient

CODES = ("float8_e4m3fn", "int8")
# Blocks that divide nothing: a row kept, kept in seven pieces, kept by four programs that write
# 32 columns each, walked, and split in parts of 37.
FORMS = {
  "kept": RowConfig(2, 128, 1),
  "pieces": RowConfig(2, 112, 1),
  "written by several": RowConfig(2, 112, 1, num_writers=4),
  "walked": RowConfig(2, 32, 2),
  "split": RowConfig(2, 16, 1, num_splits=3),
}
EVERY_BFLOAT16 = np.arange(65536).astype(np.uint16).view(ml_dtypes.bfloat16)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_swiglu(name, dtype, rng):
  gate, up = normal(rng, 3, 5, 111, dtype=dtype), normal(rng, 3, 5, 111, dtype=dtype)
  reference.assert_swiglu_close(*arrays(swiglu(gate, up, implementation=name), gate, up))


@pytest.mark.parametrize("name", ROWS)
def test_swiglu_rounds_silu_where_it_is_told_to(name, rng):
  gate, up = normal(rng, 7, 33), normal(rng, 7, 33)
  out = swiglu(gate, up, intermediate_dtype="float32", out_dtype="float16", implementation=name)
  assert out.dtype == jnp.float16
  reference.assert_swiglu_close(*arrays(out, gate, up), intermediate_dtype="float32")


@pytest.mark.parametrize("name", KERNEL)
def test_swiglu_of_blocks_that_divide_nothing(name, rng):
  gate, up = normal(rng, 5, 37), normal(rng, 5, 37)
  out = swiglu(gate, up, config=RowConfig(2, 16), implementation=name)
  reference.assert_swiglu_close(*arrays(out, gate, up))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("code", CODES)
def test_codes_of_every_bfloat16(name, code):
  x = EVERY_BFLOAT16.reshape(256, 256)
  config = None if name == "xla" else RowConfig(32, 256, 1)
  codes, scale = arrays(
    *quantize_rows(jnp.asarray(x), dtype=code, config=config, implementation=name)
  )
  reference.assert_quantize_rows_close(codes, scale, x, dtype=code)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("code", CODES)
def test_every_code_from_every_bfloat16(name, code):
  largest = {"float8_e4m3fn": 448, "int8": 127}[code]
  # the scale is 1 where a row's largest magnitude is the largest code
  small = EVERY_BFLOAT16[np.abs(EVERY_BFLOAT16.astype(np.float32)) <= largest]
  x = np.resize(small, (-(-small.size // 255), 256))
  x[:, 0] = largest
  codes, scale = arrays(*quantize_rows(jnp.asarray(x), dtype=code, implementation=name))
  np.testing.assert_array_equal(scale, 1)
  np.testing.assert_array_equal(
    codes.astype(np.float32), reference.quantize(x, np.float32(1), dtype=code).astype(np.float32)
  )
  # a given scale reaches those past the largest code, infinities and NaN: silu(256) is 256, and
  # 256·(x / 256) is x where x is not so small that its code is 0
  gate = np.full(EVERY_BFLOAT16.shape, 256, EVERY_BFLOAT16.dtype)
  with np.errstate(invalid="ignore"):
    up = (EVERY_BFLOAT16.astype(np.float32) / 256).astype(gate.dtype)
  result = swiglu_quantize(
    jnp.asarray(gate), jnp.asarray(up), scale=1.0, dtype=code, implementation=name
  )
  codes = np.asarray(result.codes).astype(np.float32)
  expected = reference.quantize(EVERY_BFLOAT16, np.float32(1), dtype=code).astype(np.float32)
  np.testing.assert_array_equal(codes, expected)
  # all that there are: e4m3 has 126 of each sign, 0 and NaN
  assert np.unique(codes[np.isfinite(codes)]).size == {"float8_e4m3fn": 253, "int8": 255}[code]
  assert np.isnan(codes).any() == (code == "float8_e4m3fn")


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_quantized_rows(name, dtype, rng):
  x = normal(rng, 3, 5, 111, dtype=dtype)
  for code in CODES:
    codes, scale = arrays(*quantize_rows(x, dtype=code, implementation=name))
    assert scale.shape == (3, 5, 1)
    reference.assert_quantize_rows_close(codes, scale, np.asarray(x), dtype=code)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("code", CODES)
def test_a_scale_is_the_quotient_and_no_product_with_a_reciprocal(name, code, rng):
  x = jnp.asarray(rng.uniform(0.5, 2.0, (4096, 1)), jnp.float32)
  config = None if name == "xla" else RowConfig(4096, 1, 1)
  _, scale = quantize_rows(x, dtype=code, config=config, implementation=name)
  largest = np.float32({"float8_e4m3fn": 448, "int8": 127}[code])
  np.testing.assert_array_equal(np.asarray(scale), np.asarray(x) / largest)
  assert np.any(np.asarray(x) / largest != np.asarray(x) * (np.float32(1) / largest))


@pytest.mark.parametrize("off", [-2, -1, 0, 1, 2])
def test_a_quotient_off_by_some_ulp_is_put_right(off, rng, monkeypatch):
  # as on a GPU, where XLA's quotients are within 2 ulp
  monkeypatch.setattr(
    arithmetic,
    "_quotient",
    lambda a, b: lax.bitcast_convert_type(
      lax.bitcast_convert_type(a / b, jnp.int32) + off, jnp.float32
    ),
  )
  count = 100_000
  bits = rng.integers(0, 2**32, (2, count), dtype=np.uint64).astype(np.uint32)
  x, y = bits.view(np.float32)
  close = (1 + rng.integers(0, 64, (2, count)) * 2.0**-23).astype(np.float32)
  for a, b in ((x, np.abs(y)), close, (x, np.full(count, 448, np.float32))):
    with np.errstate(all="ignore"):
      exact = a / b
    smallest = np.finfo(np.float32).tiny
    normal = np.isfinite(exact) & (abs(exact) >= smallest) & (abs(a) >= smallest) & (b >= smallest)
    normal &= np.isfinite(a) & np.isfinite(b)
    assert normal.mean() > 0.5
    found = np.asarray(jax.jit(arithmetic.nearest_quotient)(a, b, jnp.zeros(count)))
    np.testing.assert_array_equal(found[normal], exact[normal])
    np.testing.assert_array_equal(found[~np.isfinite(a) | ~np.isfinite(b)], 0)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("code", CODES)
def test_swiglu_quantize(name, code, rng):
  gate, up = normal(rng, 3, 5, 111), normal(rng, 3, 5, 111)
  result = arrays(*swiglu_quantize(gate, up, dtype=code, implementation=name))
  reference.assert_swiglu_quantize_close(*result, *arrays(gate, up), dtype=code)
  for scale in (0.0123, np.abs(rng.standard_normal((5, 1))).astype(np.float32)):
    result = arrays(*swiglu_quantize(gate, up, scale=scale, dtype=code, implementation=name))
    given = np.asarray(scale, np.float32)
    per_row = np.broadcast_to(given, (3, 5, 1)) if given.ndim else given
    np.testing.assert_array_equal(result[1], given)
    reference.assert_swiglu_quantize_close(
      result[0], per_row, *arrays(gate, up), given_scale=per_row, dtype=code
    )


@pytest.mark.parametrize("name", ROWS)
def test_a_running_maximum_is_no_row_scale(name):
  # the course's row: two blocks of 128 that begin with 1 and 10. Codes stored as the first
  # block is read are 1/56 away from those of the row, and mean 10 with the row's scale
  x = np.zeros((1, 256), np.float32)
  x[0, 0], x[0, 128] = 1, 10
  running = reference.block_codes(x, block=128, scale="running", scale_dtype=np.float32)
  # a row kept, and one that is read block by block
  for config in [None] if name == "xla" else [None, RowConfig(1, 128, 2)]:
    codes, scale = arrays(*quantize_rows(jnp.asarray(x), config=config, implementation=name))
    reference.assert_quantize_rows_close(codes, scale, x)
    ours, early = codes.astype(np.float32) * scale, running.values
    assert (float(codes[0, 0]), float(running.codes[0, 0])) == (44, 448)
    # the scale's rounding apart
    assert early[0, 0] - ours[0, 0] == pytest.approx(1 / 56, rel=1e-5)
    assert float(running.codes[0, 0]) * scale[0, 0] == pytest.approx(10, rel=1e-6)
    assert ours[0, 128] == pytest.approx(10, rel=1e-6)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_rms_norm(name, dtype, rng):
  x, weight = normal(rng, 3, 5, 111, dtype=dtype), normal(rng, 111, dtype="float32")
  out = rms_norm(x, weight, implementation=name)
  reference.assert_rms_norm_close(*arrays(out, x, weight))


@pytest.mark.parametrize("name", ROWS)
def test_rms_norm_of_the_other_convention(name, rng):
  x, weight = normal(rng, 7, 33), normal(rng, 33)
  options = {"eps": 0.125, "weight_offset": 1.0, "cast_before_weight": True}
  out = rms_norm(x, weight, out_dtype="float32", implementation=name, **options)
  assert out.dtype == jnp.float32
  reference.assert_rms_norm_close(*arrays(out, x, weight), **options)


@pytest.mark.parametrize("name", ROWS)
def test_rms_norm_of_a_sum(name, rng):
  x, residual, weight = normal(rng, 7, 33), normal(rng, 7, 33), normal(rng, 33)
  out, total = rms_norm(x, weight, residual=residual, implementation=name)
  np.testing.assert_array_equal(*arrays(total, x + residual))
  reference.assert_rms_norm_close(*arrays(out, total, weight))


@pytest.mark.parametrize("name", ROWS)
def test_rms_norm_in_codes(name, rng):
  x, residual, weight = normal(rng, 7, 33), normal(rng, 7, 33), normal(rng, 33)
  codes = rms_norm(x, weight, quantize_dtype="int8", cast_before_weight=True, implementation=name)
  reference.assert_rms_norm_quantize_close(
    *arrays(*codes, x, weight), cast_before_weight=True, dtype="int8"
  )
  codes, total = rms_norm(
    x, weight, residual=residual, quantize_dtype="float8_e4m3fn", implementation=name
  )
  np.testing.assert_array_equal(*arrays(total, x + residual))
  reference.assert_rms_norm_quantize_close(*arrays(*codes, total, weight))


@pytest.mark.parametrize("name", KERNEL)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_what_the_definition_does(name, form, rng):
  x, residual, weight = (normal(rng, *shape) for shape in ((5, 111), (5, 111), (111,)))
  options = {"config": FORMS[form], "implementation": name}
  out, total = rms_norm(x, weight, residual=residual, **options)
  np.testing.assert_array_equal(*arrays(total, x + residual))
  reference.assert_rms_norm_close(*arrays(out, total, weight))
  codes = rms_norm(x, weight, quantize_dtype="int8", **options)
  reference.assert_rms_norm_quantize_close(*arrays(*codes, x, weight))
  reference.assert_quantize_rows_close(*arrays(*quantize_rows(x, **options), x))
  found = swiglu_quantize(x, residual, **options)
  reference.assert_swiglu_quantize_close(*arrays(*found, x, residual))


@pytest.mark.parametrize("name", KERNEL)
@pytest.mark.parametrize("splits", [40, 64])
def test_many_segments_give_what_the_definition_does(name, splits, rng):
  columns = 16 * splits
  # rows that are scaled in some segments or in all, and one of zeros
  rows = rng.standard_normal((6, columns))
  rows[1, 77] = 1e30
  rows[2] *= 1e-30
  rows[3, 128:] = 0.0
  rows[4] = 0.0
  x, weight = jnp.asarray(rows, jnp.float32), normal(rng, columns)
  options = {"config": RowConfig(1, 16, 1, num_splits=splits), "implementation": name}
  reference.assert_rms_norm_close(*arrays(rms_norm(x, weight, **options), x, weight))
  if splits == 64:
    codes = rms_norm(x, weight, quantize_dtype="int8", **options)
    reference.assert_rms_norm_quantize_close(*arrays(*codes, x, weight))
    reference.assert_quantize_rows_close(*arrays(*quantize_rows(x, **options), x))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("splits", [1, 4, 8, 20, 32])
def test_segments_are_added_up_in_their_order(name, splits):
  # The first segment's square is 2^24, the others' are 1 each: in float32 2^24 + 1 is 2^24, so
  # that added one after another they vanish, and in any other order they do not. Sums within a
  # segment are exact in every order.
  columns = 256
  row = np.zeros(columns, np.float32)
  edges = range(0, columns, -(-columns // splits))
  row[list(edges)] = 1.0
  for first in (True, False):
    exposing = row if first else row[::-1]
    exposing = exposing.copy()
    exposing[0 if first else -1] = 4096.0
    out = rms_norm(
      jnp.asarray(exposing[None]),
      jnp.ones(columns),
      eps=0.0,
      num_splits=splits,
      implementation=name,
    )
    lengths = [min(columns, e + edges.step) - e for e in edges]
    total = reference.emulate_sum(exposing * exposing, splits=lengths)
    inverse = reference.emulate_inverse_rms(total, width=columns, eps=0.0)
    if first:
      # a total of 2^24 over 2^8 columns has an inverse root that is a power of two
      assert total == 2.0**24
      np.testing.assert_array_equal(np.asarray(out)[0], exposing * inverse)
    elif splits > 16:
      # three roundings of at most 2 units each apart from the emulated ones; the other order's
      # total is as many units off as there are segments, half of which the root keeps
      assert float(total) - 2.0**24 >= splits - 2
    off = np.abs(np.asarray(out)[0] - exposing * inverse)
    assert np.all(off <= 6 * 2.0**-24 * np.abs(exposing * inverse))


@pytest.mark.parametrize("name", ROWS)
def test_squares_neither_overflow_nor_vanish(name, rng):
  rows = rng.standard_normal((6, 111)) * np.array([1e30, 3e38 / 8, 1e-30, 1e-38, 1, 0])[:, None]
  rows[4, 0] = 1e37
  x = jnp.asarray(rows, jnp.float32)
  for eps in (0.0, 1e-6):
    part = x if eps else x[:5]
    out = rms_norm(part, jnp.ones(111), eps=eps, implementation=name)
    reference.assert_rms_norm_close(*arrays(out, part, jnp.ones(111)), eps=eps)
    assert np.all(np.isfinite(np.asarray(out)))


@pytest.mark.parametrize("name", KERNEL)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_rows_beside_one_whose_squares_overflow_keep_their_bits(name, form, eps, rng):
  # a block takes the scaled way for all of its rows, or for none
  config = dataclasses.replace(FORMS[form], block_rows=4)
  rows = rng.standard_normal((7, 111)).astype(np.float32)
  hard = rows.copy()
  hard[1] *= 1e30
  hard[5] *= 1e-30
  weight = normal(rng, 111, dtype="float32")
  plain, mixed = (
    rms_norm(jnp.asarray(x), weight, eps=eps, config=config, implementation=name)
    for x in (rows, hard)
  )
  reference.assert_rms_norm_close(*arrays(mixed, hard, weight), eps=eps)
  ordinary = [0, 2, 3, 4, 6]
  np.testing.assert_array_equal(np.asarray(plain)[ordinary], np.asarray(mixed)[ordinary])


@pytest.mark.parametrize("name", KERNEL)
@pytest.mark.parametrize("longest", [16384, 32])
def test_rms_gradients_beside_a_row_whose_squares_overflow(name, longest, monkeypatch, rng):
  monkeypatch.setattr(rms_gradient_tiles, "_LONGEST_KEPT", longest)
  monkeypatch.setattr(rms_gradient_tiles, "_WALKED_COLUMNS", 32)
  rows = rng.standard_normal((6, 111)).astype(np.float32)
  rows[2] *= 1e25
  x, d_out = jnp.asarray(rows), normal(rng, 6, 111, dtype="float32")
  weight = normal(rng, 111, dtype="float32")
  _, pull = jax.vjp(lambda x, weight: rms_norm(x, weight, implementation=name), x, weight)
  assert_rms_gradients(*pull(d_out), x, weight, d_out)


@pytest.mark.parametrize("name", ROWS)
def test_nan_stays_in_its_row(name, rng):
  x = normal(rng, 3, 33, dtype="float32").at[1, 5].set(jnp.nan)
  out = np.asarray(rms_norm(x, jnp.ones(33), implementation=name))
  assert np.all(np.isnan(out[1]))
  assert np.all(np.isfinite(out[[0, 2]]))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(("shape", "dtype"), [((5, 111), "bfloat16"), ((1, 7), "float32")], ids=str)
def test_gradients(name, shape, dtype, rng):
  x, up, d_out = (normal(rng, *shape, dtype=dtype) for _ in range(3))
  weight = normal(rng, shape[-1], dtype=dtype)
  _, pull = jax.vjp(lambda x, up: swiglu(x, up, implementation=name), x, up)
  assert_swiglu_gradients(*pull(d_out), x, up, d_out)
  _, pull = jax.vjp(lambda x, weight: rms_norm(x, weight, implementation=name), x, weight)
  d_x, d_weight = pull(d_out)
  assert (d_x.dtype, d_weight.dtype) == (x.dtype, weight.dtype)
  assert_rms_gradients(d_x, d_weight, x, weight, d_out)


@pytest.mark.parametrize("shape", [(3, 37, 111), (1, 5, 48)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_elements_of_the_last_blocks_first_are_the_same(shape, dtype, rng):
  matrices = tuple(normal(rng, *shape, dtype=dtype) for _ in range(3))

  def run(last_first):
    return portable_elements.run(
      SwigluGradient(jnp.dtype(dtype)),
      matrices,
      (),
      config=RowConfig(2, 32, 1, num_warps=1),
      interpret=True,
      last_first=last_first,
    )

  # 3·37·111 and 5·48 elements are no whole blocks of 64
  for found, expected in zip(arrays(*run(True)), arrays(*run(False)), strict=True):
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", KERNEL)
@pytest.mark.parametrize(("longest", "cores"), [(16384, 3), (32, 2)])
def test_rms_gradients_of_many_programs_and_of_long_rows(name, longest, cores, monkeypatch, rng):
  monkeypatch.setattr(rms_gradient_tiles, "_LONGEST_KEPT", longest)
  monkeypatch.setattr(rms_gradient_tiles, "_WALKED_COLUMNS", 32)
  monkeypatch.setattr(rms_gradient_tiles, "_WARPS_PER_CORE", 1)
  monkeypatch.setattr(rms_gradient_tiles, "_MERGED", RowConfig(2, 32, 1, num_warps=1))
  build = portable_rms_gradient.run
  monkeypatch.setattr(
    portable_rms_gradient, "run", lambda *a, **k: build(*a, **{**k, "cores": 5 * cores})
  )
  x, weight, d_out = (normal(rng, *shape) for shape in ((37, 111), (111,), (37, 111)))
  residual = normal(rng, 37, 111)
  (_, total), pull = jax.vjp(
    lambda x, residual, weight: rms_norm(x, weight, residual=residual, implementation=name),
    x,
    residual,
    weight,
  )
  d_x, d_residual, d_weight = pull((d_out, jnp.zeros_like(d_out)))
  np.testing.assert_array_equal(*arrays(d_x, d_residual))
  assert_rms_gradients(d_x, d_weight, total, weight, d_out)


@pytest.mark.parametrize(
  ("programs", "columns", "cores", "block"),
  [
    (905, 111, 132, (1024, 8)),  # many sums of few columns
    (1500, 40, 132, (1024, 8)),  # in two blocks
    (264, 140, 16, (256, 32)),  # of columns for more blocks than cores
    (8, 300, 5, (8, 128)),  # few sums of many columns
    (8, 111, 132, (8, 32)),
    (132, 50, 132, (256, 32)),
    (64, 300, 5, (64, 32)),
  ],
)
def test_partial_sums_are_added_up_in_any_block(programs, columns, cores, block, rng):
  tile = rms_gradient_tiles.merging_block(programs=programs, columns=columns, cores=cores)
  assert (tile.block_rows, tile.block_cols) == block
  partial = rng.integers(-100, 100, (3, programs, columns))
  merged = portable_rms_gradient.merge(
    jnp.asarray(partial, jnp.float32), jnp.dtype(jnp.float32), cores=cores, interpret=True
  )
  np.testing.assert_array_equal(merged, partial.sum(axis=1, keepdims=True))


@pytest.mark.parametrize(
  ("block_rows", "block_cols", "most_ahead", "eps"),
  [
    # each block loads ahead and does not, with an eps and without, and each two of those meet
    *((1, 128, 0, 1e-6), (1, 128, 16, 0.0)),
    *((1, 112, 0, 0.0), (1, 112, 16, 1e-6)),
    *((2, 112, 0, 1e-6), (2, 112, 16, 0.0)),
    *((4, 128, 0, 0.0), (4, 128, 16, 1e-6)),
    *((1, 144, 0, 1e-6), (1, 144, 16, 0.0)),
  ],
)
def test_rms_gradients_in_pieces_and_loaded_ahead(
  block_rows, block_cols, most_ahead, eps, monkeypatch, rng
):
  # 37 rows for 5 programs: the last one has fewer, and blocks of rows that are not there
  tile = RowConfig(block_rows, block_cols, 1, num_warps=1)
  monkeypatch.setattr(rms_gradient_tiles, "_MOST_AHEAD", most_ahead)
  spec = RmsNormGradient(eps, 0.0, *[jnp.dtype(jnp.bfloat16)] * 3)
  x, d_out, d_sum = (normal(rng, 1, 37, 111) for _ in range(3))
  weight = normal(rng, 1, 1, 111)
  run = functools.partial(portable_rms_gradient.run, spec, config=tile, cores=5, interpret=True)
  d_x, d_weight = jax.jit(run)(x, weight, d_out, d_sum)
  assert not np.isnan(np.asarray(d_weight, np.float32)).any()
  bounds = reference.bounded_rms_norm_gradients(*arrays(x[0], weight[0, 0], d_out[0]), eps=eps)
  allowed = bounds.x.add(reference.Bounded.of(np.asarray(d_sum[0]))).round(d_x.dtype)
  reference.assert_within(np.asarray(d_x[0]), allowed)
  reference.assert_within(np.asarray(d_weight[0, 0]), bounds.weight.round(d_weight.dtype))


@pytest.mark.parametrize("name", ROWS)
def test_the_gradient_of_the_sum_is_added_before_the_rounding(name, rng):
  x, residual, weight, d_out = (normal(rng, *shape) for shape in ((7, 33), (7, 33), (33,), (7, 33)))
  (_, total), pull = jax.vjp(
    lambda x, residual: rms_norm(x, weight, residual=residual, implementation=name), x, residual
  )
  without = reference.bounded_rms_norm_gradients(*arrays(total, weight, d_out)).x
  # all that is left is what rounding the other gradient would have cut off
  d_sum = -without.exact.astype(total.dtype)
  d_x, _ = pull((d_out, jnp.asarray(d_sum)))
  allowed = without.add(reference.Bounded.of(d_sum)).round(d_x.dtype)
  reference.assert_within(np.asarray(d_x), allowed)
  with pytest.raises(AssertionError):
    reference.assert_within(np.zeros_like(d_sum), allowed)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8", "float8_e4m3fn"])
def test_transpose_moves_bits(name, dtype, rng):
  size = jnp.dtype(dtype).itemsize
  bits = rng.integers(0, 256, (3, 37, 21, size)).astype(np.uint8)
  x = bits.view(jnp.dtype(dtype)).reshape(3, 37, 21)
  config = None if name == "xla" else RowConfig(16, 32, 1)
  out = transpose(jnp.asarray(x), config=config, implementation=name)
  reference.assert_transpose_equal(np.asarray(out), x)


@pytest.mark.parametrize("name", [None, *ROWS])
@pytest.mark.parametrize("shape", [(1, 37), (37, 1), (2, 1, 21), (2, 21, 1)], ids=str)
def test_transpose_of_one_row_or_column(name, shape, rng):
  x = jnp.asarray(rng.integers(-128, 128, shape).astype(np.int8))
  out = transpose(x, implementation=name)
  reference.assert_transpose_equal(np.asarray(out), np.asarray(x))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("shape", [(0, 8), (5, 0), (1, 1)], ids=str)
def test_sizes_of_nothing_and_of_one(name, shape, rng):
  x, weight = normal(rng, *shape), normal(rng, shape[-1])
  reference.assert_swiglu_close(*arrays(swiglu(x, x, implementation=name), x, x))
  codes, scale = arrays(*quantize_rows(x, implementation=name))
  reference.assert_quantize_rows_close(codes, scale, np.asarray(x))
  out, total = rms_norm(x, weight, residual=x, implementation=name)
  reference.assert_rms_norm_close(*arrays(out, total, weight))
  reference.assert_transpose_equal(*arrays(transpose(x, implementation=name), x))
  d_x, d_weight = jax.grad(
    lambda x, w: rms_norm(x, w, implementation=name).astype(jnp.float32).sum(), (0, 1)
  )(x, weight)
  assert (d_x.shape, d_weight.shape) == (x.shape, weight.shape)
  if not x.size:
    np.testing.assert_array_equal(np.asarray(d_weight, np.float32), 0)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 8, 1024, 7239])
@pytest.mark.parametrize("columns", [4096, 12288, 11008, 111, 5000])
def test_compiled_kernels_at_the_sizes_of_models(rows, columns, rng):
  gate, up = normal(rng, rows, columns), normal(rng, rows, columns)
  weight = normal(rng, columns)
  run = {"implementation": "triton"}
  part = slice(0, 64)
  reference.assert_swiglu_close(*arrays(swiglu(gate, up, **run)[part], gate[part], up[part]))
  out = rms_norm(gate, weight, **run)
  reference.assert_rms_norm_close(*arrays(out[part], gate[part], weight))
  for code in CODES:
    codes, scale = quantize_rows(gate, dtype=code, **run)
    reference.assert_quantize_rows_close(*arrays(codes[part], scale[part], gate[part]))
    codes, scale = swiglu_quantize(gate, up, dtype=code, **run)
    reference.assert_swiglu_quantize_close(*arrays(codes[part], scale[part], gate[part], up[part]))
  reference.assert_transpose_equal(*arrays(transpose(gate, **run), gate))


@pytest.mark.gpu
def test_the_same_bits_on_every_run(rng):
  x, weight, d_out = (normal(rng, *shape) for shape in ((777, 5000), (5000,), (777, 5000)))

  @jax.jit
  def step(x, weight, d_out):
    out, pull = jax.vjp(lambda x, w: rms_norm(x, w, implementation="triton"), x, weight)
    return out, *pull(d_out)

  runs = [arrays(*step(x, weight, d_out)) for _ in range(5)]
  for first, second in itertools.pairwise(runs):
    for a, b in zip(first, second, strict=True):
      np.testing.assert_array_equal(a, b)


def test_sums_of_segments_side_by_side_are_those_of_their_merges(rng):
  # integers: exact in every order
  count = 64
  total = rng.integers(1, 2**12, (2, count)).astype(np.float32)
  largest = np.full((2, count), 2.0**40, np.float32)

  def merged(largest):
    parts = inverse_rms.SquareSum(jnp.asarray(largest), jnp.asarray(total))
    return inverse_rms.plain_sum_across(parts)

  plain, found = merged(largest)
  assert plain
  parts = [inverse_rms.SquareSum(largest[:, i : i + 1], total[:, i : i + 1]) for i in range(count)]
  for one, expected in zip(found, functools.reduce(inverse_rms.merge, parts), strict=True):
    np.testing.assert_array_equal(one, expected)
  for scaled in (0.0, 1.0, 2.0**41):
    changed = largest.copy()
    changed[1, 3] = scaled
    assert not merged(changed)[0]


def test_sums_of_segments_that_were_not_scaled_add_up_as_their_merges_do(rng):
  def part(largest):
    total = jnp.asarray(rng.uniform(1e-9, 1e9, (2, 1)), jnp.float32)
    return inverse_rms.SquareSum(jnp.full((2, 1), largest, jnp.float32), total)

  parts = [part(2.0**40) for _ in range(40)]
  plain, total = inverse_rms.plain_sum(parts)
  assert plain
  for found, expected in zip(total, functools.reduce(inverse_rms.merge, parts), strict=True):
    np.testing.assert_array_equal(found, expected)
  for largest in (0.0, 1.0, 2.0**41):
    assert not inverse_rms.plain_sum([*parts, part(largest)])[0]
