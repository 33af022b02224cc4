"""The transpose as a request's spec: what moves."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from hw_profiles import TransposeProblem

_UNSIGNED = {size: jnp.dtype(f"uint{8 * size}") for size in (1, 2, 4, 8)}
# The planner's name for elements of a size.
_PLANNED_AS = {1: "int8", 2: "bfloat16", 4: "float32", 8: "float64"}


@dataclasses.dataclass(frozen=True)
class Transpose:
  """y = xᵀ of each matrix; bits are moved, NaN's included.

  Attributes:
    dtype: Of the elements.
  """

  dtype: jnp.dtype

  @property
  def movable(self) -> bool:
    """Whether a kernel can move the elements as integers."""
    return self.moved_as in _UNSIGNED.values()

  def problem(self, *, rows: int, columns: int, batch: int) -> TransposeProblem | None:
    """The planner's view; None of what no kernel moves."""
    if not self.movable:
      return None
    return TransposeProblem(rows, columns, _PLANNED_AS[self.dtype.itemsize], batch)

  @property
  def moved_as(self) -> jnp.dtype:
    """Unsigned integers of the elements' size; the dtype itself where there are none."""
    unsigned = _UNSIGNED.get(self.dtype.itemsize)
    # int4 and narrower ones are said to have a byte
    is_whole = jax.dtypes.itemsize_bits(self.dtype) == 8 * self.dtype.itemsize
    if unsigned is None or self.dtype.kind == "c" or self.dtype == jnp.bool_ or not is_whole:
      return self.dtype
    return unsigned

  def forth(self, x: jax.Array) -> jax.Array:
    """The bits as integers: no copy."""
    return x if x.dtype == self.moved_as else lax.bitcast_convert_type(x, self.moved_as)

  def back(self, x: jax.Array) -> jax.Array:
    """The elements of the bits."""
    return x if x.dtype == self.dtype else lax.bitcast_convert_type(x, self.dtype)
