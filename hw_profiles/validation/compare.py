"""Compares predicted matmul times with measured ones, device by device.

    python -m hw_profiles.validation            prints every row and the summary
    python -m hw_profiles.validation --write    and records it in the data files

Rows that name a config are planned with it. The others are a library's own
choice and are compared with the best plan of the default candidates: what a
tuned kernel should take.
"""

import dataclasses
import functools
import json
import pathlib
import statistics
from typing import Any

from hw_profiles.config import MatmulConfig
from hw_profiles.planner.plan import plan
from hw_profiles.planner.ranking import rank
from hw_profiles.problem import MatmulProblem
from hw_profiles.profile import ModelError
from hw_profiles.registry import DATA_DIRECTORY, get_profile

MEASURED = pathlib.Path(__file__).parent / "measured_matmul.json"


@dataclasses.dataclass(frozen=True)
class Comparison:
  """One measured matmul and what the model says.

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
  problem: MatmulProblem
  config: MatmulConfig
  predicted_us: float
  measured_us: float
  bound: str
  stands_in: bool

  @property
  def relative_error(self) -> float:
    """(predicted - measured) / measured."""
    return self.predicted_us / self.measured_us - 1


def _compare(row: dict[str, Any]) -> Comparison:
  profile = get_profile(row["profile"])
  if "stand_in" in row:
    profile = dataclasses.replace(profile, **row["stand_in"])
  names = {field.name for field in dataclasses.fields(MatmulProblem)}
  problem = MatmulProblem(**{name: row[name] for name in names if name in row})
  if "config" in row:
    best = plan(problem, MatmulConfig(**row["config"]), profile)
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
def comparisons(profile: str) -> tuple[Comparison, ...]:
  """Every measured row of one profile, compared."""
  rows = json.loads(MEASURED.read_text(encoding="utf-8"))["rows"]
  return tuple(_compare(row) for row in rows if row["profile"] == profile)


def model_error(profile: str) -> ModelError | None:
  """The error over all rows of one profile; None where there are none."""
  compared = comparisons(profile)
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
      f"validation/measured_matmul.json: {', '.join(devices)}"
      + (f"; {stand_ins} rows on sibling devices with fields changed" if stand_ins else "")
      + "; constants marked calibrated were chosen by hand on a few of them"
    ),
  )


def write_model_error(profile: str) -> None:
  """Records `model_error(profile)` in the profile's data file."""
  path = DATA_DIRECTORY / f"{profile}.json"
  document = json.loads(path.read_text(encoding="utf-8"))
  error = model_error(profile)
  document["model_error"] = None if error is None else dataclasses.asdict(error)
  path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
