"""JAX Pallas kernels that one tile plan describes on NVIDIA SMs and Ascend cores.

Everything public is here: the ops, their config classes and `explain`. What
needs JAX is imported when it is first used, so that planning, which does not,
starts without it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from hw_profiles import InfeasibleTileError, MatmulConfig

if TYPE_CHECKING:
  from pallas_kernels.dispatch import Explanation, explain
  from pallas_kernels.gemm import matmul

__all__ = ["Explanation", "InfeasibleTileError", "MatmulConfig", "explain", "matmul"]

_IMPORTED_ON_USE = {
  "Explanation": "pallas_kernels.dispatch",
  "explain": "pallas_kernels.dispatch",
  "matmul": "pallas_kernels.gemm",
}


def __getattr__(name: str) -> Any:
  if name not in _IMPORTED_ON_USE:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  value = getattr(importlib.import_module(_IMPORTED_ON_USE[name]), name)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
