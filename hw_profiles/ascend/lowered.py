"""Two forms of a kernel on its way that can be executed on a CPU.

The linalg program as LLVM IR, and the memory-planned HIVM program in MLIR's
generic form, which has one syntax for all operations.
"""

import dataclasses
import pathlib
import sys
import tempfile

from hw_profiles.ascend import llvm_translation
from hw_profiles.ascend.errors import CompilerFailedError, UnsupportedIrError
from hw_profiles.ascend.install import find_compilers
from hw_profiles.ascend.process import run_tool
from hw_profiles.ascend.route import TIME_LIMIT_S, CompileOptions, TritonProgram
from hw_profiles.ascend.targets import AscendTarget, get_target

# linalg on tensors to loops, to the LLVM dialect, with passes that bishengir-opt has
_TO_LLVM_DIALECT = (
  "builtin.module("
  "func.func(convert-elementwise-to-linalg),"
  "execution-engine-convert-hfusion-to-upstream,"
  "execution-engine-convert-hivm-to-upstream,"
  "func.func(decompose-tensor-concat),"
  "empty-tensor-to-alloc-tensor,"
  "one-shot-bufferize{allow-return-allocs-from-loops=true},"
  "expand-realloc,canonicalize,"
  "ownership-based-buffer-deallocation,canonicalize,"
  "buffer-deallocation-simplification,bufferization-lower-deallocations,cse,canonicalize,"
  "convert-bufferization-to-memref,"
  "func.func(finalizing-bufferize),"
  "annotation-lowering,expand-strided-metadata,"
  "func.func(convert-linalg-to-loops),"
  "convert-scf-to-cf,lower-affine,arith-expand,"
  "convert-vector-to-llvm,convert-math-to-llvm,finalize-memref-to-llvm,convert-func-to-llvm,"
  "convert-cf-to-llvm,convert-index-to-llvm,convert-arith-to-llvm,reconcile-unrealized-casts)"
)

# The program is wanted while it still is of HIVM operations on whole buffers, with
# addresses and double buffers. On a 910 that is after this pass,
_LAST_910 = "annotation-lowering"
# on a 950 before the first of these, which expand vector functions and calls.
_FIRST_950 = ("normalize-vector", "convert-vector-to-hivmave", "convert-hivm-to-std")


def llvm_ir(program: TritonProgram, target: str | AscendTarget) -> str:
  """The kernel's linalg program as LLVM IR: one function, one program id a call.

  Its arguments are memref descriptors of rank 1 for the lock, the workspace and
  each array, then the grid's and the program's x, y, z.

  Raises:
    CompilerFailedError: a pass rejected the program.
  """
  compilers = find_compilers()
  device = get_target(target)
  stages = {"linalg": program.linalg(device)}
  with tempfile.TemporaryDirectory(prefix="ascend-") as name:
    folder = pathlib.Path(name)
    source, dialect, result = (folder / part for part in ("in.mlir", "llvm.mlir", "out.ll"))
    source.write_text(stages["linalg"], encoding="utf-8")
    tool = compilers.tool("bishengir-opt")
    command: list[str | pathlib.Path] = [
      tool,
      source,
      f"--pass-pipeline={_TO_LLVM_DIALECT}",
      "-o",
      dialect,
    ]
    status, log = run_tool(command, folder=folder, stages=stages, time_limit_s=TIME_LIMIT_S)
    if status:
      raise CompilerFailedError(tool.name, "rejected", log, stages)
    stages["llvm dialect"] = dialect.read_text(encoding="utf-8")
    translate = pathlib.Path(llvm_translation.__file__)
    command = [sys.executable, "-I", translate, compilers.libtriton, dialect, result]
    status, log = run_tool(command, folder=folder, stages=stages, time_limit_s=TIME_LIMIT_S)
    if status:
      raise CompilerFailedError("llvm translation", "rejected", log, stages)
    return result.read_text(encoding="utf-8")


def _stage(names: list[str], target: AscendTarget) -> str:
  """Which of the stages after passes has the program; they are in order."""
  if target.is_950:
    expanded = [index for index, name in enumerate(names) if name.endswith(_FIRST_950)]
    if expanded:
      return names[expanded[0] - 1]
  else:
    after = [name for name in names if name.endswith(_LAST_910)]
    if after:
      return after[-1]
  raise UnsupportedIrError(f"no planned program among the stages {', '.join(names)}")


def planned_program(
  program: TritonProgram, target: str | AscendTarget, *, options: CompileOptions | None = None
) -> str:
  """The memory-planned HIVM module in generic form.

  Raises:
    InfeasibleTileError: the kernel does not fit.
    CompilerFailedError: a compiler failed.
  """
  compilers = find_compilers()
  device = get_target(target)
  chosen = CompileOptions() if options is None else options
  plan = program.plan(device, options=dataclasses.replace(chosen, keep_passes=True))
  plan.check()
  text = plan.stages[_stage(list(plan.stages), device)]
  with tempfile.TemporaryDirectory(prefix="ascend-") as name:
    folder = pathlib.Path(name)
    source = folder / "in.mlir"
    source.write_text(text, encoding="utf-8")
    tool = compilers.tool("bishengir-opt-a5" if device.is_950 else "bishengir-opt")
    result = folder / "out.mlir"
    command: list[str | pathlib.Path] = [tool, source, "--mlir-print-op-generic", "-o", result]
    status, log = run_tool(
      command, folder=folder, stages={"hivm": text}, time_limit_s=chosen.time_limit_s
    )
    if status:
      raise CompilerFailedError(tool.name, "rejected", log, {"hivm": text})
    return result.read_text(encoding="utf-8")
