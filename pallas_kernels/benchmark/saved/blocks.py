"""The parts of a report, in order: failures, environments, ratios, rows by kernel."""

import collections
from collections.abc import Sequence
from typing import Any

from pallas_kernels.benchmark import cells
from pallas_kernels.benchmark.rows import DIFFERS, FAILED, NOT_RUN, PASSED, Block
from pallas_kernels.benchmark.saved import read
from pallas_kernels.benchmark.saved.read import SavedRow
from pallas_kernels.benchmark.saved.summary import PREDICTED, FailedRow, RatioRow

_COMMIT = 12  # characters


def checks(rows: Sequence[SavedRow], failed: Sequence[FailedRow]) -> Block:
  """The checks that failed, with the lines that run them again; first of all."""
  counted = collections.Counter(row.check for row in rows)
  told = ", ".join(
    f"{counted[check]:,} {check}" for check in (PASSED, FAILED, DIFFERS, NOT_RUN) if counted[check]
  )
  lines = [f"{len(rows):,} rows: {told or 'none'}"]
  if not failed:
    return Block(title="No check failed", lines=tuple(lines))
  return Block(
    title=f"Checks that failed: {len(failed)}",
    header=("file", "kernel", "problem", "error", "said of it"),
    cells=tuple(
      (row.file, row.kernel, row.problem, row.error or "-", row.why or "-") for row in failed
    ),
    lines=tuple(lines),
    commands=tuple(f"again: {row.arguments}" for row in failed if row.arguments),
  )


def environments(rows: Sequence[SavedRow]) -> Block:
  """Each device, driver, version and commit that rows depend on, a line each."""
  found: dict[tuple[str, ...], list[SavedRow]] = {}
  for row in rows:
    facts = row.environment
    commit = str(facts.get("git_commit") or "-")[:_COMMIT]
    key = (
      row.file,
      _fact(facts.get("device_kind")),
      _fact(facts.get("driver")),
      _fact(facts.get("jax")),
      _fact(facts.get("python")),
      commit + (" (modified)" if facts.get("git_modified") else ""),
    )
    found.setdefault(key, []).append(row)
  return Block(
    title="Where the rows are from",
    header=("file", "device", "driver", "jax", "python", "commit", "dates", "rows"),
    cells=tuple((*key, _dates(of), f"{len(of):,}") for key, of in found.items()),
    numeric=frozenset({"rows"}),
  )


def _fact(value: Any) -> str:
  return "-" if value is None else str(value)


def _dates(rows: Sequence[SavedRow]) -> str:
  """The first and the last day."""
  days = sorted({str(row.environment.get("date") or "-")[:10] for row in rows})
  return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def ratios(found: Sequence[RatioRow]) -> Block:
  """Geometric means by kernel and peer."""
  return Block(
    title="Ratios",
    header=("kernel", "against", "rows", "geometric mean", "least", "most", "above 1"),
    cells=tuple(
      (
        row.kernel,
        row.against,
        f"{row.rows:,}",
        cells.number(row.geometric_mean, 3),
        cells.number(row.least, 3),
        cells.number(row.most, 3),
        f"{row.above_one:,}",
      )
      for row in found
    ),
    numeric=frozenset({"rows", "geometric mean", "least", "most", "above 1"}),
    lines=(
      "a peer's time over the kernel's, above 1 where the kernel is faster; the best of them: each"
      f" row's quickest of those that do the same; against {PREDICTED!r}: measured over predicted,"
      " without rows of gradients, whose times are of more than their plans",
    ),
  )


def kernels(rows: Sequence[SavedRow]) -> tuple[Block, ...]:
  """A table a kernel, of the rows that have a time or that say why they have none."""
  of: dict[str, list[SavedRow]] = {}
  for row in rows:
    if row.predicted_us is not None or row.measured_us is not None or row.fields.get("reason"):
      of.setdefault(row.kernel, []).append(row)
  return tuple(_kernel(kernel, found) for kernel, found in of.items())


def _kernel(kernel: str, rows: Sequence[SavedRow]) -> Block:
  """Columns that no row fills are left out."""
  peers = list(dict.fromkeys(name for row in rows for name in row.peers))
  columns: dict[str, list[str]] = {
    "file": [row.file for row in rows],
    "problem": [row.problem for row in rows],
    "tile": [row.tile or "-" for row in rows],
    "on": [row.profile or "-" for row in rows],
    "implementation": [row.implementation or "-" for row in rows],
    "predicted us": [cells.number(row.predicted_us) for row in rows],
    "measured us": [cells.number(row.measured_us) for row in rows],
    "measured/predicted": [cells.number(row.measured_to_predicted, 3) for row in rows],
  }
  numeric = {"predicted us", "measured us", "measured/predicted"}
  for peer in peers:
    columns[f"{peer} us"] = [cells.number(row.peers.get(peer)) for row in rows]
    columns[f"/{peer}"] = [cells.number(row.ratios.get(peer), 3) for row in rows]
    numeric |= {f"{peer} us", f"/{peer}"}
  columns["check"] = [row.check for row in rows]
  columns["said of it"] = [str(row.fields.get("reason") or "-") for row in rows]
  one_file = len(set(columns["file"])) == 1
  shown = {
    name: texts
    for name, texts in columns.items()
    if any(text != "-" for text in texts) and not (name == "file" and one_file)
  }
  return Block(
    title=f"{kernel} ({rows[0].file})" if one_file else kernel,
    header=tuple(shown),
    cells=tuple(zip(*shown.values(), strict=True)),
    numeric=frozenset(numeric & set(shown)),
    lines=(f"/peer: its time over the kernel's ({', '.join(peers)})",) if peers else (),
  )


def requests(rows: Sequence[SavedRow]) -> tuple[Block, ...]:
  """The whole requests among the rows."""
  found = [row for row in rows if row.fields.get("kind") == read.PROGRAM]
  if not found:
    return ()
  header = (
    "request",
    "of",
    "dtype",
    "profile",
    "products",
    "steps",
    "first token ms",
    "further",
    "total",
  )
  return (
    Block(
      title="Whole requests, predicted",
      header=header,
      cells=tuple(
        (
          str(row.fields.get("request")),
          str(row.fields.get("model")),
          str(row.fields.get("dtype")),
          row.profile or "-",
          str(row.fields.get("program")),
          str(row.fields.get("launch")),
          *(cells.milliseconds(row.fields.get(name)) for name in read.REQUEST_TIMES),
        )
        for row in found
      ),
      numeric=frozenset(header[6:]),
    ),
  )


def others(rows: Sequence[SavedRow]) -> tuple[Block, ...]:
  """How many rows have no time of their own to show, by file and task."""
  left = collections.Counter(
    (row.file, row.kernel)
    for row in rows
    if row.predicted_us is None
    and row.measured_us is None
    and not row.fields.get("reason")
    and row.fields.get("kind") != read.PROGRAM
  )
  if not left:
    return ()
  return (
    Block(
      title="Rows without a time of their own",
      header=("file", "of", "rows"),
      cells=tuple((file, kernel, f"{count:,}") for (file, kernel), count in left.items()),
      numeric=frozenset({"rows"}),
      lines=("counted with the checks above",),
    ),
  )
