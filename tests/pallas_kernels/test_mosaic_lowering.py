"""What the Hopper kernels lower to, read without a GPU."""

import math

import jax
import pytest

import hw_profiles
from hw_profiles import AttentionConfig, MatmulConfig, RowConfig
from pallas_kernels import compat
from pallas_kernels.lowering import OPS, jax_private, mosaic_gpu_ir, summarise
from pallas_kernels.lowering.mosaic import MOSAIC_OPS

_SIZES = {"m": 1000, "k": 512, "n": 768}


def _summary(config, op="matmul", sizes=_SIZES, **options):
  (module,) = mosaic_gpu_ir(op, sizes, "bfloat16", config, keep_stages=False, **options)
  return summarise(module)


@pytest.mark.parametrize(
  ("config", "options"),
  [
    (MatmulConfig(128, 256, 64, 4), {}),
    (MatmulConfig(64, 64, 128, 2), {"out_dtype": "float32"}),
    (MatmulConfig(128, 128, 64, 3, cluster_m=2), {"bias": True}),
  ],
)
def test_mosaic_allocates_what_the_planner_counts(config, options):
  found = _summary(config, **options)
  problem = hw_profiles.MatmulProblem(**_SIZES, **options)
  plan = hw_profiles.plan(problem, config, "h200_sxm", schedule="warp_specialized")
  assert found.shared_bytes == plan.needed_bytes("shared")
  # a full and an empty one a stage; those of a bias are its ring's of two slots
  assert found.barriers == 2 * config.num_stages + (2 * 2 if options.get("bias") else 0)
  assert found.cluster == (config.cluster_m * config.cluster_n, 1, 1)


def test_wgmmas_cover_a_step_of_the_tile():
  config = MatmulConfig(128, 256, 64, 4)
  found = _summary(config)
  # one step of a consumer's 64 rows: 64 columns of K, 16 a wgmma
  assert dict(found.wgmmas) == {"m64n256k16": 4}
  # B, and A whole or, of the last tile, the 104 rows that exist
  assert found.tma_loads == 3
  assert _summary(config, sizes={**_SIZES, "m": 1024}).tma_loads == 2
  assert found.tma_stores >= 1
  assert found.block == (3 * 128, 1, 1)
  assert math.prod(found.grid) == math.ceil(1000 / 128) * 768 // 256


def test_an_operand_and_a_product_more():
  gated = _summary(MatmulConfig(128, 128, 64, 2), "gated_matmul")
  assert dict(gated.wgmmas) == {"m64n128k16": 8}
  assert gated.tma_loads == 4


@pytest.mark.skipif(not compat.CARRIES_ARRAYS, reason="refused on this JAX version: tested below")
def test_attention_has_two_products():
  sizes = {"batch": 1, "seq_q": 256, "seq_kv": 256, "heads": 2, "kv_heads": 1, "head_dim": 64}
  found = _summary(AttentionConfig(128, 128, 2), "flash_attention", sizes)
  # Q·Kᵀ over 64 of the head, P·V over 128 keys, 16 a wgmma
  assert found.wgmmas["m64n128k16"] >= 4
  assert found.wgmmas["m64n64k16"] >= 8
  assert found.tma_loads >= 3


@pytest.mark.skipif(compat.CARRIES_ARRAYS, reason="it lowers on this JAX version: tested above")
def test_attention_of_an_older_jax_is_refused_with_the_reason():
  sizes = {"batch": 1, "seq_q": 256, "seq_kv": 256, "heads": 2, "kv_heads": 1, "head_dim": 64}
  with pytest.raises(NotImplementedError, match=r"jax 0\.10"):
    _summary(AttentionConfig(128, 128, 2), "flash_attention", sizes)


def test_every_stage_is_kept_where_asked():
  (module,) = mosaic_gpu_ir("matmul", _SIZES, "bfloat16", MatmulConfig(64, 64, 64, 2))
  assert list(module.stages) == ["mosaic_gpu", "layouts", "lowered"]
  assert "mosaic_gpu.wgmma" in module.stages["mosaic_gpu"]
  assert "layout" in module.stages["layouts"]
  assert "wgmma.mma_async" in module.stages["lowered"]
  assert "mosaic_gpu.wgmma" not in module.stages["lowered"]


def test_layout_inference_is_as_before_afterwards():
  from jax.experimental.mosaic import gpu
  from jax.experimental.mosaic.gpu import layout_inference

  before = gpu.infer_layout, layout_inference.infer_layout
  with pytest.raises(NotImplementedError):
    mosaic_gpu_ir("matmul", _SIZES, "float32", MatmulConfig(64, 64, 64, 2))
  mosaic_gpu_ir("matmul", _SIZES, "bfloat16", MatmulConfig(64, 64, 64, 2))
  assert (gpu.infer_layout, layout_inference.infer_layout) == before


def test_tile_that_does_not_fit_says_what_does():
  with pytest.raises(hw_profiles.InfeasibleTileError, match="largest"):
    _summary(MatmulConfig(128, 256, 64, 8))


def test_ops_and_devices_without_a_hopper_kernel_are_named():
  assert set(MOSAIC_OPS) <= set(OPS)
  with pytest.raises(
    NotImplementedError, match="swiglu: no Hopper kernel that can be lowered here"
  ):
    mosaic_gpu_ir("swiglu", {"rows": 8, "columns": 64}, "bfloat16", RowConfig(1, 64))
  with pytest.raises(NotImplementedError, match=r"rtx_4090.*h200_sxm"):
    mosaic_gpu_ir("matmul", _SIZES, "bfloat16", MatmulConfig(64, 64, 64, 2), profile="rtx_4090")


def test_another_jax_is_named_with_what_is_supported(monkeypatch):
  monkeypatch.setattr(jax, "__version__", "9.9.9")
  with pytest.raises(NotImplementedError, match=r"0\.10 or 0\.11 or 0\.12.*this is jax 9\.9\.9"):
    jax_private.check_mosaic_jax()
