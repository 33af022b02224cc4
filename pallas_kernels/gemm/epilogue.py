"""What happens to finished accumulators before they are stored.

An epilogue has two halves. `settle` makes of an accumulator the value that the
unfused program would have stored after its product; `finish` makes the result
of settled values. Between them a kernel may keep settled values in 16 bits.
"""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from pallas_kernels import activations
from pallas_kernels.dtypes import accumulator_dtype, narrowed, round_once


class Epilogue(Protocol):
  """out = finish(settle(A·B_0, ...), settle(A·B_1, ...), ...).

  Attributes:
    settled_dtype: What `settle` rounds to.
    out_dtype: What `finish` rounds to.
    activation: The activation in `finish`, for the planner.
  """

  @property
  def activation(self) -> str | None:
    """See the class."""
    ...

  @property
  def settled_dtype(self) -> jnp.dtype:
    """See the class."""
    ...

  @property
  def out_dtype(self) -> jnp.dtype:
    """See the class."""
    ...

  def settle(
    self, acc: jax.Array, per_row: tuple[jax.Array, ...], per_column: tuple[jax.Array, ...]
  ) -> jax.Array:
    """Settle an accumulator block.

    Args:
      acc: The block of one product.
      per_row: The operands with a value a row, each broadcastable to acc.
      per_column: The operands with a value a column, each broadcastable to acc.
    """
    ...

  def finish(self, *settled: jax.Array, native_exp2: bool = False) -> jax.Array:
    """The block of the result.

    Args:
      *settled: The settled block of each product.
      native_exp2: As for `activations.silu`.
    """
    ...


def complete(
  epilogue: Epilogue,
  accs: tuple[jax.Array, ...],
  per_row: tuple[jax.Array, ...],
  per_column: tuple[jax.Array, ...],
  *,
  by_xla: bool = False,
) -> jax.Array:
  """Both halves, one after the other.

  Args:
    epilogue: The epilogue.
    accs: The products.
    per_row, per_column: As `Epilogue.settle` takes them.
    by_xla: Whether XLA compiles it, which would leave the rounding between the two out.
  """
  settled = (epilogue.settle(acc, per_row, per_column) for acc in accs)
  if not by_xla or epilogue.activation is None or epilogue.settled_dtype.itemsize > 2:
    return epilogue.finish(*settled)
  wide = accumulator_dtype(epilogue.settled_dtype)
  kept = (narrowed(x.astype(wide), x.dtype).astype(x.dtype) for x in settled)
  return epilogue.finish(*kept)


@dataclasses.dataclass(frozen=True)
class ActivationEpilogue:
  """out = round_out(act(round_mid(acc + bias))), once, after the whole K reduction.

  acc + bias and the activation are float32. round_mid is the rounding an
  unfused program does when it stores the product before the activation; where
  `intermediate_dtype` is float32 it is the identity. Without an activation
  there is nothing between the two roundings and only round_out is done.

  Attributes:
    activation: None or a name from `activations.ACTIVATIONS`.
    intermediate_dtype: dtype of round_mid.
    out_dtype: dtype of round_out.
  """

  activation: str | None
  intermediate_dtype: jnp.dtype
  out_dtype: jnp.dtype

  @property
  def settled_dtype(self) -> jnp.dtype:
    """The intermediate dtype, or the only one there is."""
    return self.out_dtype if self.activation is None else self.intermediate_dtype

  def settle(
    self, acc: jax.Array, per_row: tuple[jax.Array, ...], per_column: tuple[jax.Array, ...]
  ) -> jax.Array:
    """round_mid(acc + bias): what the activation, or its gradient, sees."""
    del per_row
    for bias in per_column:
      acc = acc + bias.astype(acc.dtype)
    return round_once(acc, self.settled_dtype)

  def finish(self, *settled: jax.Array, native_exp2: bool = False) -> jax.Array:
    """round_out(act(settled))."""
    (x,) = settled
    if self.activation is None:
      return x
    wide = x.astype(accumulator_dtype(x.dtype))
    return round_once(
      activations.apply(self.activation, wide, native_exp2=native_exp2), self.out_dtype
    )


@dataclasses.dataclass(frozen=True)
class GatedEpilogue:
  """out = round_out(act(round_mid(A·B_0)) · round_mid(A·B_1)).

  round_mid is where the unfused program stores its two products; activation
  and product are float32.

  Attributes:
    activation: A name from `activations.ACTIVATIONS`.
    intermediate_dtype: dtype of round_mid.
    out_dtype: dtype of round_out.
  """

  activation: str
  intermediate_dtype: jnp.dtype
  out_dtype: jnp.dtype

  @property
  def settled_dtype(self) -> jnp.dtype:
    """The intermediate dtype."""
    return self.intermediate_dtype

  def settle(
    self, acc: jax.Array, per_row: tuple[jax.Array, ...], per_column: tuple[jax.Array, ...]
  ) -> jax.Array:
    """round_mid(acc)."""
    del per_row, per_column
    return round_once(acc, self.intermediate_dtype)

  def finish(self, *settled: jax.Array, native_exp2: bool = False) -> jax.Array:
    """round_out(act(gate)·up)."""
    gate, up = (x.astype(accumulator_dtype(x.dtype)) for x in settled)
    activated = activations.apply(self.activation, gate, native_exp2=native_exp2)
    return round_once(activated * up, self.out_dtype)


@dataclasses.dataclass(frozen=True)
class ScaledEpilogue:
  """out = round_out(acc · row scale · column scale), in float32, in this order.

  Attributes:
    out_dtype: dtype of round_out.
  """

  out_dtype: jnp.dtype
  activation: str | None = None

  @property
  def settled_dtype(self) -> jnp.dtype:
    """There is one rounding."""
    return self.out_dtype

  def settle(
    self, acc: jax.Array, per_row: tuple[jax.Array, ...], per_column: tuple[jax.Array, ...]
  ) -> jax.Array:
    """round_out(acc · row scale · column scale)."""
    scaled = acc.astype(jnp.float32)
    for scale in (*per_row, *per_column):
      scaled = scaled * scale
    return round_once(scaled, self.out_dtype)

  def finish(self, *settled: jax.Array, native_exp2: bool = False) -> jax.Array:
    """What was settled."""
    del native_exp2
    (x,) = settled
    return x


def make_epilogue(
  *, activation: str | None, intermediate_dtype: Any | None, out_dtype: Any
) -> ActivationEpilogue:
  """An `ActivationEpilogue` with `intermediate_dtype=None` resolved to the output dtype."""
  out = jnp.dtype(out_dtype)
  # without an activation there is no middle, and nothing may depend on it
  unused = intermediate_dtype is None or activation is None
  mid = out if unused else jnp.dtype(intermediate_dtype)
  return ActivationEpilogue(activation=activation, intermediate_dtype=mid, out_dtype=out)
