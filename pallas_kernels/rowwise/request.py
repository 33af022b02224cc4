"""The checked, hashable description of one call of a row-wise op: all of it but the arrays."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hw_profiles import RowConfig
from pallas_kernels import arguments
from pallas_kernels.batching import batch_of
from pallas_kernels.rowwise.codec import LARGEST_CODE


class RowOperands(NamedTuple):
  """The arrays of one call, with a leading dimension of the batch, or 1.

  Attributes:
    matrices: [batch or 1, rows, columns], all of one shape but for the batch.
    others: What goes with them: a row of weights [batch or 1, 1, columns], or
      numbers of which there is one a row, [batch or 1, rows or 1, 1].
  """

  matrices: tuple[jax.Array, ...]
  others: tuple[jax.Array, ...] = ()

  @property
  def batch(self) -> int:
    """The batch of all together."""
    return batch_of(*self.matrices, *self.others)


@dataclasses.dataclass(frozen=True)
class RowRequest:
  """Options of a call after checking, sizes left out (`vmap` changes them).

  Attributes:
    op: The public function, for messages.
    spec: What is computed.
    dtype: Operand dtype.
    config: The user's config or None.
    implementation: The user's choice or None.
  """

  op: str
  spec: Any
  dtype: jnp.dtype
  config: RowConfig | None
  implementation: str | None

  def for_gradient(self, spec: Any) -> "RowRequest":
    """The gradient's own computation, where this one runs; its tile is its own."""
    return dataclasses.replace(self, spec=spec, config=None)


def check_operands(names: Iterable[str], arrays: Iterable[Any], *, min_ndim: int = 1) -> jnp.dtype:
  """The dtype of operands that must have one shape and one dtype.

  Raises:
    ValueError: one is no array of floating-point numbers, or differs from the first.
  """
  names, arrays = tuple(names), tuple(arrays)
  for name, array in zip(names, arrays, strict=True):
    arguments.check_array(name, array, min_ndim=min_ndim)
    arguments.check_float(name, array)
    check_static(name, array)
  first_name, first = names[0], arrays[0]
  for name, array in zip(names[1:], arrays[1:], strict=True):
    if array.dtype != first.dtype:
      raise ValueError(
        f"{first_name} is {first.dtype} and {name} is {array.dtype}: expected one dtype; "
        f"{name}.astype({first.dtype}) makes it"
      )
    if tuple(array.shape) != tuple(first.shape):
      raise ValueError(
        f"{first_name} has shape {tuple(first.shape)} and {name} {tuple(array.shape)}: "
        f"expected one shape; jnp.broadcast_to({name}, {tuple(first.shape)}) makes it where it can"
      )
  return jnp.dtype(first.dtype)


def check_static(name: str, array: Any) -> None:
  """Raises ValueError unless all sizes are numbers."""
  if not all(isinstance(size, int) for size in array.shape):
    raise ValueError(f"{name} has shape {tuple(array.shape)}: sizes must be known when traced")


def check_config(config: Any) -> None:
  """Raises ValueError unless it is None or a RowConfig."""
  if config is not None and not isinstance(config, RowConfig):
    raise ValueError(
      f"config is a {type(config).__name__}: expected a RowConfig, for example RowConfig(1, 4096)"
    )


def code_dtype(name: str, value: Any) -> jnp.dtype:
  """`value` as a dtype of codes.

  Raises:
    ValueError: it is none.
  """
  return arguments.dtype_among(name, value, LARGEST_CODE)


def check_number(name: str, value: Any, *, lowest: float | None = None) -> float:
  """A finite number as a float.

  Raises:
    ValueError: it is none, is not finite, or is below `lowest`.
  """
  try:
    number = float(value) if not isinstance(value, (bool, str)) else math.nan
  except TypeError:
    number = math.nan
  if math.isfinite(number) and (lowest is None or number >= lowest):
    return number
  expected = "a finite number" if lowest is None else f"a finite number of at least {lowest:g}"
  raise ValueError(f"{name}={value!r}: expected {expected}")
