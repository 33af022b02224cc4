"""out = round_out(act(round_mid(X·W_gate)) · round_mid(X·W_up)), as the benchmark sees it."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import hw_profiles
from hw_profiles import MatmulConfig, MatmulProblem
from pallas_kernels.benchmark.ops.gemm import (
  FLOAT_DTYPES,
  FloatOptions,
  GemmOp,
  MatmulShape,
  interpreted_chunk,
)
from pallas_kernels.benchmark.ops.gradients import with_gradients, with_gradients_judged
from pallas_kernels.benchmark.ops.op import Function, Operands, numpy_dtype, option
from pallas_kernels.benchmark.ops.verdict import Verdict, unjudged, verdict

if TYPE_CHECKING:
  import jax


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedMatmulOptions(FloatOptions):
  """The options of `pallas_kernels.gated_matmul` that are flags."""

  activation: str = option("silu", "Applied after the reduction", choices=hw_profiles.ACTIVATIONS)


class GatedMatmul(GemmOp[GatedMatmulOptions]):
  """`pallas_kernels.gated_matmul`."""

  name = "gated_matmul"
  # Columns are those of the result, of which each product has as many: half the
  # columns of the matmul's tiles keep as many accumulators.
  default_tiles = (
    MatmulConfig(64, 64, 32, 1),
    MatmulConfig(128, 64, 32, 2),
    MatmulConfig(128, 128, 64, 4),
    MatmulConfig(128, 128, 256, 1),
  )
  options_class = GatedMatmulOptions
  dtypes = FLOAT_DTYPES
  peers = ("xla",)
  matrices = 2

  # --- the planner's side

  def problem(self, shape: MatmulShape, dtype: str, options: GatedMatmulOptions) -> MatmulProblem:
    """Two matrices B for each A."""
    return MatmulProblem(
      m=shape.m,
      k=shape.k,
      n=shape.n,
      dtype=dtype,
      out_dtype=options.out_dtype,
      activation=options.activation,
      batch=shape.products,
      products=self.matrices,
    )

  # --- operands

  def operand_shapes(
    self, shape: MatmulShape, options: GatedMatmulOptions
  ) -> tuple[tuple[int, ...] | None, ...]:
    """X [batch,] m x k, W_gate and W_up [batch,] k x n; if asked for the result's gradient."""
    weights = (*shape.leading, shape.k, shape.n)
    d_out = ((*shape.leading, shape.m, shape.n),) if options.backward else ()
    return ((*shape.leading, shape.m, shape.k), weights, weights, *d_out)

  # --- a part of the result

  def cut(self, operands: Operands, part: MatmulShape) -> Operands:
    """The first rows of X, the first columns of the weights."""
    import numpy as np

    x, gate, up, *d_out = operands
    assert x is not None
    assert gate is not None
    assert up is not None
    return (
      np.ascontiguousarray(x[..., : part.m, :]),
      np.ascontiguousarray(gate[..., : part.n]),
      np.ascontiguousarray(up[..., : part.n]),
      *(y[..., : part.m, : part.n] for y in d_out if y is not None),
    )

  # --- what runs

  def arguments(
    self, operands: tuple[Any, ...], options: GatedMatmulOptions
  ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """gated_matmul(x, w_gate, w_up, ...)."""
    return operands[:3], {
      "activation": options.activation,
      **options.arguments(),
    }

  def peer(self, name: str, options: GatedMatmulOptions) -> Function:
    """xla: act(X·W_gate)·(X·W_up) in plain jax.numpy: on a GPU two cuBLAS products and a fusion."""
    import jax
    import jax.numpy as jnp

    def xla(x: "jax.Array", w_gate: "jax.Array", w_up: "jax.Array") -> "jax.Array":
      out_dtype = jnp.dtype(options.out_dtype or x.dtype)
      intermediate_dtype = jnp.dtype(options.intermediate_dtype or out_dtype)
      activation = getattr(jax.nn, options.activation)

      def product(weight: "jax.Array") -> "jax.Array":
        full = jnp.matmul(
          x,
          weight,
          precision=options.xla_precision(x.dtype),
          preferred_element_type=intermediate_dtype,
        )
        return full.astype(jnp.float32)

      return (activation(product(w_gate)) * product(w_up)).astype(out_dtype)

    forward = {"xla": xla}[name]
    return with_gradients(forward) if options.backward else forward

  def check(
    self,
    actual: Any,
    operands: Operands,
    options: GatedMatmulOptions,
    *,
    ran: str,
    config: MatmulConfig | None,
    platform: str,
  ) -> Verdict:
    """`reference.check_gated_matmul`, with the order of accumulation of what ran."""
    import reference
    from pallas_kernels import dispatch

    x, gate, up, *d_out = operands
    assert x is not None
    assert gate is not None
    assert up is not None
    dtype = x.dtype.name
    if (reason := options.why_unjudged(dtype, platform)) is not None:
      return unjudged(reason)
    out, *gradients = actual if options.backward else (actual,)
    accumulate = dispatch.accumulation(ran, dtype, platform)
    intermediate_dtype = numpy_dtype(options.intermediate_dtype or options.out_dtype or dtype)
    found = verdict(
      reference.check_gated_matmul(
        out,
        x,
        gate,
        up,
        activation=options.activation,  # type: ignore[arg-type]
        intermediate_dtype=intermediate_dtype,
        out_dtype=numpy_dtype(options.out_dtype or dtype),
        accumulation_chunk=interpreted_chunk(config, ran),
        accumulate=accumulate,
      )
    )
    if not options.backward:
      return found

    upstream: Any = d_out[0]

    def bounds() -> dict[str, Any]:
      of_each = reference.bounded_gated_matmul_gradients(
        x,
        gate,
        up,
        upstream.astype(out.dtype),
        activation=options.activation,  # type: ignore[arg-type]
        intermediate_dtype=intermediate_dtype,
        accumulate=accumulate,
      )
      return of_each._asdict()

    return with_gradients_judged(found, gradients, ran=ran, bounds=bounds)


GATED_MATMUL = GatedMatmul()
