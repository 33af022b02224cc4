"""The inverse root of a row's mean square: in float64, and as float32 may give it."""

import numpy as np
import numpy.typing as npt

from reference.accumulation import UNIT_ROUNDOFF, accumulation_depth, gamma
from reference.bounded import MIN_NORMAL, MIN_SUBNORMAL, Bounded
from reference.formats import Float64Array, to_float64

_U32 = UNIT_ROUNDOFF["ieee"]

# Roundings of float32 on the way to mean(x²) + eps besides those of the sum. A kernel that keeps
# the squares from overflowing scales each x by a reciprocal of the row's largest magnitude, which
# is 2 roundings for each of the two factors; the square is 1; dividing by the width, as a product
# with a rounded reciprocal, 2; scaling back, or scaling eps, by a square of a rounded reciprocal,
# 4; rounding eps to float32, 1, and adding it, 1. (A power of two for the scale saves most.)
_MEAN_ROUNDINGS = 4 + 1 + 2 + 4 + 1 + 1

# An rsqrt within 2 ulp.
_RSQRT_ROUNDINGS = 4

# And from there to x·rsqrt(·): x scaled again (2 u), the product with it (1 u), and undoing a
# scale, a product with a reciprocal (2 u).
_NORMALISED_ROUNDINGS = 2 + 1 + 2


def mean_square(x: npt.ArrayLike) -> Float64Array:
  """mean(x²) of each row in float64, [..., 1]; 0 for a row without columns.

  Squares of float32 values neither overflow nor vanish in float64.
  """
  values = to_float64(x)
  with np.errstate(invalid="ignore", over="ignore"):
    total = np.sum(values * values, axis=-1, keepdims=True)
  return np.asarray(total / max(values.shape[-1], 1))


def inverse_rms(x: npt.ArrayLike, *, eps: float = 1e-6) -> Float64Array:
  """(mean(x²) + eps)^(-1/2) of each row in float64, [..., 1]."""
  with np.errstate(divide="ignore", invalid="ignore"):
    return 1.0 / np.sqrt(mean_square(x) + eps)


def bounded_inverse_rms(
  x: Bounded,
  *,
  eps: float = 1e-6,
  accumulation_chunk: int | None = None,
  flush_subnormals: bool = True,
) -> Bounded:
  """(mean(x²) + eps)^(-1/2) of each row evaluated in float32, [..., 1].

  With m = mean(x²) + eps, d from `accumulation_depth` and e_x the error of x,

      e_m = γ_(d+13)·(m + p) + p + η,       p = mean(2|x|·e_x + e_x²)
      e = m^(-1/2)·((1 - e_m / m)^(-1/2)·(1 + γ_4) - 1)

  All terms of m are positive, so its relative error is that of a term, with
  the 13 roundings besides the sum that `_MEAN_ROUNDINGS` counts. A factor of
  up to (1 - e_m / m)^(-1/2) is what that makes of m^(-1/2), and γ_4 is an rsqrt
  within 2 ulp. η is 2^-126 for squares that vanish and twice that for the
  sum's own end, or 2^-149 as much without flushing. float64's roundings of m,
  γ_(columns)(2^-53), are added to γ.

  The mean may not overflow: kernels have to be robust to that. A row with
  e_m >= m, of zeros with eps = 0 for one, has no bound.
  """
  columns = x.exact.shape[-1]
  depth = accumulation_depth(columns, accumulation_chunk) + _MEAN_ROUNDINGS
  growth = gamma(depth, _U32) + gamma(columns + 4, 2.0**-53)
  smallest = MIN_NORMAL if flush_subnormals else MIN_SUBNORMAL
  magnitude = np.abs(x.exact)
  with np.errstate(invalid="ignore", over="ignore", under="ignore", divide="ignore"):
    mean = mean_square(x.exact) + eps
    moved = np.sum(x.error * (2.0 * magnitude + x.error), axis=-1, keepdims=True)
    moved = moved / max(columns, 1)
    mean_error = growth * (mean + moved) + moved + 3.0 * smallest
    exact = 1.0 / np.sqrt(mean)
    ratio = mean_error / mean
    known = ratio < 1.0
    widened = 1.0 / np.sqrt(np.where(known, 1.0 - ratio, 1.0))
    error = exact * (widened * (1.0 + gamma(_RSQRT_ROUNDINGS, _U32)) - 1.0)
  unknown = ~known & np.isfinite(mean)
  unknown |= (x.may_overflow | x.unbounded).any(axis=-1, keepdims=True)
  special = ~np.isfinite(exact) | unknown
  return Bounded(exact, np.where(special, 0.0, error), np.zeros(exact.shape, np.bool_), unknown)


def bounded_normalised(
  x: Bounded,
  *,
  eps: float = 1e-6,
  accumulation_chunk: int | None = None,
  flush_subnormals: bool = True,
) -> Bounded:
  """x·(mean(x²) + eps)^(-1/2) evaluated in float32, not rounded to anything yet.

      e = ρ·|n| + (1 + ρ)·e_x·r,    1 + ρ = (1 + e_r / r)·(1 + γ_5)

  with r and e_r of `bounded_inverse_rms` and the roundings that
  `_NORMALISED_ROUNDINGS` counts. r of a row of numbers near float32's largest
  is subnormal: a kernel has to undo its scale on the product.

  Where a row holds an infinity its finite elements, which the formula makes 0,
  have no bound, since a kernel that divides by the row's largest magnitude
  gives NaN.
  """
  inverse = bounded_inverse_rms(
    x, eps=eps, accumulation_chunk=accumulation_chunk, flush_subnormals=flush_subnormals
  )
  with np.errstate(invalid="ignore", over="ignore", under="ignore", divide="ignore"):
    exact = x.exact * inverse.exact
    relative = np.where(inverse.exact > 0, inverse.error / inverse.exact, 0.0)
    rho = (1.0 + relative) * (1.0 + gamma(_NORMALISED_ROUNDINGS, _U32)) - 1.0
    error = rho * np.abs(exact) + (1.0 + rho) * x.error * inverse.exact
    error += MIN_NORMAL if flush_subnormals else MIN_SUBNORMAL
  infinite = np.isinf(x.exact).any(axis=-1, keepdims=True)
  unknown = inverse.unbounded | (infinite & np.isfinite(x.exact))
  special = ~np.isfinite(exact) | unknown
  return Bounded(
    exact,
    np.where(special, 0.0, error),
    np.zeros(exact.shape, np.bool_),
    np.broadcast_to(unknown, exact.shape) & ~np.isnan(x.exact),
  )
