"""Buffers of a tile plan, and what to say when one does not fit."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Buffer:
  """One array a tile keeps in one memory space.

  Attributes:
    name: What it holds, for example "A".
    space: Where: "shared" or "registers" of a block; "L1", "L0A", "L0B",
      "L0C", "BT" of a cube core, "UB" of a vector core, "GM".
    needed_bytes: All copies together.
    available_bytes: Size of the space, which its buffers share.
    count: Copies (stages, ping-pong).
  """

  name: str
  space: str
  needed_bytes: int
  available_bytes: int
  count: int


@dataclasses.dataclass(frozen=True)
class Shortfall:
  """Why a tile cannot run.

  Attributes:
    resource: What is short or broken: a memory space, "registers", "threads",
      "tile shape", "dtype" or "device".
    fields: Config fields that could mend it, the likeliest first; empty where
      no tile would.
    statement: What is needed and what there is, as the end of a sentence.
    hint: What to do where no field mends it; empty where nothing helps.
  """

  resource: str
  fields: tuple[str, ...]
  statement: str
  hint: str = ""


def larger_first(**sizes: int) -> tuple[str, ...]:
  """Field names by falling size; ties in the order given."""
  return tuple(sorted(sizes, key=lambda name: -sizes[name]))
