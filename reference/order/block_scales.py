"""Codes of a row that is read block by block: which scale each block can know."""

import dataclasses
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from reference.formats import Float64Array, code_format, to_float64
from reference.rounding import round_to, round_to_format

# "row": the largest magnitude of the whole row, which has to be read first.
# "first_block": that of the first block, kept for the rest.
# "running": that of the blocks up to and including this one.
BlockScale = Literal["row", "first_block", "running"]
_SCALES = ("row", "first_block", "running")


@dataclasses.dataclass(frozen=True)
class BlockCodes:
  """Codes of a row and the scale that each block of them has.

  Attributes:
    scaled: x / scale, before the rounding, float64 [..., n].
    codes: [..., n] in the code's dtype.
    scale: [..., blocks] float64.
    values: codes·scale of their block, float64 [..., n].
  """

  scaled: Float64Array
  codes: npt.NDArray[Any]
  scale: Float64Array
  values: Float64Array


def block_codes(
  x: npt.ArrayLike,
  *,
  block: int,
  scale: BlockScale = "row",
  dtype: npt.DTypeLike = ml_dtypes.float8_e4m3fn,
  scale_dtype: npt.DTypeLike = np.float64,
) -> BlockCodes:
  """What quantising a row block by block gives, for each scale a block can know.

      scale = largest magnitude known / c,    c = 448 (e4m3) or 127 (int8)
      code = saturate(round(x / scale))

  Only "row" gives the codes of `quantize_rows`. With a scale of what was read
  so far, a code is of another number system than those of the blocks that
  follow; once 1 is stored as 448 / 448 or as 44 / 44.8, no later step can make
  the one of the other.

  Args:
    x: [..., n].
    block: Elements of a block; the last one may be shorter.
    scale: "row", "first_block" or "running".
    dtype: float8_e4m3fn or int8.
    scale_dtype: float32 rounds the scale as kernels do; float64 keeps it.

  Raises:
    ValueError: an option or dtype is wrong.
  """
  fmt = code_format(dtype)
  values = to_float64(x)
  if block < 1:
    raise ValueError(f"block={block}: expected at least 1")
  if scale not in _SCALES:
    raise ValueError(f"scale={scale!r}: expected one of {', '.join(_SCALES)}")
  if not values.ndim:
    raise ValueError("x.shape=(): expected at least 1 dimension")
  size = values.shape[-1]
  starts = np.arange(0, size, block)
  if not size:
    empty = np.zeros(values.shape)
    return BlockCodes(empty, empty.astype(fmt.dtype), np.zeros((*values.shape[:-1], 0)), empty)
  largest = np.maximum.reduceat(np.abs(values), starts, axis=-1)
  if scale == "row":
    largest = np.broadcast_to(largest.max(axis=-1, keepdims=True), largest.shape)
  elif scale == "first_block":
    largest = np.broadcast_to(largest[..., :1], largest.shape)
  else:
    largest = np.maximum.accumulate(largest, axis=-1)
  scales = np.where(largest == 0, 1.0, round_to(largest / fmt.max_finite, scale_dtype))
  per_element = np.repeat(scales, np.diff(np.append(starts, size)), axis=-1)
  scaled = values / per_element
  codes = round_to_format(scaled, fmt, saturate=True)
  return BlockCodes(scaled, codes, scales, to_float64(codes) * per_element)
