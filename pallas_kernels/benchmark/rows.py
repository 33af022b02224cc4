"""The result of a task: rows for programs, blocks of text for people.

Rows are what JSON and CSV hold; blocks are what the table and Markdown show.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from pallas_kernels.benchmark.plain_values import plain
from pallas_kernels.benchmark.results import Result

PASSED = "passed"
FAILED = "failed"
NOT_RUN = "not run"
# of a peer, which may compute something a little different: said, but no failure
DIFFERS = "differs"


class Written:
  """What dataclasses of rows share."""

  def as_dict(self) -> dict[str, Any]:
    """The row as JSON holds it: plain values, fields in order."""
    fields = dataclasses.fields(self)  # type: ignore[arg-type]
    return {field.name: plain(getattr(self, field.name)) for field in fields}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row(Written):
  """One tile on one profile (or one run on one device). None: does not apply, or not known.

  The fields from `kernel` to `arguments` are the schema's, in its order; those
  after them say more about the same row, and a task may add `details`.

  Attributes:
    kernel: The op.
    shape: Sizes as `--shape` takes them.
    dtype: Operand dtype.
    tile: The tile as `--tile` takes it.
    profile: Hardware profile that the plan is for.
    vendor: Its vendor.
    fits: Whether the plan fits the profile.
    binding: The resources that limit it.
    buffers: Every on-chip buffer: what it needs and what there is, in bytes.
    working_set_bytes: One program's operand tiles and accumulator.
    traffic_bytes: Bytes between the working buffers and the next tier, whole problem.
    intensity_flop_per_byte: FLOP over `traffic_bytes`.
    resident_blocks: Programs resident at once on an SM or core.
    predicted_us: The planner's estimate, microseconds.
    bound: The resource whose time that is.
    measured_us: Median of a device timer on a GPU, microseconds; never an interpreter's time.
    implementation: What ran.
    max_ulp: Largest distance from the float64 reference, in units of the last place.
    relative_error: Of the whole result: Frobenius norm of the error over that of
      the exact result, no element's own error.
    error_bound: The same ratio with every element's error at its bound, so
      relative_error stays below it where each element passes. The check itself
      holds each element against its own bound: `worst_bound_fraction`.
    check: "passed", "failed" or "not run"; of a peer past its bound "differs".
    arguments: A command line that gives this row again.
    reason: Why it does not fit, or did not run.
    checked: The part of the result that was compared.
    checked_with: What computed it, and where, for example "interpret on cpu":
      not the kernel that `profile`'s plan prices, unless that one runs here.
    notes: Anything else a reader must know.
    details: Further fields of one task, appended under their own names.
  """

  kernel: str
  shape: str
  dtype: str
  tile: str | None = None
  profile: str | None = None
  vendor: str | None = None
  fits: bool | None = None
  binding: tuple[str, ...] | None = None
  buffers: tuple[Mapping[str, Any], ...] | None = None
  working_set_bytes: int | None = None
  traffic_bytes: int | None = None
  intensity_flop_per_byte: float | None = None
  resident_blocks: int | None = None
  predicted_us: float | None = None
  bound: str | None = None
  measured_us: float | None = None
  implementation: str | None = None
  max_ulp: float | None = None
  relative_error: float | None = None
  error_bound: float | None = None
  check: str = NOT_RUN
  arguments: str = ""
  reason: str | None = None
  checked: str | None = None
  checked_with: str | None = None
  notes: tuple[str, ...] = ()
  details: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def as_dict(self) -> dict[str, Any]:
    """The row as JSON holds it: plain values, fields in order, details last."""
    fields = super().as_dict()
    details = fields.pop("details")
    return fields | details


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
  """A titled table and the lines under it; either may be missing.

  Attributes:
    title: One line above.
    header: Column names, with units.
    cells: Rows of text, each as long as `header`.
    numeric: Names in `header` whose cells are numbers, set to the right.
    groups: Lines within the table, each above the row of `cells` with its number.
    lines: Sentences below.
    commands: Shell lines below those, which are never broken.
    text: Lines of a program below those, as they are.
  """

  title: str = ""
  header: tuple[str, ...] = ()
  cells: tuple[tuple[str, ...], ...] = ()
  numeric: frozenset[str] = frozenset()
  groups: Mapping[int, str] = dataclasses.field(default_factory=dict)
  lines: tuple[str, ...] = ()
  commands: tuple[str, ...] = ()
  text: tuple[str, ...] = ()


class Record(Protocol):
  """What a report needs of a row: `Row`, or a task's own."""

  @property
  def check(self) -> str:
    """PASSED, FAILED or NOT_RUN."""
    ...

  def as_dict(self) -> dict[str, Any]:
    """The row as JSON holds it: plain values, fields in order."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
  """What a task returns.

  Attributes:
    environment: The facts that it depends on.
    rows: For programs.
    blocks: For people.
    results: Measured times that `--results` keeps.
    nothing_ran: Whether the task was to run kernels and each was refused.
  """

  environment: Mapping[str, Any]
  rows: tuple[Record, ...]
  blocks: tuple[Block, ...]
  results: tuple[Result, ...] = ()
  nothing_ran: bool = False

  @property
  def failed(self) -> bool:
    """Whether a check failed."""
    return any(row.check == FAILED for row in self.rows)
