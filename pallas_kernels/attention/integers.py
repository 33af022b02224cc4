"""Arithmetic on block and tile numbers, which are never negative: one operation each.

`//`, `%` and a minimum written with operators are right for negative numbers and
Python's integers too, and cost up to a dozen scalar operations when traced, most of
which use their operand several times. Huawei's compiler (its pass
hivm-mark-real-core-type) follows every path through such a graph by itself, so
that the bounds of a causal walk took it for ever.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax

from hw_profiles.attention.mask import Arithmetic


def _is_static(*values: Any) -> bool:
  return all(isinstance(value, int) for value in values)


def quotient(number: Any, divisor: int) -> Any:
  """⌊number / divisor⌋ of a number that is not negative; an int or traced."""
  if divisor == 1 or _is_static(number):
    return number // divisor
  return lax.div(number, jnp.asarray(divisor, number.dtype))


def remainder(number: Any, divisor: int) -> Any:
  """number mod divisor of a number that is not negative; an int or traced."""
  if _is_static(number):
    return number % divisor
  if divisor == 1:
    return jnp.zeros_like(number)
  return lax.rem(number, jnp.asarray(divisor, number.dtype))


def least(first: Any, second: Any) -> Any:
  """The smaller of two numbers."""
  return min(first, second) if _is_static(first, second) else jnp.minimum(first, second)


def most(first: Any, second: Any) -> Any:
  """The larger of two numbers."""
  return max(first, second) if _is_static(first, second) else jnp.maximum(first, second)


TRACED = Arithmetic(least=least, most=most, quotient=quotient)
"""For `hw_profiles.attention.mask`."""
