"""`Bounded` arrays as a whole: moved, joined, negated, summed."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.accumulation import UNIT_ROUNDOFF, accumulation_depth, gamma
from reference.bounded import FLOAT32, MIN_NORMAL, Bounded
from reference.formats import Float64Array

_U32 = UNIT_ROUNDOFF["ieee"]


def moved(x: Bounded, move: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> Bounded:
  """`x` with its elements where `move` puts those of an array: a transpose, a slice, a reshape."""
  return Bounded(
    move(x.exact),
    move(np.broadcast_to(x.error, x.exact.shape)),
    move(np.broadcast_to(x.may_overflow, x.exact.shape)),
    move(np.broadcast_to(x.unbounded, x.exact.shape)),
    x.format,
  )


def transposed(x: Bounded) -> Bounded:
  """The last two dimensions swapped."""
  return moved(x, lambda array: np.swapaxes(array, -1, -2))


def joined(x: Bounded, y: Bounded, *, axis: int) -> Bounded:
  """Both along `axis`; they have the same format."""
  return Bounded(
    np.concatenate([x.exact, y.exact], axis=axis),
    np.concatenate([x.error, y.error], axis=axis),
    np.concatenate([x.may_overflow, y.may_overflow], axis=axis),
    np.concatenate([x.unbounded, y.unbounded], axis=axis),
    x.format,
  )


def negated(x: Bounded) -> Bounded:
  """-x, which is exact."""
  return dataclasses.replace(x, exact=-x.exact)


def bounded_sum(
  x: Bounded,
  *,
  axis: int = -1,
  keepdims: bool = False,
  accumulation_chunk: int | None = None,
  flush_subnormals: bool = True,
) -> Bounded:
  """Σ x along an axis in float32.

      e = γ_d·(Σ|x| + Σ e_x) + Σ e_x + d·η

  with d of `accumulation_depth`. It is `bounded_matmul` with a factor of ones,
  whose products are exact. Nothing is promised where Σ|x| + e may overflow, or
  a term may.
  """
  count = x.exact.shape[axis]
  depth = accumulation_depth(count, accumulation_chunk)

  def summed(array: Float64Array) -> Float64Array:
    return np.asarray(array.sum(axis=axis, keepdims=keepdims))

  with np.errstate(invalid="ignore", over="ignore"):
    exact, magnitude, moved = summed(x.exact), summed(np.abs(x.exact)), summed(x.error)
    growth = gamma(depth, _U32) + gamma(count, 2.0**-53)
    error = growth * (magnitude + moved) + moved
    if flush_subnormals:
      error = error + depth * MIN_NORMAL
  special = ~np.isfinite(exact)
  doubt = np.any(x.may_overflow | x.unbounded, axis=axis, keepdims=keepdims)
  unbounded = doubt | (~special & (magnitude + error >= FLOAT32.max_finite))
  error = np.where(special | unbounded, 0.0, error)
  return Bounded(exact, error, np.zeros(exact.shape, np.bool_), unbounded & ~np.isnan(exact))
