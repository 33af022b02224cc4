"""Compares predicted times with measured ones, op by op and device by device.

    python -m hw_profiles.validation            prints every row and the summary
    python -m hw_profiles.validation --write    and records it in model_errors.json

The rows of an op are in measured_<op>.json: the fields of its problem, the
device and its profile, the time and its source. Rows that name a config are
planned with it. The others are a library's own choice and are compared with the
best plan of the default candidates: what a tuned kernel should take.
"""

import dataclasses
import functools
import json
import os
import pathlib
import statistics
from typing import Any

from hw_profiles.planner.op_registry import registered
from hw_profiles.planner.plan import plan
from hw_profiles.planner.ranking import rank
from hw_profiles.registry import get_profile, list_profiles
from hw_profiles.validation.recorded import RECORDED, ModelError

DIRECTORY = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Comparison:
  """One measured run and what the model says.

  Attributes:
    profile: The profile it is compared with.
    device: The device as the source names it.
    implementation: What was measured.
    problem: What was computed.
    config: The tile predicted with.
    predicted_us: By the model.
    measured_us: By the source.
    bound: The resource the model says sets the time.
    stands_in: Whether profile fields were changed for a sibling device.
  """

  profile: str
  device: str
  implementation: str
  problem: Any
  config: Any
  predicted_us: float
  measured_us: float
  bound: str
  stands_in: bool

  @property
  def relative_error(self) -> float:
    """(predicted - measured) / measured."""
    return self.predicted_us / self.measured_us - 1


def measured_file(op: str) -> pathlib.Path:
  """Where the measured rows of an op are, if there are any."""
  return DIRECTORY / f"measured_{op}.json"


def measured_ops() -> tuple[str, ...]:
  """Names of the ops that have measured rows."""
  return tuple(model.name for model in registered() if measured_file(model.name).exists())


@functools.cache
def measured_rows(op: str) -> tuple[dict[str, Any], ...]:
  """The rows of `measured_file`."""
  return tuple(json.loads(measured_file(op).read_text(encoding="utf-8"))["rows"])


def _compare(op: str, row: dict[str, Any]) -> Comparison:
  model = next(model for model in registered() if model.name == op)
  profile = get_profile(row["profile"])
  if "stand_in" in row:
    profile = dataclasses.replace(profile, **row["stand_in"])
  names = {field.name for field in dataclasses.fields(model.problem_class)}
  problem = model.problem_class(**{name: row[name] for name in names if name in row})
  if "config" in row:
    best = plan(problem, model.config_class(**row["config"]), profile)
    best.check()
  else:
    best = rank(problem, profile, top=1)[0]
  assert best.predicted_us is not None
  return Comparison(
    profile=profile.name,
    device=row["device"],
    implementation=row["implementation"],
    problem=problem,
    config=best.config,
    predicted_us=best.predicted_us,
    measured_us=row["measured_us"],
    bound=best.bound,
    stands_in="stand_in" in row,
  )


@functools.cache
def comparisons(op: str, profile: str) -> tuple[Comparison, ...]:
  """Every measured row of one op on one profile, compared."""
  return tuple(_compare(op, row) for row in measured_rows(op) if row["profile"] == profile)


def model_error(op: str, profile: str) -> ModelError | None:
  """The error over all rows of one op on one profile; None where there are none."""
  compared = comparisons(op, profile)
  if not compared:
    return None
  errors = [abs(comparison.relative_error) for comparison in compared]
  devices = sorted({comparison.device for comparison in compared})
  stand_ins = sum(comparison.stands_in for comparison in compared)
  return ModelError(
    median_absolute_relative_error=round(statistics.median(errors), 3),
    largest_absolute_relative_error=round(max(errors), 3),
    row_count=len(errors),
    source=(
      f"validation/{measured_file(op).name}: {', '.join(devices)}"
      + (f"; {stand_ins} rows on sibling devices with fields changed" if stand_ins else "")
      + "; constants marked calibrated were chosen by hand on a few of them"
    ),
  )


def model_errors() -> dict[str, dict[str, ModelError]]:
  """By op and profile, of those that have rows."""
  errors: dict[str, dict[str, ModelError]] = {}
  for op in measured_ops():
    of_op = {profile: model_error(op, profile) for profile in list_profiles()}
    errors[op] = {profile: error for profile, error in of_op.items() if error is not None}
  return errors


def write_model_errors(path: pathlib.Path = RECORDED) -> None:
  """Records `model_errors()` in a file, which is replaced whole."""
  document = {
    "about": "Written by python -m hw_profiles.validation --write; not by hand.",
    "errors": {
      op: {profile: dataclasses.asdict(error) for profile, error in profiles.items()}
      for op, profiles in model_errors().items()
    },
  }
  fresh = path.with_name(f"{path.name}.new")
  fresh.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
  os.replace(fresh, path)
