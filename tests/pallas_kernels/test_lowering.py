"""Tiles that the planner offers lower for CUDA on a machine without a GPU.

With a bias and silu one of each size of an epilogue; without, every one in `test_searched_tiles`.
"""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from search_cases import searched

import hw_profiles
from pallas_kernels import MatmulConfig, device, gated_matmul, matmul, quantized_matmul
from pallas_kernels.gemm import hopper
from pallas_kernels.tuning import candidates

H200 = {"device_kind": "NVIDIA H200", "num_cores": 132}
H200_SHARED_BYTES = hw_profiles.get_profile("h200_sxm").max_shared_bytes_per_block
FFN = hw_profiles.MatmulProblem(1024, 4096, 12288)


def lower(m: int, k: int, n: int, dtype: str = "bfloat16", **options) -> str:
  """StableHLO of a matmul lowered for CUDA; bias and silu are there to be lowered too."""
  a = jax.ShapeDtypeStruct((m, k), jnp.dtype(dtype))
  b = jax.ShapeDtypeStruct((k, n), jnp.dtype(dtype))
  bias = jax.ShapeDtypeStruct((n,), jnp.dtype(dtype))

  def call(a, b, bias):
    return matmul(a, b, bias=bias, activation="silu", **options)

  with device.abstract_gpu(**H200):
    return jax.jit(call).trace(a, b, bias).lower(lowering_platforms=("cuda",)).as_text()


def _one_of_each_shape(schedule: str) -> list[MatmulConfig]:
  """The candidates' block shapes, each once, with the most stages that fit."""
  by_shape = {}
  for config in hw_profiles.matmul_candidates("h200_sxm", FFN, schedule=schedule):
    by_shape[config.block_m, config.block_n, config.block_k] = config
  return list(by_shape.values())


def _one_of_each_side(
  problem: hw_profiles.MatmulProblem, schedule: str = "warp_specialized"
) -> list[MatmulConfig]:
  by_sides = {}
  for config in hw_profiles.matmul_candidates("h200_sxm", problem, schedule=schedule):
    by_sides[config.block_m, config.block_n] = config
  return list(by_sides.values())


# the first of the planner's tiles with K in parts: two rows of tiles, one of few rows
SPLIT = [
  next(
    plan.config
    for plan in hw_profiles.rank(problem, "h200_sxm", top=None, schedule="warp_specialized")
    if plan.config.split_k > 1
  )
  for problem in (
    hw_profiles.MatmulProblem(256, 12288, 4096),
    hw_profiles.MatmulProblem(64, 12288, 4096),
    hw_profiles.MatmulProblem(512, 8192, 1024),
  )
]


@pytest.mark.parametrize(
  "config", [*_one_of_each_shape("warp_specialized"), *SPLIT], ids=MatmulConfig.describe
)
def test_the_planner_counts_the_shared_memory_that_the_kernel_allocates(config, monkeypatch):
  allocated = []
  build = hopper.plgpu.kernel

  def recording(*args, **options):
    for scratch in jax.tree.leaves(options["scratch_types"]):
      if hasattr(scratch, "num_barriers"):
        allocated.append(8 * int(np.prod(scratch.num_barriers)))
      else:
        size = math.prod(scratch.shape) * jnp.dtype(scratch.dtype).itemsize
        # the next buffer begins at a multiple of 1 KiB
        allocated.append(-(-size // 1024) * 1024)
    return build(*args, **options)

  monkeypatch.setattr(hopper.plgpu, "kernel", recording)
  for out_dtype, bias in (("bfloat16", False), ("float32", False), ("bfloat16", True)):
    allocated.clear()
    a, b = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((512, 2048), (2048, 512)))
    vector = jax.ShapeDtypeStruct((512,), jnp.float32)
    call = functools.partial(
      matmul, config=config, out_dtype=out_dtype, implementation="mosaic_gpu"
    )
    needed = hw_profiles.warp_specialized_shared_bytes(
      config, in_dtype="bfloat16", out_dtype=out_dtype, bias=bias
    )
    if needed > H200_SHARED_BYTES:
      continue
    with device.abstract_gpu(**H200):
      jax.jit(call).trace(a, b, bias=vector if bias else None)
    assert sum(allocated) == needed


@pytest.mark.parametrize("block_n", [80, 96])
def test_a_default_epilogue_never_makes_a_legal_tile_infeasible(block_n):
  config = MatmulConfig(128, block_n, 32, 3)
  assert "mosaic_gpu" in lower(256, 128, 256, config=config, implementation="mosaic_gpu")


def test_registers_move_from_the_memory_warpgroup_to_the_consumers():
  text = lower(512, 512, 512, config=MatmulConfig(128, 256, 64, 4), implementation="mosaic_gpu")
  if "setmaxnreg" not in text:
    # jax 0.10 keeps an operation whose operands the module's text does not show
    assert "setmaxregister" in text
    return
  assert "setmaxnreg.dec.sync.aligned.u32 40;" in text
  assert "setmaxnreg.inc.sync.aligned.u32 232;" in text


@pytest.mark.parametrize("config", _one_of_each_side(FFN), ids=MatmulConfig.describe)
def test_candidates_of_the_hopper_kernel_lower_with_an_epilogue(config):
  text = lower(1024, 4096, 12288, config=config, implementation="mosaic_gpu")
  assert "mosaic_gpu" in text


def _beside(*tiles: MatmulConfig) -> list[MatmulConfig]:
  """What a search measures beside these tiles, and not among the planner's, each once."""
  found = [
    plan.config
    for tile in tiles
    for plan in candidates.beside(FFN, "h200_sxm", schedule="warp_specialized", config=tile)
  ]
  planned = {dataclasses.replace(x, group_m=1) for _, x in searched("warp_specialized")}
  return [x for x in dict.fromkeys(found) if dataclasses.replace(x, group_m=1) not in planned]


@pytest.mark.parametrize(
  "config",
  _beside(MatmulConfig(128, 256, 64, 4), MatmulConfig(128, 128, 64, 6, split_k=2)),
  ids=MatmulConfig.describe,
)
def test_what_a_search_tries_beside_a_tile_lowers(config):
  text = lower(1024, 4096, 12288, config=config, implementation="mosaic_gpu")
  assert "mosaic_gpu" in text


def test_candidates_of_int8_lower():
  # those of float8, and of int8 what float8 has no room for, in `test_searched_codes`
  problem = hw_profiles.MatmulProblem(1024, 4096, 12288, "int8", out_dtype="bfloat16", scaled=True)
  sides = _one_of_each_side(problem)
  assert len(sides) >= 5
  for config in sides:
    shapes = (
      ((1024, 4096), "int8"),
      ((4096, 12288), "int8"),
      ((1024, 1), "float32"),
      ((12288,), "float32"),
    )
    call = functools.partial(
      quantized_matmul, out_dtype="bfloat16", config=config, implementation="mosaic_gpu"
    )
    assert "mosaic_gpu" in _lowered(call, *shapes)


def test_candidates_of_two_products_of_rows_that_no_search_has_lower():
  problem = hw_profiles.MatmulProblem(192, 4096, 12288, products=2, activation="silu")
  sides = _one_of_each_side(problem)
  assert len(sides) >= 4
  for config in sides:
    call = functools.partial(gated_matmul, config=config, implementation="mosaic_gpu")
    weights = (4096, 12288), "bfloat16"
    assert "mosaic_gpu" in _lowered(call, ((192, 4096), "bfloat16"), weights, weights)


def _lowered(call, *shapes) -> str:
  """StableHLO of a call on arrays of these shapes and dtypes, lowered for CUDA."""
  arrays = (jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in shapes)
  with device.abstract_gpu(**H200):
    return jax.jit(call).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("config", SPLIT, ids=MatmulConfig.describe)
def test_split_tiles_lower_to_the_kernel_and_a_merge(config):
  text = lower(256, 12288, 4096, config=config, implementation="mosaic_gpu")
  assert "mosaic_gpu" in text
  assert f"tensor<{config.split_k}x256x4096xf32>" in text


@pytest.mark.parametrize("config", _one_of_each_side(FFN, "multistage"), ids=MatmulConfig.describe)
def test_candidates_of_the_portable_kernel_lower_with_an_epilogue(config):
  text = lower(1024, 4096, 12288, config=config, implementation="triton")
  assert "triton" in text


@pytest.mark.parametrize("name", ["mosaic_gpu", "triton"])
@pytest.mark.parametrize(
  ("shape", "dtype"),
  [
    ((1, 1, 1), "bfloat16"),
    ((1, 4096, 131), "float16"),
    ((113, 1023, 203), "bfloat16"),
    ((113, 1023, 203), "float16"),
    ((7239, 512, 512), "bfloat16"),
    ((333, 96, 129), "float16"),
  ],
  ids=str,
)
def test_ragged_shapes_lower_with_the_planned_tile(name, shape, dtype):
  assert name.split("_")[0] in lower(*shape, dtype=dtype, implementation=name)


@pytest.mark.parametrize("out_dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("intermediate_dtype", [None, "float32"])
def test_every_epilogue_dtype_lowers(out_dtype, intermediate_dtype):
  for name in ("mosaic_gpu", "triton"):
    lower(
      256, 128, 256, implementation=name, out_dtype=out_dtype, intermediate_dtype=intermediate_dtype
    )


def test_float32_lowers_through_triton_as_ieee_products():
  assert "triton" in lower(128, 128, 128, dtype="float32", implementation="triton")


@pytest.mark.parametrize("name", ["mosaic_gpu", "triton"])
def test_the_kernels_lower_with_x64_enabled(name):
  # on a CPU only this: the Mosaic interpreter's threads do not see enable_x64
  with jax.enable_x64(True):
    lower(256, 128, 256, implementation=name)


def test_gradients_lower_through_the_kernel():
  a, b = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((256, 128), (128, 192)))

  def loss(a, b):
    return matmul(a, b, activation="silu", implementation="mosaic_gpu").astype(jnp.float32).sum()

  with device.abstract_gpu(**H200):
    lowered = jax.jit(jax.grad(loss, (0, 1))).trace(a, b).lower(lowering_platforms=("cuda",))
  # the sum before the activation, dA and dB; the forward value itself is not needed
  assert len(re.findall(r"custom_call @mosaic_gpu", lowered.as_text())) >= 3


def test_the_gradient_of_a_call_with_a_tile_runs_where_the_call_does():
  # the sum is stored as float32 on the way to the gradient, and rows of
  # epilogue_block_n were chosen for 16 bits
  a = jax.ShapeDtypeStruct((512, 256), jnp.bfloat16)
  b = jax.ShapeDtypeStruct((256, 512), jnp.bfloat16)
  config = MatmulConfig(128, 128, 64, 4, epilogue_block_n=64)

  def loss(a, b):
    out = matmul(
      a,
      b,
      activation="silu",
      intermediate_dtype="float32",
      config=config,
      implementation="mosaic_gpu",
    )
    return out.astype(jnp.float32).sum()

  with device.abstract_gpu(**H200):
    jax.jit(jax.grad(loss, (0, 1))).trace(a, b).lower(lowering_platforms=("cuda",))


def test_export_for_cuda_from_a_cpu():
  a, b = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((256, 128), (128, 192)))
  call = functools.partial(matmul, implementation="mosaic_gpu")
  with device.abstract_gpu(**H200):
    exported = jax.export.export(jax.jit(call), platforms=["cuda"])(a, b)
  assert exported.platforms == ("cuda",)
  assert len(exported.serialize()) > 1000


def test_a_tile_too_large_is_caught_before_it_is_lowered():
  with pytest.raises(hw_profiles.InfeasibleTileError, match="largest num_stages that fits is"):
    lower(1024, 4096, 12288, config=MatmulConfig(128, 256, 64, 5), implementation="mosaic_gpu")
