"""Which queries of an attention are held against float64, and what that finds.

All of them where there are few pairs of a query and a key. Elsewhere some
queries of some heads, each with all of its keys: float64 takes a microsecond a
pair, and 8192 queries of 16 heads on as many keys have 10^9.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from hw_profiles.attention.mask import AttentionMask, key_offsets
from pallas_kernels.benchmark.ops.verdict import Verdict, named, verdict

if TYPE_CHECKING:
  import numpy as np
  import numpy.typing as npt

  import reference

# About a second of float64 forward, two of gradients.
_MOST_PAIRS = 2**20
_MOST_QUERIES = 64
# each has keys and values of its own, which are copied
_MOST_HEADS = 64


@dataclasses.dataclass(frozen=True)
class AttentionSample:
  """Queries of heads, the same ones of each.

  Attributes:
    mask: Which keys the queries of a head see.
    units: (sequence, key head) of each sampled key head.
    members: Query heads within a key head's group.
    queries: Positions within a sequence.
    group: Query heads of a key head, all of them.
    heads: Query heads in all, of all sequences.
  """

  mask: AttentionMask
  units: tuple[tuple[int, int], ...]
  members: tuple[int, ...]
  queries: tuple[int, ...]
  group: int
  heads: int

  @classmethod
  def of(cls, *, mask: AttentionMask, batch: int, key_heads: int, group: int) -> "AttentionSample":
    """All queries of all heads where those are few; else evenly spread, both ends included."""
    every = batch * key_heads
    pairs = mask.seq_q * mask.seq_kv
    if every * group * pairs <= _MOST_PAIRS:
      queries, members, units = mask.seq_q, group, every
    else:
      keys = max(mask.seq_kv, 1)
      queries = min(mask.seq_q, _MOST_QUERIES, max(_MOST_PAIRS // (2 * keys), 1))
      heads = min(max(_MOST_PAIRS // max(queries * keys, 1), 2), _MOST_HEADS)
      members = group if heads >= 2 * group else 1
      units = min(max(heads // members, 1), every)
    return cls(
      mask=mask,
      units=tuple(divmod(index, key_heads) for index in _spread(units, every)),
      members=_spread(members, group),
      queries=_spread(queries, mask.seq_q),
      group=group,
      heads=every * group,
    )

  @property
  def is_whole(self) -> bool:
    """Whether nothing is left out."""
    return len(self.queries) == self.mask.seq_q and self.heads == len(self.units) * len(
      self.members
    )

  @property
  def pairs(self) -> int:
    """Pairs of a query and a key."""
    return len(self.units) * len(self.members) * len(self.queries) * self.mask.seq_kv

  def note(self) -> tuple[str, ...]:
    """What was compared, where that is not all."""
    if self.is_whole:
      return ()
    heads = len(self.units) * len(self.members)
    return (
      f"compared with float64: {len(self.queries)} of {self.mask.seq_q} queries, of {heads} of "
      f"{self.heads} heads, on all their keys",
    )

  # --- arrays

  def of_queries(self, array: Any) -> "npt.NDArray[np.generic]":
    """[units, queries, members, ...] of [B, T, N, ...]."""
    import numpy as np

    return np.stack(
      [
        np.stack(
          [np.asarray(array[b])[list(self.queries), g * self.group + m] for m in self.members], 1
        )
        for b, g in self.units
      ]
    )

  def of_keys(self, array: Any) -> "npt.NDArray[np.generic]":
    """[units, S, 1, ...] of [B, S, K, ...], or of anything that gives [S, K, ...] for an index."""
    import numpy as np

    return np.stack([np.asarray(array[b][:, g : g + 1]) for b, g in self.units])

  def only_these(self, array: Any) -> Any:
    """[B, T, N, ...] with 0 at all other queries."""
    import numpy as np

    kept = np.zeros((*array.shape[:3], *(1,) * (array.ndim - 3)), np.bool_)
    for b, g in self.units:
      for m in self.members:
        kept[b, list(self.queries), g * self.group + m] = True
    return array * kept.astype(array.dtype)

  def visible(self) -> "npt.NDArray[np.bool_]":
    """[1, 1, queries, S]: which keys these queries see."""
    import numpy as np

    least, largest = key_offsets(left=self.mask.left, right=self.mask.right, shift=self.mask.shift)
    offset = np.arange(self.mask.seq_kv)[None] - np.asarray(self.queries)[:, None]
    seen = np.ones(offset.shape, np.bool_)
    if least is not None:
      seen &= offset >= least
    if largest is not None:
      seen &= offset <= largest
    return seen[None, None]

  # --- verdicts

  def judge_queries(self, found: "reference.MatmulCheck", name: str) -> Verdict:
    """The verdict on what `of_queries` took from a result."""
    index = found.worst_index
    if index is not None:
      (b, g), member = self.units[index[0]], self.members[index[2]]
      whole = (b, self.queries[index[1]], g * self.group + member, *index[3:])
      found = dataclasses.replace(found, worst_index=whole)
    return named(verdict(found), name)

  def judge_keys(self, found: "reference.MatmulCheck", name: str) -> Verdict:
    """The verdict on what `of_keys` took from a result."""
    index = found.worst_index
    if index is not None:
      b, g = self.units[index[0]]
      found = dataclasses.replace(found, worst_index=(b, index[1], g, *index[3:]))
    return named(verdict(found), name)


def _spread(count: int, size: int) -> tuple[int, ...]:
  """`count` of 0 ... size - 1, the first and the last among them."""
  if count >= size:
    return tuple(range(size))
  if count == 1:
    return (size - 1,)
  return tuple(index * (size - 1) // (count - 1) for index in range(count))
