"""docs/ascend-agreement.md: the planner and the model of the compiler beside its plans."""

import pathlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from hw_profiles.ascend.agreement.compare import Comparison, compare_all, has_verdict
from hw_profiles.ascend.agreement.reasons import model_reason, planner_reason
from hw_profiles.ascend.agreement.rows import RESULTS, PlanRow, read_rows
from hw_profiles.ascend.install import PINNED

DOCUMENT = pathlib.Path(__file__).parents[3] / "docs" / "ascend-agreement.md"

_HOW = f"""\
# The planner beside Huawei's compiler

Written by `python -m hw_profiles.ascend.agreement --write`; not by hand. The plans are in
`docs/results/ascend-plans/`, recorded by `python -m pallas_kernels.lowering.sweep`, which resumes
where it stopped.

Each tile's portable Pallas kernel was lowered to Triton IR and taken through triton-ascend
{PINNED["triton-ascend"]} and ascendnpu-ir {PINNED["ascendnpu-ir"]} to its memory plan: an address
for every buffer in L1, L0C and UB, or the memory that is too small. Nothing ran on an Ascend
device, no machine code was made, and L0A and L0B are not in the comparison: the compiler neither
plans nor checks them.

Two things of this library are held against these plans:

- the **planner** (`hw_profiles.plan`): what a well-written kernel of this tile needs on the device;
- the **model of the compiler** (`hw_profiles.ascend.compiler_needs`): what this compiler wants for
  the portable kernel, its temporaries included.

`num_stages=2` asks for double buffering. A tile counts as fitting where the compiler fits it as
asked for: a 910's compiler that lacks memory gives double buffering up in silence, and such a
tile does not count.

The model's constants for UB, and its rules for what shares L1 and L0C, were read off plans of this
compiler, tiles below among them (`needs.py`, `row_needs.py`): its agreement is partly a fit, and
`docs/ascend.md` has that of tiles recorded later. Sizes of operands and accumulators follow from
the tile. Reasons of disagreements go by op, memory and setting; they were not traced in the
compiler tile by tile.

Sizes are those of 910B3 (and, the memories being the same, 910B1, B2, B4 and 910C) and of
950PR (and 950DT).
"""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  lines = [header, ["---"] * len(header), *rows]
  return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _share(part: int, whole: int) -> str:
  return "-" if whole == 0 else f"{part} of {whole} ({100 * part / whole:.1f} %)"


def recorded_families() -> dict[str, list[PlanRow]]:
  """All recorded rows by family."""
  return {path.stem: read_rows(path) for path in sorted(RESULTS.glob("*.jsonl"))}


def _agreement(families: dict[str, list[Comparison]]) -> str:
  lines = []
  for family, found in families.items():
    for target in sorted({one.row.case.target for one in found}):
      for name, spaces in (("L1, L0C", ("L1", "L0C")), ("UB", ("UB",))):
        group = [one for one in found if one.row.case.target == target and one.binding in spaces]
        if not group:
          continue
        exact = [one.bytes_agree for one in group if one.bytes_agree is not None]
        lines.append(
          [
            family,
            target,
            name,
            str(len(group)),
            _share(sum(one.planner_agrees for one in group), len(group)),
            _share(sum(one.model_agrees for one in group), len(group)),
            _share(sum(exact), len(exact)),
          ]
        )
  header = [
    "family",
    "target",
    "binding",
    "tiles",
    "planner's verdict",
    "model's verdict",
    "bytes of operands and accumulators",
  ]
  text = (
    "## Agreement\n\nBy the memory that binds: the one the compiler ran out of, else the one it"
    " fills most. Bytes agree where every operand and every accumulator has exactly the model's"
    " bytes, of the tiles that fit as asked for.\n\n"
  )
  return text + _table(header, lines)


def _classes(
  title: str, families: dict[str, list[Comparison]], reason: Callable[[Comparison], str]
) -> str:
  counts: Counter[tuple[str, str, str, str]] = Counter()
  examples: dict[tuple[str, str, str, str], str] = {}
  for family, found in families.items():
    for one in found:
      why = reason(one)
      if not why:
        continue
      verdict = "fits" if one.compiler_fits else "does not"
      key = (family, one.row.case.target, verdict, why)
      counts[key] += 1
      tile = ", ".join(f"{name}={value}" for name, value in one.row.case.config.items())
      examples.setdefault(key, f"{one.row.case.op} {one.row.case.dtype} {tile}")
  rows = [[*key, str(count), examples[key]] for key, count in sorted(counts.items())]
  header = ["family", "target", "compiler", "reason", "tiles", "first of them"]
  return f"## {title}\n\n" + (_table(header, rows) if rows else "None.\n")


def _without_verdict(families: dict[str, list[PlanRow]]) -> str:
  counts: Counter[tuple[str, str, str, str]] = Counter()
  for family, rows in families.items():
    for row in rows:
      if not has_verdict(row):
        message = row.outcome.message.replace("|", "\\|")[:100]
        counts[(family, row.case.target, row.outcome.outcome, message)] += 1
  rows_ = [[*key, str(count)] for key, count in sorted(counts.items())]
  text = (
    "## Tiles without a plan\n\nThe compiler crashed, took too long, or refused for another reason"
    " than memory. They are in no figure above.\n\n"
  )
  return text + (
    _table(["family", "target", "what happened", "message", "tiles"], rows_) if rows_ else "None.\n"
  )


def text() -> str:
  """The document."""
  rows = recorded_families()
  families = {family: compare_all(found) for family, found in rows.items()}
  parts = (
    _HOW,
    _agreement(families),
    _classes("Where the planner disagrees", families, planner_reason),
    _classes("Where the model of the compiler disagrees", families, model_reason),
    _without_verdict(rows),
  )
  return "\n".join(parts)


def write_document() -> None:
  """Write the document."""
  DOCUMENT.write_text(text(), encoding="utf-8")
