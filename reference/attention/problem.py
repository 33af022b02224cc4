"""Attention's operands and options, checked, and which keys each query sees."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt

from reference.bounded import BoolArray
from reference.formats import Float64Array, to_float64

CausalAlignment = Literal["top_left", "bottom_right"]
WindowSize = int | tuple[int | None, int | None]

# Scores held at once: about a dozen float64 arrays of 16 MiB are alive.
_BLOCK_SCORES = 2**21


class AttentionOptions(TypedDict, total=False):
  """The options of `flash_attention` that say what is computed; all may be left out.

  Attributes:
    scale: Factor of the dot products; None: head_dim^(-1/2).
    is_causal: Whether a query sees no key after its own position.
    causal_alignment: Which query and key have the same position: "top_left",
      the first ones; "bottom_right", the last ones. Needed with a causal mask
      or a window where T and S differ; None is "top_left" where they do not.
      With sequence lengths the last ones are the last that are used.
    query_seq_lengths: [B], queries that are used; None: T of them.
    key_value_seq_lengths: [B], keys that are used; None: S of them.
    local_window_size: (left, right), keys seen before and after a query's own
      position, None for all; an int w means (w, w).
    query_segment_ids: [B, T]; a query sees keys of the same id only.
    key_value_segment_ids: [B, S].
    logits_soft_cap: c in c·tanh(logits / c).
  """

  scale: float | None
  is_causal: bool
  causal_alignment: CausalAlignment | None
  query_seq_lengths: npt.ArrayLike | None
  key_value_seq_lengths: npt.ArrayLike | None
  local_window_size: WindowSize | None
  query_segment_ids: npt.ArrayLike | None
  key_value_segment_ids: npt.ArrayLike | None
  logits_soft_cap: float | None


def _window(value: WindowSize | None) -> tuple[int | None, int | None]:
  """(left, right) of `local_window_size`."""
  sides = (value, value) if value is None or isinstance(value, int | np.integer) else tuple(value)
  wrong = len(sides) != 2 or any(
    side is not None and (isinstance(side, bool) or not isinstance(side, int | np.integer))
    for side in sides
  )
  if wrong or any(side is not None and side < 0 for side in sides):
    raise ValueError(
      f"local_window_size={value!r}: expected an int of at least 0, or (left, right) of such ints "
      "or None, which leaves a side open"
    )
  left, right = sides
  return (None if left is None else int(left)), (None if right is None else int(right))


def _lengths(name: str, value: npt.ArrayLike | None, batch: int, size: int) -> npt.NDArray[Any]:
  """Used positions of each sequence, [B]."""
  if value is None:
    return np.full(batch, size)
  lengths = np.asarray(value)
  if lengths.shape != (batch,) or lengths.dtype.kind not in "iu":
    raise ValueError(
      f"{name}: shape {lengths.shape}, {lengths.dtype}; expected ({batch},) integers"
    )
  if ((lengths < 0) | (lengths > size)).any():
    raise ValueError(f"{name}={lengths.tolist()}: expected numbers from 0 to {size}")
  return lengths.astype(np.int64)


def _segments(
  queries: npt.ArrayLike | None, keys: npt.ArrayLike | None, batch: int, sizes: tuple[int, int]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
  """Segment ids of queries and keys."""
  if queries is None and keys is None:
    return None
  given = {"query_segment_ids": queries, "key_value_segment_ids": keys}
  found = []
  for (name, ids), size in zip(given.items(), sizes, strict=True):
    if ids is None:
      raise ValueError(f"{name}=None: expected ids of shape ({batch}, {size}), as the others have")
    array = np.asarray(ids)
    if array.shape != (batch, size) or array.dtype.kind not in "iu":
      raise ValueError(
        f"{name}: shape {array.shape}, {array.dtype}; expected ({batch}, {size}) integers"
      )
    found.append(array)
  return found[0], found[1]


def _broadcast(name: str, array: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
  """`array` as [B, N, T, S], without a copy."""
  try:
    return np.broadcast_to(array, shape)
  except ValueError:
    raise ValueError(
      f"{name}.shape={array.shape}: expected one that broadcasts to {shape}, [B, N, T, S]"
    ) from None


@dataclasses.dataclass(frozen=True)
class HeadRows:
  """Consecutive queries of one head, and what they see.

  Attributes:
    batch: Index of the sequence.
    head: Index of the query head.
    kv_head: Index of the key head that it reads.
    rows: The queries.
    visible: [t, S], whether a query sees a key.
  """

  batch: int
  head: int
  kv_head: int
  rows: slice
  visible: BoolArray

  @property
  def query_index(self) -> tuple[int, slice, int]:
    """Where these queries are in [B, T, N, ...]."""
    return self.batch, self.rows, self.head

  @property
  def key_index(self) -> tuple[int, slice, int]:
    """Where their keys are in [B, S, K, ...]."""
    return self.batch, slice(None), self.kv_head


@dataclasses.dataclass(frozen=True)
class AttentionProblem:
  """The operands as they came and the options, checked.

  Attributes:
    query: [B, T, N, H].
    key: [B, S, K, H], N a multiple of K.
    value: [B, S, K, Hv].
    bias: [B, N, T, S], added to the scaled dot products; None: nothing.
    bias_shape: The shape that the bias came in.
    mask: [B, N, T, S], bool; None: all True.
    scale: Factor of the dot products.
    left: Keys seen before a query's own position; None: all.
    right: Keys seen after it.
    shifts: [B], position of query i among the keys: i + shift.
    query_lengths: [B], queries that are used.
    key_lengths: [B], keys that are used.
    segments: Ids of the queries and of the keys.
    soft_cap: c in c·tanh(logits / c); None: no cap.
  """

  query: npt.NDArray[Any]
  key: npt.NDArray[Any]
  value: npt.NDArray[Any]
  bias: npt.NDArray[Any] | None
  bias_shape: tuple[int, ...] | None
  mask: npt.NDArray[Any] | None
  scale: float
  left: int | None
  right: int | None
  shifts: npt.NDArray[Any]
  query_lengths: npt.NDArray[Any]
  key_lengths: npt.NDArray[Any]
  segments: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None
  soft_cap: float | None

  @classmethod
  def create(
    cls,
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    bias: npt.ArrayLike | None,
    mask: npt.ArrayLike | None,
    options: AttentionOptions,
  ) -> "AttentionProblem":
    """Checks everything.

    Raises:
      ValueError: a shape, a dtype or an option is wrong.
    """
    unknown = sorted(set(options) - set(AttentionOptions.__annotations__))
    if unknown:
      known = ", ".join(AttentionOptions.__annotations__)
      raise ValueError(f"{unknown[0]}: no such option; expected {known}")
    q, k, v = np.asarray(query), np.asarray(key), np.asarray(value)
    for name, array in (("query", q), ("key", k), ("value", v)):
      if array.ndim != 4:
        raise ValueError(f"{name}.shape={array.shape}: expected 4 dimensions, [B, T, N, H]")
    batch, seq_q, heads, head_dim = q.shape
    seq_kv, kv_heads = k.shape[1:3]
    if k.shape[0] != batch or k.shape[3] != head_dim:
      raise ValueError(
        f"key.shape={k.shape}: expected ({batch}, S, K, {head_dim}) beside {q.shape}"
      )
    if v.shape[:3] != k.shape[:3]:
      raise ValueError(f"value.shape={v.shape}: expected {k.shape[:3]} and a head size")
    if (kv_heads == 0) != (heads == 0) or (kv_heads and heads % kv_heads):
      raise ValueError(f"query.shape={q.shape}: {heads} heads, expected a multiple of {kv_heads}")
    scores = (batch, heads, seq_q, seq_kv)

    window = options.get("local_window_size")
    is_causal = bool(options.get("is_causal", False))
    alignment = options.get("causal_alignment")
    if alignment not in (None, "top_left", "bottom_right"):
      raise ValueError(
        f"causal_alignment={alignment!r}: expected 'top_left', where the first query and key have "
        "the same position, or 'bottom_right', where the last ones have"
      )
    left, right = _window(window)
    if (is_causal or window is not None) and alignment is None and seq_q != seq_kv:
      raise ValueError(
        f"causal_alignment=None with {seq_q} queries and {seq_kv} keys: expected 'top_left' (query "
        "i at key i) or 'bottom_right' (the last query at the last key)"
      )
    if is_causal:
      right = 0
    query_lengths = _lengths("query_seq_lengths", options.get("query_seq_lengths"), batch, seq_q)
    key_lengths = _lengths(
      "key_value_seq_lengths", options.get("key_value_seq_lengths"), batch, seq_kv
    )
    cap = options.get("logits_soft_cap")
    if cap is not None and not (math.isfinite(cap) and cap > 0):
      raise ValueError(f"logits_soft_cap={cap!r}: expected a finite number above 0, or None")
    scale = options.get("scale")
    if scale is not None and not math.isfinite(scale):
      raise ValueError(f"scale={scale!r}: expected a finite number, or None")
    mask_array = None if mask is None else np.asarray(mask)
    if mask_array is not None and mask_array.dtype != np.bool_:
      raise ValueError(f"mask.dtype={mask_array.dtype}: expected bool")
    bias_array = None if bias is None else np.asarray(bias)
    return cls(
      query=q,
      key=k,
      value=v,
      bias=None if bias_array is None else _broadcast("bias", bias_array, scores),
      bias_shape=None if bias_array is None else bias_array.shape,
      mask=None if mask_array is None else _broadcast("mask", mask_array, scores),
      scale=(head_dim**-0.5 if head_dim else 1.0) if scale is None else float(scale),
      left=left,
      right=right,
      shifts=key_lengths - query_lengths
      if alignment == "bottom_right"
      else np.zeros(batch, np.int64),
      query_lengths=query_lengths,
      key_lengths=key_lengths,
      segments=_segments(
        options.get("query_segment_ids"),
        options.get("key_value_segment_ids"),
        batch,
        (seq_q, seq_kv),
      ),
      soft_cap=None if cap is None else float(cap),
    )

  @property
  def out_shape(self) -> tuple[int, ...]:
    """[B, T, N, Hv]."""
    return (*self.query.shape[:3], self.value.shape[3])

  @property
  def group(self) -> int:
    """Query heads that read one key head."""
    return self.query.shape[2] // max(self.key.shape[2], 1)

  def visible(self, batch: int, head: int, rows: slice) -> BoolArray:
    """[t, S]: which keys these queries see.

    Query i sees key j where all of these hold: i < query length; j < key
    length; i' - left <= j <= i' + right with i' = i + shift; the ids are the
    same; the mask is True.
    """
    query = np.arange(self.query.shape[1])[rows, None]
    key = np.arange(self.key.shape[1])[None, :]
    position = query + self.shifts[batch]
    seen = (query < self.query_lengths[batch]) & (key < self.key_lengths[batch])
    if self.left is not None:
      seen &= key >= position - self.left
    if self.right is not None:
      seen &= key <= position + self.right
    if self.segments is not None:
      query_ids, key_ids = self.segments
      seen &= query_ids[batch, rows, None] == key_ids[batch, None, :]
    if self.mask is not None:
      seen &= self.mask[batch, head, rows]
    return np.asarray(seen)

  def head_rows(self) -> Iterator[HeadRows]:
    """All queries of all heads, some rows at a time."""
    batch, seq_q, heads, _ = self.query.shape
    step = max(1, _BLOCK_SCORES // max(self.key.shape[1], 1))
    for b in range(batch):
      for head in range(heads):
        for start in range(0, seq_q, step):
          rows = slice(start, min(start + step, seq_q))
          yield HeadRows(b, head, head // self.group, rows, self.visible(b, head, rows))

  def operands(self, part: HeadRows) -> tuple[Float64Array, Float64Array, Float64Array]:
    """q [t, H], k [S, H] and v [S, Hv] of a part, in float64.

    Queries that see nothing and keys that none of them sees are zeros: what
    such slots hold has no effect.
    """
    q = to_float64(self.query[part.query_index], name="query")
    k = to_float64(self.key[part.key_index], name="key")
    v = to_float64(self.value[part.key_index], name="value")
    used_queries, used_keys = np.any(part.visible, axis=1), np.any(part.visible, axis=0)
    return (
      np.where(used_queries[:, None], q, 0.0),
      np.where(used_keys[:, None], k, 0.0),
      np.where(used_keys[:, None], v, 0.0),
    )

  def bias_of(self, part: HeadRows) -> npt.NDArray[Any] | None:
    """[t, S] of the bias, 0 where nothing is visible."""
    if self.bias is None:
      return None
    found = self.bias[part.batch, part.head, part.rows]
    return np.where(part.visible, found, np.zeros((), found.dtype))
