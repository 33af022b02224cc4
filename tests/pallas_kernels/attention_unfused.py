"""The accuracy rule: how far attention may be from float64 beside the unfused program.

    e(x) <= 2·e(unfused) + FLOOR[dtype]·ulp,    e(x) = max |x - float64|, over a whole result

The unfused program multiplies 16-bit operands (or float32 ones at float32 accuracy), keeps the
scores in float32, makes its softmax there, rounds the weights to the operands' dtype and
multiplies. An ulp is one of the result's dtype at the largest number of the float64 result.

FLOOR is what the kernels were measured to need, rounded up to a power of 2: of 250 results and
gradients, interpreted and XLA's, at head sizes of 16 to 192 and up to 1000 keys, the worst needed
4.6, dQ in float32 of 16 queries on 1000 keys, and no result of the forward pass needed any. A
backward pass has the weights from the stored log-sum-exp, whose one rounding, half an ulp of a
number of 7, is in every weight of a row; the unfused program has kept its weights. In bfloat16 and
float16, where that is nothing, none needed any: the floor there is half an ulp, as two results on
either side of a tie are apart. On a GPU Triton's exp2 is an approximation of 2 ulp: its forward
pass in float32 needed 8.7 on an H200, 16 queries on 1000 keys, so there the floor is 16.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from attention_cases import Case, quick, split

import reference
from reference.attention.problem import AttentionProblem

FLOOR = {"float32": 8.0, "bfloat16": 0.5, "float16": 0.5}
APPROXIMATE_EXP2_FLOOR = 16.0
DIFFERENTIATED = ("query", "key", "value", "bias")


def attention(case: Case, visible: Any, query: Any, key: Any, value: Any, bias: Any = None) -> Any:
  """[B, T, N, Hv] through scores and weights in memory; `visible` is [B, N, T, S]."""
  group = query.shape[2] // key.shape[2]
  key, value = (jnp.repeat(x, group, axis=2) for x in (key, value))

  def product(formula: str, a: Any, b: Any) -> Any:
    # products of 16-bit numbers are exact in float32
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)
    return jnp.einsum(formula, a, b, precision="highest")

  scores = product("btnh,bsnh->bnts", query, key) * case.options.get(
    "scale", query.shape[3] ** -0.5
  )
  scores = scores if bias is None else scores + bias
  cap = case.options.get("logits_soft_cap")
  scores = scores if cap is None else cap * jnp.tanh(scores / cap)
  scores = jnp.where(visible, scores, -1e30)
  weights = jnp.where(visible, jax.nn.softmax(scores, axis=-1), 0.0).astype(value.dtype)
  return product("bnts,bsnh->btnh", weights, value).astype(query.dtype)


def with_gradients(call: Any) -> Any:
  """(arrays, d_out) -> results by name: out, and d_query, d_key, d_value, d_bias."""

  def run(arrays: dict[str, Any], d_out: Any) -> dict[str, Any]:
    varied = {name: arrays[name] for name in DIFFERENTIATED if name in arrays}
    rest = {name: x for name, x in arrays.items() if name not in varied}
    out, pull = jax.vjp(lambda varied: call(**varied, **rest), varied)
    return {"out": out, **{f"d_{name}": x for name, x in pull(d_out)[0].items()}}

  return quick(run)


def floor(name: str, dtype: str, implementation: str) -> float:
  """The floor of a result: its name is "out" or "d_" and an operand's."""
  if implementation == "triton" and dtype == "float32" and name == "out":
    return APPROXIMATE_EXP2_FLOOR
  return FLOOR[dtype]


class Judged(NamedTuple):
  """A case's operands, and what every implementation's results are held against."""

  arrays: dict[str, Any]
  d_out: Any
  exact: dict[str, Any]
  unfused: dict[str, Any]


_judged: dict[str, tuple[Case, Judged]] = {}


def judged(case: Case) -> Judged:
  """The same for every implementation: computed once."""
  known, found = _judged.get(str(case), (None, None))
  if found is None or known != case:
    found = _judge(case, np.random.default_rng(20260))
    _judged[str(case)] = case, found
  return found


def _judge(case: Case, rng: np.random.Generator) -> Judged:
  arrays = case.arrays(rng)
  batch, seq_q, _, heads, _, _, value_size = case.sizes
  d_out = jnp.asarray(rng.standard_normal((batch, seq_q, heads, value_size)), case.dtype)
  positional, options = split(case, arrays)
  problem = AttentionProblem.create(*positional, options)
  visible = np.stack(
    [[problem.visible(b, n, slice(None)) for n in range(heads)] for b in range(batch)]
  )
  exact = {"out": reference.flash_attention_exact(*positional, **options)[0]}
  gradients = reference.flash_attention_gradients(
    *positional[:3], np.asarray(d_out), *positional[3:], **options
  )
  exact |= {f"d_{name}": x for name, x in gradients._asdict().items() if x is not None}
  floats = {name: x for name, x in arrays.items() if name in DIFFERENTIATED}
  unfused = with_gradients(lambda **x: attention(case, visible, **x))(floats, d_out)
  return Judged(arrays, d_out, exact, unfused)


def needed_floors(case: Case, implementation: str) -> dict[str, float]:
  """What FLOOR would have to be at least for the out and each gradient of a case."""
  arrays, d_out, exact, unfused = judged(case)
  call = case.call(implementation)
  ours = with_gradients(lambda **x: call(**x)[0])(arrays, d_out)
  assert set(ours) == set(unfused) == set(exact)

  def needed(name: str) -> float:
    errors = [
      float(np.max(np.abs(np.asarray(x[name], np.float64) - exact[name]))) for x in (ours, unfused)
    ]
    largest = float(np.max(np.abs(exact[name])))
    return (errors[0] - 2 * errors[1]) / float(reference.ulp(largest, ours[name].dtype))

  return {name: needed(name) for name in exact}
