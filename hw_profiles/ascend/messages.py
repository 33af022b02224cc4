"""What bishengir-compile says beside its output: overflows, retries, what it gave up."""

import dataclasses
import re

from hw_profiles.ascend.memref import SPACES

_OVERFLOW = re.compile(r"\b(ub|cbuf|cc) overflow, requires (\d+) bits while (\d+) bits available")
_RETRIED = re.compile(
  r"\[NOTE\] Due to \w+ overflow, (?P<changes>.*?); compilation"
  r" (?P<outcome>then succeeded|still failed)"
)
_SET = re.compile(r"set ([\w-]+) to (\w+)")
_SUB_BLOCK = re.compile(r"\[hivm-bind-sub-block\] revert [\w$]+: (.*)")


@dataclasses.dataclass(frozen=True)
class Overflow:
  """A memory that the program does not fit into.

  Attributes:
    space: "UB", "L1" or "L0C".
    needed_bits: What the compiler wanted; on a 910 after it had given up double
      buffering.
    available_bits: What the memory has.
  """

  space: str
  needed_bits: int
  available_bits: int

  def __str__(self) -> str:
    """In the words of a plan's reason."""
    return (
      f"{self.space} needs {self.needed_bits} bits ({self.needed_bits // 8} B),"
      f" there are {self.available_bits} bits ({self.available_bits // 8} B)"
    )


@dataclasses.dataclass(frozen=True)
class Messages:
  """What a log says of the plan.

  Attributes:
    overflow: The last overflow reported; None where the program fits.
    given_up: Options that the compiler switched off by itself after an overflow,
      "enable-auto-multi-buffer" and the like.
    sub_block_reverted: Why it did not share the tile between vector cores
      although it was asked to; "" where it did, or was not asked.
    notes: Its notes and warnings, each once.
  """

  overflow: Overflow | None
  given_up: tuple[str, ...]
  sub_block_reverted: str
  notes: tuple[str, ...]


def parse_messages(log: str) -> Messages:
  """Read a log of bishengir-compile or bishengir-compile-a5."""
  overflow = None
  for space, needed, available in _OVERFLOW.findall(log):
    overflow = Overflow(SPACES[space], int(needed), int(available))
  given_up = [
    option
    for match in _RETRIED.finditer(log)
    for option, value in _SET.findall(match["changes"])
    if value == "false"
  ]
  reverted = _SUB_BLOCK.search(log)
  # it looks for its code generator, which this route does without
  notes = [
    line.strip()
    for line in log.splitlines()
    if ("[NOTE]" in line or "warning:" in line or _SUB_BLOCK.search(line)) and "hivmc" not in line
  ]
  return Messages(
    overflow=overflow,
    given_up=tuple(dict.fromkeys(given_up)),
    sub_block_reverted=reverted[1].strip() if reverted else "",
    notes=tuple(dict.fromkeys(re.sub(r"loc\([^)]*\):?\s*", "", note) for note in notes)),
  )
