"""Checks that every op makes of its arguments, with messages that say what would work."""

import difflib
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels import names

FLOAT_DTYPES = ("bfloat16", "float16", "float32", "float64")


def did_you_mean(value: object, known: Iterable[str]) -> str:
  """ "; did you mean 'silu'?" where a known name is close to `value`, else nothing."""
  close = difflib.get_close_matches(str(value), list(known), n=1)
  return f"; did you mean {close[0]!r}?" if close else ""


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
  """Raise ValueError unless `value` is None or one of the strings `known`."""
  known = tuple(known)
  if value is None or (isinstance(value, str) and value in known):
    return
  raise ValueError(
    f"{name}={value!r}: expected None or one of {', '.join(map(repr, known))}"
    f"{did_you_mean(value, known)}"
  )


def check_implementation(value: object) -> None:
  """Raise ValueError unless `value` is None or the name of an implementation."""
  check_choice("implementation", value, names.IMPLEMENTATIONS)


def as_array(value: Any) -> Any:
  """A NumPy array as a JAX array; anything else, an array or not, as it is."""
  if hasattr(value, "__array__") and not isinstance(value, jax.Array):
    return jnp.asarray(value)
  return value


def check_array(name: str, array: Any, *, min_ndim: int) -> None:
  """Raise ValueError unless `array` has a shape of at least `min_ndim` dimensions, and a dtype."""
  if not (hasattr(array, "shape") and hasattr(array, "dtype")):
    raise ValueError(
      f"{name} is a {type(array).__name__}: expected an array; jnp.asarray({name}) makes one"
    )
  if len(array.shape) < min_ndim:
    raise ValueError(
      f"{name} has shape {tuple(array.shape)}: expected at least {min_ndim} dimension(s)"
      + (f"; {name}[None, :] makes a row" if min_ndim == 2 and len(array.shape) == 1 else "")
    )


def check_float(name: str, array: Any) -> None:
  """Raise ValueError unless the elements of `array` are of a floating-point dtype ops take."""
  dtype = jnp.dtype(array.dtype).name
  if dtype not in FLOAT_DTYPES:
    raise ValueError(f"{name} is {dtype}: expected one of {', '.join(FLOAT_DTYPES)}")


def float_dtype(name: str, value: Any) -> jnp.dtype:
  """`value` as one of `FLOAT_DTYPES`.

  Raises:
    ValueError: it is none, or it is float64 and JAX has no 64-bit dtypes now.
  """
  try:
    dtype = jnp.dtype(value)
  except TypeError:
    dtype = None
  if dtype is None or dtype.name not in FLOAT_DTYPES:
    shown = value if dtype is None else dtype.name
    raise ValueError(f"{name}={shown!r}: expected one of {', '.join(FLOAT_DTYPES)}")
  if dtype == jnp.float64 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
    raise ValueError(f"{name}='float64': needs jax_enable_x64; without it 'float32' is the widest")
  return dtype


def precision(value: Any, dtype: jnp.dtype) -> Any:
  """A `jax.lax.PrecisionLike` as `lax.dot_general` takes it.

  None is full accuracy: `Precision.HIGHEST` for float32 and float64 operands,
  never TF32. Operands of 16 bits have one precision.
  """
  if value is None:
    return lax.Precision.HIGHEST if dtype in (jnp.float32, jnp.float64) else None
  if isinstance(value, (lax.Precision, lax.DotAlgorithmPreset, lax.DotAlgorithm)):
    return value
  if isinstance(value, (tuple, list)) and len(value) == 2:
    return tuple(precision(part, dtype) for part in value)
  if isinstance(value, str):
    try:
      return lax.Precision(value)
    except ValueError:
      if value in lax.DotAlgorithmPreset.__members__:
        return lax.DotAlgorithmPreset[value]
  raise ValueError(
    f"precision={value!r}: expected None, a jax.lax.Precision ('default', 'high', 'highest'), "
    "a pair of them, or a jax.lax.DotAlgorithmPreset"
  )


def describe_array(array: Any) -> str:
  """For example "bfloat16[1024,4096]"."""
  return f"{jnp.dtype(array.dtype).name}[{','.join(map(str, array.shape))}]"
