"""Codes and scale of silu(gate)·up, as the benchmark sees it."""

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import hw_profiles
from hw_profiles import RowConfig
from pallas_kernels.benchmark.ops.op import Function, Operands, numpy_dtype, option
from pallas_kernels.benchmark.ops.rowwise import (
  CODE_DTYPES,
  QWEN_ACTIVATION,
  RowsOp,
  RowsShape,
  codes_of,
  codes_verdict,
  quantized,
  silu_product,
)
from pallas_kernels.benchmark.ops.verdict import Verdict

if TYPE_CHECKING:
  import jax


def _positive(text: str) -> float:
  value = float(text)
  if not (math.isfinite(value) and value > 0):
    raise ValueError("expected a finite number above 0")
  return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwigluQuantizeOptions:
  """The options of `pallas_kernels.swiglu_quantize` that are flags."""

  code_dtype: str = option("float8_e4m3fn", "Dtype of the codes", choices=CODE_DTYPES)
  scale: float | None = option(
    None,
    "One scale for all; left out: one for each row, from its largest magnitude",
    read=_positive,
  )


class SwigluQuantize(RowsOp[SwigluQuantizeOptions]):
  """`pallas_kernels.swiglu_quantize`."""

  name = "swiglu_quantize"
  default_shape = QWEN_ACTIVATION
  # a row kept, a row walked twice; and a row of UB
  default_tiles = (RowConfig(1, 16384, 1), RowConfig(1, 2048, 3), RowConfig(1, 12288, 1))
  options_class = SwigluQuantizeOptions

  def problem(
    self, shape: RowsShape, dtype: str, options: SwigluQuantizeOptions
  ) -> hw_profiles.SwigluQuantizeProblem:
    """With a scale for each row, or one that is given."""
    return hw_profiles.SwigluQuantizeProblem(
      shape.rows, shape.columns, dtype, options.code_dtype, row_scales=options.scale is None
    )

  def operand_shapes(
    self, shape: RowsShape, options: SwigluQuantizeOptions
  ) -> tuple[tuple[int, ...] | None, ...]:
    """Gate and up."""
    return ((shape.rows, shape.columns),) * 2

  def arguments(
    self, operands: tuple[Any, ...], options: SwigluQuantizeOptions
  ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """swiglu_quantize(gate, up, scale=..., dtype=...)."""
    return operands, {"scale": options.scale, "dtype": options.code_dtype}

  def xla(self, options: SwigluQuantizeOptions) -> Function:
    """The same codes and scales in jax.numpy, compiled by XLA."""
    import jax.numpy as jnp

    def xla(gate: "jax.Array", up: "jax.Array") -> tuple["jax.Array", "jax.Array"]:
      values = silu_product(gate, up)
      if options.scale is None:
        return quantized(values, options.code_dtype)
      scale = jnp.float32(options.scale)
      return codes_of(values, scale, options.code_dtype), scale

    return xla

  def judge(self, actual: Any, operands: Operands, options: SwigluQuantizeOptions) -> Verdict:
    """`reference.check_swiglu_quantize`."""
    import reference

    codes, scale = actual
    gate, up = operands
    assert gate is not None
    assert up is not None
    return codes_verdict(
      reference.check_swiglu_quantize(
        codes,
        scale,
        gate,
        up,
        given_scale=options.scale,
        dtype=numpy_dtype(options.code_dtype),
      )
    )


SWIGLU_QUANTIZE = SwigluQuantize()
