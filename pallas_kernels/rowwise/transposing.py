"""The transpose as a request's spec: what moves."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from hw_profiles import TransposeProblem

_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}
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
    return jnp.issubdtype(self.moved_as, jnp.unsignedinteger)

  def problem(self, *, rows: int, columns: int, batch: int) -> TransposeProblem | None:
    """The planner's view; None of what no kernel moves."""
    if not self.movable:
      return None
    return TransposeProblem(rows, columns, _PLANNED_AS[self.dtype.itemsize], batch)

  @property
  def moved_as(self) -> jnp.dtype:
    """Unsigned integers of the elements' size; the dtype itself where there are none."""
    unsigned = _UNSIGNED.get(self.dtype.itemsize)
    if unsigned is None or self.dtype.kind == "c" or self.dtype == jnp.bool_:
      return self.dtype
    return jnp.dtype(unsigned)

  def forth(self, x: jax.Array) -> jax.Array:
    """The bits as integers: no copy."""
    return x if x.dtype == self.moved_as else lax.bitcast_convert_type(x, self.moved_as)

  def back(self, x: jax.Array) -> jax.Array:
    """The elements of the bits."""
    return x if x.dtype == self.dtype else lax.bitcast_convert_type(x, self.dtype)
