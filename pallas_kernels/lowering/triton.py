"""Triton IR of an op's portable kernel, from shapes and a config, without a GPU."""

import difflib
from collections.abc import Mapping
from typing import Any

from pallas_kernels.lowering import attention_calls, gemm_calls, rowwise_calls
from pallas_kernels.lowering.calls import Builder, KernelCall, operand_dtype
from pallas_kernels.lowering.jax_private import TritonKernel, triton_kernels
from pallas_kernels.rowwise import arithmetic

OPS: dict[str, Builder] = {
  "matmul": gemm_calls.matmul,
  "gated_matmul": gemm_calls.gated_matmul,
  "swiglu": rowwise_calls.swiglu,
  "swiglu_quantize": rowwise_calls.swiglu_quantize,
  "quantize_rows": rowwise_calls.quantize_rows,
  "rms_norm": rowwise_calls.rms_norm,
  "transpose": rowwise_calls.transpose,
  "flash_attention": attention_calls.flash_attention,
}


def kernel_call(
  op: str, shapes: Mapping[str, int], dtype: Any, config: Any, **options: Any
) -> KernelCall:
  """The op as a call of its portable kernel; arguments as for `triton_ir`."""
  if op not in OPS:
    close = difflib.get_close_matches(str(op), OPS, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"op={op!r}: expected one of {', '.join(OPS)}{hint}")
  return OPS[op](shapes, operand_dtype(dtype), config, options)


def triton_ir(
  op: str, shapes: Mapping[str, int], dtype: Any, config: Any, **options: Any
) -> tuple[TritonKernel, ...]:
  """The Triton modules that Pallas makes of an op's portable kernel, without branches on data.

  Args:
    op: One of `OPS`.
    shapes: Sizes by name, each at least 1.
    dtype: Of the operands.
    config: The op's config; blocks of 2^i elements.
    **options: The op's own.

  Returns:
    The kernels of the call in order; most ops have one.

  Raises:
    ValueError: an argument is wrong.
    NotImplementedError: this JAX version has no such route.
  """
  call = kernel_call(op, shapes, dtype, config, **options)
  with arithmetic.straight_line():
    return triton_kernels(call.function, *call.arguments)
