"""Global-memory sectors that one access of a warp touches."""

import dataclasses
from collections.abc import Iterable, Sequence

from hw_profiles.arguments import at_least, collection
from hw_profiles.capacity.residency import LANES_PER_WARP

SECTOR_BYTES = 32
LINE_BYTES = 128


@dataclasses.dataclass(frozen=True)
class Coalescing:
  """One access of a warp to global memory.

  Attributes:
    sectors: 32-byte sectors touched, which is what memory moves.
    lines: 128-byte cache lines touched.
    requested_bytes: Different bytes the lanes ask for.
    moved_bytes: Of the sectors.
    efficiency: requested / moved; 1 where nothing is asked for.
  """

  sectors: int
  lines: int
  requested_bytes: int
  moved_bytes: int
  efficiency: float


def _units_touched(starts: Sequence[int], width_bytes: int, unit_bytes: int) -> int:
  """Aligned units under [start, start + width) of each of `starts`, which are sorted."""
  count, next_free = 0, 0
  for start in starts:
    end = (start + width_bytes - 1) // unit_bytes + 1
    count += max(0, end - max(start // unit_bytes, next_free))
    next_free = max(next_free, end)
  return count


def coalescing(addresses_bytes: Iterable[int | None], *, width_bytes: int) -> Coalescing:
  """Counts the sectors under the bytes that the lanes ask for.

  Example: 32 lanes that read consecutive floats touch 4 sectors of one line;
  in 4 rows of 8 floats each 4 sectors of 4 lines: no byte is wasted either way.
  With a stride of 8 floats they touch 32 sectors, an efficiency of 1/8.

  Args:
    addresses_bytes: Byte address of each lane; None: inactive. At most 32.
    width_bytes: Bytes each lane accesses; at least 1.

  Raises:
    ValueError: too many lanes, a negative address, or a width below 1.

  Sector and line sizes: CUDA C++ best practices guide, compute capability 6.0
  and later.
  """
  collection("addresses_bytes", addresses_bytes)
  at_least("width_bytes", width_bytes, 1)
  lanes = list(addresses_bytes)
  if len(lanes) > LANES_PER_WARP:
    raise ValueError(
      f"addresses_bytes has {len(lanes)} lanes: expected at most the {LANES_PER_WARP} of a warp"
    )
  active = {lane: address for lane, address in enumerate(lanes) if address is not None}
  for lane, address in active.items():
    at_least(f"addresses_bytes[{lane}]", address, 0)
  starts = sorted(set(active.values()))
  requested = _units_touched(starts, width_bytes, 1)
  sectors = _units_touched(starts, width_bytes, SECTOR_BYTES)
  moved = sectors * SECTOR_BYTES
  return Coalescing(
    sectors=sectors,
    lines=_units_touched(starts, width_bytes, LINE_BYTES),
    requested_bytes=requested,
    moved_bytes=moved,
    efficiency=requested / moved if moved else 1.0,
  )
