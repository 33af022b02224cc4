"""Calls of several row counts, as they are or padded to a few bucket sizes."""

import bisect
import dataclasses
from collections.abc import Sequence

from hw_profiles.arguments import at_least, collection, positive


@dataclasses.dataclass(frozen=True)
class Bucketing:
  """Rows of a group of calls.

  Attributes:
    rows: Rows that hold data.
    padded_rows: Rows that are computed.
    extra_fraction: Computed in vain, as a share of `rows`; 0 where there are none.
    assigned: For each kind of call: (calls, rows, bucket).
    programs: Sizes that need a program: the buckets used, or the different rows.
  """

  rows: int
  padded_rows: int
  extra_fraction: float
  assigned: tuple[tuple[int, int, int], ...]
  programs: tuple[int, ...]

  def run_us(self, *, flops_per_row: float, flops_per_s: float) -> float:
    """Computed rows times operations a row, over the rate, in microseconds.

    Raises:
      ValueError: an argument is not above 0.
    """
    positive("flops_per_row", flops_per_row)
    positive("flops_per_s", flops_per_s)
    return self.padded_rows * flops_per_row / flops_per_s * 1e6


def bucketing(
  calls: Sequence[tuple[int, int]], *, buckets: Sequence[int] | None = None
) -> Bucketing:
  """rows = Σ calls·rows; padded = Σ calls·(smallest bucket of at least rows).

  Example: 8 calls of 256 rows, one of 1536 and one of 2048 have 5632 rows; in
  buckets of 512 and 2048 they compute 8192, 45 % more.

  Args:
    calls: (calls, rows of each), for each kind of call in a group.
    buckets: Row counts to pad to, in any order; None: no padding.

  Raises:
    ValueError: a count below 0, a bucket below 1, or a call larger than every
      bucket.
  """
  collection("calls", calls)
  if buckets is not None:
    collection("buckets", buckets)
  sizes = None if buckets is None else sorted(set(buckets))
  for size in sizes or ():
    at_least("buckets", size, 1)
  assigned = []
  for kind, call in enumerate(calls):
    collection(f"calls[{kind}]", call)
    if len(call) != 2:
      raise ValueError(f"calls[{kind}]={call!r}: expected how many, and of how many rows")
    count, rows = call
    at_least(f"calls[{kind}][0]", count, 0)
    at_least(f"calls[{kind}][1]", rows, 0)
    bucket = rows
    if sizes is not None and rows:
      place = bisect.bisect_left(sizes, rows)
      if place == len(sizes):
        raise ValueError(
          f"calls[{kind}] has {rows} rows: expected at most the largest of buckets={list(sizes)};"
          f" add a bucket of at least {rows}"
        )
      bucket = sizes[place]
    assigned.append((count, rows, bucket))
  rows_in_all = sum(count * rows for count, rows, _ in assigned)
  padded = sum(count * bucket for count, _, bucket in assigned)
  return Bucketing(
    rows=rows_in_all,
    padded_rows=padded,
    extra_fraction=(padded - rows_in_all) / rows_in_all if rows_in_all else 0.0,
    assigned=tuple(assigned),
    programs=tuple(sorted({bucket for count, _, bucket in assigned if count and bucket})),
  )


def ffn_flops_per_row(*, hidden: int, intermediate: int, gated: bool = True) -> int:
  """6·hidden·intermediate with a gate (gate, up, down), 4·hidden·intermediate without.

  Args:
    hidden: Width of the model.
    intermediate: Width inside the FFN.
    gated: Whether a third projection gates the second.

  Raises:
    ValueError: a size below 1.
  """
  at_least("hidden", hidden, 1)
  at_least("intermediate", intermediate, 1)
  return (6 if gated else 4) * hidden * intermediate
