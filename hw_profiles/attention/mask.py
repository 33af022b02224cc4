"""Which keys a query sees, and which blocks of keys a block of queries visits: the one rule.

With i' = i + shift, query i sees key j where

    i' - left <= j <= i' + right,   0 <= j < seq_kv

A causal mask is right = 0; None leaves a side open. shift is 0 where the first
query is aligned with the first key ("top_left") and seq_kv - seq_q where the
last ones are aligned ("bottom_right").

    top_left    1 0 0 0        bottom_right  1 1 1 0
    (2 x 4)     1 1 0 0        (2 x 4)       1 1 1 1

`visible_keys` and `key_blocks` are arithmetic on Python integers, arrays or, with an
`Arithmetic` for them, traced numbers, so that kernels and planner share them.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

from hw_profiles.arguments import as_int, at_least, ceil_div, whole_field
from hw_profiles.attention.block_visits import BlockVisits

CAUSAL_ALIGNMENTS = ("top_left", "bottom_right")


def _least(first: Any, second: Any) -> Any:
  """min, which Python's would ask an array for a truth value."""
  return first - (first - second) * (first > second)


def _most(first: Any, second: Any) -> Any:
  return first + (second - first) * (second > first)


@dataclasses.dataclass(frozen=True)
class Arithmetic:
  """What integers are compared and divided with.

  Attributes:
    least: The smaller of two.
    most: The larger of two.
    quotient: ⌊a / b⌋ of a that is not negative and b above 0.
  """

  least: Callable[[Any, Any], Any]
  most: Callable[[Any, Any], Any]
  quotient: Callable[[Any, Any], Any]


PLAIN = Arithmetic(least=_least, most=_most, quotient=operator.floordiv)
"""Of Python integers and of arrays: operators alone."""


@dataclasses.dataclass(frozen=True)
class KeyBlocks:
  """Blocks of keys that one block of queries visits: `first` ... `end` - 1.

  Attributes:
    first: The first block that holds a visible key.
    full_first: The first that needs no mask: every query of the block sees all
      of its keys. Blocks before it are boundary blocks.
    full_end: One past the last of those; boundary blocks follow.
    end: One past the last visited block; `first` where nothing is visible.
  """

  first: Any
  full_first: Any
  full_end: Any
  end: Any

  @property
  def visited(self) -> Any:
    """Blocks to walk."""
    return self.end - self.first

  @property
  def boundary(self) -> Any:
    """Of those, the ones that need the mask."""
    return self.visited - (self.full_end - self.full_first)


def key_offsets(
  *, left: int | None = None, right: int | None = None, shift: Any = 0
) -> tuple[Any | None, Any | None]:
  """Least and largest `key - query` of what is visible, beside 0 <= key < seq_kv; None: any."""
  return None if left is None else shift - left, None if right is None else shift + right


def visible_keys(
  query: Any,
  *,
  seq_kv: Any,
  left: int | None = None,
  right: int | None = None,
  shift: Any = 0,
  arithmetic: Arithmetic = PLAIN,
) -> tuple[Any, Any]:
  """First key that `query` sees and one past the last; equal where it sees none.

  Args:
    query: Position of the query; int or traced, as `seq_kv` and `shift`.
    seq_kv: Keys of its sequence.
    left: Keys seen before the query's own position; None: all.
    right: Keys seen after it; None: all.
    shift: Position of query 0 among the keys.
    arithmetic: Of the numbers' kind.
  """
  least, largest = key_offsets(left=left, right=right, shift=shift)
  zero = (query + shift) * 0
  first = zero if least is None else arithmetic.most(query + least, zero)
  end = zero + seq_kv
  if largest is not None:
    end = arithmetic.most(arithmetic.least(query + largest + 1, end), zero)
  return (zero if least is None else arithmetic.least(first, end)), end


def key_blocks(
  first_query: Any,
  *,
  block_q: int,
  block_kv: int,
  seq_q: Any,
  seq_kv: Any,
  left: int | None = None,
  right: int | None = None,
  shift: Any = 0,
  arithmetic: Arithmetic = PLAIN,
) -> KeyBlocks:
  """The blocks of keys that queries `first_query` ... `first_query` + block_q - 1 visit.

  Queries past the last one do not count: what they compute is dropped.

  Args:
    first_query: Position of the first query; int or traced, as the lengths and
      `shift`, so that each sequence of a batch can have its own.
    block_q: Queries of a block.
    block_kv: Keys of a block.
    seq_q: Queries of the sequence.
    seq_kv: Its keys.
    left: See `visible_keys`, as `right` and `shift`.
    right: See there.
    shift: See there.
    arithmetic: Of the numbers' kind.
  """
  least, most, quotient = arithmetic.least, arithmetic.most, arithmetic.quotient
  band: dict[str, Any] = {
    "seq_kv": seq_kv,
    "left": left,
    "right": right,
    "shift": shift,
    "arithmetic": arithmetic,
  }
  last_query = least(first_query + block_q, seq_q + first_query * 0) - 1
  begin, all_end = visible_keys(first_query, **band)
  all_begin, end = visible_keys(last_query, **band)
  # rows of a band move by one key each, so what they see together has no gap
  first = quotient(begin, block_kv)
  last = most(quotient(end + (block_kv - 1), block_kv), first)
  last = first + (last - first) * (end > begin) * (first_query < seq_q)
  full_first = least(most(quotient(all_begin + (block_kv - 1), block_kv), first), last)
  full_end = least(most(quotient(all_end, block_kv), full_first), last)
  return KeyBlocks(first=first, full_first=full_first, full_end=full_end, end=last)


@dataclasses.dataclass(frozen=True)
class AttentionMask:
  """The band of keys that queries see.

  Attributes:
    seq_q: Queries.
    seq_kv: Keys.
    left: Keys seen before the query's own position; None: all.
    right: Keys seen after it; None: all. 0: causal.
    shift: Position of query 0 among the keys.
  """

  seq_q: int
  seq_kv: int
  left: int | None = None
  right: int | None = None
  shift: int = 0

  def __post_init__(self) -> None:
    whole_field(self, "seq_q", 0)
    whole_field(self, "seq_kv", 0)
    for name in ("left", "right"):
      if getattr(self, name) is not None:
        whole_field(self, name, 0)
    object.__setattr__(self, "shift", as_int(self.shift))
    if isinstance(self.shift, bool) or not isinstance(self.shift, int):
      raise ValueError(f"AttentionMask.shift={self.shift!r}: expected an integer")

  @property
  def is_open(self) -> bool:
    """Whether every query sees every key."""
    return self.left is None and self.right is None

  def key_blocks(self, first_query: Any, *, block_q: int, block_kv: int) -> KeyBlocks:
    """`key_blocks` of this mask."""
    return key_blocks(
      first_query,
      block_q=block_q,
      block_kv=block_kv,
      seq_q=self.seq_q,
      seq_kv=self.seq_kv,
      left=self.left,
      right=self.right,
      shift=self.shift,
    )

  def transposed(self) -> "AttentionMask":
    """The same band with keys and queries exchanged: which queries see a key."""
    return AttentionMask(
      seq_q=self.seq_kv,
      seq_kv=self.seq_q,
      left=self.right,
      right=self.left,
      shift=-self.shift,
    )

  def visits(self, *, block_q: int, block_kv: int) -> BlockVisits:
    """The blocks that each block of queries visits, counted.

    Raises:
      ValueError: a block is below 1.
    """
    at_least("block_q", block_q, 1)
    at_least("block_kv", block_kv, 1)
    return _visits(self, block_q, block_kv)

  def visible_pairs(self) -> int:
    """Pairs of a query and a key that it sees: what the arithmetic is counted by."""
    return _visible_pairs(self)


@functools.lru_cache(maxsize=1024)
def _visits(mask: AttentionMask, block_q: int, block_kv: int) -> BlockVisits:
  blocks = ceil_div(mask.seq_q, block_q)
  if mask.is_open and mask.seq_q:
    one = mask.key_blocks(0, block_q=block_q, block_kv=block_kv)
    return BlockVisits.uniform(blocks, visited=one.visited, boundary=one.boundary)
  found = (
    mask.key_blocks(index * block_q, block_q=block_q, block_kv=block_kv) for index in range(blocks)
  )
  return BlockVisits.of((one.visited, one.boundary) for one in found)


@functools.lru_cache(maxsize=1024)
def _visible_pairs(mask: AttentionMask) -> int:
  """Sum over the queries of visible keys, by the triangle of each open side.

  The end of a query's keys, clip(i + shift + right + 1, 0, seq_kv), less the
  beginning, clip(i + shift - left, 0, seq_kv): sums of clipped ramps.
  """
  ends = (
    mask.seq_q * mask.seq_kv
    if mask.right is None
    else _clipped_ramp(mask.shift + mask.right + 1, mask.seq_q, mask.seq_kv)
  )
  begins = (
    0 if mask.left is None else _clipped_ramp(mask.shift - mask.left, mask.seq_q, mask.seq_kv)
  )
  # a beginning past the end of a row is past the last key, which the clip takes to seq_kv
  return ends - begins


def _clipped_ramp(start: int, count: int, top: int) -> int:
  """Sum of clip(start + i, 0, top) over i = 0 ... count-1."""
  rising = range(max(start, 0), min(start + count, top))
  at_top = min(max(start + count - top, 0), count)
  ramp = (rising[0] + rising[-1]) * len(rising) // 2 if rising else 0
  return ramp + at_top * top
