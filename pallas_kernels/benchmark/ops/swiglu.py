"""round_out(round_mid(silu(gate))·up), as the benchmark sees it."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import hw_profiles
from hw_profiles import RowConfig
from pallas_kernels.benchmark.ops.op import RUNNING, Function, Operands, numpy_dtype, option
from pallas_kernels.benchmark.ops.rowwise import (
  FLOAT_DTYPES,
  QWEN_ACTIVATION,
  RowsOp,
  RowsShape,
  backward_option,
)
from pallas_kernels.benchmark.ops.verdict import Verdict, verdict

if TYPE_CHECKING:
  import jax


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwigluOptions:
  """The options of `pallas_kernels.swiglu` that are flags."""

  out_dtype: str | None = option(
    None, "Result dtype; left out: the operands'", choices=FLOAT_DTYPES
  )
  intermediate_dtype: str | None = option(
    None, "Rounding of silu(gate) before the product", choices=FLOAT_DTYPES, tasks=RUNNING
  )
  backward: bool = backward_option()


class Swiglu(RowsOp[SwigluOptions]):
  """`pallas_kernels.swiglu`."""

  name = "swiglu"
  default_shape = QWEN_ACTIVATION
  # 2048 16-bit elements are two loads of 16 B for each of 128 threads; a copy into UB wants 16 KiB.
  default_tiles = (RowConfig(1, 2048, 1), RowConfig(1, 4096, 1), RowConfig(2, 4096, 2))
  options_class = SwigluOptions

  def problem(
    self, shape: RowsShape, dtype: str, options: SwigluOptions
  ) -> hw_profiles.SwigluProblem:
    """Two operands, one result."""
    return hw_profiles.SwigluProblem(shape.rows, shape.columns, dtype, options.out_dtype)

  def operand_shapes(
    self, shape: RowsShape, options: SwigluOptions
  ) -> tuple[tuple[int, ...] | None, ...]:
    """Gate and up; if asked for the result's gradient."""
    return ((shape.rows, shape.columns),) * (3 if options.backward else 2)

  def arguments(
    self, operands: tuple[Any, ...], options: SwigluOptions
  ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """swiglu(gate, up, ...)."""
    return operands[:2], {
      "out_dtype": options.out_dtype,
      "intermediate_dtype": options.intermediate_dtype,
    }

  def xla(self, options: SwigluOptions) -> Function:
    """The same roundings in plain jax.numpy, which XLA fuses into one kernel."""
    import jax
    import jax.numpy as jnp

    def xla(gate: "jax.Array", up: "jax.Array") -> "jax.Array":
      out = options.out_dtype or gate.dtype
      activated = jax.nn.silu(gate.astype(jnp.float32)).astype(options.intermediate_dtype or out)
      return (activated.astype(jnp.float32) * up.astype(jnp.float32)).astype(out)

    return xla

  def judge(self, actual: Any, operands: Operands, options: SwigluOptions) -> Verdict:
    """`reference.check_swiglu`."""
    import reference

    gate, up = operands
    assert gate is not None
    assert up is not None
    middle = options.intermediate_dtype
    return verdict(
      reference.check_swiglu(
        actual,
        gate,
        up,
        intermediate_dtype=None if middle is None else numpy_dtype(middle),
        out_dtype=numpy_dtype(options.out_dtype or gate.dtype.name),
      )
    )

  def gradient_bounds(self, operands: Operands, d_out: Any) -> Mapping[str, Any]:
    """`reference.bounded_swiglu_gradients`."""
    import reference

    gate, up = operands
    assert gate is not None
    assert up is not None
    return reference.bounded_swiglu_gradients(gate, up, d_out)._asdict()


SWIGLU = Swiglu()
