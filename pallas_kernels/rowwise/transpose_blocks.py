"""How the Hopper transpose cuts x, and which elements a thread moves: arithmetic on indices alone.

Rows of 7239 16-bit elements begin at any even byte: what is stored by element, or
in blocks that begin at the same element of every row, covers most of its 32-byte
sectors in part, each of which L2 merges by itself. Here each row of the result has
its own places to be cut at, those where its sectors begin:

    a block is `ROWS` rows of x by `WIDTH` columns, and `SECTOR` rows that the block
    above it has, too; of column c it stores the elements from the first sector in it
    to the first sector of the next block, in 16 bytes a thread

In shared memory the 16 bytes of a block's row of 128 are exchanged by its number
(TMA's 128-byte swizzle), and neighbouring lanes begin at another row, so that no two
lanes of a warp meet in a bank.

All methods take ints, arrays of them, or a `ThreadNumber`.
"""

import dataclasses
from typing import Any

from pallas_kernels.rowwise.warpgroup_sums import LANES, WARPS

# Of 16 bits each, in 32 bytes and in 16.
SECTOR = 16
VECTOR = 8
# An H200, cold L2, 7239 x 12288: 97.9 us; 102.6 with 96 rows, 100.4 where four blocks one below
# the other come before those to the right, 99.9 without a swizzle.
ROWS = 224
HEIGHT = ROWS + SECTOR
WIDTH = 64
SWIZZLE_BYTES = 128
# Neighbouring lanes that store neighbours of a column, two sectors (106.0 us with one). As many
# read one bank of shared memory, in one word of which rows eight apart lie.
_LANES = 4
# Warpgroups; with four and 8 neighbouring lanes 97.7 us, but 40.8 of 7239 x 5000, not 40.7.
CONSUMERS = 2
# Columns that a warp has at once, and all of its block.
_COLUMNS = LANES // _LANES
assert WARPS * CONSUMERS * _COLUMNS == WIDTH
# From one of a thread's vectors to its next.
STEP = _LANES * VECTOR
VECTORS = ROWS // STEP
# A vector's order of rows is turned by two for every neighbour.
_TURN = VECTOR // _LANES
TURNS = tuple(bit for bit in (2, 4) if bit >= _TURN)
# Of one warpgroup, all in one half of the block.
CONSUMER_COLUMNS = WIDTH // CONSUMERS


@dataclasses.dataclass(frozen=True)
class Vectors:
  """What a thread has of a block.

  Attributes:
    neighbour: Which of the lanes that share a column.
    within: The column, in the block.
    column: The column, of x.
    rows: The first row, of x, of each vector.
  """

  neighbour: Any
  within: Any
  column: Any
  rows: list[Any]

  @property
  def turned(self) -> Any:
    """What the thread's order of the rows of a vector is exclusive-or'ed with."""
    return self.neighbour * _TURN

  def places(self, first_row: Any) -> list[Any]:
    """Where the first vector's elements are in shared memory, in the thread's order.

    The i-th vector's are `STEP` rows, whole swizzles, further each.

    Args:
      first_row: The row of x that is the block's first there.
    """
    start = self.rows[0] - first_row
    return [element(start + (self.turned ^ i), self.within) for i in range(VECTOR)]


@dataclasses.dataclass(frozen=True)
class TransposeBlocks:
  """The blocks of x [rows, columns]."""

  rows: int
  columns: int

  @property
  def down(self) -> int:
    """Blocks one below the other: the last has the last row before its next block's sectors."""
    return -(-(self.rows + SECTOR) // ROWS)

  @property
  def across(self) -> int:
    """Blocks side by side."""
    return -(-self.columns // WIDTH)

  @property
  def count(self) -> int:
    """Of them all."""
    return self.down * self.across

  def place(self, item: Any) -> tuple[Any, Any]:
    """Block row and block column of the item-th block; those side by side follow each other."""
    block_row = item // self.across
    return block_row, item - block_row * self.across

  def shift(self, column: Any) -> Any:
    """Elements before the first sector that begins in a row of the result, of a column of x."""
    return (column * (-self.rows % SECTOR)) % SECTOR

  def vectors(self, thread: Any, block_row: Any, block_column: Any) -> Vectors:
    """What the consumers' thread has of a block."""
    warp, lane = thread // LANES, thread % LANES
    neighbour, column = lane % _LANES, lane // _LANES
    # neighbours of two in a word of shared memory are another warp's
    within = column * 2 + warp % 2 + (warp // 2) * (2 * _COLUMNS)
    at = block_column * WIDTH + within
    first = block_row * ROWS - SECTOR + self.shift(at) + neighbour * VECTOR
    return Vectors(neighbour, within, at, [first + i * STEP for i in range(VECTORS)])

  def is_inside(self, block_row: Any, block_column: Any) -> Any:
    """Whether all of a block's vectors are in the result."""
    return (
      (block_row > 0)
      & (block_row * ROWS + ROWS <= self.rows)
      & (block_column * WIDTH + WIDTH <= self.columns)
    )


def element(row: Any, within: Any) -> Any:
  """Where an element of a block is in shared memory, of its row there and its column."""
  return row * WIDTH + ((within // VECTOR) ^ (row % VECTOR)) * VECTOR + within % VECTOR
