"""Kernels through Huawei's compilers; skipped where the `[ascend]` extra is not installed."""

import pathlib
import tempfile

import pytest

from hw_profiles import AttentionConfig, MatmulConfig, RowConfig, list_profiles
from hw_profiles.ascend import (
  CompileOptions,
  CompilerFailedError,
  UnsupportedIrError,
  compile_triton,
  get_target,
  l0_slices,
)
from pallas_kernels.lowering import ascend_plan, triton_ir

pytestmark = [pytest.mark.lowering, pytest.mark.compilers]

_SIZES = {"m": 256, "k": 512, "n": 256}
_ASCEND = [name for name in list_profiles() if name.startswith("ascend_")]


def _matmul(target: str, *blocks: int, dtype: str = "bfloat16", **options: object):
  return ascend_plan("matmul", _SIZES, dtype, MatmulConfig(*blocks), target, **options)


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> pathlib.Path:
  """Where temporary files go for the test."""
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  return tmp_path


@pytest.mark.parametrize("target", _ASCEND)
def test_matmul_on_every_target(target):
  plan = _matmul(target, 64, 32, 64)
  assert plan.fits
  assert plan.target == get_target(target).name
  assert plan.double_buffering == "kept"
  assert plan.role_bytes("A") == 2 * 64 * 64 * 2
  assert plan.role_bytes("B") == 2 * 64 * 32 * 2
  assert plan.role_bytes("accumulator") == 64 * 32 * 4
  for space in ("UB", "L1", "L0C"):
    assert plan.peak_bytes(space) <= get_target(target).capacity_bytes(space)


def test_matmul_of_a_910_needs_no_vector_core():
  assert _matmul("ascend_910b3", 64, 32, 64).core == "AIC"


def test_950_rounds_16_bit_results_on_its_vector_cores():
  assert _matmul("ascend_950pr", 64, 32, 64).core == "mixed"
  assert _matmul("ascend_950pr", 64, 32, 64, dtype="float32").core == "AIC"


def test_one_stage_asks_for_no_double_buffering():
  plan = _matmul("ascend_910b3", 64, 32, 64, 1)
  assert plan.double_buffering == "not asked for"
  assert plan.role_bytes("A") == 64 * 64 * 2


def test_double_buffering_dropped_in_silence_is_seen():
  plan = ascend_plan(
    "matmul",
    {"m": 256, "k": 2048, "n": 512},
    "bfloat16",
    MatmulConfig(128, 256, 512),
    "ascend_910b3",
  )
  assert plan.fits
  assert plan.double_buffering == "dropped"
  assert "enable-auto-multi-buffer" in plan.given_up
  assert plan.role_bytes("A") == 128 * 512 * 2


@pytest.mark.parametrize(
  ("target", "blocks", "space", "needed_bytes"),
  [
    ("ascend_910b3", (256, 256, 64), "L0C", 256 * 256 * 4),
    ("ascend_950pr", (256, 256, 64), "UB", 256 * 256 * 4),
    ("ascend_950pr", (16, 512, 512), "L1", 2 * (16 + 512) * 512 * 2),
  ],
)
def test_overflow_with_what_was_wanted(target, blocks, space, needed_bytes):
  plan = ascend_plan(
    "matmul", {"m": 256, "k": 2048, "n": 512}, "bfloat16", MatmulConfig(*blocks), target
  )
  assert not plan.fits
  assert plan.overflow is not None
  assert plan.overflow.space == space
  assert plan.overflow.needed_bits == 8 * needed_bytes
  assert plan.overflow.available_bits == 8 * get_target(target).capacity_bytes(space)


def test_silu_hands_over_to_the_vector_cores():
  plan = _matmul("ascend_910b3", 64, 32, 64, activation="silu")
  assert plan.core == "mixed"
  assert plan.workspace_bytes_per_block >= 64 * 32 * 2
  cube, vector = plan.programs
  assert set(cube.flags_set) & set(vector.flags_awaited)


def test_gated_matmul_has_two_products_of_one_a():
  plan = ascend_plan(
    "gated_matmul", _SIZES, "bfloat16", MatmulConfig(64, 32, 64, 1), "ascend_910b3"
  )
  roles = {buffer.role for buffer in plan.buffers if buffer.role}
  assert roles == {"A", "B", "B 2", "accumulator", "accumulator 2"}


@pytest.mark.parametrize("target", ["ascend_910b3", "ascend_950pr"])
@pytest.mark.parametrize(
  ("op", "config"),
  [
    ("swiglu", RowConfig(2, 512)),
    ("swiglu_quantize", RowConfig(32, 64)),
    ("quantize_rows", RowConfig(32, 64)),
    ("rms_norm", RowConfig(2, 512)),
    ("rms_norm", RowConfig(2, 128)),
    ("transpose", RowConfig(32, 64)),
  ],
)
def test_row_wise_ops_run_on_vector_cores_alone(op, config, target):
  plan = ascend_plan(op, {"rows": 64, "columns": 512}, "bfloat16", config, target)
  assert plan.fits
  assert plan.core == "AIV"
  assert plan.peak_bytes("UB") > 0
  assert plan.peak_bytes("L1") == plan.peak_bytes("L0C") == 0


@pytest.mark.parametrize("target", ["ascend_910b3", "ascend_950pr"])
def test_attention_is_a_mixed_kernel_of_two_products(target):
  shapes = {"batch": 1, "seq_q": 128, "seq_kv": 256, "heads": 2, "kv_heads": 1, "head_dim": 64}
  plan = ascend_plan("flash_attention", shapes, "bfloat16", AttentionConfig(32, 64), target)
  assert plan.core == "mixed"
  products = {(one.rows, one.depth, one.columns) for one in plan.programs[0].products}
  assert {(32, 64, 64)} == products  # Q·Kᵀ and P·V: 32x64 by 64x64 both


@pytest.mark.timeout(120)
@pytest.mark.parametrize("target", ["ascend_910b3", "ascend_950pr"])
def test_causal_attention_has_a_plan(target):
  """Bounds of its walk with a dozen operations to a division kept the compiler busy for ever."""
  shapes = {"batch": 1, "seq_q": 256, "seq_kv": 256, "heads": 2, "kv_heads": 1, "head_dim": 64}
  plan = ascend_plan(
    "flash_attention", shapes, "bfloat16", AttentionConfig(64, 64), target, is_causal=True
  )
  assert plan.core == "mixed"
  # the walk of whole blocks, and of those that are cut, which has a branch for infinite values
  assert len(plan.programs[0].products) > 2


def test_ragged_sizes_need_what_whole_ones_need():
  ragged = ascend_plan(
    "matmul",
    {"m": 250, "k": 500, "n": 250},
    "bfloat16",
    MatmulConfig(64, 32, 64),
    "ascend_910b3",
  )
  whole = _matmul("ascend_910b3", 64, 32, 64)
  for role in ("A", "B", "accumulator"):
    assert ragged.role_bytes(role) == whole.role_bytes(role)


def test_plans_are_the_same_from_run_to_run():
  assert _matmul("ascend_910b3", 64, 32, 64) == _matmul("ascend_910b3", 64, 32, 64)


def test_l0_slices_are_our_own_and_fit():
  plan = _matmul("ascend_910b3", 256, 64, 512, 1)
  (slices,) = l0_slices(plan)
  # 256 rows: 64 KiB / (2 · 256 · 2 B) = 64 columns
  assert slices.depth == 64
  assert slices.l0a_bytes == slices.l0a_available_bytes
  assert slices.l0b_bytes == 2 * 64 * 64 * 2


def test_stages_can_be_kept_and_nothing_is_left_behind(temporary):
  plan = _matmul("ascend_910b3", 64, 32, 64, options=CompileOptions(keep_passes=True))
  assert {"triton", "simplified", "linalg", "hivm"} <= set(plan.stages)
  assert any("hivm-plan-memory" in stage for stage in plan.stages)
  assert "tt.dot" in plan.stages["simplified"]
  assert "linalg.matmul" in plan.stages["linalg"]
  assert list(temporary.iterdir()) == []


def test_text_that_is_no_triton_ir_is_reported_with_its_stages(temporary):
  with pytest.raises(CompilerFailedError) as caught:
    compile_triton("module { tt.func public @k() { nonsense } }", "ascend_910b3")
  assert caught.value.kind in ("rejected", "crashed")
  assert list(caught.value.stages) == ["triton"]
  assert list(temporary.iterdir()) == []


def test_function_without_a_rule_is_refused():
  (kernel,) = triton_ir("matmul", _SIZES, "bfloat16", MatmulConfig(64, 32, 64), activation="silu")
  with pytest.raises(UnsupportedIrError, match="__nv_erfcxf"):
    compile_triton(kernel.ir.replace("__nv_expf", "__nv_erfcxf"), "ascend_910b3")


def test_module_of_two_kernels_is_refused():
  with pytest.raises(UnsupportedIrError, match=r"one tt\.func, got 0"):
    compile_triton("module {}", "ascend_910b3")
