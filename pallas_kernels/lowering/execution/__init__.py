"""Kernels on their way to Ascend, executed on the CPU.

linalg                        the linalg program, by LLVM
planned                       the memory-planned program, in an interpreter
generic_text                  its text, read
memory                        memories of real size, poisoned and checked
cores                         one core as a coroutine on the cross-core flags
scalars, vectors, matrices, register_vectors    what the operations compute
"""

from pallas_kernels.lowering.execution.linalg import run_linalg
from pallas_kernels.lowering.execution.memory import OutOfBoundsError
from pallas_kernels.lowering.execution.planned import (
  NOT_MODELLED,
  DeadlockError,
  run_module,
  run_planned,
)

__all__ = [
  "NOT_MODELLED",
  "DeadlockError",
  "OutOfBoundsError",
  "run_linalg",
  "run_module",
  "run_planned",
]
