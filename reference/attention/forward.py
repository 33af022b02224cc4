"""The definition of attention in float64."""

import dataclasses
from typing import Any, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt

from reference.attention.problem import AttentionOptions, AttentionProblem, HeadRows
from reference.bounded import BoolArray
from reference.formats import Float64Array, float_format, to_float64
from reference.rounding import round_to


class Attention(NamedTuple):
  """Attention's result.

  Attributes:
    out: [B, T, N, Hv].
    residual: [B, T, N], natural logarithm of the sum of exp(logits).
  """

  out: npt.NDArray[Any]
  residual: npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Scores:
  """Logits and softmax of some queries of one head, [t, S] each unless stated.

  Attributes:
    uncapped: scale·q·k + bias.
    logits: With the soft cap, -inf where nothing is visible.
    weights: exp(logits - peak); 0 where nothing is visible.
    peak: [t, 1], the largest logit; 0 for a row that sees nothing.
    total: [t, 1], the sum of the weights; 1 for a row that sees nothing.
    probabilities: weights / total.
    residual: [t], peak + log(total); -inf for a row that sees nothing.
  """

  uncapped: Float64Array
  logits: Float64Array
  weights: Float64Array
  peak: Float64Array
  total: Float64Array
  probabilities: Float64Array
  residual: Float64Array


def visible_product(
  weights: Float64Array, values: Float64Array, visible: BoolArray
) -> Float64Array:
  """weights·values, [t, S] by [S, F], over visible pairs only.

  The weights are 0 elsewhere, which is not enough where a value is an infinity
  or NaN.
  """
  special = np.logical_not(np.all(np.isfinite(values), axis=1))
  with np.errstate(invalid="ignore", over="ignore", under="ignore"):
    product = np.matmul(weights, np.where(special[:, None], 0.0, values))
    for key in np.flatnonzero(special):
      term = weights[:, key, None] * values[key]
      product = product + np.where(visible[:, key, None], term, 0.0)
  return np.asarray(product)


def softmax_scores(
  problem: AttentionProblem, part: HeadRows, q: Float64Array, k: Float64Array
) -> Scores:
  """Logits and softmax of the queries of `part`."""
  bias = problem.bias_of(part)
  with np.errstate(invalid="ignore", over="ignore", under="ignore", divide="ignore"):
    uncapped = np.matmul(q, k.T) * problem.scale
    if bias is not None:
      uncapped = uncapped + to_float64(bias, name="bias")
    cap = problem.soft_cap
    capped = uncapped if cap is None else cap * np.tanh(uncapped / cap)
    logits = np.where(part.visible, capped, -np.inf)
    peak = logits.max(axis=1, keepdims=True, initial=-np.inf)
    # a row of -inf only has nothing that weighs anything
    empty = np.isneginf(peak)
    peak = np.where(empty, 0.0, peak)
    weights = np.where(part.visible, np.exp(logits - peak), 0.0)
    total = np.where(empty, 1.0, weights.sum(axis=1, keepdims=True))
    residual = np.where(empty, -np.inf, peak + np.log(total))
    return Scores(uncapped, logits, weights, peak, total, weights / total, residual[:, 0])


def flash_attention_exact(
  query: npt.ArrayLike,
  key: npt.ArrayLike,
  value: npt.ArrayLike,
  bias: npt.ArrayLike | None = None,
  mask: npt.ArrayLike | None = None,
  **options: Unpack[AttentionOptions],
) -> Attention:
  """softmax(logits)·V in float64: what errors are measured against.

      z = scale·Q·Kᵀ + bias,    s = c·tanh(z / c) with a soft cap c, else z
      L_i = log Σ_j exp(s_ij),    O_i = Σ_j exp(s_ij - L_i)·V_j       j visible to i

  The cap comes after the bias and before the mask. Query head n reads key head
  ⌊n·K / N⌋. `AttentionProblem.visible` says which keys a query sees. What a
  slot that it does not see holds, NaN or infinity, has no effect on it. A query
  that sees no key, or whose logits are all -inf, has O = 0 and L = -inf; so has
  a query past its sequence's length.

  Args:
    query: [B, T, N, H], any real dtype.
    key: [B, S, K, H], N a multiple of K.
    value: [B, S, K, Hv].
    bias: What broadcasts to [B, N, T, S]; None: 0.
    mask: bool, the same; None: True.
    **options: `AttentionOptions`.

  Returns:
    float64 out and residual.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  problem = AttentionProblem.create(query, key, value, bias, mask, options)
  out = np.zeros(problem.out_shape)
  residual = np.full(problem.out_shape[:3], -np.inf)
  for part in problem.head_rows():
    q, k, v = problem.operands(part)
    scores = softmax_scores(problem, part, q, k)
    out[part.query_index] = visible_product(scores.probabilities, v, part.visible)
    residual[part.query_index] = scores.residual
  return Attention(out, residual)


def flash_attention(
  query: npt.ArrayLike,
  key: npt.ArrayLike,
  value: npt.ArrayLike,
  bias: npt.ArrayLike | None = None,
  mask: npt.ArrayLike | None = None,
  *,
  out_dtype: npt.DTypeLike | None = None,
  **options: Unpack[AttentionOptions],
) -> Attention:
  """Attention, rounded where the definition rounds: the result to `out_dtype`, once.

  The residual is float32. Nothing else is rounded: that a kernel turns its
  probabilities into the dtype of V before the second product is an error that
  `attention_error_bound` allows, not a part of the definition.

  Args:
    query: As in `flash_attention_exact`, as all others but:
    key: [B, S, K, H].
    value: [B, S, K, Hv].
    bias: What broadcasts to [B, N, T, S].
    mask: bool, the same.
    out_dtype: Dtype of out. None: float64, that is no rounding.
    **options: `AttentionOptions`.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  exact = flash_attention_exact(query, key, value, bias, mask, **options)
  residual = round_to(exact.residual, np.float32)
  if out_dtype is None:
    return Attention(exact.out, residual)
  return Attention(round_to(exact.out, float_format(out_dtype, name="out_dtype").dtype), residual)
