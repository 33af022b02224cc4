"""All orders in which partial sums can arrive, and the results they give."""

import dataclasses
from collections import Counter

import numpy as np
import numpy.typing as npt

from reference.order.sums import float32_terms
from reference.spacing import ulp_distance

# Sets of partial sums; each holds the results of its orders.
_LARGEST = 20


@dataclasses.dataclass(frozen=True)
class MergeResults:
  """What the orders of a merge give.

  Attributes:
    orders: How many there are, n!.
    results: The float32 sums that occur, ascending.
    counts: How many orders give each of them.
    spread_ulp: How many float32 numbers lead from the smallest to the largest.
  """

  orders: int
  results: tuple[float, ...]
  counts: tuple[int, ...]
  spread_ulp: int


def merge_orders(partials: npt.ArrayLike) -> MergeResults:
  """The float32 sums of all n! orders of adding partial sums one after another.

  An accumulator that takes partial sums as they arrive (an atomic addition)
  gives any of these from run to run; a stored buffer that is added in a fixed
  order gives one of them always. All orders are covered without walking each:
  what a set of partial sums can add up to follows from what its subsets with
  one fewer can, 2^n sets in place of n! orders.

  Args:
    partials: [n], float32 or narrower, 1 <= n <= 20.

  Raises:
    ValueError: the shape or the dtype is another one, or a value is NaN.
  """
  values = float32_terms("partials", partials)
  if values.ndim != 1 or not 1 <= values.size <= _LARGEST:
    raise ValueError(f"partials.shape={values.shape}: expected 1 to {_LARGEST} in one dimension")
  if np.isnan(values).any():
    raise ValueError("partials: expected numbers, a NaN makes every result NaN")
  reached: dict[int, Counter[np.float32]] = {
    1 << i: Counter({value: 1}) for i, value in enumerate(values)
  }
  with np.errstate(over="ignore", invalid="ignore"):
    for _ in range(values.size - 1):
      larger: dict[int, Counter[np.float32]] = {}
      for members, sums in reached.items():
        for i, value in enumerate(values):
          if not members >> i & 1:
            results = larger.setdefault(members | 1 << i, Counter())
            for total, count in sums.items():
              results[total + value] += count
      reached = larger
  (final,) = reached.values()
  found = sorted(final.items())
  totals = [total for total, _ in found]
  return MergeResults(
    orders=sum(count for _, count in found),
    results=tuple(float(total) for total in totals),
    counts=tuple(count for _, count in found),
    spread_ulp=int(ulp_distance(totals[0], totals[-1])),
  )
