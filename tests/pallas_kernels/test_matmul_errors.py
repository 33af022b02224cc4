"""Every way to call matmul wrongly, and what the message must say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hw_profiles
from pallas_kernels import MatmulConfig, device, matmul

A = jnp.ones((4, 6), jnp.bfloat16)
B = jnp.ones((6, 5), jnp.bfloat16)

WRONG = {
  "a is no array": (lambda: matmul(1.0, B), r"a is a float: expected an array"),
  "a is a vector": (lambda: matmul(A[0], B), r"a has shape \(6,\).*a\[None, :\] makes a row"),
  "b is a scalar": (lambda: matmul(A, jnp.bfloat16(1)), r"b has shape \(\).*at least 2"),
  "integers": (lambda: matmul(A.astype(int), B), r"a is int32: expected one of bfloat16"),
  "codes": (
    lambda: matmul(A.astype(jnp.int8), B.astype(jnp.int8)),
    r"a is int8: expected one of bfloat16.*; quantized_matmul multiplies codes",
  ),
  "codes of float8": (
    lambda: matmul(A, B.astype(jnp.float8_e4m3fn)),
    r"b is float8_e4m3fn: expected one of.*quantize_matmul takes them as b_q",
  ),
  "two dtypes": (
    lambda: matmul(A, B.astype(jnp.float32)),
    r"a is bfloat16 and b is float32.*a\.astype\(float32\)",
  ),
  "inner sizes differ": (lambda: matmul(A, B[:3]), r"a \(6\) must equal .* of b \(3\)"),
  "b is transposed": (lambda: matmul(A, B.T), r"b\.swapaxes\(-1, -2\) would fit"),
  "batches differ": (
    lambda: matmul(jnp.stack([A, A]), jnp.stack([B, B, B])),
    r"batch dimensions \(2,\) and b \(3,\)",
  ),
  "bias is 2-d": (lambda: matmul(A, B, bias=jnp.ones((1, 5))), r"bias has shape \(1, 5\).*\(5,\)"),
  "bias of rows": (lambda: matmul(A, B, bias=jnp.ones(4)), r"bias has shape \(4,\).*\(5,\)"),
  "integer bias": (lambda: matmul(A, B, bias=jnp.ones(5, int)), r"bias is int32"),
  "activation": (lambda: matmul(A, B, activation="silo"), r"'silo'.*did you mean 'silu'"),
  "out_dtype": (lambda: matmul(A, B, out_dtype="int8"), r"out_dtype='int8': expected one of"),
  "no dtype": (lambda: matmul(A, B, out_dtype="bf17"), r"out_dtype='bf17': expected one of"),
  "a short name": (lambda: matmul(A, B, out_dtype="bf16"), "did you mean 'bfloat16'"),
  "nothing": (lambda: matmul(None, B), "^a is None: expected an array$"),
  "intermediate": (
    lambda: matmul(A, B, intermediate_dtype=jnp.int32),
    r"intermediate_dtype='int32'",
  ),
  "precision": (lambda: matmul(A, B, precision="best"), r"precision='best'.*'highest'"),
  "config": (lambda: matmul(A, B, config=(64, 64, 32)), r"config is a tuple.*MatmulConfig\(128"),
  "implementation": (
    lambda: matmul(A, B, implementation="trition"),
    r"'trition'.*'mosaic_gpu_interpret'; did you mean 'triton'",
  ),
  "block of 0": (lambda: MatmulConfig(0, 64, 32), r"MatmulConfig\.block_m=0: .*at least 1"),
  "block of 1.5": (lambda: MatmulConfig(64, 1.5, 32), r"MatmulConfig\.block_n=1\.5"),
  "no stages": (lambda: MatmulConfig(64, 64, 32, 0), r"MatmulConfig\.num_stages=0"),
  "float64 without x64": (
    lambda: matmul(A, B, out_dtype="float64"),
    r"out_dtype='float64': needs jax_enable_x64",
  ),
  "a list of implementations": (
    lambda: matmul(A, B, implementation=["xla"]),
    r"implementation=\['xla'\]: expected None or one of",
  ),
  "batch_invariant": (lambda: matmul(A, B, batch_invariant="yes"), r"batch_invariant='yes'"),
  "a foreign byte order": (
    lambda: matmul(np.ones((4, 6), ">f4"), np.ones((6, 5), np.float32)),
    r"a has the byte order of another machine.*a\.astype\('float32'\)",
  ),
  "a masked array": (
    lambda: matmul(np.ma.masked_array(np.ones((4, 6), np.float32)), B),
    r"a is a masked array.*a\.filled\(0\)",
  ),
  "an array of strings": (lambda: matmul(np.full((4, 6), "x"), B), r"a is str.*: expected one of"),
  "only a shape": (
    lambda: matmul(jax.ShapeDtypeStruct((4, 6), jnp.bfloat16), B),
    r"a is a ShapeDtypeStruct.*explain takes shapes",
  ),
  "precisions in a tree": (
    lambda: matmul(A, B, precision=(("high", "high"), "high")),
    r"precision=\('high', 'high'\)",
  ),
  "accumulator": (
    lambda: MatmulConfig(64, 64, 32, accumulator="smem"),
    r"accumulator='smem': expected 'registers' or 'shared'",
  ),
}


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_a_wrong_argument_is_a_value_error_that_says_what_would_work(case):
  call, message = WRONG[case]
  with pytest.raises(ValueError, match=message):
    call()


def test_an_unknown_keyword_is_a_type_error():
  with pytest.raises(TypeError, match="activaton"):
    matmul(A, B, activaton="silu")


def test_a_tile_that_does_not_fit_names_the_largest_that_does():
  config = MatmulConfig(128, 128, 2048, 4)
  with pytest.raises(
    hw_profiles.InfeasibleTileError, match=r"block_k=2048: shared memory needs .* that fits is"
  ):
    matmul(A, B, config=config, implementation="mosaic_gpu_interpret")


@pytest.mark.parametrize(
  ("name", "a", "options", "reason"),
  [
    ("mosaic_gpu_interpret", A.astype(jnp.float32), {}, "TF32"),
    ("interpret", A, {"config": MatmulConfig(16, 16, 16, accumulator="shared")}, "what-if"),
    ("xla", A, {"batch_invariant": True}, "batch_invariant"),
    ("xla", A, {"config": MatmulConfig(64, 64, 32)}, "XLA takes no tile"),
  ],
)
def test_what_an_implementation_lacks_is_not_implemented_and_names_those_that_can(
  name, a, options, reason
):
  with pytest.raises(NotImplementedError, match=rf"{name}.*{reason}.*These can: "):
    matmul(a, B.astype(a.dtype), implementation=name, **options)


def test_float64_is_too_wide_for_the_kernels():
  with jax.enable_x64(True), pytest.raises(NotImplementedError, match="float64 is wider"):
    matmul(A, B, out_dtype="float64", implementation="interpret")


def test_a_pair_of_precisions_is_taken():
  matmul(A.astype(jnp.float32), B.astype(jnp.float32), precision=("highest", "highest"))


@pytest.mark.parametrize(
  ("config", "lacks"),
  [
    (MatmulConfig(128, 128, 2048, 4), "block_k=2048: shared memory needs"),
    (MatmulConfig(24, 24, 24), "block_m=24: "),
  ],
  ids=str,
)
def test_a_tile_that_fits_no_kernel_is_infeasible_and_says_what_each_of_them_lacks(config, lacks):
  told = rf"^mosaic_gpu: {lacks}.* fits.*; triton: {lacks}.* fits"
  with (
    device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132),
    pytest.raises(hw_profiles.InfeasibleTileError, match=told) as raised,
  ):
    matmul(A, B, config=config)
  assert "interpret" not in str(raised.value)


def test_float32_with_a_tile_is_still_a_missing_feature_of_the_hopper_kernel():
  a, b = A.astype(jnp.float32), B.astype(jnp.float32)
  with (
    device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132),
    pytest.raises(NotImplementedError, match=r"TF32.*These can: .*triton"),
  ):
    matmul(a, b, config=MatmulConfig(64, 64, 32, 2), implementation="mosaic_gpu")


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="about a CPU")
@pytest.mark.parametrize(
  "options", [{"batch_invariant": True}, {"config": MatmulConfig(64, 64, 32)}]
)
def test_a_cpu_names_the_interpreter_where_only_that_can(options):
  with pytest.raises(NotImplementedError, match=r"asked for by name \(.*\): interpret"):
    matmul(A, B, **options)
