"""(mean(x²) + eps)^(-1/2) of rows whose squares may overflow or vanish.

A row is multiplied by a power of two p that brings the larger of its largest
magnitude and sqrt(eps) to about 2^40, so that neither the squares nor eps·p²
can leave float32's range, and what x·p loses below it the result would lose, too:

    (mean(x²) + eps)^(-1/2) = p·f,    f = (mean((x·p)²) + eps·p²)^(-1/2)

A product with a power of two is exact, so p moves no bit of a sum that would
not have overflowed without it. Parts of a row, each with its own power, are
merged by scaling to the smaller one: exact again.

A kernel therefore adds the squares up as they are and looks at the sum: unless
that is outside of [2^-60, 2^100] its power is 1 and the largest magnitude, a
reduction that everything else would wait for, is not needed.
"""

import functools
import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.rowwise.arithmetic import Arithmetic

_TARGET_EXPONENT = 40
# Sums of squares that need no power: n squares that vanish are together below
# n·2^-126, no bit of 2^-60; below 2^100 no square and no partial sum overflows,
# nor does a merge of many.
_SMALLEST_PLAIN = 2.0**-60
_LARGEST_PLAIN = 2.0**100


class SquareSum(NamedTuple):
  """Squares of a part of a row, summed.

  Attributes:
    largest: The largest magnitude, 0 of no elements; 2^40, whose power is 1, of
      squares that were added up as they are.
    total: Σ (x·power(largest))².
  """

  largest: jax.Array
  total: jax.Array


class InverseRms(NamedTuple):
  """(mean(x²) + eps)^(-1/2) as power·factor; x is normalised as (x·power)·factor."""

  power: jax.Array
  factor: jax.Array

  def normalise(self, x: jax.Array) -> jax.Array:
    """x·(mean(x²) + eps)^(-1/2) of the whole row or a part of it."""
    return (x * self.power) * self.factor

  @property
  def value(self) -> jax.Array:
    """The product, which rows near either end of the range make infinite or 0."""
    return self.power * self.factor


def _power(largest: jax.Array, *, inverse: bool = False) -> jax.Array:
  """The power of two that brings `largest` into [2^40, 2^41), or its reciprocal.

  Both are normal numbers: below 2^-86 it is the largest such power, 2^126.
  """
  info = jnp.finfo(largest.dtype)
  integer = jnp.int64 if largest.dtype == jnp.float64 else jnp.int32
  bias, shift = info.maxexp - 1, jnp.asarray(info.nmant, integer)
  exponent = lax.shift_right_logical(lax.bitcast_convert_type(largest, integer), shift)
  exponent = jnp.minimum(2 * bias + _TARGET_EXPONENT - exponent, 2 * bias - 1)
  exponent = 2 * bias - exponent if inverse else exponent
  return lax.bitcast_convert_type(lax.shift_left(exponent, shift), largest.dtype)


def square_sum(pieces: Sequence[jax.Array], *, eps: float, arithmetic: Arithmetic) -> SquareSum:
  """The squares of the last axis, kept as an axis of 1.

  Args:
    pieces: Rows or parts of them, in pieces of one shape, which are added up
      before the axis is.
    eps: What is added to the mean: beside 2^-60 and more, squares that vanish
      count for nothing, however small the sum is.
    arithmetic: Whether a kernel may choose between two ways.
  """

  def scaled() -> SquareSum:
    return _scaled_square_sum(pieces)

  if not arithmetic.branches:
    return scaled()
  total = _sum_of_squares(pieces)
  plain = is_plain(total, eps=eps)
  # a choice, not a constant: inside shard_map it varies as the other branch's does
  largest = jnp.where(plain, 2.0**_TARGET_EXPONENT, jnp.zeros_like(total))
  every = jnp.min(plain.astype(jnp.int32)) > 0
  return lax.cond(every, lambda: SquareSum(largest, total), scaled)


def is_plain(total: jax.Array, *, eps: float) -> jax.Array:
  """Whether a sum of squares lost nothing that counts beside the sum and `eps`, and overflowed
  nowhere; of other terms with eps = 0."""
  smallest = 0.0 if eps >= _SMALLEST_PLAIN else _SMALLEST_PLAIN
  return (total >= smallest) & (total <= _LARGEST_PLAIN)


def coarse_power(largest: jax.Array) -> jax.Array:
  """A power of two that brings `largest` into [1, 2^32), up to 2^126, without a look at its bits.

  Squares of so large a row are far from overflow, and what of it vanishes below
  2^-126 counts for nothing beside 1.
  """
  power = jnp.full_like(largest, 2.0**126)
  for exponent in range(-96, 97, 32):
    power = jnp.where(largest >= 2.0**exponent, 2.0**-exponent, power)
  return power


def _sum_of_squares(pieces: Sequence[jax.Array]) -> jax.Array:
  return jnp.sum(functools.reduce(operator.add, [x * x for x in pieces]), axis=-1, keepdims=True)


def _scaled_square_sum(pieces: Sequence[jax.Array]) -> SquareSum:
  """`square_sum` of any values."""
  magnitudes = functools.reduce(jnp.maximum, map(jnp.abs, pieces))
  largest = jnp.max(magnitudes, axis=-1, keepdims=True)
  power = _power(largest)
  return SquareSum(largest, _sum_of_squares([x * power for x in pieces]))


def merge(first: SquareSum, second: SquareSum) -> SquareSum:
  """Both parts: the totals, brought to one power, are added in this order."""
  largest = jnp.maximum(first.largest, second.largest)
  power = _power(largest)

  def scaled(part: SquareSum) -> jax.Array:
    ratio = power * _power(part.largest, inverse=True)
    # an empty part has another power, and nothing to scale
    return jnp.where(part.largest == 0.0, part.total, part.total * ratio * ratio)

  return SquareSum(largest, scaled(first) + scaled(second))


def plain_sum(parts: Sequence[SquareSum]) -> tuple[jax.Array, SquareSum]:
  """Whether no part was scaled, and what `merge` of one after another is then: a sum.

  Of 128 parts that is 128 additions, where merges are a chain of 27 ns each on an H200.
  """
  base = 2.0**_TARGET_EXPONENT
  plain = functools.reduce(jnp.logical_and, [part.largest == base for part in parts])
  total = functools.reduce(operator.add, [part.total for part in parts])
  return jnp.min(plain.astype(jnp.int32)) > 0, SquareSum(parts[0].largest, total)


def plain_sum_across(parts: SquareSum) -> tuple[jax.Array, SquareSum]:
  """`plain_sum` of parts along the last axis, [rows, parts], added up in the order of a tree."""
  base = 2.0**_TARGET_EXPONENT
  plain = parts.largest == base
  total = jnp.sum(parts.total, axis=-1, keepdims=True)
  # a choice, not a constant: see `square_sum`
  largest = jnp.where(total == total, base, total)
  return jnp.min(plain.astype(jnp.int32)) > 0, SquareSum(largest, total)


def inverse_rms(squares: SquareSum, *, columns: int, eps: float) -> InverseRms:
  """From the squares of a whole row of `columns` elements."""
  power = _power(jnp.maximum(squares.largest, math.sqrt(eps)))
  ratio = power * _power(squares.largest, inverse=True)
  total = jnp.where(squares.largest == 0.0, squares.total, squares.total * ratio * ratio)
  # eps·power² where eps = 0 and power² is not finite has to be 0
  mean = total * (1.0 / columns) + (power * eps) * power
  return InverseRms(power, lax.rsqrt(mean))
