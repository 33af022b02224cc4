"""The inverse root of the mean square of a row that warpgroups share, whatever its numbers are."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.rowwise import inverse_rms, row_numbers
from pallas_kernels.rowwise.inverse_rms import InverseRms
from pallas_kernels.rowwise.row_groups import Share


def of_row(
  share: Share,
  square: jax.Array,
  pieces: Callable[[], list[jax.Array]],
  *,
  eps: float,
  member: Any,
  exchange: Any,
  meet: Any,
) -> InverseRms:
  """Where Σ x² says that some squares may have overflowed or vanished, with a power of two.

  Args:
    share: How warpgroups share the row.
    square: Σ x², found through `exchange.at[0]`.
    pieces: A member's of the row, float32.
    eps: Added to the mean.
    member: Which it is.
    exchange: Shared memory [2, warps] of the group.
    meet: As of `row_numbers.largest`.
  """
  mean = 1.0 / share.columns

  def at_once() -> tuple[jax.Array, jax.Array]:
    return jnp.ones_like(square), lax.rsqrt(square * mean + eps)

  def of_any() -> tuple[jax.Array, jax.Array]:
    row = pieces()
    largest = row_numbers.largest(share, row, member, exchange.at[1], meet)
    power = inverse_rms.coarse_power(jnp.maximum(largest, math.sqrt(eps)))
    scaled = [x * power for x in row]
    total = row_numbers.square_sum(share, scaled, member, exchange.at[0], meet)
    return power, lax.rsqrt(total * mean + (power * eps) * power)

  return InverseRms(*lax.cond(inverse_rms.is_plain(square, eps=eps), at_once, of_any))
