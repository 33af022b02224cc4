"""JAX Pallas kernels that one tile plan describes on NVIDIA SMs and Ascend cores.

Everything public is here: the ops, their config classes and `explain`. What
needs JAX is imported when it is first used, so that planning, which does not,
starts without it.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from hw_profiles import (
  AttentionConfig,
  DecodeConfig,
  InfeasibleTileError,
  MatmulConfig,
  RowConfig,
)

if TYPE_CHECKING:
  from pallas_kernels.attention import decode_attention, flash_attention
  from pallas_kernels.dispatch import Explanation, explain
  from pallas_kernels.gemm import gated_matmul, matmul, quantize_matmul, quantized_matmul
  from pallas_kernels.rowwise import (
    QuantizedRows,
    quantize_rows,
    rms_norm,
    swiglu,
    swiglu_quantize,
    transpose,
  )

__all__ = [
  "AttentionConfig",
  "DecodeConfig",
  "Explanation",
  "InfeasibleTileError",
  "MatmulConfig",
  "QuantizedRows",
  "RowConfig",
  "decode_attention",
  "explain",
  "flash_attention",
  "gated_matmul",
  "matmul",
  "quantize_matmul",
  "quantize_rows",
  "quantized_matmul",
  "rms_norm",
  "swiglu",
  "swiglu_quantize",
  "transpose",
]

_IMPORTED_ON_USE = {
  "Explanation": "pallas_kernels.dispatch",
  "QuantizedRows": "pallas_kernels.rowwise",
  "decode_attention": "pallas_kernels.attention",
  "explain": "pallas_kernels.dispatch",
  "flash_attention": "pallas_kernels.attention",
  "gated_matmul": "pallas_kernels.gemm",
  "matmul": "pallas_kernels.gemm",
  "quantize_matmul": "pallas_kernels.gemm",
  "quantize_rows": "pallas_kernels.rowwise",
  "quantized_matmul": "pallas_kernels.gemm",
  "rms_norm": "pallas_kernels.rowwise",
  "swiglu": "pallas_kernels.rowwise",
  "swiglu_quantize": "pallas_kernels.rowwise",
  "transpose": "pallas_kernels.rowwise",
}


def __getattr__(name: str) -> Any:
  if name not in _IMPORTED_ON_USE:
    # with both of these Python 3.12 names the closest
    raise AttributeError(
      f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
    )
  value = getattr(importlib.import_module(_IMPORTED_ON_USE[name]), name)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
