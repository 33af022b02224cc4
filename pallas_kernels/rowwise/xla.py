"""The row-wise ops left to XLA, on any device that JAX has, in the same steps as the kernels."""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.rowwise import arithmetic
from pallas_kernels.rowwise.specs import Blocks, ElementSpec, Part, RowSpec


def elements(
  spec: ElementSpec, matrices: tuple[jax.Array, ...], per_row: tuple[jax.Array, ...]
) -> tuple[jax.Array, ...]:
  """`spec` of matrices [groups, rows, columns]; per_row [groups or 1, rows or 1, 1]."""
  return spec.apply(matrices, per_row, arithmetic.XLA)


def rows(
  spec: RowSpec,
  matrices: tuple[jax.Array, ...],
  weights: tuple[jax.Array, ...],
  *,
  num_splits: int,
) -> tuple[jax.Array, ...]:
  """`spec` of matrices [groups, rows, columns] and weights [groups or 1, 1, columns].

  Args:
    spec: What to compute.
    matrices: All of one shape, at least one column.
    weights: Rows of weights.
    num_splits: Segments of a row, reduced each by itself and merged in order.

  Returns:
    As `portable_rows.run`.
  """
  columns = matrices[0].shape[-1]
  segment = -(-columns // num_splits)
  values, sums = spec.values(matrices, arithmetic.XLA)
  settled: list[Any] = []
  segments = [
    Part(
      values[..., start : start + segment],
      tuple(weight[..., start : start + segment] for weight in weights),
    )
    for start in range(0, columns, segment)
  ]
  for index in range(spec.rounds):
    found = [spec.reduce((part,), settled, arithmetic.XLA) for part in segments]
    statistics: Blocks = found[0]
    for further in found[1:]:
      statistics = spec.merge(index, statistics, further)
    settled.append(spec.settle(index, statistics, columns=columns, arithmetic=arithmetic.XLA))
  outs = spec.finish(Part(values, weights), settled, arithmetic.XLA)
  shape = (*matrices[0].shape[:-1], 1)
  row_results = tuple(jnp.broadcast_to(x, shape) for x in spec.row_results(settled))
  return (*outs, *sums, *row_results)
