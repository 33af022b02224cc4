"""C = epilogue(A·B, ...): public functions, implementations and gradients."""

from pallas_kernels.gemm.api import matmul
from pallas_kernels.gemm.gated import gated_matmul
from pallas_kernels.gemm.quantize import quantize_matmul
from pallas_kernels.gemm.quantized import quantized_matmul

__all__ = ["gated_matmul", "matmul", "quantize_matmul", "quantized_matmul"]
