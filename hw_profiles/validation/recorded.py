"""The errors that the last comparison with measured times found, as recorded."""

import dataclasses
import functools
import json
import pathlib
from typing import Any

from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.registry import get_profile, list_profiles

RECORDED = pathlib.Path(__file__).parent / "model_errors.json"
# A time this much beyond the measured ones is still like them.
_MARGIN = 1.5
LIMITS = pathlib.Path(__file__).parent / "limits.json"


@dataclasses.dataclass(frozen=True)
class RelativeErrors:
  """|predicted - measured| / measured over some rows.

  Attributes:
    median: Of them.
    largest: The worst row's.
    row_count: How many they are.
  """

  median: float
  largest: float
  row_count: int


@dataclasses.dataclass(frozen=True)
class ModelError:
  """How far predicted times of an op were from measured ones on a device.

  Attributes:
    median_absolute_relative_error: Median of |predicted - measured| / measured.
    largest_absolute_relative_error: The worst row.
    median_abs_log2: Median of |log2(predicted / measured)|.
    p90_abs_log2: Its 90th percentile.
    row_count: Measured rows compared, none of which a constant was chosen on.
    shortest_us: The shortest measured time among them.
    longest_us: The longest.
    source: Which rows, from where, and with which stand-ins.
    best_tiles: Of the rows that name no tile, held against the model's best; None
      where there is none.
    named_tiles: Of the rows that name their tile, and are planned with it.
  """

  median_absolute_relative_error: float
  largest_absolute_relative_error: float
  median_abs_log2: float
  p90_abs_log2: float
  row_count: int
  shortest_us: float
  longest_us: float
  source: str
  best_tiles: RelativeErrors | None
  named_tiles: RelativeErrors | None

  def covers(self, time_us: float) -> bool:
    """Whether a time is among those that were measured, or within a factor of 1.5 of one."""
    return self.shortest_us / _MARGIN <= time_us <= self.longest_us * _MARGIN


_PARTS = ("best_tiles", "named_tiles")


def _errors_of(entry: dict[str, Any] | None) -> RelativeErrors | None:
  return None if entry is None else RelativeErrors(**entry)


@functools.cache
def _errors() -> dict[tuple[str, str], ModelError]:
  """By op and profile."""
  document = json.loads(RECORDED.read_text(encoding="utf-8"))
  return {
    (op, profile): ModelError(**error | {name: _errors_of(error.get(name)) for name in _PARTS})
    for op, profiles in document["errors"].items()
    for profile, error in profiles.items()
  }


def recorded_error(op: str, profile: GpuProfile | NpuProfile) -> ModelError | None:
  """The error of an op's time model on a device; None where it was never checked.

  A profile whose numbers the caller changed is another device, never checked.

  Args:
    op: The op's name, for example "matmul".
    profile: The device.
  """
  error = _errors().get((op, profile.name))
  return error if error is not None and _is_shipped(profile) else None


def _is_shipped(profile: GpuProfile | NpuProfile) -> bool:
  if profile.name not in list_profiles():
    return False
  shipped = get_profile(profile.name)
  return profile is shipped or profile == shipped


@functools.cache
def limits() -> dict[tuple[str, str], str]:
  """Why errors are larger than aimed at, by op and profile, of those that are."""
  document = json.loads(LIMITS.read_text(encoding="utf-8"))
  return {(entry["op"], entry["profile"]): entry["why"] for entry in document["limits"]}


def known_limit(op: str, profile: GpuProfile | NpuProfile) -> str | None:
  """What of an op on a device is outside the model's evidence; None: nothing that is known."""
  why = limits().get((op, profile.name))
  return why if why is not None and _is_shipped(profile) else None
