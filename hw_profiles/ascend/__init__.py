"""Huawei's compiler, from Triton IR text to its memory plan; knows nothing of JAX.

targets                 the devices it knows, with the sizes it plans for
install, process        where its programs are (the `[ascend]` extra), how they are run
externs, accumulators   what Triton IR needs before: named functions, folded accumulators
route                   the programs in order: `compile_triton`
messages, programs      what they say and write, read
plan, l0                the answer; L0A and L0B, which the compiler leaves out
lowered                 forms of a kernel on its way that can be executed on a CPU
needs                   what the compiler would want for a tile, without running it
agreement/              recorded plans beside the planner and `needs`
"""

from hw_profiles.ascend.compiler_needs import CompilerNeeds
from hw_profiles.ascend.errors import (
  AscendError,
  CompilerFailedError,
  CompilersNotInstalledError,
  UnsupportedIrError,
)
from hw_profiles.ascend.install import find_compilers, why_missing
from hw_profiles.ascend.l0 import L0Slices, l0_slices
from hw_profiles.ascend.messages import Overflow
from hw_profiles.ascend.needs import compiler_needs
from hw_profiles.ascend.plan import AscendPlan, CoreProgram, PlannedBuffer, Product
from hw_profiles.ascend.route import CompileOptions, TritonProgram, compile_triton
from hw_profiles.ascend.targets import AscendTarget, get_target, list_targets

__all__ = [
  "AscendError",
  "AscendPlan",
  "AscendTarget",
  "CompileOptions",
  "CompilerFailedError",
  "CompilerNeeds",
  "CompilersNotInstalledError",
  "CoreProgram",
  "L0Slices",
  "Overflow",
  "PlannedBuffer",
  "Product",
  "TritonProgram",
  "UnsupportedIrError",
  "compile_triton",
  "compiler_needs",
  "find_compilers",
  "get_target",
  "l0_slices",
  "list_targets",
  "why_missing",
]
