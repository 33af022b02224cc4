"""Codes and scale of a row whose values a kernel has: which arithmetic they take, on Hopper."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.rowwise.arithmetic import Arithmetic
from pallas_kernels.rowwise.mosaic_arithmetic import is_ordinary
from pallas_kernels.rowwise.specs import RowCodes


def encode(
  spec: RowCodes,
  found: jax.Array,
  *,
  columns: int,
  exact: Arithmetic,
  of_finite: Callable[[], jax.Array],
  write: Callable[[jax.Array], None],
  write_any: Callable[[jax.Array], None],
) -> jax.Array:
  """Stores a row's codes; its scale.

  Ordinary rows are near at hand; what others take is behind them and may be slow.

  Args:
    spec: What to compute.
    found: max |x| over the row's numbers that are no NaN, infinity where one is infinite.
    columns: Of the row.
    exact: Arithmetic for any row.
    of_finite: max |x| over its finite numbers.
    write: Stores the codes of a row without an infinity by its scale, which `is_ordinary`.
    write_any: Those of any row.
  """

  def scale_of(largest: jax.Array) -> jax.Array:
    return spec.settle(0, (largest,), columns=columns, arithmetic=exact)

  scale = scale_of(found)

  def near() -> jax.Array:
    write(scale)
    return scale

  def far() -> jax.Array:
    scale = scale_of(of_finite())
    write_any(scale)
    return scale

  return lax.cond((found < jnp.inf) & is_ordinary(scale), near, far)
