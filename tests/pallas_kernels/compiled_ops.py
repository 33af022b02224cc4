"""Ops under jit, for tests about results: one program to compile instead of one an operation."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def compiled(op: Callable[..., Any]) -> Callable[..., Any]:
  """`op` under jit, options fixed and arrays traced; calls of the same shapes share a program."""

  @functools.wraps(op)
  def call(*operands: Any, **options: Any) -> Any:
    traced = {k: v for k, v in options.items() if isinstance(v, (jax.Array, np.ndarray))}
    fixed = tuple((k, v) for k, v in options.items() if k not in traced)
    try:
      run = _jitted(op, fixed, jax.config.jax_enable_x64)  # type: ignore[attr-defined]
    except TypeError:  # an option that has no hash
      run = _jitted.__wrapped__(op, fixed, None)
    return run(operands, traced)

  return call


@functools.cache
def _jitted(op: Callable[..., Any], fixed: tuple[tuple[str, Any], ...], x64: Any) -> Any:
  del x64
  return jax.jit(lambda operands, traced: op(*operands, **dict(fixed), **traced))


def forget() -> None:
  """What one test compiled is no other's, which may have replaced what was traced."""
  _jitted.cache_clear()


def gradients(call: Callable[..., Any], operands: tuple[Any, ...], d_out: Any) -> tuple[Any, ...]:
  """The gradients of all operands, as one program."""
  return jax.jit(lambda operands, d_out: jax.vjp(call, *operands)[1](d_out))(operands, d_out)
