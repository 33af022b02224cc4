"""docs/model-accuracy.md: how far the planner is from measured times."""

import math
import pathlib
from collections import Counter
from collections.abc import Iterable, Sequence

from hw_profiles.registry import get_profile, list_profiles
from hw_profiles.validation.accuracy import Accuracy, accuracy
from hw_profiles.validation.compare import Comparison, compared, model_accuracy, replace_file
from hw_profiles.validation.measured import measured_ops, measured_rows, unused_rows
from hw_profiles.validation.recorded import limits

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "model-accuracy.md"
_WORST = 3
# |log2| of 15 %, and of a factor of 1.5
_AIM_MEDIAN = math.log2(1.15)
_AIM_P90 = math.log2(1.5)
# of fewer the median says little
_FEWEST_TILES = 3

_HOW = """\
# How accurate the planner's times are

Written by `python -m hw_profiles.validation --write`; not by hand.

Predicted times are held against measured ones: published tables (grade A: by the kernel's
authors, with exact shape, device and method; grade B: device or method partly unstated) and
measurements of our own. A row that names its tile is planned with that tile. The others are a
library's own choice, and are compared with the best plan of the default candidates.

The error of a row is |log2(predicted / measured)|: 0.2 is 15 %, 0.58 a factor of 1.5, 1 a factor
of 2. Rank correlations are Spearman's: across the problems of a device, each with the median of
its rows, and across the tiles of a problem, averaged over the problems with several (of all rows,
as few name their tile and no constant is chosen to put tiles in order).

Constants of the profiles are chosen on the calibration half alone. For each op and device that is
at most half of the rows, all rows of a problem together: first the problems with a row that a
constant was chosen on, then others in the order of the SHA-256 of their text
(`hw_profiles/validation/halves.py`). The errors below are those of the other rows.
"""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  lines = [header, ["---"] * len(header), *rows]
  return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _number(value: float | None) -> str:
  return "-" if value is None else f"{value:.2f}"


def _percent(log2: float) -> str:
  return f"{log2:.2f} ({100 * (math.pow(2, log2) - 1):.0f} %)"


def _statistics(found: Accuracy) -> list[str]:
  return [
    str(found.row_count),
    _percent(found.median_abs_log2),
    _percent(found.p90_abs_log2),
    f"{_number(found.shape_rank_correlation)} over {found.shape_count}",
    f"{_number(found.tile_rank_correlation)} over {found.tile_group_count}",
  ]


def _summary() -> str:
  rows: list[list[str]] = []
  for op in measured_ops():
    for profile in list_profiles():
      everything = compared(op, profile)
      found = model_accuracy(op, profile)
      if found is None:
        continue
      chosen = len(everything.comparisons) - found.row_count
      rows.append([op, profile, str(chosen), *_statistics(found)])
  header = [
    "op",
    "profile",
    "calibration rows",
    "rows",
    "median error",
    "90th percentile",
    "rank over problems",
    "rank over tiles",
  ]
  return "## Error by op and device\n\n" + _table(header, rows)


def _is_as_aimed(found: Accuracy) -> bool:
  return found.median_abs_log2 <= _AIM_MEDIAN and found.p90_abs_log2 <= _AIM_P90


def beyond_the_aims() -> tuple[tuple[str, str], ...]:
  """Ops and profiles whose errors, of all rows or of those with a tile, are beyond the aims."""
  return tuple(
    (op, profile)
    for op in measured_ops()
    for profile in list_profiles()
    if (found := model_accuracy(op, profile)) is not None
    and not (_is_as_aimed(found) and _named_tiles_are_as_aimed(op, profile))
  )


def _named_tiles_are_as_aimed(op: str, profile: str) -> bool:
  """Whether the rows that name their tile keep the aims by themselves, or are too few to tell."""
  rows = [one for one in compared(op, profile).reported if one.row.config]
  found = accuracy(rows)
  return found is None or found.row_count < _FEWEST_TILES or _is_as_aimed(found)


def _limits() -> str:
  text = (
    "## What is outside the evidence\n\nAimed at are a median of"
    f" {_percent(_AIM_MEDIAN)} and a 90th percentile of {_AIM_P90:.2f} (a factor of 1.5), of all"
    f" rows and of those that name their tile, where they are {_FEWEST_TILES} or more. Where"
    " errors are larger, this is what of the rows the model does not describe. Plans say the same"
    " among their assumptions, and in a note where their own time is far from all that were"
    " measured.\n\n"
  )
  rows = [[op, profile, limits()[op, profile]] for op, profile in beyond_the_aims()]
  return text + _table(["op", "profile", "why"], rows)


def _calibrated() -> str:
  rows: list[list[str]] = []
  for row in measured_rows():
    if row.calibrates is None:
      continue
    profile = get_profile(row.profile)
    constant = row.calibrates
    if hasattr(profile, constant):
      constant = f"{constant} = {getattr(profile, constant):g}"
    shape = ", ".join(f"{name}={size}" for name, size in row.shape.items())
    rows.append([row.profile, constant, f"{row.op} {shape} {row.dtype}", row.device])
  text = (
    "## Rows that constants were chosen on\n\n"
    "All are in the calibration half. Lower case: a field of the profile; upper case: a constant of"
    " an op's model. Constants that name no row here were chosen on times that are no row, or are"
    " another device's: their source says which.\n\n"
  )
  return text + _table(["profile", "constant", "row", "device"], rows)


def _tiles() -> str:
  rows: list[list[str]] = []
  for op in measured_ops():
    for profile in list_profiles():
      reported = compared(op, profile).reported
      rows.extend(_tile(op, profile, one) for one in reported if one.row.config)
  text = (
    "## Single tiles\n\nThe rows that name their tile, each planned with it and with the kernel"
    " that ran it. The model's time is that of a well-tuned kernel: a ratio below 1 is a kernel"
    " that is slower.\n\n"
  )
  header = ["op", "profile", "problem", "measured", "tile", "us", "predicted us", "ratio", "bound"]
  return text + _table(header, rows)


def _tile(op: str, profile: str, one: Comparison) -> list[str]:
  missed = _miss(op, profile, one)
  tile = ", ".join(f"{name}={value}" for name, value in one.row.config.items())
  return [*missed[:4], tile, *missed[4:7], missed[8]]


def _miss(op: str, profile: str, one: Comparison) -> list[str]:
  shape = ", ".join(f"{name}={size}" for name, size in one.row.shape.items())
  return [
    op,
    profile,
    f"{shape} {one.row.dtype}",
    one.row.implementation,
    f"{one.measured_us:.1f}",
    f"{one.predicted_us:.1f}",
    f"{one.predicted_us / one.measured_us:.2f}",
    f"{100 * one.memory_share:.0f} %",
    "; ".join(dict.fromkeys(plan.bound or "" for plan in one.plans)),
  ]


def _misses() -> str:
  rows: list[list[str]] = []
  for op in measured_ops():
    for profile in list_profiles():
      worst = sorted(
        compared(op, profile).reported,
        key=lambda one: -abs(math.log2(one.predicted_us / one.measured_us)),
      )
      rows.extend(_miss(op, profile, one) for one in worst[:_WORST])
  header = [
    "op",
    "profile",
    "problem",
    "measured",
    "us",
    "predicted us",
    "ratio",
    "of memory",
    "bound",
  ]
  text = (
    f'## The {_WORST} largest errors of each\n\n"of memory": the bytes that the plan takes from'
    " device memory in the measured time, as a share of what its peak moves. Above 100 % part of"
    " them was in L2, or sizes or times are not as stated.\n\n"
  )
  return text + _table(header, rows)


def _skipped() -> str:
  counts: Counter[tuple[str, str]] = Counter()
  for op in measured_ops():
    for profile in list_profiles():
      for reason, count in compared(op, profile).skipped.items():
        counts[op, reason] += count
  asked = sum(
    len(compared(op, profile).comparisons) for op in measured_ops() for profile in list_profiles()
  )
  total = len(measured_rows())
  text = (
    f"## Rows that the planner could not be asked\n\n{asked} of {total} recorded rows are"
    f" compared, {total - asked} are not:\n\n"
  )
  rows = [[op, reason, str(count)] for (op, reason), count in sorted(counts.items())]
  return text + _table(["op", "why", "rows"], rows)


def _unused() -> str:
  total = sum(entry.count for entry in unused_rows())
  counts: Counter[str] = Counter()
  for entry in unused_rows():
    counts[entry.reason] += entry.count
  text = (
    f"## Measurements that are not recorded\n\nOf {total + len(measured_rows())} rows of grades A"
    f" and B and of our own, {total} are left out (`validation/unused_rows.json` has them one by"
    " one):\n\n"
  )
  rows = [[reason, str(count)] for reason, count in counts.most_common()]
  return text + _table(["why", "rows"], rows)


def document() -> str:
  """The text, in Markdown."""
  parts = [_HOW, _summary(), _limits(), _misses(), _tiles(), _calibrated(), _skipped(), _unused()]
  return "\n".join(parts)


def write_document(path: pathlib.Path = DOCUMENT) -> None:
  """Writes the text to a file, which is replaced whole.

  Raises:
    ValueError: the folder is not there, as in an installed package.
  """
  if not path.parent.is_dir():
    raise ValueError(f"path={path}: {path.parent} is no folder; expected one in a checkout")
  replace_file(path, document())
