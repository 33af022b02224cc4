"""The recorded plans, the model of the compiler beside them, and the document."""

import collections

import pytest

from hw_profiles import AttentionConfig, AttentionProblem, MatmulConfig, MatmulProblem, RowConfig
from hw_profiles.ascend import get_target
from hw_profiles.ascend.agreement import document
from hw_profiles.ascend.agreement.compare import Comparison, compare_all
from hw_profiles.ascend.agreement.reasons import UNEXPLAINED, planner_reason
from hw_profiles.ascend.agreement.rows import (
  Case,
  Outcome,
  PlanRow,
  append_rows,
  read_rows,
  recorded,
)
from hw_profiles.ascend.errors import CompilerFailedError, UnsupportedIrError
from hw_profiles.ascend.needs import compiler_needs
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.rowwise.problem import SwigluProblem

_B3, _950 = get_target("ascend_910b3"), get_target("ascend_950pr")
# what the issue asks of the verdicts, by the memory that binds
_LEAST_AGREEMENT = {"L1": 0.98, "L0C": 0.98, "UB": 0.95}
# of each op family and target
_LEAST_TILES = 600


@pytest.fixture(scope="module")
def comparisons() -> list[Comparison]:
  return [one for rows in document.recorded_families().values() for one in compare_all(rows)]


def test_every_tile_is_planned_as_compiled(comparisons):
  assert {one.planner.schedule for one in comparisons} == {"compiled"}


@pytest.mark.parametrize("op", document.OP_FAMILIES)
def test_there_are_tiles_of_each_op_family_and_target(comparisons, op):
  counts = collections.Counter(
    one.row.case.target for one in comparisons if one.row.case.family in document.OP_FAMILIES[op]
  )
  assert set(counts) == {"Ascend910B3", "Ascend950PR_9589"}
  assert min(counts.values()) >= _LEAST_TILES


@pytest.mark.parametrize("held_out", [False, True])
def test_planner_agrees(comparisons, held_out):
  groups = collections.defaultdict(list)
  for one in comparisons:
    if one.held_out >= held_out:
      space = "UB" if one.binding == "UB" else "L1"
      groups[one.row.case.target, space].append(one.planner_agrees)
  for (target, space), agrees in groups.items():
    assert sum(agrees) / len(agrees) >= _LEAST_AGREEMENT[space], (target, space)


@pytest.mark.parametrize("op", document.OP_FAMILIES)
def test_planner_agrees_on_each_op_family(comparisons, op):
  for target in ("Ascend910B3", "Ascend950PR_9589"):
    agrees = [
      one.planner_agrees
      for one in comparisons
      if one.row.case.family in document.OP_FAMILIES[op] and one.row.case.target == target
    ]
    assert sum(agrees) / len(agrees) >= _LEAST_AGREEMENT["UB"], (op, target)


def test_what_lacked_where_the_cube_core_binds_is_exact(comparisons):
  """A 910 reports it without double buffering, which is left out."""
  wrong = [one.row.case for one in comparisons if one.needs_agree is False and one.binding != "UB"]
  assert not wrong


def test_bytes_of_operands_and_accumulators_are_exact(comparisons):
  checked = [one for one in comparisons if one.bytes_agree is not None]
  assert len(checked) > 1000
  wrong = [one.row.case for one in checked if not one.bytes_agree]
  assert not wrong


def test_every_disagreement_has_a_reason(comparisons):
  for one in comparisons:
    assert bool(planner_reason(one)) == (not one.planner_agrees)
    assert UNEXPLAINED not in planner_reason(one), one.row


def test_document_is_what_the_rows_say():
  written = document.DOCUMENT.read_text(encoding="utf-8")
  assert written == document.text(), "python -m hw_profiles.ascend.agreement --write renews it"


def test_needs_of_a_matmul():
  problem = MatmulProblem(1024, 1024, 1024, "bfloat16")
  needs = compiler_needs(problem, MatmulConfig(64, 32, 128, 2), _B3, sub_block=True)
  assert needs.role_bytes == {"A": 2 * 64 * 128 * 2, "B": 2 * 128 * 32 * 2, "accumulator": 8192}
  assert needs.ub_bytes == 0
  on_950 = compiler_needs(problem, MatmulConfig(64, 32, 128, 2), _950, sub_block=False)
  assert on_950.ub_bytes == 64 * 32 * 4
  wide = compiler_needs(
    MatmulProblem(8, 8, 8, "float32"), MatmulConfig(64, 32, 128), _950, sub_block=False
  )
  assert wide.ub_bytes == 0


def test_needs_name_what_is_exceeded():
  problem = MatmulProblem(1024, 4096, 1024, "bfloat16")
  needs = compiler_needs(problem, MatmulConfig(256, 256, 1024, 2), _B3, sub_block=True)
  assert needs.exceeded(_B3) == ("L1", "L0C")


def test_vector_cores_share_a_tile_on_a_910_only():
  problem = MatmulProblem(1024, 1024, 1024, "bfloat16", activation="silu")
  config = MatmulConfig(128, 128, 64)

  def ub(target, sub_block):
    return compiler_needs(problem, config, target, sub_block=sub_block).ub_bytes

  assert ub(_B3, True) < ub(_B3, False)
  assert ub(_950, True) == ub(_950, False)


def test_needs_of_an_attention_have_both_products():
  problem = AttentionProblem(1, 1024, 2048, 2, 1, 64)
  needs = compiler_needs(problem, AttentionConfig(64, 128, 1), _B3, sub_block=True)
  assert needs.role_bytes == {
    "A": 64 * 64 * 2,
    "B": 128 * 64 * 2,
    "A 2": 64 * 128 * 2,
    "B 2": 128 * 64 * 2,
    "accumulator": 64 * 128 * 4,
    "accumulator 2": 64 * 64 * 4,
  }
  # P lies where K did, if it fits there, and O where S did
  assert needs.role_bytes["A 2"] <= needs.role_bytes["B"]
  assert needs.l1_bytes == sum(needs.role_bytes[role] for role in ("A", "B", "B 2"))
  assert needs.l0c_bytes == needs.role_bytes["accumulator"]
  tall = compiler_needs(problem, AttentionConfig(128, 128, 1), _B3, sub_block=True)
  assert tall.role_bytes["A 2"] > tall.role_bytes["B"]
  assert tall.l1_bytes == sum(tall.role_bytes[role] for role in ("A", "B", "A 2", "B 2"))


def test_product_has_no_room_of_its_own_where_it_fits_into_that_of_the_scores():
  def ub(block_kv, head_dim):
    problem = AttentionProblem(1, 1024, 2048, 2, 1, head_dim)
    config = AttentionConfig(64, block_kv, 1)
    return compiler_needs(problem, config, _950, sub_block=False).ub_bytes

  # 64 x 64 float32 more of O, and then of P·V, too
  assert ub(128, 128) - ub(128, 64) == 64 * 64 * 4
  assert ub(64, 128) - ub(64, 64) == 64 * 64 * 4 + 64 * 128 * 4


def test_needs_of_an_unknown_op():
  with pytest.raises(ValueError, match="no model"):
    compiler_needs(object(), RowConfig(1, 1), _B3, sub_block=True)


def test_small_blocks_of_a_swiglu_fit_and_large_ones_do_not():
  problem = SwigluProblem(1024, 4096, "bfloat16")

  def fits(*block):
    return not compiler_needs(problem, RowConfig(*block), _B3, sub_block=True).exceeded(_B3)

  assert fits(8, 1024)
  assert not fits(8, 2048)


def _row(**outcome: object) -> PlanRow:
  case = Case(
    family="rows",
    op="matmul",
    shapes=FrozenMap(m=64, k=64, n=64),
    dtype="bfloat16",
    config=FrozenMap(block_m=32, block_n=32, block_k=32, num_stages=2),
    options=FrozenMap(),
    target="Ascend910B3",
    multi_buffer=True,
    sub_block=True,
  )
  return PlanRow(case, Outcome(**outcome))


def test_rows_are_read_as_they_were_written(tmp_path):
  rows = [
    _row(outcome="overflow", overflow_space="UB", needed_bits=80),
    _row(outcome="fits", core="AIC", peak_bytes=FrozenMap(L1=8), role_bytes=FrozenMap(A=4, B=4)),
  ]
  path = tmp_path / "rows.jsonl"
  append_rows(path, rows[:1])
  append_rows(path, rows[1:])
  assert read_rows(path) == rows
  assert read_rows(tmp_path / "none.jsonl") == []


def test_line_that_is_no_row_is_named(tmp_path):
  path = tmp_path / "rows.jsonl"
  append_rows(path, [_row(outcome="fits")])
  path.write_text(path.read_text() + "{}\n")
  with pytest.raises(ValueError, match=r"rows\.jsonl: line 2"):
    read_rows(path)


@pytest.mark.parametrize("kind", ["rejected", "crashed", "timed out"])
def test_failures_are_outcomes(kind):
  def fail():
    raise CompilerFailedError("tool", kind, "error: no\nmore", {"linalg": "text"})

  assert recorded(fail).outcome == kind
  assert "error: no" in recorded(fail).message


def test_unsupported_kernels_are_outcomes():
  def fail():
    raise UnsupportedIrError("no rule")

  assert recorded(fail) == Outcome("unsupported", message="no rule")


def test_tile_without_a_note_but_with_one_copy_is_not_as_asked():
  bytes_of = FrozenMap({"A": 2 * 32 * 32 * 2, "B": 32 * 32 * 2, "accumulator": 4096})
  (one,) = compare_all([_row(outcome="fits", double_buffering="kept", role_bytes=bytes_of)])
  assert one.partly_buffered
  assert not one.compiler_fits
