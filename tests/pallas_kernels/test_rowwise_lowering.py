"""Every row tile that the planner offers lowers for CUDA on a machine without a GPU."""

import functools

import jax
import jax.numpy as jnp
import pytest

import hw_profiles
from pallas_kernels import (
  RowConfig,
  device,
  quantize_rows,
  rms_norm,
  swiglu,
  swiglu_quantize,
  transpose,
)
from pallas_kernels.lowering import jax_private
from pallas_kernels.rowwise import rms_gradient_tiles
from pallas_kernels.rowwise.specs import SwigluGradient

H200 = {"device_kind": "NVIDIA H200", "num_cores": 132}


def kernels(call, *shapes, dtype: str = "bfloat16") -> int:
  """How many kernels a call lowers to."""
  operands = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in shapes]
  with device.abstract_gpu(**H200):
    lowered = jax.jit(call).trace(*operands).lower(lowering_platforms=("cuda",))
  return lowered.as_text().count("custom_call @__gpu$xla.gpu.triton")


def candidates(*problems) -> list:
  """Each config that fits one of the problems, once."""
  found = {}
  for problem in problems:
    for plan in hw_profiles.rank(problem, "h200_sxm", top=10_000):
      if plan.fits and plan.config.layout == "padded":
        found[plan.config] = problem
  return list(found)


ELEMENTS = candidates(
  *(hw_profiles.SwigluProblem(*shape) for shape in ((1024, 12288), (64, 5000), (37, 111)))
)
ROWS = candidates(
  hw_profiles.RmsNormProblem(1, 20000),
  hw_profiles.RmsNormProblem(8, 11008),
  hw_profiles.QuantizeRowsProblem(1024, 12288),
  hw_profiles.RmsNormProblem(37, 111),
  hw_profiles.RmsNormProblem(1024, 111),
  hw_profiles.RmsNormProblem(1024, 4096),
)
BLOCKS = candidates(
  *(
    hw_profiles.TransposeProblem(*shape)
    for shape in (
      *((rows, columns) for rows in (8, 1024) for columns in (111, 4096)),
      *((64, columns) for columns in (4096, 5000, 12288)),
      (7239, 12288),
    )
  )
)


@pytest.mark.parametrize("config", ELEMENTS, ids=RowConfig.describe)
def test_every_candidate_of_an_elementwise_op_lowers(config):
  run = functools.partial(swiglu, config=config, implementation="triton")
  assert kernels(run, (1023, 111), (1023, 111)) == 1


@pytest.mark.parametrize("config", ROWS, ids=RowConfig.describe)
def test_every_candidate_of_a_reduction_lowers(config):
  columns = 12288 if config.block_cols > 128 or config.num_splits else 111
  run = functools.partial(rms_norm, config=config, implementation="triton")
  assert kernels(run, (37, columns), (columns,)) == (1 if config.num_splits is None else 2)


@pytest.mark.parametrize(
  ("groups", "rows", "columns", "tile"),
  [
    # measured: see the constants
    (1, 64, 111, RowConfig(2, 128, 1, num_warps=4)),
    (1, 128, 111, RowConfig(2, 128, 1, num_warps=4)),
    (1, 129, 111, RowConfig(4, 128, 1, num_warps=8)),
    (1, 256, 111, RowConfig(4, 128, 1, num_warps=8)),
    (1, 257, 111, RowConfig(8, 128, 1, num_warps=2)),
    (2, 64, 111, RowConfig(2, 128, 1, num_warps=4)),
    (4, 64, 111, RowConfig(4, 128, 1, num_warps=8)),
    (5, 64, 111, RowConfig(8, 128, 1, num_warps=2)),
    # one block of all rows merges nothing
    (1, 8, 111, RowConfig(8, 128, 1, num_warps=8)),
    (32, 8, 111, RowConfig(8, 128, 1, num_warps=8)),
    (1, 64, 16, RowConfig(64, 16, 1, num_warps=8)),
    # two elements a thread, a warp at least
    (1, 64, 64, RowConfig(2, 64, 1, num_warps=2)),
    (1, 64, 30, RowConfig(2, 32, 1, num_warps=1)),
    (1, 64, 200, RowConfig(4, 256, 1, num_warps=8)),
    (1, 8, 4096, RowConfig(1, 4096, 1, num_warps=8)),
    (1, 8, 5000, RowConfig(1, 6144, 1, num_warps=8)),
    (1, 133, 5000, RowConfig(1, 6144, 1, num_warps=16)),
    (1, 8, 11008, RowConfig(1, 12288, 1, num_warps=8)),
    (1, 132, 12288, RowConfig(1, 12288, 1, num_warps=8)),
    (1, 133, 12288, RowConfig(1, 12288, 1, num_warps=16)),
    (2, 100, 12288, RowConfig(1, 12288, 1, num_warps=16)),
    (1, 8, 16384, RowConfig(1, 16384, 1, num_warps=16)),
  ],
)
def test_few_rows_of_gradients_have_the_warps_that_were_measured_fastest(
  groups, rows, columns, tile
):
  found = rms_gradient_tiles.default_config(groups=groups, rows=rows, columns=columns, cores=132)
  assert found == tile


@pytest.mark.parametrize("config", BLOCKS, ids=RowConfig.describe)
def test_every_candidate_of_the_transpose_lowers(config):
  run = functools.partial(transpose, config=config, implementation="triton")
  assert kernels(run, (3, 1000, 111)) == 1


@pytest.mark.parametrize("splits", [33, 64])
def test_a_row_of_many_segments_lowers(splits):
  # merged as one block, or one after another where the caller fixed them
  row = (3, 64 * splits)
  config = RowConfig(1, 64, 1, num_splits=splits)
  for fixed in (None, splits):
    assert kernels(functools.partial(rms_norm, config=config, num_splits=fixed), row, row[1:]) == 2
  assert kernels(functools.partial(quantize_rows, config=config), row) == 2


@pytest.mark.parametrize("columns", [1, 111, 4096, 11008, 5000, 100_000])
def test_a_row_is_one_launch_of_every_op(columns):
  row = (1, columns)
  split = columns > 16384
  assert kernels(swiglu, row, row) == 1
  assert kernels(functools.partial(swiglu_quantize, scale=0.5), row, row) == 1
  for code in ("float8_e4m3fn", "int8"):
    assert kernels(functools.partial(quantize_rows, dtype=code), row) == 1 + split
    assert kernels(functools.partial(swiglu_quantize, dtype=code), row, row) == 1 + split
  assert kernels(rms_norm, row, row[1:]) == 1 + split
  assert kernels(lambda x, w: rms_norm(x, w, residual=x), row, row[1:]) == 1 + split


def test_rows_of_the_tiles_that_were_measured_fastest_are_one_launch():
  row = (7239, 11008)
  portable = functools.partial(swiglu_quantize, implementation="triton")
  assert kernels(portable, row, row) == 1
  row = (7239, 4096)
  summed = functools.partial(rms_norm, implementation="triton")
  assert kernels(lambda x, w: summed(x, w, residual=x), row, row[1:]) == 1


@pytest.mark.parametrize(
  ("shape", "dtype"),
  [
    *(
      (shape, "bfloat16")
      for shape in ((1, 4096), (64, 30), (64, 111), (256, 111), (777, 111), (8, 5000), (8, 12288))
    ),
    # kept and walked
    *((shape, dtype) for shape in ((777, 111), (64, 20000)) for dtype in ("float16", "float32")),
    ((64, 20000), "bfloat16"),
  ],
  ids=str,
)
def test_gradients_lower(shape, dtype):
  def gradients(f):
    return jax.grad(lambda *operands: f(*operands).astype(jnp.float32).sum(), (0, 1))

  assert kernels(gradients(swiglu), shape, shape, dtype=dtype) == 1
  rows, columns = shape
  # numbers of long rows, the gradients, partial sums where there are several programs
  expected = (columns > rms_gradient_tiles._LONGEST_KEPT) + 1 + (rows > 1)
  assert kernels(gradients(rms_norm), shape, shape[1:], dtype=dtype) == expected


def test_the_kernels_lower_with_x64_enabled():
  def everything(x, weight):
    out = rms_norm(swiglu(x, x), weight, num_splits=4, residual=x)
    return out, quantize_rows(x, dtype="int8"), swiglu_quantize(x, x, scale=0.5), transpose(x)

  def gradient(x, weight):
    return jax.grad(lambda x: rms_norm(swiglu(x, x), weight).astype(jnp.float32).sum())(x)

  with jax.enable_x64(True):
    assert kernels(everything, (37, 333), (333,)) == 6
    assert kernels(gradient, (37, 333), (333,)) == 4


def test_export_for_cuda_from_a_cpu():
  x = jax.ShapeDtypeStruct((37, 333), jnp.bfloat16)
  known = [jax.export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")]
  with device.abstract_gpu(**H200):
    exported = jax.export.export(
      jax.jit(lambda x: quantize_rows(x)), platforms=["cuda"], disabled_checks=known
    )(x)
  assert exported.platforms == ("cuda",)


@pytest.mark.parametrize(
  ("rows", "columns", "block_cols", "warps"),
  [
    (1, 111, 256, 8),
    (64, 111, 256, 8),
    (8, 4096, 256, 8),
    (8, 5000, 512, 8),
    (64, 5000, 512, 8),
    (64, 11008, 512, 4),
    (7239, 5000, 1024, 4),
  ],
)
def test_blocks_of_swiglus_gradient_leave_no_core_idle_for_their_size(
  rows, columns, block_cols, warps
):
  tile = SwigluGradient(jnp.dtype(jnp.bfloat16)).tile(rows * columns, cores=132)
  assert (tile.block_cols, tile.num_warps) == (block_cols, warps)
  if block_cols > 256:
    # of the next smaller blocks some core would have two
    assert rows * columns // (tile.block_cols // 2) >= 132


@pytest.mark.skipif(
  jax.__version__ not in jax_private.SUPPORTED_JAX, reason="no Triton IR with this JAX"
)
@pytest.mark.parametrize(("shape", "ways"), [((3, 111), 1), ((8, 4096), 1), ((63, 5001), 2)])
def test_swiglu_takes_one_way_where_a_thread_has_one_element(shape, ways):
  def gradients(gate, up):
    call = functools.partial(swiglu, implementation="triton")
    return jax.grad(lambda *x: call(*x).astype(jnp.float32).sum(), argnums=(0, 1))(gate, up)

  x = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
  with device.abstract_gpu(**H200):
    found = jax_private.triton_kernels(gradients, x, x)
  assert found
  for kernel in found:
    assert kernel.ir.count("ex2.approx.ftz.f32") == ways
    assert kernel.ir.count("rsqrt.approx.ftz.f32") == ways


@pytest.mark.skipif(
  jax.__version__ not in jax_private.SUPPORTED_JAX, reason="no Triton IR with this JAX"
)
@pytest.mark.parametrize(("shape", "packs"), [((1, 1), False), ((64, 12), True)], ids=str)
def test_a_single_number_is_not_packed_two_to_a_register(shape, packs):
  # Triton refuses such an instruction on an array of one
  def gradients(x, weight):
    call = functools.partial(rms_norm, implementation="triton")
    return jax.grad(lambda *x: call(*x).astype(jnp.float32).sum(), argnums=(0, 1))(x, weight)

  operands = [jax.ShapeDtypeStruct(x, jnp.bfloat16) for x in (shape, shape[1:])]
  with device.abstract_gpu(**H200):
    found = jax_private.triton_kernels(gradients, *operands)
  assert ["packed_element = 2" in kernel.ir for kernel in found] == [packs] * len(found)
