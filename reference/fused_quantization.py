"""A product whose left operand is quantised on the way: definition and check."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.accumulation import Accumulate
from reference.bounded import Bounded
from reference.formats import code_format
from reference.judge import ErrorCheck, assert_passed, asserting
from reference.quantized import (
  Array,
  QuantizedMatmulModel,
  check_product_of_codes,
  quantized_matmul,
  quantized_shape,
)
from reference.rowwise.quantization import bounded_codes, bounded_row_scale, quantize_rows


def quantize_matmul(
  a: npt.ArrayLike,
  b_q: npt.ArrayLike,
  b_scale: npt.ArrayLike,
  *,
  out_dtype: npt.DTypeLike | None = None,
) -> Array:
  """`quantized_matmul` of `quantize_rows`(a): the rows of A take the dtype of b_q first.

  Fused or not, the codes and scales of A are those of `quantize_rows`, so both
  programs have the same definition.

  Args:
    a: [..., M, K] float32, float16 or bfloat16.
    b_q: [..., K, N] float8_e4m3fn or int8 codes.
    b_scale: [..., 1, N] or [N], float32.
    out_dtype: None: float64, that is no rounding.

  Returns:
    [..., M, N] in `out_dtype`, or float64.

  Raises:
    ValueError: a shape or a dtype is wrong.
  """
  codes = np.asarray(b_q)
  a_q, a_scale = quantize_rows(a, dtype=code_format(codes.dtype, name="b_q.dtype").dtype)
  return quantized_matmul(a_q, codes, a_scale, b_scale, out_dtype=out_dtype)


def check_quantize_matmul(
  actual: npt.ArrayLike,
  a: npt.ArrayLike,
  b_q: npt.ArrayLike,
  b_scale: npt.ArrayLike,
  *,
  out_dtype: npt.DTypeLike | None = None,
  accumulation_chunk: int | None = None,
  accumulate: Accumulate = "ieee",
  flush_subnormals: bool = True,
  progress: Callable[[int, int], None] | None = None,
) -> ErrorCheck:
  """Compares a kernel that quantises A's rows on the way with `quantize_matmul`.

  The codes of A have no room (but where subnormal values may be read as zero):
  the bound is that of the product of the definition's codes.

  Args:
    actual: The kernel's result, [..., M, N].
    a: [..., M, K] float32, float16 or bfloat16.
    b_q: [..., K, N] float8_e4m3fn or int8 codes.
    b_scale: [..., 1, N] or [N], float32.
    out_dtype: Expected dtype of `actual`; None: whatever it has.
    accumulation_chunk: As in `quantized_matmul_error_bound`, as the next two.
    accumulate: "ieee" or "tensor_core_fp8".
    flush_subnormals: Whether subnormals may be replaced by zero.
    progress: Called as progress(elements done, elements in all).

  Returns:
    The comparison; it does not raise for a wrong result.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  actual, a, b_q, b_scale = (np.asarray(v) for v in (actual, a, b_q, b_scale))
  dtype = code_format(b_q.dtype, name="b_q.dtype").dtype
  a_q, a_scale = quantize_rows(a, dtype=dtype)
  shape = quantized_shape(a_q, b_q, a_scale, b_scale)
  model = QuantizedMatmulModel.create(
    code_format(dtype),
    a.shape[-1],
    out_dtype=actual.dtype if out_dtype is None else out_dtype,
    accumulation_chunk=accumulation_chunk,
    accumulate=accumulate,
    flush_subnormals=flush_subnormals,
  )
  *batch, m, _ = shape
  rows = np.broadcast_to(a, (*batch, m, model.k))
  scales = np.broadcast_to(a_scale, (*batch, m, 1))

  def operands(index: Any) -> tuple[Bounded, Bounded]:
    values = Bounded.of(rows[index], flush_subnormals=flush_subnormals, name="a")
    certain = Bounded.of(rows[index], flush_subnormals=False, name="a")
    scale = bounded_row_scale(certain, dtype=dtype, flush_subnormals=flush_subnormals)
    return bounded_codes(values, scales[index], dtype=dtype), scale

  return check_product_of_codes(actual, model, operands, b_q, b_scale, shape, progress)


assert_quantize_matmul_close = asserting(check_quantize_matmul, assert_passed)
