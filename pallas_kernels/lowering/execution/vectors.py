"""Operations of a vector core: moves, elementwise operations and reductions on buffers."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from pallas_kernels.lowering.execution.generic_text import Operation
from pallas_kernels.lowering.execution.memory import DTYPES, View

_UNARY: dict[str, Callable[[Any], Any]] = {
  "exp": np.exp,
  "ln": np.log,
  "sqrt": np.sqrt,
  "rsqrt": lambda x: 1 / np.sqrt(x),
  "rec": lambda x: 1 / x,
  "abs": np.abs,
  "relu": lambda x: np.maximum(x, 0),
  "not": np.invert,
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
  "add": np.add,
  "sub": np.subtract,
  "mul": np.multiply,
  "div": np.divide,
  "max": np.maximum,
  "min": np.minimum,
  "and": np.bitwise_and,
  "or": np.bitwise_or,
  "shl": np.left_shift,
  # arithmetic; its attribute "round" is not modelled
  "shr": np.right_shift,
}
_COMPARISONS = {
  "eq": np.equal,
  "ne": np.not_equal,
  "lt": np.less,
  "le": np.less_equal,
  "gt": np.greater,
  "ge": np.greater_equal,
}
_REDUCTIONS: dict[str, Callable[..., Any]] = {
  "sum": np.sum,
  "max": np.max,
  "min": np.min,
  "prod": np.prod,
  "any": np.any,
}
_ROUNDINGS: dict[str, Callable[[Any], Any]] = {
  "rint": np.rint,
  "trunc": np.trunc,
  "floor": np.floor,
  "ceil": np.ceil,
  "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}


def value(x: Any) -> Any:
  """The elements of a buffer, bfloat16 as float32, which the vector unit computes in."""
  loaded = x.load() if isinstance(x, View) else x
  if isinstance(loaded, np.ndarray) and loaded.dtype == DTYPES["bf16"]:
    return loaded.astype(np.float32)
  return loaded


def _inputs(operation: Operation, operands: list[Any]) -> tuple[list[Any], View]:
  """Inputs, and the buffer of the result; temporaries come after."""
  segments = operation.integers("operandSegmentSizes")
  count = segments[0] if segments else 1
  return operands[:count], operands[count]


def _cast(operation: Operation, x: Any, result: View) -> Any:
  loaded = x.load() if isinstance(x, View) else np.asarray(x)
  wide = loaded.astype(np.float32) if loaded.dtype == DTYPES["bf16"] else loaded
  dtype = DTYPES[result.element]
  if dtype.kind in "iu" and np.issubdtype(wide.dtype, np.floating):
    rounded = _ROUNDINGS[operation.word("round_mode") or "trunc"](wide)
    info = np.iinfo(dtype)
    return np.nan_to_num(np.clip(rounded, info.min, info.max)).astype(dtype)
  return wide


def _reduce(operation: Operation, x: Any) -> Any:
  axes = tuple(operation.integers("reduce_dims"))
  return _REDUCTIONS[operation.word("arith")](value(x), axis=axes, keepdims=True)


def vector(operation: Operation, operands: list[Any]) -> None:
  """An operation `hivm.hir.v*` whose last buffer operand but temporaries is the result.

  Raises:
    NotImplementedError: it has no rule.
  """
  name = operation.name.removeprefix("hivm.hir.v")
  if name == "brc":
    operands[1].store(value(operands[0]))
    return
  if name == "transpose":
    operands[1].store(np.transpose(operands[0].load(), operation.integers("permutation")))
    return
  if name == "arange":
    result, start, *steps = operands
    grid = np.indices(result.shape)
    result.store(int(start) + sum(i * int(step) for i, step in zip(grid, steps, strict=True)))
    return
  if operation.integers("transpose"):
    raise NotImplementedError(f"{operation.name} that transposes")
  inputs, result = _inputs(operation, operands)
  if name == "cast":
    result.store(_cast(operation, inputs[0], result))
  elif name in _UNARY:
    result.store(_UNARY[name](value(inputs[0])))
  elif name in _BINARY:
    result.store(_BINARY[name](value(inputs[0]), value(inputs[1])))
  elif name == "cmp":
    mode = operation.word("compare_mode") or "eq"
    result.store(_COMPARISONS[mode](value(inputs[0]), value(inputs[1])))
  elif name == "sel":
    result.store(np.where(*(value(x) for x in inputs)))
  elif name == "reduce":
    result.store(_reduce(operation, inputs[0]))
  else:
    raise NotImplementedError(operation.name)


def bitcast(operation: Operation, x: View, element: str) -> View:
  """The same bytes as elements of another dtype of the same size."""
  if DTYPES[element].itemsize != DTYPES[x.element].itemsize:
    raise NotImplementedError(f"{operation.name} of {x.element} to {element}")
  return dataclasses.replace(x, element=element)
