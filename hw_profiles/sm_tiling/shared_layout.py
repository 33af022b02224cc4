"""Layouts of a tile in shared memory: where element (row, column) lies."""

import abc
import dataclasses

from hw_profiles.arguments import at_least, round_up
from hw_profiles.sm_tiling.banks import BANK_BYTES, BANKS

LAYER_BYTES = BANKS * BANK_BYTES  # one word of every bank
CHUNK_BYTES = 16  # what the tensor memory accelerator moves as one


def _is_power_of_two(value: int) -> bool:
  return value > 0 and value & (value - 1) == 0


def _powers_around(value: int) -> str:
  below = 1 << (value.bit_length() - 1)
  return f"{below} and {2 * below}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedLayout(abc.ABC):
  """A rows x columns tile in shared memory.

  Attributes:
    rows: At least 1.
    columns: At least 1.
    element_bytes: Bytes of an element.
  """

  rows: int
  columns: int
  element_bytes: int = 4

  def __post_init__(self) -> None:
    for name in ("rows", "columns", "element_bytes"):
      at_least(name, getattr(self, name), 1)

  @abc.abstractmethod
  def offset_bytes(self, row: int, column: int) -> int:
    """`address` of an element that exists."""

  @property
  def size_bytes(self) -> int:
    """Shared memory the tile takes, from its first byte to its last."""
    return self.rows * self.columns * self.element_bytes

  def address(self, row: int, column: int) -> int:
    """Byte offset of (row, column) from the start of the tile.

    Raises:
      ValueError: the tile has no such element.
    """
    for name, value, count in (("row", row, self.rows), ("column", column, self.columns)):
      at_least(name, value, 0)
      if value >= count:
        raise ValueError(f"{name}={value}: expected 0 to {count - 1}, the tile has {count}")
    return self.offset_bytes(row, column)

  def row_addresses(self, row: int) -> tuple[int, ...]:
    """Addresses of a row's elements."""
    return tuple(self.address(row, column) for column in range(self.columns))

  def column_addresses(self, column: int) -> tuple[int, ...]:
    """Addresses of a column's elements."""
    return tuple(self.address(row, column) for row in range(self.rows))

  def allows_vectors(self, width_bytes: int) -> bool:
    """Whether every aligned run of `width_bytes` in a row is aligned and contiguous.

    A run is `width_bytes / element_bytes` columns that start at a multiple of
    their number; a run that the row's end cuts off is not counted.

    Raises:
      ValueError: `width_bytes` is no multiple of the element size.
    """
    at_least("width_bytes", width_bytes, 1)
    if width_bytes % self.element_bytes:
      raise ValueError(
        f"width_bytes={width_bytes}: expected a multiple of element_bytes={self.element_bytes}"
      )
    run = width_bytes // self.element_bytes
    for row in range(self.rows):
      for first in range(0, self.columns - run + 1, run):
        start = self.offset_bytes(row, first)
        if start % width_bytes or any(
          self.offset_bytes(row, first + step) != start + step * self.element_bytes
          for step in range(run)
        ):
          return False
    return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class PitchedLayout(SharedLayout):
  """Row after row, each followed by padding.

      address = (row · (columns + pad_columns) + column) · element_bytes

  With a pitch of 33 words a column of a 32 x 32 float32 tile lies in 32 banks,
  with 32 in one. A pad of 4 floats keeps rows of 128 floats aligned to 16 B
  (528 = 33 · 16), so float4 loads still work; pads of 1 to 3 do not.

  Attributes:
    pad_columns: Elements after each row; 0 or more.
  """

  pad_columns: int = 0

  def __post_init__(self) -> None:
    super().__post_init__()
    at_least("pad_columns", self.pad_columns, 0)

  @property
  def pitch_bytes(self) -> int:
    """From the start of one row to that of the next."""
    return (self.columns + self.pad_columns) * self.element_bytes

  @property
  def size_bytes(self) -> int:
    """Shared memory the tile takes, every row with its padding."""
    return self.rows * self.pitch_bytes

  @property
  def overhead(self) -> float:
    """Padding over data."""
    return self.pad_columns / self.columns

  def offset_bytes(self, row: int, column: int) -> int:
    """See the class."""
    return row * self.pitch_bytes + column * self.element_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class XorLayout(SharedLayout):
  """Columns permuted within each row by an exclusive or with the row; no extra bytes.

      address = (row · columns + (column xor (row · group mod window))) · element_bytes

  `group` is the run of columns that stays together: 1 spreads single elements
  (column xor row), 4 floats keep their float4s (column xor 4·row). The window
  is one word of every bank, 128 B, so rows repeat after 128 B / group.

  Attributes:
    group_columns: A power of two.

  Raises:
    ValueError: the window does not divide the columns (then some element would
      leave its row), or a size is not a power of two.
  """

  group_columns: int = 1

  def __post_init__(self) -> None:
    super().__post_init__()
    at_least("group_columns", self.group_columns, 1)
    for name in ("group_columns", "element_bytes"):
      value = getattr(self, name)
      if not _is_power_of_two(value):
        raise ValueError(
          f"{name}={value}: expected a power of two; nearest are {_powers_around(value)}"
        )
    if self.group_columns > self.window_columns:
      raise ValueError(
        f"group_columns={self.group_columns}: expected at most the {self.window_columns} that"
        f" {LAYER_BYTES} B hold"
      )
    if self.columns % self.window_columns:
      raise ValueError(
        f"columns={self.columns}: expected a multiple of {self.window_columns}, the {LAYER_BYTES} B"
        f" that are permuted; nearest is {round_up(self.columns, self.window_columns)}"
      )

  @property
  def window_columns(self) -> int:
    """Columns within which an element moves."""
    return max(LAYER_BYTES // self.element_bytes, 1)

  def offset_bytes(self, row: int, column: int) -> int:
    """See the class."""
    moved = column ^ (row * self.group_columns % self.window_columns)
    return (row * self.columns + moved) * self.element_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorCopySwizzle(SharedLayout):
  """What a bulk tensor copy writes: it cannot pad, so it permutes 16-byte chunks.

  A panel holds the columns of `span_bytes`; panels follow one another. Within
  a panel, with byte = row · span + the column's byte in the panel,

      address = byte xor (⌊byte / 128⌋ mod (span / 16)) · 16

  Attributes:
    span_bytes: 32, 64 or 128, the width of a panel.

  Raises:
    ValueError: the span is another, or does not divide a row.

  The permutation of CUTLASS's Swizzle<1|2|3, 4, 3> (mma_sm90_desc.hpp), which
  wgmma reads back.
  """

  span_bytes: int = 128

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.span_bytes not in (32, 64, 128):
      raise ValueError(f"span_bytes={self.span_bytes!r}: expected 32, 64 or 128")
    row_bytes = self.columns * self.element_bytes
    if row_bytes % self.span_bytes or CHUNK_BYTES % self.element_bytes:
      raise ValueError(
        f"columns={self.columns}: rows of {row_bytes} B; expected a multiple of"
        f" span_bytes={self.span_bytes}, in elements that divide {CHUNK_BYTES} B"
      )

  def offset_bytes(self, row: int, column: int) -> int:
    """See the class."""
    panel, byte = divmod(column * self.element_bytes, self.span_bytes)
    byte += row * self.span_bytes
    byte ^= byte // LAYER_BYTES % (self.span_bytes // CHUNK_BYTES) * CHUNK_BYTES
    return panel * self.rows * self.span_bytes + byte


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZOrderLayout(SharedLayout):
  """Bits of row and column interleaved, the column's lowest first (Morton order).

  A square of 2^n x 2^n elements is contiguous, so rows and columns of it are
  equally near. Where one side is longer, its remaining bits come on top.

  Raises:
    ValueError: rows or columns are not a power of two.
  """

  def __post_init__(self) -> None:
    super().__post_init__()
    for name in ("rows", "columns"):
      value = getattr(self, name)
      if not _is_power_of_two(value):
        raise ValueError(
          f"{name}={value}: expected a power of two; nearest are {_powers_around(value)}"
        )

  def offset_bytes(self, row: int, column: int) -> int:
    """See the class."""
    row_bits, column_bits = self.rows.bit_length() - 1, self.columns.bit_length() - 1
    index = place = 0
    for bit in range(max(row_bits, column_bits)):
      for value, count in ((column, column_bits), (row, row_bits)):
        if bit < count:
          index |= (value >> bit & 1) << place
          place += 1
    return index * self.element_bytes
