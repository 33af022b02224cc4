"""A·B with float32 accumulation: what the sum may give, from what the operands may be."""

import dataclasses

import numpy as np
import numpy.typing as npt

from reference.accumulation import UNIT_ROUNDOFF, Accumulate, accumulation_depth, gamma
from reference.bounded import FLOAT32, MIN_NORMAL, MIN_SUBNORMAL, BoolArray, Bounded
from reference.formats import Float64Array, FloatFormat
from reference.ops import result_shape


@dataclasses.dataclass(frozen=True)
class ProductModel:
  """How products of two operands are summed in float32.

  Attributes:
    k: Products a sum.
    depth: d, the most roundings that any of them passes.
    unit_roundoff: u, what each of the roundings costs at most, relative.
    flush_subnormals: Whether products and sums below 2^-126 may become zero.
  """

  k: int
  depth: int
  unit_roundoff: float
  flush_subnormals: bool

  @classmethod
  def create(
    cls,
    a_format: FloatFormat,
    b_format: FloatFormat,
    k: int,
    *,
    accumulation_chunk: int | None,
    accumulate: Accumulate,
    flush_subnormals: bool,
  ) -> "ProductModel":
    """Checks the options against the operands' formats.

    Raises:
      ValueError: an option or dtype is one the bound does not cover.
    """
    depth = accumulation_depth(k, accumulation_chunk, accumulate=accumulate)
    if accumulate != "ieee":
      eight_bits = accumulate == "tensor_core_fp8"
      for name, fmt in (("a", a_format), ("b", b_format)):
        if eight_bits and fmt.dtype.itemsize > 1:
          raise ValueError(
            f"accumulate='tensor_core_fp8' with {name}.dtype={fmt.name}: expected float8_e4m3fn, "
            "or 'tensor_core'"
          )
        if not eight_bits and fmt.dtype.itemsize == 1:
          raise ValueError(
            f"accumulate='tensor_core' with {name}.dtype={fmt.name}: tensor cores may keep fewer "
            "than float32's bits of an 8-bit product sum; expected a 16-bit dtype or 'ieee', or "
            "'tensor_core_fp8', which bounds what they keep"
          )
    # p_a + p_b <= 24 significand bits: the product fits float32 (see bounded_matmul)
    exact_products = a_format.precision + b_format.precision <= FLOAT32.precision
    return cls(
      k=k,
      depth=depth if exact_products else depth + 1,
      unit_roundoff=UNIT_ROUNDOFF[accumulate],
      flush_subnormals=flush_subnormals,
    )

  def sum_error(self, magnitude: Float64Array, propagated: Float64Array) -> Float64Array:
    """Bound on the float32 sum's error, given |A|·|B| and `propagated_error`."""
    if self.k == 0:
      return np.zeros_like(magnitude)
    growth = gamma(self.depth, self.unit_roundoff)
    # the float64 products that stand for the exact ones err by γ_K(2^-53) each
    reference = gamma(self.k, 2.0**-53)
    smallest = MIN_NORMAL if self.flush_subnormals else MIN_SUBNORMAL
    underflow = (self.k + self.depth) * smallest
    relative = (growth + reference) * (1.0 + 2.0 * reference)
    return magnitude * relative + (propagated + underflow) * (1.0 + growth)

  def evaluate(self, a: Bounded, b: Bounded) -> Bounded:
    """A·B in float32, [..., M, K] by [..., K, N]; derived in `bounded_matmul`."""
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
      exact = np.matmul(a.exact, b.exact)
      a_abs, b_abs = np.abs(a.exact), np.abs(b.exact)
      magnitude = np.matmul(a_abs, b_abs)
      error = self.sum_error(magnitude, propagated_error(a_abs, a.error, b_abs, b.error))
      magnitude += error  # no partial sum is larger
    special = ~np.isfinite(exact)
    unbounded = ~special & (magnitude >= FLOAT32.max_finite)
    unbounded |= _in_doubt(a, b) & ~np.isnan(exact)
    error[special] = 0.0
    return Bounded(exact, error, np.zeros(exact.shape, np.bool_), unbounded)


def propagated_error(
  a_abs: Float64Array, a_error: Float64Array, b_abs: Float64Array, b_error: Float64Array
) -> Float64Array:
  """|A|·E_b + E_a·(|B| + E_b): how far exact sums of such operands are apart.

  Only the k count where an element has an error; as a rule there are none or,
  for subnormal operands that may be read as zero, a few.
  """
  error = np.zeros((1, 1))
  used = _columns(a_error)
  if used.any():
    error = error + np.matmul(a_error[..., used], b_abs[..., used, :] + b_error[..., used, :])
  used = _columns(np.swapaxes(b_error, -1, -2))
  if used.any():
    error = error + np.matmul(a_abs[..., used], b_error[..., used, :])
  return error


def _columns(x: npt.NDArray[np.generic]) -> BoolArray:
  """[K] of [..., M, K]: where any element is not zero."""
  if not any(x.strides):  # one broadcast element
    return np.full(x.shape[-1], bool(x.size and x.flat[0]))
  return np.asarray(np.any(x, axis=tuple(range(x.ndim - 1))))


def _in_doubt(a: Bounded, b: Bounded) -> BoolArray:
  """Sums with a term of which nothing is known; [..., 1 or M, 1 or N].

  A whole row or column for an operand that may be infinite. An infinite operand
  times one that may be zero, or of either sign, may give infinities of either
  sign or NaN.
  """
  a_any, b_any = a.may_overflow | a.unbounded, b.may_overflow | b.unbounded
  doubt = a_any.any(axis=-1, keepdims=True) | b_any.any(axis=-2, keepdims=True)
  a_infinite, b_infinite = np.isinf(a.exact), np.isinf(b.exact)
  if np.any(b.error) and a_infinite.any():
    doubt = doubt | _any_product(a_infinite, _may_vanish(b))
  if np.any(a.error) and b_infinite.any():
    doubt = doubt | _any_product(_may_vanish(a), b_infinite)
  return np.asarray(doubt)


def _may_vanish(x: Bounded) -> BoolArray:
  """Where a computed value may be zero or of the other sign although x is not zero."""
  return np.asarray((np.abs(x.exact) <= x.error) & (x.error > 0))


def _any_product(a: BoolArray, b: BoolArray) -> BoolArray:
  """[..., M, N]: whether a[i, k] and b[k, j] for any k."""
  return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64)) > 0)


def bounded_matmul(
  a: Bounded | npt.ArrayLike,
  b: Bounded | npt.ArrayLike,
  *,
  accumulation_chunk: int | None = None,
  accumulate: Accumulate = "ieee",
  flush_subnormals: bool = True,
) -> Bounded:
  """A·B summed in float32, not rounded to anything yet.

  With P = |A|·|B|, K terms a sum and E_a, E_b the operands' own errors,

      e = γ_d·(P + p) + p + (K + d)·η·(1 + γ_d),    p = |A|·E_b + E_a·(|B| + E_b)

  - d is `accumulation_depth`, u is 2^-24 for additions rounded to nearest and
    2^-23 for tensor cores, which cut off. A product of significands of p_a
    and p_b bits is an integer below 2^(p_a + p_b) times a power of two, so it
    has at most p_a + p_b bits: 16 for bfloat16, 22 for float16, 8 for E4M3,
    all within float32's 24, hence exact. float32 operands need up to 48
    bits, and each product rounds once: d grows by 1. (A fused multiply-add
    saves that rounding; the bound holds either way.)
  - p is how far the exact sum moves with the operands, P + p what they can be
    at most together. Exact operands have p = 0, unless subnormal ones are read
    as zero (`Bounded.of`). An operand that was rounded from a float32 result is
    `Bounded.quantize` of it: E is then 0 but where the rounding may have gone
    the other way.
  - Underflow breaks the relative model. A product below 2^-126 moves by at
    most 2^-149 (a half of it if rounded to nearest), and sums of multiples of
    2^-149 are exact; with flushing each of the K products and d partial sums
    may lose up to 2^-126. That is η = 2^-149 or 2^-126.

  γ_n compounds the factors (1 + δ). The float64 products behind A·B and P are
  themselves off by γ_K(2^-53)·P, which is added; γ_d exceeds the error that it
  bounds by enough for the other roundings of the bound itself. Sources: Higham
  2002, sections 3.1 and 4.2, for the sum; Blanchard, Higham, Lopez, Mary and
  Pranesh, "Mixed Precision Block Fused Multiply-Add: Error Analysis and
  Application to GPU Tensor Cores", SIAM J. Sci. Comput. 42(3), C124-C141,
  2020, and Fasi et al., PeerJ CS 7:e330, 2021, for tensor cores.

  The bound is a worst case. Rounding errors of random sign add up to the order
  of sqrt(d)·u·P only (Higham and Mary, SIAM J. Sci. Comput. 41(5),
  A2815-A2835, 2019), so for large K a fault of that size, TF32 operands at
  K = 4096 for one, stays within the bound: test for it at K of a hundred or so.

  Where P + e reaches float32's largest value a partial sum may overflow, which
  can end in either infinity or NaN: `unbounded`. Not examined is whether
  finite terms overflow in a sum that an operand makes infinite; exact
  arithmetic's infinity is required there.

  Args:
    a: [..., M, K]; an array of values that are given (`Bounded.of`), or what a
      float32 computation may give.
    b: [..., K, N]; leading dimensions broadcast.
    accumulation_chunk: See `accumulation_depth`; None holds for every order.
    accumulate: "ieee", or "tensor_core" (16-bit operands; float32 is
      accepted and bounded as if cut off).
    flush_subnormals: Whether subnormal float32 operands, products and sums
      may be replaced by zero.

  Returns:
    [..., M, N] float32 sums.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  a = a if isinstance(a, Bounded) else Bounded.of(a, flush_subnormals=flush_subnormals, name="a")
  b = b if isinstance(b, Bounded) else Bounded.of(b, flush_subnormals=flush_subnormals, name="b")
  result_shape(a.exact, b.exact)
  model = ProductModel.create(
    a.format,
    b.format,
    a.exact.shape[-1],
    accumulation_chunk=accumulation_chunk,
    accumulate=accumulate,
    flush_subnormals=flush_subnormals,
  )
  return model.evaluate(a, b)
