"""The golden values of the course texts, and what holding a result against one means.

Each test module here has a `COMPUTED`: identifier -> how the library computes
that value from the entry's inputs, through its public functions. `values.json`
says where the value stands in which text, and its tolerance.
"""

import json
import numbers
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest

VALUES = {
  value["id"]: value
  for value in json.loads((pathlib.Path(__file__).parent / "values.json").read_text())["values"]
}
RECOMPUTABLE = frozenset(
  name for name, value in VALUES.items() if value["kind"] in ("derived", "correction")
)

Computed = Mapping[str, Callable[[Mapping[str, Any]], Any]]


def each(computed: Computed) -> pytest.MarkDecorator:
  """Parametrizes a test over the identifiers of a module."""
  return pytest.mark.parametrize("identifier", sorted(computed))


def check(identifier: str, computed: Computed) -> None:
  """Fails unless the library computes the entry's value within its tolerance.

  A tolerance of 0 means exact; floats then have the 1e-12 that float64
  operations in another order need.
  """
  value = VALUES[identifier]
  result = computed[identifier](value["inputs"])
  expected = value["expected"]
  is_number = isinstance(expected, numbers.Real) and not isinstance(expected, bool)
  if is_number and isinstance(result, float):
    assert result == pytest.approx(expected, rel=value["tolerance"] or 1e-12, abs=0)
  elif is_number and value["tolerance"]:
    assert result == pytest.approx(expected, rel=value["tolerance"], abs=0)
  elif isinstance(expected, list) and not any(isinstance(item, list) for item in expected):
    assert list(result) == pytest.approx(expected, rel=value["tolerance"] or 1e-12)
  else:
    assert result == expected
