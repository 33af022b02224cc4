"""RMS normalisation whose result is quantised by rows: definition and check."""

from typing import Any

import numpy as np
import numpy.typing as npt

from reference.bounded import Bounded
from reference.formats import code_format
from reference.judge import asserting
from reference.rounding import round_to
from reference.rowwise.quantization import (
  E4M3,
  Float32Array,
  QuantizeCheck,
  assert_quantized,
  bounded_row_scale,
  compare_codes,
  quantize_rows,
)
from reference.rowwise.rms_norm import RmsNormModel, rms_norm
from reference.rowwise.rows import as_rows


def rms_norm_quantize(
  x: npt.ArrayLike,
  weight: npt.ArrayLike,
  *,
  eps: float = 1e-6,
  weight_offset: float = 0.0,
  cast_before_weight: bool = False,
  dtype: npt.DTypeLike = E4M3,
) -> tuple[npt.NDArray[Any], Float32Array]:
  """Codes and scales of `rms_norm`: `quantize_rows` of its result in float32.

  Args:
    x: As in `reference.rms_norm`, as the next four.
    weight: [columns].
    eps: At least 0.
    weight_offset: Added to the weight.
    cast_before_weight: Whether the normalised row is rounded to the dtype of x.
    dtype: float8_e4m3fn or int8.

  Returns:
    Codes of the shape of `x`, and float32 scales [..., 1].

  Raises:
    ValueError: a shape, a dtype or a number is wrong.
  """
  result = rms_norm(
    x,
    weight,
    eps=eps,
    weight_offset=weight_offset,
    cast_before_weight=cast_before_weight,
  )
  return quantize_rows(round_to(result, np.float32), dtype=dtype)


def check_rms_norm_quantize(
  codes: npt.ArrayLike,
  scale: npt.ArrayLike,
  x: npt.ArrayLike,
  weight: npt.ArrayLike,
  *,
  eps: float = 1e-6,
  weight_offset: float = 0.0,
  cast_before_weight: bool = False,
  dtype: npt.DTypeLike | None = None,
  accumulation_chunk: int | None = None,
  flush_subnormals: bool = True,
) -> QuantizeCheck:
  """Compares a kernel's codes and scales with those of `rms_norm_quantize`.

  As `check_swiglu_quantize`: the float32 values behind them are uncertain by
  the bound of `rms_norm`, a code only beside a boundary.

  Args:
    codes: The kernel's codes, of the shape of `x`.
    scale: Its float32 scales, [..., 1].
    x: As in `rms_norm_error_bound`, as all others but `dtype`.
    weight: [columns].
    eps: At least 0.
    weight_offset: Added to the weight.
    cast_before_weight: Whether the kernel rounds before the weight.
    dtype: Expected dtype of the codes; None: whatever they have.
    accumulation_chunk: Width of a segment.
    flush_subnormals: Whether subnormal float32 values may be replaced by zero.

  Returns:
    The comparison; it does not raise for a wrong result.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  operand, factor = np.asarray(x), np.asarray(weight)
  model = RmsNormModel.create(
    operand,
    factor,
    eps=eps,
    weight_offset=weight_offset,
    cast_before_weight=cast_before_weight,
    out_dtype=np.float32,
    accumulation_chunk=accumulation_chunk,
    flush_subnormals=flush_subnormals,
  )
  code_dtype = code_format(np.asarray(codes).dtype, name="codes.dtype").dtype
  rows_of = as_rows(operand)

  def values(rows: slice) -> Bounded:
    return model.evaluate(Bounded.of(rows_of[rows], flush_subnormals=flush_subnormals), factor)

  def row_scales(_: slice, part: Bounded) -> Bounded:
    return bounded_row_scale(part, dtype=code_dtype, flush_subnormals=flush_subnormals)

  return compare_codes(codes, scale, operand.shape, values, expected_scale=row_scales, dtype=dtype)


assert_rms_norm_quantize_close = asserting(check_rms_norm_quantize, assert_quantized)
