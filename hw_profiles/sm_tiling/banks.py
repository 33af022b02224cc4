"""Shared-memory banks: how many passes one warp's access takes."""

import dataclasses
from collections.abc import Iterable, Sequence

from hw_profiles.arguments import at_least, collection
from hw_profiles.capacity.residency import LANES_PER_WARP

BANKS = 32
BANK_BYTES = 4
WIDTHS_BYTES = (1, 2, 4, 8, 16)
QUARTER_WARP = LANES_PER_WARP // 4
# The uniform-access rules by the lane a lane must agree with: lane xor mask.
MERGE_RULES = {"A": 1, "B": 2}


@dataclasses.dataclass(frozen=True)
class LaneGroup:
  """Lanes served together.

  Attributes:
    first_lane: The lowest.
    num_lanes: Consecutive lanes from there.
    distinct_addresses: Different addresses among the active ones; lanes that
      share one are served by a broadcast.
    passes: Cycles the banks need: the most different words in one bank; 0
      where no lane is active.
  """

  first_lane: int
  num_lanes: int
  distinct_addresses: int
  passes: int


@dataclasses.dataclass(frozen=True)
class BankConflicts:
  """One access of a warp to shared memory.

  Attributes:
    transactions: Passes of all requests together.
    conflicts: Those beyond one a request.
    merges: Pairs of lane groups that were served as one request.
    merge_rules: "A", "B", both or none: the rules that all active lanes obey,
      whatever the width.
    requests: The lanes served together, merges done, without idle ones.
    per_quarter_warp: Each 8 lanes by themselves, whatever the width.
  """

  transactions: int
  conflicts: int
  merges: int
  merge_rules: tuple[str, ...]
  requests: tuple[LaneGroup, ...]
  per_quarter_warp: tuple[LaneGroup, ...]

  @property
  def ways(self) -> int:
    """The worst request's passes: 1 is free of conflicts, n an n-way conflict."""
    return max((request.passes for request in self.requests), default=0)


def shared_bank(byte_address: int) -> int:
  """bank = ⌊byte / 4⌋ mod 32 (CUDA C++ programming guide, compute capability 5.x and later).

  Raises:
    ValueError: the address is not an integer of at least 0.
  """
  at_least("byte_address", byte_address, 0)
  return byte_address // BANK_BYTES % BANKS


def _checked(addresses_bytes: Iterable[int | None], width_bytes: int) -> list[int | None]:
  """The addresses of all 32 lanes, missing ones inactive."""
  collection("addresses_bytes", addresses_bytes)
  if width_bytes not in WIDTHS_BYTES:
    raise ValueError(f"width_bytes={width_bytes!r}: expected one of {WIDTHS_BYTES}")
  lanes = list(addresses_bytes)
  if len(lanes) > LANES_PER_WARP:
    raise ValueError(
      f"addresses_bytes has {len(lanes)} lanes: expected at most the {LANES_PER_WARP} of a warp"
    )
  for lane, address in enumerate(lanes):
    if address is None:
      continue
    at_least(f"addresses_bytes[{lane}]", address, 0)
    if address % width_bytes:
      raise ValueError(
        f"addresses_bytes[{lane}]={address}: expected a multiple of width_bytes={width_bytes};"
        f" nearest are {address - address % width_bytes} and"
        f" {address - address % width_bytes + width_bytes}"
      )
  return lanes + [None] * (LANES_PER_WARP - len(lanes))


def _lane_group(
  lanes: Sequence[int | None], width_bytes: int, first_lane: int, num_lanes: int
) -> LaneGroup:
  active = {
    address for address in lanes[first_lane : first_lane + num_lanes] if address is not None
  }
  words = {
    word
    for address in active
    for word in range(address // BANK_BYTES, (address + width_bytes - 1) // BANK_BYTES + 1)
  }
  words_in_bank = [0] * BANKS
  for word in words:
    words_in_bank[word % BANKS] += 1
  return LaneGroup(first_lane, num_lanes, len(active), max(words_in_bank))


def _rules_obeyed(lanes: Sequence[int | None]) -> tuple[str, ...]:
  return tuple(
    rule
    for rule, mask in MERGE_RULES.items()
    if all(
      address is None or lanes[lane ^ mask] is None or address == lanes[lane ^ mask]
      for lane, address in enumerate(lanes)
    )
  )


def bank_conflicts(addresses_bytes: Iterable[int | None], *, width_bytes: int) -> BankConflicts:
  """Passes of one load or store of a warp, lane by lane.

  Up to 4 B a lane the warp is one request; at 8 B it is two, of 16 lanes; at
  16 B four, of 8 lanes, 128 B each. A request takes as many passes as one bank
  holds different words of it; lanes that read the same word share it.

  Two neighbouring requests are served as one (4 become 2, 2 become 1) if all
  lanes i and i xor 1 that are active have the same address (rule A), or all i
  and i xor 2 have (rule B). The pass count is then that of both groups' words
  together, which is never more than before.

  Example: 32 lanes that read 16 B each at consecutive addresses need 4 passes;
  where every four lanes share an address 2.

  Args:
    addresses_bytes: Byte address of each lane, lane 0 first; None: inactive,
      as are lanes beyond the last. At most 32.
    width_bytes: What each lane accesses: 1, 2, 4, 8 or 16 B, aligned to itself.

  Raises:
    ValueError: too many lanes, an unknown width, or an address that is
      negative or not aligned.

  Banks and broadcast: CUDA C++ programming guide. Split by width and merge
  rules: NVIDIA's answers for compute capability 7.x in its developer forum
  ("Unexpected shared memory bank conflict", "How to understand the bank
  conflict of shared_mem"); not stated for later devices.
  """
  lanes = _checked(addresses_bytes, width_bytes)
  size = LANES_PER_WARP * BANK_BYTES // max(width_bytes, BANK_BYTES)
  rules = _rules_obeyed(lanes)
  groups = [
    _lane_group(lanes, width_bytes, first, size) for first in range(0, LANES_PER_WARP, size)
  ]
  merges = 0
  if rules and len(groups) > 1:
    pairs = list(zip(groups[::2], groups[1::2], strict=True))
    merges = sum(1 for left, right in pairs if left.passes and right.passes)
    groups = [_lane_group(lanes, width_bytes, left.first_lane, 2 * size) for left, _ in pairs]
  requests = tuple(group for group in groups if group.passes)
  transactions = sum(request.passes for request in requests)
  return BankConflicts(
    transactions=transactions,
    conflicts=transactions - len(requests),
    merges=merges,
    merge_rules=rules,
    requests=requests,
    per_quarter_warp=tuple(
      _lane_group(lanes, width_bytes, first, QUARTER_WARP)
      for first in range(0, LANES_PER_WARP, QUARTER_WARP)
    ),
  )
