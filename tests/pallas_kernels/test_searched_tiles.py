"""Every tile that a search may measure for float products lowers for CUDA without a GPU."""

import pytest
from search_cases import KERNELS, lowered, name_of, searched


@pytest.mark.parametrize("case", searched("warp_specialized"), ids=name_of)
def test_matmul_lowers_through_mosaic(case):
  assert KERNELS["warp_specialized"] in lowered(case, "warp_specialized")


@pytest.mark.parametrize("case", searched("multistage"), ids=name_of)
def test_matmul_lowers_through_triton(case):
  assert KERNELS["multistage"] in lowered(case, "multistage")


@pytest.mark.parametrize(
  "case", searched("warp_specialized", products=2, activation="silu"), ids=name_of
)
def test_gated_matmul_lowers_through_mosaic(case):
  assert KERNELS["warp_specialized"] in lowered(case, "warp_specialized")


@pytest.mark.parametrize("case", searched("multistage", products=2, activation="silu"), ids=name_of)
def test_gated_matmul_lowers_through_triton(case):
  assert KERNELS["multistage"] in lowered(case, "multistage")
