"""The one list of activations."""

import pytest

import hw_profiles as hw
from hw_profiles.activations import activation_cost


@pytest.mark.parametrize("name", hw.ACTIVATIONS)
def test_every_activation_can_be_planned_and_costs_something(name):
  problem = hw.MatmulProblem(64, 64, 64, activation=name)
  assert activation_cost(name).special_functions > 0
  for profile in ("h200", "910b3"):
    plain = hw.plan(hw.MatmulProblem(64, 64, 64), hw.MatmulConfig(64, 64, 64), profile)
    fused = hw.plan(problem, hw.MatmulConfig(64, 64, 64), profile)
    assert fused.predicted_us > plain.predicted_us


def test_an_unknown_activation_is_named_with_those_that_exist():
  with pytest.raises(
    ValueError, match=r"MatmulProblem\.activation='relu': expected None or 'silu'"
  ):
    hw.MatmulProblem(1, 1, 1, activation="relu")
