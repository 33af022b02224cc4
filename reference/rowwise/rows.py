"""Checks of ops that work on each row of the last dimension, a group of rows at a time."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.bounded import Bounded
from reference.judge import Block, ErrorCheck, check_blocks

# Elements of a group of rows: about two dozen float64 arrays of 16 MiB are alive at once.
_GROUP_ELEMENTS = 2**21


def as_rows(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
  """[..., columns] as [rows, columns]; a number is one row of one column."""
  columns = x.shape[-1] if x.ndim else 1
  # -1 is ambiguous where there are no columns
  return x.reshape(int(np.prod(x.shape[:-1], dtype=np.int64)), columns)


def row_groups(rows: int, columns: int) -> Iterator[slice]:
  """Slices of rows that hold memory down."""
  step = max(1, _GROUP_ELEMENTS // max(columns, 1))
  for start in range(0, rows, step):
    yield slice(start, min(start + step, rows))


def check_rows(
  actual: npt.NDArray[Any],
  evaluate: Callable[[slice], Bounded],
  *,
  progress: Callable[[int, int], None] | None = None,
) -> ErrorCheck:
  """Compares `actual` [..., columns] with what `evaluate` allows in a slice of its rows."""
  rows = as_rows(actual)

  def blocks() -> Iterator[tuple[Block, Bounded]]:
    for group in row_groups(*rows.shape):
      yield (group,), evaluate(group)

  check = check_blocks(rows, blocks(), progress=progress)
  if check.worst_index is None:
    return check
  row, column = check.worst_index
  outer: list[int] = []
  for size in reversed(actual.shape[:-1]):
    row, inner = divmod(row, size)
    outer.insert(0, inner)
  return dataclasses.replace(check, worst_index=(*outer, column)[: actual.ndim])
