"""Buffers of a tile plan, and what to say when one does not fit."""

import dataclasses
from collections.abc import Iterable
from typing import Literal

ShortfallKind = Literal["capacity", "shape", "unsupported"]


@dataclasses.dataclass(frozen=True)
class Buffer:
  """One array a tile keeps in one memory space.

  Attributes:
    name: What it holds, for example "A".
    space: Where: "shared" or "registers" of a block; "L1", "L0A", "L0B",
      "L0C", "BT" of a cube core, "UB" of a vector core; "DRAM" or "GM" of all.
    needed_bytes: All copies together.
    available_bytes: Size of the space, which its buffers share.
    count: Copies (stages, ping-pong).
    shared_bytes: Of these, those that lie where another buffer of the same space
      does, which is not alive then.
  """

  name: str
  space: str
  needed_bytes: int
  available_bytes: int
  count: int
  shared_bytes: int = 0

  @property
  def own_bytes(self) -> int:
    """What it adds to what the space holds."""
    return self.needed_bytes - self.shared_bytes


@dataclasses.dataclass(frozen=True)
class Shortfall:
  """Why a tile cannot run.

  Attributes:
    kind: "capacity": the device has too little of something. "shape": a rule of
      the matrix unit or of the kernel that the tile breaks. "unsupported": a
      dtype or a device that the schedule does not do, whatever the tile.
    resource: What is short or broken: a memory space, "registers", "threads",
      "tile shape", "dtype" or "device".
    fields: Config fields that could mend it, the likeliest first; empty where
      no tile would.
    statement: What is needed and what there is, as the end of a sentence.
  """

  kind: ShortfallKind
  resource: str
  fields: tuple[str, ...]
  statement: str


def larger_first(**sizes: int) -> tuple[str, ...]:
  """Field names by falling size; ties in the order given."""
  return tuple(sorted(sizes, key=lambda name: -sizes[name]))


def held_bytes(buffers: Iterable[Buffer], space: str) -> int:
  """Bytes that buffers hold in one memory space, all together."""
  return sum(buffer.own_bytes for buffer in buffers if buffer.space == space)


def fullest(buffers: Iterable[Buffer], spaces: tuple[str, ...]) -> tuple[str, ...]:
  """Those of `spaces` that the buffers fill to the greatest share."""
  filled: dict[str, float] = {}
  for buffer in buffers:
    if buffer.space in spaces:
      share = buffer.own_bytes / buffer.available_bytes
      filled[buffer.space] = filled.get(buffer.space, 0.0) + share
  most = max(filled.values(), default=0.0)
  return tuple(space for space, share in filled.items() if share == most)
