"""What kernels must do to work inside `jax.shard_map(check_vma=True)`."""

from typing import Any

import jax


def _varying(array: jax.Array) -> frozenset[Any]:
  return frozenset(jax.typeof(array).manual_axis_type.varying)


def vary_together(*arrays: jax.Array) -> tuple[jax.Array, ...]:
  """`arrays`, each marked as varying over every mesh axis that any of them varies over.

  Inside `shard_map(check_vma=True)` a kernel's operands must agree on this.
  Elsewhere nothing changes.
  """
  axes = frozenset[Any]().union(*map(_varying, arrays))
  return tuple(
    jax.lax.pcast(x, tuple(axes - _varying(x)), to="varying") if axes - _varying(x) else x
    for x in arrays
  )


def out_struct(shape: tuple[int, ...], dtype: Any, like: jax.Array) -> jax.ShapeDtypeStruct:
  """The type of a kernel output that varies over the mesh axes that `like` does."""
  return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=jax.typeof(like).manual_axis_type)
