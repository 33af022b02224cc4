"""The memory types of HIVM: shape, element and address space."""

import dataclasses
import math
import re

from hw_profiles.arguments import ceil_div
from hw_profiles.ascend.errors import UnsupportedIrError

# the compiler's names of the memories, and those of this library
SPACES = {"ub": "UB", "cbuf": "L1", "cc": "L0C", "ca": "L0A", "cb": "L0B", "gm": "GM"}

_BITS = {
  "f64": 64,
  "i64": 64,
  "f32": 32,
  "i32": 32,
  "f16": 16,
  "bf16": 16,
  "i16": 16,
  "i8": 8,
  "f8E4M3FN": 8,
  "f8E5M2": 8,
  "i1": 1,
}
_TYPE = re.compile(
  r"memref<(?P<sizes>(?:[\d?]+x)*)(?P<element>\w+)"
  r"(?:, strided<[^>]*>|, affine_map<.*?>|, #map\d*)?"
  r"(?:, #hivm\.address_space<(?P<space>\w+)>)?>"
)


@dataclasses.dataclass(frozen=True)
class MemrefType:
  """One memref type.

  Attributes:
    shape: Sizes; -1 where the type leaves one open.
    element: "bf16", "f32", "i1", ...
    space: "UB", "L1", "L0C" or "GM".
  """

  shape: tuple[int, ...]
  element: str
  space: str

  @property
  def size_bytes(self) -> int:
    """Bytes of all elements; elements of one bit are packed."""
    if -1 in self.shape:
      raise UnsupportedIrError(f"a buffer whose size is not known at compile time: {self}")
    return ceil_div(math.prod(self.shape) * _BITS[self.element], 8)


def parse_memref(text: str) -> MemrefType:
  """The type that `text` begins with.

  Raises:
    UnsupportedIrError: it is no memref type, or of an unknown element or space.
  """
  match = _TYPE.match(text)
  if match is None:
    raise UnsupportedIrError(f"expected a memref type, got {text[:120]!r}")
  space = match["space"] or "gm"
  if space not in SPACES or match["element"] not in _BITS:
    raise UnsupportedIrError(f"a memref of an unknown element or address space: {match[0]!r}")
  sizes = tuple(-1 if size == "?" else int(size) for size in match["sizes"].split("x")[:-1])
  return MemrefType(sizes, match["element"], SPACES[space])
