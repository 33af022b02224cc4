"""One core as a coroutine: it runs until it has to wait for a flag of another core."""

import dataclasses
import itertools
import re
from collections.abc import Generator
from typing import Any

import numpy as np

from hw_profiles.ascend.memref import parse_memref
from pallas_kernels.lowering.execution import matrices, register_vectors, vectors
from pallas_kernels.lowering.execution.generic_text import Operation, Region
from pallas_kernels.lowering.execution.memory import Memories, View
from pallas_kernels.lowering.execution.scalars import affine, arith

Coroutine = Generator[str, None, list[Any]]
_DYNAMIC = -(2**63)
# Order inside a core (pipes run one after the other here), and what has no effect
# on values.
_NO_EFFECT = frozenset(
  {
    "hivm.hir.set_ffts_base_addr",
    "hivm.hir.set_mask_norm",
    "hivm.hir.set_flag",
    "hivm.hir.wait_flag",
    "hivm.hir.pipe_barrier",
    "hivm.hir.set_ctrl",
    "annotation.mark",
    "memref.dealloc",
  }
)


class Flags:
  """Counters that cores set and take, each kind of core for the other."""

  def __init__(self, vector_cores: int) -> None:
    """None is set."""
    self._from_cube = [dict[int, int]() for _ in range(vector_cores)]
    self._from_vectors = [dict[int, int]() for _ in range(vector_cores)]

  def set(self, core: "Core", flag: int) -> None:
    """A cube core sets a flag for all its vector cores, a vector core for the cube core."""
    counters = self._from_cube if core.kind == "AIC" else [self._from_vectors[core.sub_block]]
    for counter in counters:
      counter[flag] = counter.get(flag, 0) + 1

  def take(self, core: "Core", flag: int) -> bool:
    """Whether the flag was set; then it is set once less. A cube core waits for all."""
    counters = self._from_vectors if core.kind == "AIC" else [self._from_cube[core.sub_block]]
    if any(counter.get(flag, 0) == 0 for counter in counters):
      return False
    for counter in counters:
      counter[flag] -= 1
    return True


@dataclasses.dataclass(eq=False)
class Core:
  """One core of one block.

  Attributes:
    kind: "AIC" or "AIV".
    sub_block: Which of the vector cores.
    block: The program's index.
    memories: Its on-chip memories.
    flags: Shared with the other cores of the block.
    functions: Functions of the module, by name.
    maps: Affine maps by name.
    unified_buffers: UB of each vector core: what a cube core writes there, all get.
  """

  kind: str
  sub_block: int
  block: int
  memories: Memories
  flags: Flags
  functions: dict[str, Operation]
  maps: dict[str, str]
  unified_buffers: tuple[np.ndarray, ...]

  def run(self, function: Operation, arguments: list[Any]) -> Coroutine:
    """Run a function; yields where it waits, or after it set a flag."""
    body = function.regions[0]
    environment = dict(zip(body.arguments, arguments, strict=True))
    return (yield from self._block(body, environment))

  def _block(self, region: Region, environment: dict[str, Any]) -> Coroutine:
    for operation in region.operations:
      operands = [environment[name] for name in operation.operands]
      if operation.name in ("scf.yield", "func.return"):
        return operands
      results = yield from self._operation(operation, operands, environment)
      environment.update(zip(operation.results, results, strict=True))
    return []

  def _operation(
    self, operation: Operation, operands: list[Any], environment: dict[str, Any]
  ) -> Coroutine:
    match operation.name:
      case "scf.for":
        return (yield from self._loop(operation, operands, environment))
      case "scf.if":
        taken = 0 if operands[0] else 1
        if taken == len(operation.regions):
          return []
        return (yield from self._block(operation.regions[taken], environment))
      case "vector.mask":
        inner = operation.regions[0].operations[0]
        found = [environment[name] for name in inner.operands]
        return [register_vectors.masked(operands[0], inner, found)]
      case "func.call":
        callee = operation.word("callee").removeprefix("@")
        return (yield from self.run(self.functions[callee], operands))
      case "hivm.hir.sync_block_wait":
        flag = self._flag(operation, operands)
        while not self.flags.take(self, flag):
          yield "waits"
        return []
      case "hivm.hir.sync_block_set":
        self.flags.set(self, self._flag(operation, operands))
        yield "set"
        return []
    if operation.name in _NO_EFFECT:
      return []
    result = self._value(operation, operands)
    return [result] if operation.results else []

  def _loop(
    self, operation: Operation, operands: list[Any], environment: dict[str, Any]
  ) -> Coroutine:
    low, high, step, *carried = operands
    (body,) = operation.regions
    for index in range(int(low), int(high), int(step)):
      environment.update(zip(body.arguments, [index, *carried], strict=True))
      carried = yield from self._block(body, environment)
    return carried

  @staticmethod
  def _flag(operation: Operation, operands: list[Any]) -> int:
    static = operation.word("static_flag_id")
    return int(static) if static else int(operands[0])

  def _value(self, operation: Operation, operands: list[Any]) -> Any:
    dialect, _, name = operation.name.partition(".")
    if dialect in ("arith", "math"):
      return arith(operation, operands)
    if dialect == "affine":
      found = affine(self._map(operation), [int(x) for x in operands])
      return {"apply": lambda: found[0], "min": lambda: min(found), "max": lambda: max(found)}[
        name
      ]()
    if dialect == "memref":
      return self._memref(operation, name, operands)
    if dialect == "vector":
      return register_vectors.apply(operation, operands, self._map)
    if dialect == "hivm":
      return self._hivm(operation, operands)
    raise NotImplementedError(operation.name)

  def _map(self, operation: Operation, key: str = "map") -> str:
    match = re.search(
      rf"\b{key} = (?:(#map\d*)|affine_map<(.*?)>(?=[,\s}}]|$))", operation.attributes
    )
    if match is None:
      raise NotImplementedError(f"{operation.name} without {key}")
    return self.maps[match[1]] if match[1] else match[2]

  def _memref(self, operation: Operation, name: str, operands: list[Any]) -> Any:
    match name:
      case "cast" | "memory_space_cast":
        return operands[0]
      case "alloca" | "alloc":
        kind = parse_memref(operation.result_types[0])
        raw = np.zeros(max(1, kind.size_bytes), np.uint8)
        return Memories({kind.space: raw}).view(0, kind)
      case "load":
        memory, *indices = operands
        ones = [1] * len(indices)
        return memory.part([int(x) for x in indices], ones, ones).load().reshape(-1)[0].item()
      case "store":
        value, memory, *indices = operands
        ones = [1] * len(indices)
        memory.part([int(x) for x in indices], ones, ones).store(np.asarray(value))
        return None
      case "view":
        kind = parse_memref(operation.result_types[0])
        memory = Memories({kind.space: operands[0].raw})
        return memory.view(operands[0].offset + int(operands[1]), kind)
      case "subview" | "reinterpret_cast":
        return self._part(operation, name, operands)
      case "expand_shape":
        return operands[0].reshaped(parse_memref(operation.result_types[0]).shape)
      case "collapse_shape":
        return operands[0].reshaped(_collapsed(operation, operands[0].shape))
    raise NotImplementedError(operation.name)

  @staticmethod
  def _part(operation: Operation, name: str, operands: list[Any]) -> View:
    base, *dynamic = operands
    left = iter(dynamic)
    offsets, sizes, strides = (
      [int(next(left)) if part == _DYNAMIC else part for part in operation.integers(key)]
      for key in ("static_offsets", "static_sizes", "static_strides")
    )
    if name == "reinterpret_cast":
      return dataclasses.replace(
        base, offset=offsets[0], shape=tuple(sizes), strides=tuple(strides)
      )
    found = base.part(offsets, sizes, strides)
    wanted = parse_memref(operation.result_types[0]).shape
    if len(wanted) == len(found.shape):
      return found
    # some dimensions of 1 are left out: the first choice that leaves the type's
    ones = [axis for axis, size in enumerate(found.shape) if size == 1]
    for dropped in itertools.combinations(ones, len(found.shape) - len(wanted)):
      kept = [axis for axis in range(len(found.shape)) if axis not in dropped]
      shape = tuple(found.shape[axis] for axis in kept)
      if all(size in (-1, own) for size, own in zip(wanted, shape, strict=True)):
        kept_strides = tuple(found.strides[axis] for axis in kept)
        return dataclasses.replace(found, shape=shape, strides=kept_strides)
    raise NotImplementedError(f"a subview of {found.shape} as {wanted}")

  def _hivm(self, operation: Operation, operands: list[Any]) -> Any:
    match operation.name.removeprefix("hivm.hir."):
      case "get_block_idx":
        return self.block
      case "get_sub_block_idx":
        return self.sub_block
      case "pointer_cast":
        return self.memories.view(int(operands[0]), parse_memref(operation.result_types[0]))
      case "bitcast":
        return vectors.bitcast(
          operation, operands[0], parse_memref(operation.result_types[0]).element
        )
      case "load" | "store" | "copy":
        operands[1].store(operands[0].load())
      case "nd2nz":
        matrices.nd2nz(operands)
      case "mmadL1":
        matrices.mmad(operation, operands)
      case "fixpipe":
        matrices.fixpipe(operation, operands, self._mirrors(operands[1]))
      case name if name.startswith("v"):
        vectors.vector(operation, operands)
      case _:
        raise NotImplementedError(operation.name)
    return None

  def _mirrors(self, result: View) -> tuple[View, ...]:
    """The same place in the UB of the other vector cores."""
    first = self.unified_buffers[0]
    if result.raw is not first:
      return ()
    return tuple(dataclasses.replace(result, raw=raw) for raw in self.unified_buffers[1:])


def _collapsed(operation: Operation, shape: tuple[int, ...]) -> tuple[int, ...]:
  groups = re.search(r"reassociation = (\[.*?\]\]|\[\])", operation.attributes)
  assert groups is not None
  return tuple(
    int(np.prod([shape[int(axis)] for axis in group.split(",")]))
    for group in re.findall(r"\[([\d, ]+)\]", groups[1])
  )
