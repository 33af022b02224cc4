"""The rounding to bfloat16 that compiled code calls where the processor has none."""

import ctypes
import importlib.util

import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.lowering.execution import linalg

# writes what the function returns to where the argument points
_WRAPPER = """
define void @round(float %x, ptr %out) {
  %y = call bfloat @__truncsfbf2(float %x)
  store bfloat %y, ptr %out
  ret void
}
"""


@pytest.mark.skipif(
  importlib.util.find_spec("llvmlite") is None, reason="llvmlite is not installed"
)
def test_float32_is_rounded_half_to_even():
  bits = np.random.default_rng(0).integers(0, 2**32, 2000, dtype=np.uint32)
  ties = (bits[:500] & np.uint32(0xFFFF0000)) | np.uint32(0x8000)
  special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38], np.float32).view(np.uint32)
  values = np.concatenate([bits, ties, special]).view(np.float32)

  compiled = linalg._Compiled(_WRAPPER, "round")
  function = ctypes.CFUNCTYPE(None, ctypes.c_float, ctypes.c_void_p)(compiled.address)
  out = np.zeros(len(values), np.uint16)
  for index, value in enumerate(values):
    function(value, out[index:].ctypes.data)
  rounded = out.view(ml_dtypes.bfloat16).astype(np.float32)
  with np.errstate(over="ignore", invalid="ignore"):
    expected = values.astype(ml_dtypes.bfloat16).astype(np.float32)
  np.testing.assert_array_equal(rounded, expected)
