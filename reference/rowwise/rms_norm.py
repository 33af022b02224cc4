"""RMS normalisation of rows: definition, error bound and check."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.accumulation import accumulation_depth
from reference.bounded import Bounded, operand_format
from reference.formats import Float64Array, FloatFormat, float_format, to_float64
from reference.judge import ErrorCheck, assert_passed, asserting
from reference.rounding import round_to
from reference.rowwise.inverse_rms import bounded_normalised, inverse_rms
from reference.rowwise.rows import as_rows, check_rows


def _checked(
  x: npt.NDArray[Any], weight: npt.NDArray[Any], eps: float, weight_offset: float
) -> None:
  """Raises ValueError unless shapes and numbers fit."""
  if not x.ndim:
    raise ValueError("x.shape=(): expected at least 1 dimension")
  if weight.shape != x.shape[-1:]:
    raise ValueError(f"weight.shape={weight.shape}: expected {x.shape[-1:]}, the last of x")
  if not (math.isfinite(eps) and eps >= 0):
    raise ValueError(f"eps={eps!r}: expected a finite number of at least 0")
  if not math.isfinite(weight_offset):
    raise ValueError(f"weight_offset={weight_offset!r}: expected a finite number")


def rms_norm_exact(
  x: npt.ArrayLike, weight: npt.ArrayLike, *, eps: float = 1e-6, weight_offset: float = 0.0
) -> Float64Array:
  """x·(mean(x²) + eps)^(-1/2)·(weight + weight_offset) in float64.

  Args:
    x: [..., columns], any real dtype.
    weight: [columns].
    eps: At least 0.
    weight_offset: Added to the weight: 1 for weights stored as offsets from 1.

  Returns:
    float64 of the shape of `x`.

  Raises:
    ValueError: a shape, a dtype or a number is wrong.
  """
  x, weight = np.asarray(x), np.asarray(weight)
  _checked(x, weight, eps, weight_offset)
  with np.errstate(invalid="ignore", over="ignore", under="ignore"):
    normalised = to_float64(x) * inverse_rms(x, eps=eps)
    return normalised * (to_float64(weight, name="weight") + weight_offset)


def rms_norm(
  x: npt.ArrayLike,
  weight: npt.ArrayLike,
  *,
  eps: float = 1e-6,
  weight_offset: float = 0.0,
  cast_before_weight: bool = False,
  out_dtype: npt.DTypeLike | None = None,
) -> npt.NDArray[Any]:
  """RMS normalisation, rounded where the definition rounds.

      n = x·(mean(x²) + eps)^(-1/2)
      n = round(n, dtype of x)                       only if cast_before_weight
      out = round(n·(weight + weight_offset), out_dtype)

  By default everything up to `out` is float32. `cast_before_weight` is the
  other convention in use: normalise, return to the dtype of x, multiply.
  Splits of the row change the order of the sum, not this definition.

  Args:
    x: [..., columns], any real dtype.
    weight: [columns].
    eps: At least 0.
    weight_offset: Added to the weight, in float32.
    cast_before_weight: Whether n is rounded to the dtype of x.
    out_dtype: Dtype of the result. None: float64, that is no rounding.

  Returns:
    Array of the shape of `x` in `out_dtype`, or float64.

  Raises:
    ValueError: a shape, a dtype or a number is wrong.
  """
  x, weight = np.asarray(x), np.asarray(weight)
  _checked(x, weight, eps, weight_offset)
  with np.errstate(invalid="ignore", over="ignore", under="ignore"):
    normalised = to_float64(x) * inverse_rms(x, eps=eps)
    if cast_before_weight:
      fmt = float_format(x.dtype, name="x.dtype")
      normalised = round_to(normalised, fmt.dtype).astype(np.float64)
    result = normalised * (to_float64(weight, name="weight") + weight_offset)
  if out_dtype is None:
    return result
  return round_to(result, float_format(out_dtype, name="out_dtype").dtype)


@dataclasses.dataclass(frozen=True)
class RmsNormModel:
  """RMS normalisation as a kernel computes it: the checked options of the bound."""

  eps: float
  weight_offset: float
  normalised_format: FloatFormat | None
  accumulation_chunk: int | None
  flush_subnormals: bool
  out_format: FloatFormat

  @classmethod
  def create(
    cls,
    x: npt.NDArray[Any],
    weight: npt.NDArray[Any],
    *,
    eps: float,
    weight_offset: float,
    cast_before_weight: bool,
    out_dtype: npt.DTypeLike,
    accumulation_chunk: int | None,
    flush_subnormals: bool,
  ) -> "RmsNormModel":
    """Checks the options against the operands.

    Raises:
      ValueError: a shape, a dtype, a number or an option is wrong.
    """
    _checked(x, weight, eps, weight_offset)
    x_format = operand_format("x", x.dtype)
    operand_format("weight", weight.dtype)
    accumulation_depth(x.shape[-1], accumulation_chunk)
    return cls(
      eps=eps,
      weight_offset=weight_offset,
      normalised_format=x_format if cast_before_weight else None,
      accumulation_chunk=accumulation_chunk,
      flush_subnormals=flush_subnormals,
      out_format=float_format(out_dtype, name="out_dtype"),
    )

  def evaluate(self, x: Bounded, weight: npt.NDArray[np.generic]) -> Bounded:
    """What the kernel may give for these rows."""
    normalised = bounded_normalised(
      x,
      eps=self.eps,
      accumulation_chunk=self.accumulation_chunk,
      flush_subnormals=self.flush_subnormals,
    )
    if self.normalised_format is not None:
      normalised = normalised.round(self.normalised_format.dtype)
    factor = Bounded.of(weight, flush_subnormals=self.flush_subnormals, name="weight")
    if self.weight_offset:
      stored = float(np.float32(self.weight_offset))
      offset = Bounded.within(self.weight_offset, abs(stored - self.weight_offset))
      factor = factor.add(offset, flush_subnormals=self.flush_subnormals)
    product = normalised.multiply(factor, flush_subnormals=self.flush_subnormals)
    return product.round(self.out_format.dtype)


def rms_norm_error_bound(
  x: npt.ArrayLike,
  weight: npt.ArrayLike,
  *,
  out_dtype: npt.DTypeLike,
  eps: float = 1e-6,
  weight_offset: float = 0.0,
  cast_before_weight: bool = False,
  accumulation_chunk: int | None = None,
  flush_subnormals: bool = True,
) -> Float64Array:
  """Elementwise bound on |kernel - rms_norm_exact(x, ...)| for float32 arithmetic.

  `bounded_normalised`, rounded to the dtype of x if that is the convention,
  times weight + offset (`Bounded.add`, `Bounded.multiply`), rounded.

  Args:
    x: [..., columns] float32, float16, bfloat16 or float8_e4m3fn.
    weight: [columns], the same choice.
    out_dtype: Dtype of the kernel's result.
    eps: As in `reference.rms_norm`, as the next two.
    weight_offset: Added to the weight.
    cast_before_weight: Whether the kernel rounds before the weight.
    accumulation_chunk: Width of a segment that is summed on its own; see
      `accumulation_depth`. None holds for every order.
    flush_subnormals: Whether subnormal float32 values may be replaced by zero.

  Returns:
    float64 of the shape of `x`; infinite where nothing is promised.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  x, weight = np.asarray(x), np.asarray(weight)
  model = RmsNormModel.create(
    x,
    weight,
    eps=eps,
    weight_offset=weight_offset,
    cast_before_weight=cast_before_weight,
    out_dtype=out_dtype,
    accumulation_chunk=accumulation_chunk,
    flush_subnormals=flush_subnormals,
  )
  return model.evaluate(Bounded.of(x, flush_subnormals=flush_subnormals), weight).bound


def check_rms_norm(
  actual: npt.ArrayLike,
  x: npt.ArrayLike,
  weight: npt.ArrayLike,
  *,
  eps: float = 1e-6,
  weight_offset: float = 0.0,
  cast_before_weight: bool = False,
  out_dtype: npt.DTypeLike | None = None,
  accumulation_chunk: int | None = None,
  flush_subnormals: bool = True,
  progress: Callable[[int, int], None] | None = None,
) -> ErrorCheck:
  """Compares a kernel's RMS normalisation with the exact one, element by element.

  Args:
    actual: The kernel's result, of the shape of `x`.
    x: As in `rms_norm_error_bound`, as all others but the next two.
    weight: [columns].
    eps: At least 0.
    weight_offset: Added to the weight.
    cast_before_weight: Whether the kernel rounds before the weight.
    out_dtype: Expected dtype of `actual`; None: whatever it has.
    accumulation_chunk: Width of a segment.
    flush_subnormals: Whether subnormals may be replaced by zero.
    progress: Called as progress(elements done, elements in all).

  Returns:
    The comparison; it does not raise for a wrong result.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  actual, x, weight = np.asarray(actual), np.asarray(x), np.asarray(weight)
  model = RmsNormModel.create(
    x,
    weight,
    eps=eps,
    weight_offset=weight_offset,
    cast_before_weight=cast_before_weight,
    out_dtype=actual.dtype if out_dtype is None else out_dtype,
    accumulation_chunk=accumulation_chunk,
    flush_subnormals=flush_subnormals,
  )
  if actual.shape != x.shape:
    raise ValueError(f"actual.shape={actual.shape}: expected {x.shape}, the shape of x")
  if actual.dtype != model.out_format.dtype:
    raise ValueError(f"actual.dtype={actual.dtype}: expected out_dtype={model.out_format.name}")
  rows = as_rows(x)
  return check_rows(
    actual,
    lambda group: model.evaluate(
      Bounded.of(rows[group], flush_subnormals=flush_subnormals), weight
    ),
    progress=progress,
  )


assert_rms_norm_close = asserting(check_rms_norm, assert_passed)
