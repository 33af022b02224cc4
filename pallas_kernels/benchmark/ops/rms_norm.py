"""x·(mean(x²) + eps)^(-1/2)·weight by rows, as the benchmark sees it."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import hw_profiles
from hw_profiles import RowConfig
from pallas_kernels.benchmark import rows
from pallas_kernels.benchmark.ops.op import RUNNING, Function, Operands, numpy_dtype, option
from pallas_kernels.benchmark.ops.rowwise import (
  CODE_DTYPES,
  FLOAT_DTYPES,
  QWEN_HIDDEN,
  RowsOp,
  RowsShape,
  backward_option,
  codes_verdict,
  quantized,
)
from pallas_kernels.benchmark.ops.verdict import Verdict, verdict

if TYPE_CHECKING:
  import jax

  import pallas_kernels

_EPS = 1e-6


def _count(text: str) -> int:
  value = int(text)
  if value < 1:
    raise ValueError("expected an integer of at least 1")
  return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class RmsNormOptions:
  """The options of `pallas_kernels.rms_norm` that are flags."""

  residual: bool = option(False, "Add a residual to x first, and return the sum, too.")
  out_dtype: str | None = option(
    None, "Result dtype; left out: the operands'", choices=FLOAT_DTYPES
  )
  quantize_dtype: str | None = option(
    None, "Give codes of this dtype and a scale for each row", choices=CODE_DTYPES
  )
  num_splits: int | None = option(None, "Segments of a row; left out: the tile's", read=_count)
  cast_before_weight: bool = option(
    False, "Round the normalised row to the operands' dtype before the weight.", tasks=RUNNING
  )
  backward: bool = backward_option()


class RmsNorm(RowsOp[RmsNormOptions]):
  """`pallas_kernels.rms_norm`."""

  name = "rms_norm"
  default_shape = QWEN_HIDDEN
  # a row kept, a row walked twice, a row split as the course's example; and rows of UB
  default_tiles = (
    RowConfig(1, 4096, 1),
    RowConfig(1, 1024, 3),
    RowConfig(1, 512, 1, num_splits=8),
    RowConfig(2, 4096, 2),
  )
  options_class = RmsNormOptions

  def problem(
    self, shape: RowsShape, dtype: str, options: RmsNormOptions
  ) -> hw_profiles.RmsNormProblem:
    """One operand or two, a weight, one result or two."""
    return hw_profiles.RmsNormProblem(
      shape.rows,
      shape.columns,
      dtype,
      options.quantize_dtype or options.out_dtype,
      residual=options.residual,
      num_splits=options.num_splits,
    )

  def operand_shapes(
    self, shape: RowsShape, options: RmsNormOptions
  ) -> tuple[tuple[int, ...] | None, ...]:
    """x, the weight and, where asked for, a residual; then the result's gradient."""
    matrix = (shape.rows, shape.columns)
    residual = matrix if options.residual else None
    return matrix, (shape.columns,), residual, *((matrix,) if options.backward else ())

  def arguments(
    self, operands: tuple[Any, ...], options: RmsNormOptions
  ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """rms_norm(x, weight, residual=..., ...)."""
    x, weight, residual = operands[:3]
    return (x, weight), {
      "residual": residual,
      "eps": _EPS,
      "out_dtype": options.out_dtype,
      "quantize_dtype": options.quantize_dtype,
      "num_splits": options.num_splits,
      "cast_before_weight": options.cast_before_weight,
    }

  def explain(
    self,
    shape: RowsShape,
    dtype: str,
    options: RmsNormOptions,
    *,
    config: RowConfig | None,
    implementation: str | None,
  ) -> "pallas_kernels.Explanation":
    """As the base class.

    Raises:
      NotImplementedError: as the base class; or gradients of more than one result.
    """
    if options.backward and (options.residual or options.quantize_dtype is not None):
      raise NotImplementedError(
        "--backward with --residual or --quantize_dtype: gradients are measured of the plain "
        "result; leave one of them out"
      )
    return super().explain(shape, dtype, options, config=config, implementation=implementation)

  def xla(self, options: RmsNormOptions) -> Function:
    """In jax.numpy, squares neither scaled nor summed in segments.

    Roundings on the way are written so that XLA does not leave them out.
    """
    import jax
    import jax.numpy as jnp

    from pallas_kernels.rowwise import arithmetic

    def xla(x: "jax.Array", weight: "jax.Array", residual: "jax.Array | None") -> Any:
      values = x.astype(jnp.float32)
      if residual is not None:
        values = arithmetic.XLA.narrow(values + residual.astype(jnp.float32), x.dtype)
      mean = jnp.mean(values * values, axis=-1, keepdims=True)
      normalised = values * jax.lax.rsqrt(mean + _EPS)
      if options.cast_before_weight:
        normalised = arithmetic.XLA.narrow(normalised, x.dtype)
      result = normalised * weight.astype(jnp.float32)
      out: Any
      if options.quantize_dtype is not None:
        out = quantized(result, options.quantize_dtype)
      else:
        out = result.astype(options.out_dtype or x.dtype)
      return out if residual is None else (out, values.astype(x.dtype))

    return xla

  def judge(self, actual: Any, operands: Operands, options: RmsNormOptions) -> Verdict:
    """`reference.check_rms_norm` of the sum as it is stored, or the same values' codes."""
    import numpy as np

    import reference

    x, weight, residual = operands
    assert x is not None
    assert weight is not None
    out, notes = actual, list[str]()
    if residual is not None:
      out, total = actual
      expected = reference.Bounded.of(x).add(reference.Bounded.of(residual)).exact
      wrong = int(np.sum(reference.round_to(expected, x.dtype) != total))
      if wrong:
        notes.append(f"{wrong} of {total.size} elements of x + residual are another number")
      x = total
    if options.quantize_dtype is None:
      found = verdict(
        reference.check_rms_norm(
          out,
          x,
          weight,
          eps=_EPS,
          cast_before_weight=options.cast_before_weight,
          out_dtype=numpy_dtype(options.out_dtype or x.dtype.name),
        )
      )
    else:
      codes, scale = out
      found = codes_verdict(
        reference.check_rms_norm_quantize(
          codes,
          scale,
          x,
          weight,
          eps=_EPS,
          cast_before_weight=options.cast_before_weight,
          dtype=numpy_dtype(options.quantize_dtype),
        )
      )
    if not notes:
      return found
    return dataclasses.replace(found, check=rows.FAILED, notes=(*found.notes, *notes))

  def gradient_bounds(self, operands: Operands, d_out: Any) -> Mapping[str, Any]:
    """`reference.bounded_rms_norm_gradients`."""
    import reference

    x, weight, _ = operands
    assert x is not None
    assert weight is not None
    return reference.bounded_rms_norm_gradients(x, weight, d_out, eps=_EPS)._asdict()


RMS_NORM = RmsNorm()
