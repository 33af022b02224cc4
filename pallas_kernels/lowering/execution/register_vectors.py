"""Operations on vectors in registers, which a 950's vector functions are made of."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pallas_kernels.lowering.execution.generic_text import Operation
from pallas_kernels.lowering.execution.memory import View
from pallas_kernels.lowering.execution.scalars import shape_of

_REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[[Any, Any], Any]]] = {
  "add": (np.sum, np.add),
  "maximumf": (np.max, np.maximum),
  "maxnumf": (np.fmax.reduce, np.fmax),
  "minimumf": (np.min, np.minimum),
  "minnumf": (np.fmin.reduce, np.fmin),
  "maxsi": (np.max, np.maximum),
  "minsi": (np.min, np.minimum),
}


def _axes(permutation: str) -> tuple[list[str], list[str]]:
  """Names of a map's dimensions, and what it gives for each of the vector's: one or "0"."""
  left, right = permutation.split("->")
  names, found = (
    # a number has no axes: "()"
    [part.strip() for part in side.strip().strip("()").split(",") if part.strip()]
    for side in (left, right)
  )
  return names, found


def _window(memory: View, indices: list[int], permutation: str, shape: tuple[int, ...]) -> View:
  """The elements that a vector of `shape` is read from or written to, as far as they exist."""
  names, found = _axes(permutation)
  sizes = [1] * len(memory.shape)
  for axis, name in enumerate(found):
    if name != "0":
      sizes[names.index(name)] = shape[axis]
  clipped = [
    min(size, own - index) for size, own, index in zip(sizes, memory.shape, indices, strict=True)
  ]
  return memory.part(indices, clipped, [1] * len(clipped))


def _read(operation: Operation, operands: list[Any], permutation: str) -> np.ndarray:
  counts = operation.integers("operandSegmentSizes")
  memory, rest = operands[0], operands[1:]
  indices = [int(x) for x in rest[: counts[1]]]
  padding = rest[counts[1]]
  mask = rest[counts[1] + 1] if counts[3:] and counts[3] else None
  shape = shape_of(operation.result_types[0])
  names, found = _axes(permutation)
  loaded = _window(memory, indices, permutation, shape).load()
  # axes of the memory in the vector's order, those it has not, of one element, first
  order = [names.index(name) for name in found if name != "0"]
  others = [axis for axis in range(loaded.ndim) if axis not in order]
  loaded = loaded.transpose([*others, *order])
  loaded = loaded.reshape(loaded.shape[len(others) :])
  position = iter(loaded.shape)
  loaded = loaded.reshape([1 if name == "0" else next(position) for name in found])
  whole = np.full(shape, padding, loaded.dtype)
  reached = tuple(
    slice(None) if name == "0" else slice(0, size)
    for name, size in zip(found, loaded.shape, strict=True)
  )
  whole[reached] = loaded
  return whole if mask is None else np.where(mask, whole, np.asarray(padding, whole.dtype))


def _write(operation: Operation, operands: list[Any], permutation: str) -> None:
  counts = operation.integers("operandSegmentSizes")
  vector, memory, *rest = operands
  indices = [int(x) for x in rest[: counts[2]]]
  mask = rest[counts[2]] if counts[3:] and counts[3] else None
  values = np.asarray(vector)
  names, found = _axes(permutation)
  if "0" in found or [names.index(name) for name in found] != sorted(map(names.index, found)):
    raise NotImplementedError(f"{operation.name} through {permutation}")
  place = _window(memory, indices, permutation, values.shape)
  kept = tuple(slice(0, place.shape[names.index(name)]) for name in found)
  values = values[kept].reshape(place.shape)
  if mask is not None:
    values = np.where(np.asarray(mask)[kept].reshape(place.shape), values, place.load())
  place.store(values)


def _reduce(operation: Operation, source: Any, start: Any) -> Any:
  kind = operation.word("kind")
  if kind not in _REDUCTIONS:
    raise NotImplementedError(f"{operation.name} of kind {kind!r}")
  reduce, merge = _REDUCTIONS[kind]
  axes = tuple(operation.integers("reduction_dims"))
  found = source
  for axis in sorted(axes, reverse=True):
    found = reduce(found, axis=axis)
  return found if "withoutInitMergeOp" in operation.attributes else merge(found, start)


def masked(mask: np.ndarray, operation: Operation, operands: list[Any]) -> Any:
  """`operation` over the elements of a vector where `mask` is set: what vector.mask holds.

  Raises:
    NotImplementedError: it is no reduction of a vector to a number.
  """
  source = np.asarray(operands[0])
  if operation.name != "vector.multi_reduction" or source.ndim != 1:
    raise NotImplementedError(f"vector.mask around {operation.name} of {source.ndim} dimensions")
  kept = source[np.asarray(mask, np.bool_)]
  return _reduce(operation, kept, operands[1]) if kept.size else operands[1]


def apply(
  operation: Operation, operands: list[Any], map_of: Callable[[Operation, str], str]
) -> Any:
  """An operation of the dialect vector.

  Raises:
    NotImplementedError: it has no rule.
  """
  match operation.name.removeprefix("vector."):
    case "transfer_read":
      return _read(operation, operands, map_of(operation, "permutation_map"))
    case "transfer_write":
      _write(operation, operands, map_of(operation, "permutation_map"))
      return None
    case "broadcast":
      return np.broadcast_to(np.asarray(operands[0]), shape_of(operation.result_types[0])).copy()
    case "shape_cast":
      return np.reshape(operands[0], shape_of(operation.result_types[0]))
    case "multi_reduction":
      return _reduce(operation, *operands)
    case "constant_mask":
      mask = np.zeros(shape_of(operation.result_types[0]), np.bool_)
      mask[tuple(slice(0, size) for size in operation.integers("mask_dim_sizes"))] = True
      return mask
    case "create_mask":
      mask = np.zeros(shape_of(operation.result_types[0]), np.bool_)
      mask[tuple(slice(0, int(size)) for size in operands)] = True
      return mask
    case "extractelement":
      # without an index, of a vector that is a number
      return np.asarray(operands[0])[tuple(int(index) for index in operands[1:])]
  raise NotImplementedError(f"{operation.name} of {math.prod(np.shape(operands[0]))} elements")
