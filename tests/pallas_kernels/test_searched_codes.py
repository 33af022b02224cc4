"""Every tile that a search may measure for products of codes lowers for CUDA without a GPU."""

import pytest
from search_cases import KERNELS, lowered, name_of, searched


def of(schedule, dtype):
  return searched(schedule, dtype=dtype, out_dtype="bfloat16", scaled=True)


@pytest.mark.parametrize("case", of("warp_specialized", "float8_e4m3fn"), ids=name_of)
def test_float8_lowers_through_mosaic(case):
  assert KERNELS["warp_specialized"] in lowered(case, "warp_specialized")


@pytest.mark.parametrize("case", of("warp_specialized", "int8"), ids=name_of)
def test_int8_lowers_through_mosaic(case):
  assert KERNELS["warp_specialized"] in lowered(case, "warp_specialized")


@pytest.mark.parametrize("case", of("multistage", "float8_e4m3fn"), ids=name_of)
def test_float8_lowers_through_triton(case):
  assert KERNELS["multistage"] in lowered(case, "multistage")


@pytest.mark.parametrize("case", of("multistage", "int8"), ids=name_of)
def test_int8_lowers_through_triton(case):
  assert KERNELS["multistage"] in lowered(case, "multistage")
