"""The linalg program that Huawei's compiler is given, executed on the CPU by LLVM.

Memory is the machine's: nothing is checked for bounds, and an access outside of
an array may end the process. `hivm` checks.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from hw_profiles.ascend import AscendTarget, TritonProgram, get_target
from hw_profiles.ascend.lowered import llvm_ir


class _Unranked(ctypes.Structure):
  """A memref of any rank: its rank, and where the descriptor is."""

  _fields_ = (("rank", ctypes.c_int64), ("descriptor", ctypes.c_void_p))


def _view(size_bytes: int, memref: Any) -> np.ndarray:
  """The elements of a memref as opaque bytes.

  A descriptor is two pointers (allocated, aligned), an offset, sizes, strides.
  """
  rank = memref.contents.rank
  fields = (ctypes.c_int64 * (3 + 2 * rank)).from_address(memref.contents.descriptor)
  sizes, strides = fields[3 : 3 + rank], fields[3 + rank : 3 + 2 * rank]
  if 0 in sizes:
    return np.empty(sizes, f"V{size_bytes}")
  extent = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + 1
  start = fields[1] + fields[2] * size_bytes
  raw = (ctypes.c_char * (extent * size_bytes)).from_address(start)
  return np.lib.stride_tricks.as_strided(
    np.frombuffer(raw, dtype=f"V{size_bytes}"), sizes, [stride * size_bytes for stride in strides]
  )


@ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.POINTER(_Unranked), ctypes.POINTER(_Unranked))
def _memref_copy(size_bytes: int, source: Any, result: Any) -> None:
  """What compiled code calls to copy between memrefs with strides."""
  np.copyto(_view(size_bytes, result), _view(size_bytes, source))


# What LLVM calls to round float32 to bfloat16 where the processor has no instruction for it,
# from the compiler's run-time library, which a Python process does not have: half to even, and
# a NaN stays one. Without it the call goes to address 0.
_ROUND_TO_BFLOAT = """
define bfloat @__truncsfbf2(float %x) {
  %bits = bitcast float %x to i32
  %above = lshr i32 %bits, 16
  %odd = and i32 %above, 1
  %half = add i32 %odd, 32767
  %moved = add i32 %bits, %half
  %rounded = lshr i32 %moved, 16
  %nan = fcmp uno float %x, 0.0
  %quiet = or i32 %above, 64
  %chosen = select i1 %nan, i32 %quiet, i32 %rounded
  %short = trunc i32 %chosen to i16
  %result = bitcast i16 %short to bfloat
  ret bfloat %result
}
"""


class _Compiled:
  """A function of LLVM IR, compiled for this machine."""

  def __init__(self, text: str, name: str) -> None:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.add_symbol("memrefCopy", ctypes.cast(_memref_copy, ctypes.c_void_p).value)
    self._module = llvm.parse_assembly(text + _ROUND_TO_BFLOAT)
    self._module.verify()
    # float16 arithmetic needs the features of the machine
    machine = llvm.Target.from_default_triple().create_target_machine(
      cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(self._module, builder)
    self._engine = llvm.create_mcjit_compiler(self._module, machine)
    self._engine.finalize_object()
    self.address = self._engine.get_function_address(name)


def _descriptor(array: np.ndarray | None) -> list[Any]:
  pointer = ctypes.c_void_p(0 if array is None else array.ctypes.data)
  size = 0 if array is None else array.size
  return [pointer, pointer, ctypes.c_int64(0), ctypes.c_int64(size), ctypes.c_int64(1)]


def run_linalg(
  program: TritonProgram,
  target: str | AscendTarget,
  arrays: Sequence[np.ndarray],
  grid: tuple[int, int, int],
) -> None:
  """Run every program of the kernel's linalg stage, one after the other.

  Args:
    program: The kernel.
    target: Whose linalg stage; the generations' differ a little.
    arrays: Inputs, then outputs, which are written in place; C-contiguous.
    grid: Programs along x, y and z.

  Raises:
    ImportError: llvmlite is not installed.
    hw_profiles.ascend.AscendError: the compilers are not, or one failed.
    ValueError: an array is not C-contiguous.
  """
  for index, array in enumerate(arrays):
    if not array.flags.c_contiguous:
      raise ValueError(f"arrays[{index}] is not C-contiguous; np.ascontiguousarray makes it so")
  compiled = _Compiled(llvm_ir(program, get_target(target)), program.kernel)
  # the lock and the workspace, which only cross-core code would read
  fixed = [part for array in (None, None, *arrays) for part in _descriptor(array)]
  kind = ctypes.CFUNCTYPE(None, *map(type, fixed), *[ctypes.c_int32] * 6)
  function = kind(compiled.address)
  for z in range(grid[2]):
    for y in range(grid[1]):
      for x in range(grid[0]):
        function(*fixed, *grid, x, y, z)
