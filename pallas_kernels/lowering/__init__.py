"""An op and a config to compiler IR, without a device.

jax_private              Triton IR out of a traced Pallas call: JAX's private parts, in one place
calls, *_calls           each op as a call of its portable kernel
triton                   `triton_ir`: op, shapes, config to Triton IR
ascend                   `ascend_plan`: on through Huawei's compiler (`hw_profiles.ascend`)
sweep, sweep_cases       many tiles compiled and recorded: python -m pallas_kernels.lowering.sweep
execution/               what the compiler made, executed on the CPU
"""

from pallas_kernels.lowering.ascend import ascend_plan
from pallas_kernels.lowering.jax_private import SUPPORTED_JAX, TritonKernel, triton_kernels
from pallas_kernels.lowering.triton import OPS, triton_ir

__all__ = [
  "OPS",
  "SUPPORTED_JAX",
  "TritonKernel",
  "ascend_plan",
  "triton_ir",
  "triton_kernels",
]
