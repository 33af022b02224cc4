"""How far predicted times are from measured ones, and whether they rank alike."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Protocol


class Timed(Protocol):
  """A predicted and a measured time of one tile for one problem."""

  @property
  def predicted_us(self) -> float:
    """By the model."""
    ...

  @property
  def measured_us(self) -> float:
    """By the source."""
    ...

  @property
  def problem_key(self) -> Hashable:
    """Equal for times of one problem."""
    ...

  @property
  def tile_key(self) -> Hashable:
    """Equal for one tile; None where the source does not say which tile ran."""
    ...


@dataclasses.dataclass(frozen=True)
class Accuracy:
  """Statistics of some compared times.

  Attributes:
    row_count: Times compared.
    median_abs_log2: Median of |log2(predicted / measured)|: 1 is a factor of 2.
    p90_abs_log2: Its 90th percentile.
    shape_count: Problems among them.
    shape_rank_correlation: Spearman's, of predicted and measured time across the
      problems; None for fewer than 3.
    tile_group_count: Problems that were measured with several tiles.
    tile_rank_correlation: Spearman's across the tiles of a problem, averaged over
      those problems; None where there is none.
  """

  row_count: int
  median_abs_log2: float
  p90_abs_log2: float
  shape_count: int
  shape_rank_correlation: float | None
  tile_group_count: int
  tile_rank_correlation: float | None


def accuracy(rows: Sequence[Timed], tile_rows: Sequence[Timed] | None = None) -> Accuracy | None:
  """Statistics of the rows; None where there are none.

  A problem that several implementations computed enters the correlation across
  problems once, with the medians of its times.

  Args:
    rows: What errors and the correlation across problems are of.
    tile_rows: What the correlation across tiles is of; None: `rows`.
  """
  if not rows:
    return None
  errors = [abs(math.log2(row.predicted_us / row.measured_us)) for row in rows]
  by_problem = _grouped(rows)
  medians = [
    (
      statistics.median(row.predicted_us for row in group),
      statistics.median(row.measured_us for row in group),
    )
    for group in by_problem.values()
  ]
  tiles = [
    found
    for group in _grouped(rows if tile_rows is None else tile_rows).values()
    if (found := _tile_correlation(group)) is not None
  ]
  return Accuracy(
    row_count=len(rows),
    median_abs_log2=statistics.median(errors),
    p90_abs_log2=percentile(errors, 0.9),
    shape_count=len(by_problem),
    shape_rank_correlation=spearman(*zip(*medians, strict=True)) if len(medians) > 2 else None,
    tile_group_count=len(tiles),
    tile_rank_correlation=statistics.fmean(tiles) if tiles else None,
  )


def _grouped(rows: Iterable[Timed]) -> Mapping[Hashable, list[Timed]]:
  groups: dict[Hashable, list[Timed]] = {}
  for row in rows:
    groups.setdefault(row.problem_key, []).append(row)
  return groups


def _tile_correlation(rows: Iterable[Timed]) -> float | None:
  by_tile: dict[Hashable, list[Timed]] = {}
  for row in rows:
    if row.tile_key is not None:
      by_tile.setdefault(row.tile_key, []).append(row)
  if len(by_tile) < 2:
    return None
  return spearman(
    [statistics.median(row.predicted_us for row in group) for group in by_tile.values()],
    [statistics.median(row.measured_us for row in group) for group in by_tile.values()],
  )


def percentile(values: Sequence[float], fraction: float) -> float:
  """The value below which `fraction` of the others lie, interpolated between neighbours.

  Raises:
    ValueError: there are no values, or `fraction` is not in [0, 1].
  """
  if not values:
    raise ValueError("values=(): expected at least one")
  if not 0 <= fraction <= 1:
    raise ValueError(f"fraction={fraction!r}: expected a number from 0 to 1")
  ordered = sorted(values)
  place = fraction * (len(ordered) - 1)
  below = math.floor(place)
  above = min(below + 1, len(ordered) - 1)
  return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
  """Spearman's rank correlation: the correlation of the ranks, equal values sharing one.

  Returns:
    From -1 to 1; None for fewer than two values or where one side's are all equal.

  Raises:
    ValueError: the lengths differ.
  """
  if len(first) != len(second):
    raise ValueError(f"second has {len(second)} values: expected {len(first)}, as first has")
  if len(set(first)) < 2 or len(set(second)) < 2:
    return None
  return statistics.correlation(_ranks(first), _ranks(second))


def _ranks(values: Sequence[float]) -> list[float]:
  order = sorted(range(len(values)), key=values.__getitem__)
  ranks = [0.0] * len(values)
  place = 0
  for _, group in itertools.groupby(order, key=values.__getitem__):
    equal = list(group)
    for index in equal:
      ranks[index] = place + (len(equal) - 1) / 2
    place += len(equal)
  return ranks
