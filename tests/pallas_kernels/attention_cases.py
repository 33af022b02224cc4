"""Attention calls as data: their operands, and results held against derived bounds."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from pallas_kernels import AttentionConfig, dispatch, flash_attention
from reference.accumulation import UNIT_ROUNDOFF
from reference.attention.problem import AttentionProblem

TILE = AttentionConfig(
  16, 16, block_q_dkv=16, block_kv_dkv=16, block_q_dq=16, block_kv_dq=16, num_warps=4
)
IMPLEMENTATIONS = [
  "xla",
  "interpret",
  *(pytest.param(name, id=f"{name}-gpu", marks=pytest.mark.gpu) for name in ("triton", "xla")),
]


@functools.cache
def _quick_options() -> dict[str, Any]:
  """Interpreted kernels are large programs, run once: most of the time is spent optimising them."""
  if jax.default_backend() != "cpu":
    return {}
  options = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
  try:
    jax.jit(lambda x: x, compiler_options=options).lower(0.0).compile()
  except jax.errors.JaxRuntimeError:
    # jaxlib 0.11 has the first only
    del options["xla_cpu_use_fusion_emitters"]
  return options


def quick(function: Any) -> Any:
  """`function` compiled with little effort on a CPU."""
  return jax.jit(function, compiler_options=_quick_options())


@dataclasses.dataclass(frozen=True)
class Case:
  """One call.

  Attributes:
    sizes: Batch, T, S, N, K, H, Hv.
    dtype: Of query, key and value.
    bias: Shape of a bias.
    mask: Shape of a mask; a third of it is False.
    lengths: Used queries and keys of each sequence.
    segments: Number of segments that each sequence is packed from.
    options: All else that `flash_attention` takes.
  """

  name: str
  sizes: tuple[int, int, int, int, int, int, int]
  dtype: str = "float32"
  bias: tuple[int, ...] | None = None
  mask: tuple[int, ...] | None = None
  lengths: tuple[tuple[int, ...], tuple[int, ...]] | None = None
  segments: int | None = None
  options: dict[str, Any] = dataclasses.field(default_factory=dict)

  def __str__(self) -> str:
    return f"{self.name}-{self.dtype}"

  def arrays(self, rng: np.random.Generator) -> dict[str, Any]:
    """Operands by name; those that the case has none of are left out."""
    batch, seq_q, seq_kv, heads, kv_heads, size, value_size = self.sizes

    def normal(*shape: int, dtype: str = self.dtype) -> jax.Array:
      return jnp.asarray(rng.standard_normal(shape), dtype)

    found = {
      "query": normal(batch, seq_q, heads, size),
      "key": normal(batch, seq_kv, kv_heads, size),
      "value": normal(batch, seq_kv, kv_heads, value_size),
    }
    if self.bias is not None:
      found["bias"] = normal(*self.bias, dtype="float32")
    if self.mask is not None:
      found["mask"] = jnp.asarray(rng.random(self.mask) < 2 / 3)
    if self.lengths is not None:
      found["query_seq_lengths"] = jnp.asarray(self.lengths[0], jnp.int32)
      found["key_value_seq_lengths"] = jnp.asarray(self.lengths[1], jnp.int32)
    if self.segments is not None:
      for name, length in (("query_segment_ids", seq_q), ("key_value_segment_ids", seq_kv)):
        ids = np.sort(rng.integers(0, self.segments, (batch, length)), axis=1)
        found[name] = jnp.asarray(ids, jnp.int32)
    return found

  def call(self, implementation: str, **more: Any) -> Any:
    """arrays -> (out, residual)."""
    options = {**self.options, **more}
    if implementation != "xla":
      options.setdefault("config", tile_for(implementation))
    return functools.partial(
      flash_attention, **options, return_residual=True, implementation=implementation
    )


def tile_for(implementation: str) -> AttentionConfig | None:
  """Small blocks for the interpreter, so that there is more than one; else the planner's."""
  return TILE if implementation == "interpret" else None


def numpy_of(arrays: dict[str, Any]) -> dict[str, Any]:
  """The same as NumPy arrays."""
  return {name: np.asarray(x) for name, x in arrays.items()}


def split(case: Case, arrays: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
  """Positional arguments and options as the reference takes them."""
  found = numpy_of(arrays)
  positional = tuple(found.pop(name, None) for name in ("query", "key", "value", "bias", "mask"))
  options = {k: v for k, v in case.options.items() if k != "precision"}
  return positional, {**found, **options}


def accumulates(implementation: str, dtype: str) -> str:
  """How an implementation adds up on this machine."""
  return dispatch.accumulation(implementation, dtype, jax.default_backend())


def assert_inside_bound(
  case: Case, arrays: dict[str, Any], result: tuple[Any, Any], implementation: str
) -> None:
  """Out and residual are within the derived bound of float64."""
  positional, options = split(case, arrays)
  reference.assert_flash_attention_close(
    np.asarray(result[0]),
    *positional,
    residual=np.asarray(result[1]),
    out_dtype=arrays["query"].dtype,
    accumulate=accumulates(implementation, case.dtype),
    **options,
  )


def gradient_bounds(
  case: Case, arrays: dict[str, Any], d_out: Any, implementation: str
) -> dict[str, np.ndarray]:
  """How far gradients of query, key, value and bias may be from the exact ones.

  First-order propagation of every rounding, magnitudes instead of signs, and a
  64th for what is left out. With e the unit roundoff of a float32 sum, u that
  of the operands' dtype, and bounds λ, ε of logits, residual and output:

      |ΔP| <= η·P,     η = λ + ε_L + 2^-24·(4·|s| + 4·|L| + 16)
      |ΔdZ| <= P·(e·(Hv + 2)·|dO|·|V|ᵀ + |dO|·ε_O + e·(Hv + 2)·|dO|·|O|)
               + (η + 2·λ / c + 2^-19)·P·|dP - δ|,     then u·|dZ| where it is rounded
  """
  positional, options = split(case, arrays)
  problem = AttentionProblem.create(*positional, options)
  exact = reference.flash_attention_exact(*positional, **options)
  out_error, residual_error = reference.attention_error_bound(
    *positional,
    out_dtype=case.dtype,
    accumulate=accumulates(implementation, case.dtype),
    **options,
  )
  e = UNIT_ROUNDOFF[accumulates(implementation, case.dtype)]
  e32 = 2.0**-24
  number = jnp.finfo(case.dtype)
  u = float(number.eps) / 2
  tiny = float(number.smallest_subnormal) / 2
  batch, _, seq_kv, heads, _, size, value_size = case.sizes
  bounds = {name: np.zeros(arrays[name].shape) for name in ("query", "key", "value")}
  d_bias = np.zeros((batch, heads, case.sizes[1], seq_kv))
  upstream = np.asarray(d_out, np.float64)
  for part in problem.head_rows():
    q, k, v = problem.operands(part)
    seen = part.visible
    residual = exact.residual[part.query_index][:, None]
    used = np.isfinite(residual)
    d_o = np.where(seen.any(1)[:, None], np.abs(upstream[part.query_index]), 0.0)
    signed = np.where(seen.any(1)[:, None], upstream[part.query_index], 0.0)
    bias = problem.bias_of(part)
    bias = 0.0 if bias is None else np.asarray(bias, np.float64)
    z = problem.scale * q @ k.T + bias
    cap = problem.soft_cap
    s = z if cap is None else cap * np.tanh(z / cap)
    p = np.where(seen & used, np.exp(np.where(seen, s, 0.0) - np.where(used, residual, 0.0)), 0.0)
    lam = e * (size + 3) * abs(problem.scale) * (np.abs(q) @ np.abs(k).T)
    lam = lam + 3 * e32 * np.abs(bias) + (0.0 if cap is None else 16 * e32 * cap)
    finite = np.where(used, np.abs(residual), 0.0)
    l_error = np.where(used, residual_error[part.query_index][:, None], 0.0)
    eta = lam + l_error + e32 * (4 * np.abs(s) + 4 * finite + 16)
    d_p = signed @ v.T
    out = exact.out[part.query_index]
    delta = np.sum(signed * out, 1, keepdims=True)
    in_sum = e * (value_size + 2) * (d_o @ np.abs(v).T)
    in_sum = in_sum + np.sum(d_o * out_error[part.query_index], 1, keepdims=True)
    in_sum = in_sum + e * (value_size + 2) * np.sum(d_o * np.abs(out), 1, keepdims=True)
    slope_error = 0.0 if cap is None else 2 * lam / cap
    d_z = p * np.abs(d_p - delta)
    off = p * in_sum + (eta + slope_error + 2.0**-19) * d_z
    d_bias[part.batch, part.head, part.rows] = off + e32 * 64 * d_z
    off_rounded = np.where(p > 0, off + u * d_z + tiny, 0.0)
    scale = abs(problem.scale)
    rows, columns = q.shape[0] * problem.group, seq_kv
    bounds["query"][part.query_index] = scale * (
      (off_rounded + e * (columns + 4) * d_z) @ np.abs(k)
    )
    bounds["key"][part.key_index] += scale * ((off_rounded + e * (rows + 4) * d_z).T @ np.abs(q))
    of_p = np.where(p > 0, (eta + u + e * (rows + 4)) * p + tiny, 0.0)
    bounds["value"][part.key_index] += of_p.T @ d_o
  if case.bias is not None:
    bounds["bias"] = reference.gradients.summed_to(d_bias, arrays["bias"].shape)
  return {name: bound * (1 + 2.0**-6) for name, bound in bounds.items()}


def assert_gradients_inside_bound(
  case: Case,
  arrays: dict[str, Any],
  d_out: Any,
  actual: dict[str, Any],
  implementation: str,
  *,
  d_residual: Any = None,
) -> None:
  """Every gradient is within `gradient_bounds` and its own rounding of the exact one."""
  positional, options = split(case, arrays)
  exact = reference.flash_attention_gradients(
    *positional[:3],
    np.asarray(d_out),
    *positional[3:],
    d_residual=None if d_residual is None else np.asarray(d_residual),
    **options,
  )
  bounds = gradient_bounds(case, arrays, d_out, implementation)
  for name, gradient in actual.items():
    assert gradient.dtype == arrays[name].dtype
    wanted = np.asarray(getattr(exact, name))
    number = jnp.finfo(gradient.dtype)
    rounding = float(number.eps) / 2 * np.abs(wanted) + float(number.smallest_subnormal)
    allowed = bounds[name] + rounding * (1 + 2.0**-6)
    difference = np.abs(np.asarray(gradient, np.float64) - wanted)
    worst = np.unravel_index(np.argmax(difference - allowed), wanted.shape)
    assert np.all(difference <= allowed), (
      f"d_{name}{list(worst)}: {difference[worst]:.3g} off {wanted[worst]:.3g},"
      f" allowed {allowed[worst]:.3g}"
    )
