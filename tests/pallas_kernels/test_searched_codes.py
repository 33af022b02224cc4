"""Every tile that a search may measure for products of codes lowers for CUDA without a GPU.

Those that it may measure for float products too are lowered for them.
"""

import pytest
from search_cases import KERNELS, lowered, name_of, not_in, searched


def cases(schedule):
  """float8's, and what only int8, whose sums take half of the registers, may have."""
  float8, int8 = (
    searched(schedule, dtype=dtype, out_dtype="bfloat16", scaled=True)
    for dtype in ("float8_e4m3fn", "int8")
  )
  known = [config for _, config in float8]
  codes = [*float8, *(case for case in int8 if case[1] not in known)]
  return not_in(searched(schedule), codes)


@pytest.mark.parametrize("case", cases("warp_specialized"), ids=name_of)
def test_quantized_matmul_lowers_through_mosaic(case):
  assert KERNELS["warp_specialized"] in lowered(case, "warp_specialized")


@pytest.mark.parametrize("case", cases("multistage"), ids=name_of)
def test_quantized_matmul_lowers_through_triton(case):
  assert KERNELS["multistage"] in lowered(case, "multistage")
