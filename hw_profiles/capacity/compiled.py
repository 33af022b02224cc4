"""What Huawei's compiler gives a tile of a portable kernel: what all ops have in common.

The portable Pallas kernel, taken through Triton IR, is compiled by
bishengir-compile (ascendnpu-ir 1.2.0), which decides what lies in L1, L0C and UB:

- A matrix operand lies in L1 as a whole block, twice where `num_stages` asks for
  double buffering, never more often. A product has its accumulator in L0C.
- On a 910 each vector operation writes its result to a block of UB. The block is
  free again after the last use of the result, and one operand that is used for
  the last time lends its block to a result of at most its element size. So UB
  holds what is alive at the fullest moment: the `Temporary` values that each op
  lists.
- On a 950 a chain of vector operations runs in registers: UB holds what is loaded
  and stored, and what lives across a reduction.
- On a 910 the two vector cores share a mixed tile, half of it each. On a 950 each
  has all of it.

`docs/ascend.md` has the evidence; L0A, L0B and BT are the device's own limits.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from hw_profiles.arguments import ceil_div
from hw_profiles.capacity.buffers import Buffer, Shortfall, held_bytes

NAME = "compiled"
DTYPES = ("bfloat16", "float16", "float32")
MOST_COPIES = 2
TIME_ASSUMPTION = (
  "no compiled kernel was timed: this is what a hand-written kernel of this tile would take"
)


class Memories(Protocol):
  """The memories of a cube core and its vector cores: an `NpuProfile`, or the compiler's target."""

  @property
  def l1_bytes(self) -> int:
    """L1."""
    ...

  @property
  def l0c_bytes(self) -> int:
    """L0C."""
    ...

  @property
  def ub_bytes(self) -> int:
    """UB of one vector core."""
    ...

  @property
  def has_l0c_to_ub(self) -> bool:
    """Whether it is of the 950 generation, whose cube cores reach UB."""
    ...


@dataclasses.dataclass(frozen=True)
class Temporary:
  """A value in UB at the fullest moment, in bytes.

  Attributes:
    name: What it is.
    element: For each element of the block.
    column: For each column.
    row: For each row.
    fixed: Beside.
  """

  name: str
  element: float = 0
  column: int = 0
  row: int = 0
  fixed: int = 0

  def bytes_of(self, rows: int, columns: int) -> int:
    """Of a block."""
    return int(self.element * rows * columns) + self.column * columns + self.row * rows + self.fixed


# silu(x) = x·e^x' / (1 + e^2x') with x' = -|x|/2, x first clamped from below. While the second
# select is written, alive are:
SELECT_910 = (
  Temporary("mask of the sign, in its constant's block", element=4),
  Temporary("clamped x", element=4),
  Temporary("exp(-|x|/2)", element=4),
  Temporary("its product with x", element=4),
  Temporary("selected numerator", element=4),
)


def copies(num_stages: int) -> int:
  """Blocks of an operand that the compiler keeps."""
  return min(num_stages, MOST_COPIES)


def vector_share(elements: int, memories: Memories, vector_cores: int) -> int:
  """Elements of a mixed tile in UB of one vector core."""
  return elements if memories.has_l0c_to_ub else ceil_div(elements, vector_cores)


def ub_buffers(
  temporaries: Iterable[Temporary], rows: int, columns: int, memories: Memories
) -> tuple[Buffer, ...]:
  """The values as buffers of UB."""
  return tuple(
    Buffer(one.name, "UB", one.bytes_of(rows, columns), memories.ub_bytes, 1) for one in temporaries
  )


def not_lowered(problem: Any, reasons: Iterable[tuple[bool, str]]) -> tuple[Shortfall, ...]:
  """Kind "unsupported": a dtype that the route does not take, then the reasons that hold."""
  found = []
  if problem.dtype not in DTYPES:
    found.append(f"dtype={problem.dtype!r}: the compiled kernel takes {', '.join(DTYPES)}")
  found += [statement for holds, statement in reasons if holds]
  return tuple(Shortfall("unsupported", "kernel", (), statement) for statement in found)


def shape_shortfalls(config: Any, blocks: Sequence[str], *, smallest: int) -> tuple[Shortfall, ...]:
  """Blocks of 2^i elements, as Triton has no others, and one copy or two."""
  found = []
  for name in blocks:
    value = getattr(config, name)
    if value < smallest or value & (value - 1):
      statement = f"Triton takes powers of two from {smallest} on, not {value}"
      found.append(Shortfall("shape", "tile shape", (name,), statement))
  if config.num_stages > MOST_COPIES:
    statement = f"Huawei's compiler keeps at most {MOST_COPIES} copies, not {config.num_stages}"
    found.append(Shortfall("shape", "tile shape", ("num_stages",), statement))
  return tuple(found)


def overfull(
  buffers: tuple[Buffer, ...], fields: dict[str, tuple[str, ...]], name: str
) -> tuple[Shortfall, ...]:
  """Kind "capacity": memories that the buffers overfill, with what they hold.

  Args:
    buffers: All of the tile.
    fields: For each memory that counts, the fields that could mend it.
    name: The device's.
  """
  found = []
  for space, changed in fields.items():
    held = [buffer for buffer in buffers if buffer.space == space]
    needed = held_bytes(held, space)
    if held and needed > held[0].available_bytes:
      what = "; ".join(buffer.name for buffer in held)
      statement = (
        f"{space} needs {needed} B for what the compiled kernel keeps ({what}), {name} has"
        f" {held[0].available_bytes} B"
      )
      found.append(Shortfall("capacity", space, changed, statement))
  return tuple(found)
