"""Every tile that a search may measure for float products lowers for CUDA without a GPU."""

import pytest
from search_cases import KERNELS, lowered, name_of, not_in, searched


@pytest.mark.parametrize("case", searched("warp_specialized"), ids=name_of)
def test_matmul_lowers_through_mosaic(case):
  assert KERNELS["warp_specialized"] in lowered(case, "warp_specialized")


@pytest.mark.parametrize("case", searched("multistage"), ids=name_of)
def test_matmul_lowers_through_triton(case):
  assert KERNELS["multistage"] in lowered(case, "multistage")


def gated(schedule):
  """What a search may measure for two products, and not for one."""
  return not_in(searched(schedule), searched(schedule, products=2, activation="silu"))


@pytest.mark.parametrize("case", gated("warp_specialized"), ids=name_of)
def test_gated_matmul_lowers_through_mosaic(case):
  assert KERNELS["warp_specialized"] in lowered(case, "warp_specialized")


@pytest.mark.parametrize("case", gated("multistage"), ids=name_of)
def test_gated_matmul_lowers_through_triton(case):
  assert KERNELS["multistage"] in lowered(case, "multistage")
