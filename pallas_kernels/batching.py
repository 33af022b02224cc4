"""vmap as a batch dimension of the kernels instead of an extra grid axis.

Kernels take operands of shape [batch or 1, ...]; 1 means that all of the batch
read the same. `jax.vmap` over such a call folds the mapped axis into that
dimension, so that a grid never grows an axis (CUDA limits two of its three to
65535), and an operand that is not mapped is not copied.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from pallas_kernels.dtypes import accumulator_dtype, round_once


def common_batch(*sizes: int) -> int:
  """The batch that leading sizes, each of them the batch or 1, make together."""
  others = set(sizes) - {1}
  return others.pop() if others else 1


def batch_of(*operands: jax.Array | None) -> int:
  """The batch that operands of [batch or 1, ...] make together."""
  return common_batch(*(x.shape[0] for x in operands if x is not None))


def batched(
  run: Callable[..., Any],
  *operands: jax.Array,
  rows: Callable[..., jax.Array | None] = lambda *_: None,
  with_rows: tuple[int, ...] = (0,),
) -> Any:
  """`run(*operands)`, with a vmap rule that folds mapped axes into the batch.

  Args:
    run: Takes operands of [batch or 1, ...], returns [batch, ...], an array or
      a tuple of them.
    *operands: Of these shapes.
    rows: A cheaper way to run a call of which only the operands `with_rows` are
      mapped and the others are the same for all: gets the operands, those with
      their mapped axis in front, and returns the mapped result or None.
    with_rows: Places of these operands.
  """

  @custom_vmap
  def call(*operands: jax.Array) -> Any:
    return run(*operands)

  @call.def_vmap
  def _rule(axis_size: int, in_batched: list[bool], *operands: jax.Array) -> tuple[Any, Any]:
    mapped = list(zip(operands, in_batched, strict=True))
    of_rows = [place in with_rows for place in range(len(operands))]
    shared = (x for x, has_rows in zip(operands, of_rows, strict=True) if not has_rows)
    if list(in_batched) == of_rows and all(x.shape[0] == 1 for x in shared):
      out = rows(*operands)
      if out is not None:
        return out, True
    batch = common_batch(*(x.shape[1] if is_mapped else x.shape[0] for x, is_mapped in mapped))
    merged = [
      _merge(x, is_mapped=is_mapped, axis_size=axis_size, batch=batch) for x, is_mapped in mapped
    ]
    out = batched(run, *merged, rows=rows, with_rows=with_rows)
    split = jax.tree.map(lambda x: x.reshape(axis_size, batch, *x.shape[1:]), out)
    return split, jax.tree.map(lambda _: True, split)

  return call(*operands)


def _merge(array: jax.Array, *, is_mapped: bool, axis_size: int, batch: int) -> jax.Array:
  """Fold a mapped axis into an operand's batch dimension.

  Args:
    array: [axis_size, b, ...] where mapped, else [b, ...]; b is 1 or batch.
    is_mapped: Whether the leading axis is there.
    axis_size: Size of the mapped axis.
    batch: Batch of the operands together, without that axis.

  Returns:
    [axis_size·batch, ...], or [1, ...] where the operand is the same for all.
  """
  if not is_mapped and array.shape[0] == 1:
    return array
  if not is_mapped:
    array = array[None]
  rest = array.shape[2:]
  return jnp.broadcast_to(array, (axis_size, batch, *rest)).reshape(axis_size * batch, *rest)


def sum_shared(gradient: jax.Array, operand: jax.Array) -> jax.Array:
  """The gradient of an operand, summed over the batch where the batch shared it.

  The sum is float32 or wider and is rounded to the operand's dtype once.
  """
  if operand.shape[0] == 1 and gradient.shape[0] != 1:
    gradient = jnp.sum(gradient, axis=0, keepdims=True, dtype=accumulator_dtype(gradient.dtype))
  return round_once(gradient, operand.dtype)
