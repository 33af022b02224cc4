"""How many inner blocks each outer block of an attention visits, and which core gets which."""

import dataclasses
import functools
import heapq
from collections import Counter
from collections.abc import Iterable

from hw_profiles.arguments import ceil_div
from hw_profiles.frozen_map import FrozenMap


@dataclasses.dataclass(frozen=True)
class CoreLoad:
  """What the busiest core works through.

  Attributes:
    steps: Inner blocks.
    tiles: Outer blocks.
  """

  steps: int
  tiles: int


@dataclasses.dataclass(frozen=True)
class BlockVisits:
  """Outer blocks by how many inner blocks they visit.

  Attributes:
    blocks_by_visits: Number of inner blocks to number of outer blocks with it.
    boundary: Visits that need the mask, all outer blocks together.
  """

  blocks_by_visits: FrozenMap[int, int]
  boundary: int

  @classmethod
  def of(cls, visited_and_boundary: Iterable[tuple[int, int]]) -> "BlockVisits":
    """From the visits and boundary visits of each outer block."""
    counts: Counter[int] = Counter()
    boundary = 0
    for visited, needs_mask in visited_and_boundary:
      counts[visited] += 1
      boundary += needs_mask
    return cls(FrozenMap(counts), boundary)

  @classmethod
  def uniform(cls, blocks: int, *, visited: int, boundary: int) -> "BlockVisits":
    """`blocks` outer blocks that all visit the same."""
    return cls(FrozenMap({visited: blocks}), blocks * boundary)

  # both are asked for several times for each of some hundred candidate tiles
  @functools.cached_property
  def blocks(self) -> int:
    """Outer blocks."""
    return sum(self.blocks_by_visits.values())

  @functools.cached_property
  def total(self) -> int:
    """Visits of all outer blocks together."""
    return sum(visits * blocks for visits, blocks in self.blocks_by_visits.items())

  @property
  def boundary_fraction(self) -> float:
    """Share of the visits that need the mask; 0 where there are none."""
    return self.boundary / self.total if self.total else 0.0

  def merged(self, other: "BlockVisits") -> "BlockVisits":
    """The outer blocks of both."""
    counts = Counter(self.blocks_by_visits)
    counts.update(other.blocks_by_visits)
    return BlockVisits(FrozenMap(counts), self.boundary + other.boundary)

  def scaled(self, *, copies: int = 1, steps: int = 1) -> "BlockVisits":
    """`copies` of each outer block, each visiting `steps` times as many inner blocks."""
    return BlockVisits(
      FrozenMap(
        {visits * steps: blocks * copies for visits, blocks in self.blocks_by_visits.items()}
      ),
      self.boundary * copies * steps,
    )

  def busiest(self, *, cores: int) -> CoreLoad:
    """The core with the most visits when tiles go, longest first, to whichever core is free.

    Args:
      cores: Cores that tiles are dealt out to, at least 1.
    """
    return _busiest(self.blocks_by_visits, cores)


@functools.lru_cache(maxsize=1024)
def _busiest(blocks_by_visits: FrozenMap[int, int], cores: int) -> CoreLoad:
  """List scheduling, a whole round of equal tiles at a time.

  While no core is ahead of another by more than a tile, a round of equal tiles
  gives each core one, so all such rounds are dealt out at once.
  """
  ahead = [(0, 0)] * cores  # (steps, tiles) of each core beyond the common rounds
  common_steps = common_tiles = 0
  for visits in sorted(blocks_by_visits, reverse=True):
    left = blocks_by_visits[visits]
    if not visits:
      # nothing to walk, only to write: whoever is free takes the next
      common_tiles += ceil_div(left, cores)
      break
    while left:
      if left >= cores and max(ahead)[0] - ahead[0][0] <= visits:
        rounds = left // cores
        common_steps += rounds * visits
        common_tiles += rounds
        left -= rounds * cores
        continue
      # a longer tile before this one left a core further ahead: level it first
      for _ in range(min(left, cores)):
        steps, tiles = ahead[0]
        heapq.heapreplace(ahead, (steps + visits, tiles + 1))
      left -= min(left, cores)
  steps, tiles = max(ahead)
  return CoreLoad(steps=common_steps + steps, tiles=common_tiles + tiles)
