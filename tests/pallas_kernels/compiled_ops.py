"""Ops under jit, for tests about results: one program to compile instead of one an operation."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def compiled(op: Callable[..., Any]) -> Callable[..., Any]:
  """`op` under jit, options fixed and arrays traced."""

  @functools.wraps(op)
  def call(*operands: Any, **options: Any) -> Any:
    traced = {k: v for k, v in options.items() if isinstance(v, (jax.Array, np.ndarray))}
    fixed = {k: v for k, v in options.items() if k not in traced}
    return jax.jit(lambda operands, traced: op(*operands, **fixed, **traced))(operands, traced)

  return call
