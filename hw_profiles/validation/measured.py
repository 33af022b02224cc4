"""Measured times as the data files have them, one file a family of ops."""

import dataclasses
import functools
import json
import math
import pathlib
from typing import Any, Literal, get_args

from hw_profiles.frozen_map import FrozenMap
from hw_profiles.registry import list_profiles

DIRECTORY = pathlib.Path(__file__).parent
FAMILIES = ("matmul", "gated_quantized", "attention", "rowwise")
UNUSED = DIRECTORY / "unused_rows.json"

Grade = Literal["A", "B"]


@dataclasses.dataclass(frozen=True)
class MeasuredRow:
  """One measured time.

  Attributes:
    op: What was computed, for example "matmul"; see `problems` for those that are
      one op's problem in another guise.
    profile: The profile that stands for the device.
    device: The device as the source names it.
    implementation: What was measured.
    shape: Sizes, as fields of the op's problem.
    dtype: Of the operands.
    measured_us: Device time, unless `note` says otherwise.
    grade: "A": a table by the kernel's authors with exact shape, device and method.
      "B": shape exact, device or method partly unstated.
    source: Where it was published, or how it was measured.
    options: Other fields of the problem.
    config: The tile that ran; empty where the source does not say: then the best
      plan of the default candidates is compared, what a tuned kernel should take.
    schedule: How the kernel works where the planner would choose another way
      ("multistage" of an mma.sync kernel on Hopper); None: as the planner chooses.
    stand_in: Fields of `profile` that the measured device, a sibling, has otherwise.
    calibrates: The constant that was chosen to meet this row: a field of `profile`,
      or an op model's by its name in the code; None: none.
    note: What else to know.
  """

  op: str
  profile: str
  device: str
  implementation: str
  shape: FrozenMap[str, int]
  dtype: str
  measured_us: float
  grade: Grade
  source: str
  options: FrozenMap[str, Any] = dataclasses.field(default_factory=FrozenMap)
  config: FrozenMap[str, Any] = dataclasses.field(default_factory=FrozenMap)
  schedule: str | None = None
  stand_in: FrozenMap[str, Any] = dataclasses.field(default_factory=FrozenMap)
  calibrates: str | None = None
  note: str = ""

  @property
  def problem_key(self) -> str:
    """What was computed, as text: equal for rows of one problem."""
    return json.dumps([self.op, dict(self.shape), self.dtype, dict(self.options)], sort_keys=True)


@dataclasses.dataclass(frozen=True)
class UnusedRows:
  """Measured times that are in no data file.

  Attributes:
    set: The collection they are from.
    kernel: What was measured.
    device: On what.
    reason: Why they are not used.
    count: How many they are.
  """

  set: str
  kernel: str
  device: str
  reason: str
  count: int


def read_rows(path: pathlib.Path) -> tuple[MeasuredRow, ...]:
  """The rows of one data file.

  Raises:
    ValueError: a row has an unknown or a missing field, a time that is not
      positive, an unknown profile or grade; the message names file and row.
  """
  document = json.loads(path.read_text(encoding="utf-8"))
  return tuple(
    _row(entry, f"{path.name}: row {index}") for index, entry in enumerate(document["rows"])
  )


def _row(entry: dict[str, Any], where: str) -> MeasuredRow:
  fields = {field.name: field for field in dataclasses.fields(MeasuredRow)}
  for name in entry:
    if name not in fields:
      raise ValueError(f"{where}: {name}: unknown field; expected one of {', '.join(fields)}")
  for name, field in fields.items():
    required = field.default is field.default_factory is dataclasses.MISSING
    if required and name not in entry:
      raise ValueError(f"{where}: {name}: missing")
  values: dict[str, Any] = {
    name: FrozenMap(value) if isinstance(value, dict) else value for name, value in entry.items()
  }
  row = MeasuredRow(**values)
  if row.profile not in list_profiles():
    raise ValueError(f"{where}: profile={row.profile!r}: expected one of {list_profiles()}")
  if row.grade not in get_args(Grade):
    raise ValueError(f"{where}: grade={row.grade!r}: expected one of {', '.join(get_args(Grade))}")
  if not (math.isfinite(row.measured_us) and row.measured_us > 0):
    raise ValueError(f"{where}: measured_us={row.measured_us!r}: expected a positive number")
  if not row.source:
    raise ValueError(f"{where}: source={row.source!r}: expected where the time is from")
  return row


@functools.cache
def measured_rows(op: str | None = None) -> tuple[MeasuredRow, ...]:
  """All rows, or those of one op."""
  rows = [row for family in FAMILIES for row in read_rows(DIRECTORY / f"measured_{family}.json")]
  return tuple(row for row in rows if op is None or row.op == op)


def measured_ops() -> tuple[str, ...]:
  """What the rows are of, in the order of the files."""
  return tuple(dict.fromkeys(row.op for row in measured_rows()))


@functools.cache
def unused_rows() -> tuple[UnusedRows, ...]:
  """Rows that were left out, and why."""
  document = json.loads(UNUSED.read_text(encoding="utf-8"))
  return tuple(UnusedRows(**entry) for entry in document["rows"])
