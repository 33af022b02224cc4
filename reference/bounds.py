"""Error bound of a matmul with float32 accumulation, derived stage by stage."""

import dataclasses

import numpy as np
import numpy.typing as npt

from reference.accumulation import UNIT_ROUNDOFF, Accumulate, accumulation_depth, gamma
from reference.activations import silu, silu_error_bound
from reference.formats import Float64Array, FloatFormat, float_format, to_float64
from reference.ops import Activation, check_activation, result_shape
from reference.spacing import ulp

_FLOAT32 = float_format(np.float32)
_MIN_NORMAL = 2.0**_FLOAT32.min_exponent
_MIN_SUBNORMAL = 2.0**_FLOAT32.min_subnormal_exponent


def operand_format(name: str, dtype: npt.DTypeLike) -> FloatFormat:
  """Format of an operand whose values float32 holds.

  Raises:
    ValueError: the dtype is float64 or unknown.
  """
  fmt = float_format(dtype, name=f"{name}.dtype")
  if fmt.precision > _FLOAT32.precision:
    raise ValueError(
      f"{name}.dtype={fmt.name}: the bound is that of float32 accumulation; "
      "expected float32 or a narrower float dtype"
    )
  return fmt


@dataclasses.dataclass(frozen=True)
class StageBounds:
  """What the stages of a matmul give exactly, and how far a kernel may be from it.

  Attributes:
    exact: act(A·B + bias) in float64.
    bound: Bound on |kernel - exact| as long as nothing overflows; 0 where
      exact arithmetic gives infinity or NaN before the activation.
    may_overflow: Where rounding may give an infinity of the sign of `exact`
      instead.
    unbounded: Where the float32 sum itself may overflow on the way. Then an
      infinity or, from two of them, NaN can come out and nothing is promised.
  """

  exact: Float64Array
  bound: Float64Array
  may_overflow: npt.NDArray[np.bool_]
  unbounded: npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class MatmulErrorModel:
  """The options of `matmul_error_bound`, checked, and the propagation through the stages."""

  a_format: FloatFormat
  b_format: FloatFormat
  k: int
  out_format: FloatFormat
  intermediate_format: FloatFormat
  activation: Activation | None
  depth: int
  unit_roundoff: float
  flush_subnormals: bool

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
  ) -> "MatmulErrorModel":
    """Checks the options against the operands.

    Raises:
      ValueError: an option or dtype is one the bound does not cover.
    """
    a_format, b_format = operand_format("a", a.dtype), operand_format("b", b.dtype)
    check_activation(activation)
    k = a.shape[-1]
    depth = accumulation_depth(k, accumulation_chunk, accumulate=accumulate)
    if accumulate == "tensor_core":
      for name, fmt in (("a", a_format), ("b", b_format)):
        if fmt.dtype.itemsize == 1:
          raise ValueError(
            f"accumulate='tensor_core' with {name}.dtype={fmt.name}: tensor cores may keep fewer "
            "than float32's bits of an 8-bit product sum; expected a 16-bit dtype or 'ieee'"
          )
    # p_a + p_b <= 24 significand bits: the product fits float32 (see matmul_error_bound)
    exact_products = a_format.precision + b_format.precision <= _FLOAT32.precision
    out_format = float_format(out_dtype, name="out_dtype")
    return cls(
      a_format=a_format,
      b_format=b_format,
      k=k,
      out_format=out_format,
      intermediate_format=(
        out_format
        if intermediate_dtype is None
        else float_format(intermediate_dtype, name="intermediate_dtype")
      ),
      activation=activation,
      depth=depth if exact_products else depth + 1,
      unit_roundoff=UNIT_ROUNDOFF[accumulate],
      flush_subnormals=flush_subnormals,
    )

  def sum_error(self, magnitude: Float64Array, operand_flush: Float64Array) -> Float64Array:
    """Bound on the float32 sum's error, given |A|·|B| and `operand_flush_error`."""
    if self.k == 0:
      return np.zeros_like(magnitude)
    growth = gamma(self.depth, self.unit_roundoff)
    # the float64 products that stand for the exact ones err by γ_K(2^-53) each
    reference = gamma(self.k, 2.0**-53)
    smallest = _MIN_NORMAL if self.flush_subnormals else _MIN_SUBNORMAL
    underflow = (self.k + self.depth) * smallest
    relative = (growth + reference) * (1.0 + 2.0 * reference)
    return magnitude * relative + (operand_flush + underflow) * (1.0 + growth)

  def operand_flush_error(self, a_abs: Float64Array, b_abs: Float64Array) -> Float64Array:
    """Σ_k of the products that vanish if subnormal operands count as zero; [..., 1 or M, 1 or N].

    At most max_k |a_ik|·Σ_k |b_kj| over the subnormal a_ik, and the like for b:
    vectors, not another matrix product. Only float32's exponent range has
    operands that are subnormal in float32.
    """
    error = np.zeros((1, 1))
    if not self.flush_subnormals or self.k == 0:
      return error
    if self.a_format.min_exponent == _FLOAT32.min_exponent:
      lost = np.where(a_abs < _MIN_NORMAL, a_abs, 0.0).max(axis=-1, keepdims=True)
      if lost.any():
        error = error + lost * b_abs.sum(axis=-2, keepdims=True)
    if self.b_format.min_exponent == _FLOAT32.min_exponent:
      lost = np.where(b_abs < _MIN_NORMAL, b_abs, 0.0).max(axis=-2, keepdims=True)
      if lost.any():
        error = error + a_abs.sum(axis=-1, keepdims=True) * lost
    return error

  def rounding_error(self, magnitude: Float64Array, fmt: FloatFormat) -> Float64Array:
    """Largest |round(v) - v| over float32 values |v| <= magnitude, overflow apart.

    Flushing needs no mention: v lost less than 2^-126 to it already, or the
    stage before allows for that and v loses it here instead.
    """
    if fmt.precision >= _FLOAT32.precision:
      return np.zeros_like(magnitude)
    error = 0.5 * ulp(magnitude, fmt.dtype)
    if not fmt.has_infinity:  # saturates
      error = np.maximum(error, magnitude - fmt.max_finite)
    return error

  def overflows(self, magnitude: Float64Array, fmt: FloatFormat) -> npt.NDArray[np.bool_]:
    """Whether a float32 value of up to `magnitude` may become infinite in `fmt`."""
    if not fmt.has_infinity:
      return np.zeros(magnitude.shape, dtype=np.bool_)
    return magnitude >= min(fmt.overflow_threshold, _FLOAT32.overflow_threshold)

  def evaluate(
    self,
    product: Float64Array,
    magnitude: Float64Array,
    operand_flush: Float64Array,
    bias: Float64Array | None,
  ) -> StageBounds:
    """Takes A·B and |A|·|B| through bias, intermediate rounding, activation and rounding.

    Args:
      product: A·B in float64, [..., M, N]; overwritten.
      magnitude: |A|·|B| in float64, same shape.
      operand_flush: From `operand_flush_error`.
      bias: Broadcasts to the result, or None.
    """
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
      error = self.sum_error(magnitude, operand_flush)
      largest_partial = magnitude + error
      total = product
      if bias is not None:
        total += bias
        smallest = 2 * _MIN_NORMAL if self.flush_subnormals else 0.0
        error += _FLOAT32.unit_roundoff * (np.abs(total) + error) + smallest
      special = ~np.isfinite(total)
      # a bias can overflow the finished sum only, which may_overflow covers
      unbounded = ~special & (largest_partial >= _FLOAT32.max_finite)
      may_overflow = np.zeros(total.shape, dtype=np.bool_)

      exact = total
      if self.activation is not None:
        reach = np.abs(total) + error
        # -inf becomes 0, which the bound covers: silu is 0 in float64 that far out
        may_overflow |= self.overflows(reach, self.intermediate_format) & (total > 0)
        error += self.rounding_error(reach, self.intermediate_format)
        exact = silu(total)
        error = silu_error_bound(total, error)

      reach = np.abs(exact) + error
      may_overflow |= self.overflows(reach, self.out_format)
      error += self.rounding_error(reach, self.out_format)
      # float64 arithmetic on exact and on the bound itself: a few units of 2^-53 each
      error += 2.0**-49 * (np.abs(exact) + error)
    may_overflow &= ~special
    error[special] = 0.0
    return StageBounds(exact=exact, bound=error, may_overflow=may_overflow, unbounded=unbounded)


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

  With P = |A|·|B|, K terms a sum, and the roundings of `reference.matmul`:

  1. Sum: e1 = γ_d·P + (K + d)·η.
     d is `accumulation_depth`, u is 2^-24 for additions rounded to nearest and
     2^-23 for tensor cores, which cut off. A product of significands of p_a
     and p_b bits is an integer below 2^(p_a + p_b) times a power of two, so it
     has at most p_a + p_b bits: 16 for bfloat16, 22 for float16, 8 for E4M3,
     all within float32's 24, hence exact. float32 operands need up to 48
     bits, and each product rounds once: d grows by 1. (A fused multiply-add
     saves that rounding; the bound holds either way.)
     Underflow breaks the relative model. A product below 2^-126 moves by at
     most 2^-149 (a half of it if rounded to nearest), and sums of multiples of
     2^-149 are exact; with flushing each of the K products and d partial sums
     may lose up to 2^-126. That is η = 2^-149 or 2^-126. Subnormal operands
     that are read as zero add max|a|·Σ|b| over the subnormal a, and
     likewise for b.
  2. Bias, added in float32 rounded to nearest: e2 = e1 + 2^-24·(|s| + e1),
     where s = A·B + bias. Without a bias e2 = e1.
  3. Rounding to the intermediate dtype, before an activation only:
     e3 = e2 + h(|s| + e2), h the half unit in the last place at that
     magnitude. It is taken against the unrounded s, since next to a rounding
     boundary any e2 > 0 can tip the result. float32 rounds nothing here: the
     accumulator is float32.
  4. Activation in float32: e4 = `silu_error_bound`(s, e3).
  5. Rounding to `out_dtype`: e5 = e4 + h(|y| + e4), y the exact result; at most
     half the smallest subnormal below that, nothing for float32.

  γ_n compounds the factors (1 + δ). The float64 products behind y and P are
  themselves off by γ_K(2^-53)·P, which is added. Sources: Higham 2002,
  sections 3.1 and 4.2, for the sum; Blanchard, Higham, Lopez, Mary and
  Pranesh, "Mixed Precision Block Fused Multiply-Add: Error Analysis and
  Application to GPU Tensor Cores", SIAM J. Sci. Comput. 42(3), C124-C141,
  2020, and Fasi et al., PeerJ CS 7:e330, 2021, for tensor cores.

  The bound is a worst case. Rounding errors of random sign add up to the order
  of sqrt(d)·u·P only (Higham and Mary, SIAM J. Sci. Comput. 41(5),
  A2815-A2835, 2019), so for large K a fault of that size, TF32 operands at
  K = 4096 for one, stays within the bound: test for it at K of a hundred or so.
  The cost is two float64 products, A·B and |A|·|B|. For a part of the result,
  slice rows of `a` and columns of `b` (and `bias`).

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
  model = MatmulErrorModel.create(
    a,
    b,
    out_dtype=out_dtype,
    accumulation_chunk=accumulation_chunk,
    accumulate=accumulate,
    activation=activation,
    intermediate_dtype=intermediate_dtype,
    flush_subnormals=flush_subnormals,
  )
  stages = evaluate_block(model, to_float64(a), to_float64(b), bias)
  return np.where(stages.may_overflow | stages.unbounded, np.inf, stages.bound)


def evaluate_block(
  model: MatmulErrorModel,
  a: Float64Array,
  b: Float64Array,
  bias: npt.NDArray[np.generic] | None,
) -> StageBounds:
  """Exact result and bound for float64 copies of the operands, or of slices of them."""
  with np.errstate(invalid="ignore", over="ignore"):
    product = np.matmul(a, b)
    a_abs, b_abs = np.abs(a), np.abs(b)
    return model.evaluate(
      product,
      np.matmul(a_abs, b_abs),
      model.operand_flush_error(a_abs, b_abs),
      None if bias is None else to_float64(bias, name="bias"),
    )
