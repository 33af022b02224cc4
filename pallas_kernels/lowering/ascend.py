"""An op's portable kernel, lowered, compiled and planned for Ascend."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from hw_profiles.ascend import AscendPlan, AscendTarget, CompileOptions, compile_triton
from hw_profiles.capacity.compiled import MOST_COPIES
from pallas_kernels.lowering.triton import triton_ir


def ascend_plan(
  op: str,
  shapes: Mapping[str, int],
  dtype: Any,
  config: Any,
  target: str | AscendTarget,
  *,
  options: CompileOptions | None = None,
  **op_options: Any,
) -> AscendPlan:
  """What Huawei's compiler plans for the op's portable Pallas kernel.

  The kernel is the one that runs on NVIDIA GPUs as "triton". Nothing runs on an
  Ascend device, and no machine code is made: the compiler goes as far as giving
  every on-chip buffer its address.

  `config.num_stages` says whether double buffering is asked for, unless `options`
  does: 1 no, 2 yes. The compiler keeps two copies or one, never more.

  Args:
    op: One of `lowering.OPS`.
    shapes: Sizes by name, for a matmul {"m": 1024, "k": 4096, "n": 12288}.
    dtype: Of the operands.
    config: The op's config; blocks of 2^i elements.
    target: A profile ("ascend_910b3") or one of the compiler's targets.
    options: How to compile.
    **op_options: The op's own, for a matmul `activation`, `bias`, `out_dtype`.

  Returns:
    The plan; where the tile does not fit, it says what overflows.

  Raises:
    ValueError: an argument is wrong; the message says what was expected.
    NotImplementedError: this JAX version has no such route, or the op is several
      kernels with this config.
    hw_profiles.ascend.AscendError: the compilers are not installed, or failed.
  """
  kernels = triton_ir(op, shapes, dtype, config, **op_options)
  if len(kernels) != 1:
    raise NotImplementedError(
      f"{op} with {config!r} is {len(kernels)} kernels"
      f" ({', '.join(kernel.name for kernel in kernels)}): compile each of `lowering.triton_ir`"
      " with `hw_profiles.ascend.compile_triton`"
    )
  return compile_triton(kernels[0].ir, target, options=with_stages(options, config.num_stages))


def with_stages(options: CompileOptions | None, num_stages: int) -> CompileOptions:
  """`options` with double buffering as the config asks for it, unless they say.

  Raises:
    ValueError: more stages than the compiler has.
  """
  chosen = CompileOptions() if options is None else options
  if num_stages > MOST_COPIES:
    raise ValueError(
      f"config.num_stages={num_stages}: Huawei's compiler keeps one copy or two; expected 1 or 2"
    )
  if chosen.multi_buffer is not None:
    return chosen
  return dataclasses.replace(chosen, multi_buffer=num_stages > 1)
