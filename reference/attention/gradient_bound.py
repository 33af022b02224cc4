"""How far a float32 backward pass of attention may be from the float64 gradients."""

import dataclasses
from typing import NamedTuple, Unpack

import numpy as np
import numpy.typing as npt

from reference.accumulation import UNIT_ROUNDOFF, Accumulate, accumulation_depth, gamma
from reference.attention.backward import AttentionGradients, flash_attention_gradients
from reference.attention.bound import TANH_UNITS, AttentionModel, exp_units
from reference.attention.forward import softmax_scores, visible_product
from reference.attention.problem import AttentionOptions, AttentionProblem, HeadRows
from reference.bounded import MIN_NORMAL, BoolArray, Bounded, operand_format
from reference.formats import Float64Array, FloatFormat, float_format, to_float64
from reference.gradients import summed_to

_U32 = UNIT_ROUNDOFF["ieee"]


class BoundedAttentionGradients(NamedTuple):
  """What the gradients of attention may be, in float32 and not rounded to anything yet."""

  query: Bounded
  key: Bounded
  value: Bounded
  bias: Bounded | None


@dataclasses.dataclass
class _Sums:
  """What one gradient's bound adds up: how far its terms may be moved, and their magnitudes."""

  moved: Float64Array
  magnitude: Float64Array
  unbounded: BoolArray

  @classmethod
  def of(cls, shape: tuple[int, ...]) -> "_Sums":
    return cls(np.zeros(shape), np.zeros(shape), np.zeros(shape, np.bool_))

  def bounded(self, exact: Float64Array, growth: float, factor: float) -> Bounded:
    """The sum, times `factor`, of terms whose float32 sum has the growth γ."""
    with np.errstate(invalid="ignore", over="ignore"):
      error = factor * (self.moved + growth * (self.magnitude + self.moved)) * (1.0 + 4.0 * _U32)
      error += np.where(self.magnitude > 0, MIN_NORMAL, 0.0)
    special = ~np.isfinite(exact) | ~np.isfinite(error) | self.unbounded
    return Bounded(
      exact,
      np.where(special, 0.0, error),
      np.zeros(exact.shape, np.bool_),
      special & ~np.isnan(exact),
    )


@dataclasses.dataclass(frozen=True)
class _Part:
  """Gradients of some queries' scores: exact, and how far a kernel's may be off; [t, S] each."""

  p: Float64Array
  p_error: Float64Array
  d_z: Float64Array
  d_z_error: Float64Array
  doubtful: bool


@dataclasses.dataclass(frozen=True)
class _Backward:
  """A backward pass: the forward model whose results it reads, and what it rounds."""

  forward: AttentionModel
  d_out: Float64Array
  d_residual: Float64Array | None
  accumulate: Accumulate
  stored: FloatFormat

  def growth(self, count: int) -> float:
    """γ of a sum of `count` products that need not be exact."""
    depth = accumulation_depth(count, accumulate=self.accumulate) + 1
    return gamma(depth, UNIT_ROUNDOFF[self.accumulate])

  def part(self, part: HeadRows, q: Float64Array, k: Float64Array, v: Float64Array) -> _Part:
    """P and dZ; derived in `bounded_attention_gradients`."""
    problem = self.forward.problem
    scores = softmax_scores(problem, part, q, k)
    out_bound, residual_bound = self.forward.evaluate(part)
    logits = self.forward.logits(part, q, k)
    visible, p = part.visible, scores.probabilities
    used = np.any(visible, axis=1)
    d_o = np.where(used[:, None], self.d_out[part.query_index], 0.0)
    d_l = np.zeros((len(q), 1))
    if self.d_residual is not None:
      d_l = self.d_residual[part.query_index][:, None]
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
      sums = np.where(np.isfinite(scores.residual), scores.residual, 0.0)[:, None]
      s = np.where(visible & np.isfinite(scores.logits), scores.logits, 0.0)
      e = np.where(visible, logits.error, 0.0)
      sums_error = residual_bound.error[:, None] + _U32 * np.abs(sums)
      units = exp_units(np.abs(s - sums) + e, np.maximum(np.abs(s) + e, np.abs(sums)))
      eta = np.expm1((e + sums_error + _U32 * units) * (1.0 + 2.0**-10))
      p_error = np.where(visible, p * eta + MIN_NORMAL, 0.0)

      out = visible_product(p, v, visible)
      d_p = np.matmul(d_o, v.T)
      along = np.sum(d_o * out, axis=1, keepdims=True)
      growth = self.growth(v.shape[1])
      d_o_abs, out_reach = np.abs(d_o), np.abs(out) + out_bound.error
      d_p_error = growth * np.matmul(d_o_abs, np.abs(v).T)
      along_error = np.sum(d_o_abs * (out_bound.error + growth * out_reach), axis=1, keepdims=True)
      t = d_p - along + d_l
      t_size = np.abs(d_p) + np.abs(along) + np.abs(d_l)
      t_error = d_p_error + along_error
      t_error = t_error + 2.0 * _U32 * (t_size + t_error)
      d_z = p * t
      error = p_error * (np.abs(t) + t_error) + p * t_error
      error = error + _U32 * (np.abs(d_z) + error)
      if problem.soft_cap is not None:
        ratio = np.tanh(scores.uncapped / problem.soft_cap)
        slope = 1.0 - ratio**2
        off = np.minimum(e / problem.soft_cap + TANH_UNITS * _U32, 2.0)
        slope_error = 2.0 * np.abs(ratio) * off + off**2 + 2.0 * _U32
        error = slope * error + (np.abs(d_z) + error) * (slope_error + _U32)
        d_z = d_z * slope
      live = visible & (p != 0)
      # a weight that vanishes in the definition may be a tiny one here
      error = np.where(visible, error, 0.0)
      d_z = np.where(live, d_z, 0.0)
      doubtful = bool(np.any(out_bound.unbounded) | np.any(residual_bound.unbounded))
      doubtful |= not bool(np.isfinite(d_z).all() and np.isfinite(error).all())
      return _Part(p, p_error, d_z, error, doubtful)

  def rounded(self, size: Float64Array, error: Float64Array) -> Float64Array:
    """The error once values of that size are rounded to what the second products read."""
    if self.stored.precision >= 24:
      return error
    smallest = max(MIN_NORMAL, 2.0 ** (self.stored.min_subnormal_exponent - 1))
    lost = np.where((size > 0) | (error > 0), smallest, 0.0)
    return np.asarray(error + self.stored.unit_roundoff * (size + error) + lost)

  def overflows(self, found: _Part) -> bool:
    """Whether dZ may be past what it is rounded to."""
    reach = np.abs(found.d_z) + found.d_z_error
    return bool(np.any(reach >= self.stored.overflow_threshold))


def bounded_attention_gradients(
  query: npt.ArrayLike,
  key: npt.ArrayLike,
  value: npt.ArrayLike,
  d_out: npt.ArrayLike,
  bias: npt.ArrayLike | None = None,
  mask: npt.ArrayLike | None = None,
  *,
  d_residual: npt.ArrayLike | None = None,
  out_dtype: npt.DTypeLike | None = None,
  stored_dtype: npt.DTypeLike | None = None,
  accumulate: Accumulate = "ieee",
  block_kv: int | None = None,
  num_splits: int = 1,
  flush_subnormals: bool = True,
  **options: Unpack[AttentionOptions],
) -> BoundedAttentionGradients:
  """What a float32 backward pass may give for `flash_attention_gradients`.

  The pass reads Q, K, V, dO and what the forward pass stored: O in `out_dtype`
  and L in float32, both within `attention_error_bound`. It computes

      P = exp(s - L),    D = rowsum(dO ⊙ O),    dZ = P ⊙ (dO·Vᵀ - D + dL) ⊙ (1 - tanh²)

  rounds P and dZ to `stored_dtype`, and sums dV = Pᵀ·dO, dQ = scale·dZ·K and
  dK = scale·dZᵀ·Q in float32, in any order. Errors are carried along as
  magnitudes: with η_ij of one exponential, of the logit's error and of L's,

      e_P = P·η,    e_t = γ·|dO|·|V|ᵀ + |dO|·(e_O + γ·|O|) + roundings
      e_dZ = e_P·(|t| + e_t) + P·e_t + roundings,    t = dO·Vᵀ - D + dL
      e_dQ = scale·((e_dZ + u·|dZ|)·|K| + γ·|dZ|·|K|)    and so on

  with u of `stored_dtype`. dbias sums the unrounded dZ. Where a forward result
  has no bound, or dZ may overflow, its head has none.

  Args:
    query: As in `flash_attention_exact`, float32 or narrower; as all others but:
    key: [B, S, K, H].
    value: [B, S, K, Hv].
    d_out: [B, T, N, Hv], float32 or narrower.
    bias: What broadcasts to [B, N, T, S].
    mask: bool, the same.
    d_residual: [B, T, N]; None: 0.
    out_dtype: Dtype of the O that was stored; None: that of `query`.
    stored_dtype: What P and dZ are rounded to; None: the dtype of `query`.
    accumulate: As in `matmul_error_bound`, for every product.
    block_kv: As in `attention_error_bound`, for the forward pass.
    num_splits: The same.
    flush_subnormals: Whether subnormal float32 values may be replaced by zero.
    **options: `AttentionOptions`.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  exact = flash_attention_gradients(
    query, key, value, d_out, bias, mask, d_residual=d_residual, **options
  )
  problem = AttentionProblem.create(query, key, value, bias, mask, options)
  upstream = np.asarray(d_out)
  operand_format("d_out", upstream.dtype)
  dtype = problem.query.dtype
  forward = AttentionModel.create(
    problem,
    out_dtype=dtype if out_dtype is None else out_dtype,
    p_dtype=None,
    accumulate=accumulate,
    accumulation_chunk=None,
    block_kv=block_kv,
    num_splits=num_splits,
    flush_subnormals=flush_subnormals,
  )
  backward = _Backward(
    forward,
    to_float64(upstream, name="d_out"),
    None if d_residual is None else to_float64(d_residual, name="d_residual"),
    accumulate,
    float_format(dtype if stored_dtype is None else stored_dtype, name="stored_dtype"),
  )
  return _bounded(problem, backward, exact)


def _bounded(
  problem: AttentionProblem, backward: _Backward, exact: AttentionGradients
) -> BoundedAttentionGradients:
  """Adds up all parts."""
  d_query, d_key, d_value = (
    _Sums.of(array.shape) for array in (problem.query, problem.key, problem.value)
  )
  batch, seq_q, heads, _ = problem.query.shape
  seq_kv = problem.key.shape[1]
  d_bias = None if problem.bias is None else _Sums.of((batch, heads, seq_q, seq_kv))
  for part in problem.head_rows():
    q, k, v = problem.operands(part)
    found = backward.part(part, q, k, v)
    rows, keys = part.query_index, part.key_index
    if found.doubtful or backward.overflows(found):
      d_query.unbounded[rows] = True
      d_key.unbounded[keys] = d_value.unbounded[keys] = True
      if d_bias is not None:
        d_bias.unbounded[part.batch, part.head, part.rows] = True
      continue
    size = np.abs(found.d_z)
    stored = backward.rounded(size, found.d_z_error)
    p_stored = backward.rounded(found.p, found.p_error)
    d_o = np.where(np.any(part.visible, axis=1)[:, None], np.abs(backward.d_out[rows]), 0.0)
    q, k = np.abs(q), np.abs(k)
    d_query.moved[rows] += stored @ k
    d_query.magnitude[rows] += size @ k
    d_key.moved[keys] += stored.T @ q
    d_key.magnitude[keys] += size.T @ q
    d_value.moved[keys] += p_stored.T @ d_o
    d_value.magnitude[keys] += found.p.T @ d_o
    if d_bias is not None:
      d_bias.moved[part.batch, part.head, part.rows] = found.d_z_error
      d_bias.magnitude[part.batch, part.head, part.rows] = size
  along_queries = backward.growth(seq_q * problem.group)
  scale = abs(problem.scale)
  shaped = None
  if d_bias is not None and exact.bias is not None and problem.bias_shape is not None:
    shape = problem.bias_shape
    count = d_bias.moved.size // max(exact.bias.size, 1)
    totals = _Sums(
      summed_to(d_bias.moved, shape),
      summed_to(d_bias.magnitude, shape),
      summed_to(d_bias.unbounded.astype(np.float64), shape) > 0,
    )
    shaped = totals.bounded(exact.bias, gamma(accumulation_depth(count), _U32), 1.0)
  return BoundedAttentionGradients(
    d_query.bounded(exact.query, backward.growth(seq_kv), scale),
    d_key.bounded(exact.key, along_queries, scale),
    d_value.bounded(exact.value, along_queries, 1.0),
    shaped,
  )
