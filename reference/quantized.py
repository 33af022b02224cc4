"""Products of 8-bit codes with a scale a row and a column: definition, bound and check."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.accumulation import Accumulate
from reference.bounded import FLOAT32, Bounded, operand_format
from reference.compare import result_blocks
from reference.formats import (
  INT8_CODES,
  Float64Array,
  FloatFormat,
  code_format,
  float_format,
  to_float64,
)
from reference.judge import Block, ErrorCheck, assert_passed, asserting, check_blocks
from reference.ops import result_shape
from reference.products import ProductModel
from reference.rounding import round_to

Array = npt.NDArray[Any]
# Sums of int8 products are exact below this; from here on int32 wraps around.
INT32_LIMIT = 2.0**31


def quantized_shape(a_q: Array, b_q: Array, a_scale: Array, b_scale: Array) -> tuple[int, ...]:
  """Shape of the product.

  Raises:
    ValueError: a shape or the dtype of an operand does not fit.
  """
  a_format = code_format(a_q.dtype, name="a_q.dtype")
  b_format = code_format(b_q.dtype, name="b_q.dtype")
  if a_format != b_format:
    raise ValueError(f"b_q.dtype={b_format.name}: expected {a_format.name}, the dtype of a_q")
  shape = result_shape(a_q, b_q, names=("a_q", "b_q"))
  *batch, m, n = shape
  for name, scale, target in (
    ("a_scale", a_scale, (*batch, m, 1)),
    ("b_scale", b_scale, (*batch, 1, n)),
  ):
    operand_format(name, scale.dtype)
    try:
      fits = np.broadcast_shapes(scale.shape, target) == target
    except ValueError:
      fits = False
    if not fits:
      raise ValueError(f"{name}.shape={scale.shape}: expected one that broadcasts to {target}")
  return shape


def quantized_matmul_exact(
  a_q: npt.ArrayLike, b_q: npt.ArrayLike, a_scale: npt.ArrayLike, b_scale: npt.ArrayLike
) -> Float64Array:
  """(A_q·B_q) ⊙ a_scale ⊙ b_scale with every stage in float64.

  A sum of K int8 products is exact, one of E4M3 products has float64's
  roundings, which `quantized_matmul_error_bound` includes.

  Args:
    a_q: [..., M, K] float8_e4m3fn or int8 codes.
    b_q: [..., K, N], the same dtype; leading dimensions broadcast.
    a_scale: [..., M, 1], float32: a scale a row of A.
    b_scale: [..., 1, N] or [N], float32: a scale a column of B.

  Returns:
    float64 [..., M, N]; zeros where K = 0.

  Raises:
    ValueError: a shape or a dtype is wrong.
  """
  a_q, b_q, a_scale, b_scale = (np.asarray(v) for v in (a_q, b_q, a_scale, b_scale))
  quantized_shape(a_q, b_q, a_scale, b_scale)
  with np.errstate(invalid="ignore", over="ignore", under="ignore"):
    total = np.matmul(to_float64(a_q), to_float64(b_q))
    return np.asarray(total * to_float64(a_scale) * to_float64(b_scale))


def quantized_matmul(
  a_q: npt.ArrayLike,
  b_q: npt.ArrayLike,
  a_scale: npt.ArrayLike,
  b_scale: npt.ArrayLike,
  *,
  out_dtype: npt.DTypeLike | None = None,
) -> Array:
  """(A_q·B_q) ⊙ a_scale ⊙ b_scale, rounded once to `out_dtype`.

      out = round((A_q·B_q)·a_scale·b_scale, out_dtype)

  A kernel sums E4M3 products in float32 and int8 products in int32, exactly,
  then converts to float32, multiplies by the row's scale and by the column's,
  in this order, and rounds. `quantized_matmul_error_bound` bounds what that
  may differ.

  Args:
    a_q: [..., M, K] float8_e4m3fn or int8 codes.
    b_q: [..., K, N], the same dtype; leading dimensions broadcast.
    a_scale: [..., M, 1], float32.
    b_scale: [..., 1, N] or [N], float32.
    out_dtype: None: float64, that is no rounding.

  Returns:
    [..., M, N] in `out_dtype`, or float64.

  Raises:
    ValueError: a shape or a dtype is wrong.
  """
  result = quantized_matmul_exact(a_q, b_q, a_scale, b_scale)
  if out_dtype is None:
    return result
  return round_to(result, float_format(out_dtype, name="out_dtype").dtype)


@dataclasses.dataclass(frozen=True)
class QuantizedMatmulModel:
  """A scaled product of codes as a kernel computes it: the checked options of the bound.

  Attributes:
    product: How E4M3 products are summed; None for int8, whose sums are exact.
    k: Products a sum.
    out_format: Format of the result.
    flush_subnormals: Whether subnormal float32 values may become zero.
  """

  product: ProductModel | None
  k: int
  out_format: FloatFormat
  flush_subnormals: bool

  @classmethod
  def create(
    cls,
    codes: FloatFormat,
    k: int,
    *,
    out_dtype: npt.DTypeLike,
    accumulation_chunk: int | None,
    accumulate: Accumulate,
    flush_subnormals: bool,
  ) -> "QuantizedMatmulModel":
    """Checks the options.

    Raises:
      ValueError: an option or dtype is one the bound does not cover.
    """
    product = None
    if codes != INT8_CODES:
      product = ProductModel.create(
        codes,
        codes,
        k,
        accumulation_chunk=accumulation_chunk,
        accumulate=accumulate,
        flush_subnormals=flush_subnormals,
      )
    return cls(product, k, float_format(out_dtype, name="out_dtype"), flush_subnormals)

  def evaluate(self, a_q: Bounded, b_q: Bounded, a_scale: Bounded, b_scale: Bounded) -> Bounded:
    """What the kernel may give for these operands, or for slices of them."""
    total = self._integer_sum(a_q, b_q) if self.product is None else self.product.evaluate(a_q, b_q)
    flush = self.flush_subnormals
    scaled = total.multiply(a_scale, flush_subnormals=flush)
    return scaled.multiply(b_scale, flush_subnormals=flush).round(self.out_format.dtype)

  def _integer_sum(self, a: Bounded, b: Bounded) -> Bounded:
    """An int32 sum, converted to float32: rounded once past 2^24, lost from 2^31 on."""
    a_abs, b_abs = np.abs(a.exact), np.abs(b.exact)
    exact = np.matmul(a.exact, b.exact)
    moved = np.matmul(a.error, b_abs) + np.matmul(a_abs + a.error, b.error)
    reach = np.abs(exact) + moved
    error = moved + np.where(reach > 2.0**24, FLOAT32.unit_roundoff * reach, 0.0)
    wrapped = np.matmul(a_abs + a.error, b_abs + b.error) >= INT32_LIMIT
    return Bounded(exact, error, np.zeros(exact.shape, np.bool_), wrapped)


def exact_codes(values: Array, flush_subnormals: bool) -> Bounded:
  """Codes that are given, as operands without an error."""
  fmt = code_format(values.dtype)
  return Bounded.of_float64(to_float64(values), fmt, flush_subnormals=flush_subnormals)


def quantized_matmul_error_bound(
  a_q: npt.ArrayLike,
  b_q: npt.ArrayLike,
  a_scale: npt.ArrayLike,
  b_scale: npt.ArrayLike,
  *,
  out_dtype: npt.DTypeLike,
  accumulation_chunk: int | None = None,
  accumulate: Accumulate = "ieee",
  flush_subnormals: bool = True,
) -> Float64Array:
  """Elementwise bound on |kernel - quantized_matmul_exact(...)|.

  1. Sum: for E4M3, e1 of `bounded_matmul` (products have 8 bits and are
     exact). For int8 the int32 sum is exact, and converting it to float32
     costs 2^-24 of it where it is past 2^24.
  2. Two float32 products with the scales: `Bounded.multiply`, twice.
  3. Rounding to `out_dtype`: `Bounded.round`.

  Args:
    a_q: [..., M, K] float8_e4m3fn or int8 codes.
    b_q: [..., K, N], the same dtype; leading dimensions broadcast.
    a_scale: [..., M, 1], float32.
    b_scale: [..., 1, N] or [N], float32.
    out_dtype: Dtype of the kernel's result.
    accumulation_chunk: See `accumulation_depth`; no effect for int8.
    accumulate: "ieee" for float32 accumulation; "tensor_core_fp8" for E4M3 on
      Hopper's tensor cores, with the chunk after which sums go to float32.
    flush_subnormals: Whether subnormal float32 values may be replaced by zero.

  Returns:
    float64 [..., M, N]. Infinite where float32 may overflow, or where the
    magnitudes of int8 products sum to 2^31 and int32 may wrap around.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  a_q, b_q, a_scale, b_scale = (np.asarray(v) for v in (a_q, b_q, a_scale, b_scale))
  quantized_shape(a_q, b_q, a_scale, b_scale)
  model = QuantizedMatmulModel.create(
    code_format(a_q.dtype),
    a_q.shape[-1],
    out_dtype=out_dtype,
    accumulation_chunk=accumulation_chunk,
    accumulate=accumulate,
    flush_subnormals=flush_subnormals,
  )
  return model.evaluate(
    exact_codes(a_q, flush_subnormals),
    exact_codes(b_q, flush_subnormals),
    Bounded.of(a_scale, flush_subnormals=flush_subnormals),
    Bounded.of(b_scale, flush_subnormals=flush_subnormals),
  ).bound


def check_product_of_codes(
  actual: Array,
  model: QuantizedMatmulModel,
  operands: Callable[[Any], tuple[Bounded, Bounded]],
  b_q: Array,
  b_scale: Array,
  shape: tuple[int, ...],
  progress: Callable[[int, int], None] | None,
) -> ErrorCheck:
  """Block by block; `operands` gives the codes and scales of the rows at an index."""
  if actual.shape != shape:
    raise ValueError(f"actual.shape={actual.shape}: expected {shape}, the shape of A·B")
  if actual.dtype != model.out_format.dtype:
    raise ValueError(f"actual.dtype={actual.dtype}: expected out_dtype={model.out_format.name}")
  *batch, _, n = shape
  all_columns = np.broadcast_to(b_q, (*batch, model.k, n))
  all_scales = np.broadcast_to(b_scale, (*batch, 1, n))

  def blocks() -> Iterator[tuple[Block, Bounded]]:
    for outer, columns, row_spans in result_blocks(shape, model.k):
      b = exact_codes(all_columns[outer][:, columns], model.flush_subnormals)
      scale = Bounded.of(
        all_scales[outer][:, columns], flush_subnormals=model.flush_subnormals, name="b_scale"
      )
      for rows in row_spans:
        a, a_scale = operands((*outer, rows))
        yield (*outer, rows, columns), model.evaluate(a, b, a_scale, scale)

  return check_blocks(actual, blocks(), progress=progress)


def check_quantized_matmul(
  actual: npt.ArrayLike,
  a_q: npt.ArrayLike,
  b_q: npt.ArrayLike,
  a_scale: npt.ArrayLike,
  b_scale: npt.ArrayLike,
  *,
  out_dtype: npt.DTypeLike | None = None,
  accumulation_chunk: int | None = None,
  accumulate: Accumulate = "ieee",
  flush_subnormals: bool = True,
  progress: Callable[[int, int], None] | None = None,
) -> ErrorCheck:
  """Compares a kernel's scaled product of codes with the exact one, element by element.

  As `check_matmul`, with `quantized_matmul_exact` for exact and
  `quantized_matmul_error_bound` for bound, in blocks.

  Args:
    actual: The kernel's result, [..., M, N].
    a_q: [..., M, K] float8_e4m3fn or int8 codes.
    b_q: [..., K, N], the same dtype.
    a_scale: [..., M, 1], float32.
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
  actual, a_q, b_q = np.asarray(actual), np.asarray(a_q), np.asarray(b_q)
  a_scale, b_scale = np.asarray(a_scale), np.asarray(b_scale)
  shape = quantized_shape(a_q, b_q, a_scale, b_scale)
  model = QuantizedMatmulModel.create(
    code_format(a_q.dtype),
    a_q.shape[-1],
    out_dtype=actual.dtype if out_dtype is None else out_dtype,
    accumulation_chunk=accumulation_chunk,
    accumulate=accumulate,
    flush_subnormals=flush_subnormals,
  )
  *batch, m, _ = shape
  rows = np.broadcast_to(a_q, (*batch, m, model.k))
  scales = np.broadcast_to(a_scale, (*batch, m, 1))

  def operands(index: Any) -> tuple[Bounded, Bounded]:
    scale = Bounded.of(scales[index], flush_subnormals=flush_subnormals, name="a_scale")
    return exact_codes(rows[index], flush_subnormals), scale

  return check_product_of_codes(actual, model, operands, b_q, b_scale, shape, progress)


assert_quantized_matmul_close = asserting(check_quantized_matmul, assert_passed)
