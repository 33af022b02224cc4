"""Each op as a call of its portable kernel, on shapes: what the lowerings start from."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import arguments


@dataclasses.dataclass(frozen=True)
class KernelCall:
  """One call of a portable kernel, not yet traced.

  Attributes:
    op: Name of the public function.
    problem: What is computed, as `hw_profiles.plan` takes it.
    config: The tile.
    function: The kernel as a function of arrays.
    arguments: Shapes and dtypes of these arrays.
  """

  op: str
  problem: Any
  config: Any
  function: Callable[..., Any]
  arguments: tuple[jax.ShapeDtypeStruct, ...]


Builder = Callable[[Mapping[str, int], jnp.dtype, Any, Mapping[str, Any]], KernelCall]
"""Makes the call of an op from sizes by name, operand dtype, config and options."""


def sizes_of(op: str, sizes: Mapping[str, int], names: tuple[str, ...]) -> tuple[int, ...]:
  """The sizes called `names`.

  Raises:
    ValueError: one is missing, unknown or less than 1 (an empty problem has no kernel).
  """
  for name in (*names, *sizes):
    if name not in sizes or name not in names:
      raise ValueError(f"shapes={dict(sizes)}: expected {', '.join(names)} for {op}")
    size = sizes[name]
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
      raise ValueError(f"shapes: {name}={size!r}: expected an integer of at least 1")
  return tuple(sizes[name] for name in names)


def options_of(op: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
  """`options` over `defaults`; raises ValueError for one that the op has not."""
  for name in options:
    if name not in defaults:
      raise ValueError(f"{op} has no option {name!r}: expected {', '.join(defaults)}")
  return {**defaults, **options}


def check_config(op: str, config: Any, expected: type[Any], blocks: tuple[str, ...]) -> None:
  """Raise ValueError unless `config` is of the op's class with blocks of 2^i elements.

  Triton, and so Pallas' lowering to it, has no arrays of other sizes.
  """
  if not isinstance(config, expected):
    raise ValueError(f"config={config!r}: expected a {expected.__name__} for {op}")
  for name in blocks:
    value = getattr(config, name)
    if value & (value - 1):
      below = 1 << (value.bit_length() - 1)
      raise ValueError(
        f"config.{name}={value}: Triton takes powers of two; the nearest are {below} and"
        f" {2 * below}"
      )


def operand_dtype(dtype: Any) -> jnp.dtype:
  """`dtype` as operands have it; raises ValueError for one without a kernel."""
  found = arguments.float_dtype("dtype", dtype)
  if found.itemsize > 4:
    raise ValueError(f"dtype={found.name!r}: expected bfloat16, float16 or float32")
  return found
