"""An op that the package does not know, added from outside: plan and rank take it."""

import dataclasses
import re

import pytest

import hw_profiles as hw
from hw_profiles import tile_config
from hw_profiles.capacity.buffers import Buffer, Shortfall, fullest
from hw_profiles.cost.npu_time import NpuAmounts, NpuWork
from hw_profiles.cost.sm_time import SmAmounts, SmWork
from hw_profiles.cost.wave import wave
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.planner import op_registry
from hw_profiles.planner.op_model import Demand, Execution


@dataclasses.dataclass(frozen=True)
class ScaleProblem:
  """y = c·x for `count` float32 numbers."""

  count: int
  dtype: str = "float32"

  @property
  def bytes(self):
    return 8 * self.count


@dataclasses.dataclass(frozen=True)
class ScaleConfig:
  block: int
  num_stages: int = 2
  lanes: int | None = None

  def describe(self):
    return tile_config.describe(self)


@dataclasses.dataclass(frozen=True)
class ScaleTraffic:
  working_set_bytes: int
  total_bytes: int
  intensity: float
  grid: tuple[int]


class _Stream:
  """One program a block of numbers; a device class decides where."""

  def unsupported(self, problem, device):
    if problem.dtype == "float32":
      return ()
    return (Shortfall("unsupported", "dtype", (), f"dtype={problem.dtype!r}: float32 only"),)

  def shortfalls(self, problem, config, device):
    found = []
    if config.block % 8:
      found.append(Shortfall("shape", "tile shape", ("block",), "blocks are multiples of 8"))
    (buffer,) = self.buffers(config, device)
    if buffer.needed_bytes > buffer.available_bytes:
      text = f"{buffer.space} needs {buffer.needed_bytes} B, has {buffer.available_bytes} B"
      found.append(Shortfall("capacity", buffer.space, ("block", "num_stages"), text))
    return tuple(found)

  def demand(self, problem, config, device):
    tiles = -(-problem.count // config.block)
    held = self.buffers(config, device)
    return Demand(
      buffers=held,
      traffic=ScaleTraffic(held[0].needed_bytes, problem.bytes, 1 / 8, (tiles,)),
      tiles=tiles,
      cores=self.cores(device),
      execution=lambda: Execution(
        work=self.work(problem, config, tiles),
        resident_blocks=1,
        residency=None,
        binding=fullest(held, (held[0].space,)),
        waves=wave(programs=tiles, cores=self.cores(device)),
        traffic_bytes=FrozenMap(dram=problem.bytes),
        notes=("streams",),
      ),
      notes=("scaled",),
      assumptions=("numbers are numbers",),
    )


class SharedStream(_Stream):
  NAME = "stream"

  def buffers(self, config, gpu):
    needed = config.num_stages * config.block * 4
    return (Buffer("x", "shared", needed, gpu.max_shared_bytes_per_block, config.num_stages),)

  def cores(self, gpu):
    return gpu.sm_count

  def work(self, problem, config, tiles):
    return SmWork(
      tiles=tiles,
      steps=1,
      per_step=SmAmounts(flops=config.block, l2_bytes=4 * config.block),
      per_tile=SmAmounts(l2_bytes=4 * config.block),
      flops_per_s=1e13,
      dram_bytes=problem.bytes,
      resident_blocks=1,
      num_stages=config.num_stages,
      persistent=True,
    )


class WideStream(SharedStream):
  """Preferred where the block is a multiple of 1024."""

  NAME = "wide"

  def shortfalls(self, problem, config, device):
    if config.block % 1024:
      return (Shortfall("shape", "tile shape", ("block",), "wide blocks are whole kilobytes"),)
    return super().shortfalls(problem, config, device)


class VectorStream(_Stream):
  NAME = "vector"

  def buffers(self, config, npu):
    return (Buffer("x", "UB", config.num_stages * config.block * 4, npu.ub_bytes, 2),)

  def cores(self, npu):
    return npu.aiv_count

  def work(self, problem, config, tiles):
    size = 4 * config.block
    return NpuWork(
      core="AIV",
      tiles=tiles,
      steps=0,
      per_step=NpuAmounts(),
      per_tile=NpuAmounts(gm_to_ub_bytes=size, vector_bytes=size, ub_to_gm_bytes=size),
      hbm_bytes=problem.bytes,
      num_stages=config.num_stages,
    )


class ScaleModel:
  name = "scale"
  problem_class = ScaleProblem
  config_class = ScaleConfig
  gpu_schedules = (WideStream(), SharedStream())
  npu_schedules = (VectorStream(),)

  def candidates(self, problem, device, schedule):
    smallest = 1024 if schedule == "wide" else 256
    return (ScaleConfig(smallest << i, stages) for i in range(8) for stages in (1, 2, 4))

  def tile_fields(self, problem, config):
    return {
      "block": tile_config.TileField(config.block, 8, larger_needs_more=True, is_block=True),
      "num_stages": tile_config.TileField(config.num_stages, larger_needs_more=True, fallback=1),
      "lanes": tile_config.TileField(config.lanes or 32),
    }


PROBLEM = ScaleProblem(1 << 24)


@pytest.fixture(autouse=True)
def _scale(monkeypatch):
  monkeypatch.setattr(op_registry, "_BY_PROBLEM", dict(op_registry._BY_PROBLEM))
  op_registry.register(ScaleModel())


@pytest.mark.parametrize(
  ("profile", "schedule", "bound"), [("h200", "wide", "dram"), ("910b3", "vector", "hbm")]
)
def test_a_made_up_op_is_planned(profile, schedule, bound):
  plan = hw.plan(PROBLEM, ScaleConfig(4096), profile)
  assert plan.fits
  assert (plan.schedule, plan.grid, plan.bound) == (schedule, (4096,), bound)
  assert plan.traffic.working_set_bytes == plan.buffers[0].needed_bytes == 2 * 4096 * 4
  assert plan.notes[-2:] == ("scaled", "streams")
  assert "numbers are numbers" in plan.assumptions
  assert plan.model_error is None
  assert plan.assumptions[-1].startswith("times: never checked against a measured scale")
  limit = hw.roofline(hw.get_profile(profile), flops=1, bytes=PROBLEM.bytes, dtype="float32")
  assert plan.predicted_us > limit.time_us


@pytest.mark.parametrize("profile", hw.list_profiles())
def test_a_made_up_op_is_ranked(profile):
  plans = hw.rank(PROBLEM, profile, top=None)
  assert plans
  assert all(plan.fits for plan in plans)
  times = [plan.predicted_us for plan in plans]
  assert times == sorted(times)
  best = hw.rank(PROBLEM, profile, [plan.config for plan in plans], top=1)
  assert best == plans[:1]


def test_ascend_vector_cores_are_all_counted():
  npu = hw.get_profile("910b3")
  full = hw.plan(ScaleProblem(npu.aiv_count * 1024), ScaleConfig(1024), npu)
  assert (full.waves, full.tail_efficiency) == (1, 1.0)


def test_auto_falls_back_in_the_order_of_preference():
  plan = hw.plan(PROBLEM, ScaleConfig(264), "h200")
  assert plan.schedule == "stream"
  assert plan.notes[0] == ("schedule: stream, as wide does not: wide blocks are whole kilobytes")
  refused = hw.plan(PROBLEM, ScaleConfig(264), "h200", schedule="wide")
  assert refused.shortfall_kinds == ("shape",)
  assert "schedule='stream' would fit this tile" in refused.notes
  with pytest.raises(ValueError, match="scale on h200_sxm is planned as 'auto', 'wide' or"):
    hw.plan(PROBLEM, ScaleConfig(264), "h200", schedule="cube")


def test_remedies_come_from_the_fields_the_op_names():
  large = hw.plan(PROBLEM, ScaleConfig(65536), "h200", schedule="stream")
  assert large.reason == (
    "block=65536: shared needs 524288 B, has 232448 B; largest block that fits is 29056"
  )
  odd = hw.plan(PROBLEM, ScaleConfig(4), "h200", schedule="stream")
  assert odd.reason == "block=4: blocks are multiples of 8; smallest block that fits is 8"
  hopeless = hw.plan(PROBLEM, ScaleConfig(1 << 20, 1 << 20), "h200", schedule="stream")
  found = re.search(r"no single field mends it, block=(\d+),num_stages=1 fits$", hopeless.reason)
  assert found
  mended = ScaleConfig(int(found[1]), 1)
  assert hw.plan(PROBLEM, mended, "h200", schedule="stream").fits


def test_a_dtype_the_op_does_not_do_is_unsupported():
  plan = hw.plan(ScaleProblem(8, "int8"), ScaleConfig(8), "h200")
  assert plan.shortfall_kinds == ("unsupported",)
  assert plan.reason == "dtype='int8': float32 only"
  # where no candidate fits, rank says why of each
  ranked = hw.rank(ScaleProblem(8, "int8"), "h200")
  assert ranked
  assert {(found.fits, found.reason) for found in ranked} == {(False, "dtype='int8': float32 only")}


def test_a_config_of_another_op_is_refused():
  with pytest.raises(ValueError, match="expected a ScaleConfig"):
    hw.plan(PROBLEM, hw.MatmulConfig(64, 64, 64), "h200")
  with pytest.raises(ValueError, match=r"expected one of MatmulProblem, .*ScaleProblem$"):
    hw.plan("scale", ScaleConfig(8), "h200")


def test_an_op_without_schedules_on_a_vendor_says_so(monkeypatch):
  monkeypatch.setattr(ScaleModel, "npu_schedules", ())
  with pytest.raises(ValueError, match="scale is not planned for huawei"):
    hw.plan(PROBLEM, ScaleConfig(8), "910b3")


def test_names_and_problem_classes_belong_to_one_op():
  with pytest.raises(ValueError, match="there is an op of that name"):
    op_registry.register(ScaleModel())
  other = ScaleModel()
  other.name = "rescale"
  with pytest.raises(ValueError, match="problem_class=ScaleProblem: scale is found by it"):
    op_registry.register(other)
