"""The Hopper kernel: interpreted with race detection on a CPU, compiled on a GPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from kernel_cases import assert_inside_bound, matmul, normal, quantized_matmul

import pallas_kernels
import reference
from pallas_kernels import MatmulConfig, compat, device, explain
from pallas_kernels.gemm import hopper as kernel
from pallas_kernels.gemm import hopper_kernel
from pallas_kernels.gemm.epilogue import make_epilogue
from pallas_kernels.gemm.hopper_layout import hopper_layout
from pallas_kernels.gemm.operands import Operands, Transposes
from pallas_kernels.hopper import ring

# the interpreter of jax 0.10 hangs where a kernel is wrong; the limit says so
pytestmark = pytest.mark.timeout(300)

CASES = [
  # m, k, n, config: one tile; ragged everywhere; several tiles per block; N
  # shared by the consumers; one consumer; fewer K steps than stages; one stage;
  # three consumers, each with two wgmmas along N; one with 192 columns
  (128, 128, 128, MatmulConfig(128, 128, 64, 2)),
  (130, 100, 135, MatmulConfig(128, 128, 64, 2, group_m=1)),
  (200, 192, 320, MatmulConfig(64, 64, 64, 3)),
  (70, 96, 250, MatmulConfig(64, 128, 32, 2)),
  (7, 33, 19, MatmulConfig(64, 64, 32, 2)),
  (1, 40, 257, MatmulConfig(64, 128, 64, 4)),
  (65, 200, 70, MatmulConfig(128, 64, 64, 1)),
  (200, 96, 264, MatmulConfig(192, 256, 32, 2, num_consumer_warpgroups=3)),
  (135, 72, 200, MatmulConfig(64, 192, 64, 3, num_consumer_warpgroups=1)),
]


@pytest.mark.parametrize(("m", "k", "n", "config"), CASES, ids=str)
def test_tiles_are_right_and_free_of_races(hopper, m, k, n, config, rng, races):
  a, b, bias = normal(rng, m, k), normal(rng, k, n), normal(rng, n)
  out = matmul(a, b, bias=bias, activation="silu", config=config, implementation=hopper)
  assert_inside_bound(out, a, b, hopper, bias=bias, activation="silu")
  assert not races()


def test_vectors_of_more_than_one_copy_are_whole(hopper, rng):
  # TMA copies 256 elements of a vector at once
  a, b, bias = normal(rng, 70, 64), normal(rng, 64, 600), normal(rng, 600)
  config = MatmulConfig(64, 384, 32, 2, num_consumer_warpgroups=3)
  out = matmul(a, b, bias=bias, config=config, implementation=hopper)
  assert_inside_bound(out, a, b, hopper, bias=bias)

  codes = [jnp.asarray(rng.integers(-9, 10, shape), jnp.int8) for shape in ((700, 64), (64, 32))]
  scales = [jnp.asarray(2.0 ** rng.integers(-3, 4, shape), jnp.float32) for shape in (700, 32)]
  scaled = quantized_matmul(
    *codes,
    scales[0][:, None],
    scales[1],
    out_dtype=jnp.float32,
    config=MatmulConfig(512, 32, 64, 2),
    implementation=hopper,
  )
  exact = reference.matmul_exact(*(np.asarray(x, np.float64) for x in codes))
  expected = exact * np.asarray(scales[0])[:, None] * np.asarray(scales[1])
  np.testing.assert_array_equal(np.asarray(scaled, np.float64), expected)


@pytest.mark.parametrize(
  ("m", "config", "rows"),
  [
    (256, MatmulConfig(64, 128, 64), (64, 64)),
    (333, MatmulConfig(64, 128, 64), (64, 16)),
    (333, MatmulConfig(192, 128, 64), (192, 144)),
    (7, MatmulConfig(64, 128, 64), (8, 8)),
    # of a cluster along M each block has rows of its own; along N they share one copy
    (333, MatmulConfig(64, 128, 64, cluster_m=2), (64, 16)),
    (333, MatmulConfig(64, 128, 64, cluster_n=2), (64, 64)),
  ],
  ids=str,
)
def test_a_last_row_of_tiles_loads_the_rows_that_exist(m, config, rows):
  layout = hopper_layout(
    config,
    m=m,
    k=256,
    n=512,
    dtype=jnp.bfloat16,
    out_dtype=jnp.bfloat16,
    transposes=Transposes(),
  )
  if compat.SWIZZLES_UNTILED:
    assert (layout.a_rows, layout.last_a_rows) == rows


def test_rows_copied_in_eights_are_as_many_in_every_tile():
  if not compat.SWIZZLES_UNTILED:
    pytest.skip("this JAX pads such operands")
  layout = hopper_layout(
    MatmulConfig(64, 128, 128),
    m=333,
    k=256,
    n=512,
    dtype=jnp.bfloat16,
    out_dtype=jnp.bfloat16,
    transposes=Transposes(),
  )
  assert layout.a.by == "eights"
  assert layout.last_a_rows == layout.a_rows == 64


def test_tiles_of_more_rows_or_columns_than_one_copy_has_lower():
  # 700 rows are not whole eights, so that A would be copied by rows
  for config in (
    MatmulConfig(64, 384, 32, 2, num_consumer_warpgroups=3),
    MatmulConfig(512, 32, 64),
  ):
    shapes = ((700, 64), (64, 600), (700, 1), (600,))
    operands = [
      jax.ShapeDtypeStruct(shape, jnp.int8 if 64 in shape else jnp.float32) for shape in shapes
    ]
    call = functools.partial(
      quantized_matmul, out_dtype=jnp.bfloat16, config=config, implementation="mosaic_gpu"
    )
    with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
      lowered = jax.jit(call).trace(*operands).lower(lowering_platforms=("cuda",))
    assert "mosaic_gpu" in lowered.as_text()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("out_dtype", ["float16", "float32"])
def test_small_integers_are_exact(hopper, dtype, out_dtype, rng):
  a, b = reference.exact_integer_operands(rng, 67, 130, 72, "bfloat16")
  out = matmul(
    jnp.asarray(a, dtype), jnp.asarray(b, dtype), out_dtype=out_dtype, implementation=hopper
  )
  np.testing.assert_array_equal(
    np.asarray(out, np.float64), reference.matmul(a, b).astype(np.float64)
  )


@pytest.mark.gpu
@pytest.mark.parametrize("k_steps", [1, 2, 3])
@pytest.mark.parametrize(
  "config",
  [MatmulConfig(64, 64, 64, 2), MatmulConfig(128, 64, 64, 4), MatmulConfig(64, 128, 64, 1)],
  ids=MatmulConfig.describe,
)
def test_few_k_steps_wait_for_the_last_product(config, k_steps, rng):
  # the compiler unrolls such short loops, and had moved a conversion of the sum
  # before the wait for it
  a, b = reference.exact_integer_operands(rng, 128, 64 * k_steps, 128, "bfloat16")
  out = matmul(jnp.asarray(a), jnp.asarray(b), config=config, implementation="mosaic_gpu")
  np.testing.assert_array_equal(
    np.asarray(out, np.float64), reference.matmul(a, b).astype(np.float64)
  )


@pytest.mark.parametrize("transposes", [(True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("shape", [(128, 64, 64), (72, 136, 104)], ids=str)
def test_operands_are_read_where_they_lie(hopper, transposes, shape, rng):
  m, k, n = shape
  a, b = reference.exact_integer_operands(rng, m, k, n, "bfloat16")
  stored = Transposes(*transposes)
  operands = Operands(
    jnp.asarray(a.T if stored.a else a)[None], (jnp.asarray(b.T if stored.b else b)[None],)
  )
  out = kernel.matmul(
    operands,
    transposes=stored,
    config=MatmulConfig(64, 64, 64, 2),
    epilogue=make_epilogue(activation=None, intermediate_dtype=None, out_dtype="float32"),
    num_ctas=2,
    interpret=compat.gpu_interpret_params() if hopper == "mosaic_gpu_interpret" else None,
  )
  np.testing.assert_array_equal(np.asarray(out[0], np.float64), reference.matmul_exact(a, b))


@pytest.mark.gpu
@pytest.mark.parametrize(
  "config",
  [
    MatmulConfig(128, 128, 64, 3, cluster_m=2),
    MatmulConfig(128, 128, 64, 3, cluster_n=2),
    MatmulConfig(64, 64, 64, 4, cluster_m=4, overlap_epilogue=False),
  ],
  ids=MatmulConfig.describe,
)
@pytest.mark.parametrize("shape", [(1000, 520, 712), (64, 64, 64), (4096, 1024, 1024)], ids=str)
def test_clusters_share_operand_tiles(config, shape, rng):
  a, b = reference.exact_integer_operands(rng, *shape, "bfloat16")
  out = matmul(jnp.asarray(a), jnp.asarray(b), config=config, implementation="mosaic_gpu")
  np.testing.assert_array_equal(
    np.asarray(out, np.float64), reference.matmul(a, b).astype(np.float64)
  )


@pytest.mark.gpu
@pytest.mark.parametrize("m", [9, 71, 113, 129, 7239])
@pytest.mark.parametrize("k", [64, 72, 1000])
def test_rows_that_eight_does_not_divide_are_not_copied(m, k, rng):
  a, b = reference.exact_integer_operands(rng, m, k, 136, "bfloat16")
  config = MatmulConfig(128, 64, 64, 3)
  call = {"config": config, "implementation": "mosaic_gpu"}
  notes = explain(pallas_kernels.matmul, jnp.asarray(a), jnp.asarray(b), **call).notes
  assert not any(note.startswith("a is") for note in notes)
  out = matmul(jnp.asarray(a), jnp.asarray(b), **call)
  np.testing.assert_array_equal(
    np.asarray(out, np.float64), reference.matmul(a, b).astype(np.float64)
  )


STORED = [(False, False), (True, False), (False, True), (True, True)]
# one tile a step of rows and several; shared copies; parts of K
IN_EIGHTS = [
  MatmulConfig(64, 64, 128, 2),
  MatmulConfig(128, 256, 64, 4),
  MatmulConfig(128, 128, 64, 3, cluster_m=2),
  MatmulConfig(64, 128, 64, 3, cluster_n=2),
  MatmulConfig(128, 192, 64, 2, split_k=3),
]


def product_of_odd_rows(config, transposes, m, k, n, *, num_ctas):
  """The Hopper kernel on operands whose rows, as stored, are whole swizzle spans."""
  stored = Transposes(*transposes)

  def product(a, b):
    return kernel.matmul(
      Operands(a[None], (b[None],)),
      transposes=stored,
      config=config,
      epilogue=make_epilogue(activation=None, intermediate_dtype=None, out_dtype="float32"),
      num_ctas=num_ctas,
    )

  def whole(size):
    return size - size % 64

  # what is innermost in either operand is made of whole spans
  sizes = (
    whole(m) if stored.a else m,
    k if stored.a and not stored.b else whole(k),
    n if stored.b else whole(n),
  )
  return product, sizes


@pytest.mark.skipif(not compat.SWIZZLES_UNTILED, reason="jax 0.10 takes whole tiles")
@pytest.mark.parametrize("transposes", STORED, ids=str)
@pytest.mark.parametrize("config", IN_EIGHTS, ids=MatmulConfig.describe)
def test_operands_of_any_number_of_rows_are_not_padded(config, transposes):
  product, (m, k, n) = product_of_odd_rows(config, transposes, 713, 325, 459, num_ctas=132)
  a, b = (k, m) if transposes[0] else (m, k), (n, k) if transposes[1] else (k, n)
  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    operands = (jax.ShapeDtypeStruct(x, jnp.bfloat16) for x in (a, b))
    lowered = jax.jit(product).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()
  assert "mosaic_gpu" in lowered
  assert "stablehlo.pad" not in lowered


@pytest.mark.skipif(not compat.SWIZZLES_UNTILED, reason="jax 0.10 takes whole tiles")
@pytest.mark.parametrize(("blocks", "is_padded"), [(1, False), (2, True), (4, True)])
def test_blocks_that_three_spans_are_not_shared_by_evenly_have_whole_tiles(blocks, is_padded):
  config = MatmulConfig(128, 192, 64, 3, cluster_m=blocks)
  product, (m, k, n) = product_of_odd_rows(config, (True, False), 713, 325, 459, num_ctas=132)
  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    operands = (jax.ShapeDtypeStruct(x, jnp.bfloat16) for x in ((k, m), (k, n)))
    lowered = jax.jit(product).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()
  assert "mosaic_gpu" in lowered
  assert ("stablehlo.pad" in lowered) == is_padded


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [(713, 325, 459), (70, 71, 66), (1000, 1001, 1111)], ids=str)
@pytest.mark.parametrize("transposes", STORED, ids=str)
@pytest.mark.parametrize("config", IN_EIGHTS, ids=MatmulConfig.describe)
def test_operands_of_any_number_of_rows_are_read_where_they_lie(config, transposes, rows, rng):
  product, (m, k, n) = product_of_odd_rows(config, transposes, *rows, num_ctas=132)
  a, b = reference.exact_integer_operands(rng, m, k, n, "bfloat16")
  out = jax.jit(product)(
    jnp.asarray(a.T if transposes[0] else a), jnp.asarray(b.T if transposes[1] else b)
  )
  # the parts of a product that is split
  np.testing.assert_array_equal(np.asarray(out, np.float64).sum(0), reference.matmul_exact(a, b))


def test_a_batch_of_both_operands(hopper, rng):
  a, b = normal(rng, 3, 20, 40), normal(rng, 3, 40, 24)
  out = matmul(a, b, config=MatmulConfig(64, 32, 32, 2), implementation=hopper)
  for i in range(3):
    assert_inside_bound(out[i], a[i], b[i], hopper)


ONLY_INTERPRETED = pytest.mark.skipif(
  jax.default_backend() != "cpu", reason="needs the interpreter"
)


@ONLY_INTERPRETED
def test_the_race_detector_sees_two_warpgroups_in_one_slot(rng, monkeypatch, races):
  """The clean runs above mean something: let both consumers stage in one slot, and it tells."""
  axis_index = hopper_kernel.lax.axis_index

  def second_consumer_takes_itself_for_the_first(name):
    index = axis_index(name)
    return jnp.where(index == 1, 0, index) if name == "warpgroup" else index

  monkeypatch.setattr(hopper_kernel.lax, "axis_index", second_consumer_takes_itself_for_the_first)
  a, b = normal(rng, 128, 64), normal(rng, 64, 64)
  matmul(a, b, config=MatmulConfig(128, 64, 64, 2), implementation="mosaic_gpu_interpret")
  assert races()


class MisplacingRing(ring.StageRing):
  """A ring whose copies land one stage further than they say."""

  def fill(self, step, copy):
    def misplaced(stage, arrived):
      copy(lax.rem(stage + jnp.int32(1), jnp.int32(self.num_stages)), arrived)

    super().fill(step, misplaced)


@ONLY_INTERPRETED
def test_multiplying_what_no_copy_has_filled_shows(rng, monkeypatch):
  """JAX's detector does not follow wgmma's reads; what they find in a stage does show.

  One K step, so that whichever thread is faster the stage that is read was
  never written: the interpreter fills it with NaN.
  """
  monkeypatch.setattr(hopper_kernel, "StageRing", MisplacingRing)
  a, b = normal(rng, 64, 64), normal(rng, 64, 64)
  out = matmul(a, b, config=MatmulConfig(64, 64, 64, 2), implementation="mosaic_gpu_interpret")
  with pytest.raises(AssertionError):
    assert_inside_bound(out, a, b, "mosaic_gpu_interpret")
