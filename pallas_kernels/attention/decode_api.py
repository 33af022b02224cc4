"""The public `decode_attention`."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hw_profiles import DecodeConfig
from pallas_kernels import arguments, dispatch, sharding
from pallas_kernels.attention import decode_implementations
from pallas_kernels.attention.masks import BandRule
from pallas_kernels.attention.operands import DecodeOperands
from pallas_kernels.attention.request import (
  DecodeRequest,
  Window,
  check_config,
  check_heads,
  check_operands,
  finite_number,
  integers,
  limiting,
  soft_cap,
  window_sides,
)
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.batching import batched
from pallas_kernels.device import target_device

_ARRAYS = ("query", "key_cache", "value_cache")


def make_request(
  query: Any,
  key_cache: Any,
  value_cache: Any,
  lengths: Any,
  *,
  scale: Any,
  local_window_size: Window,
  logits_soft_cap: Any,
  num_splits: Any,
  page_table: Any,
  precision: Any,
  config: DecodeConfig | None,
  implementation: str | None,
) -> tuple[DecodeRequest, DecodeOperands]:
  """Check the arguments of `decode_attention`; the request, and operands as kernels take them.

  Raises:
    ValueError: an argument is wrong; the message names it, the value got, what
      was expected and what would work.
  """
  arguments.check_array("query", query, min_ndim=3)
  paged = page_table is not None
  cache = "[pages, page_size, K, {}]" if paged else "[B, S, K, {}]"
  dtype = check_operands(
    tuple(zip(_ARRAYS, (query, key_cache, value_cache), strict=True)),
    ndims=(3 if len(query.shape) == 3 else 4, 4, 4),
    layouts=("[B, N, H] or [B, T, N, H]", cache.format("H"), cache.format("Hv")),
  )
  check_heads(query, key_cache, value_cache, names=("key_cache", "value_cache"))
  batch, head_dim = query.shape[0], query.shape[-1]
  if paged:
    if isinstance(page_table, (list, tuple)):
      page_table = np.asarray(page_table)
    arguments.check_array("page_table", page_table, min_ndim=2)
    capacity = page_table.shape[1] * key_cache.shape[1]
  else:
    capacity = key_cache.shape[1]
    if key_cache.shape[0] != batch:
      raise ValueError(
        f"query has {batch} sequences and key_cache {key_cache.shape[0]}: expected the same, or a"
        " page_table with a cache [pages, page_size, K, H]"
      )
  queries = 1 if len(query.shape) == 3 else query.shape[1]
  left = limiting(window_sides(local_window_size)[0], seq_q=queries, seq_kv=capacity)
  given_lengths = lengths
  lengths = integers("lengths", lengths, (batch,), largest=capacity)
  if paged:
    given_table = page_table
    page_table = integers("page_table", page_table, (batch, page_table.shape[1]))
    reach = None if left is None else left + queries
    _check_pages(given_table, given_lengths, cache_shape=key_cache.shape, reach=reach)
  if num_splits is not None and (
    isinstance(num_splits, bool) or not isinstance(num_splits, int) or num_splits < 1
  ):
    raise ValueError(
      f"num_splits={num_splits!r}: expected an int of at least 1, or None for the planner's choice"
    )
  arguments.check_implementation(implementation)
  check_config(config, DecodeConfig, "DecodeConfig(64, num_splits=8)")
  arguments.check_one_split(num_splits, config)
  request = DecodeRequest(
    op="decode_attention",
    dtype=dtype,
    rule=AttentionRule(
      scale=(head_dim**-0.5 if head_dim else 1.0)
      if scale is None
      else finite_number("scale", scale),
      soft_cap=soft_cap(logits_soft_cap),
      band=BandRule(left=left, right=0, bottom_right=True),
      precision=arguments.precision(precision, dtype),
    ),
    num_splits=num_splits,
    config=config,
    implementation=implementation,
  )
  return request, DecodeOperands(
    query=query,
    key=key_cache,
    value=value_cache,
    lengths=lengths,
    page_table=page_table,
  )


def _check_pages(
  page_table: Any, lengths: Any, *, cache_shape: Sequence[int], reach: int | None
) -> None:
  """Raises ValueError where a page that a sequence needs is not in the cache.

  Only where both are known when traced, being NumPy's or lists: which entries are
  needed the lengths say, and the others may hold anything.

  Args:
    page_table: [B, P].
    lengths: [B], from 0 to P·page_size.
    cache_shape: [pages, page_size, K, H].
    reach: Last keys that are seen; None: all.
  """
  if not isinstance(page_table, np.ndarray) or not isinstance(lengths, (np.ndarray, list, tuple)):
    return
  pages, page_size = cache_shape[:2]
  ends = np.asarray(lengths)[:, None]
  starts = np.zeros_like(ends) if reach is None else np.maximum(ends - reach, 0)
  slots = np.arange(page_table.shape[1]) * page_size
  is_needed = (slots + page_size > starts) & (slots < ends)
  wrong = np.argwhere(is_needed & ((page_table < 0) | (page_table >= pages)))
  if wrong.size:
    row, entry = wrong[0]
    raise ValueError(
      f"page_table[{row}, {entry}]={page_table[row, entry]}: expected a page of key_cache, which"
      f" has {pages}; sequence {row} needs it for its {ends[row, 0]} keys"
    )


def _described(request: DecodeRequest, operands: DecodeOperands) -> str:
  """The call in one line, for `explain`."""
  parts = [arguments.describe_array(x) for x in operands if x is not None]
  if request.rule.band.left is not None:
    parts.append(f"window={request.rule.band.left}")
  if request.rule.soft_cap is not None:
    parts.append(f"logits_soft_cap={request.rule.soft_cap}")
  return ", ".join(parts)


def _as_shapes(operands: DecodeOperands) -> DecodeOperands:
  """The shapes of the arrays that kernels get: a row of queries, one batch of pages."""

  def struct(x: Any, shape: tuple[int, ...]) -> Any:
    return None if x is None else jax.ShapeDtypeStruct(shape, x.dtype)

  query, key, value, lengths, table = operands
  query_shape = tuple(query.shape)
  if len(query_shape) == 3:
    query_shape = (query_shape[0], 1, *query_shape[1:])
  lead = () if table is None else (1,)
  return DecodeOperands(
    struct(query, query_shape),
    struct(key, (*lead, *key.shape)),
    struct(value, (*lead, *value.shape)),
    lengths,
    table,
  )


def _explain(
  query: Any, key_cache: Any, value_cache: Any, lengths: Any, **options: Any
) -> dispatch.Explanation:
  """What `decode_attention(query, key_cache, value_cache, lengths, ...)` would run."""
  options.pop("return_residual")
  query, key_cache, value_cache = (
    arguments.as_array(name, x)
    for name, x in zip(_ARRAYS, (query, key_cache, value_cache), strict=True)
  )
  request, operands = make_request(query, key_cache, value_cache, lengths, **options)
  device = target_device()
  shapes = _as_shapes(operands)
  choice = decode_implementations.choose(request, shapes, device)
  notes: tuple[str, ...] = ()
  if shapes.sizes.is_empty:
    notes = ("no pair of a query and a key: the result is empty, or zeros",)
  return choice.explanation(request.op, _described(request, operands), device, *notes)


@jax.custom_vjp
def _not_differentiable(x: jax.Array) -> jax.Array:
  return x


def _refuse_gradient(x: jax.Array) -> Any:
  raise NotImplementedError(
    "decode_attention has no gradient: flash_attention(..., is_causal=True, causal_alignment="
    '"bottom_right", key_value_seq_lengths=lengths) computes the same and has one'
  )


_not_differentiable.defvjp(_refuse_gradient, lambda _, d: (d,))


@dispatch.explained_by(_explain)
def decode_attention(
  query: jax.Array,
  key_cache: jax.Array,
  value_cache: jax.Array,
  lengths: jax.Array,
  *,
  scale: float | None = None,
  local_window_size: Window = None,
  logits_soft_cap: float | None = None,
  num_splits: int | None = None,
  page_table: jax.Array | None = None,
  precision: Any = None,
  return_residual: bool = False,
  config: DecodeConfig | None = None,
  implementation: str | None = None,
) -> Any:
  """O = softmax(logits)·V of the newest queries of each sequence on its key/value cache.

      L = log Σ_p exp(L_p),    O = Σ_p exp(L_p - L)·O_p     p the parts of a sequence's keys

  with L_p and O_p as `flash_attention` defines them, of one part. The whole is
  what that computes with `is_causal=True`, `causal_alignment="bottom_right"`
  and `key_value_seq_lengths=lengths`: the last query is at key lengths - 1. A
  sequence of length 0 gives 0, with a residual of -inf. Unused slots and pages
  have no effect, whatever they hold.

  The `num_splits` parts are whole blocks, merged in an order that their number
  and the shapes of one sequence fix: the bits of a sequence depend on its own
  keys, the config and `num_splits`, not on the rest of the batch.

  Args:
    query: [B, N, H], or [B, T, N, H] for T queries a sequence; bfloat16,
      float16, float32 or float64.
    key_cache: [B, S, K, H], N a multiple of K; with a page table
      [pages, page_size, K, H].
    value_cache: The same with Hv.
    lengths: [B] integers: keys in use, the queries' own included; checked and
      counted as in `flash_attention`, from 0 to S, with a page table to
      P·page_size.
    scale: A finite number; None: 1 / sqrt(H).
    local_window_size: As in `flash_attention`; no query sees later keys.
    logits_soft_cap: c, a number above 0; or None.
    num_splits: Parts that keys are cut into; None: the config's, or as many as
      the planner finds fastest. A config with another number is an error.
    page_table: [B, P] integers: slot j of a sequence is slot j % page_size of
      page page_table[b, j // page_size]. Entries that no length needs may hold
      anything; the others are checked to be pages of the cache where table and
      lengths are lists or NumPy arrays.
    precision: For float32 operands, a `jax.lax.PrecisionLike`; None computes to
      float32 accuracy, never TF32.
    return_residual: Whether to return the log-sum-exp, too.
    config: Tile sizes; None: a tuned one, else the planner's choice.
    implementation: As in `flash_attention`.

  Returns:
    The query's shape with Hv for H, in its dtype; with `return_residual` also
    the float32 log-sum-exp of that shape without H.

  Raises:
    ValueError: an argument is wrong.
    hw_profiles.InfeasibleTileError: `config` does not fit the device; not of
      "interpret", which runs any tile (`explain` says which no GPU would).
    NotImplementedError: the implementation asked for cannot run this call, or
      it is differentiated.

  Sources: parts of the keys that are merged by their log-sum-exp are
  Flash-Decoding's (Dao, Haziza, Massa and Sizov, 2023), pages PagedAttention's
  (Kwon et al., arXiv:2309.06180).
  """
  for name, array in zip(_ARRAYS, (query, key_cache, value_cache), strict=True):
    arguments.require_values(name, array)
  query, key_cache, value_cache = (
    arguments.as_array(name, x)
    for name, x in zip(_ARRAYS, (query, key_cache, value_cache), strict=True)
  )
  request, operands = make_request(
    query,
    key_cache,
    value_cache,
    lengths,
    scale=scale,
    local_window_size=local_window_size,
    logits_soft_cap=logits_soft_cap,
    num_splits=num_splits,
    page_table=page_table,
    precision=precision,
    config=config,
    implementation=implementation,
  )
  if not isinstance(return_residual, bool):
    raise ValueError(f"return_residual={return_residual!r}: expected True or False")
  query, key, value = (_not_differentiable(x) for x in operands[:3])
  one_query = query.ndim == 3
  if page_table is not None:
    key, value = key[None], value[None]
  operands = operands._replace(query=query[:, None] if one_query else query, key=key, value=value)
  leaves, structure = jax.tree.flatten(operands)

  def run(*flat: jax.Array) -> tuple[jax.Array, jax.Array]:
    return decode_implementations.run(request, jax.tree.unflatten(structure, flat))

  out, residual = batched(run, *sharding.vary_together(*leaves))
  residual = jnp.swapaxes(residual, 1, 2)
  if one_query:
    out, residual = out[:, 0], residual[:, 0]
  return (out, residual) if return_residual else out
