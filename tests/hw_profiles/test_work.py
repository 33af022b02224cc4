"""Times of work that is not a matmul's: each resource alone, vector cores alone."""

import pytest

import hw_profiles as hw
from hw_profiles.cost.npu_time import NpuAmounts, NpuWork, npu_time
from hw_profiles.cost.sm_time import SmAmounts, SmWork, sm_time

H200 = hw.get_profile("h200")
NPU = hw.get_profile("910b3")


def _sm_work(**amounts):
  return SmWork(
    tiles=10 * H200.sm_count,
    steps=100,
    per_step=SmAmounts(**amounts),
    per_tile=SmAmounts(l2_bytes=1024),
    flops_per_s=1e12,
    dram_bytes=0,
    resident_blocks=1,
    num_stages=8,
    persistent=True,
  )


@pytest.mark.parametrize(
  ("amounts", "resource", "one_us"),
  [
    ({"flops": 10**8}, "tensor_cores", 1e8 / (1e12 * H200.sustained_tensor_fraction) * 1e6),
    ({"l2_bytes": 10**7}, "l2", 1e7 / H200.l2_bandwidth_bytes_per_s * 1e6),
    (
      {"shared_bytes": 10**6},
      "shared_memory",
      1e6 / (H200.shared_bytes_per_cycle_per_sm * H200.max_clock_hz * H200.sm_count) * 1e6,
    ),
    (
      {"special_functions": 10**6},
      "special_functions",
      1e6 / (H200.special_functions_per_cycle_per_sm * H200.clock_hz * H200.sm_count) * 1e6,
    ),
  ],
)
def test_a_step_bound_by_one_resource_takes_its_amount_over_its_rate(amounts, resource, one_us):
  time = sm_time(H200, _sm_work(**amounts))
  assert time.bound == resource
  assert time.times_us[resource] == pytest.approx(1000 * H200.sm_count * one_us)


def test_steps_without_special_functions_do_not_list_them():
  assert "special_functions" not in sm_time(H200, _sm_work(flops=1)).times_us


def _rows(core, tiles, **amounts):
  return NpuWork(
    core=core,
    tiles=tiles,
    steps=0,
    per_step=NpuAmounts(),
    per_tile=NpuAmounts(**amounts),
    hbm_bytes=0,
    num_stages=2,
  )


def test_vector_cores_work_on_tiles_of_their_own():
  # a SwiGLU tile: two inputs in, exp and arithmetic, one output out
  elements = 8192
  work = _rows(
    "AIV",
    3 * NPU.aiv_count,
    gm_to_ub_bytes=2 * 2 * elements,
    vector_bytes=5 * 4 * elements,
    exp_elements=2 * elements,
    ub_to_gm_bytes=2 * elements,
  )
  time = npu_time(NPU, work)
  assert set(time.times_us) == {"vector_mte2", "vector", "mte3", "hbm", "launch"}
  cycle_us = 1e6 / NPU.clock_hz
  load_us = 4 * elements / NPU.gm_to_ub_bytes_per_cycle * cycle_us
  store_us = 2 * elements / NPU.ub_to_gm_bytes_per_cycle * cycle_us
  vector_us = time.times_us["vector"] / 3
  assert time.times_us["vector_mte2"] == pytest.approx(3 * load_us)
  assert time.times_us["mte3"] == pytest.approx(3 * store_us)
  # the pipes overlap: three rounds of the slowest, one fill and drain of the others
  pipes_us = (load_us, vector_us, store_us)
  assert time.total_us == pytest.approx(NPU.launch_overhead_us + 2 * max(pipes_us) + sum(pipes_us))


def test_vector_cores_beside_a_cube_core_share_its_tile():
  amounts = {"gm_to_ub_bytes": 65536, "vector_bytes": 65536, "ub_to_gm_bytes": 65536}
  alone = npu_time(NPU, _rows("AIV", NPU.aiv_count, **amounts))
  beside = npu_time(NPU, _rows("mixed", NPU.aic_count, **amounts))
  share = NPU.vector_cores_per_cube_core
  for pipe in ("vector_mte2", "vector", "mte3"):
    assert alone.times_us[pipe] == pytest.approx(share * beside.times_us[pipe])


def test_more_tiles_than_vector_cores_cost_a_round():
  amounts = {"gm_to_ub_bytes": 65536, "ub_to_gm_bytes": 65536}
  full, more = (
    npu_time(NPU, _rows("AIV", tiles, **amounts)).times_us["mte3"]
    for tiles in (NPU.aiv_count, NPU.aiv_count + 1)
  )
  assert more == pytest.approx(2 * full)


def test_hbm_bounds_what_streams():
  work = _rows("AIV", 1, gm_to_ub_bytes=64)
  streaming = NpuWork(**{**vars(work), "hbm_bytes": 10**9})
  time = npu_time(NPU, streaming)
  assert time.bound == "hbm"
  assert time.times_us["hbm"] == pytest.approx(
    1e9 / (NPU.hbm_bandwidth_bytes_per_s * NPU.sustained_hbm_fraction) * 1e6
  )
