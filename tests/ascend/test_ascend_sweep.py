"""The cases of the sweep, and that it resumes where it stopped."""

import collections
import random

import pytest

from hw_profiles.ascend import get_target
from hw_profiles.ascend.agreement import rows
from hw_profiles.ascend.agreement.compare import has_verdict
from hw_profiles.ascend.agreement.document import OP_FAMILIES
from hw_profiles.ascend.agreement.problems import planned_as
from hw_profiles.ascend.needs import compiler_needs
from pallas_kernels.lowering import sweep
from pallas_kernels.lowering.sweep_cases import FAMILIES


@pytest.mark.parametrize("op_family", OP_FAMILIES)
def test_600_tiles_of_each_op_family_and_target(op_family):
  cases = [case for name in OP_FAMILIES[op_family] for case in FAMILIES[name]()]
  assert len(set(cases)) == len(cases)
  counts = collections.Counter(case.target for case in cases)
  assert set(counts) == {"Ascend910B3", "Ascend950PR_9589"}
  assert min(counts.values()) >= 600


def test_every_family_is_in_an_op_family():
  assert set(FAMILIES) == {name for names in OP_FAMILIES.values() for name in names}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_case_can_be_planned_and_modelled(family):
  kinds = {(case.op, case.dtype, case.target): case for case in FAMILIES[family]()}
  for case in kinds.values():
    assert case.family == family
    problem, config = planned_as(case)
    assert (case.config["num_stages"] > 1) == case.multi_buffer
    compiler_needs(problem, config, get_target(case.target), sub_block=case.sub_block)


@pytest.mark.lowering
@pytest.mark.compilers
def test_sweep_resumes(tmp_path, monkeypatch):
  cases = [
    case
    for case in FAMILIES["matmul"]()
    if case.config["block_m"] == 16 and case.config["block_n"] == 16 and case.dtype == "bfloat16"
  ]
  first, second = sweep._groups(cases)[:2]
  monkeypatch.setattr(rows, "RESULTS", tmp_path)
  monkeypatch.setitem(sweep.FAMILIES, "matmul", lambda: iter([*first, *second]))
  sweep.sweep("matmul", sample=1, jobs=1)
  path = rows.path_of("matmul")
  begun = rows.read_rows(path)
  assert len(begun) == len(first)
  sweep.sweep("matmul", sample=None, jobs=2)
  done = rows.read_rows(path)
  assert done[: len(begun)] == begun
  assert {row.case for row in done} == {*first, *second}
  assert all(row.outcome.outcome == "fits" for row in done)


@pytest.mark.lowering
@pytest.mark.compilers
def test_kernel_that_pallas_does_not_lower_is_recorded():
  case = next(FAMILIES["matmul"]())
  wrong = sweep.compile_cases(
    [rows.dataclasses.replace(case, config=rows.FrozenMap({**case.config, "block_m": 48}))]
  )
  assert wrong[0].outcome.outcome == "not lowered"
  assert "block_m=48" in wrong[0].outcome.message


@pytest.mark.lowering
@pytest.mark.compilers
@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_plans_are_what_the_compiler_says_today(family):
  """Of two kernels of each family, drawn with a fixed seed."""
  recorded = {
    row.case: row.outcome
    for row in rows.read_rows(rows.path_of(family))
    # a causal tile that does not fit is compiled three times, up to a minute of an idle core
    if has_verdict(row) and (family != "attention_causal" or row.outcome.outcome == "fits")
  }
  for group in random.Random(0).sample(sweep._groups(recorded), 2):
    for row in sweep.compile_cases(group[:2]):
      assert row.outcome == recorded[row.case], row.case
