"""The transpose of the last two dimensions, and its check, bit for bit."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class CopyCheck:
  """How a result that only moves values compares with the definition.

  Attributes:
    passed: Every element has the bits that it has to have.
    elements: How many there are in all.
    failed_elements: How many have other bits.
    worst_index: The first one that has; None if none has.
  """

  passed: bool
  elements: int
  failed_elements: int
  worst_index: tuple[int, ...] | None


def transpose(x: npt.ArrayLike) -> npt.NDArray[Any]:
  """[..., M, N] as [..., N, M].

  Raises:
    ValueError: `x` has fewer than 2 dimensions.
  """
  array = np.asarray(x)
  if array.ndim < 2:
    raise ValueError(f"x.shape={array.shape}: expected at least 2 dimensions")
  return np.ascontiguousarray(np.swapaxes(array, -1, -2))


def check_transpose(actual: npt.ArrayLike, x: npt.ArrayLike) -> CopyCheck:
  """Compares a kernel's transpose with the definition, bits of NaN and zeros included.

  Raises:
    ValueError: a shape or the dtype of the result is another one.
  """
  expected = transpose(x)
  result = np.ascontiguousarray(actual)
  if result.shape != expected.shape:
    raise ValueError(f"actual.shape={result.shape}: expected {expected.shape}")
  if result.dtype != expected.dtype:
    raise ValueError(f"actual.dtype={result.dtype}: expected {expected.dtype}, the dtype of x")
  size = expected.dtype.itemsize
  first, second = (
    array.reshape(-1).view(np.uint8).reshape(-1, size) for array in (result, expected)
  )
  wrong = np.flatnonzero((first != second).any(axis=1))
  where = None
  if wrong.size:
    where = tuple(int(i) for i in np.unravel_index(int(wrong[0]), expected.shape))
  return CopyCheck(not wrong.size, expected.size, int(wrong.size), where)


def assert_transpose_equal(actual: npt.ArrayLike, x: npt.ArrayLike) -> CopyCheck:
  """`check_transpose`, raising where it does not pass.

  Raises:
    AssertionError: an element has other bits; names the first one.
    ValueError: a shape or the dtype of the result is another one.
  """
  check = check_transpose(actual, x)
  if not check.passed:
    index = ", ".join(map(str, check.worst_index or ()))
    raise AssertionError(
      f"{check.failed_elements} of {check.elements} elements are not those of the transpose; "
      f"first [{index}]"
    )
  return check
