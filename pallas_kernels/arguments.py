"""Checks that every op makes of its arguments, with messages that say what would work."""

import difflib
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels import names

FLOAT_DTYPES = ("bfloat16", "float16", "float32", "float64")
# Of codes, which are numbers with their scales.
CODE_DTYPES = ("float8_e4m3fn", "int8")


def did_you_mean(value: object, known: Iterable[str]) -> str:
  """ "; did you mean 'silu'?" where a known name is close to `value`, else nothing."""
  close = difflib.get_close_matches(str(value), list(known), n=1)
  return f"; did you mean {close[0]!r}?" if close else ""


def check_choice(name: str, value: object, known: Iterable[str], *, none_too: bool = True) -> None:
  """Raise ValueError unless `value` is one of the strings `known`, or None where that will do."""
  known = tuple(known)
  if (none_too and value is None) or (isinstance(value, str) and value in known):
    return
  words = ", ".join(map(repr, known))
  words = f"one of {words}" if len(known) > 1 else words
  raise ValueError(
    f"{name}={value!r}: expected {'None or ' if none_too else ''}{words}"
    f"{did_you_mean(value, known)}"
  )


def check_one_split(num_splits: int | None, config: Any) -> None:
  """Raise ValueError where a call and its config cut a row, or the keys, into other numbers.

  Either number moves the bits of the result, so that neither stands in for the other.

  Args:
    num_splits: The call's own argument.
    config: The caller's tile, or None.
  """
  of_config = None if config is None else config.num_splits
  if None not in (num_splits, of_config) and num_splits != of_config:
    raise ValueError(
      f"num_splits={num_splits} and {type(config).__name__}.num_splits={of_config}: expected one"
      " of them, or the same"
    )


def check_implementation(value: object) -> None:
  """Raise ValueError unless `value` is None or the name of an implementation."""
  check_choice("implementation", value, names.IMPLEMENTATIONS)


def as_array(name: str, value: Any) -> Any:
  """A NumPy array as a JAX array; anything else, an array or not, as it is.

  Raises:
    ValueError: a NumPy array that JAX has no equal of (a masked one, a foreign
      byte order, elements that are no floating-point numbers).
  """
  if not hasattr(value, "__array__") or isinstance(value, jax.Array):
    return value
  array = np.asarray(value)
  if isinstance(value, np.ma.MaskedArray):
    raise ValueError(f"{name} is a masked array: expected a plain one; {name}.filled(0) makes one")
  if not array.dtype.isnative:
    raise ValueError(
      f"{name} has the byte order of another machine ({array.dtype.str}): expected the native "
      f"one; {name}.astype({array.dtype.newbyteorder('=').name!r}) makes it"
    )
  if array.ndim:
    check_float(name, array)
  return jnp.asarray(array)


def check_array(name: str, array: Any, *, min_ndim: int) -> None:
  """Raise ValueError unless `array` has a shape of at least `min_ndim` dimensions, and a dtype."""
  if not (hasattr(array, "shape") and hasattr(array, "dtype")):
    if array is None:
      raise ValueError(f"{name} is None: expected an array")
    raise ValueError(
      f"{name} is a {type(array).__name__}: expected an array; jnp.asarray({name}) makes one"
    )
  if len(array.shape) < min_ndim:
    raise ValueError(
      f"{name} has shape {tuple(array.shape)}: expected at least {min_ndim} dimension(s)"
      + (f"; {name}[None, :] makes a row" if min_ndim == 2 and len(array.shape) == 1 else "")
    )


def check_float(name: str, array: Any, *, codes: str = "") -> None:
  """Raise ValueError unless the elements of `array` are of a floating-point dtype ops take.

  Args:
    name: Of the argument.
    array: It.
    codes: What an error says beside, of an array that holds codes.
  """
  dtype = getattr(array.dtype, "name", str(array.dtype))
  if dtype not in FLOAT_DTYPES:
    hint = f"; {codes}" if codes and dtype in CODE_DTYPES else ""
    raise ValueError(f"{name} is {dtype}: expected one of {', '.join(FLOAT_DTYPES)}{hint}")


def dtype_among(name: str, value: Any, known: Iterable[str]) -> jnp.dtype:
  """`value` as one of the dtypes `known`.

  Raises:
    ValueError: it is none.
  """
  known = tuple(known)
  try:
    dtype = jnp.dtype(value)
  except TypeError:
    dtype = None
  if dtype is None or dtype.name not in known:
    shown = value if dtype is None else dtype.name
    raise ValueError(
      f"{name}={shown!r}: expected one of {', '.join(known)}{did_you_mean(shown, known)}"
    )
  return dtype


def float_dtype(name: str, value: Any) -> jnp.dtype:
  """`value` as one of `FLOAT_DTYPES`.

  Raises:
    ValueError: it is none, or it is float64 and JAX has no 64-bit dtypes now.
  """
  dtype = dtype_among(name, value, FLOAT_DTYPES)
  if dtype == jnp.float64 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
    raise ValueError(f"{name}='float64': needs jax_enable_x64; without it 'float32' is the widest")
  return dtype


def precision(value: Any, dtype: jnp.dtype) -> Any:
  """A `jax.lax.PrecisionLike` as `lax.dot_general` takes it.

  None is full accuracy: `Precision.HIGHEST` for float32 and float64 operands,
  never TF32. Products of 16-bit operands are exact in float32, so that for them
  every precision is the same, and None is returned.

  Raises:
    ValueError: it is no PrecisionLike.
  """
  if value is None:
    chosen: Any = lax.Precision.HIGHEST
  elif isinstance(value, (tuple, list)) and len(value) == 2:
    chosen = tuple(_one_precision(part) for part in value)
  else:
    chosen = _one_precision(value)
  return chosen if dtype.itemsize > 2 else None


def _one_precision(value: Any) -> Any:
  if isinstance(value, (lax.Precision, lax.DotAlgorithmPreset, lax.DotAlgorithm)):
    return value
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


def require_values(name: str, value: Any) -> None:
  """Raise ValueError where `value` is only a shape and a dtype."""
  if isinstance(value, jax.ShapeDtypeStruct):
    raise ValueError(
      f"{name} is a ShapeDtypeStruct: expected an array; pallas_kernels.explain takes shapes"
    )


def describe_array(array: Any) -> str:
  """For example "bfloat16[1024,4096]"."""
  return f"{jnp.dtype(array.dtype).name}[{','.join(map(str, array.shape))}]"
