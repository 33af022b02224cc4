"""Operations of a cube core: into fractals, product, out of fractals.

A matrix in L1 or L0C lies in fractals [column blocks, row blocks, rows, columns]:
16 rows of 32 B in L1, 16 x 16 in L0C.
"""

from typing import Any

import numpy as np

from pallas_kernels.lowering.execution.generic_text import Operation
from pallas_kernels.lowering.execution.memory import View


def from_fractals(blocks: np.ndarray) -> np.ndarray:
  """[n1, m1, m0, n0] as the matrix [m1·m0, n1·n0]."""
  n1, m1, m0, n0 = blocks.shape
  return blocks.transpose(1, 2, 0, 3).reshape(m1 * m0, n1 * n0)


def to_fractals(matrix: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
  """A matrix in fractals of `shape`, zero where it does not reach."""
  n1, m1, m0, n0 = shape
  whole = np.zeros((m1 * m0, n1 * n0), matrix.dtype)
  whole[: matrix.shape[0], : matrix.shape[1]] = matrix
  return whole.reshape(m1, m0, n1, n0).transpose(2, 0, 1, 3)


def nd2nz(operands: list[Any]) -> None:
  """Copy a matrix of GM or UB into fractals."""
  source, result = operands[:2]
  result.store(to_fractals(source.load(), result.shape))


def mmad(operation: Operation, operands: list[Any]) -> None:
  """accumulator = A·B, or accumulator + A·B, in float32."""
  a, b, fresh, rows, depth, columns, accumulator = operands[:7]
  left = from_fractals(a.load()).astype(np.float32)
  right = from_fractals(b.load()).astype(np.float32)
  if operation.has("a_transpose"):
    left = left.T
  if operation.has("b_transpose"):
    right = right.T
  product = left[: int(rows), : int(depth)] @ right[: int(depth), : int(columns)]
  blocks = to_fractals(product, accumulator.shape)
  accumulator.store(blocks if fresh else accumulator.load() + blocks)


def fixpipe(operation: Operation, operands: list[Any], mirrors: tuple[View, ...]) -> None:
  """Write an accumulator out as a matrix, rounded to the result's dtype.

  Args:
    operation: The operation.
    operands: Accumulator and result.
    mirrors: Further places that the result is written to.
  """
  if operation.word("dma_mode") not in ("", "nz2nd"):
    raise NotImplementedError(f"fixpipe with dma_mode {operation.word('dma_mode')}")
  source, result = operands[:2]
  matrix = from_fractals(source.load())
  for place in (result, *mirrors):
    rows, columns = place.shape
    place.store(matrix[:rows, :columns])
