"""The memory-planned program, executed: planned addresses, real sizes, cores on their flags.

What it models: the memories of one cube core and its two vector cores with their
real sizes, poisoned; every buffer at the address that the compiler gave it; L1
and L0C in fractals; packed masks; the cross-core flags; each access checked.

What it does not: see `NOT_MODELLED`.
"""

import re
from collections.abc import Sequence

import numpy as np

from hw_profiles.ascend import AscendTarget, CompileOptions, TritonProgram, get_target
from hw_profiles.ascend.lowered import planned_program
from pallas_kernels.lowering.execution.cores import Core, Flags
from pallas_kernels.lowering.execution.generic_text import Operation, read_module
from pallas_kernels.lowering.execution.memory import View, array_view, core_memories

NOT_MODELLED = (
  "the meaning of each operation is taken from its name and types, not from Huawei",
  "the pipes of a core run one after the other: races between them are not seen",
  "arithmetic is NumPy's float32: no HF32, no approximate instructions",
  "the rounding that a shift to the right may ask for: it is taken as plain",
  "what a 950's cube core writes to UB is given to both of its vector cores",
  "time",
)
_LOCK_BYTES = 4096


class DeadlockError(RuntimeError):
  """All cores that are left wait for flags that nobody sets."""


def _functions(module: Operation) -> dict[str, Operation]:
  return {
    function.word("sym_name").strip('"') or _symbol(function): function
    for function in module.regions[0].operations
    if function.name == "func.func" and function.regions and function.regions[0].operations
  }


def _symbol(function: Operation) -> str:
  match = re.search(r'sym_name = "([^"]+)"', function.attributes)
  assert match is not None
  return match[1]


def _workspace_bytes(functions: dict[str, Operation]) -> int:
  """Of a block: what the function that tells it returns."""
  for name, function in functions.items():
    if name.endswith("_infer_workspace_shape_function"):
      body = function.regions[0].operations
      (returned,) = body[-1].operands
      constant = next(one for one in body if returned in one.results)
      match = re.search(r"value = (\d+)", constant.attributes)
      assert match is not None
      return int(match[1])
  return 0


def _core_kind(function: Operation) -> str:
  return "AIC" if "func_core_type<AIC>" in function.attributes else "AIV"


def _arguments(
  function: Operation, lock: View, workspace: View, arrays: list[View], grid: Sequence[int]
) -> list[object]:
  """[flag base,] lock, workspace, arrays, grid: as the compiler's functions take them."""
  given: list[object] = [lock, workspace, *arrays, *grid]
  missing = len(function.regions[0].arguments) - len(given)
  if missing not in (0, 1):
    raise ValueError(f"arrays: got {len(arrays)}, the kernel takes {len(arrays) + missing}")
  return [0, *given] if missing else given


def _run_block(cores: list[tuple[Core, Operation, list[object]]], block: int) -> None:
  """Run the cores of a block in turns until all are done.

  Raises:
    DeadlockError: none of those left can go on.
  """
  left = {core: core.run(function, arguments) for core, function, arguments in cores}
  while left:
    moved = False
    for core, coroutine in list(left.items()):
      try:
        while next(coroutine) != "waits":
          moved = True
      except StopIteration:
        del left[core]
        moved = True
    if left and not moved:
      waiting = ", ".join(f"{core.kind} {core.sub_block}" for core in left)
      raise DeadlockError(f"block {block}: {waiting} wait for flags that nobody sets")


def run_module(
  generic: str, target: AscendTarget, arrays: Sequence[np.ndarray], grid: tuple[int, int, int]
) -> None:
  """Execute a planned module in generic form; see `run_planned`."""
  for index, array in enumerate(arrays):
    if not array.flags.c_contiguous:
      raise ValueError(f"arrays[{index}] is not C-contiguous; np.ascontiguousarray makes it so")
  module, maps = read_module(generic)
  functions = _functions(module)
  entries = [one for one in functions.values() if "hacc.entry" in one.attributes]
  blocks = grid[0] * grid[1] * grid[2]
  workspace = array_view(
    "workspace", np.zeros(max(1, _workspace_bytes(functions) * blocks), np.int8)
  )
  lock = array_view("lock", np.zeros(_LOCK_BYTES, np.int8))
  views = [array_view(f"array {index}", array) for index, array in enumerate(arrays)]
  mixed = len({_core_kind(one) for one in entries}) == 2
  for block in range(blocks):
    cube, vectors = core_memories(target)
    flags = Flags(len(vectors))
    buffers = tuple(one.spaces["UB"] for one in vectors)
    cores = []
    for function in entries:
      kind = _core_kind(function)
      memories = (cube,) if kind == "AIC" else vectors if mixed else vectors[:1]
      for sub_block, one in enumerate(memories):
        core = Core(kind, sub_block, block, one, flags, functions, maps, buffers)
        cores.append((core, function, _arguments(function, lock, workspace, views, grid)))
    # infinities and NaNs are results here, as on the device
    with np.errstate(all="ignore"):
      _run_block(cores, block)


def run_planned(
  program: TritonProgram,
  target: str | AscendTarget,
  arrays: Sequence[np.ndarray],
  grid: tuple[int, int, int],
  *,
  options: CompileOptions | None = None,
) -> None:
  """Compile a kernel to its memory plan and execute the planned program.

  Args:
    program: The kernel.
    target: The device.
    arrays: Inputs, then outputs, which are written in place; C-contiguous.
    grid: Programs along x, y and z.
    options: How to compile.

  Raises:
    hw_profiles.InfeasibleTileError: the kernel does not fit.
    hw_profiles.ascend.AscendError: the compilers are not installed, or failed.
    OutOfBoundsError: the program leaves a memory or an array.
    DeadlockError: a flag that a core waits for is never set.
    NotImplementedError: the program has an operation without a rule.
  """
  device = get_target(target)
  run_module(planned_program(program, device, options=options), device, arrays, grid)
