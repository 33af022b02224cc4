"""softmax(Q·Kᵀ)·V: public functions, implementations and gradients."""

from pallas_kernels.attention.api import flash_attention
from pallas_kernels.attention.decode_api import decode_attention

__all__ = ["decode_attention", "flash_attention"]
