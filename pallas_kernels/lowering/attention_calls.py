"""flash_attention forward as a call of attention/portable."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from hw_profiles import AttentionConfig, AttentionProblem
from pallas_kernels import arguments
from pallas_kernels.attention import portable
from pallas_kernels.attention.masks import BandRule
from pallas_kernels.attention.operands import AttentionOperands
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.lowering.calls import KernelCall, check_config, options_of, sizes_of


def flash_attention(
  sizes: Mapping[str, int], dtype: jnp.dtype, config: Any, options: Mapping[str, Any]
) -> KernelCall:
  """Options: `is_causal`, `scale`, `logits_soft_cap`."""
  chosen = options_of(
    "flash_attention", options, {"is_causal": False, "scale": None, "logits_soft_cap": None}
  )
  batch, seq_q, seq_kv, heads, kv_heads, head_dim = sizes_of(
    "flash_attention", sizes, ("batch", "seq_q", "seq_kv", "heads", "kv_heads", "head_dim")
  )
  check_config("flash_attention", config, AttentionConfig, ("block_q", "block_kv"))
  if heads % kv_heads:
    raise ValueError(f"shapes: heads={heads} is no multiple of kv_heads={kv_heads}")
  causal = chosen["is_causal"]
  problem = AttentionProblem(
    batch=batch,
    seq_q=seq_q,
    seq_kv=seq_kv,
    heads=heads,
    kv_heads=kv_heads,
    head_dim=head_dim,
    causal=causal,
    dtype=dtype.name,
  )
  scale = chosen["scale"]
  rule = AttentionRule(
    scale=1.0 / math.sqrt(head_dim) if scale is None else scale,
    soft_cap=chosen["logits_soft_cap"],
    band=BandRule(right=0 if causal else None),
    precision=arguments.precision(None, dtype),
  )
  keys = jax.ShapeDtypeStruct((batch, seq_kv, kv_heads, head_dim), dtype)

  def function(query: jax.Array, key: jax.Array, value: jax.Array) -> Any:
    operands = AttentionOperands(query, key, value)
    return portable.attention(rule, operands, config=config, interpret=False)

  return KernelCall(
    op="flash_attention",
    problem=problem,
    config=config,
    function=function,
    arguments=(jax.ShapeDtypeStruct((batch, seq_q, heads, head_dim), dtype), keys, keys),
  )
