"""docs/ascend-agreement.md: the planner beside the compiler's plans."""

import pathlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from hw_profiles.ascend.agreement.compare import Comparison, compare_all, has_verdict
from hw_profiles.ascend.agreement.reasons import planner_reason
from hw_profiles.ascend.agreement.rows import RESULTS, PlanRow, read_rows
from hw_profiles.ascend.install import PINNED

DOCUMENT = pathlib.Path(__file__).parents[3] / "docs" / "ascend-agreement.md"

# what is swept together answers for one family of ops
OP_FAMILIES = {
  "matmul": ("matmul", "matmul_ragged", "matmul_silu"),
  "gated matmul": ("gated_matmul",),
  "row-wise, quantised": ("rowwise", "quantize"),
  "attention": ("attention", "attention_causal"),
}

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

Held against these plans is what `hw_profiles.plan` says of the tile, which on Ascend plans the
portable kernel as this compiler gives it memory (schedule "compiled"; `docs/ascend.md` has its
rules). `num_stages=2` asks for double buffering. A tile counts as fitting where the compiler fits
it as asked for: a 910's compiler that lacks memory gives double buffering up in silence, and such
a tile does not count. Where the compiler was told not to share a tile between the vector cores,
the planner was given a device with one vector core a cube core.

The rules were read off plans of this compiler. "Held out" are tiles that were compiled after the
rules of their op stood; no rule was changed for them. Sizes of operands and accumulators follow
from the tile.

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


def _groups(
  families: dict[str, list[Comparison]],
) -> Iterator[tuple[str, str, str, list[Comparison]]]:
  """Ops, target, memories that bind, and the tiles: op families, sweeps, all together."""
  by_op = {
    op: [one for name in names for one in families.get(name, ())]
    for op, names in OP_FAMILIES.items()
  }
  sweeps = {
    f"sweep {name}": list(families.get(name, ()))
    for names in OP_FAMILIES.values()
    if len(names) > 1
    for name in names
  }
  everything = {"all": [one for ones in by_op.values() for one in ones]}
  for op, found in (by_op | sweeps | everything).items():
    for target in sorted({one.row.case.target for one in found}):
      for name, spaces in (("L1, L0C", ("L1", "L0C")), ("UB", ("UB",))):
        group = [one for one in found if one.row.case.target == target and one.binding in spaces]
        if group:
          yield op, target, name, group


def _agreement(families: dict[str, list[Comparison]]) -> str:
  lines = []
  for op, target, name, group in _groups(families):
    held = [one.planner_agrees for one in group if one.held_out]
    exact = [one.bytes_agree for one in group if one.bytes_agree is not None]
    needs = [one.needs_agree for one in group if one.needs_agree is not None]
    lines.append(
      [
        op,
        target,
        name,
        str(len(group)),
        _share(sum(one.planner_agrees for one in group), len(group)),
        _share(sum(held), len(held)),
        _share(sum(exact), len(exact)),
        _share(sum(needs), len(needs)),
      ]
    )
  header = [
    "ops",
    "target",
    "binding",
    "tiles",
    "planner's verdict",
    "of tiles held out",
    "bytes of operands and accumulators",
    "bytes that were lacking",
  ]
  text = (
    "## Agreement\n\nBy the memory that binds: the one the compiler ran out of, else the one it"
    " fills most. Bytes of operands and accumulators agree where every one has exactly the"
    " planner's, of the tiles that fit as asked for. Bytes that were lacking: whether the memory"
    " that overflowed would have needed exactly what the planner says, of tiles without double"
    " buffering. An op family of several sweeps has a line for each, too.\n\n"
  )
  return text + _table(header, lines)


def _disagreements(families: dict[str, list[Comparison]]) -> str:
  rows = []
  for found in families.values():
    for one in found:
      why = planner_reason(one)
      if not why:
        continue
      case = one.row.case
      sizes = {**case.shapes, **case.options}
      tile = ", ".join(f"{name}={value}" for name, value in case.config.items())
      rows.append(
        [
          f"{case.op} {case.dtype} ({', '.join(f'{k}={v}' for k, v in sizes.items())})",
          case.target,
          f"{tile}; {'shared' if case.sub_block else 'not shared'}",
          "fits" if one.compiler_fits else "does not",
          why,
        ]
      )
  header = ["op", "target", "tile", "compiler", "reason"]
  return "## Every disagreement\n\n" + (_table(header, rows) if rows else "None.\n")


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
    _disagreements(families),
    _without_verdict(rows),
  )
  return "\n".join(parts)


def write_document() -> None:
  """Write the document."""
  DOCUMENT.write_text(text(), encoding="utf-8")
