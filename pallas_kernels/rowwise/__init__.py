"""Ops on rows: swiglu, quantisation, RMS normalisation; and the transpose."""

from pallas_kernels.rowwise.api import (
  QuantizedRows,
  quantize_rows,
  swiglu,
  swiglu_quantize,
  transpose,
)
from pallas_kernels.rowwise.norm import rms_norm

__all__ = ["QuantizedRows", "quantize_rows", "rms_norm", "swiglu", "swiglu_quantize", "transpose"]
