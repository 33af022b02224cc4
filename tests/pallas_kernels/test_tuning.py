"""Measured tiles: what a search finds, how a call finds it, and what is refused."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest

import hw_profiles
from hw_profiles import MatmulConfig, MatmulProblem
from pallas_kernels import planning
from pallas_kernels.benchmark import environment, flags, timing, workbench
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.main import main
from pallas_kernels.benchmark.tasks import tune
from pallas_kernels.benchmark.workload import Workload
from pallas_kernels.device import TargetDevice
from pallas_kernels.dispatch import Implementation
from pallas_kernels.tuning import candidates, driver, encoding, lookup, search
from pallas_kernels.tuning.state import State, StateError
from pallas_kernels.tuning.table import Entry, Environment, TableError, dump, merged, parse

KIND = "NVIDIA H200"
H200 = TargetDevice("gpu", KIND, 132, (9, 0))
PROBLEM = MatmulProblem(m=1024, k=4096, n=12288, out_dtype="bfloat16", shared_b=True)
CONFIG = MatmulConfig(128, 128, 64, 5, group_m=16)
OTHER = MatmulConfig(128, 192, 64, 4)
TOO_LARGE = MatmulConfig(256, 256, 128, 8)
HERE = Environment(
  device_kind=KIND, driver="580.1", jax=jax.__version__, commit="abc", date="2026-01-02"
)


def implementation(name="mosaic_gpu"):
  return Implementation(
    name, schedule="warp_specialized", refusal=lambda *_: None, run=lambda *_: None
  )


def entry(config=CONFIG, problem=PROBLEM, *, name="mosaic_gpu", us=24.6, **changes):
  return Entry(
    problem=encoding.encode(problem),
    implementation=name,
    config=config,
    measured_us=us,
    environment=dataclasses.replace(HERE, **changes),
  )


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
  """An empty user cache and no packaged tables; returns a function that fills them."""
  cache, packaged = tmp_path / "tuning.json", tmp_path / "h200_matmul.json"
  monkeypatch.setenv(lookup.CACHE_VARIABLE, str(cache))
  monkeypatch.setattr(lookup, "packaged_tables", lambda: [x for x in [packaged] if x.exists()])
  monkeypatch.setattr(driver, "version", lambda: "580.1")
  lookup.reload()

  def fill(*, user=(), table=(), text=None):
    cache.write_text(dump(user) if text is None else text)
    packaged.write_text(dump(table))
    lookup.reload()
    return cache

  yield fill
  lookup.reload()


def planned():
  return hw_profiles.rank(PROBLEM, "h200_sxm", top=1, schedule="warp_specialized")[0].config


def resolved(problem=PROBLEM, config=None, *, name="mosaic_gpu", device=H200, **options):
  return planning.resolve(implementation(name), problem, config, device, **options)


def notes(problem=PROBLEM, *, name="mosaic_gpu", device=H200, **options):
  return planning.choice_notes(implementation(name), problem, device, **options)


# --- which tile a call takes


def test_user_cache_comes_first_then_the_table_then_the_planner(files):
  assert planned() not in (CONFIG, OTHER)
  assert resolved()[0] == planned()
  assert notes() == ()
  files(table=[entry(OTHER)])
  assert resolved()[0] == OTHER
  assert notes() == (
    f"tuned: measured 24.6 us on {KIND}, jax {jax.__version__} (table h200_matmul)",
  )
  files(user=[entry(CONFIG)], table=[entry(OTHER)])
  config, plan = resolved()
  assert config == CONFIG
  assert plan == hw_profiles.plan(PROBLEM, CONFIG, "h200_sxm", schedule="warp_specialized")
  assert notes()[0].endswith("(user cache)")


def test_config_of_the_caller_is_taken_as_it_is(files):
  files(user=[entry(CONFIG)])
  assert resolved(config=OTHER)[0] == OTHER


@pytest.mark.parametrize(
  "change",
  [
    {"m": 1025},
    {"dtype": "float16"},
    {"out_dtype": "float32"},
    {"bias": True},
    {"activation": "silu"},
    {"shared_b": False},
    {"batch": 2},
    {"products": 2},
  ],
)
def test_only_exactly_this_problem_is_tuned(files, change):
  files(user=[entry(CONFIG)], table=[entry(OTHER)])
  config, _ = resolved(dataclasses.replace(PROBLEM, **change))
  assert config not in (CONFIG, OTHER)


def test_only_this_kernel_and_device_are_tuned(files):
  files(table=[entry(CONFIG)])
  assert resolved(name="triton")[0] == planned()
  h100 = TargetDevice("gpu", "NVIDIA H100 80GB HBM3", 132, (9, 0))
  assert resolved(device=h100)[0] != CONFIG
  unknown = TargetDevice("gpu", "NVIDIA of tomorrow", 132, (9, 0))
  files(table=[entry(CONFIG, device_kind=unknown.kind)])
  assert resolved(device=unknown)[0] != CONFIG


@pytest.mark.parametrize("name", ["interpret", "mosaic_gpu_interpret"])
def test_interpreters_keep_the_tile_of_the_planner(files, name):
  before = resolved(name=name)
  files(user=[entry(CONFIG, name=name)], table=[entry(OTHER, name=name)])
  assert resolved(name=name) == before
  assert notes(name=name) == ()


def test_batch_invariant_call_takes_the_tile_of_the_invariant_problem(files):
  files(table=[entry(CONFIG)])
  small = dataclasses.replace(PROBLEM, m=7)
  assert resolved(small)[0] != CONFIG
  assert resolved(small, plan_as=PROBLEM)[0] == CONFIG
  assert notes(small, plan_as=PROBLEM)[0].startswith("tuned: ")


def test_tile_that_does_not_fit_any_more_is_passed_over(files):
  files(user=[entry(TOO_LARGE)], table=[entry(OTHER)])
  assert resolved()[0] == OTHER
  first, second = notes()
  assert first.startswith("not tuned by the user cache: ")
  assert second.startswith("tuned: ")
  files(user=[entry(TOO_LARGE)])
  assert resolved()[0] == planned()


def test_config_of_another_op_is_passed_over(files):
  files(user=[entry(hw_profiles.RowConfig(8, 128))])
  assert resolved()[0] == planned()
  assert notes()[0].startswith("not tuned by the user cache: ")


@pytest.mark.parametrize(
  ("change", "told"),
  [
    ({"driver": "570.0"}, "measured with driver 570.0, and this is 580.1"),
    ({"driver": None}, "measured with driver unknown, and this is 580.1"),
    ({"jax": "0.1"}, f"measured with jax 0.1, and this is {jax.__version__}"),
  ],
)
def test_user_cache_of_another_driver_or_jax_is_refused(files, change, told):
  cache = files(user=[entry(CONFIG, **change)], table=[entry(OTHER, **change)])
  assert resolved()[0] == OTHER  # a packaged table serves its device whatever the versions are
  assert notes()[0] == f"not tuned by the user cache ({cache}): {told}"


@pytest.mark.parametrize(
  ("text", "told"),
  [
    ("{", "not JSON"),
    ("[]", "no tuning table"),
    ('{"schema": 99, "entries": []}', "schema 99"),
    (dump([entry()]).replace("block_m", "block_q"), "MatmulConfig has no field 'block_q'"),
    (dump([entry()]).replace('"MatmulConfig"', '"Matmul"'), "config class 'Matmul'"),
    (dump([entry()]).replace('"block_m": 128', '"block_m": -1'), "block_m=-1"),
    (dump([entry()]).replace("24.6", '"fast"'), "measured_us is 'fast'"),
    (dump([entry()]).replace('"driver"', '"drivers"'), "environment is"),
  ],
)
def test_damaged_file_is_a_warning_when_traced_and_an_error_when_asked_for(files, text, told):
  cache = files(text=text, table=[entry(OTHER)])
  with pytest.warns(RuntimeWarning, match="left out") as caught:
    assert resolved()[0] == OTHER
  assert len(caught) == 1  # read once
  assert str(cache) in str(caught[0].message)
  assert told in str(caught[0].message)
  with pytest.raises(TableError, match=r"tuning\.json"):
    lookup.read(cache, strict=True)


def test_one_wrong_entry_leaves_the_others(files):
  wrong = dump([entry(problem=dataclasses.replace(PROBLEM, m=1))]).replace("block_m", "block_q")
  document = json.loads(wrong)
  document["entries"] += json.loads(dump([entry()]))["entries"]
  files(text=json.dumps(document))
  with pytest.warns(RuntimeWarning, match="entry 0"):
    assert resolved()[0] == CONFIG


def test_no_user_cache_where_the_variable_is_empty(monkeypatch):
  monkeypatch.setenv(lookup.CACHE_VARIABLE, "")
  assert lookup.user_cache_path() is None
  lookup.reload()
  assert resolved()[0] == planned()
  monkeypatch.delenv(lookup.CACHE_VARIABLE)
  monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
  assert lookup.user_cache_path() == pathlib.Path("/caches/pallas_kernels/tuning.json")


# --- files


def test_packaged_tables_are_sound(monkeypatch):
  monkeypatch.undo()
  seen = set()
  for path in lookup.packaged_tables():
    for one in lookup.read(path, strict=True).entries:
      assert one.key not in seen
      seen.add(one.key)


def test_table_reads_as_written():
  entries = (entry(), entry(OTHER, dataclasses.replace(PROBLEM, m=64), us=3.0))
  text = dump(entries)
  again = parse(text, "x", strict=True).entries
  assert [one.measured_us for one in again] == [3.0, 24.6]  # by size
  assert dump(again) == text
  newer = entry(OTHER, us=20.0)
  assert [x.measured_us for x in merged(entries, [newer])] == [20.0, 3.0]


def test_encoding_is_the_same_for_equal_problems_and_leaves_defaults_out():
  assert encoding.encode(MatmulProblem(1, 2, 3)) == {
    "class": "MatmulProblem",
    "m": 1,
    "k": 2,
    "n": 3,
  }
  assert encoding.key(MatmulProblem(1, 2, 3, bias=False)) == encoding.key(MatmulProblem(1, 2, 3))
  for problem in (
    hw_profiles.AttentionProblem(2, 128, 256, 8, head_dim=64),
    hw_profiles.RmsNormProblem(8, 128),
  ):
    assert json.loads(encoding.key(problem)) == encoding.encode(problem)


def test_config_reads_as_written():
  for config in (CONFIG, MatmulConfig(64, 64, 64, overlap_epilogue=False, cluster_n=2)):
    assert encoding.decode_config(encoding.encode(config)) == config


# --- the search

TARGET = search.Target(
  problem=PROBLEM, implementation="mosaic_gpu", schedule="warp_specialized", profile="h200_sxm"
)


class FakeDevice:
  """Times that depend on the config alone, but for the first round of some; counts its work."""

  def __init__(self, *, stop_after=None, wrong=(), broken=()):
    self.compiled, self.measured = [], []
    self.stop_after, self.wrong, self.broken = stop_after, wrong, broken

  def prepare(self, configs):
    self.compiled += configs
    return {x: "does not compile: too many registers" for x in configs if x in self.broken}

  def verify(self, config):
    assert config in self.compiled
    return ("wrong: 3 elements" if config in self.wrong else None), "float64"

  def measure(self, config):
    if self.stop_after is not None and len(self.measured) == self.stop_after:
      raise KeyboardInterrupt
    self.measured.append(config)
    return self.time_us(config)

  @staticmethod
  def time_us(config):
    us = 100.0 + abs(config.block_m - 128) / 8 + abs(config.block_n - 256) / 8
    return us - 5 * (config.cluster_n == 2) - (config.group_m == 16)


def searched(bench, trials, **options):
  return search.search(
    TARGET, bench, trials, top=4, save=lambda: None, say=lambda _: None, **options
  )


def test_search_finds_a_neighbour_of_the_best_and_says_what_the_planner_lost():
  bench = FakeDevice()
  result = searched(bench, {})
  assert result.best.config.cluster_n == 2
  assert result.best.measured_us == min(map(bench.time_us, bench.compiled))
  assert result.planner.config == planned()
  assert result.regret == bench.time_us(planned()) / result.best.measured_us
  assert len(set(bench.compiled)) == len(bench.compiled)
  best, second, *_ = result.candidates
  assert [len(x.trial.rounds_us) for x in (best, second, result.planner)] == [3, 3, 3]
  assert len(result.candidates) == 4 * search.CONFIGS_A_TILE
  line = result.entry(HERE)
  assert (line.config, line.runner_up.config) == (best.config, second.config)
  assert line.planner_us == result.planner.measured_us
  assert parse(dump([line]), "x", strict=True).entries == (line,)


def test_median_of_the_rounds_decides_between_finalists():
  class Lucky(FakeDevice):
    def measure(self, config):
      us = super().measure(config)
      return us / 2 if config == planned() and self.measured.count(config) == 1 else us

  result = searched(Lucky(), {})
  assert result.best.config != planned()
  assert result.regret > 1


@pytest.mark.parametrize("stop_after", [0, 1, 3, 5, 9])
def test_search_goes_on_where_it_was_stopped(stop_after):
  whole = searched(uninterrupted := FakeDevice(), {})
  state = State(HERE, {"iterations": 30})
  first = FakeDevice(stop_after=stop_after)
  with pytest.raises(KeyboardInterrupt):
    searched(first, state.trials(TARGET.key))
  state = State.load(state.dump(), "x", environment=HERE, settings={"iterations": 30})
  second = FakeDevice()
  result = searched(second, state.trials(TARGET.key))
  assert first.measured + second.measured == uninterrupted.measured
  assert [(x.config, x.measured_us) for x in result.candidates] == [
    (x.config, x.measured_us) for x in whole.candidates
  ]
  nothing = FakeDevice(stop_after=0)
  assert searched(nothing, state.trials(TARGET.key)).best.config == whole.best.config
  assert nothing.compiled == []


def test_wrong_and_broken_tiles_do_not_win():
  best = searched(FakeDevice(), {}).best.config
  for options in ({"wrong": (best,)}, {"broken": (best,)}):
    result = searched(FakeDevice(**options), {})
    assert result.best.config != best
    assert result.candidates[-1].config == best
    assert result.candidates[-1].trial.failure
  everything = [
    x.config for x in candidates.first(PROBLEM, "h200_sxm", schedule="warp_specialized", top=4)
  ]
  result = searched(FakeDevice(broken=everything), {})
  assert (result.best, result.regret, result.entry(HERE)) == (None, None, None)


@pytest.mark.parametrize("error", [search.CandidateError, search.DeviceLostError])
def test_tile_that_does_not_run_is_not_run_again(error):
  class Failing(FakeDevice):
    def measure(self, config):
      if config == planned():
        raise error("does not run: illegal address")
      return super().measure(config)

  trials = {}
  if error is search.DeviceLostError:
    with pytest.raises(search.DeviceLostError):
      searched(Failing(), trials)
    assert len(trials) == 1
  result = searched(Failing(), trials)
  assert result.planner.trial.failure == "does not run: illegal address"
  assert result.planner is result.candidates[-1]
  assert result.regret is None


def test_tile_at_which_the_search_was_killed_is_not_run_again():
  trials, seen = {}, []
  bench = FakeDevice()
  search.search(
    TARGET, bench, trials, top=1, say=lambda _: None,
    save=lambda: seen.append({name: trial.failure for name, trial in trials.items()}),
  )  # fmt: skip
  killed_at = encoding.key(bench.measured[1])
  first = next(x for x in seen if killed_at in x)
  assert first[killed_at] == "was running when the search was killed"
  assert trials[killed_at].failure is None


@pytest.mark.parametrize(
  ("there", "settings", "told"),
  [
    ({"driver": "1"}, {"iterations": 30}, "measured with driver 1"),
    ({"jax": "0.1"}, {"iterations": 30}, "measured with jax 0.1"),
    ({"device_kind": "NVIDIA H100"}, {"iterations": 30}, "measured on NVIDIA H100"),
    ({"commit": "def"}, {"iterations": 30}, "measured at commit def"),
    ({}, {"iterations": 5}, "measured with {'iterations': 5}"),
  ],
)
def test_state_of_another_machine_or_setting_is_refused(there, settings, told):
  text = State(dataclasses.replace(HERE, **there), settings).dump()
  with pytest.raises(StateError, match=r"state\.json: ") as caught:
    State.load(text, "state.json", environment=HERE, settings={"iterations": 30})
  assert told in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1}', '{"schema": 2}'])
def test_damaged_state_is_refused(text):
  with pytest.raises(StateError, match=r"state\.json: no state of a search"):
    State.load(text, "state.json", environment=HERE, settings={})


@pytest.mark.parametrize(
  "problem", [PROBLEM, MatmulProblem(1, 4096, 12288), MatmulProblem(8, 8, 8)]
)
def test_candidates_fit_and_differ(problem):
  first = candidates.first(problem, "h200_sxm", schedule="warp_specialized", top=5)
  ranked = hw_profiles.rank(problem, "h200_sxm", schedule="warp_specialized", top=1)
  assert first[0] == ranked[0]
  configs = [x.config for x in first]
  beside = candidates.beside(problem, "h200_sxm", schedule="warp_specialized", config=configs[0])
  assert len({x.config for x in beside}) == len(beside) > 4
  assert configs[0] not in [x.config for x in beside]
  assert all(x.fits for x in (*first, *beside))
  if problem.m > 128:
    assert {x.config.cluster_m for x in beside} == {x.config.cluster_n for x in beside} == {1, 2}
    assert {x.config.group_m for x in beside} == {1, 4, 8, 16}


# --- the command


@pytest.fixture
def on_h200(monkeypatch):
  """The task, as if JAX ran on an H200."""
  facts = {
    "platform": "gpu", "device_kind": KIND, "driver": "580.1", "git_commit": "abc",
    "git_modified": False, "date": "2026-01-02",
  }  # fmt: skip
  monkeypatch.setattr(environment, "describe", lambda *, with_device: facts)
  monkeypatch.setattr("pallas_kernels.device.target_device", lambda: H200)
  monkeypatch.setattr("pallas_kernels.gemm.api.target_device", lambda: H200)
  monkeypatch.setattr("pallas_kernels.gemm.implementations.target_device", lambda: H200)


def test_command_says_how_to_go_on_after_a_kernel_broke_the_gpu(on_h200, tmp_path):
  class Lost(FakeDevice):
    def measure(self, config):
      raise search.DeviceLostError("does not run: illegal address")

  with pytest.raises(UsageError, match=r"illegal address; .*--resume=.*state\.json go on"):
    tune.run(options(tmp_path), make_workbench=lambda *_: Lost())
  assert "illegal address" in (tmp_path / "state.json").read_text()


def options(tmp_path, *more):
  return flags.parse(
    ["--task=tune", "--shape=m=1024,k=4096,n=12288", f"--resume={tmp_path}/state.json", *more]
  )


def test_command_tunes_the_problem_that_a_call_looks_up(on_h200, tmp_path, capsys):
  bench = FakeDevice()
  report = tune.run(options(tmp_path), make_workbench=lambda *_: bench)
  assert {x.measured_us for x in report.rows} == set(map(bench.time_us, bench.measured))
  assert [x.details["rank"] for x in report.rows] == list(range(1, len(report.rows) + 1))
  (choice,) = [x for x in report.rows if x.details["planner_choice"]]
  assert choice.details["regret"] == pytest.approx(choice.measured_us / report.rows[0].measured_us)
  assert any("for 1 of 1 problems" in x or "for 0 of 1" in x for x in report.blocks[0].lines)
  found = resolved()[0]
  assert found.describe() == report.rows[0].tile
  assert found != planned()
  assert "left" in capsys.readouterr().err


def test_interrupted_command_says_how_to_go_on_and_does(on_h200, tmp_path):
  table = tmp_path / "table.json"
  table.write_text(dump([entry(problem=dataclasses.replace(PROBLEM, m=64))]))
  chosen = options(tmp_path, f"--table={table}", "--top=4")
  first = FakeDevice(stop_after=5)
  with pytest.raises(tune.Interrupted, match=r"5 tiles tried.*--resume=.*state\.json"):
    tune.run(chosen, make_workbench=lambda *_: first)
  bench = FakeDevice()
  tune.run(chosen, make_workbench=lambda *_: bench)
  whole = FakeDevice()
  searched(whole, {})
  assert len(first.measured) + len(bench.measured) == len(whole.measured)
  assert len(lookup.read(table, strict=True).entries) == 2
  assert not lookup.user_cache_path().exists()


def test_command_refuses_a_damaged_table_before_it_measures(on_h200, files, tmp_path):
  cache = files(text=dump([entry()]).replace("block_m", "block_q"))
  with pytest.raises(UsageError, match=f"{cache}: entry 0: MatmulConfig has no field 'block_q'"):
    tune.run(options(tmp_path), make_workbench=None)
  (tmp_path / "state.json").write_text("{}")
  files()
  with pytest.raises(UsageError, match=r"--resume=.*no state of a search"):
    tune.run(options(tmp_path), make_workbench=None)


def test_command_refuses_what_has_no_tile(on_h200, tmp_path):
  with pytest.raises(UsageError, match="xla has no tile to tune"):
    tune.run(options(tmp_path, "--implementation=xla"), make_workbench=None)


def test_command_needs_a_gpu(capsys):
  if jax.default_backend() == "gpu":
    pytest.skip("there is one")
  assert main(["--task=tune"]) == 2
  assert "--task=tune measures tiles on a GPU, and JAX runs on cpu" in capsys.readouterr().err


# --- the device's side, as far as a CPU goes


@pytest.mark.parametrize(
  "arguments", [["--bias"], ["--kernel=quantized_matmul"], ["--kernel=gated_matmul"], ["--cold_l2"]]
)
def test_workbench_compiles_verifies_and_measures(arguments, monkeypatch):
  monkeypatch.setattr(timing, "FLUSH_BYTES", 2**12)
  chosen = flags.parse(["--task=tune", "--shape=m=48,k=64,n=80", "--iterations=3", *arguments])
  (workload,) = chosen.workloads
  bench = workbench.Workbench(chosen, workload, "interpret")
  small, wide, bad = MatmulConfig(16, 16, 32), MatmulConfig(32, 32, 32), MatmulConfig(16, 16, 24)
  monkeypatch.setattr(workbench.Workbench, "_function", broken_for(bad))
  assert list(bench.prepare([small, wide, bad])) == [bad]
  assert bench.verify(small) == (None, "float64")
  failure, how = bench.verify(wide)
  assert failure is None
  assert how in ("float64", "the bits of another tile that passed")
  runs = [[("read", 0.1)]] if chosen.cold_l2 else []
  own = [("gemm", 0.004)]
  answers = iter([[[*(runs[0] if runs else ()), *own]] * 3, *([runs] if runs else [])])
  monkeypatch.setattr(timing, "_kernels", lambda *_: next(answers))
  assert bench.measure(small) == pytest.approx(4.0)


def broken_for(config):
  """`Workbench._function` with one config that does not compile."""
  real = workbench.Workbench._function

  def function(self, one):
    def fails(*_):
      raise RuntimeError("no such instruction\nmore")

    return fails if one == config else real(self, one)

  return function


def test_wrong_result_is_found_out(monkeypatch):
  chosen = flags.parse(["--task=tune", "--shape=m=48,k=64,n=80"])
  (workload,) = chosen.workloads
  bench = workbench.Workbench(chosen, workload, "interpret")
  good, bad = MatmulConfig(16, 16, 32), MatmulConfig(32, 32, 32)
  bench.prepare([good, bad])
  assert bench.verify(good) == (None, "float64")
  right = timing.result_of

  def damaged(*arguments, **named):
    return right(*arguments, **named).at[3, 5].add(1)

  monkeypatch.setattr(timing, "result_of", damaged)
  failure, how = bench.verify(bad)
  assert failure.startswith("wrong: 1 of ")
  assert how == "float64"


def test_operands_kept_transposed_reach_the_call_as_they_were():
  a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
  function, arrays = timing.on_device(lambda x, y, z: x @ y, a, b, None, transposed=(1,))
  assert [x.shape for x in arrays] == [(2, 3), (4, 3)]
  np.testing.assert_array_equal(function(*arrays), a @ b)


def test_workloads_are_those_of_the_ops_with_kernels():
  workloads = flags.parse(["--task=tune", "--kernel=all"]).workloads
  assert {"matmul", "gated_matmul", "quantized_matmul"} <= {x.op.name for x in workloads}
  assert all(isinstance(x, Workload) for x in workloads)
