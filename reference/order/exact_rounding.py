"""Sums rounded once: exactly, whatever the range of the terms."""

import math

import numpy as np
import numpy.typing as npt

from reference.formats import Float64Array


def _rounded_once(terms: list[float]) -> np.float32:
  """The float32 number nearest to the exact sum of float64 numbers, ties to even."""
  total = math.fsum(terms)
  rest = math.fsum([*terms, -total])
  if rest:
    # `total` is rounded already; on a tie of float32 the rest decides, anywhere else it is too
    # small to. One float64 towards it is off the tie.
    nearest = np.float32(total)
    if float(nearest) != total:
      total = math.nextafter(total, math.copysign(math.inf, rest))
  return np.float32(total)


def sum_rounded_once(terms: Float64Array) -> npt.NDArray[np.float32]:
  """Σ over the last axis, exact, then one rounding to float32.

  float64 sums are exact where all terms are multiples of a power of two q and
  their magnitudes add up to less than 2^53·q, which nearly all are; the others
  are added up without error one by one.

  Args:
    terms: [..., n]; float64 must hold each exactly.

  Returns:
    float32 [...]; the infinity or NaN of float64's sum where a term is none.
  """
  with np.errstate(over="ignore", invalid="ignore", under="ignore"):
    totals = terms.sum(axis=-1)
    magnitude = np.abs(terms).sum(axis=-1)
    bits = np.ascontiguousarray(terms).view(np.int64)
    stored = bits & ((1 << 52) - 1)
    exponent = (bits >> 52) & 0x7FF
    significand = np.where(exponent > 0, stored | (1 << 52), stored)
    # the last one bit of a significand, as a power of two, is the term's own quantum
    lowest = np.ldexp(
      (significand & -significand).astype(np.float64), np.maximum(exponent, 1) - 1075
    )
    quantum = np.where(terms == 0, np.inf, lowest).min(axis=-1, initial=np.inf)
    inexact = (magnitude >= 2.0**53 * quantum) & np.isfinite(magnitude)
    result = np.asarray(totals.astype(np.float32))
  for position in np.argwhere(inexact):
    index = tuple(position)
    result[index] = _rounded_once(terms[index].tolist())
  return result
