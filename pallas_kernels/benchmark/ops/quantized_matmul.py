"""C = round_out((A_q·B_q) ⊙ a_scale ⊙ b_scale), as the benchmark sees it."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hw_profiles import MatmulConfig, MatmulProblem
from pallas_kernels.benchmark.ops.gemm import (
  FLOAT_DTYPES,
  GemmOp,
  MatmulShape,
  interpreted_chunk,
)
from pallas_kernels.benchmark.ops.op import Function, Operands, draw, numpy_dtype, option
from pallas_kernels.benchmark.ops.verdict import Verdict, verdict

if TYPE_CHECKING:
  import jax
  import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizedMatmulOptions:
  """The options of `pallas_kernels.quantized_matmul` that are flags."""

  out_dtype: str = option("bfloat16", "Result dtype; left out: bfloat16", choices=FLOAT_DTYPES)


def accumulation_of_codes(
  dtype: "np.dtype[Any]", *, ran: str, config: MatmulConfig | None, platform: str
) -> dict[str, Any]:
  """How `reference`'s checks take the order in which an implementation adds up codes."""
  from pallas_kernels import dispatch
  from pallas_kernels.gemm import hopper

  # int8 products add up exactly, in int32
  on_tensor_cores = (
    dtype.name != "int8" and dispatch.accumulation(ran, dtype.name, platform) != "ieee"
  )
  chunk = interpreted_chunk(config, ran)
  if config is not None and ran == "mosaic_gpu":
    promotes = hopper.promotes_steps(dtype, interpreted=False)
    chunk = config.block_k if promotes else None
  return {
    "accumulation_chunk": chunk,
    "accumulate": "tensor_core_fp8" if on_tensor_cores else "ieee",
  }


class QuantizedMatmul(GemmOp[QuantizedMatmulOptions]):
  """`pallas_kernels.quantized_matmul`."""

  name = "quantized_matmul"
  # The matmul's tiles, twice as deep: an element is half as wide.
  default_tiles = (
    MatmulConfig(64, 64, 64, 1),
    MatmulConfig(128, 128, 64, 1),
    MatmulConfig(128, 256, 128, 4),
    MatmulConfig(128, 256, 512, 2),
  )
  options_class = QuantizedMatmulOptions
  dtypes = ("float8_e4m3fn", "int8")
  peers = ("xla",)
  # the kernel reads a stored [n, k] without a copy
  transposed_operands = (1,)

  # --- the planner's side

  def problem(
    self, shape: MatmulShape, dtype: str, options: QuantizedMatmulOptions
  ) -> MatmulProblem:
    """Codes of 8 bits, and a scale for each row and column."""
    return MatmulProblem(
      m=shape.m,
      k=shape.k,
      n=shape.n,
      dtype=dtype,
      out_dtype=options.out_dtype,
      batch=shape.products,
      scaled=True,
    )

  # --- operands

  def operand_shapes(
    self, shape: MatmulShape, options: QuantizedMatmulOptions
  ) -> tuple[tuple[int, ...] | None, ...]:
    """Codes A [batch,] m x k and B [batch,] k x n, scales [batch,] m x 1 and 1 x n."""
    return (
      (*shape.leading, shape.m, shape.k),
      (*shape.leading, shape.k, shape.n),
      (*shape.leading, shape.m, 1),
      (*shape.leading, 1, shape.n),
    )

  def operands(self, shape: MatmulShape, dtype: str, options: QuantizedMatmulOptions) -> Operands:
    """Standard normal matrices, quantised by rows of A and columns of B."""
    import numpy as np

    import reference

    a_shape, b_shape, *_ = self.operand_shapes(shape, options)
    a, b = draw((a_shape, b_shape), "float32")
    assert a is not None
    assert b is not None
    a_codes, a_scale = reference.quantize_rows(a, dtype=numpy_dtype(dtype))
    b_codes, b_scale = reference.quantize_rows(np.swapaxes(b, -1, -2), dtype=numpy_dtype(dtype))
    # the transpose of a stored [n, k] is what the kernel reads without a copy
    return a_codes, np.swapaxes(b_codes, -1, -2), a_scale, np.swapaxes(b_scale, -1, -2)

  def abstract_operands(
    self, shape: MatmulShape, dtype: str, options: QuantizedMatmulOptions
  ) -> tuple[Any, ...]:
    """Shapes and dtypes of codes and scales."""
    import jax

    dtypes = (dtype, dtype, "float32", "float32")
    shapes = self.operand_shapes(shape, options)
    return tuple(
      None if size is None else jax.ShapeDtypeStruct(size, numpy_dtype(name))
      for size, name in zip(shapes, dtypes, strict=True)
    )

  def device_operands(
    self, shape: MatmulShape, dtype: str, options: QuantizedMatmulOptions
  ) -> tuple[Any, ...]:
    """Codes that fill their range; scales are positive."""
    import jax.numpy as jnp

    a, b, a_scale, b_scale = super().device_operands(shape, dtype, options)
    return a, b, jnp.abs(a_scale), jnp.abs(b_scale)

  # --- a part of the result

  def cut(self, operands: Operands, part: MatmulShape) -> Operands:
    """The first rows of A and the first columns of B, with their scales."""
    a, b, a_scale, b_scale = operands
    assert a is not None
    assert b is not None
    assert a_scale is not None
    assert b_scale is not None
    return (
      a[..., : part.m, :],
      b[..., : part.n],
      a_scale[..., : part.m, :],
      b_scale[..., : part.n],
    )

  # --- what runs

  def arguments(
    self, operands: tuple[Any, ...], options: QuantizedMatmulOptions
  ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """quantized_matmul(a_q, b_q, a_scale, b_scale, out_dtype=...)."""
    return operands, {"out_dtype": numpy_dtype(options.out_dtype)}

  def peer(self, name: str, options: QuantizedMatmulOptions) -> Function:
    """xla: the product of the codes and the scales in plain jax.numpy."""
    import jax.numpy as jnp

    def xla(
      a: "jax.Array", b: "jax.Array", a_scale: "jax.Array", b_scale: "jax.Array"
    ) -> "jax.Array":
      sums = jnp.int32 if a.dtype == jnp.int8 else jnp.float32
      product = jnp.matmul(a, b, preferred_element_type=sums).astype(jnp.float32)
      return (product * a_scale * b_scale).astype(options.out_dtype)

    return {"xla": xla}[name]

  def check(
    self,
    actual: Any,
    operands: Operands,
    options: QuantizedMatmulOptions,
    *,
    ran: str,
    config: MatmulConfig | None,
    platform: str,
  ) -> Verdict:
    """`reference.check_quantized_matmul`, with the order of accumulation of what ran."""
    import reference

    a, b, a_scale, b_scale = operands
    assert a is not None
    assert b is not None
    assert a_scale is not None
    assert b_scale is not None
    return verdict(
      reference.check_quantized_matmul(
        actual,
        a,
        b,
        a_scale,
        b_scale,
        out_dtype=numpy_dtype(options.out_dtype),
        **accumulation_of_codes(a.dtype, ran=ran, config=config, platform=platform),
      )
    )


QUANTIZED_MATMUL = QuantizedMatmul()
