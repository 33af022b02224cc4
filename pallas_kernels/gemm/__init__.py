"""C = epilogue(A·B + bias): api, implementations and gradient."""

from pallas_kernels.gemm.api import matmul

__all__ = ["matmul"]
