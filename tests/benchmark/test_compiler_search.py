"""Tiles that several compilers take: which are tried, in which order, which is found."""

import dataclasses
import math

import pytest

from hw_profiles import AttentionConfig, MatmulConfig
from hw_profiles.ascend import why_missing
from pallas_kernels.benchmark import accepted, compiling, flags, porting
from pallas_kernels.lowering.compile_task import Compiled

_EVERYWHERE = ("h200_sxm", "ascend_910b3", "ascend_950pr")


class FakePool:
  """Compilers that take what a rule takes."""

  jobs = 2

  def __init__(self, rule, available=lambda task: True):
    self._rule, self._available = rule, available
    self.asked = []

  def compile(self, tasks, *, on_done):
    self.asked += tasks
    answers = []
    for task in tasks:
      outcome = "accepted" if self._rule(task) else "too large"
      if not self._available(task):
        outcome = "not available"
      answers.append(Compiled(task, "fake", outcome, "" if outcome == "accepted" else outcome))
      on_done(answers[-1])
    return answers


def _options(*arguments, task="ascend"):
  return flags.parse([f"--task={task}", *arguments])


def test_neighbours_come_nearest_first_and_are_powers_of_two():
  tile = MatmulConfig(128, 96, 64, 3, group_m=4)
  found = list(accepted.neighbours(tile))
  assert len(set(found)) == len(found)
  assert tile not in found

  def distance(other):
    blocks = ("block_m", "block_n", "block_k")
    return abs(other.num_stages - 3) / 2 + sum(
      abs(math.log2(getattr(other, name) / getattr(tile, name))) for name in blocks
    )

  assert [distance(x) for x in found] == sorted(map(distance, found))
  assert all(x.block_n & (x.block_n - 1) == 0 for x in found)
  assert {x.group_m for x in found} == {4}
  assert {x.num_stages for x in found} == {1, 2, 3, 4}


def test_nearest_tile_is_the_first_that_all_take():
  options = _options("--top=60")
  tile = MatmulConfig(256, 256, 64, 2)
  pool = FakePool(lambda task: task.config.block_m * task.config.block_n <= 64 * 256)
  found = accepted.nearest(options, pool, options.workloads[0], tile, _EVERYWHERE)
  assert found.tile.block_m * found.tile.block_n <= 64 * 256
  assert {answer.task.profile for answer in found.answers} == set(_EVERYWHERE)
  # what the models do not let through is not compiled: 256x256 has no room in a 910's L0C
  assert all(task.config.block_m * task.config.block_n < 256 * 256 for task in pool.asked)


def test_search_ends_at_the_number_that_was_asked_for():
  options = _options("--top=5")
  pool = FakePool(lambda task: False)
  tile = MatmulConfig(128, 128, 64, 2)
  found = accepted.nearest(options, pool, options.workloads[0], tile, ("ascend_910b3",))
  assert found.tile is None
  assert "5 were compiled (--top=5)" in found.told
  assert len(pool.asked) == 5


def test_missing_compiler_ends_a_search_at_once():
  options = _options()
  pool = FakePool(lambda task: True, available=lambda task: "ascend" not in task.profile)
  found = accepted.nearest(
    options, pool, options.workloads[0], MatmulConfig(128, 128, 64, 2), _EVERYWHERE
  )
  assert found.tile is None
  assert found.told == "not available"


def test_what_huawei_s_compiler_wants_is_part_of_the_verdict():
  workload = _options("--activation=silu").workloads[0]
  tile = MatmulConfig(128, 256, 64, 1)
  verdict = compiling.planned(workload, tile, "ascend_910b3")
  # silu keeps its share of the tile about five times in UB
  assert not verdict.fits
  assert "UB" in verdict.reason
  assert compiling.planned(workload, tile, "h200_sxm").fits


def test_stages_beyond_two_are_planned_as_the_two_that_are_compiled():
  workload = _options().workloads[0]
  plans = [
    compiling.planned(workload, MatmulConfig(128, 256, 256, stages), "ascend_950pr")
    for stages in (2, 4)
  ]
  assert plans[0].fits
  assert plans[0].schedule == "compiled"
  assert plans[0] == plans[1]
  # the Hopper kernel has them all
  hopper = compiling.planned(workload, MatmulConfig(128, 256, 256, 4), "h200_sxm")
  assert not hopper.fits
  assert hopper.config.num_stages == 4


def test_best_tile_is_the_first_of_the_ranking_that_is_taken():
  options = _options("--top=100", task="port")
  workload = options.workloads[0]
  pool = FakePool(lambda task: task.config.block_k == 512)
  best = porting.best_tile(options, pool, workload, "ascend_910b3")
  assert best.compiled
  first = next(plan for plan in best.ranked if plan.config.block_k == 512)
  assert best.plan == first
  assert best.ranked[0].config.block_k != 512


def test_without_a_compiler_the_planner_s_best_stands():
  options = _options(task="port")
  pool = FakePool(lambda task: True, available=lambda task: False)
  best = porting.best_tile(options, pool, options.workloads[0], "ascend_910b3")
  assert not best.compiled
  assert best.plan == best.ranked[0]
  assert len(pool.asked) <= FakePool.jobs


def test_changes_say_what_keeping_the_other_value_costs():
  options = _options(
    "--kernel=flash_attention",
    "--shape=batch=1,seq_q=8192,seq_kv=8192,heads=32,kv_heads=8",
    task="port",
  )
  workload = options.workloads[0]
  pool = FakePool(lambda task: True)

  def best(profile, tile):
    found = porting.best_tile(options, pool, workload, profile)
    plan = compiling.planned(workload, tile, profile)
    return dataclasses.replace(found, plan=plan)

  source = best("h200_sxm", AttentionConfig(128, 128, 3))
  there = best("ascend_950pr", AttentionConfig(64, 256, 2))
  found = {change.field: change for change in porting.changes(workload, source, there)}
  assert set(found) == {"block_q", "block_kv", "num_stages"}
  assert found["block_q"].kept_us is None
  assert "UB" in found["block_q"].why()
  kept = compiling.planned(workload, AttentionConfig(64, 128, 2), "ascend_950pr")
  assert found["block_kv"].kept_us == kept.predicted_us > there.plan.predicted_us
  assert "keeps 2 copies at most" in found["num_stages"].why()


def test_common_tile_loses_least_where_it_loses_most():
  options = _options(task="port")
  workload = options.workloads[0]
  pool = FakePool(lambda task: True)
  bests = [porting.best_tile(options, pool, workload, p) for p in ("h200_sxm", "ascend_910b3")]
  found = porting.common_tile(options, pool, workload, bests)
  own = {best.profile: best.plan.predicted_us for best in bests}

  def worst(tile):
    plans = [accepted.model_accepts(workload, tile, profile) for profile in own]
    if any(plan is None for plan in plans):
      return math.inf
    return max(plan.predicted_us / own[plan.profile] for plan in plans)

  others = [plan.config for best in bests for plan in best.ranked]
  assert worst(found.tile) == min(map(worst, others))


def test_missing_extra_is_said_by_both_tasks(capsys, compiles_here):
  if not why_missing():
    pytest.skip("the compilers are installed here")
  from pallas_kernels.benchmark import main

  tile = "--tile=block_m=64,block_n=64,block_k=64"
  assert main.main(["--task=ascend", tile, "--profile=ascend_910b3"]) == 0
  table = capsys.readouterr().out
  assert 'pip install "pallas-kernels[ascend]"' in table
  assert main.main(["--task=port", "--profile=ascend_910b3,ascend_950pr"]) == 0
  assert 'pip install "pallas-kernels[ascend]"' in capsys.readouterr().out
