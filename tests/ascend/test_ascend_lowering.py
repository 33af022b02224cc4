"""Ops to Triton IR without a GPU and without the Ascend compilers."""

import re

import jax
import pytest

from hw_profiles import AttentionConfig, MatmulConfig, RowConfig
from hw_profiles.ascend import CompileOptions
from pallas_kernels.lowering import OPS, ascend_plan, jax_private, triton_ir
from pallas_kernels.lowering.ascend import with_stages

_MATMUL = {"m": 100, "k": 72, "n": 200}
_ROWS = {"rows": 24, "columns": 512}
_ATTENTION = {
  "batch": 1,
  "seq_q": 100,
  "seq_kv": 130,
  "heads": 2,
  "kv_heads": 1,
  "head_dim": 64,
}
CALLS = {
  "matmul": (_MATMUL, MatmulConfig(32, 64, 16)),
  "gated_matmul": (_MATMUL, MatmulConfig(32, 64, 16)),
  "swiglu": (_ROWS, RowConfig(4, 128)),
  "swiglu_quantize": (_ROWS, RowConfig(4, 512)),
  "quantize_rows": (_ROWS, RowConfig(4, 512)),
  "rms_norm": (_ROWS, RowConfig(4, 512)),
  "transpose": (_ROWS, RowConfig(16, 32)),
  "flash_attention": (_ATTENTION, AttentionConfig(32, 64)),
}


def test_every_op_is_called_here():
  assert set(CALLS) == set(OPS)


@pytest.mark.lowering
@pytest.mark.parametrize("op", CALLS)
def test_every_op_is_one_triton_kernel(op):
  shapes, config = CALLS[op]
  (kernel,) = triton_ir(op, shapes, "bfloat16", config)
  assert len(re.findall(rf"tt\.func public @{kernel.name}\(", kernel.ir)) == 1
  assert kernel.grid[0] > 1
  assert kernel.grid[1:] == (1, 1)


@pytest.mark.lowering
def test_grid_covers_the_problem():
  (kernel,) = triton_ir("matmul", _MATMUL, "float32", MatmulConfig(32, 64, 16))
  assert kernel.grid[0] == -(-100 // 32) * -(-200 // 64)


@pytest.mark.lowering
def test_epilogue_is_in_the_kernel():
  (plain,) = triton_ir("matmul", _MATMUL, "bfloat16", MatmulConfig(32, 64, 16))
  (silu,) = triton_ir("matmul", _MATMUL, "bfloat16", MatmulConfig(32, 64, 16), activation="silu")
  assert "__nv_expf" not in plain.ir
  assert "__nv_expf" in silu.ir


@pytest.mark.parametrize(
  ("arguments", "options", "message"),
  [
    (("matmull", _MATMUL, "bfloat16", MatmulConfig(32, 64, 16)), {}, "did you mean 'matmul'"),
    (("matmul", {"m": 1, "k": 1}, "bfloat16", MatmulConfig(32, 64, 16)), {}, "expected m, k, n"),
    (
      ("matmul", {**_MATMUL, "m": 0}, "bfloat16", MatmulConfig(32, 64, 16)),
      {},
      "m=0: expected an integer of at least 1",
    ),
    (("matmul", _MATMUL, "int8", MatmulConfig(32, 64, 16)), {}, "dtype='int8'"),
    (("matmul", _MATMUL, "bfloat16", RowConfig(32, 64)), {}, "expected a MatmulConfig"),
    (
      ("matmul", _MATMUL, "bfloat16", MatmulConfig(32, 96, 16)),
      {},
      "block_n=96: Triton takes powers of two; the nearest are 64 and 128",
    ),
    (("matmul", _MATMUL, "bfloat16", MatmulConfig(32, 64, 16)), {"relu": 1}, "no option 'relu'"),
    (
      ("matmul", _MATMUL, "bfloat16", MatmulConfig(32, 64, 16)),
      {"activation": "swish"},
      "activation='swish'",
    ),
    (
      ("flash_attention", {**_ATTENTION, "kv_heads": 3}, "bfloat16", AttentionConfig(32, 64)),
      {},
      "heads=2 is no multiple of kv_heads=3",
    ),
  ],
)
def test_wrong_arguments(arguments, options, message):
  with pytest.raises(ValueError, match=message):
    triton_ir(*arguments, **options)


def test_more_stages_than_the_compiler_has():
  with pytest.raises(ValueError, match="num_stages=3: Huawei's compiler keeps one copy or two"):
    with_stages(None, 3)


def test_stages_ask_for_double_buffering_unless_told():
  assert with_stages(None, 1).multi_buffer is False
  assert with_stages(None, 2).multi_buffer is True
  assert with_stages(CompileOptions(multi_buffer=False), 2).multi_buffer is False


def test_another_jax_is_named(monkeypatch):
  monkeypatch.setattr(jax, "__version__", "9.9.9")
  with pytest.raises(NotImplementedError, match=r"needs jax 0\.10\.2.*this is jax 9\.9\.9"):
    jax_private.check_jax()


@pytest.mark.lowering
def test_missing_compilers_are_an_answer(monkeypatch):
  from hw_profiles.ascend import CompilersNotInstalledError, install

  monkeypatch.setattr(install, "_find", lambda: (None, "triton-ascend is not installed"))
  with pytest.raises(CompilersNotInstalledError, match="triton-ascend is not installed"):
    ascend_plan("matmul", _MATMUL, "bfloat16", MatmulConfig(32, 64, 16), "ascend_910b3")


@pytest.mark.lowering
def test_op_of_several_kernels_is_refused_with_their_names():
  config = RowConfig(4, 128, num_splits=2)
  with pytest.raises(NotImplementedError, match=r"2 kernels .*rmsnorm"):
    ascend_plan("rms_norm", _ROWS, "bfloat16", config, "ascend_910b3")
