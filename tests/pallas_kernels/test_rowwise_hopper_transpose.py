"""The Hopper kernel of transpose, interpreted or on a GPU: its indices, what it refuses."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rowwise_cases import (
  H200,
  H200_SHARED_BYTES,
  HOPPER,
  HOPPER_MARKS,
  arrays,
  runs_hopper,
  transpose,
)

import reference
from pallas_kernels import RowConfig, device, explain
from pallas_kernels.hopper.tma import LARGEST_BOX
from pallas_kernels.rowwise import hopper_transpose, transpose_blocks
from pallas_kernels.rowwise.transpose_blocks import (
  CONSUMERS,
  HEIGHT,
  ROWS,
  SECTOR,
  STEP,
  VECTOR,
  VECTORS,
  WIDTH,
  TransposeBlocks,
  element,
)

pytestmark = HOPPER_MARKS

THREADS = np.arange(128 * CONSUMERS)


def bits(rng, *shape, dtype):
  """Elements of all bits, NaN's included."""
  return jnp.asarray(rng.integers(0, 2**16, shape).astype(np.uint16).view(jnp.dtype(dtype)))


@runs_hopper
@pytest.mark.parametrize(
  ("shape", "dtype"),
  [
    ((241, 64), "uint16"),
    ((479, 72), "bfloat16"),
    ((1000, 136), "float16"),
    ((453, 64), "int16"),  # few rows beyond a block
    ((432, 64), "bfloat16"),  # with the sectors of the next block's a whole number of blocks
    ((433, 64), "bfloat16"),
    ((240, 72), "bfloat16"),  # one block down
    ((1, 255, 64), "bfloat16"),
  ],
  ids=str,
)
def test_bits_are_moved(shape, dtype, cores, races, rng):
  x = bits(rng, *shape, dtype=dtype)
  out = transpose(x, implementation=HOPPER)
  assert not races()
  reference.assert_transpose_equal(*arrays(out, x))


@pytest.mark.gpu
@pytest.mark.parametrize(
  "shape",
  [
    *((7239, columns) for columns in (64, 72, 4096, 5000, 11008, 12288)),
    (240, 64),
    (241, 4096),
    (447, 136),
    (1023, 5000),
    (1024, 4096),
    (65537, 1000),
  ],
  ids=str,
)
def test_bits_are_moved_at_the_sizes_of_models(shape, rng):
  x = bits(rng, *shape, dtype="bfloat16")
  reference.assert_transpose_equal(*arrays(transpose(x, implementation="mosaic_gpu"), x))


@pytest.mark.parametrize(
  ("rows", "columns"),
  [(7239, 64), (703, 200), (1000, 72), (241, 64), (449, 136), (433, 64), (432, 64), (456, 64)],
)
def test_every_element_is_stored_once_from_its_own_place(rows, columns):
  blocks = TransposeBlocks(rows, columns)
  x = np.arange(rows * columns).reshape(rows, columns)
  stored = np.full(rows * columns, -1)
  for item in range(blocks.count):
    block_row, block_column = blocks.place(item)
    first_row = max(block_row * ROWS - SECTOR, 0)
    shared = in_shared_memory(x, first_row, block_column)
    mine = blocks.vectors(THREADS, block_row, block_column)
    for unit, first in enumerate(mine.rows):
      whole = (mine.column < columns) & (first >= 0) & (first + VECTOR <= rows)
      assert whole.all() or not blocks.is_inside(block_row, block_column)
      # vectors of 16 bytes begin at multiples of it
      assert not np.any((mine.column * rows + first)[whole] % VECTOR)
      for i, place in enumerate(mine.places(first_row)):
        found = shared[(place + unit * STEP * WIDTH)[whole]]
        np.testing.assert_array_equal(
          found, x[(first + (i ^ mine.turned))[whole], mine.column[whole]]
        )
      for i in range(VECTOR):
        row = first + i
        there = (mine.column < columns) & (row >= 0) & (row < rows)
        assert np.all(((row - first_row)[there] >= 0) & ((row - first_row)[there] < HEIGHT))
        to = (mine.column * rows + row)[there]
        assert np.all(stored[to] == -1)
        assert len(set(to)) == len(to)
        stored[to] = shared[element(row - first_row, mine.within)[there]]
  np.testing.assert_array_equal(stored.reshape(columns, rows), x.T)


def in_shared_memory(x, first_row, block_column):
  """A block as TMA's swizzle leaves it; what x has not is -1."""
  block = np.full((HEIGHT, WIDTH), -1)
  part = x[first_row:, block_column * WIDTH :][:HEIGHT, :WIDTH]
  block[: part.shape[0], : part.shape[1]] = part
  # address bits 4 to 6 are exchanged by bits 7 to 9
  byte = 2 * np.arange(HEIGHT * WIDTH)
  shared = np.empty(HEIGHT * WIDTH, int)
  shared[(byte ^ ((byte >> 7) % 8 << 4)) // 2] = block.ravel()
  return shared


@pytest.mark.parametrize("rows", [7239, 7238, 7240, 7248, 241])
def test_no_two_lanes_of_a_warp_meet_in_a_bank_and_sectors_are_whole(rows):
  blocks = TransposeBlocks(rows, 128)
  for block_column in (0, 1):
    mine = blocks.vectors(THREADS, 1, block_column)
    for place in mine.places(ROWS - SECTOR):
      for words in (place // 2).reshape(-1, 32):
        assert np.bincount(np.unique(words) % 32).max() == 1
    for first in mine.rows:
      stored = (mine.column * rows + first).reshape(-1, 4)
      np.testing.assert_array_equal(np.diff(stored, axis=1), VECTOR)
      assert not np.any(stored[:, 0] % SECTOR)


def test_what_the_block_is_made_of():
  assert LARGEST_BOX >= HEIGHT
  assert VECTORS * VECTOR * len(THREADS) == ROWS * WIDTH
  # stages begin where the swizzle does
  assert 2 * HEIGHT * WIDTH % 1024 == 0
  assert hopper_transpose.stages(H200_SHARED_BYTES) == 7


@pytest.mark.parametrize("neighbour", range(4))
def test_turned_vectors_are_turned_back(neighbour, monkeypatch):
  operations = types.SimpleNamespace(
    andi=lambda x, y: x & y,
    cmpi=lambda how, x, y: x != y,
    select=lambda condition, x, y: x if condition else y,
    CmpIPredicate=types.SimpleNamespace(ne=None),
  )
  integers = types.SimpleNamespace(get_signless=lambda bits: bits)
  monkeypatch.setattr(hopper_transpose, "arith", operations)
  monkeypatch.setattr(hopper_transpose, "ir", types.SimpleNamespace(IntegerType=integers))
  monkeypatch.setattr(
    hopper_transpose, "mgpu_utils", types.SimpleNamespace(c=lambda value, kind: value)
  )
  turned = transpose_blocks.Vectors(neighbour, None, None, []).turned
  loaded = [i ^ turned for i in range(VECTOR)]
  pairs = list(zip(loaded[::2], loaded[1::2], strict=True))
  found = hopper_transpose._turned_back(pairs, types.SimpleNamespace(value=turned))
  assert [x for pair in found for x in pair] == list(range(VECTOR))


@runs_hopper
@pytest.mark.parametrize("columns", [4096, 5000, 11008, 12288])
def test_it_is_the_default_where_rows_of_the_result_begin_anywhere(columns):
  x = jax.ShapeDtypeStruct((7239, columns), jnp.bfloat16)
  call = transpose.__wrapped__
  with device.abstract_gpu(**H200), jax.enable_x64(columns == 5000):
    found = explain(call, x)
    text = jax.jit(call).trace(x).lower(lowering_platforms=("cuda",)).as_text()
  assert (found.implementation, found.config) == ("mosaic_gpu", None)
  assert text.count("custom_call @mosaic_gpu") == 1
  assert "transpose_portable" not in text


@runs_hopper
@pytest.mark.parametrize(
  ("shape", "dtype", "reason"),
  [
    ((7240, 4096), "bfloat16", "multiples of 16 bytes"),
    ((1028, 4096), "bfloat16", "320 blocks, and the kernel is preferred from 8 for each core"),
    ((7239, 4100), "bfloat16", "a multiple of 16 bytes"),
    ((7239, 4096), "float32", "elements of 16 bits"),
    ((2, 7239, 4096), "bfloat16", "a batch of 2 matrices"),
  ],
  ids=str,
)
def test_where_it_is_not_the_default(shape, dtype, reason):
  x = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
  with device.abstract_gpu(**H200):
    found = explain(transpose.__wrapped__, x)
  assert found.implementation in ("triton", "xla")
  assert reason in found.refused["mosaic_gpu"]


@runs_hopper
@pytest.mark.parametrize(
  ("shape", "dtype", "options", "reason"),
  [
    ((7239, 4096), "float32", {}, "elements of 16 bits"),
    ((7239, 4096), "int8", {}, "elements of 16 bits"),
    ((7239, 4096), "bfloat16", {"config": RowConfig(64, 64, 1)}, "blocks of one size"),
    ((3, 7239, 4096), "bfloat16", {}, "a batch of 3 matrices"),
    ((7239, 4097), "bfloat16", {}, "a multiple of 16 bytes"),
    ((239, 4096), "bfloat16", {}, "takes 240 x 64 and more"),
    ((7239, 56), "bfloat16", {}, "takes 240 x 64 and more"),
    ((2**19, 4096), "bfloat16", {}, "counts to 2147483647"),
  ],
  ids=str,
)
def test_what_it_refuses(shape, dtype, options, reason):
  x = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
  with device.abstract_gpu(**H200), pytest.raises(NotImplementedError, match=reason):
    explain(transpose.__wrapped__, x, implementation="mosaic_gpu", **options)


def test_other_devices_have_other_kernels():
  x = jax.ShapeDtypeStruct((7239, 4096), jnp.bfloat16)
  with device.abstract_gpu(device_kind="NVIDIA A100-SXM4-80GB", num_cores=108):
    found = explain(transpose.__wrapped__, x)
  assert found.implementation == "triton"
  assert "needs Hopper" in found.refused["mosaic_gpu"]


@runs_hopper
def test_gradients_and_maps_of_it_have_kernels_that_can():
  def gradient(x):
    return jax.grad(lambda x: (transpose.__wrapped__(x, implementation="mosaic_gpu") ** 2).sum())(x)

  x = jax.ShapeDtypeStruct((7239, 4096), jnp.bfloat16)
  batch = jax.ShapeDtypeStruct((3, 7239, 4096), jnp.bfloat16)
  with device.abstract_gpu(**H200):
    text = jax.jit(gradient).trace(x).lower(lowering_platforms=("cuda",)).as_text()
    mapped = jax.jit(jax.vmap(transpose.__wrapped__)).trace(batch)
    mapped = mapped.lower(lowering_platforms=("cuda",)).as_text()
  # rows of the gradient are aligned again, those of its operand are not: XLA's
  assert (text.count("custom_call @mosaic_gpu"), text.count("gpu.triton")) == (1, 0)
  assert (mapped.count("custom_call @mosaic_gpu"), mapped.count("gpu.triton")) == (0, 1)


@runs_hopper
def test_the_gradient_is_the_transpose(cores, rng):
  x, d_out = bits(rng, 243, 64, dtype="float16"), bits(rng, 64, 243, dtype="float16")
  out, pull = jax.vjp(lambda x: transpose(x, implementation=HOPPER), x)
  reference.assert_transpose_equal(*arrays(out, x))
  reference.assert_transpose_equal(*arrays(pull(d_out)[0], d_out))
