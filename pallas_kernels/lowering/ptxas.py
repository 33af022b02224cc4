"""A program: compiles one Hopper kernel on the GPU that is here, for what ptxas says of it.

    python -m pallas_kernels.lowering.ptxas < TASK

Apart from the rest because Mosaic GPU prints that to the process's own output.
"""

import dataclasses
import os
import pickle
import re
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from pallas_kernels.lowering.compile_task import CompileTask

_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
# Mosaic GPU reads it when it compiles
_ASK = {"MOSAIC_GPU_DUMP_PTXAS": "1"}


@dataclasses.dataclass(frozen=True)
class PtxasResources:
  """What ptxas says of one kernel.

  Attributes:
    registers: Of a thread, before the kernel moves any between its warpgroups.
    spill_store_bytes: Written to local memory by a thread for lack of registers.
    spill_load_bytes: Read back.
  """

  registers: int
  spill_store_bytes: int
  spill_load_bytes: int


def parse(log: str) -> PtxasResources | None:
  """Read the output of `ptxas --verbose` for one kernel; None where it is not there."""
  registers, spills = _REGISTERS.search(log), _SPILLS.search(log)
  if registers is None or spills is None:
    return None
  return PtxasResources(int(registers[1]), int(spills[1]), int(spills[2]))


def resources(task: "CompileTask") -> PtxasResources | None:
  """Compile a task's kernel on the GPU of this machine; None where that told nothing."""
  try:
    done = subprocess.run(
      [sys.executable, "-m", "pallas_kernels.lowering.ptxas"],
      env={
        **os.environ,
        **_ASK,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
      },
      input=pickle.dumps(task),
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      timeout=task.time_limit_s,
      check=False,
    )
  except subprocess.TimeoutExpired:
    return None
  return parse(done.stdout.decode(errors="replace"))


def main() -> None:
  """Runs the kernel of the task on stdin once, on zeros: its result is not looked at."""
  import jax
  import jax.numpy as jnp

  from pallas_kernels.lowering.mosaic import mosaic_call

  task: CompileTask = pickle.load(sys.stdin.buffer)
  function, arrays = mosaic_call(task.op, task.shapes, task.dtype, task.config, **task.options)
  operands = [jnp.zeros(array.shape, array.dtype) for array in arrays]
  jax.block_until_ready(jax.jit(function)(*operands))


if __name__ == "__main__":
  main()
