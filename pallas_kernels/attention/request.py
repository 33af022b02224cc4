"""The checked, hashable description of one attention call: all of it but the arrays."""

import dataclasses
import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hw_profiles import AttentionConfig, AttentionProblem, DecodeConfig, DecodeProblem
from hw_profiles.attention.mask import CAUSAL_ALIGNMENTS
from pallas_kernels import arguments
from pallas_kernels.attention.masks import BandRule
from pallas_kernels.attention.operands import AttentionOperands, DecodeOperands
from pallas_kernels.attention.rule import AttentionRule

Window = int | tuple[int | None, int | None] | None


@dataclasses.dataclass(frozen=True)
class AttentionRequest:
  """Options of a call after checking, sizes left out (`vmap` changes them).

  Attributes:
    op: The public function, for messages.
    dtype: Of query, key and value.
    rule: What is computed.
    alignment: `causal_alignment` as given.
    config: The user's config or None.
    implementation: The user's choice or None.
  """

  op: str
  dtype: jnp.dtype
  rule: AttentionRule
  alignment: str | None
  config: AttentionConfig | None
  implementation: str | None

  def problem(self, operands: AttentionOperands, *, backward: bool = False) -> AttentionProblem:
    """The planner's view of this request on operands, or on their shapes.

    Lengths, segments and masks are known only when it runs: the planner counts
    what positions alone leave.
    """
    sizes, band = operands.sizes, self.rule.band
    return AttentionProblem(
      batch=sizes.batch,
      seq_q=sizes.seq_q,
      seq_kv=sizes.seq_kv,
      heads=max(sizes.heads, 1),
      kv_heads=max(sizes.kv_heads, 1),
      head_dim=max(sizes.head_dim, 1),
      value_dim=max(sizes.value_dim, 1),
      window=None if band.is_open else (band.left, band.right),
      causal_alignment=self.alignment,
      dtype=self.dtype.name,
      backward=backward,
    )


@dataclasses.dataclass(frozen=True)
class DecodeRequest:
  """The same of a decode step.

  Attributes:
    op: The public function, for messages.
    dtype: Of query and caches.
    rule: What is computed.
    num_splits: Parts that the keys of a sequence are cut into; None: the
      config's, or the planner's.
    config: The user's config or None.
    implementation: The user's choice or None.
  """

  op: str
  dtype: jnp.dtype
  rule: AttentionRule
  num_splits: int | None
  config: DecodeConfig | None
  implementation: str | None

  def problem(self, operands: DecodeOperands) -> DecodeProblem:
    """The planner's view, with every sequence as long as its cache.

    Steps that are whole pages are what it compares; the portable kernel looks
    up each key's page, so that pages of other sizes are planned as none.
    """
    sizes, page_size = operands.sizes, operands.page_size
    whole_steps = page_size is not None and page_size >= 16 and page_size & (page_size - 1) == 0
    return DecodeProblem(
      batch=sizes.batch,
      seq_kv=sizes.seq_kv,
      heads=max(sizes.heads, 1),
      kv_heads=max(sizes.kv_heads, 1),
      head_dim=max(sizes.head_dim, 1),
      value_dim=max(sizes.value_dim, 1),
      seq_q=max(sizes.seq_q, 1),
      window=self.rule.band.left,
      page_size=page_size if whole_steps else None,
      dtype=self.dtype.name,
    )


def finite_number(name: str, value: Any) -> float:
  """`value` as a float.

  Raises:
    ValueError: it is no finite number known when traced.
  """
  if isinstance(value, np.generic):
    value = value.item()
  if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
    raise ValueError(
      f"{name}={value!r}: expected a finite Python number; where it is an array, multiply the"
      " query by it instead"
      if name == "scale"
      else f"{name}={value!r}: expected a finite Python number"
    )
  return float(value)


def soft_cap(value: Any) -> float | None:
  """`logits_soft_cap` checked; raises ValueError."""
  if value is None:
    return None
  cap = finite_number("logits_soft_cap", value)
  if cap <= 0:
    raise ValueError(f"logits_soft_cap={value!r}: expected a number above 0; None is no cap")
  return cap


def window_sides(value: Window) -> tuple[int | None, int | None]:
  """(left, right) of `local_window_size`; raises ValueError."""
  if value is None:
    return None, None
  sides = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
  whole = all(
    side is None or (isinstance(side, (int, np.integer)) and not isinstance(side, bool))
    for side in sides
  )
  if len(sides) != 2 or not whole or any(side is not None and side < 0 for side in sides):
    raise ValueError(
      f"local_window_size={value!r}: expected an int of at least 0, or a pair (left, right) of"
      " such ints, with None for a side without limit: (None, 0) is causal"
    )
  left, right = (None if side is None else int(side) for side in sides)
  return left, right


def limiting(side: int | None, *, seq_q: int, seq_kv: int) -> int | None:
  """A side of a window, None where it hides no key.

  No query is as far from a key as there are queries and keys. The largest int32, a
  customary "no limit", would overflow where a position is added to it.
  """
  return None if side is None or side >= max(seq_q, seq_kv) else side


def band_rule(
  *, is_causal: Any, alignment: Any, window: Window, seq_q: int, seq_kv: int
) -> BandRule:
  """The band of a call; raises ValueError."""
  if not isinstance(is_causal, (bool, np.bool_)):
    raise ValueError(f"is_causal={is_causal!r}: expected True or False")
  arguments.check_choice("causal_alignment", alignment, CAUSAL_ALIGNMENTS)
  left, right = window_sides(window)
  right = 0 if is_causal else right
  if (left, right) != (None, None) and alignment is None and seq_q != seq_kv:
    what = "is_causal=True" if is_causal else f"local_window_size={window!r}"
    raise ValueError(
      f"causal_alignment=None: {what} with {seq_q} queries and {seq_kv} keys needs"
      ' "top_left", where query i is at the position of key i (what'
      " jax.nn.dot_product_attention does), or"
      ' "bottom_right", where the last query is at the position of the last key (new queries'
      " after a cached prefix)"
    )
  left, right = (limiting(side, seq_q=seq_q, seq_kv=seq_kv) for side in (left, right))
  return BandRule(left=left, right=right, bottom_right=alignment == "bottom_right")


def check_operands(
  operands: tuple[tuple[str, Any], ...], *, ndims: tuple[int, ...], layouts: tuple[str, ...]
) -> jnp.dtype:
  """Check named arrays for their number of dimensions and one dtype; raises ValueError."""
  for (name, array), ndim, layout in zip(operands, ndims, layouts, strict=True):
    arguments.check_array(name, array, min_ndim=0)
    if len(array.shape) != ndim:
      raise ValueError(
        f"{name} has shape {tuple(array.shape)}: expected {ndim} dimensions, {layout}"
        + (f"; {name}[None] makes a batch of one" if len(array.shape) == ndim - 1 else "")
      )
    arguments.check_float(name, array)
    if not all(isinstance(size, int) for size in array.shape):
      raise ValueError(f"{name} has shape {tuple(array.shape)}: sizes must be known when traced")
  (first, query), *others = operands
  for name, array in others:
    if array.dtype != query.dtype:
      raise ValueError(
        f"{first} is {query.dtype} and {name} is {array.dtype}: expected one dtype; "
        f"{name}.astype({query.dtype}) makes it"
      )
  return jnp.dtype(query.dtype)


def check_heads(
  query: Any, key: Any, value: Any, *, names: tuple[str, str] = ("key", "value")
) -> None:
  """Check head counts and head sizes of the last two dimensions; raises ValueError."""
  heads, size = query.shape[-2:]
  kv_heads, key_size = key.shape[-2:]
  key_name, value_name = names
  if value.shape[:-1] != key.shape[:-1]:
    raise ValueError(
      f"{value_name} has shape {tuple(value.shape)} and {key_name} {tuple(key.shape)}: expected"
      " the same but for the last dimension, which may differ"
    )
  if key_size != size:
    raise ValueError(
      f"query has head size {size} and {key_name} {key_size}: expected the same; only that of"
      f" {value_name} may differ"
    )
  if (kv_heads == 0) != (heads == 0) or (kv_heads and heads % kv_heads):
    divisors = [x for x in range(1, heads + 1) if heads % x == 0]
    nearest = min(divisors, key=lambda x: abs(x - kv_heads), default=0)
    raise ValueError(
      f"query has {heads} heads and {key_name} {kv_heads}: expected a multiple of the key's;"
      f" {key_name} with {nearest} would do"
    )


def broadcast_pairs(name: str, array: Any, shape: tuple[int, int, int, int]) -> Any:
  """A bias or mask as 4 dimensions, each the score's or 1; raises ValueError."""
  arguments.check_array(name, array, min_ndim=0)
  own = tuple(array.shape)
  padded = (1,) * (4 - len(own)) + own
  if len(own) > 4 or any(mine not in (1, whole) for mine, whole in zip(padded, shape, strict=True)):
    raise ValueError(
      f"{name} has shape {own}: expected what broadcasts to {shape}, [B, N, T, S]"
      f"; {name}.swapaxes(-1, -2) would fit"
      if own[-2:] == shape[:1:-1] and own[-2:] != shape[2:]
      else f"{name} has shape {own}: expected what broadcasts to {shape}, [B, N, T, S]"
    )
  return array.reshape(padded) if hasattr(array, "reshape") else _Reshaped(array, padded)


class _Reshaped:
  """A `jax.ShapeDtypeStruct` in another shape."""

  def __init__(self, array: Any, shape: tuple[int, ...]) -> None:
    self.shape, self.dtype = shape, array.dtype


def integers(name: str, value: Any, shape: tuple[int, ...], *, largest: int | None = None) -> Any:
  """Lengths, segment ids or a page table as int32.

  Raises:
    ValueError: the shape or dtype is wrong, or a number that is known when
      traced is not from 0 to `largest`.

  Of wider integers those that are only known when run are cut to what is used of
  them, from 0 to `largest`, or without it taken modulo 2^32.
  """
  if isinstance(value, (list, tuple)):
    value = np.asarray(value)
  arguments.check_array(name, value, min_ndim=0)
  if tuple(value.shape) != shape:
    raise ValueError(f"{name} has shape {tuple(value.shape)}: expected {shape}")
  if not jnp.issubdtype(value.dtype, jnp.integer):
    raise ValueError(f"{name} is {value.dtype}: expected integers; {name}.astype(int32) makes them")
  if isinstance(value, np.ndarray):
    if largest is not None and value.size and (value.min() < 0 or value.max() > largest):
      raise ValueError(f"{name}={value.tolist()}: expected numbers from 0 to {largest}")
    return jnp.asarray(value, jnp.int32)
  narrow = jnp.iinfo(value.dtype).max <= np.iinfo(np.int32).max
  if largest is not None and isinstance(value, jax.Array) and not narrow:
    # A number that int32 does not have would come out as another one. Of int32 itself every
    # user of lengths cuts them to size: here that is a launch, 0.8 us of 10 of a decode of
    # 8192 keys on an H200.
    value = jnp.clip(value, 0, min(largest, np.iinfo(np.int32).max))
  return value.astype(jnp.int32) if hasattr(value, "astype") else value


def segment_ids(name: str, value: Any, shape: tuple[int, ...]) -> Any:
  """Segment ids as int32.

  Raises:
    ValueError: as `integers`; or an id that is known when traced is none of int32,
      in which others could be the same.
  """
  if isinstance(value, (list, tuple)):
    value = np.asarray(value)
  if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iu":
    int32 = np.iinfo(np.int32)
    outside = value[(value < int32.min) | (value > int32.max)]
    if outside.size:
      raise ValueError(
        f"{name} has {outside[0]}: expected ids of int32, {int32.min} to {int32.max};"
        " np.unique(ids, return_inverse=True) of the ids of both sides numbers them"
      )
  return integers(name, value, shape)


def check_config(config: Any, config_class: type, example: str) -> None:
  """Raise ValueError unless `config` is None or of its class."""
  if config is not None and not isinstance(config, config_class):
    raise ValueError(
      f"config is a {type(config).__name__}: expected {example.partition('(')[0]}, for example"
      f" {example}"
    )
