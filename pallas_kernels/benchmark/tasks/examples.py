"""`--task=examples`: the course texts' worked examples, recomputed beside what they print.

Each value goes through the public functions of `hw_profiles` or `reference`,
with the inputs that the text gives. `agrees` is about the text: whether ours,
rounded as the text rounds, is what it prints. `check` is about the library:
whether ours is the value known to be right, also where the text is not.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from hw_profiles.examples.computed import Computed
from hw_profiles.examples.topics import TOPICS
from hw_profiles.examples.worked_value import WorkedValue, worked_values
from pallas_kernels.benchmark import cells, environment
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.rows import FAILED, PASSED, Block, Report, Written

_DIGITS = 6  # significant, of ours in a table


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExampleRow(Written):
  """One value of a course text.

  Attributes:
    id: The text (s000 or s004) and the value's name.
    topic: What it is about.
    section: Where it stands; "(own)": it follows from the text, which does not print it.
    what: The formula or, where there is none, what is simulated.
    inputs: What it is computed from.
    unit: Of the next three.
    printed: What the text prints; None: nothing.
    ours: What the library computes.
    agrees: Whether that is what the text prints; None: it prints nothing.
    check: "passed" where ours is the value known to be right, else "failed".
    note: Conditions, contradictions.
  """

  id: str
  topic: str
  section: str
  what: str
  inputs: Mapping[str, Any]
  unit: str
  printed: Any
  ours: Any
  agrees: bool | None
  check: str
  note: str


def run(options: Options) -> Report:
  """Recomputes every value that can be."""
  rows = tuple(_rows())
  topics = dict.fromkeys(row.topic for row in rows)
  return Report(
    environment=environment.describe(with_device=False),
    rows=rows,
    blocks=(
      _summary(rows),
      *(_block(topic, [row for row in rows if row.topic == topic]) for topic in topics),
    ),
  )


def _tables() -> dict[str, Computed]:
  from reference.examples import numerics  # NumPy, which other tasks start without

  return {**TOPICS, "rounding and order": numerics.COMPUTED}


def _rows() -> Iterator[ExampleRow]:
  values = worked_values()
  for topic, table in _tables().items():
    for identifier in sorted(table, key=list(values).index):
      yield _row(topic, values[identifier], table[identifier](values[identifier].inputs))


def _row(topic: str, value: WorkedValue, ours: Any) -> ExampleRow:
  return ExampleRow(
    id=value.identifier,
    topic=topic,
    section=value.section,
    what=value.what,
    inputs=value.inputs,
    unit=value.unit,
    printed=value.printed,
    ours=ours,
    agrees=value.printed_agrees(ours),
    check=PASSED if value.is_met_by(ours) else FAILED,
    note=value.note,
  )


def _summary(rows: tuple[ExampleRow, ...]) -> Block:
  printed = [row for row in rows if row.agrees is not None]
  contradicted = [row.id for row in printed if not row.agrees]
  wrong = [row.id for row in rows if row.check == FAILED]
  others = sum(not value.recomputable for value in worked_values().values())
  lines = [
    f"{len(rows)} values recomputed. The texts print {len(printed)} of them: "
    f"{len(printed) - len(contradicted)} agree to the last digit printed, "
    f"{len(contradicted)} do not ({cells.names(contradicted)}: see the notes). "
    f"{len(rows) - len(printed)} follow from the texts, which do not print them (agrees: -). "
    f"{others} more are given or measured, not computed.",
  ]
  if wrong:
    lines.append(f"ours is not the value known to be right: {', '.join(wrong)}")
  return Block(title="Worked examples of the course texts", lines=tuple(lines))


def _block(topic: str, rows: list[ExampleRow]) -> Block:
  values = worked_values()
  return Block(
    title=topic,
    header=("id", "what", "printed", "ours", "unit", "agrees", "note"),
    cells=tuple(
      (
        row.id,
        row.what,
        _printed(values[row.id]),
        _number(row.ours),
        row.unit,
        cells.yes_no(row.agrees),
        row.note,
      )
      for row in rows
    ),
    numeric=frozenset({"printed", "ours"}),
  )


def _printed(value: WorkedValue) -> str:
  """With the decimals that the text has."""
  if value.printed is None:
    return "-"
  if value.half_unit is None or not isinstance(value.printed, int | float):
    return _number(value.printed)
  return f"{value.printed:,.{max(0, math.ceil(-math.log10(2 * value.half_unit) - 1e-9))}f}"


def _number(value: Any) -> str:
  """A number, a word, or a list of those, for people."""
  if isinstance(value, list | tuple):
    return f"[{', '.join(_number(item) for item in value)}]"
  if isinstance(value, float) and not value.is_integer():
    return f"{value:,.{_DIGITS}g}"
  if isinstance(value, float):
    value = int(value)
  if isinstance(value, int) and not isinstance(value, bool):
    return f"{value:,}"
  return "-" if value is None else str(value)
