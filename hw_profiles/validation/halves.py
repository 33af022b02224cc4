"""Which rows constants may be chosen on, and which they are reported on."""

import hashlib
from collections.abc import Sequence
from typing import TypeVar

from hw_profiles.validation.measured import MeasuredRow

_Row = TypeVar("_Row", bound=MeasuredRow)


def calibration_half(rows: Sequence[_Row]) -> tuple[_Row, ...]:
  """The rows of one op on one profile that constants may be chosen on: at most half.

  Rows of one problem stay together, so that no problem is on both sides. First
  come the problems with a row that a constant was chosen on (`calibrates`), then
  the others in the order of the SHA-256 of their text, as long as they fit. The
  rest is what errors are reported on.
  """
  groups: dict[str, list[_Row]] = {}
  for row in rows:
    groups.setdefault(row.problem_key, []).append(row)
  order = sorted(
    groups,
    key=lambda key: (
      not any(row.calibrates for row in groups[key]),
      hashlib.sha256(key.encode()).hexdigest(),
    ),
  )
  chosen: list[_Row] = []
  for key in order:
    if 2 * (len(chosen) + len(groups[key])) <= len(rows):
      chosen.extend(groups[key])
  return tuple(chosen)
