"""A cache of compiled programs, keyed by shape: what hits, what is compiled again."""

import collections
import dataclasses
from collections.abc import Hashable, Sequence

from hw_profiles.arguments import at_least, collection, not_negative
from hw_profiles.frozen_map import FrozenMap


@dataclasses.dataclass(frozen=True)
class ProgramCacheUse:
  """What a sequence of calls did to a program cache.

  Attributes:
    hits: Calls whose program was there.
    misses: Calls that had to compile.
    evictions: Programs dropped to make room.
    recompilations: Misses on programs that had been there before.
    compile_us: Time of all compilations.
    hits_by: Shape to its hits; 0 for a program compiled in vain.
    resident: Shapes held at the end, the least recently used first.
  """

  hits: int
  misses: int
  evictions: int
  recompilations: int
  compile_us: float
  hits_by: FrozenMap[Hashable, int]
  resident: tuple[Hashable, ...]


def program_cache(
  shapes: Sequence[Hashable],
  *,
  capacity: int | None = None,
  compile_us: float = 0.0,
  cached: Sequence[Hashable] = (),
) -> ProgramCacheUse:
  """Runs calls through a cache that drops the least recently used program.

  A program is worth its place where its shape recurs before `capacity` other
  shapes have come.

  Args:
    shapes: The shape (or bucket) of each call, in order.
    capacity: Programs held at once; None: all of them.
    compile_us: One compilation.
    cached: Programs there from the start, the least recently used first.

  Raises:
    ValueError: an argument out of range, or more `cached` than `capacity`.
  """
  collection("shapes", shapes)
  collection("cached", cached)
  if capacity is not None:
    at_least("capacity", capacity, 1)
    if len(set(cached)) > capacity:
      raise ValueError(f"cached has {len(set(cached))} programs: capacity={capacity} holds fewer")
  not_negative("compile_us", compile_us)
  held = collections.OrderedDict.fromkeys(cached)
  seen = set(cached)
  hits_by: dict[Hashable, int] = dict.fromkeys(cached, 0)
  hits = misses = evictions = recompilations = 0
  for shape in shapes:
    hits_by.setdefault(shape, 0)
    if shape in held:
      hits += 1
      hits_by[shape] += 1
      held.move_to_end(shape)
      continue
    misses += 1
    recompilations += shape in seen
    seen.add(shape)
    if capacity is not None and len(held) == capacity:
      held.popitem(last=False)
      evictions += 1
    held[shape] = None
  return ProgramCacheUse(
    hits=hits,
    misses=misses,
    evictions=evictions,
    recompilations=recompilations,
    compile_us=misses * compile_us,
    hits_by=FrozenMap(hits_by),
    resident=tuple(held),
  )
