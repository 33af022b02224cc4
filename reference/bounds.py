"""Error bound of each op: the composition of `Bounded` operations that the op is."""

import dataclasses

import numpy as np
import numpy.typing as npt

from reference.accumulation import Accumulate
from reference.activations import Activation, check_activation
from reference.bounded import Bounded, operand_format
from reference.formats import Float64Array, FloatFormat, float_format
from reference.ops import result_shape
from reference.products import ProductModel


@dataclasses.dataclass(frozen=True)
class MatmulModel:
  """act(A·B + bias) as a kernel computes it: the checked options of `matmul_error_bound`."""

  product: ProductModel
  activation: Activation | None
  intermediate_format: FloatFormat
  out_format: FloatFormat

  @classmethod
  def create(
    cls,
    a: npt.NDArray[np.generic],
    b: npt.NDArray[np.generic],
    *,
    out_dtype: npt.DTypeLike,
    accumulation_chunk: int | None,
    accumulate: Accumulate,
    activation: Activation | None,
    intermediate_dtype: npt.DTypeLike | None,
    flush_subnormals: bool,
  ) -> "MatmulModel":
    """Checks the options against the operands.

    Raises:
      ValueError: an option or dtype is one the bound does not cover.
    """
    a_format, b_format = operand_format("a", a.dtype), operand_format("b", b.dtype)
    check_activation(activation)
    product = ProductModel.create(
      a_format,
      b_format,
      a.shape[-1],
      accumulation_chunk=accumulation_chunk,
      accumulate=accumulate,
      flush_subnormals=flush_subnormals,
    )
    out_format = float_format(out_dtype, name="out_dtype")
    return cls(
      product=product,
      activation=activation,
      intermediate_format=(
        out_format
        if intermediate_dtype is None
        else float_format(intermediate_dtype, name="intermediate_dtype")
      ),
      out_format=out_format,
    )

  def evaluate(self, a: Bounded, b: Bounded, bias: Bounded | None) -> Bounded:
    """What the kernel may give for these operands, or for slices of them."""
    result = self.product.evaluate(a, b)
    if bias is not None:
      result = result.add(bias, flush_subnormals=self.product.flush_subnormals)
    if self.activation is not None:
      result = result.round(self.intermediate_format.dtype).activate(self.activation)
    return result.round(self.out_format.dtype)


def matmul_error_bound(
  a: npt.ArrayLike,
  b: npt.ArrayLike,
  *,
  out_dtype: npt.DTypeLike,
  accumulation_chunk: int | None = None,
  accumulate: Accumulate = "ieee",
  bias: npt.ArrayLike | None = None,
  activation: Activation | None = None,
  intermediate_dtype: npt.DTypeLike | None = None,
  flush_subnormals: bool = True,
) -> Float64Array:
  """Elementwise bound on |kernel - matmul_exact(a, b, ...)| for float32 accumulation.

  The roundings are those of `reference.matmul`; each stage's bound is derived
  where it is defined.

  1. Sum: e1 from `bounded_matmul`, γ_d·|A|·|B| at heart.
  2. Bias, added in float32 rounded to nearest: e2 from `Bounded.add`.
  3. Rounding to the intermediate dtype, before an activation only: e3 from
     `Bounded.round`. float32 rounds nothing here: the accumulator is float32.
  4. Activation in float32: e4 from `Bounded.silu`.
  5. Rounding to `out_dtype`: e5 from `Bounded.round` again.

  The bound is a worst case and for large K far above what random rounding
  errors add up to (see `bounded_matmul`). The cost is two float64 products,
  A·B and |A|·|B|. For a part of the result, slice rows of `a` and columns of
  `b` (and `bias`).

  Args:
    a: [..., M, K] float32, float16, bfloat16 or float8_e4m3fn.
    b: [..., K, N], the same choice; leading dimensions broadcast.
    out_dtype: Dtype of the kernel's result.
    accumulation_chunk: See `accumulation_depth`; None holds for every order.
    accumulate: "ieee", or "tensor_core" (16-bit operands; float32 is
      accepted and bounded as if cut off).
    bias: [N] or what broadcasts to the result; float32 or narrower.
    activation: None or "silu".
    intermediate_dtype: As in `reference.matmul`.
    flush_subnormals: Whether subnormal float32 operands, products, sums and
      results may be replaced by zero. XLA's CPU backend does so. False
      assumes gradual underflow.

  Returns:
    float64 [..., M, N]. Infinite where rounding or the float32 sum may
    overflow; 0 where operands with infinities or NaN make A·B + bias infinite
    or NaN, which a kernel must then reproduce.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  a, b = np.asarray(a), np.asarray(b)
  bias = None if bias is None else np.asarray(bias)
  if bias is not None:
    operand_format("bias", bias.dtype)
  result_shape(a, b, bias)
  model = MatmulModel.create(
    a,
    b,
    out_dtype=out_dtype,
    accumulation_chunk=accumulation_chunk,
    accumulate=accumulate,
    activation=activation,
    intermediate_dtype=intermediate_dtype,
    flush_subnormals=flush_subnormals,
  )
  return model.evaluate(
    Bounded.of(a, flush_subnormals=flush_subnormals),
    Bounded.of(b, flush_subnormals=flush_subnormals),
    None if bias is None else Bounded.of(bias, flush_subnormals=flush_subnormals),
  ).bound
