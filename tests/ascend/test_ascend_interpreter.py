"""Memories, layouts and the reader of the interpreter; runs without the compilers."""

import numpy as np
import pytest

from hw_profiles.ascend import get_target
from hw_profiles.ascend.memref import MemrefType
from pallas_kernels.lowering.execution.generic_text import read_module, split
from pallas_kernels.lowering.execution.matrices import from_fractals, to_fractals
from pallas_kernels.lowering.execution.memory import (
  POISON,
  Memories,
  OutOfBoundsError,
  array_view,
  core_memories,
  poisoned,
)
from pallas_kernels.lowering.execution.planned import DeadlockError, run_module
from pallas_kernels.lowering.execution.scalars import affine


def test_fractals_of_l1_are_16_rows_of_32_bytes():
  matrix = np.arange(32 * 48, dtype=np.int16).reshape(32, 48)
  blocks = to_fractals(matrix, (3, 2, 16, 16))
  assert blocks[2, 1, 3, 5] == matrix[16 + 3, 32 + 5]
  np.testing.assert_array_equal(from_fractals(blocks), matrix)


def test_fractals_of_a_ragged_matrix_end_in_zeros():
  blocks = to_fractals(np.ones((20, 10), np.int16), (1, 2, 16, 16))
  whole = from_fractals(blocks)
  assert whole.sum() == 200
  assert not whole[20:].any()
  assert not whole[:, 10:].any()


def test_memories_have_their_size_and_are_poisoned():
  target = get_target("ascend_910b3")
  cube, vectors = core_memories(target)
  assert cube.spaces["L1"].size == target.l1_bytes
  assert all((memory.spaces["UB"] == POISON).all() for memory in vectors)
  assert vectors[0].spaces["UB"] is not vectors[1].spaces["UB"]


@pytest.mark.parametrize("address", [-1, 64 - 31, 64])
def test_buffer_that_leaves_its_memory(address):
  with pytest.raises(OutOfBoundsError, match="it has 64 B"):
    Memories({"UB": poisoned(64)}).view(address, MemrefType((8,), "f32", "UB"))


def test_masks_are_packed_and_lie_where_they_should():
  raw = poisoned(8)
  mask = Memories({"UB": raw}).view(2, MemrefType((2, 6), "i1", "UB"))
  values = np.array([[1, 0, 1, 1, 0, 0], [0, 1, 0, 0, 1, 1]], bool)
  mask.store(values)
  np.testing.assert_array_equal(mask.load(), values)
  # twelve bits: two bytes, of the second the upper half is another's
  assert raw[2] == 0b10001101
  assert raw[3] & 0x0F == 0b1100
  assert (raw[[0, 1, 4, 5, 6, 7]] == POISON).all()
  assert raw[3] >> 4 == POISON >> 4


def test_access_and_not_the_view_is_checked():
  view = array_view("array 0", np.arange(100, dtype=np.float32))
  tail = view.part([96], [8], [1])  # a masked block may hang over the edge
  np.testing.assert_array_equal(tail.part([0], [4], [1]).load(), [96, 97, 98, 99])
  with pytest.raises(OutOfBoundsError, match="array 0: elements 96 to 103 of f32, it has 100"):
    tail.load()


def test_reshape_in_place_or_not_at_all():
  view = array_view("x", np.arange(24, dtype=np.int32)).reshaped((4, 6))
  part = view.part([0, 0], [4, 3], [1, 1])
  np.testing.assert_array_equal(part.reshaped((2, 2, 3)).load(), part.load().reshape(2, 2, 3))
  with pytest.raises(NotImplementedError):
    part.reshaped((12,))


def test_affine_maps():
  text = "(d0, d1)[s0] -> (d0 * 4 + d1 mod 3, (d0 - s0) ceildiv 2, d0 floordiv 2)"
  assert affine(text, [7, 5, 2]) == [30, 3, 3]
  with pytest.raises(NotImplementedError):
    affine("(d0) -> (__import__)", [1])


def test_split_respects_brackets_and_arrows():
  assert split("a, memref<2x3, strided<[1, 2]>>, (x, y) -> z") == [
    "a",
    "memref<2x3, strided<[1, 2]>>",
    "(x, y) -> z",
  ]


_MODULE = """\
#map = affine_map<(d0) -> (d0 * 4)>
"builtin.module"() ({
  "func.func"() <{function_type = (i64) -> (), sym_name = "k_mix_aic"}> ({
  ^bb0(%lock: memref<?xi8>, %work: memref<?xi8>, %x: memref<?xf32>, %gx: i32, %gy: i32, %gz: i32):
    %c0 = "arith.constant"() <{value = 0 : i64}> : () -> i64
    WAIT
    "func.return"() : () -> ()
  }) {hacc.entry, hivm.func_core_type = #hivm.func_core_type<AIC>} : () -> ()
  "func.func"() <{function_type = (i64) -> (), sym_name = "k_mix_aiv"}> ({
  ^bb0(%lock: memref<?xi8>, %work: memref<?xi8>, %x: memref<?xf32>, %gx: i32, %gy: i32, %gz: i32):
    %sub = "hivm.hir.get_sub_block_idx"() : () -> i64
    %at = "arith.index_cast"(%sub) : (i64) -> index
    %place = "affine.apply"(%at) <{map = #map}> : (index) -> index
    %one = "arith.constant"() <{value = 1.000000e+00 : f32}> : () -> f32
    "memref.store"(%one, %x, %place) : (f32, memref<?xf32>, index) -> ()
    "hivm.hir.sync_block_set"() <{static_flag_id = 3 : i64}> : () -> ()
    "func.return"() : () -> ()
  }) {hacc.entry, hivm.func_core_type = #hivm.func_core_type<AIV>} : () -> ()
}) : () -> ()
"""
_WAIT = '"hivm.hir.sync_block_wait"() <{static_flag_id = FLAG : i64}> : () -> ()'


def _run(flag: int) -> np.ndarray:
  text = _MODULE.replace("WAIT", _WAIT.replace("FLAG", str(flag)))
  x = np.zeros(8, np.float32)
  run_module(text, get_target("ascend_910b3"), [x], (1, 1, 1))
  return x


def test_reader_finds_functions_regions_and_attributes():
  module, maps = read_module(_MODULE.replace("WAIT", ""))
  assert maps == {"#map": "(d0) -> (d0 * 4)"}
  cube, vector = module.regions[0].operations
  assert cube.word("sym_name") == "" or "k_mix_aic" in cube.attributes
  assert [one.name for one in vector.regions[0].operations][-1] == "func.return"


def test_cube_core_waits_for_both_vector_cores():
  np.testing.assert_array_equal(_run(3), [1, 0, 0, 0, 1, 0, 0, 0])


def test_cores_that_wait_for_ever_are_named():
  with pytest.raises(DeadlockError, match=r"block 0: AIC 0 wait"):
    _run(4)
