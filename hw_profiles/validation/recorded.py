"""The errors that the last comparison with measured times found, as recorded."""

import dataclasses
import functools
import json
import pathlib

from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.registry import get_profile, list_profiles

RECORDED = pathlib.Path(__file__).parent / "model_errors.json"


@dataclasses.dataclass(frozen=True)
class ModelError:
  """How far predicted times of an op were from measured ones on a device.

  Attributes:
    median_absolute_relative_error: Median of |predicted - measured| / measured.
    largest_absolute_relative_error: The worst row.
    median_abs_log2: Median of |log2(predicted / measured)|.
    p90_abs_log2: Its 90th percentile.
    row_count: Measured rows compared, none of which a constant was chosen on.
    source: Which rows, from where, and with which stand-ins.
  """

  median_absolute_relative_error: float
  largest_absolute_relative_error: float
  median_abs_log2: float
  p90_abs_log2: float
  row_count: int
  source: str


@functools.cache
def _errors() -> dict[tuple[str, str], ModelError]:
  """By op and profile."""
  document = json.loads(RECORDED.read_text(encoding="utf-8"))
  return {
    (op, profile): ModelError(**error)
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
  if error is None or profile.name not in list_profiles():
    return None
  shipped = get_profile(profile.name)
  return error if profile is shipped or profile == shipped else None
