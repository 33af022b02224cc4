"""Compares predicted times with measured ones, op by op and device by device.

    python -m hw_profiles.validation            prints every row and the summary
    python -m hw_profiles.validation --write    and records it in model_errors.json
                                                and docs/model-accuracy.md

A row that names a tile is planned with it. The others are a library's own choice
and are compared with the best plan of the default candidates: what a tuned kernel
should take. Constants are chosen on the calibration half alone (`halves`); errors
are those of the other half.
"""

import dataclasses
import functools
import json
import os
import pathlib
import statistics
from collections import Counter
from typing import Any

from hw_profiles.planner.plan import plan, schedules
from hw_profiles.planner.ranking import rank
from hw_profiles.planner.tile_plan import TilePlan
from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.registry import get_profile, list_profiles
from hw_profiles.validation.accuracy import Accuracy, accuracy
from hw_profiles.validation.halves import calibration_half
from hw_profiles.validation.measured import MeasuredRow, measured_ops, measured_rows
from hw_profiles.validation.problems import NotComparable, problems
from hw_profiles.validation.recorded import RECORDED, ModelError, RelativeErrors


@dataclasses.dataclass(frozen=True)
class Comparison:
  """One measured time and what the model says.

  Attributes:
    row: What was measured.
    plans: What it is compared with; several where the row is their sum.
    calibrates: Whether the row is in the calibration half.
  """

  row: MeasuredRow
  plans: tuple[TilePlan[Any, Any], ...]
  calibrates: bool

  @property
  def predicted_us(self) -> float:
    """By the model: the plans' times added up."""
    return sum(one.predicted_us for one in self.plans if one.predicted_us is not None)

  @property
  def measured_us(self) -> float:
    """By the source."""
    return self.row.measured_us

  @property
  def relative_error(self) -> float:
    """(predicted - measured) / measured."""
    return self.predicted_us / self.measured_us - 1

  @property
  def memory_share(self) -> float:
    """The bytes that the plans take from device memory, over what its peak moves in that time.

    Above 1 part of them was in L2, or the sizes are not as stated.
    """
    device = _device(self.row)
    moved = sum(
      one.traffic_bytes.get("dram", one.traffic_bytes.get("hbm", 0)) for one in self.plans
    )
    return moved / device.memory_bandwidth_bytes_per_s * 1e6 / self.measured_us

  @property
  def problem_key(self) -> tuple[str, str]:
    """Equal for rows of one problem on one device."""
    return self.row.device, self.row.problem_key

  @property
  def tile_key(self) -> tuple[Any, ...] | None:
    """The tile, where the source says which ran."""
    return tuple(sorted(self.row.config.items())) if self.row.config else None


@dataclasses.dataclass(frozen=True)
class Compared:
  """The rows of one op on one profile.

  Attributes:
    comparisons: Those that the planner could be asked.
    skipped: Reason to how many rows it could not be asked.
  """

  comparisons: tuple[Comparison, ...]
  skipped: dict[str, int]

  @property
  def reported(self) -> tuple[Comparison, ...]:
    """Those outside the calibration half."""
    return tuple(one for one in self.comparisons if not one.calibrates)


def _device(row: MeasuredRow) -> GpuProfile | NpuProfile:
  """The profile of the row, with the fields that the measured device has otherwise."""
  device: GpuProfile | NpuProfile = get_profile(row.profile)
  return dataclasses.replace(device, **row.stand_in) if row.stand_in else device


@functools.cache
def _best(
  problem: Any, device: GpuProfile | NpuProfile, schedule: str
) -> TilePlan[Any, Any] | None:
  """The fastest candidate; None where there is none. A third of the rows repeat a problem."""
  return next(iter(rank(problem, device, top=1, schedule=schedule)), None)


def _plans(row: MeasuredRow) -> tuple[TilePlan[Any, Any], ...]:
  device = _device(row)
  found = []
  for model, problem in problems(row):
    # libraries' kernels are written by hand: the last that Ascend has
    by_hand = model.npu_schedules[-1].NAME if isinstance(device, NpuProfile) else "auto"
    requested = row.schedule or by_hand
    try:
      schedules(model, device, requested)
    except ValueError as error:
      raise NotComparable(str(error)) from None
    if row.config:
      best = plan(problem, model.config_class(**row.config), device, schedule=requested)
    else:
      first = _best(problem, device, requested)
      if first is None:
        raise NotComparable(f"{model.name}: no candidate fits {device.name}")
      best = first
    if best.predicted_us is None:
      raise NotComparable(f"{model.name}: {best.reason}")
    found.append(best)
  return tuple(found)


@functools.cache
def compared(op: str, profile: str) -> Compared:
  """Every measured row of one op on one profile."""
  rows = [row for row in measured_rows(op) if row.profile == profile]
  calibration = calibration_half(rows)
  comparisons = []
  skipped: Counter[str] = Counter()
  for row in rows:
    try:
      plans = _plans(row)
    except NotComparable as why:
      skipped[str(why)] += 1
      continue
    comparisons.append(Comparison(row, plans, any(row is one for one in calibration)))
  return Compared(tuple(comparisons), dict(skipped))


def comparisons(op: str, profile: str) -> tuple[Comparison, ...]:
  """`compared` without what was skipped."""
  return compared(op, profile).comparisons


def model_accuracy(op: str, profile: str) -> Accuracy | None:
  """Statistics of the rows outside the calibration half; None where there are none.

  The correlation across tiles is over all rows, as few name their tile and no
  constant is chosen to put tiles in order.
  """
  found = compared(op, profile)
  return accuracy(found.reported, tile_rows=found.comparisons)


def model_error(op: str, profile: str) -> ModelError | None:
  """The error on the rows outside the calibration half; None where there are none."""
  reported = compared(op, profile).reported
  found = model_accuracy(op, profile)
  if found is None:
    return None
  errors = [abs(comparison.relative_error) for comparison in reported]
  devices = sorted({comparison.row.device for comparison in reported})
  stand_ins = sum(bool(comparison.row.stand_in) for comparison in reported)
  return ModelError(
    median_absolute_relative_error=round(statistics.median(errors), 3),
    largest_absolute_relative_error=round(max(errors), 3),
    median_abs_log2=round(found.median_abs_log2, 3),
    p90_abs_log2=round(found.p90_abs_log2, 3),
    row_count=len(errors),
    shortest_us=min(comparison.measured_us for comparison in reported),
    longest_us=max(comparison.measured_us for comparison in reported),
    source=(
      f"docs/model-accuracy.md: {', '.join(devices)}"
      + (f"; {stand_ins} rows on sibling devices with fields changed" if stand_ins else "")
      + "; none of them used to choose a constant"
    ),
    best_tiles=_relative_errors([one for one in reported if not one.row.config]),
    named_tiles=_relative_errors([one for one in reported if one.row.config]),
  )


def _relative_errors(rows: list[Comparison]) -> RelativeErrors | None:
  """None where there are no rows."""
  errors = [abs(one.relative_error) for one in rows]
  if not errors:
    return None
  return RelativeErrors(round(statistics.median(errors), 3), round(max(errors), 3), len(errors))


def model_errors() -> dict[str, dict[str, ModelError]]:
  """By op and profile, of those that have rows to report."""
  errors: dict[str, dict[str, ModelError]] = {}
  for op in measured_ops():
    of_op = {profile: model_error(op, profile) for profile in list_profiles()}
    found = {profile: error for profile, error in of_op.items() if error is not None}
    if found:
      errors[op] = found
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
  replace_file(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def replace_file(path: pathlib.Path, text: str) -> None:
  """Writes a file whole, or leaves it as it was."""
  fresh = path.with_name(f"{path.name}.new")
  fresh.write_text(text, encoding="utf-8")
  os.replace(fresh, path)
