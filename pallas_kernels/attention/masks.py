"""`hw_profiles.attention.mask` for values known when traced or only when run.

Which keys a query sees is decided there and nowhere else; here the rule gets
the lengths of one sequence, or of a batch of them, and strict dtype promotion
gets out of its way.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hw_profiles.attention import mask
from hw_profiles.attention.mask import KeyBlocks
from pallas_kernels.attention.integers import TRACED


@dataclasses.dataclass(frozen=True)
class BandRule:
  """The band of a call, the same for all sequences.

  Attributes:
    left: Keys seen before a query's own position; None: all.
    right: Keys seen after it; None: all. 0: causal.
    bottom_right: Whether the last used query is at the last used key; else the
      first ones are at the same position.
  """

  left: int | None = None
  right: int | None = None
  bottom_right: bool = False

  @property
  def is_open(self) -> bool:
    """Whether queries see all keys."""
    return self.left is None and self.right is None

  @property
  def later_queries_see_more(self) -> bool:
    """Whether a block of queries has more to visit than those before it."""
    return self.left is None and self.right is not None

  def of(self, *, seq_q: Any, seq_kv: Any) -> "Band":
    """The band of sequences with these used queries and keys."""
    shift = seq_kv - seq_q if self.bottom_right else 0
    return Band(seq_q=seq_q, seq_kv=seq_kv, left=self.left, right=self.right, shift=shift)


@dataclasses.dataclass(frozen=True)
class Band:
  """`AttentionMask` with lengths that may be traced; see there.

  Attributes:
    seq_q: Used queries; an int or traced, as `seq_kv` and `shift`.
    seq_kv: Used keys.
    left: Keys seen before a query's own position; None: all.
    right: Keys seen after it; None: all.
    shift: Position of query 0 among the keys.
  """

  seq_q: Any
  seq_kv: Any
  left: int | None
  right: int | None
  shift: Any

  def transposed(self) -> "Band":
    """The same band with keys and queries exchanged: which queries see a key."""
    with jax.numpy_dtype_promotion("standard"):
      return Band(
        seq_q=self.seq_kv, seq_kv=self.seq_q, left=self.right, right=self.left, shift=-self.shift
      )

  def key_blocks(self, first_query: Any, *, block_q: int, block_kv: int) -> KeyBlocks:
    """The blocks of keys that a block of queries visits."""
    with jax.numpy_dtype_promotion("standard"):
      return mask.key_blocks(
        first_query,
        block_q=block_q,
        block_kv=block_kv,
        seq_q=self.seq_q,
        seq_kv=self.seq_kv,
        left=self.left,
        right=self.right,
        shift=self.shift,
        arithmetic=TRACED,
      )

  def offsets(self) -> tuple[Any | None, Any | None]:
    """Least and largest `key - query` of what is visible among used keys; None: any."""
    return mask.key_offsets(left=self.left, right=self.right, shift=self.shift)

  def interval(self, queries: jax.Array) -> tuple[jax.Array, jax.Array]:
    """First key that queries see and one past the last; equal where they see none."""
    with jax.numpy_dtype_promotion("standard"):
      first, end = mask.visible_keys(
        queries,
        seq_kv=self.seq_kv,
        left=self.left,
        right=self.right,
        shift=self.shift,
        arithmetic=TRACED,
      )
      # queries past the last one see nothing
      return first, jnp.where(queries < self.seq_q, end, first)

  def visible(self, queries: jax.Array, keys: jax.Array) -> jax.Array:
    """Whether queries see keys: positions of shapes that broadcast."""
    first, end = self.interval(queries)
    with jax.numpy_dtype_promotion("standard"):
      return (keys >= first) & (keys < end)


def block_positions(start: Any, size: int, *, axis: int) -> jax.Array:
  """start ... start + size - 1 as a row (axis 1) or a column (axis 0) of a tile."""
  shape = (size, 1) if axis == 0 else (1, size)
  return start + lax.broadcasted_iota(jnp.int32, shape, axis)
