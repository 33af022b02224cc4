"""Codes and scale of each row, as the benchmark sees it."""

import dataclasses
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
  codes_verdict,
  quantized,
)
from pallas_kernels.benchmark.ops.verdict import Verdict

if TYPE_CHECKING:
  import jax


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizeRowsOptions:
  """The options of `pallas_kernels.quantize_rows` that are flags."""

  code_dtype: str = option("float8_e4m3fn", "Dtype of the codes", choices=CODE_DTYPES)


class QuantizeRows(RowsOp[QuantizeRowsOptions]):
  """`pallas_kernels.quantize_rows`."""

  name = "quantize_rows"
  default_shape = QWEN_ACTIVATION
  # a row kept, a row walked twice; and a row of UB
  default_tiles = (RowConfig(1, 16384, 1), RowConfig(1, 2048, 3), RowConfig(1, 12288, 2))
  options_class = QuantizeRowsOptions

  def problem(
    self, shape: RowsShape, dtype: str, options: QuantizeRowsOptions
  ) -> hw_profiles.QuantizeRowsProblem:
    """One operand, codes and scales."""
    return hw_profiles.QuantizeRowsProblem(shape.rows, shape.columns, dtype, options.code_dtype)

  def arguments(
    self, operands: tuple[Any, ...], options: QuantizeRowsOptions
  ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """quantize_rows(x, dtype=...)."""
    return operands, {"dtype": options.code_dtype}

  def xla(self, options: QuantizeRowsOptions) -> Function:
    """The same codes and scales in jax.numpy, compiled by XLA."""
    import jax.numpy as jnp

    def xla(x: "jax.Array") -> tuple["jax.Array", "jax.Array"]:
      return quantized(x.astype(jnp.float32), options.code_dtype)

    return xla

  def judge(self, actual: Any, operands: Operands, options: QuantizeRowsOptions) -> Verdict:
    """`reference.check_quantize_rows`."""
    import reference

    codes, scale = actual
    (x,) = operands
    assert x is not None
    return codes_verdict(
      reference.check_quantize_rows(codes, scale, x, dtype=numpy_dtype(options.code_dtype))
    )


QUANTIZE_ROWS = QuantizeRows()
