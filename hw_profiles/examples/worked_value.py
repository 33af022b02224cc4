"""One value of a course text, and what agreeing with it means."""

import dataclasses
import functools
import json
import numbers
import pathlib
from collections.abc import Mapping
from typing import Any, Literal

VALUES = pathlib.Path(__file__).parent / "values.json"

Kind = Literal["derived", "correction", "given", "measured"]

# float64 operations in another order differ by this, relative
_ROUNDING = 1e-12


@dataclasses.dataclass(frozen=True)
class WorkedValue:
  """One value of a course text.

  Attributes:
    identifier: The text (s000 or s004) and the value's name.
    section: Where it stands; "(own)": it follows from the text, which does not
      print it.
    kind: "derived": computed from `inputs`. "correction": computed, and the text
      says otherwise. "given": a constant of the text. "measured": a time it
      reports.
    what: The formula or, where there is none, what is simulated.
    inputs: What it is computed from.
    expected: The value.
    unit: Its unit.
    tolerance: Relative; 0: exact.
    printed: What the text prints, as a number or word; None: nothing.
    half_unit: Half a unit of the last digit printed; None: printed exactly.
    note: Conditions and contradictions.
  """

  identifier: str
  section: str
  kind: Kind
  what: str
  inputs: Mapping[str, Any]
  expected: Any
  unit: str
  tolerance: float | None
  printed: Any
  half_unit: float | None
  note: str

  @property
  def recomputable(self) -> bool:
    """Whether the library computes it."""
    return self.kind in ("derived", "correction")

  def is_met_by(self, result: Any) -> bool:
    """Whether a result is the expected value, within the tolerance."""
    if not self.tolerance and not _has_float(result):
      return _close(result, self.expected, 0.0)
    return _close(result, self.expected, (self.tolerance or _ROUNDING) * _size(self.expected))

  def printed_agrees(self, result: Any) -> bool | None:
    """Whether a result, rounded as the text rounds, is what it prints; None: it prints nothing."""
    if self.printed is None:
      return None
    rounding = _ROUNDING * _size(self.printed)
    return _close(result, self.printed, (self.half_unit or 0.0) + rounding)


def _is_number(value: object) -> bool:
  return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _has_float(value: Any) -> bool:
  if isinstance(value, list | tuple):
    return any(_has_float(item) for item in value)
  return isinstance(value, float)


def _size(value: Any) -> float:
  """The magnitude that a relative tolerance is of."""
  if _is_number(value):
    return abs(float(value))
  if isinstance(value, list | tuple):
    return max((_size(item) for item in value), default=0.0)
  return 0.0


def _close(result: Any, expected: Any, distance: float) -> bool:
  """Whether each number is within `distance` of its counterpart, all else equal."""
  if isinstance(expected, list | tuple):
    if not isinstance(result, list | tuple) or len(result) != len(expected):
      return False
    return all(
      _close(mine, theirs, distance) for mine, theirs in zip(result, expected, strict=True)
    )
  if _is_number(expected) and _is_number(result):
    return abs(float(result) - float(expected)) <= distance
  return bool(result == expected)


@functools.cache
def worked_values() -> Mapping[str, WorkedValue]:
  """All values by identifier, in the order of the texts."""
  document = json.loads(VALUES.read_text(encoding="utf-8"))
  return {
    entry["id"]: WorkedValue(
      identifier=entry["id"],
      section=entry["section"],
      kind=entry["kind"],
      what=entry["what"],
      inputs=entry["inputs"],
      expected=entry["expected"],
      unit=entry["unit"],
      tolerance=entry["tolerance"],
      printed=entry.get("printed"),
      half_unit=entry.get("half_unit"),
      note=entry["note"],
    )
    for entry in document["values"]
  }
