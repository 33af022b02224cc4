"""C = round_out((A_q·B_q) ⊙ a_scale ⊙ b_scale), A_q of rows of A, as the benchmark sees it."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hw_profiles import MatmulConfig, MatmulProblem
from pallas_kernels.benchmark.ops.gemm import (
  FLOAT_DTYPES,
  GemmOp,
  MatmulShape,
)
from pallas_kernels.benchmark.ops.op import Function, Operands, draw, numpy_dtype, option
from pallas_kernels.benchmark.ops.quantized_matmul import QUANTIZED_MATMUL, accumulation_of_codes
from pallas_kernels.benchmark.ops.rowwise import quantized
from pallas_kernels.benchmark.ops.verdict import Verdict, verdict

if TYPE_CHECKING:
  import jax

_FUSE = {"yes": True, "no": False}


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizeMatmulOptions:
  """The options of `pallas_kernels.quantize_matmul` that are flags."""

  code_dtype: str = option(
    "float8_e4m3fn",
    "What the rows are quantised to, and B is; left out: float8_e4m3fn",
    choices=QUANTIZED_MATMUL.dtypes,
  )
  fuse: str | None = option(
    None, "Whether the matmul quantises; left out: as the traffic says", choices=tuple(_FUSE)
  )
  out_dtype: str = option("bfloat16", "Result dtype; left out: bfloat16", choices=FLOAT_DTYPES)


class QuantizeMatmul(GemmOp[QuantizeMatmulOptions]):
  """`pallas_kernels.quantize_matmul`. It is planned as the two ops that it consists of."""

  name = "quantize_matmul"
  tasks = ("run", "numerics")
  default_tiles = QUANTIZED_MATMUL.default_tiles
  options_class = QuantizeMatmulOptions
  dtypes = FLOAT_DTYPES
  peers = ("xla",)
  transposed_operands = QUANTIZED_MATMUL.transposed_operands

  # --- the planner's side

  def problem(
    self, shape: MatmulShape, dtype: str, options: QuantizeMatmulOptions
  ) -> MatmulProblem:
    """The product of the codes."""
    return MatmulProblem(
      m=shape.m,
      k=shape.k,
      n=shape.n,
      dtype=options.code_dtype,
      out_dtype=options.out_dtype,
      batch=shape.products,
      scaled=True,
    )

  def once_through_bytes(
    self, shape: MatmulShape, dtype: str, options: QuantizeMatmulOptions
  ) -> int:
    """A in its own dtype, the codes of B and its scales read once, C written once."""
    per_product = (
      shape.m * shape.k * numpy_dtype(dtype).itemsize
      + shape.k * shape.n
      + 4 * shape.n
      + shape.m * shape.n * numpy_dtype(options.out_dtype).itemsize
    )
    return shape.products * per_product

  # --- operands

  def operand_shapes(
    self, shape: MatmulShape, options: QuantizeMatmulOptions
  ) -> tuple[tuple[int, ...] | None, ...]:
    """A [batch,] m x k, codes B [batch,] k x n, scales [batch,] 1 x n."""
    return (
      (*shape.leading, shape.m, shape.k),
      (*shape.leading, shape.k, shape.n),
      (*shape.leading, 1, shape.n),
    )

  def operands(self, shape: MatmulShape, dtype: str, options: QuantizeMatmulOptions) -> Operands:
    """Standard normal matrices, B quantised by columns."""
    import numpy as np

    import reference

    a_shape, b_shape, _ = self.operand_shapes(shape, options)
    (a,) = draw((a_shape,), dtype)
    _, b = draw((a_shape, b_shape), "float32")
    assert b is not None
    codes, scale = reference.quantize_rows(
      np.swapaxes(b, -1, -2), dtype=numpy_dtype(options.code_dtype)
    )
    # the transpose of a stored [n, k] is what the kernel reads without a copy
    return a, np.swapaxes(codes, -1, -2), np.swapaxes(scale, -1, -2)

  def abstract_operands(
    self, shape: MatmulShape, dtype: str, options: QuantizeMatmulOptions
  ) -> tuple[Any, ...]:
    """Shapes and dtypes of A, codes and scales."""
    import jax

    return tuple(
      None if size is None else jax.ShapeDtypeStruct(size, numpy_dtype(name))
      for size, name in zip(
        self.operand_shapes(shape, options), (dtype, options.code_dtype, "float32"), strict=True
      )
    )

  def device_operands(
    self, shape: MatmulShape, dtype: str, options: QuantizeMatmulOptions
  ) -> tuple[Any, ...]:
    """Codes that fill their range; scales are positive."""
    import jax.numpy as jnp

    a, codes, scale = super().device_operands(shape, dtype, options)
    return a, codes, jnp.abs(scale)

  # --- a part of the result

  def cut(self, operands: Operands, part: MatmulShape) -> Operands:
    """The first rows of A, the first columns of B with their scales."""
    a, codes, scale = operands
    assert a is not None
    assert codes is not None
    assert scale is not None
    return a[..., : part.m, :], codes[..., : part.n], scale[..., : part.n]

  # --- what runs

  def arguments(
    self, operands: tuple[Any, ...], options: QuantizeMatmulOptions
  ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """quantize_matmul(a, b_q, b_scale, fuse=..., out_dtype=...)."""
    fuse = None if options.fuse is None else _FUSE[options.fuse]
    return operands, {"fuse": fuse, "out_dtype": numpy_dtype(options.out_dtype)}

  def peer(self, name: str, options: QuantizeMatmulOptions) -> Function:
    """xla: rows quantised, the product of the codes and the scales in plain jax.numpy."""
    import jax.numpy as jnp

    product = QUANTIZED_MATMUL.peer(
      name, QUANTIZED_MATMUL.options_class(out_dtype=options.out_dtype)
    )

    def xla(a: "jax.Array", codes: "jax.Array", scale: "jax.Array") -> "jax.Array":
      a_codes, a_scale = quantized(a.astype(jnp.float32), options.code_dtype)
      return product(a_codes, codes, a_scale, scale)

    return {"xla": xla}[name]

  def check(
    self,
    actual: Any,
    operands: Operands,
    options: QuantizeMatmulOptions,
    *,
    ran: str,
    config: MatmulConfig | None,
    platform: str,
  ) -> Verdict:
    """`reference.check_quantize_matmul`, with the order of accumulation of what ran."""
    import reference

    a, codes, scale = operands
    assert a is not None
    assert codes is not None
    assert scale is not None
    return verdict(
      reference.check_quantize_matmul(
        actual,
        a,
        codes,
        scale,
        out_dtype=numpy_dtype(options.out_dtype),
        **accumulation_of_codes(codes.dtype, ran=ran, config=config, platform=platform),
      )
    )


QUANTIZE_MATMUL = QuantizeMatmul()
