"""What a check found, in the terms of a row."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pallas_kernels.benchmark import rows

if TYPE_CHECKING:
  import reference


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
  """How a result compares with float64.

  Attributes:
    check: rows.PASSED, rows.FAILED, or rows.NOT_RUN where it could not be judged.
    max_ulp: Largest error in last places of the exact value.
    relative_error: Of the whole result, in the norm.
    error_bound: The most that may be.
    worst_bound_fraction: Largest error as a share of its element's bound.
    notes: Where it failed, and what was not judged.
  """

  check: str
  max_ulp: float | None = None
  relative_error: float | None = None
  error_bound: float | None = None
  worst_bound_fraction: float | None = None
  notes: tuple[str, ...] = ()


def verdict(found: "reference.MatmulCheck") -> Verdict:
  """The verdict of a check that held each element against its own bound."""
  notes = []
  if not found.passed:
    where = ", ".join(str(index) for index in found.worst_index or ())
    notes.append(
      f"{found.failed_elements} of {found.elements} elements are past their bound; worst at "
      f"[{where}]: {found.worst_actual!r}, exact {found.worst_exact!r}, error "
      f"{found.worst_error:.3g}, bound {found.worst_bound:.3g}"
    )
  if found.unbounded_elements:
    notes.append(
      f"{found.unbounded_elements} of {found.elements} elements have no bound (their float32 "
      "sum may overflow) and were not judged"
    )
  return Verdict(
    check=rows.PASSED if found.passed else rows.FAILED,
    max_ulp=found.max_ulp,
    relative_error=found.relative_error,
    error_bound=found.error_bound,
    worst_bound_fraction=found.worst_bound_fraction,
    notes=tuple(notes),
  )


def unjudged(reason: str) -> Verdict:
  """The verdict where no bound is known."""
  return Verdict(check=rows.NOT_RUN, notes=(f"not checked: {reason}",))


def together(verdicts: Sequence[Verdict], notes: tuple[str, ...] = ()) -> Verdict:
  """Of several results: the numbers of the worst, and every note.

  The worst is the one with the largest share of its bound.
  """
  worst = max(verdicts, key=lambda one: one.worst_bound_fraction or 0.0)
  failed = any(one.check == rows.FAILED for one in verdicts)
  return dataclasses.replace(
    worst,
    check=rows.FAILED if failed else rows.PASSED,
    notes=(*(note for one in verdicts for note in one.notes), *notes),
  )


def named(found: Verdict, name: str) -> Verdict:
  """The verdict of one of several results: its notes say which."""
  return dataclasses.replace(found, notes=tuple(f"{name}: {note}" for note in found.notes))
