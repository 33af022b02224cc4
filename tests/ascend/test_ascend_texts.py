"""What is read of the compilers' texts and messages; runs without the compilers."""

import pathlib

import pytest

from hw_profiles.ascend import UnsupportedIrError
from hw_profiles.ascend.memref import MemrefType, parse_memref
from hw_profiles.ascend.messages import Overflow, parse_messages
from hw_profiles.ascend.plan import AscendPlan
from hw_profiles.ascend.programs import parse_programs
from hw_profiles.ascend.ssa_text import statements
from hw_profiles.errors import InfeasibleTileError
from hw_profiles.frozen_map import FrozenMap

_DATA = pathlib.Path(__file__).parent / "data"

_OVERFLOW_910 = """\
loc("x/in.mlir":1:1): loc("x/in.mlir":2:3): [ERROR] Cannot find hivmc under $PATH
[NOTE] Cc overflow detected; automatically set enable-code-motion to false and retrying compilation.
[NOTE] Due to Cc overflow, automatically set enable-code-motion to false, set \
enable-auto-multi-buffer to false; compilation still failed.
loc("x/in.mlir":2:3): error: cc overflow, requires 2097152 bits while 1048576 bits available! \
(possible reason: tiling basic block is too large)
"""
_DROPPED_910 = """\
[NOTE] Due to Cbuf overflow, automatically set enable-code-motion to false, set \
enable-auto-multi-buffer to false; compilation then succeeded.
"""


def _text(name: str) -> str:
  return (_DATA / f"{name}.mlir").read_text(encoding="utf-8")


def test_double_buffered_matmul_on_one_cube_core():
  (program,), workspace = parse_programs(_text("aic_910"))
  assert (program.core, workspace) == ("AIC", 0)
  held = {buffer.role: buffer for buffer in program.buffers}
  assert set(held) == {"A", "B", "accumulator"}
  # 32x16 and 16x64 bfloat16, two of each; 32x64 float32, one
  assert (held["A"].copy_bytes, held["A"].count) == (32 * 16 * 2, 2)
  assert (held["B"].copy_bytes, held["B"].count) == (16 * 64 * 2, 2)
  assert (held["accumulator"].size_bytes, held["accumulator"].space) == (32 * 64 * 4, "L0C")
  assert program.peak_bytes("L1") == 2 * (32 * 16 + 16 * 64) * 2
  (product,) = program.products
  assert (product.rows, product.depth, product.columns, product.element) == (32, 16, 64, "bf16")
  assert not program.flags_set
  assert not program.flags_awaited


def test_mixed_kernel_of_a_910_hands_over_in_a_workspace():
  (cube, vector), workspace = parse_programs(_text("mixed_910"))
  assert (cube.core, vector.core) == ("AIC", "AIV")
  assert workspace == 32 * 64 * 2  # the rounded product
  assert cube.flags_set == ("0",)
  assert vector.flags_awaited == ("0",)
  assert cube.peak_bytes("UB") == 0
  # a vector core has half of the rows; a mask is packed
  sizes = {(buffer.shape, buffer.element): buffer.copy_bytes for buffer in vector.buffers}
  assert sizes[(16, 64), "f32"] == 16 * 64 * 4
  assert sizes[(16, 64), "i1"] == 16 * 64 // 8


def test_mixed_kernel_of_a_950_hands_over_in_ub():
  (cube, vector), workspace = parse_programs(_text("mixed_950"))
  assert workspace == 0
  assert cube.flags_set == vector.flags_awaited == ("0", "1")
  # its double buffers are joined by llvm.select of descriptors
  assert {buffer.role: buffer.count for buffer in cube.buffers if buffer.space == "L1"} == {
    "A": 2,
    "B": 2,
  }
  assert cube.peak_bytes("UB") == vector.peak_bytes("UB") == 32 * 64 * 4


def test_address_that_is_no_constant_is_refused():
  text = _text("aic_910").replace("arith.constant 0 : i64", "some.other_operation")
  with pytest.raises(UnsupportedIrError, match="address that is no constant"):
    parse_programs(text)


def test_module_without_a_kernel_is_refused():
  with pytest.raises(UnsupportedIrError, match="no kernel"):
    parse_programs("module {\n}\n")


def test_names_mean_something_in_their_scope_only():
  text = """\
module {
  func.func @f() {
    %0 = a.outer
    scf.if %c {
      %1 = a.first %0
      use.one %1
    } else {
      %1 = a.second
      use.two %1
    }
    use.three %1
  }
}
"""
  found = {one.operation: one for one in statements(text)}
  assert found["use.one"].operands["%1"] is found["a.first"]
  assert found["use.two"].operands["%1"] is found["a.second"]
  assert "%1" not in found["use.three"].operands
  assert found["a.first"].operands["%0"] is found["a.outer"]
  assert {one.function for one in found.values() if one.operation.startswith("use")} == {"f"}


@pytest.mark.parametrize("text", ["module {\n", "}\n"])
def test_braces_that_do_not_balance_are_refused(text):
  with pytest.raises(UnsupportedIrError, match="unbalanced"):
    statements(text)


@pytest.mark.parametrize(
  ("text", "expected", "size_bytes"),
  [
    (
      "memref<4x8x16x16xbf16, #hivm.address_space<cbuf>>",
      MemrefType((4, 8, 16, 16), "bf16", "L1"),
      16384,
    ),
    (
      "memref<64xf32, strided<[1], offset: ?>, #hivm.address_space<ub>>",
      MemrefType((64,), "f32", "UB"),
      256,
    ),
    ("memref<3x5xi1, #hivm.address_space<ub>>", MemrefType((3, 5), "i1", "UB"), 2),
    ("memref<f32, #hivm.address_space<ub>> to", MemrefType((), "f32", "UB"), 4),
    ("memref<0xf32, #hivm.address_space<ub>>", MemrefType((0,), "f32", "UB"), 0),
  ],
)
def test_memref_types(text, expected, size_bytes):
  assert parse_memref(text) == expected
  assert expected.size_bytes == size_bytes


@pytest.mark.parametrize(
  "text", ["tensor<4xf32>", "memref<4xf7, #hivm.address_space<ub>>", "memref<4xf32, #other<1>>"]
)
def test_unknown_memref_types_are_refused(text):
  with pytest.raises(UnsupportedIrError):
    parse_memref(text)


def test_size_not_known_at_compile_time_is_refused():
  with pytest.raises(UnsupportedIrError, match="not known"):
    _ = parse_memref("memref<?xf32, #hivm.address_space<ub>>").size_bytes


def test_overflow_with_bits_wanted_and_had():
  messages = parse_messages(_OVERFLOW_910)
  assert messages.overflow == Overflow("L0C", 2097152, 1048576)
  assert messages.given_up == ("enable-code-motion", "enable-auto-multi-buffer")
  assert "262144 B" in str(messages.overflow)
  assert not any("hivmc" in note for note in messages.notes)


def test_double_buffering_dropped_in_silence_is_read_from_the_note():
  messages = parse_messages(_DROPPED_910)
  assert messages.overflow is None
  assert "enable-auto-multi-buffer" in messages.given_up


def test_sub_block_that_was_reverted():
  log = "[hivm-bind-sub-block] revert f_mix_aiv: tile-and-slice preparation failed\n"
  assert parse_messages(log).sub_block_reverted == "tile-and-slice preparation failed"
  assert parse_messages("").sub_block_reverted == ""


def test_plan_that_does_not_fit_says_so():
  plan = AscendPlan(
    kernel="k",
    target="Ascend910B3",
    multi_buffer=True,
    sub_block=True,
    fits=False,
    overflow=Overflow("UB", 3145728, 1572864),
    core="",
    programs=(),
    workspace_bytes_per_block=0,
    double_buffering="does not fit",
    given_up=(),
    sub_block_reverted="",
    notes=(),
    stages=FrozenMap(),
  )
  with pytest.raises(InfeasibleTileError, match=r"UB needs 3145728 bits .* 1572864 bits"):
    plan.check()
