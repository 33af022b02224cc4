"""Every way to call a row-wise op wrongly, and which implementation runs a right call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr

import hw_profiles
from pallas_kernels import (
  RowConfig,
  device,
  explain,
  quantize_rows,
  rms_norm,
  swiglu,
  swiglu_quantize,
  transpose,
)

X = jnp.ones((4, 6), jnp.bfloat16)
W = jnp.ones(6, jnp.bfloat16)
H200 = {"device_kind": "NVIDIA H200", "num_cores": 132}

WRONG = {
  "no array": (lambda: swiglu(1.0, X), r"gate is a float: expected an array"),
  "integers": (lambda: quantize_rows(X.astype(int)), r"x is int32: expected one of bfloat16"),
  "two shapes": (lambda: swiglu(X, X[:2]), r"gate has shape \(4, 6\) and up \(2, 6\)"),
  "two dtypes": (
    lambda: swiglu(X, X.astype(jnp.float32)),
    r"gate is bfloat16 and up is float32.*up\.astype\(bfloat16\)",
  ),
  "a shape for values": (
    lambda: swiglu(jax.ShapeDtypeStruct((4, 6), jnp.float32), X),
    r"gate is a ShapeDtypeStruct",
  ),
  "out_dtype": (lambda: swiglu(X, X, out_dtype="int8"), r"out_dtype='int8': expected one of"),
  "intermediate": (lambda: swiglu(X, X, intermediate_dtype=int), r"intermediate_dtype='int"),
  "codes": (lambda: quantize_rows(X, dtype="int4"), r"dtype='int4': expected.*did you mean 'int8'"),
  "scale of 0": (lambda: swiglu_quantize(X, X, scale=0), r"scale=0: expected a number above 0"),
  "scale of NaN": (lambda: swiglu_quantize(X, X, scale=np.nan), r"scale=nan: expected a finite"),
  "scale of columns": (
    lambda: swiglu_quantize(X, X, scale=jnp.ones(6)),
    r"scale has shape \(6,\): expected \(\) or one that broadcasts to \(4, 1\)",
  ),
  "weight": (lambda: rms_norm(X, W[:3]), r"weight has shape \(3,\): expected \(6,\)"),
  "residual": (lambda: rms_norm(X, W, residual=X[:1]), r"residual \(1, 6\): expected one shape"),
  "eps": (lambda: rms_norm(X, W, eps=-1), r"eps=-1: expected a finite number of at least 0"),
  "weight_offset": (lambda: rms_norm(X, W, weight_offset="1"), r"weight_offset='1'"),
  "cast": (lambda: rms_norm(X, W, cast_before_weight=1), r"cast_before_weight=1: expected True"),
  "two results": (
    lambda: rms_norm(X, W, out_dtype="float32", quantize_dtype="int8"),
    r"out_dtype='float32' and quantize_dtype='int8': expected one of them",
  ),
  "no splits": (lambda: rms_norm(X, W, num_splits=0), r"num_splits=0: .* from 1 to 6"),
  "splits twice": (
    lambda: rms_norm(X, W, num_splits=2, config=RowConfig(2, 4, num_splits=3)),
    r"num_splits=2 and RowConfig\.num_splits=3: expected one of them, or the same",
  ),
  "too many splits": (lambda: rms_norm(X, W, num_splits=7), r"num_splits=7: .* from 1 to 6"),
  "a vector": (lambda: transpose(W), r"x has shape \(6,\): expected at least 2"),
  "keys": (
    lambda: transpose(jax.random.split(jax.random.key(0), (2, 3))),
    r"x is key<fry>: expected numbers; x\.swapaxes",
  ),
  "config": (lambda: swiglu(X, X, config=(1, 128)), r"config is a tuple.*RowConfig\(1, 4096\)"),
  "implementation": (
    lambda: swiglu(X, X, implementation="tritn"),
    r"'tritn'.*did you mean 'triton'",
  ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_is_named(case):
  call, message = WRONG[case]
  with pytest.raises(ValueError, match=message):
    call()


def test_what_an_implementation_cannot_do_is_refused():
  with pytest.raises(NotImplementedError, match=r"config: XLA takes no tile.*These can: interpret"):
    swiglu(X, X, config=RowConfig(1, 128), implementation="xla")
  with pytest.raises(NotImplementedError, match="has no such implementation"):
    swiglu(X, X, implementation="mosaic_gpu")
  with jax.enable_x64(True):
    wide = X.astype(jnp.float64)
    with pytest.raises(NotImplementedError, match=r"float64 is wider.*These can: xla"):
      swiglu(wide, wide, implementation="interpret")
    with device.abstract_gpu(**H200):
      # the kernels' would be that of a float64 y
      found = explain(rms_norm, X, W, out_dtype="float64")
    assert "its gradients run: xla" in found.notes
  with pytest.raises(NotImplementedError, match="layout='swizzled'"):
    transpose(X, config=RowConfig(32, 64, layout="swizzled"), implementation="interpret")


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_on_a_cpu_xla_runs_and_the_rest_says_why_not():
  found = explain(rms_norm, X, W)
  assert found.implementation == "xla"
  assert "NVIDIA GPUs only" in found.refused["triton"]
  assert "by name" in found.refused["interpret"]
  interpreted = explain(quantize_rows, X, implementation="interpret")
  assert isinstance(interpreted.config, RowConfig)
  assert interpreted.plan is None


@pytest.mark.parametrize("shape", [(1, 4096), (1024, 12288), (65536, 4096), (37, 111)], ids=str)
def test_on_an_h200_the_planned_kernel_runs(shape):
  x, weight = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in (shape, shape[-1:]))
  with device.abstract_gpu(**H200):
    for found in (
      explain(swiglu, x, x),
      explain(swiglu_quantize, x, x, implementation="triton"),
      explain(swiglu_quantize, x, x, scale=0.5),
      explain(quantize_rows, x, implementation="triton"),
      explain(rms_norm, x, weight, residual=x, implementation="triton"),
      explain(transpose, x, config=RowConfig(64, 64, 1)),
    ):
      assert found.implementation == "triton"
      assert found.plan.fits
      assert found.plan.predicted_us > 0
      assert found.plan.config == found.config
      assert "predicted" in str(found)


@pytest.mark.parametrize("shape", [(1, 4096), (4096, 1), (3, 1, 111), (3, 111, 1), (1, 1)], ids=str)
def test_one_row_or_column_is_transposed_by_a_reshape_unless_a_kernel_is_asked_for(shape):
  x = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
  with device.abstract_gpu(**H200):
    found = explain(transpose, x)
    primitives = {eqn.primitive.name for eqn in _all_equations(jax.make_jaxpr(transpose)(x))}
    asked = explain(transpose, x, implementation="triton")
    tiled = explain(transpose, x, config=RowConfig(32, 32, 1))
  assert (found.implementation, found.config) == ("xla", None)
  assert "moves nothing" in found.refused["triton"]
  assert "reshape" in primitives
  assert not primitives & {"pallas_call", "transpose"}
  assert asked.implementation == tiled.implementation == "triton"
  assert asked.plan.fits
  assert tiled.config == RowConfig(32, 32, 1)


@pytest.mark.parametrize(
  ("shape", "dtype", "runs"),
  [
    *(((rows, columns), "bfloat16", "xla") for rows in (1024, 65536) for columns in (4096, 5000)),
    ((65536, 111), "bfloat16", "xla"),
    ((1024, 12288), "float16", "xla"),
    ((8, 1024, 512), "bfloat16", "xla"),
    # rows of the result begin anywhere, and those of x or blocks are too few for the Hopper kernel
    *(((7239, columns), "bfloat16", "triton") for columns in (111, 4100, 12284)),
    ((1028, 4096), "bfloat16", "triton"),
    # fewer elements than the 2^21 from which on XLA's was faster
    *(((rows, 12288), "bfloat16", "triton") for rows in (8, 64)),
    ((1024, 111), "bfloat16", "triton"),
    ((1024, 2047), "bfloat16", "triton"),
    # sizes of elements that were not measured
    ((1024, 4096), "float32", "triton"),
    ((1024, 4096), "int8", "triton"),
  ],
  ids=str,
)
def test_large_transposes_whose_rows_are_aligned_are_left_to_xla(shape, dtype, runs):
  x = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
  with device.abstract_gpu(**H200):
    found = explain(transpose, x)
    primitives = {eqn.primitive.name for eqn in _all_equations(jax.make_jaxpr(transpose)(x))}
    asked = explain(transpose, x, implementation="triton")
    tiled = explain(transpose, x, config=RowConfig(64, 64, 1))
  assert found.implementation == runs
  assert ("pallas_call" in primitives) == (runs == "triton")
  assert asked.implementation == tiled.implementation == "triton"
  assert asked.plan.fits
  if runs == "xla":
    assert "begin at multiples of 16 bytes" in found.refused["triton"]
    assert "asked for by name or with a config" in found.refused["triton"]


def test_two_rows_are_transposed_by_the_kernel():
  x = jax.ShapeDtypeStruct((3, 2, 111), jnp.bfloat16)
  with device.abstract_gpu(**H200):
    assert explain(transpose, x).implementation == "triton"


def _all_equations(closed):
  """Of a jaxpr and those inside of it."""
  for eqn in closed.jaxpr.eqns:
    yield eqn
    for inner in jax.tree.leaves(
      list(eqn.params.values()), is_leaf=lambda x: isinstance(x, ClosedJaxpr)
    ):
      if isinstance(inner, ClosedJaxpr):
        yield from _all_equations(inner)


def test_a_row_has_the_same_tile_whatever_the_rows_where_its_segments_are_fixed():
  configs = set()
  with device.abstract_gpu(**H200):
    for rows in (1, 8, 1024, 65536):
      x, w = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((rows, 4096), (4096,)))
      configs.add(explain(rms_norm, x, w, num_splits=4).config)
  assert len(configs) == 1


def test_codes_need_a_device_that_has_them():
  x = jax.ShapeDtypeStruct((64, 512), jnp.bfloat16)
  old = {"device_kind": "NVIDIA A100-SXM4-80GB", "num_cores": 108}
  with device.abstract_gpu(**old):
    profiled = device.target_device().compute_capability is not None
    found = explain(quantize_rows, x)
    if profiled:
      assert "float8_e4m3fn needs compute capability 8.9" in found.refused["triton"]
    assert explain(quantize_rows, x, dtype="int8").implementation == "triton"


def test_offsets_that_would_wrap_are_left_to_xla():
  rows = 2**21 + 1
  x = jax.ShapeDtypeStruct((rows, 1024), jnp.bfloat16)
  with device.abstract_gpu(**H200):
    assert "wrap at 2^31" in explain(quantize_rows, x).refused["triton"]
    assert explain(swiglu, x, x).implementation == "triton"


def test_a_tile_that_does_not_fit_is_refused_before_it_is_lowered():
  x = jax.ShapeDtypeStruct((64, 65536), jnp.bfloat16)
  with device.abstract_gpu(**H200), pytest.raises(hw_profiles.InfeasibleTileError):
    explain(quantize_rows, x, config=RowConfig(1, 65536), implementation="triton")


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "float4_e2m1fn"])
def test_elements_of_less_than_a_byte_are_left_to_xla(dtype):
  x = jax.ShapeDtypeStruct((64, 48), jnp.dtype(dtype))
  with device.abstract_gpu(**H200):
    found = explain(transpose, x)
    assert jax.eval_shape(transpose, x).shape == (48, 64)
  assert found.implementation == "xla"
  assert f"{dtype}: the kernel moves elements as integers" in found.refused["triton"]
