"""A row of x and d_y that warpgroups have in registers, and what rms_norm's gradient makes of it.

The numbers of all of it are found by a block, or by the blocks of a cluster together.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.rowwise import inverse_rms, row_numbers, warpgroup_sums
from pallas_kernels.rowwise.cluster_numbers import Exchange
from pallas_kernels.rowwise.inverse_rms import InverseRms
from pallas_kernels.rowwise.rms_gradient import RmsNormGradient
from pallas_kernels.rowwise.row_groups import Share
from pallas_kernels.rowwise.row_numbers import Pair

# Exchanged by the warps of a group: of a row two sums, and of one with any values three more.
EXCHANGED = 5


@dataclasses.dataclass(frozen=True)
class BlockSums:
  """Numbers of a row that a block has, exchanged in memory that the row before did not use.

  Attributes:
    share: How a group shares it.
    member: Of the group.
    exchange: Shared memory of the group.
    meet: As of `row_numbers`.
  """

  share: Share
  member: Any
  exchange: Any
  meet: Any

  def products(self, before: int, *pairs: Pair) -> tuple[jax.Array, ...]:
    """Σ a·b over the row of each pair, after so many exchanges for the same row."""
    slot = before + 1 if before else 0
    exchanged = self.exchange.at[pl.ds(slot, len(pairs))]
    return row_numbers.products(self.share, pairs, self.member, exchanged, self.meet)

  def largest(self, before: int, pieces: list[jax.Array]) -> jax.Array:
    """max |x| over the row, likewise."""
    exchanged = self.exchange.at[before + 1]
    return row_numbers.largest(self.share, pieces, self.member, exchanged, self.meet)


@dataclasses.dataclass(frozen=True)
class ClusterSums:
  """The same of a row that the blocks of a cluster share.

  Attributes:
    exchange: Between them.
    group: Of this block.
    count: Exchanges of the rows before.
  """

  exchange: Exchange
  group: Any
  count: Any

  def products(self, before: int, *pairs: Pair) -> tuple[jax.Array, ...]:
    """See `BlockSums`."""
    return self.exchange.products(pairs, self.group, self.count + before)

  def largest(self, before: int, pieces: list[jax.Array]) -> jax.Array:
    """See `BlockSums`."""
    return self.exchange.largest(pieces, self.group, self.count + before)


class Row:
  """A row, or a block's part of it, and what a member of a group does with it."""

  def __init__(
    self,
    spec: RmsNormGradient,
    share: Share,
    x: Any,
    d_out: Any,
    weights: Any,
    starts: list[Any],
    shift: Any,
    sums: BlockSums | ClusterSums,
    columns: int,
  ) -> None:
    """A member's pieces, loaded.

    Args:
      spec: What to compute.
      share: How the group shares what the block has of the row.
      x: That in shared memory, of x.
      d_out: Likewise, of d_y.
      weights: Likewise, of the weight.
      starts: First columns of the member's pieces.
      shift: Columns before the row in shared memory.
      sums: How numbers of all of the row are found.
      columns: Of all of it.
    """
    self.spec, self.share, self.weights, self.starts = spec, share, weights, starts
    self.sums, self.columns = sums, columns
    self.x_row, self.shift = x, shift
    self.x, self.d_out = (
      [share.of_row(share.load(row, start + shift), start) for start in starts]
      for row in (x, d_out)
    )

  def _g(self, piece: int) -> jax.Array:
    """Computed where it is needed: registers for it would be spilled, and arithmetic is free."""
    weight = self.share.load(self.weights, self.starts[piece])
    return self.spec.scaled(self.d_out[piece], weight)

  def _every_g(self) -> list[jax.Array]:
    return [self._g(piece) for piece in range(self.share.pieces)]

  def numbers(self) -> tuple[jax.Array, ...]:
    """How many exchanges it took, power and factor of 1/rms, mean(g·n).

    Both sums are of x as it is, so that neither waits for the other. Where the
    squares, or the sum of products, say that terms may have overflowed or
    vanished, the row is gone through again with a power of two.
    """
    spec, columns = self.spec, self.columns
    square, product = self.sums.products(0, (self.x, self.x), (self._every_g(), self.x))
    magnitude = jnp.maximum(product, -product)
    plain = inverse_rms.is_plain(square, eps=spec.eps) & inverse_rms.is_plain(magnitude, eps=0.0)

    def at_once() -> tuple[jax.Array, ...]:
      factor = lax.rsqrt(square * (1.0 / columns) + spec.eps)
      return jnp.int32(1), jnp.ones_like(factor), factor, product * factor * (1.0 / columns)

    return lax.cond(plain, at_once, self._numbers_of_any)

  def _numbers_of_any(self) -> tuple[jax.Array, ...]:
    """`numbers` of a row with any values."""
    spec, columns = self.spec, self.columns
    largest = self.sums.largest(1, self.x)
    power = inverse_rms.coarse_power(jnp.maximum(largest, math.sqrt(spec.eps)))
    scaled = [x * power for x in self.x]
    (square,) = self.sums.products(2, (scaled, scaled))
    inverse = InverseRms(power, lax.rsqrt(square * (1.0 / columns) + (power * spec.eps) * power))
    normalised = [inverse.normalise(x) for x in self.x]
    (product,) = self.sums.products(3, (self._every_g(), normalised))
    return jnp.int32(4), power, inverse.factor, product * (1.0 / columns)

  def store(
    self, totals: tuple[jax.Array, ...], power: jax.Array, factor: jax.Array, mean: jax.Array
  ) -> tuple[jax.Array, ...]:
    """d_x in the place of x; the totals with d_y·n."""
    share, inverse = self.share, InverseRms(power, factor)
    found = []
    for piece, total in enumerate(totals):
      normalised = inverse.normalise(self.x[piece])
      d_x = self.spec.d_x(self._g(piece), normalised, mean, inverse, None)
      share.store_shared(d_x, self.x_row, self.starts[piece] + self.shift)
      total = total + self.d_out[piece] * normalised
      found.append(warpgroup_sums.here(total, share.vector, interpreted=share.interpreted))
    return tuple(found)
