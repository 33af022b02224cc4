"""Masks over the columns of a wgmma's result, which few registers hold."""

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.attention import softmax

# columns of a wgmma's result between two that a thread holds side by side
_NEIGHBOURS = 8


def _split_columns(shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
  """Each column's number as a multiple of 8 and a rest.

  A thread holds two neighbouring columns in every eight. So the multiple is a
  constant of its register, and of the rests a thread has two: what a register
  is compared with is the same for all of a row. With whole columns the compiler
  keeps one for each register across the walk: 936 B of spills with 192 keys,
  76 B with 128.
  """
  column = lax.broadcasted_iota(jnp.int32, shape, 1)
  return column & ~(_NEIGHBOURS - 1), column & (_NEIGHBOURS - 1)


def visible_columns(shape: tuple[int, ...], first: jax.Array, end: jax.Array) -> jax.Array:
  """first(row) <= column < end(row), both [rows], of which `end` is not the smaller.

  One comparison, of unsigned numbers: column - first is large where it is negative.
  """
  coarse, fine = _split_columns(shape)
  past_first = coarse - (softmax.along_columns(first, shape) - fine)
  count = softmax.along_columns(end - first, shape)
  return past_first.astype(jnp.uint32) < count.astype(jnp.uint32)


def columns_from(shape: tuple[int, ...], first: jax.Array) -> jax.Array:
  """first(row) <= column, for `first` of `shape` with equal columns, or a number; one register
  a row less."""
  coarse, fine = _split_columns(shape)
  return coarse >= first - fine


def columns_before(shape: tuple[int, ...], end: jax.Array) -> jax.Array:
  """column < end(row), as `columns_from`."""
  coarse, fine = _split_columns(shape)
  return coarse < end - fine
