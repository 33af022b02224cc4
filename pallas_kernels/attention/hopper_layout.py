"""The Hopper attention's shared-memory layouts, and what its operands are padded to for them."""

from typing import Any

import jax
import jax.numpy as jnp

from hw_profiles import AttentionConfig, AttentionProblem
from hw_profiles.attention.warp_specialized import padded_dim
from pallas_kernels.attention.operands import AttentionOperands
from pallas_kernels.hopper.tma import padded, tiled

# Mosaic describes an operand to TMA in tiles of 8 rows, which must divide it.
ROWS = 8
_SWIZZLES = (128, 64, 32)


def transforms(columns: int, dtype: Any, *, depth: int = 0) -> tuple[Any, ...]:
  """The layout of [rows, columns] that wgmma and TMA take: the widest swizzle that fits.

  Args:
    columns: A padded head size.
    dtype: Of the elements.
    depth: Rows where a product sums over them: Mosaic issues wgmmas in groups
      as deep as a swizzle span is wide. 0: it does not.
  """
  size = jnp.dtype(dtype).itemsize
  swizzle = next(one for one in _SWIZZLES if columns * size % one == 0 and depth * size % one == 0)
  return tiled(swizzle, dtype)


def pad(array: jax.Array) -> jax.Array:
  """[b, L, heads, D] with whole tiles of rows and a head size that wgmma takes."""
  return padded(array, ROWS, 1, padded_dim(1))


def pad_operands(operands: AttentionOperands) -> AttentionOperands:
  """Query, key and value padded."""
  return operands._replace(
    query=pad(operands.query), key=pad(operands.key), value=pad(operands.value)
  )


def padding_notes(problem: AttentionProblem, config: AttentionConfig) -> tuple[str, ...]:
  """What would be copied to a padded array first, a sentence each."""
  del config
  notes = []
  for name, rows, columns in (
    ("query", problem.seq_q, problem.head_dim),
    ("key", problem.seq_kv, problem.head_dim),
    ("value", problem.seq_kv, problem.output_dim),
    ("the result", problem.seq_q, problem.output_dim),
  ):
    if rows % ROWS or columns != padded_dim(columns):
      notes.append(
        f"{name} has {rows} rows of {columns}, copied by way of {rows + -rows % ROWS} of"
        f" {padded_dim(columns)}: the kernel's TMA copies take multiples of {ROWS} x"
        f" {padded_dim(1)}"
      )
  return tuple(notes)
