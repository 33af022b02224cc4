"""Pairs of times measured in turn, before and after a change."""

import dataclasses
import math
import statistics
from collections.abc import Sequence

from hw_profiles.arguments import collection, not_negative, positive


@dataclasses.dataclass(frozen=True)
class PairedStatistics:
  """What pairs of measurements say.

  Attributes:
    pairs: How many.
    median_before_us: Median of all times before.
    median_after_us: Median of all times after.
    difference_of_medians_us: The first less the second: pairs are lost.
    median_difference_us: Median of each pair's before - after: drift that both of a
      pair share cancels.
    saved_fraction: `median_difference_us` as a share of `median_before_us`.
    faster: Pairs in which the change took less time.
    slower: Pairs in which it took more.
    sign_test_p: Chance of a split at least as uneven if the change did nothing
      (two-sided, pairs without difference left out).
    interval_us: (low, high) that holds the median difference with the confidence
      asked for, from order statistics; None with too few pairs.
  """

  pairs: int
  median_before_us: float
  median_after_us: float
  difference_of_medians_us: float
  median_difference_us: float
  saved_fraction: float
  faster: int
  slower: int
  sign_test_p: float
  interval_us: tuple[float, float] | None


def _tail(trials: int, most: int) -> float:
  """P(X ≤ most) of X heads in `trials` throws of a fair coin."""
  return sum(math.comb(trials, heads) for heads in range(most + 1)) / 2**trials


def paired_statistics(
  before_us: Sequence[float], after_us: Sequence[float], *, confidence: float = 0.95
) -> PairedStatistics:
  """median(before_i - after_i), which is not median(before) - median(after).

  Example: eleven requests before and after had medians of 816.640 and 815.406 ms,
  1.234 ms apart, and a median pair difference of 1.343 ms; 9 pairs were faster.

  The sign test has p = 2·P(X ≤ min(faster, slower)), X of (faster + slower) throws
  of a coin, at most 1. The interval is (d_k, d_(n+1-k)) of the sorted differences
  with the largest k for which 1 - 2·P(X ≤ k-1) is at least the confidence: no
  distribution is assumed.

  Args:
    before_us: Times before, one for each pair.
    after_us: Times after, in the same order.
    confidence: Of the interval, in (0, 1).

  Raises:
    ValueError: no pair, lists of different lengths, a time below 0, or a confidence
      out of range.
  """
  collection("before_us", before_us)
  collection("after_us", after_us)
  if len(before_us) != len(after_us) or not before_us:
    raise ValueError(
      f"before_us and after_us have {len(before_us)} and {len(after_us)} times:"
      " expected equally many, at least one"
    )
  for name, times_us in (("before_us", before_us), ("after_us", after_us)):
    for position, time_us in enumerate(times_us):
      not_negative(f"{name}[{position}]", time_us)
  positive("confidence", confidence)
  if confidence >= 1:
    raise ValueError(f"confidence={confidence!r}: expected a number between 0 and 1")
  differences = sorted(before - after for before, after in zip(before_us, after_us, strict=True))
  pairs = len(differences)
  faster = sum(difference > 0 for difference in differences)
  slower = sum(difference < 0 for difference in differences)
  usable = [
    rank for rank in range(1, pairs // 2 + 1) if 1 - 2 * _tail(pairs, rank - 1) >= confidence
  ]
  median_before_us = statistics.median(before_us)
  median_after_us = statistics.median(after_us)
  median_difference_us = statistics.median(differences)
  return PairedStatistics(
    pairs=pairs,
    median_before_us=median_before_us,
    median_after_us=median_after_us,
    difference_of_medians_us=median_before_us - median_after_us,
    median_difference_us=median_difference_us,
    saved_fraction=median_difference_us / median_before_us if median_before_us else 0.0,
    faster=faster,
    slower=slower,
    sign_test_p=min(1.0, 2 * _tail(faster + slower, min(faster, slower))),
    interval_us=(differences[usable[-1] - 1], differences[pairs - usable[-1]]) if usable else None,
  )
