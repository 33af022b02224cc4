"""The memories of a core: their real size, poisoned, every access checked."""

import dataclasses
import math

import ml_dtypes
import numpy as np

from hw_profiles.ascend import AscendTarget
from hw_profiles.ascend.memref import MemrefType

DTYPES: dict[str, np.dtype] = {
  "f16": np.dtype(np.float16),
  "bf16": np.dtype(ml_dtypes.bfloat16),
  "f32": np.dtype(np.float32),
  "f64": np.dtype(np.float64),
  "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
  "i8": np.dtype(np.int8),
  "i16": np.dtype(np.int16),
  "i32": np.dtype(np.int32),
  "i64": np.dtype(np.int64),
  "index": np.dtype(np.int64),
  "i1": np.dtype(np.bool_),
}

# What fresh memory holds. As float16, bfloat16 or float32 it is a small negative
# number, not a NaN that a comparison would swallow.
POISON = 0xA5


class OutOfBoundsError(RuntimeError):
  """A program accessed what lies outside of a memory or an array."""


@dataclasses.dataclass(frozen=True, eq=False)
class View:
  """Part of a memory, as a program sees it.

  Attributes:
    name: Of the memory or array, for messages.
    raw: All its bytes.
    element: "f32", "i1", ...
    offset: Of the first element, in elements of the memory: of bits for "i1".
    shape: Sizes.
    strides: In elements.
  """

  name: str
  raw: np.ndarray
  element: str
  offset: int
  shape: tuple[int, ...]
  strides: tuple[int, ...]

  def _extent(self) -> tuple[int, int]:
    """First and last element; raises OutOfBoundsError where they are not there."""
    reach = [(size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)]
    first = self.offset + sum(part for part in reach if part < 0)
    last = self.offset + sum(part for part in reach if part > 0)
    bits = 1 if self.element == "i1" else 8 * DTYPES[self.element].itemsize
    if first < 0 or (last + 1) * bits > 8 * self.raw.size:
      raise OutOfBoundsError(
        f"{self.name}: elements {first} to {last} of {self.element}, it has"
        f" {8 * self.raw.size // bits}"
      )
    return first, last

  def _elements(self) -> np.ndarray:
    """The elements in place; of bits there is no such thing."""
    self._extent()
    dtype = DTYPES[self.element]
    usable = self.raw.size // dtype.itemsize * dtype.itemsize
    flat = self.raw[:usable].view(dtype)
    return np.lib.stride_tricks.as_strided(
      flat[self.offset :], self.shape, [stride * dtype.itemsize for stride in self.strides]
    )

  def load(self) -> np.ndarray:
    """A copy of the elements."""
    if 0 in self.shape:
      return np.empty(self.shape, DTYPES[self.element])
    if self.element != "i1":
      return self._elements().copy()
    start, bits = self._bits()
    return np.lib.stride_tricks.as_strided(bits[start:], self.shape, self.strides).astype(np.bool_)

  def _bits(self) -> tuple[int, np.ndarray]:
    """The bytes that hold the elements of a mask, unpacked, and where the first one is.

    Masks are packed: eight elements a byte, the first in the lowest bit.
    """
    first, last = self._extent()
    held = self.raw[first // 8 : last // 8 + 1]
    return self.offset - first // 8 * 8, np.unpackbits(held, bitorder="little")

  def store(self, values: np.ndarray) -> None:
    """Replace the elements, converted to their dtype; one is stored everywhere."""
    if 0 in self.shape:
      return
    given = np.asarray(values)
    if given.size == math.prod(self.shape):
      given = given.reshape(self.shape)
    given = np.broadcast_to(given, self.shape)
    if self.element != "i1":
      self._elements()[...] = given.astype(DTYPES[self.element])
      return
    start, bits = self._bits()
    np.lib.stride_tricks.as_strided(bits[start:], self.shape, self.strides)[...] = given
    first, last = self._extent()
    self.raw[first // 8 : last // 8 + 1] = np.packbits(bits, bitorder="little")

  def reshaped(self, shape: tuple[int, ...]) -> "View":
    """The same elements in another shape, in place.

    Raises:
      NotImplementedError: no strides do that.
    """
    if math.prod(shape) != math.prod(self.shape):
      raise NotImplementedError(f"{self.name}: {self.shape} as {shape}")
    strides = _merged_strides(self.shape, self.strides, shape)
    if strides is None:
      raise NotImplementedError(f"{self.name}: {self.shape} with {self.strides} as {shape}")
    return dataclasses.replace(self, shape=shape, strides=strides)

  def part(self, offsets: list[int], sizes: list[int], strides: list[int]) -> "View":
    """A rectangle with steps."""
    start = self.offset + sum(
      offset * own for offset, own in zip(offsets, self.strides, strict=True)
    )
    return dataclasses.replace(
      self,
      offset=start,
      shape=tuple(sizes),
      strides=tuple(step * own for step, own in zip(strides, self.strides, strict=True)),
    )

  def as_element(self, element: str) -> "View":
    """The same bytes as elements of another dtype of the same size."""
    return dataclasses.replace(self, element=element)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
  """Strides of a contiguous array."""
  strides, step = [], 1
  for size in reversed(shape):
    strides.append(step)
    step *= size
  return tuple(reversed(strides))


def _merged_strides(
  shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[int, ...] | None:
  """Strides of `wanted` over the same elements, or None: NumPy knows whether there are any."""
  if 0 in shape:
    return row_major(wanted)
  probe = np.lib.stride_tricks.as_strided(np.empty(1, np.int8), shape, strides)
  try:
    return np.reshape(probe, wanted, copy=False).strides
  except ValueError:
    return None


@dataclasses.dataclass(frozen=True, eq=False)
class Memories:
  """On-chip memories of one core."""

  spaces: dict[str, np.ndarray]

  def view(self, address: int, kind: MemrefType) -> View:
    """The buffer at a byte address; raises OutOfBoundsError where the memory ends before."""
    raw = self.spaces[kind.space]
    if address < 0 or address + kind.size_bytes > raw.size:
      raise OutOfBoundsError(
        f"{kind.space}: a buffer of {kind.size_bytes} B at {address}, it has {raw.size} B"
      )
    unit = 1 if kind.element == "i1" else 8 * DTYPES[kind.element].itemsize
    return View(
      kind.space, raw, kind.element, 8 * address // unit, kind.shape, row_major(kind.shape)
    )


def poisoned(size_bytes: int) -> np.ndarray:
  """Fresh memory."""
  return np.full(size_bytes, POISON, np.uint8)


def core_memories(target: AscendTarget) -> tuple[Memories, tuple[Memories, Memories]]:
  """Memories of a cube core and of its two vector cores.

  The cube core reaches the UB of the first vector core, and vector cores its L1,
  as they do on a 950.
  """
  l1, l0c = poisoned(target.l1_bytes), poisoned(target.l0c_bytes)
  ubs = poisoned(target.ub_bytes), poisoned(target.ub_bytes)
  cube = Memories({"L1": l1, "L0C": l0c, "UB": ubs[0]})
  vectors = tuple(Memories({"L1": l1, "L0C": l0c, "UB": ub}) for ub in ubs)
  return cube, (vectors[0], vectors[1])


def array_view(name: str, array: np.ndarray) -> View:
  """An array in GM, flat: as kernels get it."""
  raw = array.reshape(-1).view(np.uint8)
  element = next(key for key, dtype in DTYPES.items() if dtype == array.dtype and key != "index")
  return View(name, raw, element, 0, (array.size,), (1,))
