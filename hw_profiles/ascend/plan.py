"""What Huawei's compiler plans for one kernel on one target."""

import dataclasses
from typing import Literal

from hw_profiles.ascend.messages import Overflow
from hw_profiles.errors import InfeasibleTileError
from hw_profiles.frozen_map import FrozenMap

DoubleBuffering = Literal["kept", "dropped", "not asked for", "nothing to buffer", "does not fit"]


@dataclasses.dataclass(frozen=True)
class PlannedBuffer:
  """One array that a core's program keeps on chip.

  Attributes:
    space: "UB", "L1" or "L0C".
    role: What it is to a product: "A", "B" or "accumulator", with the product's
      number from the second on ("B 2"); "" for any other.
    shape: As the compiler lays it out: L1 and L0C in fractals.
    element: "bf16", "f32", ...
    addresses: Byte offset of each copy; two with double buffering.
    copy_bytes: Size of one copy.
  """

  space: str
  role: str
  shape: tuple[int, ...]
  element: str
  addresses: tuple[int, ...]
  copy_bytes: int

  @property
  def count(self) -> int:
    """Copies."""
    return len(self.addresses)

  @property
  def size_bytes(self) -> int:
    """All copies together."""
    return self.count * self.copy_bytes


@dataclasses.dataclass(frozen=True)
class Product:
  """One matrix product of the cube: its operands' sizes as they lie in L1.

  Attributes:
    rows: Rows of A, padded to fractals.
    depth: Columns of A.
    columns: Columns of B.
    element: Of the operands.
  """

  rows: int
  depth: int
  columns: int
  element: str


@dataclasses.dataclass(frozen=True)
class CoreProgram:
  """What one kind of core runs.

  Attributes:
    function: Its name in the compiled module.
    core: "AIC" (cube) or "AIV" (vector).
    buffers: What it keeps on chip, by space and address. UB buffers of one
      program share addresses where they are not alive together.
    products: Its matrix products.
    flags_set: Cross-core flags that it sets, one entry a statement.
    flags_awaited: Those that it waits for.
  """

  function: str
  core: str
  buffers: tuple[PlannedBuffer, ...]
  products: tuple[Product, ...]
  flags_set: tuple[str, ...]
  flags_awaited: tuple[str, ...]

  def peak_bytes(self, space: str) -> int:
    """The end of the last buffer in a memory; 0 where it has none there."""
    ends = (
      address + buffer.copy_bytes
      for buffer in self.buffers
      if buffer.space == space
      for address in buffer.addresses
    )
    return max(ends, default=0)


@dataclasses.dataclass(frozen=True)
class AscendPlan:
  """A kernel as the compiler plans it, up to memory addresses; no machine code is made.

  L0A and L0B are missing: the compiler neither plans nor checks them. See
  `hw_profiles.ascend.l0_slices` for this library's own figure.

  Attributes:
    kernel: Name of the kernel.
    target: The compiler's name of the device.
    multi_buffer: Whether double buffering was asked for.
    sub_block: Whether a mixed tile was to be shared between the vector cores.
    fits: Whether the compiler found room for everything.
    overflow: What did not fit, else None.
    core: "AIC", "AIV" or "mixed"; "" without a fit.
    programs: One a kind of core; empty without a fit.
    workspace_bytes_per_block: GM workspace between cube and vector cores, of one
      block (one program id).
    double_buffering: What became of it. A 910 drops it where memory is short and
      says so in a note only; where nothing is loaded in a loop there is "nothing
      to buffer"; a plan that "does not fit" has none.
    given_up: All the options the compiler switched off for lack of memory.
    sub_block_reverted: Why the vector cores do not share the tile although they
      were to; "" otherwise.
    notes: The compiler's notes and warnings.
    stages: Texts by stage: "triton" as given, "simplified", "linalg", "hivm", and
      one a pass where they were asked for.
  """

  kernel: str
  target: str
  multi_buffer: bool
  sub_block: bool
  fits: bool
  overflow: Overflow | None
  core: str
  programs: tuple[CoreProgram, ...]
  workspace_bytes_per_block: int
  double_buffering: DoubleBuffering
  given_up: tuple[str, ...]
  sub_block_reverted: str
  notes: tuple[str, ...]
  stages: FrozenMap[str, str] = dataclasses.field(repr=False, compare=False)

  @property
  def reason(self) -> str:
    """Why it does not fit; empty where it does."""
    return "" if self.overflow is None else str(self.overflow)

  @property
  def buffers(self) -> tuple[PlannedBuffer, ...]:
    """The buffers of all programs."""
    return tuple(buffer for program in self.programs for buffer in program.buffers)

  def peak_bytes(self, space: str) -> int:
    """The end of the last buffer in a memory, whichever core uses it."""
    return max((program.peak_bytes(space) for program in self.programs), default=0)

  def role_bytes(self, role: str) -> int:
    """All copies of the buffers of a role ("A", "B", "accumulator", "B 2")."""
    return sum(buffer.size_bytes for buffer in self.buffers if buffer.role == role)

  def check(self) -> None:
    """Raises InfeasibleTileError(reason) where it does not fit."""
    if not self.fits:
      raise InfeasibleTileError(f"{self.kernel} on {self.target}: {self.reason}")
