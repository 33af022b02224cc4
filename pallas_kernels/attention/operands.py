"""The arrays of one attention, as all implementations take them."""

from typing import NamedTuple

import jax

from pallas_kernels.batching import batch_of


class Sizes(NamedTuple):
  """Sizes of an attention: query head n reads key head n // group."""

  batch: int
  seq_q: int
  seq_kv: int
  heads: int
  kv_heads: int
  head_dim: int
  value_dim: int

  @property
  def group(self) -> int:
    """Query heads of a key head."""
    return self.heads // max(self.kv_heads, 1)

  @property
  def is_empty(self) -> bool:
    """Whether a side is 0: nothing for a kernel to do."""
    return 0 in self


class AttentionOperands(NamedTuple):
  """Arrays with a leading dimension of the batch, or 1 where all of it reads the same.

  Attributes:
    query: [batch or 1, T, N, H].
    key: [batch or 1, S, K, H].
    value: [batch or 1, S, K, Hv].
    bias: [batch or 1, N or 1, T or 1, S or 1], or None.
    mask: bool, the same.
    query_lengths: int32 [batch or 1], queries that are used; None: all.
    key_lengths: int32 [batch or 1], keys that are used; None: all.
    query_segments: int32 [batch or 1, T], or None.
    key_segments: int32 [batch or 1, S], or None.
  """

  query: jax.Array
  key: jax.Array
  value: jax.Array
  bias: jax.Array | None = None
  mask: jax.Array | None = None
  query_lengths: jax.Array | None = None
  key_lengths: jax.Array | None = None
  query_segments: jax.Array | None = None
  key_segments: jax.Array | None = None

  @property
  def sizes(self) -> Sizes:
    """The sizes of the attention."""
    _, seq_q, heads, head_dim = self.query.shape
    _, seq_kv, kv_heads, value_dim = self.value.shape
    return Sizes(batch_of(*self), seq_q, seq_kv, heads, kv_heads, head_dim, value_dim)

  @property
  def has_pair_masks(self) -> bool:
    """Whether more than positions and lengths says which pairs are visible."""
    return self.mask is not None or self.query_segments is not None


class Upstream(NamedTuple):
  """What the gradient needs beside the operands.

  Attributes:
    residual: float32 [batch, N, T], log-sum-exp.
    delta: float32 [batch, N, T], rowsum(dO ⊙ O) less the residual's own gradient.
    d_out: [batch, T, N, Hv].
  """

  residual: jax.Array
  delta: jax.Array
  d_out: jax.Array


class DecodeOperands(NamedTuple):
  """The arrays of a decode step; leading dimensions as in `AttentionOperands`.

  Attributes:
    query: [batch or 1, T, N, H].
    key: [batch or 1, S, K, H]; with pages [batch or 1, pages, page_size, K, H].
    value: The same with Hv.
    lengths: int32 [batch or 1].
    page_table: int32 [batch or 1, pages of a sequence], or None.
  """

  query: jax.Array
  key: jax.Array
  value: jax.Array
  lengths: jax.Array
  page_table: jax.Array | None = None

  @property
  def page_size(self) -> int | None:
    """Keys of a page; None: no pages."""
    return None if self.page_table is None else self.key.shape[2]

  @property
  def sizes(self) -> Sizes:
    """The sizes of the attention that the step is."""
    _, seq_q, heads, head_dim = self.query.shape
    kv_heads, value_dim = self.value.shape[-2:]
    if self.page_table is None:
      seq_kv = self.key.shape[1]
    else:
      seq_kv = self.page_table.shape[1] * self.key.shape[2]
    return Sizes(batch_of(*self), seq_q, seq_kv, heads, kv_heads, head_dim, value_dim)
