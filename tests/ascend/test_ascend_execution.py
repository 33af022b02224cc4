"""Kernels on their way to Ascend, executed and judged; skipped without the `[ascend]` extra."""

import importlib.util
import re

import ml_dtypes
import numpy as np
import pytest

import reference
from hw_profiles import AttentionConfig, MatmulConfig, RowConfig
from hw_profiles.ascend import CompileOptions, TritonProgram, get_target
from hw_profiles.ascend.lowered import planned_program
from pallas_kernels.lowering import triton_ir
from pallas_kernels.lowering.execution import (
  DeadlockError,
  OutOfBoundsError,
  run_linalg,
  run_module,
  run_planned,
)

pytestmark = [pytest.mark.lowering, pytest.mark.compilers]

_TARGETS = ("ascend_910b3", "ascend_950pr")
_BF16 = np.dtype(ml_dtypes.bfloat16)


def _normal(seed: int, *shape: int, dtype: np.dtype = _BF16) -> np.ndarray:
  return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _matmul(run, *, dtype=_BF16, target="ascend_910b3", sizes=(50, 40, 72), **options):
  """A ragged matmul run by `run`, and its operands."""
  m, k, n = sizes
  arrays = [_normal(0, m, k, dtype=dtype), _normal(1, k, n, dtype=dtype)]
  if options.get("bias"):
    arrays.append(_normal(2, n, dtype=dtype))
  out = np.full((m, n), np.nan, dtype)
  config = MatmulConfig(32, 32, 16)
  (kernel,) = triton_ir("matmul", {"m": m, "k": k, "n": n}, dtype.name, config, **options)
  run(TritonProgram(kernel.ir), target, [*arrays, out], kernel.grid)
  return out, arrays


def _check_matmul(run, **options) -> None:
  options = {"dtype": _BF16, **options}
  out, (a, b, *bias) = _matmul(run, **options)
  reference.assert_matmul_close(
    out,
    a,
    b,
    bias=bias[0] if bias else None,
    activation=options.get("activation"),
    accumulation_chunk=16,
  )


@pytest.mark.parametrize("target", _TARGETS)
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), _BF16, np.dtype(np.float16)])
def test_planned_ragged_matmul(dtype, target):
  _check_matmul(run_planned, dtype=dtype, target=target)


@pytest.mark.parametrize("target", _TARGETS)
def test_planned_epilogue_crosses_from_cube_to_vector_cores(target):
  _check_matmul(run_planned, target=target, activation="silu", bias=True)


@pytest.mark.parametrize("options", [{}, {"activation": "silu", "bias": True}])
def test_linalg_stage(options):
  if importlib.util.find_spec("llvmlite") is None:
    pytest.skip("llvmlite is not installed")
  _check_matmul(run_linalg, **options)


@pytest.mark.parametrize("sub_block", [False, True])
@pytest.mark.parametrize("multi_buffer", [False, True])
def test_double_buffers_and_sub_blocks_change_no_bit(multi_buffer, sub_block):
  def run(*arguments):
    options = CompileOptions(multi_buffer=multi_buffer, sub_block=sub_block)
    run_planned(*arguments, options=options)

  out, _ = _matmul(run, activation="silu")
  usual, _ = _matmul(run_planned, activation="silu")
  np.testing.assert_array_equal(out, usual)


@pytest.mark.parametrize("target", _TARGETS)
def test_planned_gated_matmul(target):
  x, gate, up = _normal(0, 40, 48), _normal(1, 48, 64), _normal(2, 48, 64)
  out = np.full((40, 64), np.nan, _BF16)
  sizes = {"m": 40, "k": 48, "n": 64}
  (kernel,) = triton_ir("gated_matmul", sizes, "bfloat16", MatmulConfig(32, 32, 16))
  run_planned(TritonProgram(kernel.ir), target, [x, gate, up, out], kernel.grid)
  check = reference.check_gated_matmul(out, x, gate, up, accumulation_chunk=16)
  assert check.passed


@pytest.mark.parametrize("target", _TARGETS)
def test_planned_swiglu(target):
  gate, up = _normal(0, 7, 100), _normal(1, 7, 100)
  out = np.full((7, 100), np.nan, _BF16)
  (kernel,) = triton_ir("swiglu", {"rows": 7, "columns": 100}, "bfloat16", RowConfig(2, 128))
  run_planned(TritonProgram(kernel.ir), target, [gate, up, out], kernel.grid)
  reference.assert_swiglu_close(out, gate, up)


@pytest.mark.parametrize("target", _TARGETS)
def test_planned_row_codes(target):
  x = _normal(0, 6, 256)
  x[2] = 0
  codes, scale = np.zeros((6, 256), np.int8), np.zeros((6, 1), np.float32)
  (kernel,) = triton_ir("quantize_rows", {"rows": 6, "columns": 256}, "bfloat16", RowConfig(4, 64))
  run_planned(TritonProgram(kernel.ir), target, [x, codes, scale], kernel.grid)
  reference.assert_quantize_rows_close(codes, scale, x)


@pytest.mark.parametrize("target", _TARGETS)
def test_planned_swiglu_codes(target):
  gate, up = _normal(0, 6, 256), _normal(1, 6, 256)
  gate[2] = 0
  codes, scale = np.zeros((6, 256), np.int8), np.zeros((6, 1), np.float32)
  sizes = {"rows": 6, "columns": 256}
  (kernel,) = triton_ir("swiglu_quantize", sizes, "bfloat16", RowConfig(4, 64))
  run_planned(TritonProgram(kernel.ir), target, [gate, up, codes, scale], kernel.grid)
  reference.assert_swiglu_quantize_close(codes, scale, gate, up)


@pytest.mark.parametrize("target", _TARGETS)
@pytest.mark.parametrize("block_cols", [256, 64])
def test_planned_rms_norm(block_cols, target):
  x, weight = _normal(0, 6, 200), _normal(1, 200)
  out = np.full((6, 200), np.nan, _BF16)
  config = RowConfig(4, block_cols)
  (kernel,) = triton_ir("rms_norm", {"rows": 6, "columns": 200}, "bfloat16", config)
  run_planned(TritonProgram(kernel.ir), target, [x, weight, out], kernel.grid)
  reference.assert_rms_norm_close(out, x, weight)


@pytest.mark.parametrize("target", _TARGETS)
def test_planned_transpose(target):
  x = _normal(0, 24, 40)
  out = np.zeros((40, 24), np.int16)
  (kernel,) = triton_ir("transpose", {"rows": 24, "columns": 40}, "bfloat16", RowConfig(16, 16))
  run_planned(TritonProgram(kernel.ir), target, [x.view(np.int16), out], kernel.grid)
  reference.assert_transpose_equal(out.view(_BF16), x)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("target", _TARGETS)
def test_planned_attention(target, is_causal):
  seq_q, seq_kv = (70, 70) if is_causal else (50, 100)
  query, key, value = (
    _normal(seed, 1, length, heads, 64)
    for seed, (length, heads) in enumerate([(seq_q, 2), (seq_kv, 1), (seq_kv, 1)])
  )
  out, residual = np.zeros((1, seq_q, 2, 64), _BF16), np.zeros((1, 2, seq_q), np.float32)
  sizes = {"batch": 1, "seq_q": seq_q, "seq_kv": seq_kv, "heads": 2, "kv_heads": 1, "head_dim": 64}
  config = AttentionConfig(32, 32)
  (kernel,) = triton_ir("flash_attention", sizes, "bfloat16", config, is_causal=is_causal)
  run_planned(TritonProgram(kernel.ir), target, [query, key, value, out, residual], kernel.grid)
  reference.assert_flash_attention_close(
    out,
    query,
    key,
    value,
    residual=residual.transpose(0, 2, 1),
    is_causal=is_causal,
    p_dtype=_BF16,
    block_kv=32,
  )


# --- injected faults


@pytest.fixture(scope="module")
def planned_matmul():
  """A double-buffered matmul's planned text, its operands and grid."""
  (kernel,) = triton_ir("matmul", {"m": 32, "k": 64, "n": 32}, "bfloat16", MatmulConfig(32, 32, 16))
  text = planned_program(TritonProgram(kernel.ir), "ascend_910b3")
  return text, (_normal(0, 32, 64), _normal(1, 64, 32)), kernel.grid


def _run_text(text: str, planned) -> np.ndarray:
  _, operands, grid = planned
  out = np.zeros((32, 32), _BF16)
  run_module(text, get_target("ascend_910b3"), [*operands, out], grid)
  return out


def _addresses(text: str) -> list[int]:
  """Values of the constants that are addresses of buffers in L1."""
  constants = dict(re.findall(r"(%\w+) = \"arith\.constant\"\(\) <{value = (\d+) : i64}>", text))
  used = re.findall(r"pointer_cast\"\((%\w+)\).*address_space<cbuf>", text)
  return sorted({int(constants[name]) for name in used})


def _moved(text: str, old: int, new: int) -> str:
  assert f"value = {old} : i64" in text
  return text.replace(f"value = {old} : i64", f"value = {new} : i64")


def test_planned_text_runs_as_it_is(planned_matmul):
  text, (a, b), _ = planned_matmul
  reference.assert_matmul_close(_run_text(text, planned_matmul), a, b, accumulation_chunk=16)


def test_address_out_of_range_is_caught(planned_matmul):
  text = planned_matmul[0]
  beyond = _moved(text, _addresses(text)[-1], get_target("ascend_910b3").l1_bytes - 32)
  with pytest.raises(OutOfBoundsError, match="L1: a buffer"):
    _run_text(beyond, planned_matmul)


def test_live_buffers_that_overlap_give_wrong_results(planned_matmul):
  text, (a, b), _ = planned_matmul
  first, second, *_ = _addresses(text)
  out = _run_text(_moved(text, second, first), planned_matmul)
  assert not reference.check_matmul(out, a, b, accumulation_chunk=16).passed


def test_array_that_is_too_small_is_caught(planned_matmul):
  text, (a, b), grid = planned_matmul
  out = np.zeros((31, 32), _BF16)
  with pytest.raises(OutOfBoundsError, match="array 2: elements 0 to 1023"):
    run_module(text, get_target("ascend_910b3"), [a, b, out], grid)


@pytest.mark.parametrize("target", _TARGETS)
def test_missing_flag_is_a_deadlock(target):
  """Whichever of the flags between cube and vector cores it is."""
  sizes = {"m": 32, "k": 32, "n": 32}
  (kernel,) = triton_ir("matmul", sizes, "bfloat16", MatmulConfig(32, 32, 16), activation="silu")
  text = planned_program(TritonProgram(kernel.ir), target)
  flags = list(re.finditer(r'^\s*"hivm\.hir\.sync_block_set".*$', text, flags=re.M))
  assert flags
  for flag in flags:
    silent = text[: flag.start()] + text[flag.end() :]
    arrays = [_normal(0, 32, 32), _normal(1, 32, 32), np.zeros((32, 32), _BF16)]
    with pytest.raises(DeadlockError, match="wait for flags that nobody sets"):
      run_module(silent, get_target(target), arrays, kernel.grid)


def test_number_of_arrays_is_checked(planned_matmul):
  text, (a, b), grid = planned_matmul
  with pytest.raises(ValueError, match=r"arrays: got 2, the kernel takes"):
    run_module(text, get_target("ascend_910b3"), [a, b], grid)
