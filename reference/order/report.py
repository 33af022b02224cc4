"""How a split moves a row's sum of squares, its scale and its normalised values, in ULP."""

import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.formats import to_float64
from reference.order.sums import MergeOrder, SumOrder, float32_terms, merge_sums, split_sums
from reference.rounding import RoundingMode, round_to
from reference.spacing import ulp, ulp_distance


def sine_row(width: int, *, mode: RoundingMode = "truncate") -> npt.NDArray[Any]:
  """The row x[i] = bfloat16(float32(sin(i + 1))), i = 0..width - 1.

  The course text calls its row "rounded to bfloat16". Its printed distances,
  175.2 and 9.2 ulp, come out only where the low 16 bits are cut off; rounded to
  nearest the sum lies in the next binade and they are 64.1 and 5.1. So
  "truncate" is the default, and "nearest_even" the other reading.

  Args:
    width: Elements.
    mode: How float32 becomes bfloat16.

  Returns:
    bfloat16 [width].
  """
  sines = np.sin(np.arange(1, width + 1, dtype=np.float64)).astype(np.float32)
  return round_to(sines, "bfloat16", mode=mode)


def exact_sum(terms: npt.ArrayLike) -> Fraction:
  """The sum of a row of numbers, as a rational number: no order, no rounding.

  Raises:
    ValueError: `terms` has another shape than [n], or is not finite.
  """
  values = to_float64(terms, name="terms")
  if values.ndim != 1 or not np.isfinite(values).all():
    raise ValueError(f"terms.shape={values.shape}: expected finite numbers in one dimension")
  return sum((Fraction(float(value)) for value in values), Fraction(0))


def offset_in_ulp(total: npt.ArrayLike, exact: Fraction) -> float:
  """(total - exact) in last places of float32 at `exact`; below 0 where total is too small."""
  spacing = Fraction(float(ulp(float(exact), np.float32)))
  return float((Fraction(float(np.float32(np.asarray(total)))) - exact) / spacing)


def signed_ulp_distance(a: npt.ArrayLike, b: npt.ArrayLike) -> int:
  """How many float32 numbers lead from b up to a; negative where a is the smaller."""
  first, second = np.float32(np.asarray(a)), np.float32(np.asarray(b))
  distance = int(ulp_distance(first, second))
  return -distance if first < second else distance


@dataclasses.dataclass(frozen=True)
class SplitReport:
  """One split of a row's sum of squares, and the RMS normalisation that it leads to.

  Attributes:
    splits: Segments.
    total: The float32 sum.
    exact: The exact sum, to float64.
    offset_ulp: (total - exact) in float32's last places at the exact sum.
    largest_partial: The largest sum of a segment.
    scale: (total / n + eps)^(-1/2), each operation rounded to float32.
    first_output: The row's first element times the scale, in float32.
    gap_ulp: float32 numbers from the unsplit total up to this one.
    relative_gap: This total over the unsplit one, less 1.
    scale_gap_ulp: The same for the scale.
    first_output_gap_ulp: The same for the first output.
  """

  splits: int
  total: float
  exact: float
  offset_ulp: float
  largest_partial: float
  scale: float
  first_output: float
  gap_ulp: int
  relative_gap: float
  scale_gap_ulp: int
  first_output_gap_ulp: int


def emulate_inverse_rms(total: npt.ArrayLike, *, width: int, eps: float = 1e-6) -> np.float32:
  """(total / width + eps)^(-1/2): the quotient, the sum and the inverse root round to float32.

  The inverse root rounds once, as an rsqrt that is correctly rounded does.
  """
  mean = np.float32(np.asarray(total)) / np.float32(width) + np.float32(eps)
  return np.float32(1.0 / np.sqrt(np.float64(mean)))


def split_report(
  row: npt.ArrayLike,
  splits: Sequence[int] = (1, 2, 4, 8, 16, 32),
  *,
  inside: SumOrder = "sequential",
  merge: MergeOrder = "sequential",
  eps: float = 1e-6,
) -> tuple[SplitReport, ...]:
  """What each number of segments makes of a row's float32 sum of squares.

  More segments are not always nearer: width 8192 of the same sine row is a
  counter-example, since errors of a sum have either sign.

  Args:
    row: [n], n > 0; bfloat16 or float16 squares are exact in float32.
    splits: Numbers of segments to report.
    inside: The order within a segment.
    merge: The order of the segments' sums.
    eps: Of the normalisation.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  values = float32_terms("row", row)
  if values.ndim != 1 or not values.size:
    raise ValueError(f"row.shape={values.shape}: expected at least one number in one dimension")
  squares = values * values
  exact = sum((Fraction(float(value)) ** 2 for value in values), Fraction(0))

  def outcome(count: int) -> tuple[np.float32, np.float32, np.float32, np.float32]:
    partials = split_sums(squares, count, inside=inside)
    order = merge if count > 1 else "sequential"
    total = np.float32(merge_sums(partials, order))
    scale = emulate_inverse_rms(total, width=values.size, eps=eps)
    return total, np.float32(partials.max()), scale, values[0] * scale

  whole, _, whole_scale, whole_output = outcome(1)
  reports = []
  for count in splits:
    total, largest, scale, output = outcome(count)
    reports.append(
      SplitReport(
        splits=count,
        total=float(total),
        exact=float(exact),
        offset_ulp=offset_in_ulp(total, exact),
        largest_partial=float(largest),
        scale=float(scale),
        first_output=float(output),
        gap_ulp=signed_ulp_distance(total, whole),
        relative_gap=float(Fraction(float(total)) / Fraction(float(whole)) - 1) if whole else 0.0,
        scale_gap_ulp=signed_ulp_distance(scale, whole_scale),
        first_output_gap_ulp=signed_ulp_distance(output, whole_output),
      )
    )
  return tuple(reports)
