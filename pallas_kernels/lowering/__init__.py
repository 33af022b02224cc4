"""An op and a config to compiler IR, without a device.

jax_private              the modules of a traced Pallas call: JAX's private parts, in one place
calls, *_calls           each op as a call of its portable kernel
triton                   `triton_ir`: op, shapes, config to Triton IR
ascend                   `ascend_plan`: on through Huawei's compiler (`hw_profiles.ascend`)
mosaic                   `mosaic_gpu_ir`: a Hopper kernel without a GPU, and what it allocates
compile_task             one tile through the compiler of either vendor: accepted, or why not
compile_pool             many of them side by side, with a time limit
ptxas                    registers and spills of a Hopper kernel, where its GPU is
sweep, sweep_cases       many tiles compiled and recorded: python -m pallas_kernels.lowering.sweep
execution/               what the compiler made, executed on the CPU
"""

from pallas_kernels.lowering.ascend import ascend_plan
from pallas_kernels.lowering.compile_pool import CompilePool
from pallas_kernels.lowering.compile_task import Compiled, CompileTask, compile_task
from pallas_kernels.lowering.jax_private import (
  SUPPORTED_JAX,
  SUPPORTED_MOSAIC_JAX,
  MosaicModule,
  TritonKernel,
  triton_kernels,
)
from pallas_kernels.lowering.mosaic import MOSAIC_OPS, MosaicSummary, mosaic_gpu_ir, summarise
from pallas_kernels.lowering.triton import OPS, triton_ir

__all__ = [
  "MOSAIC_OPS",
  "OPS",
  "SUPPORTED_JAX",
  "SUPPORTED_MOSAIC_JAX",
  "CompilePool",
  "CompileTask",
  "Compiled",
  "MosaicModule",
  "MosaicSummary",
  "TritonKernel",
  "ascend_plan",
  "compile_task",
  "mosaic_gpu_ir",
  "summarise",
  "triton_ir",
  "triton_kernels",
]
