"""silu(gate) ⊙ up, and its codes: definitions, error bound and checks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.activations import silu
from reference.bounded import Bounded, operand_format
from reference.formats import Float64Array, code_format, float_format, to_float64
from reference.judge import ErrorCheck, assert_passed, asserting
from reference.rounding import round_to
from reference.rowwise.quantization import (
  E4M3,
  Float32Array,
  QuantizeCheck,
  assert_quantized,
  bounded_row_scale,
  compare_codes,
  quantize,
  quantize_rows,
)
from reference.rowwise.rows import as_rows, check_rows


def _same_shape(gate: npt.NDArray[Any], up: npt.NDArray[Any]) -> None:
  """Raises ValueError unless the shapes are the same."""
  if gate.shape != up.shape:
    raise ValueError(f"up.shape={up.shape}: expected {gate.shape}, the shape of gate")


def swiglu_exact(gate: npt.ArrayLike, up: npt.ArrayLike) -> Float64Array:
  """silu(gate) ⊙ up in float64: what errors are measured against.

  Args:
    gate: Real array of any shape.
    up: Of the shape of `gate`.

  Returns:
    float64 array of that shape.

  Raises:
    ValueError: the shapes differ, or a value is not exact in float64.
  """
  gate, up = np.asarray(gate), np.asarray(up)
  _same_shape(gate, up)
  with np.errstate(invalid="ignore", over="ignore", under="ignore"):
    return silu(gate) * to_float64(up, name="up")


def swiglu(
  gate: npt.ArrayLike,
  up: npt.ArrayLike,
  *,
  intermediate_dtype: npt.DTypeLike | None = None,
  out_dtype: npt.DTypeLike | None = None,
) -> npt.NDArray[Any]:
  """silu(gate) ⊙ up, rounded where the definition rounds.

      t = round(silu(gate), intermediate_dtype or out_dtype)
      out = round(t·up, out_dtype)

  By default t is rounded as a program of two elementwise kernels stores it:
  the fused kernel and that program agree. `intermediate_dtype=float32` keeps
  t in float32, which is what one kernel costs nothing for; `gated_matmul`,
  whose elementwise part is one kernel in any case, has that rule.

  Args:
    gate: Real array of any shape.
    up: Of the shape of `gate`.
    intermediate_dtype: Dtype of t. None: `out_dtype`.
    out_dtype: Dtype of the result. None: float64, that is no rounding.

  Returns:
    Array in `out_dtype`, or float64.

  Raises:
    ValueError: a shape or a dtype is wrong.
  """
  gate, up = np.asarray(gate), np.asarray(up)
  _same_shape(gate, up)
  if out_dtype is not None:
    float_format(out_dtype, name="out_dtype")
  stored = out_dtype if intermediate_dtype is None else intermediate_dtype
  activated = silu(gate)
  if stored is not None:
    fmt = float_format(stored, name="intermediate_dtype")
    activated = round_to(activated, fmt.dtype).astype(np.float64)
  with np.errstate(invalid="ignore", over="ignore", under="ignore"):
    result = activated * to_float64(up, name="up")
  return result if out_dtype is None else round_to(result, out_dtype)


def bounded_swiglu(
  gate: Bounded,
  up: Bounded,
  *,
  intermediate_dtype: npt.DTypeLike = np.float32,
  flush_subnormals: bool = True,
) -> Bounded:
  """silu(gate) ⊙ up evaluated in float32, not rounded to anything yet.

  `Bounded.silu`, rounded to the intermediate dtype, then `Bounded.multiply`.
  """
  activated = gate.silu().round(intermediate_dtype)
  return activated.multiply(up, flush_subnormals=flush_subnormals)


def swiglu_error_bound(
  gate: npt.ArrayLike,
  up: npt.ArrayLike,
  *,
  out_dtype: npt.DTypeLike,
  intermediate_dtype: npt.DTypeLike | None = None,
  flush_subnormals: bool = True,
) -> Float64Array:
  """Elementwise bound on |kernel - swiglu_exact(gate, up)| for float32 arithmetic.

  The roundings are those of `reference.swiglu`; see `bounded_swiglu`.

  Args:
    gate: float32, float16, bfloat16 or float8_e4m3fn, any shape.
    up: The same choice, of the shape of `gate`.
    out_dtype: Dtype of the kernel's result.
    intermediate_dtype: As in `reference.swiglu`.
    flush_subnormals: Whether subnormal float32 values may be replaced by zero.

  Returns:
    float64 array; infinite where float32 or `out_dtype` may overflow.

  Raises:
    ValueError: a shape or a dtype is wrong.
  """
  gate, up = np.asarray(gate), np.asarray(up)
  _same_shape(gate, up)
  out = float_format(out_dtype, name="out_dtype").dtype
  stored = out if intermediate_dtype is None else intermediate_dtype
  return (
    bounded_swiglu(
      Bounded.of(gate, flush_subnormals=flush_subnormals, name="gate"),
      Bounded.of(up, flush_subnormals=flush_subnormals, name="up"),
      intermediate_dtype=float_format(stored, name="intermediate_dtype").dtype,
      flush_subnormals=flush_subnormals,
    )
    .round(out)
    .bound
  )


def check_swiglu(
  actual: npt.ArrayLike,
  gate: npt.ArrayLike,
  up: npt.ArrayLike,
  *,
  intermediate_dtype: npt.DTypeLike | None = None,
  out_dtype: npt.DTypeLike | None = None,
  flush_subnormals: bool = True,
  progress: Callable[[int, int], None] | None = None,
) -> ErrorCheck:
  """Compares a kernel's silu(gate) ⊙ up with the exact one, element by element.

  Args:
    actual: The kernel's result, of the shape of `gate`.
    gate: As in `swiglu_error_bound`.
    up: Of the shape of `gate`.
    intermediate_dtype: As in `reference.swiglu`; None: that of `actual`.
    out_dtype: Expected dtype of `actual`; None: whatever it has.
    flush_subnormals: Whether subnormals may be replaced by zero.
    progress: Called as progress(elements done, elements in all).

  Returns:
    The comparison; it does not raise for a wrong result.

  Raises:
    ValueError: a shape or a dtype is wrong.
  """
  actual, gate, up = np.asarray(actual), np.asarray(gate), np.asarray(up)
  _same_shape(gate, up)
  operand_format("gate", gate.dtype)
  operand_format("up", up.dtype)
  if actual.shape != gate.shape:
    raise ValueError(f"actual.shape={actual.shape}: expected {gate.shape}, the shape of gate")
  out = float_format(actual.dtype if out_dtype is None else out_dtype, name="out_dtype")
  if actual.dtype != out.dtype:
    raise ValueError(f"actual.dtype={actual.dtype}: expected out_dtype={out.name}")
  stored = out.dtype if intermediate_dtype is None else intermediate_dtype
  stored = float_format(stored, name="intermediate_dtype").dtype
  gate_rows, up_rows = as_rows(gate), as_rows(up)

  def evaluate(rows: slice) -> Bounded:
    gate_part, up_part = (
      Bounded.of(operand[rows], flush_subnormals=flush_subnormals)
      for operand in (gate_rows, up_rows)
    )
    return bounded_swiglu(
      gate_part, up_part, intermediate_dtype=stored, flush_subnormals=flush_subnormals
    ).round(out.dtype)

  return check_rows(actual, evaluate, progress=progress)


assert_swiglu_close = asserting(check_swiglu, assert_passed)


def swiglu_quantize(
  gate: npt.ArrayLike,
  up: npt.ArrayLike,
  *,
  scale: npt.ArrayLike | None = None,
  dtype: npt.DTypeLike = E4M3,
) -> tuple[npt.NDArray[Any], Float32Array]:
  """Codes and scale of silu(gate) ⊙ up.

      z = round(silu(gate)·up, float32)
      codes, scale = quantize_rows(z)        or quantize(z, scale) for a scale that is given

  Neither silu(gate) nor z is rounded to anything narrower than float32: the
  only narrow rounding is that to a code.

  Args:
    gate: [..., columns], any real dtype.
    up: Of the shape of `gate`.
    scale: None: `row_scale` of each row of z. Else float32, broadcasting.
    dtype: float8_e4m3fn or int8.

  Returns:
    Codes of the shape of `gate`, and the float32 scale [..., 1] or as given.

  Raises:
    ValueError: a shape, a dtype or a scale is wrong.
  """
  values = round_to(swiglu_exact(gate, up), np.float32)
  if scale is None:
    return quantize_rows(values, dtype=dtype)
  return quantize(values, scale, dtype=dtype), np.asarray(scale, dtype=np.float32)


def check_swiglu_quantize(
  codes: npt.ArrayLike,
  scale: npt.ArrayLike,
  gate: npt.ArrayLike,
  up: npt.ArrayLike,
  *,
  given_scale: npt.ArrayLike | None = None,
  dtype: npt.DTypeLike | None = None,
  flush_subnormals: bool = True,
) -> QuantizeCheck:
  """Compares a kernel's codes and scales with those of `swiglu_quantize`.

  The float32 values behind the codes are uncertain by `bounded_swiglu`'s error,
  a few units of 2^-24: a scale may be off by that, and a code may be the
  neighbour where a boundary lies that close. Everything else has to be exact,
  for the scales as they are stored.

  Args:
    codes: The kernel's codes, of the shape of `gate`.
    scale: Its float32 scales, [..., 1]; or of the shape of `given_scale`.
    gate: [..., columns] float32, float16 or bfloat16.
    up: Of the shape of `gate`.
    given_scale: The scale that the kernel was given; None: one per row.
    dtype: Expected dtype of the codes; None: whatever they have.
    flush_subnormals: Whether subnormal float32 values may be replaced by zero.

  Returns:
    The comparison; it does not raise for a wrong result.

  Raises:
    ValueError: a shape or a dtype is wrong.
  """
  gate, up = np.asarray(gate), np.asarray(up)
  _same_shape(gate, up)
  operand_format("gate", gate.dtype)
  operand_format("up", up.dtype)
  code_dtype = code_format(np.asarray(codes).dtype, name="codes.dtype").dtype
  gate_rows, up_rows = as_rows(gate), as_rows(up)

  def values(rows: slice) -> Bounded:
    gate_part, up_part = (
      Bounded.of(operand[rows], flush_subnormals=flush_subnormals)
      for operand in (gate_rows, up_rows)
    )
    return bounded_swiglu(gate_part, up_part, flush_subnormals=flush_subnormals)

  def row_scales(_: slice, part: Bounded) -> Bounded:
    return bounded_row_scale(part, dtype=code_dtype, flush_subnormals=flush_subnormals)

  if given_scale is not None:
    fixed = Bounded.of(np.asarray(given_scale, np.float32), flush_subnormals=False)
    return compare_codes(codes, scale, gate.shape, values, expected_scale=fixed, dtype=dtype)
  return compare_codes(codes, scale, gate.shape, values, expected_scale=row_scales, dtype=dtype)


assert_swiglu_quantize_close = asserting(check_swiglu_quantize, assert_quantized)
