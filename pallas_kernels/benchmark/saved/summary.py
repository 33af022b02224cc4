"""What saved rows come to: ratios with their geometric means, and the checks that failed."""

import dataclasses
import statistics
from collections.abc import Sequence

from pallas_kernels.benchmark.rows import FAILED, NOT_RUN, Written
from pallas_kernels.benchmark.saved.read import SavedRow

BEST_PEER = "the best of them"
# What a time is held against that does not do the same: a copy of the bytes, the product alone.
_YARDSTICKS = ("stream", "plain")
PREDICTED = "predicted"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RatioRow(Written):
  """A kernel's times against one of what it is compared with.

  Attributes:
    kind: "ratio".
    kernel: The op.
    against: A peer; "the best of them": each row's quickest that does the same;
      "predicted": the planner.
    rows: How many.
    geometric_mean: Of their ratios: a peer's time over the kernel's, above 1 where
      the kernel is faster; of "predicted" measured over predicted.
    least: The smallest ratio.
    most: The largest.
    above_one: Rows whose ratio is above 1.
    check: "not run": a ratio is none.
  """

  kind: str = "ratio"
  kernel: str
  against: str
  rows: int
  geometric_mean: float
  least: float
  most: float
  above_one: int
  check: str = NOT_RUN


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailedRow(Written):
  """A row of a file whose check failed.

  Attributes:
    kind: "failed".
    file: The file.
    kernel: The op.
    problem: Sizes, dtype, options.
    error: What the check found.
    why: What the row says of it.
    check: "failed".
    arguments: The line that gives the row again.
  """

  kind: str = "failed"
  file: str
  kernel: str
  problem: str
  error: str
  why: str
  check: str = FAILED
  arguments: str


def ratios(rows: Sequence[SavedRow]) -> tuple[RatioRow, ...]:
  """Kernel by kernel: against each peer, against the best of several, against the planner."""
  found: dict[tuple[str, str], list[float]] = {}
  for row in rows:
    for peer, ratio in row.ratios.items():
      found.setdefault((row.kernel, peer), []).append(ratio)
  rivals: dict[str, set[str]] = {}
  for kernel, peer in found:
    if peer not in _YARDSTICKS:
      rivals.setdefault(kernel, set()).add(peer)
  for row in rows:
    own = [ratio for peer, ratio in row.ratios.items() if peer not in _YARDSTICKS]
    if own and len(rivals[row.kernel]) > 1:
      found.setdefault((row.kernel, BEST_PEER), []).append(min(own))
  for row in rows:
    if (over_predicted := row.measured_to_predicted) is not None:
      found.setdefault((row.kernel, PREDICTED), []).append(over_predicted)
  kernels = list(dict.fromkeys(row.kernel for row in rows))
  return tuple(
    RatioRow(
      kernel=kernel,
      against=against,
      rows=len(values),
      geometric_mean=statistics.geometric_mean(values),
      least=min(values),
      most=max(values),
      above_one=sum(value > 1 for value in values),
    )
    for (kernel, against), values in sorted(
      found.items(), key=lambda item: kernels.index(item[0][0])
    )
  )


def failures(rows: Sequence[SavedRow]) -> tuple[FailedRow, ...]:
  """The rows whose check failed."""
  return tuple(
    FailedRow(
      file=row.file,
      kernel=row.kernel,
      problem=row.problem,
      error=row.error,
      why=row.why,
      arguments=row.arguments,
    )
    for row in rows
    if row.check == FAILED
  )
