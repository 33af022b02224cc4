"""How far a float32 evaluation of attention may be from the definition."""

import dataclasses
from typing import Unpack

import numpy as np
import numpy.typing as npt

from reference.accumulation import UNIT_ROUNDOFF, Accumulate, accumulation_depth, gamma
from reference.attention.forward import softmax_scores, visible_product
from reference.attention.problem import AttentionOptions, AttentionProblem, HeadRows
from reference.bounded import FLOAT32, MIN_NORMAL, BoolArray, Bounded, operand_format
from reference.formats import Float64Array, FloatFormat, float_format
from reference.products import ProductModel

_U32 = UNIT_ROUNDOFF["ieee"]

# One exponential of an argument x in float32, in units of 2^-24: the result within 2 ulp (4), and
# of |x|: the difference that x is (1), its product with log2(e) (1) and that constant (0.224), as
# `silu_error_bound` derives. Where scale·log2(e) is one constant and the exponential is exp2 of
# s·c - m·c, the products are rounded on their own: 1 of each of |s| and |m|.
_EXP_UNITS = 4.0
_EXP_UNITS_PER_X = 3.25
_EXP_UNITS_PER_PEAK = 2.0

# tanh in float32, absolute and in units of 2^-24: the argument's quotient by the cap and the
# product with it count on their own; 4 ulp for what is at most 1.
TANH_UNITS = 8.0

# A kernel may keep an older peak until the logits pass it by this much, 8 in powers of two, so
# that the exponents of a key add up to at most twice that more than the distance from its peak.
_LAZY_PEAK = 8.0 * np.log(2.0)

# The end: a reciprocal within 2 ulp (4), a product (1); and for the merge of splits the same again.
_QUOTIENT_UNITS = 5.0

# Weights below 2^-126 may vanish. They are relative to a peak that may lag by 2^8.
_VANISHING_WEIGHT = MIN_NORMAL * 2.0**8


def exp_units(reach: Float64Array, peak: Float64Array) -> Float64Array:
  """Error of one exponential of s - m, in units of 2^-24, relative.

  `reach` bounds |s - m|, `peak` the larger of |s| and |m|.
  """
  return _EXP_UNITS + _EXP_UNITS_PER_X * reach + _EXP_UNITS_PER_PEAK * peak


@dataclasses.dataclass(frozen=True)
class AttentionModel:
  """How a kernel evaluates attention in float32: the checked options of the bound.

  Attributes:
    problem: Operands and options of the definition.
    scores: How q·k is summed.
    value_growth: γ of the sum of probabilities times V.
    total_growth: γ of the sum of the weights.
    p_format: What the probabilities are rounded to before the second product.
    block_kv: Keys of a block; None: anything from 1 on.
    num_splits: Parts of the keys that are merged at the end.
    out_format: Format of the result.
    flush_subnormals: Whether subnormal float32 values may become zero.
  """

  problem: AttentionProblem
  scores: ProductModel
  value_growth: float
  total_growth: float
  p_format: FloatFormat
  block_kv: int | None
  num_splits: int
  out_format: FloatFormat
  flush_subnormals: bool

  @classmethod
  def create(
    cls,
    problem: AttentionProblem,
    *,
    out_dtype: npt.DTypeLike,
    p_dtype: npt.DTypeLike | None,
    accumulate: Accumulate,
    accumulation_chunk: int | None,
    block_kv: int | None,
    num_splits: int,
    flush_subnormals: bool,
  ) -> "AttentionModel":
    """Checks the options against the operands.

    Raises:
      ValueError: an option or dtype is one the bound does not cover.
    """
    formats = {
      name: operand_format(name, array.dtype)
      for name, array in (
        ("query", problem.query),
        ("key", problem.key),
        ("value", problem.value),
      )
    }
    if problem.bias is not None:
      operand_format("bias", problem.bias.dtype)
    for name, number in (("block_kv", block_kv), ("num_splits", num_splits)):
      if number is not None and number < 1:
        raise ValueError(f"{name}={number}: expected at least 1")
    p_format = formats["value"] if p_dtype is None else operand_format_of(p_dtype)
    keys = problem.key.shape[1]
    values = ProductModel.create(
      p_format,
      formats["value"],
      keys,
      accumulation_chunk=accumulation_chunk,
      accumulate=accumulate,
      flush_subnormals=flush_subnormals,
    )
    return cls(
      problem=problem,
      scores=ProductModel.create(
        formats["query"],
        formats["key"],
        problem.query.shape[3],
        accumulation_chunk=None,
        accumulate=accumulate,
        flush_subnormals=flush_subnormals,
      ),
      value_growth=gamma(values.depth, values.unit_roundoff),
      total_growth=gamma(accumulation_depth(keys), _U32),
      p_format=p_format,
      block_kv=block_kv,
      num_splits=num_splits,
      out_format=float_format(out_dtype, name="out_dtype"),
      flush_subnormals=flush_subnormals,
    )

  def logits(self, part: HeadRows, q: Float64Array, k: Float64Array) -> Bounded:
    """The logits of a part as float32 gives them, [t, S]; anything where nothing is visible."""
    problem, flush = self.problem, self.flush_subnormals
    query_format, key_format = (float_format(array.dtype) for array in (problem.query, problem.key))
    dots = self.scores.evaluate(
      Bounded.of_float64(q, query_format, flush_subnormals=flush),
      Bounded.of_float64(k.T, key_format, flush_subnormals=flush),
    )
    factor = Bounded.within(problem.scale, abs(problem.scale) * _U32)
    logits = dots.multiply(factor, flush_subnormals=flush)
    bias = problem.bias_of(part)
    if bias is not None:
      logits = logits.add(Bounded.of(bias, flush_subnormals=flush), flush_subnormals=flush)
    if problem.soft_cap is None:
      return logits
    cap = Bounded.within(problem.soft_cap, problem.soft_cap * _U32)
    ratio = logits.divide(cap, roundoffs=4.0, flush_subnormals=flush)
    with np.errstate(invalid="ignore"):
      # |tanh'| <= 1, and an overflow of the ratio ends at ±1, which tanh has reached long before
      error = np.where(np.isnan(ratio.exact), 0.0, np.minimum(ratio.error, 2.0) + TANH_UNITS * _U32)
      bounded = Bounded(
        np.tanh(ratio.exact), error, np.zeros_like(ratio.unbounded), ratio.unbounded
      )
    return bounded.multiply(cap, flush_subnormals=flush)

  def rescales(self, logits: Float64Array, error: Float64Array) -> Float64Array:
    """[t, 1]: how often a key's weight may be rescaled, at the most.

    A new peak rescales what came before. Keys are taken in ascending or in
    descending order, in blocks of any size, so there are at most as many new
    peaks as keys that may exceed all before them, one way or the other; and at
    most as many as blocks. Each split adds a merge.
    """

    def peaks(upper: Float64Array, lower: Float64Array) -> Float64Array:
      before = np.maximum.accumulate(lower, axis=1)[:, :-1]
      return np.asarray(np.sum(upper[:, 1:] > before, axis=1, keepdims=True) + 1)

    keys = logits.shape[1]
    upper, lower = logits + error, logits - error
    most = np.maximum(peaks(upper, lower), peaks(upper[:, ::-1], lower[:, ::-1]))
    if self.block_kv is not None:
      most = np.minimum(most, -(-keys // self.block_kv))
    return most + float(self.num_splits)

  def evaluate(self, part: HeadRows) -> tuple[Bounded, Bounded]:
    """Out [t, Hv] and residual [t] that a kernel may give; derived in `attention_error_bound`."""
    problem, visible = self.problem, part.visible
    q, k, v = problem.operands(part)
    scores = softmax_scores(problem, part, q, k)
    if not k.shape[0]:
      return self._results(part, scores.probabilities @ v, scores.residual, 0.0, 0.0, False)
    computed = self.logits(part, q, k)
    p, w, total = scores.probabilities, scores.weights, scores.total
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
      usable = visible & np.isfinite(scores.logits)
      s = np.where(usable, scores.logits, 0.0)
      e = np.where(usable, computed.error, 0.0)
      peak = np.max(np.where(usable, np.abs(s) + e, 0.0), axis=1, keepdims=True)
      chain = self.rescales(np.where(usable, s, -np.inf), e)
      reach = np.where(usable, scores.peak - s, 0.0) + 2.0 * e + 2.0 * _LAZY_PEAK
      units = _EXP_UNITS_PER_X * reach
      units = units + (chain + 1.0) * (_EXP_UNITS_PER_PEAK * peak + _EXP_UNITS + 1.0)
      eta = np.where(usable, np.expm1((e + _U32 * units) * (1.0 + 2.0**-10)), 0.0)
      shared = p * eta
      # 2^-50 a term: float64's own exponentials, sums and quotients
      shared = shared + p * (2.0**-50 + 2.0**-52 * (reach + peak))
      mean_eta = shared.sum(axis=1, keepdims=True)

      magnitude = np.abs(np.where(np.isfinite(v), v, 0.0))
      spread, moved = p @ magnitude, shared @ magnitude
      out = visible_product(p, v, visible)
      size = np.abs(np.where(np.isfinite(out), out, 0.0))
      rounding = self.p_format.unit_roundoff if self.p_format.precision < 24 else 0.0
      smallest = max(_VANISHING_WEIGHT, 2.0 ** (self.p_format.min_subnormal_exponent - 1))
      lost = smallest * (visible @ magnitude + visible.sum(axis=1, keepdims=True) * size) / total
      relative = rounding + self.value_growth + self.total_growth + mean_eta
      shift = moved + mean_eta * size + rounding * (spread + size)
      shift = shift + self.value_growth * spread + self.total_growth * size
      largest_eta = np.max(eta, axis=1, keepdims=True)
      shift = shift * (1.0 + relative + largest_eta) + lost
      remaining = 1.0 - (mean_eta + rounding + self.total_growth)
      shift = shift / np.where(remaining > 0, remaining, 1.0)
      shift = shift + p @ self._value_error(v) * (1.0 + relative)
      end = _QUOTIENT_UNITS * (1.0 + self.num_splits) * _U32
      error = shift + end * (size + shift) + MIN_NORMAL

      unknown = ~(remaining > 0)
      unknown |= (visible & (computed.unbounded | computed.may_overflow)).any(axis=1, keepdims=True)
      overflow = (w @ magnitude) * 2.0**8 * (1.0 + relative) >= FLOAT32.max_finite
      # an infinity or NaN counts where its weight is sure not to vanish
      lightest = visible & (p < 2.0**-100)
      special = (~np.isfinite(v)).astype(np.float64)
      in_doubt = (lightest.astype(np.float64) @ special) > 0

      growth = (mean_eta + self.total_growth)[:, 0]
      log_total = np.log(total[:, 0])
      residual = np.where(np.isfinite(scores.residual), scores.residual, 0.0)
      residual_error = -np.log1p(-np.minimum(growth, 0.5)) + _U32 * (
        8.0 * log_total + 4.0 * peak[:, 0] + 2.0 * np.abs(residual) + 4.0
      )
    return self._results(
      part,
      out,
      scores.residual,
      error,
      residual_error,
      unknown | overflow | in_doubt,
      unknown[:, 0] | (growth > 0.5),
    )

  def _value_error(self, v: Float64Array) -> Float64Array:
    """What reading subnormal values of V as zero costs."""
    fmt = float_format(self.problem.value.dtype)
    return Bounded.of_float64(v, fmt, flush_subnormals=self.flush_subnormals).error

  def _results(
    self,
    part: HeadRows,
    out: Float64Array,
    residual: Float64Array,
    error: Float64Array | float,
    residual_error: Float64Array | float,
    unbounded: BoolArray | bool,
    residual_unbounded: BoolArray | bool = False,
  ) -> tuple[Bounded, Bounded]:
    """Both results, exact where a row sees nothing."""
    empty = np.isneginf(residual)
    results = []
    for exact, off, unknown, nothing in (
      (out, error, unbounded, empty[:, None]),
      (residual, residual_error, residual_unbounded, empty),
    ):
      unknown = np.broadcast_to(np.asarray(unknown), exact.shape) & ~nothing
      certain = nothing | ~np.isfinite(exact) | unknown
      results.append(
        Bounded(
          exact,
          np.where(certain, 0.0, off),
          np.zeros(exact.shape, np.bool_),
          unknown | np.isposinf(np.abs(exact)) & ~nothing,
        )
      )
    return results[0].round(self.out_format.dtype), results[1]


def operand_format_of(p_dtype: npt.DTypeLike) -> FloatFormat:
  """Format of the probabilities.

  Raises:
    ValueError: float64 or unknown.
  """
  return operand_format("p", float_format(p_dtype, name="p_dtype").dtype)


def attention_error_bound(
  query: npt.ArrayLike,
  key: npt.ArrayLike,
  value: npt.ArrayLike,
  bias: npt.ArrayLike | None = None,
  mask: npt.ArrayLike | None = None,
  *,
  out_dtype: npt.DTypeLike,
  p_dtype: npt.DTypeLike | None = None,
  accumulate: Accumulate = "ieee",
  accumulation_chunk: int | None = None,
  block_kv: int | None = None,
  num_splits: int = 1,
  flush_subnormals: bool = True,
  **options: Unpack[AttentionOptions],
) -> tuple[Float64Array, Float64Array]:
  """Elementwise bounds on |kernel - flash_attention_exact(...)|, for out and residual.

  For the online softmax with float32 accumulators, in blocks and splits of the
  keys, and for the plain one. Per query, with p_j the probabilities, o the
  output and everything that is not said in float32:

  1. Logits: e_j from `bounded_matmul`, `Bounded.multiply` by the scale,
     `Bounded.add` of the bias; with a cap `Bounded.divide`, 8·2^-24 for tanh,
     whose slope is at most 1, and `Bounded.multiply`.
  2. Weights. Key j ends with the weight exp(s_j - m)·exp(m - m')···, one factor
     for its block and one for each new peak after it. In exact arithmetic the
     peaks drop out, whatever they are, so only roundings count: with R
     rescalings, M the largest logit in magnitude and X_j the distance of s_j
     from the last peak (and twice 5.55 for peaks that lag),

         η_j = exp(e_j + 2^-24·(3.25·X_j + (R + 1)·(2·M + 5))) - 1

     for exponentials within 2 ulp, their arguments, and a product each. The
     constants are derived beside their definitions; R is `rescales`. A weight
     has the same η_j in both sums.
  3. Sums: weights of relative error α_j in Σ w_j·v_j and β_j in Σ w_j move the
     quotient by at most Σ_j p_j·(|α_j|·|v_j| + |β_j|·|o|) / (1 - Σ p_j·|β_j|),
     where α adds to η the rounding of the probabilities to `p_dtype` and γ of
     the second product's sum, and β adds γ of the sum of the weights, and the
     rounding too, for kernels that add up what they have rounded.
  4. The quotient, 5·2^-24 and as much for each split that is merged, then
     `Bounded.round`.

  The residual m + log Σ w_j is off by -log(1 - Σ p_j·β_j) (without the
  rounding of the probabilities) and by float32's roundings of its parts.

  It is a worst case: for a long sequence far above what roundings of random
  sign add up to, so faults of that size need a short one to show.

  Args:
    query: As in `flash_attention_exact`, float32 or narrower; as all others but:
    key: [B, S, K, H].
    value: [B, S, K, Hv].
    bias: What broadcasts to [B, N, T, S].
    mask: bool, the same.
    out_dtype: Dtype of the kernel's result.
    p_dtype: Dtype of the probabilities in the second product; None: that of
      `value`.
    accumulate: How both products are summed, as in `matmul_error_bound`.
    accumulation_chunk: Keys summed on their own in the second product.
    block_kv: Keys of a block; None holds for every blocking, and costs
      sharpness only in rows whose logits grow along the keys.
    num_splits: Parts of the keys that are merged at the end.
    flush_subnormals: Whether subnormal float32 values may be replaced by zero.
    **options: `AttentionOptions`.

  Returns:
    float64 [B, T, N, Hv] and [B, T, N]. 0 where a query sees nothing: out is 0
    and the residual -inf then. Infinite where nothing is promised.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  problem = AttentionProblem.create(query, key, value, bias, mask, options)
  model = AttentionModel.create(
    problem,
    out_dtype=out_dtype,
    p_dtype=p_dtype,
    accumulate=accumulate,
    accumulation_chunk=accumulation_chunk,
    block_kv=block_kv,
    num_splits=num_splits,
    flush_subnormals=flush_subnormals,
  )
  out, residual = np.zeros(problem.out_shape), np.zeros(problem.out_shape[:3])
  for part in problem.head_rows():
    bounded_out, bounded_residual = model.evaluate(part)
    out[part.query_index] = bounded_out.bound
    residual[part.query_index] = bounded_residual.bound
  return out, residual
