"""Which one change helps most: found by trying, held against trying by hand."""

import dataclasses

import pytest

import hw_profiles as hw
from hw_profiles.planner.ideal import without_limit

FFN = hw.MatmulProblem(1024, 4096, 12288)
PROBLEMS = (
  FFN,
  hw.MatmulProblem(1000, 4100, 1230, products=2),
  hw.MatmulProblem(1024, 4096, 4096, "int8", out_dtype="bfloat16", scaled=True),
  hw.AttentionProblem(2, 1024, 1024, 8, causal=True),
  hw.AttentionProblem(1, 1024, 1024, 8, backward=True),
  hw.DecodeProblem(4, 4096, 32, 8),
  hw.SwigluProblem(1024, 12288),
  hw.RmsNormProblem(1024, 4096),
  hw.TransposeProblem(1024, 4096),
)


@pytest.mark.parametrize("profile", ["h200_sxm", "rtx_pro_6000", "ascend_910b3", "ascend_950pr"])
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda x: type(x).__name__)
def test_every_change_is_a_plan_of_its_own(problem, profile):
  for planned in (hw.rank(problem, profile)[0], hw.rank(problem, profile, top=None)[-1]):
    found = hw.what_helps(planned)
    assert planned.bound in {change.what for change in found.ideal} | {"epilogue", "fill"}
    times = [change.predicted_us for change in found.ideal]
    assert times == sorted(times)
    # a resource less is never slower, up to the rounding of sums
    assert times[-1] <= planned.predicted_us * (1 + 1e-12)
    if found.tile is None:
      continue
    change, _, schedule = found.tile.what.partition(" as ")
    name, _, value = change.partition("=")
    config = dataclasses.replace(planned.config, **{name: int(value)})
    again = hw.plan(problem, config, profile)
    assert again.schedule == (schedule or planned.schedule)
    assert again == found.tile.plan
    assert found.tile.gain == 1 - again.predicted_us / planned.predicted_us > 0.02


def test_no_single_change_is_better_than_the_one_named():
  planned = hw.plan(FFN, hw.MatmulConfig(128, 128, 64, 1), "h200_sxm")
  found = hw.what_helps(planned)
  for changed in (
    {"num_stages": 2},
    {"num_stages": 5},
    {"block_m": 128},
    {"block_n": 256},
    {"block_k": 128},
    {"group_m": 1},
  ):
    other = hw.plan(FFN, dataclasses.replace(planned.config, **changed), "h200_sxm")
    assert other.predicted_us >= found.tile.predicted_us
  first, second = found.sentences()
  assert first == f"most help: {found.tile.sentence()}"
  assert second.startswith(f"of the device, most help without {planned.bound}: ")


def test_another_schedule_counts_as_a_change():
  # one stage and one small tile an SM suit no persistent kernel
  config = hw.MatmulConfig(64, 64, 32, 1)
  planned = hw.plan(FFN, config, "h200_sxm", schedule="warp_specialized")
  found = hw.what_helps(planned)
  assert found.tile.what == "schedule=multistage"
  again = hw.plan(FFN, planned.config, "h200_sxm", schedule="multistage")
  assert found.tile.predicted_us == again.predicted_us
  assert found.tile.plan.schedule == "multistage"
  # "auto" has made it already, and says which schedule a further change of the tile takes
  auto = hw.plan(FFN, config, "h200_sxm")
  assert (auto.schedule, auto.predicted_us) == ("multistage", again.predicted_us)
  assert not hw.what_helps(auto).tile.what.startswith("schedule=")
  deeper = hw.plan(FFN, hw.MatmulConfig(128, 256, 64, 2), "h200_sxm")
  assert deeper.schedule == "multistage"
  assert hw.what_helps(deeper).tile.what == "num_stages=3 as warp_specialized"


def test_without_the_bounding_resource_another_binds():
  best = hw.rank(FFN, "h200_sxm", top=1)[0]
  assert best.bound == "tensor_cores"
  ideal = hw.what_helps(best).ideal[0]
  assert (ideal.what, ideal.bound) == ("tensor_cores", "shared_memory")
  # what is left is what does not overlap, and the shared memory
  left = best.predicted_us - best.times_us["tensor_cores"] + best.times_us["shared_memory"]
  assert ideal.predicted_us == pytest.approx(left)


def test_copies_of_an_odd_pitch_are_told_the_pitches_that_need_none():
  config = hw.MatmulConfig(64, 64, 64, 2)
  planned, padded = (
    hw.plan(hw.MatmulProblem(113, k, n), config, "h200_sxm", schedule="multistage")
    for k, n in ((1023, 203), (1024, 208))
  )
  ideal = hw.what_helps(planned).ideal[0]
  assert (planned.bound, ideal.what, ideal.bound) == ("narrow_copies", "narrow_copies", "latency")
  # what is left are loads that wait for one another, which odd pitches do, too
  left = planned.predicted_us - planned.times_us["narrow_copies"] + planned.times_us["latency"]
  assert ideal.predicted_us == pytest.approx(left)
  said = hw.what_helps(planned).sentences()[1]
  assert said.endswith(f"{ideal.sentence()}; row pitches that are multiples of 16 bytes need none")
  assert "narrow_copies" not in padded.times_us
  assert padded.predicted_us < ideal.predicted_us
  # of a device that is short of something else it is not said
  assert "pitches" not in hw.what_helps(padded).sentences()[1]


def test_tile_that_does_not_fit_is_told_what_makes_it_fit():
  planned = hw.plan(FFN, hw.MatmulConfig(128, 256, 64, 4), "rtx_pro_6000")
  assert not planned.fits
  found = hw.what_helps(planned)
  assert found.tile.plan.fits
  assert (found.tile.gain, found.ideal) == (None, ())
  assert found.sentences() == (f"most help: {found.tile.sentence()}",)


def test_tile_that_no_single_field_mends_says_so():
  found = hw.what_helps(hw.plan(FFN, hw.MatmulConfig(256, 256, 128, 4), "rtx_pro_6000"))
  assert (found.tile, found.ideal) == (None, ())
  assert "several fields" in found.sentences()[0]


def test_best_tile_has_no_change_to_offer():
  (sentence, _) = hw.what_helps(hw.rank(FFN, "h200_sxm", top=1)[0]).sentences()
  assert sentence == "most help: no change of one field of the tile gains 2 %"


def test_changed_profile_must_be_given_and_be_the_plan_s():
  fast = dataclasses.replace(hw.get_profile("h200_sxm"), launch_overhead_us=100.0)
  planned = hw.plan(FFN, hw.MatmulConfig(128, 256, 64, 4), fast)
  assert hw.what_helps(planned, fast).ideal[0].what in ("launch", "tensor_cores")
  launch = next(x for x in hw.what_helps(planned, fast).ideal if x.what == "launch")
  assert launch.predicted_us == pytest.approx(planned.predicted_us - 100)
  with pytest.raises(ValueError, match="expected 'h200_sxm', as planned"):
    hw.what_helps(planned, "h100_sxm")


@pytest.mark.parametrize("profile", hw.list_profiles())
def test_limits_that_can_be_lifted_are_rates_not_capacities(profile):
  device = hw.get_profile(profile)
  resources = ("tensor_cores", "cuda_cores", "dram", "cube", "mte1", "mte2", "hbm", "launch")
  for resource in resources:
    ideal = without_limit(device, resource)
    if ideal is None:
      continue
    changed = {
      field.name
      for field in dataclasses.fields(device)
      if field.name != "sources" and getattr(ideal, field.name) != getattr(device, field.name)
    }
    assert changed
    assert not any(
      name.endswith("_bytes") or name.endswith("_per_sm")
      for name in changed - {"shared_bytes_per_cycle_per_sm", "special_functions_per_cycle_per_sm"}
    )
  assert without_limit(device, "epilogue") is None


def test_cuda_cores_without_limit_leave_the_tensor_cores():
  gpu = hw.get_profile("h100_sxm")
  ideal = without_limit(gpu, "cuda_cores")
  assert ideal.peak_flops["float32"] > 1e6 * gpu.peak_flops["float32"]
  assert ideal.peak_flops["bfloat16"] == gpu.peak_flops["bfloat16"]


def test_what_is_no_plan_is_refused():
  with pytest.raises(ValueError, match=r"tile_plan=None: expected a TilePlan, as plan and rank"):
    hw.what_helps(None)


def test_latency_without_that_of_memory_is_not_said_to_bind_still():
  planned = hw.plan(FFN, hw.MatmulConfig(64, 64, 32, 1), "h200_sxm", schedule="warp_specialized")
  ideal = hw.what_helps(planned).ideal[0]
  assert (ideal.what, ideal.bound) == ("latency", "latency")
  assert ideal.sentence().endswith("what is left of latency binds")


def test_what_is_compiled_stays_so_unless_no_change_of_a_field_compiles():
  problem = hw.AttentionProblem(batch=2, seq_q=4096, seq_kv=4096, heads=32, kv_heads=8, causal=True)
  long_keys = hw.plan(problem, hw.AttentionConfig(64, 512), "ascend_910b3")
  square = hw.plan(problem, hw.AttentionConfig(128, 128), "ascend_910b3")
  for plan in (long_keys, square):
    assert (plan.fits, plan.schedule) == (False, "compiled")
    assert "schedule='cube_vector' would fit this tile" in plan.notes
  change = hw.what_helps(long_keys).tile
  assert (change.what, change.plan.schedule) == ("block_kv=32", "compiled")
  # and not a third stage, which is no kernel's but one by hand
  change = hw.what_helps(square).tile
  assert (change.what, change.plan.config) == ("schedule=cube_vector", square.config)
