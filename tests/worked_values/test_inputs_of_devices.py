"""Entries that state their device's rates are computed from those, not from the profile's."""

import pytest

from hw_profiles.examples import tiles_and_residency, worked_value

ENTRIES = worked_value.worked_values()
RIDGE_OVER_RATE = {"bw": -1, "peak": 1, "p": 1}
SHARE_OF_PEAK = {"bw": 1, "peak": -1, "p": -1}


@pytest.mark.parametrize(
  ("identifier", "powers"),
  [
    ("s000.roofline.v100_ridge", RIDGE_OVER_RATE),
    ("s004.h100.ridge", RIDGE_OVER_RATE),
    ("s004.rtxpro6000.ridge", RIDGE_OVER_RATE),
    ("s000.naive.dram_bound_fraction_of_peak", SHARE_OF_PEAK),
    ("s000.block.ai_over_ridge", SHARE_OF_PEAK),
    ("s004.ex5-3.t32.mfu_cap", SHARE_OF_PEAK),
    ("s004.little.need_per_sm", {"bw": 1, "sms": -1}),
    ("s004.flip.coverage", {"bw": -1, "sms": 1}),
  ],
)
def test_a_rate_that_doubles_moves_the_value_as_the_formula_says(identifier, powers):
  inputs = ENTRIES[identifier].inputs
  compute = tiles_and_residency.COMPUTED[identifier]
  before = compute(inputs)
  tried = [name for name in powers if name in inputs]
  assert len(tried) == 2
  for name in tried:
    # powers of two: exact in float64
    assert compute({**inputs, name: 2 * inputs[name]}) == before * 2.0 ** powers[name]


@pytest.mark.parametrize(
  ("identifier", "changed", "expected"),
  [
    ("s000.regs.occupancy", {"maxw": 32}, 0.5),
    ("s000.regs.occupancy_at_255", {"sm": 131072}, 0.25),
    ("s000.regs.warps", {"blocks": 4}, 32),
    ("s000.regs.launch_bounds_cap", {"sm": 32768}, 64),
    ("s004.sm.base.smem_left", {"total": 300}, 300 - 2 * 97),
    ("s004.intro.W", {"c": 24576}, 192),
    ("s004.intro.C", {"b": 4}, 48),
    ("s004.ex5-3.t32.rtx_blocks", {"sm": 51200}, 5),
    ("s004.select.resident_64", {"sm": 200}, 6),
    ("s004.loop.linear_tiles", {"a": 8}, 8 * 192),
  ],
)
def test_another_input_gives_what_the_formula_gives(identifier, changed, expected):
  compute = tiles_and_residency.COMPUTED[identifier]
  assert compute({**ENTRIES[identifier].inputs, **changed}) == expected
