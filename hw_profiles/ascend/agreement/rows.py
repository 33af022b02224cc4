"""Compiled tiles on record: what was asked and what the compiler planned, one JSON line each."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from hw_profiles.ascend.errors import CompilerFailedError, UnsupportedIrError
from hw_profiles.ascend.plan import AscendPlan
from hw_profiles.frozen_map import FrozenMap

RESULTS = pathlib.Path(__file__).parents[3] / "docs" / "results" / "ascend-plans"
_SPACES = ("L1", "L0C", "UB")
_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class Case:
  """One kernel and how it was compiled.

  Attributes:
    family: Which sweep it belongs to: the file's name.
    op: The public function.
    shapes: Sizes by name.
    dtype: Of the operands.
    config: The tile's fields that are not at their default.
    options: The op's own options.
    target: The compiler's name of the device.
    multi_buffer: Whether double buffering was asked for.
    sub_block: Whether a mixed tile was to be shared between the vector cores.
  """

  family: str
  op: str
  shapes: FrozenMap[str, int]
  dtype: str
  config: FrozenMap[str, int]
  options: FrozenMap[str, Any]
  target: str
  multi_buffer: bool
  sub_block: bool


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What the compiler made of a case.

  Attributes:
    outcome: "fits", "overflow", or why there is no plan: "rejected", "crashed",
      "timed out" or "unsupported".
    overflow_space: The memory that was too small; "" otherwise.
    needed_bits: What it wanted there.
    core: "AIC", "AIV" or "mixed"; "" without a plan.
    double_buffering: As in `AscendPlan`.
    sub_block_reverted: Whether it did not share the tile although asked to.
    peak_bytes: End of the last buffer, by memory.
    role_bytes: Bytes of all copies of A, B, accumulator...
    workspace_bytes: GM workspace of a block.
    message: Without a plan: the first line of the reason.
  """

  outcome: str
  overflow_space: str = ""
  needed_bits: int = 0
  core: str = ""
  double_buffering: str = ""
  sub_block_reverted: bool = False
  peak_bytes: FrozenMap[str, int] = dataclasses.field(default_factory=FrozenMap)
  role_bytes: FrozenMap[str, int] = dataclasses.field(default_factory=FrozenMap)
  workspace_bytes: int = 0
  message: str = ""


@dataclasses.dataclass(frozen=True)
class PlanRow:
  """A case with its outcome."""

  case: Case
  outcome: Outcome


def outcome_of(plan: AscendPlan) -> Outcome:
  """What is kept of a plan."""
  if plan.overflow is not None:
    return Outcome(
      "overflow",
      overflow_space=plan.overflow.space,
      needed_bits=plan.overflow.needed_bits,
      double_buffering=plan.double_buffering,
    )
  roles = sorted({buffer.role for buffer in plan.buffers if buffer.role})
  return Outcome(
    "fits",
    core=plan.core,
    double_buffering=plan.double_buffering,
    sub_block_reverted=bool(plan.sub_block_reverted),
    peak_bytes=FrozenMap({space: plan.peak_bytes(space) for space in _SPACES}),
    role_bytes=FrozenMap({role: plan.role_bytes(role) for role in roles}),
    workspace_bytes=plan.workspace_bytes_per_block,
  )


def recorded(compile_case: Callable[[], AscendPlan]) -> Outcome:
  """The outcome of a compilation, failures included."""
  try:
    return outcome_of(compile_case())
  except CompilerFailedError as error:
    return Outcome(error.kind, message=str(error).split(": ", 1)[-1].splitlines()[0][:160])
  except UnsupportedIrError as error:
    return Outcome("unsupported", message=str(error).splitlines()[0][:160])


def _to_json(row: PlanRow) -> str:
  case = dataclasses.asdict(row.case)
  del case["family"]
  defaults = dataclasses.asdict(Outcome(""))
  kept = {
    name: value
    for name, value in dataclasses.asdict(row.outcome).items()
    if value != defaults[name]
  }
  return json.dumps({**case, **kept}, separators=(",", ":"), sort_keys=True)


def _from(cls: type[_Result], entry: dict[str, Any]) -> _Result:
  values = {
    field.name: entry[field.name]
    for field in dataclasses.fields(cls)  # type: ignore[arg-type]
    if field.name in entry
  }
  return cls(
    **{
      name: FrozenMap(value) if isinstance(value, dict) else value for name, value in values.items()
    }
  )


def path_of(family: str) -> pathlib.Path:
  """The file of a family's rows."""
  return RESULTS / f"{family}.jsonl"


def read_rows(path: pathlib.Path) -> list[PlanRow]:
  """The rows of a file; none where it does not exist.

  Raises:
    ValueError: a line is no row; the message has its number.
  """
  if not path.exists():
    return []
  rows = []
  for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
    try:
      entry = {**json.loads(line), "family": path.stem}
      rows.append(PlanRow(_from(Case, entry), _from(Outcome, entry)))
    except (ValueError, TypeError) as error:
      raise ValueError(f"{path.name}: line {number}: no row of compiled plans: {error}") from None
  return rows


def append_rows(path: pathlib.Path, rows: Iterable[PlanRow]) -> None:
  """Add rows at the end of a file."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with path.open("a", encoding="utf-8") as file:
    file.writelines(_to_json(row) + "\n" for row in rows)
