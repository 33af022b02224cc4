"""The public `flash_attention`."""

from typing import Any

import jax
import jax.numpy as jnp

from hw_profiles import AttentionConfig
from pallas_kernels import arguments, choice, dispatch, sharding
from pallas_kernels.attention import differentiable, implementations
from pallas_kernels.attention.operands import AttentionOperands
from pallas_kernels.attention.request import (
  AttentionRequest,
  Window,
  band_rule,
  broadcast_pairs,
  check_config,
  check_heads,
  check_operands,
  finite_number,
  integers,
  segment_ids,
  soft_cap,
)
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.device import target_device

_ARRAYS = ("query", "key", "value", "bias", "mask")
_LAYOUTS = ("[B, T, N, H]", "[B, S, K, H]", "[B, S, K, Hv]")


def make_request(
  query: Any,
  key: Any,
  value: Any,
  bias: Any,
  mask: Any,
  *,
  scale: Any,
  is_causal: Any,
  causal_alignment: Any,
  query_seq_lengths: Any,
  key_value_seq_lengths: Any,
  local_window_size: Window,
  query_segment_ids: Any,
  key_value_segment_ids: Any,
  logits_soft_cap: Any,
  precision: Any,
  config: AttentionConfig | None,
  implementation: str | None,
) -> tuple[AttentionRequest, AttentionOperands]:
  """Check the arguments of `flash_attention`; the request, and operands as kernels take them.

  Raises:
    ValueError: an argument is wrong; the message names it, the value got, what
      was expected and what would work.
  """
  dtype = check_operands(
    (("query", query), ("key", key), ("value", value)), ndims=(4, 4, 4), layouts=_LAYOUTS
  )
  check_heads(query, key, value)
  batch, seq_q, heads, head_dim = query.shape
  seq_kv = key.shape[1]
  if key.shape[0] != batch:
    raise ValueError(
      f"query has {batch} sequences and key {key.shape[0]}: expected the same; jax.vmap with"
      " in_axes=(0, None, None) shares keys"
    )
  scores = (batch, heads, seq_q, seq_kv)
  if bias is not None:
    bias = broadcast_pairs("bias", bias, scores)
    arguments.check_float("bias", bias)
  if mask is not None:
    mask = broadcast_pairs("mask", mask, scores)
    if mask.dtype != jnp.bool_:
      raise ValueError(
        f"mask is {mask.dtype}: expected bool, True where a query sees a key; additive ones are"
        " bias"
      )
  arguments.check_implementation(implementation)
  check_config(config, AttentionConfig, "AttentionConfig(128, 64, num_stages=2)")
  for name, other in (
    ("query_segment_ids", key_value_segment_ids),
    ("key_value_segment_ids", query_segment_ids),
  ):
    if (
      other is not None
      and {
        "query_segment_ids": query_segment_ids,
        "key_value_segment_ids": key_value_segment_ids,
      }[name]
      is None
    ):
      raise ValueError(f"{name}=None: expected ids too, since the other side has them")
  request = AttentionRequest(
    op="flash_attention",
    dtype=dtype,
    rule=AttentionRule(
      scale=(head_dim**-0.5 if head_dim else 1.0)
      if scale is None
      else finite_number("scale", scale),
      soft_cap=soft_cap(logits_soft_cap),
      band=band_rule(
        is_causal=is_causal,
        alignment=causal_alignment,
        window=local_window_size,
        seq_q=seq_q,
        seq_kv=seq_kv,
      ),
      precision=arguments.precision(precision, dtype),
    ),
    alignment=causal_alignment,
    config=config,
    implementation=implementation,
  )

  def lengths(name: str, value: Any, largest: int) -> Any:
    return None if value is None else integers(name, value, (batch,), largest=largest)

  def ids(name: str, value: Any, size: int) -> Any:
    return None if value is None else segment_ids(name, value, (batch, size))

  return request, AttentionOperands(
    query=query,
    key=key,
    value=value,
    bias=bias,
    mask=mask,
    query_lengths=lengths("query_seq_lengths", query_seq_lengths, seq_q),
    key_lengths=lengths("key_value_seq_lengths", key_value_seq_lengths, seq_kv),
    query_segments=ids("query_segment_ids", query_segment_ids, seq_q),
    key_segments=ids("key_value_segment_ids", key_value_segment_ids, seq_kv),
  )


def describe(request: AttentionRequest, operands: AttentionOperands) -> str:
  """The call in one line, for `explain`."""
  parts = [arguments.describe_array(x) for x in operands[:3]]
  for name, array in zip(AttentionOperands._fields[3:], operands[3:], strict=True):
    if array is not None:
      parts.append(f"{name}={arguments.describe_array(array)}")
  band = request.rule.band
  if not band.is_open:
    parts.append(f"window=({band.left}, {band.right})")
  if request.alignment is not None:
    parts.append(f"causal_alignment={request.alignment!r}")
  if request.rule.soft_cap is not None:
    parts.append(f"logits_soft_cap={request.rule.soft_cap}")
  return ", ".join(parts)


def _explain(
  query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, **options: Any
) -> dispatch.Explanation:
  """What `flash_attention(query, key, value, ...)` would run."""
  options.pop("return_residual")
  arrays = [
    arguments.as_array(name, x) if name != "mask" else x
    for name, x in zip(_ARRAYS, (query, key, value, bias, mask), strict=True)
  ]
  request, operands = make_request(*arrays, **options)
  device = target_device()
  chosen = implementations.choose(request, operands, device)

  def of_gradients() -> choice.Choice:
    back = implementations.for_gradients(request, operands, device)
    return implementations.choose(back, operands, device, table=implementations.BACKWARD)

  note = (
    "no pair of a query and a key: the result is empty, or zeros"
    if operands.sizes.is_empty
    else choice.gradient_note(of_gradients)
  )
  return chosen.explanation(request.op, describe(request, operands), device, note)


@dispatch.explained_by(_explain)
def flash_attention(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  bias: jax.Array | None = None,
  mask: jax.Array | None = None,
  *,
  scale: float | None = None,
  is_causal: bool = False,
  causal_alignment: str | None = None,
  query_seq_lengths: jax.Array | None = None,
  key_value_seq_lengths: jax.Array | None = None,
  local_window_size: Window = None,
  query_segment_ids: jax.Array | None = None,
  key_value_segment_ids: jax.Array | None = None,
  logits_soft_cap: float | None = None,
  precision: Any = None,
  return_residual: bool = False,
  config: AttentionConfig | None = None,
  implementation: str | None = None,
) -> Any:
  """O = softmax(logits)·V, without a score matrix in memory.

      z = scale·Q·Kᵀ + bias,    logits = c·tanh(z / c) with a soft cap c, else z
      L_i = log Σ_j exp(logits_ij),    O_i = Σ_j exp(logits_ij - L_i)·V_j     j visible to i

  Query i sees key j where all of these hold: both are within their sequence's
  length; i' - left <= j <= i' + right, where i' is i plus the shift of the
  alignment; their segment ids are the same; the mask is True. What a slot that
  is not seen holds, NaN or infinity, has no effect. A query that sees nothing
  has O = 0, L = -inf, and zero gradients. Query head n reads key head n·K // N.

  Products and the softmax are float32 (float64 for float64 operands); the
  probabilities are rounded to the operands' dtype for the second product, and O
  once at the end.

  Args:
    query: [B, T, N, H] in bfloat16, float16, float32 or float64; any size, 0 too.
    key: [B, S, K, H], N a multiple of K; the dtype of query.
    value: [B, S, K, Hv].
    bias: What broadcasts to [B, N, T, S], of any of these dtypes; or None.
    mask: bool, what broadcasts to [B, N, T, S]; or None.
    scale: A finite number; None: 1 / sqrt(H).
    is_causal: Whether a query sees no key after its own position.
    causal_alignment: "top_left", query i is at the position of key i;
      "bottom_right", the last query is at the position of the last key, by the
      lengths where there are any. Needed where T != S and there is a causal
      mask or a window; None is "top_left" elsewhere. Without either nothing is
      aligned, and it changes nothing.
    query_seq_lengths: [B] integers, queries in use; None: T. Of a list or NumPy
      array each is checked to be from 0 to T; a JAX array's numbers, which are
      not known when it is traced, count as T where above and as 0 where below.
    key_value_seq_lengths: [B], keys in use; None: S. The same.
    local_window_size: (left, right), keys seen before and after a query's own
      position, None, or as many as there are, for all; an int w means (w, w).
    query_segment_ids: [B, T] integers: a query sees keys of its own id only. They
      are compared as int32: of a list or NumPy array each is checked to be one,
      wider ids in a JAX array count modulo 2^32.
    key_value_segment_ids: [B, S]; either both or none.
    logits_soft_cap: c, a number above 0; or None.
    precision: For float32 operands, a `jax.lax.PrecisionLike`; None computes to
      float32 accuracy, never TF32.
    return_residual: Whether to return L, too.
    config: Tile sizes; None: a tuned one, else the planner's choice.
    implementation: None: the best that can run the call, decided when it is
      traced, for the device that JAX would run it on; or a name from
      `pallas_kernels.names.IMPLEMENTATIONS`. "mosaic_gpu" is the Hopper
      kernel; gradients of its calls come from one, too, unless that lacks
      something (`explain` says which runs).

  Returns:
    O, [B, T, N, Hv] in the dtype of query; with `return_residual` (O, L), L
    float32 [B, T, N].

  Raises:
    ValueError: an argument is wrong.
    hw_profiles.InfeasibleTileError: `config` does not fit the device (a
      ValueError; names the buffer and the nearest config that fits); not of
      "interpret", which runs any tile (`explain` says which no GPU would).
    NotImplementedError: the implementation asked for cannot run this call;
      names those that can.

  Gradients of query, key, value and bias, from those of O and L, are
  reverse-mode through kernels of their own and deterministic; theirs are plain
  JAX, with a score matrix in memory. Forward mode is not supported (JAX says so).

  Sources: the online softmax is Milakov and Gimelshein's (arXiv:1805.02867), the
  order of the loops and the backward pass from L are FlashAttention-2's (Dao,
  arXiv:2307.08691); layout and arguments are `jax.nn.dot_product_attention`'s.
  """
  for name, array in zip(_ARRAYS, (query, key, value, bias, mask), strict=True):
    arguments.require_values(name, array)
  query, key, value, bias = (
    arguments.as_array(name, x) for name, x in zip(_ARRAYS, (query, key, value, bias), strict=False)
  )
  mask = mask if mask is None or isinstance(mask, jax.Array) else jnp.asarray(mask)
  request, operands = make_request(
    query,
    key,
    value,
    bias,
    mask,
    scale=scale,
    is_causal=is_causal,
    causal_alignment=causal_alignment,
    query_seq_lengths=query_seq_lengths,
    key_value_seq_lengths=key_value_seq_lengths,
    local_window_size=local_window_size,
    query_segment_ids=query_segment_ids,
    key_value_segment_ids=key_value_segment_ids,
    logits_soft_cap=logits_soft_cap,
    precision=precision,
    config=config,
    implementation=implementation,
  )
  if not isinstance(return_residual, bool):
    raise ValueError(f"return_residual={return_residual!r}: expected True or False")
  # outside of the custom gradient, so that inside shard_map the gradient of an
  # operand that was the same on all devices is summed over them
  leaves, structure = jax.tree.flatten(operands)
  operands = jax.tree.unflatten(structure, sharding.vary_together(*leaves))
  out, residual = differentiable.attention(request, operands)
  return (out, jnp.swapaxes(residual, 1, 2)) if return_residual else out
