"""Gradients of attention in float64."""

from typing import NamedTuple, Unpack

import numpy as np
import numpy.typing as npt

from reference.attention.forward import softmax_scores, visible_product
from reference.attention.problem import AttentionOptions, AttentionProblem
from reference.formats import Float64Array, to_float64
from reference.gradients import summed_to


class AttentionGradients(NamedTuple):
  """Gradients with respect to attention's operands, each of its operand's shape."""

  query: Float64Array
  key: Float64Array
  value: Float64Array
  bias: Float64Array | None


def flash_attention_gradients(
  query: npt.ArrayLike,
  key: npt.ArrayLike,
  value: npt.ArrayLike,
  d_out: npt.ArrayLike,
  bias: npt.ArrayLike | None = None,
  mask: npt.ArrayLike | None = None,
  *,
  d_residual: npt.ArrayLike | None = None,
  **options: Unpack[AttentionOptions],
) -> AttentionGradients:
  """Gradients of `flash_attention_exact`, every stage in float64.

      P_ij = exp(s_ij - L_i),    dV = Pᵀ·dO,    dP = dO·Vᵀ
      dS = P ⊙ (dP - rowsum(dO ⊙ O) + dL),    dZ = dS ⊙ (1 - tanh²(z / c)) with a cap, else dS
      dQ = scale·dZ·K,    dK = scale·dZᵀ·Q,    dbias = Σ dZ over what it was broadcast along

  dK and dV add up over the query heads that read a key head. Queries that see
  nothing and keys that are not seen have zero gradients, whatever they hold.

  Args:
    query: As in `flash_attention_exact`, as all others but:
    key: [B, S, K, H].
    value: [B, S, K, Hv].
    d_out: dO, [B, T, N, Hv].
    bias: What broadcasts to [B, N, T, S].
    mask: bool, the same.
    d_residual: dL, [B, T, N]; None: 0.
    **options: `AttentionOptions`.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  problem = AttentionProblem.create(query, key, value, bias, mask, options)
  upstream = to_float64(d_out, name="d_out")
  if upstream.shape != problem.out_shape:
    raise ValueError(f"d_out.shape={upstream.shape}: expected {problem.out_shape}")
  of_residual = np.zeros(problem.out_shape[:3])
  if d_residual is not None:
    of_residual = to_float64(d_residual, name="d_residual")
    if of_residual.shape != problem.out_shape[:3]:
      raise ValueError(f"d_residual.shape={of_residual.shape}: expected {problem.out_shape[:3]}")
  d_query, d_key, d_value = (
    np.zeros(array.shape) for array in (problem.query, problem.key, problem.value)
  )
  batch, seq_q, heads, _ = problem.query.shape
  d_bias = None
  if problem.bias is not None:
    d_bias = np.zeros((batch, heads, seq_q, problem.key.shape[1]))
  for part in problem.head_rows():
    q, k, v = problem.operands(part)
    scores = softmax_scores(problem, part, q, k)
    p, visible = scores.probabilities, part.visible
    used = np.any(visible, axis=1)
    d_o = np.where(used[:, None], upstream[part.query_index], 0.0)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
      out = visible_product(p, v, visible)
      along = np.sum(d_o * out, axis=1, keepdims=True)
      d_l = of_residual[part.query_index][:, None]
      d_s = p * (np.matmul(d_o, v.T) - along + d_l)
      if problem.soft_cap is not None:
        d_s = d_s * (1.0 - np.tanh(scores.uncapped / problem.soft_cap) ** 2)
      # a weight of exactly 0 has no slope, and what is not visible is not there
      d_z = np.where(visible & (p != 0), d_s, 0.0)
    d_query[part.query_index] = visible_product(d_z, k, visible) * problem.scale
    d_key[part.key_index] += visible_product(d_z.T, q, visible.T) * problem.scale
    d_value[part.key_index] += visible_product(p.T, d_o, visible.T)
    if d_bias is not None:
      d_bias[part.batch, part.head, part.rows] = d_z
  shaped = None
  if d_bias is not None and problem.bias_shape is not None:
    shaped = summed_to(d_bias, problem.bias_shape)
  return AttentionGradients(d_query, d_key, d_value, shaped)
