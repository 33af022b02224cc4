"""Every value that can be computed is, by one table, and is what the texts print."""

import collections

import golden
import pytest

from hw_profiles.examples.topics import TOPICS
from reference.examples import numerics

TABLES = {**TOPICS, "numerics": numerics.COMPUTED}

# 8 and not 4 for the tile of 8 x 8; 31.752 is printed cut off, 31.7
CONTRADICTED = {"s000.thread.outer_over_inner", "s004.ex5-3.t64.ai"}


@pytest.mark.parametrize(
  ("topic", "identifier"), [(topic, name) for topic, table in TABLES.items() for name in table]
)
def test_value(topic, identifier):
  value = golden.VALUES[identifier]
  result = TABLES[topic][identifier](value.inputs)
  assert value.is_met_by(result), f"{result!r}: expected {value.expected!r} {value.unit}"


def test_every_recomputable_value_is_computed_by_one_table():
  claims = collections.Counter(name for table in TABLES.values() for name in table)
  assert len(golden.RECOMPUTABLE) == 470
  assert sorted(golden.RECOMPUTABLE - set(claims)) == []
  assert sorted(set(claims) - golden.RECOMPUTABLE) == []
  assert {name for name, count in claims.items() if count > 1} == set()


def test_the_texts_contradict_themselves_only_where_that_is_known():
  found = {
    name
    for table in TABLES.values()
    for name, compute in table.items()
    if golden.VALUES[name].printed_agrees(compute(golden.VALUES[name].inputs)) is False
  }
  assert found == CONTRADICTED
  for name in CONTRADICTED:
    assert golden.VALUES[name].note


def test_integers_are_held_exactly():
  flops = golden.VALUES["s000.gemm.flops_4096"]
  assert flops.is_met_by(2 * 4096**3)
  assert not flops.is_met_by(2 * 4096**3 + 1)
  needed = golden.VALUES["s000.regfile.bw_needed_at_peak"]
  assert not needed.is_met_by(needed.expected + 1)


def test_a_printed_number_agrees_to_its_last_digit():
  ridge = golden.VALUES["s000.roofline.v100_ridge"]
  assert (ridge.printed, ridge.half_unit) == (17, 0.5)
  assert ridge.printed_agrees(17.49)
  assert ridge.printed_agrees(17.51) is False
  assert golden.VALUES["s000.gemm.flops_4096"].printed_agrees(0) is None


def test_lists_are_held_item_by_item():
  origin = golden.VALUES["s000.warp.origin_tid31"]
  assert origin.is_met_by([24, 56])
  assert origin.is_met_by((24, 56))
  assert not origin.is_met_by([24, 57])
  assert not origin.is_met_by([24])
