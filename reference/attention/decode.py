"""Attention of a few new queries on a key/value cache, in pages or not."""

from typing import Any

import numpy as np
import numpy.typing as npt

from reference.attention.forward import Attention, flash_attention
from reference.attention.problem import AttentionOptions, WindowSize


def gather_pages(
  cache: npt.ArrayLike, page_table: npt.ArrayLike, lengths: npt.ArrayLike
) -> npt.NDArray[Any]:
  """Each sequence's slots one after another: [B, pages·page_size, K, H].

  Slot j of sequence b is slot j mod page_size of page page_table[b, j div
  page_size]. Entries past the pages that a length needs are not read.

  Args:
    cache: [all pages, page_size, K, H].
    page_table: [B, pages of a sequence], integers.
    lengths: [B], slots that are used.

  Raises:
    ValueError: a shape or a dtype is wrong, or an entry in use is no page.
  """
  pages, table, used = np.asarray(cache), np.asarray(page_table), np.asarray(lengths)
  if pages.ndim != 4:
    raise ValueError(f"key_cache.shape={pages.shape}: expected [pages, page_size, K, H]")
  if table.ndim != 2 or table.dtype.kind not in "iu" or used.shape != table.shape[:1]:
    raise ValueError(
      f"page_table: shape {table.shape}, {table.dtype}; expected [B, pages] integers beside "
      f"lengths of shape {used.shape}"
    )
  page_size = pages.shape[1]
  in_use = np.arange(table.shape[1]) * page_size < used[:, None]
  wrong = in_use & ((table < 0) | (table >= pages.shape[0]))
  if wrong.any():
    b, page = (int(i[0]) for i in np.nonzero(wrong))
    raise ValueError(
      f"page_table[{b}, {page}]={table[b, page]}: expected a page from 0 to {pages.shape[0] - 1}"
    )
  if not pages.shape[0]:
    return np.zeros((table.shape[0], table.shape[1] * page_size, *pages.shape[2:]), pages.dtype)
  found = pages[np.where(in_use, table, 0)]
  return found.reshape(table.shape[0], table.shape[1] * page_size, *pages.shape[2:])


def decode_operands(
  query: npt.ArrayLike,
  key_cache: npt.ArrayLike,
  value_cache: npt.ArrayLike,
  lengths: npt.ArrayLike,
  *,
  scale: float | None = None,
  local_window_size: WindowSize | None = None,
  logits_soft_cap: float | None = None,
  page_table: npt.ArrayLike | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], AttentionOptions]:
  """The query [B, T, N, H], key, value and options of the attention that a decode step is.

  Raises:
    ValueError: a shape or a dtype is wrong.
  """
  q = np.asarray(query)
  if q.ndim not in (3, 4):
    raise ValueError(f"query.shape={q.shape}: expected [B, N, H] or [B, T, N, H]")
  k, v = np.asarray(key_cache), np.asarray(value_cache)
  used = np.asarray(lengths)
  if page_table is not None:
    k, v = (gather_pages(cache, page_table, used) for cache in (k, v))
  options: AttentionOptions = {
    "scale": scale,
    "is_causal": True,
    "causal_alignment": "bottom_right",
    "key_value_seq_lengths": used,
    "local_window_size": local_window_size,
    "logits_soft_cap": logits_soft_cap,
  }
  return (q[:, None] if q.ndim == 3 else q), k, v, options


def decode_attention(
  query: npt.ArrayLike,
  key_cache: npt.ArrayLike,
  value_cache: npt.ArrayLike,
  lengths: npt.ArrayLike,
  *,
  scale: float | None = None,
  local_window_size: WindowSize | None = None,
  logits_soft_cap: float | None = None,
  page_table: npt.ArrayLike | None = None,
  out_dtype: npt.DTypeLike | None = None,
) -> Attention:
  """Attention of the newest queries on what a cache holds; `flash_attention` of it.

  The last query of sequence b is at key lengths[b] - 1, and no query sees a
  key after its own: with one query that is all of them. A sequence of length 0
  has out 0 and residual -inf. How a kernel splits the keys is not part of the
  definition.

  Args:
    query: [B, N, H], or [B, T, N, H] for T queries a sequence.
    key_cache: [B, S, K, H]; with a page table [pages, page_size, K, H].
    value_cache: The same with Hv.
    lengths: [B], integers: keys in use, the queries' own included.
    scale: As in `flash_attention`, as the next two.
    local_window_size: Keys seen around a query's own.
    logits_soft_cap: c in c·tanh(logits / c).
    page_table: [B, pages]: `gather_pages`. None: no pages.
    out_dtype: Dtype of out. None: float64, that is no rounding.

  Returns:
    out in the query's shape with Hv for H, and float32 residual without H.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  q, k, v, options = decode_operands(
    query,
    key_cache,
    value_cache,
    lengths,
    scale=scale,
    local_window_size=local_window_size,
    logits_soft_cap=logits_soft_cap,
    page_table=page_table,
  )
  result = flash_attention(q, k, v, out_dtype=out_dtype, **options)
  if np.ndim(query) == 4:
    return result
  return Attention(result.out[:, 0], result.residual[:, 0])
