"""float32 sums in a stated order."""

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from reference.bounded import operand_format

Float32Array = npt.NDArray[np.float32]

# How a group of terms is added up: one after another, or neighbours in pairs, then pairs of
# pairs, a last one without a neighbour going on as it is.
SumOrder = Literal["sequential", "pairwise"]

# How the partial sums of splits are added up: as a group of terms, or in the order of the
# positions that are given, one after another.
MergeOrder = SumOrder | Sequence[int]


def float32_terms(name: str, values: npt.ArrayLike) -> Float32Array:
  """Values that float32 holds, as float32.

  Raises:
    ValueError: the dtype is float64 or unknown.
  """
  array = np.asarray(values)
  operand_format(name, array.dtype)
  return array.astype(np.float32)


def split_lengths(size: int, splits: int, *, unit: int = 1) -> tuple[int, ...]:
  """Lengths of `splits` consecutive parts of `size`, of ⌈units / splits⌉ whole units each.

  The last parts are shorter, or empty: the rule of `rms_norm`'s num_splits.

  Raises:
    ValueError: a number is out of range.
  """
  for name, value, lowest in (("size", size, 0), ("splits", splits, 1), ("unit", unit, 1)):
    if value < lowest:
      raise ValueError(f"{name}={value}: expected at least {lowest}")
  length = -(-size // (unit * splits)) * unit
  inside = [min(part * length, size) for part in range(splits + 1)]
  return tuple(stop - start for start, stop in itertools.pairwise(inside))


def sequential_sum(terms: npt.ArrayLike, *, axis: int = -1) -> Float32Array:
  """((t_0 + t_1) + t_2) + ... in float32; 0 without terms."""
  values = float32_terms("terms", terms)
  if not values.shape[axis]:
    return np.zeros(values.sum(axis=axis).shape, np.float32)
  with np.errstate(over="ignore", invalid="ignore"):
    sums = np.cumsum(values, axis=axis, dtype=np.float32)
  return np.asarray(np.take(sums, -1, axis=axis))


def pairwise_sum(terms: npt.ArrayLike, *, axis: int = -1) -> Float32Array:
  """(t_0 + t_1) + (t_2 + t_3) + ..., a balanced tree, in float32; 0 without terms."""
  values = np.moveaxis(float32_terms("terms", terms), axis, -1)
  if not values.shape[-1]:
    return np.zeros(values.shape[:-1], np.float32)
  with np.errstate(over="ignore", invalid="ignore"):
    while values.shape[-1] > 1:
      paired = values.shape[-1] // 2 * 2
      sums = values[..., 0:paired:2] + values[..., 1:paired:2]
      values = np.concatenate([sums, values[..., paired:]], axis=-1)
  return np.asarray(values[..., 0])


def _in_order(terms: Float32Array, order: MergeOrder) -> Float32Array:
  """Adds up the last axis."""
  if isinstance(order, str):
    if order not in ("sequential", "pairwise"):
      raise ValueError(
        f"order={order!r}: expected 'sequential', 'pairwise' or a sequence of positions"
      )
    return sequential_sum(terms) if order == "sequential" else pairwise_sum(terms)
  if sorted(order) != list(range(terms.shape[-1])):
    raise ValueError(f"order={order!r}: expected each of 0..{terms.shape[-1] - 1} once")
  return sequential_sum(terms[..., list(order)])


def merge_sums(partials: npt.ArrayLike, order: MergeOrder = "sequential") -> Float32Array:
  """Adds up the partial sums along the last axis in the stated order, in float32.

  Raises:
    ValueError: the order is none, or no permutation of the positions.
  """
  return _in_order(float32_terms("partials", partials), order)


def split_sums(
  terms: npt.ArrayLike,
  splits: int | Sequence[int] = 1,
  *,
  inside: SumOrder = "sequential",
) -> Float32Array:
  """float32 sums of consecutive segments of the last axis, [..., segments].

  Args:
    terms: [..., n], float32 or narrower.
    splits: How many segments, of `split_lengths`, or their lengths.
    inside: The order within a segment.

  Raises:
    ValueError: the lengths do not add up to n, or an option is wrong.
  """
  values = float32_terms("terms", terms)
  size = values.shape[-1]
  lengths = split_lengths(size, splits) if isinstance(splits, int) else tuple(splits)
  if sum(lengths) != size or any(length < 0 for length in lengths):
    raise ValueError(f"splits={splits!r}: expected lengths that add up to {size}")
  edges = itertools.pairwise([0, *itertools.accumulate(lengths)])
  parts = [_in_order(values[..., start:stop], inside) for start, stop in edges]
  return np.stack(parts, axis=-1)


def emulate_sum(
  terms: npt.ArrayLike,
  *,
  splits: int | Sequence[int] = 1,
  inside: SumOrder = "sequential",
  merge: MergeOrder = "sequential",
) -> Float32Array:
  """The float32 sum of the last axis in exactly one order.

  Each segment is added up on its own, then the segments' sums: the merge of
  several programs whose partial sums are stored and added in a fixed order.

  Args:
    terms: [..., n], float32 or narrower.
    splits: How many segments, of `split_lengths`, or their lengths.
    inside: "sequential" or "pairwise", within a segment.
    merge: "sequential", "pairwise", or the positions of the segments in the
      order in which their sums are added.

  Returns:
    float32 [...].

  Raises:
    ValueError: an option is wrong.
  """
  return merge_sums(split_sums(terms, splits, inside=inside), merge)


def as_float32(values: npt.NDArray[Any]) -> Float32Array:
  """float64 values rounded to float32, overflow to infinity included."""
  with np.errstate(over="ignore", invalid="ignore", under="ignore"):
    return values.astype(np.float32)
