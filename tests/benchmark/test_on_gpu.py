"""What a GPU adds to a row: measured columns, tensor-core bounds, full size everywhere.

The first tests stand in for the device, so that the way from a measurement to
a row is tested where there is none; the last ones need it.
"""

import dataclasses
import json

import numpy as np
import pytest

import hw_profiles
import reference
from pallas_kernels.benchmark import main, runner, timing
from pallas_kernels.benchmark.ops.matmul import MATMUL
from pallas_kernels.benchmark.ops.swiglu import SWIGLU

SHAPE = "--shape=m=150,k=64,n=600"
TILE = "--tile=block_m=64,block_n=64,block_k=32"


@pytest.fixture
def pretended_gpu(monkeypatch):
  """JAX on a CPU, taken for a GPU whose timer answers 2, 4 and 6 us."""
  asked = []

  def measure(function, arguments, *, iterations, timer, cold_l2):
    assert function(*arguments).shape == (150, 600)
    asked.append((iterations, timer, cold_l2))
    return timing.Measurement(
      median_us=4.0,
      minimum_us=2.0,
      maximum_us=6.0,
      iterations=iterations,
      timer=timer,
      cold_l2=cold_l2,
    )

  monkeypatch.setattr(runner, "platform", lambda: "gpu")
  monkeypatch.setattr(runner, "device_profile", lambda: "h200_sxm")
  monkeypatch.setattr(timing, "measure", measure)
  return asked


def test_run_reports_the_median_and_what_it_was_taken_from(pretended_gpu, capsys):
  status = main.main(
    [
      "--task=run",
      SHAPE,
      TILE,
      "--implementation=interpret",
      "--peers=xla",
      "--iterations=7",
      "--timer=wall",
      "--cold_l2",
      "--format=json",
    ]
  )
  assert status == 0
  kernel, peer = json.loads(capsys.readouterr().out)["rows"]
  assert pretended_gpu == [(7, "wall", True)] * 2
  for row in (kernel, peer):
    assert row["measured_us"] == 4.0
    assert (row["measured_minimum_us"], row["measured_maximum_us"]) == (2.0, 6.0)
    assert row["measured_tflop_per_s"] == pytest.approx(2 * 150 * 64 * 600 / 4e-6 * 1e-12)
    once_through_bytes = 2 * (150 * 64 + 64 * 600 + 150 * 600)
    assert row["measured_once_through_gbyte_per_s"] == pytest.approx(
      once_through_bytes / 4e-6 * 1e-9
    )
    assert row["cold_l2"] is True
    assert "--iterations=7 --timer=wall --cold_l2" in row["arguments"]
    assert not any("measured_us is null" in note for note in row["notes"])
  assert kernel["profile"] == "h200_sxm"
  assert kernel["predicted_us"] > 0
  assert peer["predicted_us"] is None


@pytest.fixture
def pretended_timer(monkeypatch):
  """A GPU whose timer answers 2, 4 and 6 us of what is compiled, and no operands from the host."""
  timed = []

  def measure_compiled(compiled, arrays, *, iterations, cold_l2):
    timed.append((compiled(*arrays), arrays))
    return timing.Measurement(
      median_us=4.0,
      minimum_us=2.0,
      maximum_us=6.0,
      iterations=iterations,
      timer="device",
      cold_l2=cold_l2,
      launches=1,
    )

  def operands(*_):
    raise AssertionError("drawn on the host")

  monkeypatch.setattr(runner, "platform", lambda: "gpu")
  monkeypatch.setattr(runner, "device_profile", lambda: "h200_sxm")
  monkeypatch.setattr(timing, "measure_compiled", measure_compiled)
  monkeypatch.setattr(MATMUL, "operands", operands)
  return timed


def test_what_is_only_measured_is_compiled_first_and_drawn_on_the_device(pretended_timer, capsys):
  ours, xla, mgpu = _unchecked(capsys, "--peers=xla,jax_mgpu", "--iterations=3")
  assert [row["measured_us"] for row in (ours, xla, mgpu)] == [4.0, 4.0, None]
  assert (ours["check"], ours["iterations"]) == ("not run", 3)
  # a peer that lacks the call says why, and the others have run
  assert "rows and columns that are multiples of 256" in mgpu["reason"]
  assert len(pretended_timer) == 2
  for result, operands in pretended_timer:
    assert result.shape == (150, 600)
    reference.assert_matmul_close(*map(np.asarray, (result, *operands)))


@pytest.mark.parametrize("flags", [[], ["--backward"]])
def test_row_wise_ops_are_only_measured_where_nothing_is_checked(
  flags, pretended_timer, monkeypatch, tmp_path
):
  monkeypatch.setattr(SWIGLU, "operands", MATMUL.operands)  # which raises
  path = tmp_path / "kept.json"
  status = main.main(
    [
      *("--task=run", "--kernel=swiglu", "--shape=rows=3,columns=50", "--check=none", *flags),
      *("--implementation=interpret", "--peers=xla,stream", f"--results={path}"),
    ]
  )
  assert status == 0
  (row,) = json.loads(path.read_text())["rows"]
  assert (row["peers"], row["options"]) == ({"xla": 4.0, "stream": 4.0}, flags)
  # as many as the timer saw, which is what an extra kernel would show in
  assert row["details"] == {"launches": 1}
  (ours, (gate, up, *_)), *_ = pretended_timer
  out = ours[0] if flags else ours
  reference.assert_swiglu_close(*map(np.asarray, (out, gate, up)))


def test_what_does_not_compile_is_an_error_unless_a_peer(pretended_timer, monkeypatch, capsys):
  def broken(options, *, config, implementation):
    raise ZeroDivisionError("in the kernel")

  monkeypatch.setattr(MATMUL, "call", broken)
  with pytest.raises(ZeroDivisionError, match="in the kernel"):
    _unchecked(capsys)


def test_the_planners_tile_runs_beside_a_tuned_one(pretended_timer, monkeypatch, capsys):
  right = runner.select
  tuned = hw_profiles.MatmulConfig(64, 64, 64, 4)
  problem = hw_profiles.MatmulProblem(150, 64, 600)
  first = hw_profiles.rank(problem, "h200_sxm", top=1, schedule="multistage")[0].config

  def select(workload, part, config, implementation):
    plan = hw_profiles.plan(problem, config or tuned, "h200_sxm", schedule="multistage")
    selection = right(workload, part, config or tuned, implementation)
    return dataclasses.replace(selection, plan=plan)

  monkeypatch.setattr(runner, "select", select)
  ours, planned, xla = _unchecked(capsys, "--planned", "--peers=xla")
  assert [ours["tile"], planned["tile"]] == [tuned.describe(), first.describe()]
  assert f"--tile={first.describe()}" in planned["arguments"]
  assert xla["tile"] is None
  # nothing to add where it is the default
  tuned = first
  assert len(_unchecked(capsys, "--planned", "--peers=xla")) == 2


def _unchecked(capsys, *flags):
  arguments = ["--task=run", SHAPE, "--implementation=interpret", "--check=none", "--format=json"]
  assert main.main([*arguments, *flags]) == 0
  return json.loads(capsys.readouterr().out)["rows"]


def run_into(path, *more):
  shared = ["--task=run", SHAPE, TILE, "--implementation=interpret", "--peers=xla"]
  return main.main([*shared, f"--results={path}", *more])


def test_results_are_kept_with_peers_and_environment(pretended_gpu, tmp_path, capsys):
  path = tmp_path / "kept.json"
  assert run_into(path) == 0
  assert "xla 1.000" in capsys.readouterr().out
  (row,) = json.loads(path.read_text())["rows"]
  assert (row["kernel"], row["shape"], row["dtype"]) == ("matmul", "m=150,k=64,n=600", "bfloat16")
  assert (row["measured_us"], row["peers"], row["ratios"]) == (4.0, {"xla": 4.0}, {"xla": 1.0})
  assert row["check"] == "passed"
  assert row["environment"]["device_kind"] == "cpu"
  assert row["environment"]["date"]
  assert "--peers=xla" in row["arguments"]


def test_several_ratios_are_summed_up(pretended_timer, monkeypatch, capsys):
  times = iter([1.0, 2.0, 1.0, 0.5])
  right = timing.measure_compiled

  def measure_compiled(compiled, arrays, **options):
    return dataclasses.replace(right(compiled, arrays, **options), median_us=next(times))

  monkeypatch.setattr(timing, "measure_compiled", measure_compiled)
  arguments = ["--task=run", SHAPE, "--shape=m=3,k=64,n=5", "--implementation=interpret"]
  assert main.main([*arguments, "--check=none", "--peers=xla"]) == 0
  said = "matmul against xla: geometric mean 1.000 of 2 rows, least 0.500"
  shown = capsys.readouterr().out
  assert said in shown
  assert "the best of them" not in shown


def test_ratios_to_the_best_peer_are_summed_up(pretended_timer, monkeypatch, capsys):
  # ours, xla and jax_mgpu of two problems; the second has no jax_mgpu, as its sizes are odd
  times = iter([1.0, 2.0, 1.5, 1.0, 0.5])
  right = timing.measure_compiled

  def measure_compiled(compiled, arrays, **options):
    return dataclasses.replace(right(compiled, arrays, **options), median_us=next(times))

  xla = MATMUL.peer

  def peer(name, options):
    run = xla("xla", options)

    def other(a, b, *rest):
      if b.shape[1] % 2:
        raise NotImplementedError("an odd number of columns")
      return run(a, b, *rest)

    return run if name == "xla" else other

  monkeypatch.setattr(timing, "measure_compiled", measure_compiled)
  monkeypatch.setattr(MATMUL, "peer", peer)

  arguments = ["--task=run", SHAPE, "--shape=m=3,k=64,n=5", "--implementation=interpret"]
  assert main.main([*arguments, "--check=none", "--peers=xla,jax_mgpu"]) == 0
  shown = capsys.readouterr().out
  # of 1.5 and 0.5
  assert "matmul against the best of them: geometric mean 0.866 of 2 rows, least 0.500" in shown


ATTENTION = [
  "--task=run",
  "--kernel=flash_attention",
  "--shape=batch=1,seq_q=70,seq_kv=70,heads=2,head_dim=16",
  "--causal",
  "--implementation=xla",
  "--peers=xla,cudnn,fa3",
  "--check=none",
]


@pytest.mark.parametrize("more", [[], ["--backward"]], ids=str)
def test_attention_is_only_measured_side_by_side_too(pretended_timer, more, capsys):
  assert main.main([*ATTENTION, *more, "--format=json"]) == 0
  ours, xla, cudnn, fa3 = json.loads(capsys.readouterr().out)["rows"]
  assert [row["measured_us"] for row in (ours, xla)] == [4.0, 4.0]
  assert cudnn["reason"]
  assert "pip install flash-attn3-jax" in fa3["reason"]
  # 4·70·70·2·16, of which a causal mask leaves 71 of 140; backward 2.5 times that
  flops = 4 * 70 * 71 // 2 * 2 * 16 * (3.5 if more else 1)
  assert ours["measured_tflop_per_s"] == pytest.approx(flops / 4e-6 * 1e-12)


@pytest.mark.parametrize("pages", [[], ["--page_size=16"]], ids=str)
def test_decoding_is_only_measured_side_by_side_too(pretended_timer, pages, capsys):
  shape = "--shape=batch=2,seq_kv=64,heads=4,kv_heads=2,head_dim=16"
  arguments = ["--task=run", "--kernel=decode_attention", shape, "--implementation=xla"]
  assert main.main([*arguments, "--check=none", *pages, "--format=json"]) == 0
  (row,) = json.loads(capsys.readouterr().out)["rows"]
  assert (row["measured_us"], row["reason"]) == (4.0, None)


@pytest.mark.parametrize("check", ["none", "float64"])
def test_memory_of_a_call_is_kept_beside_that_of_its_peers(
  pretended_timer, check, monkeypatch, tmp_path, capsys
):
  monkeypatch.setattr(
    timing,
    "measure",
    lambda function, arguments, **how: timing.Measurement(4.0, 4.0, 4.0, 1, "device", False),
  )
  path = tmp_path / "kept.json"
  arguments = [*ATTENTION, "--memory", f"--check={check}", f"--results={path}"]
  assert main.main(arguments) == 0
  (row,) = json.loads(path.read_text())["rows"]
  assert "--memory" in row["arguments"]
  # both are the unfused program, which has float32 scores of 2 heads
  assert row["details"]["result_bytes"] == 2 * 70 * 2 * 16
  for size in (row["details"]["extra_bytes"], row["details"]["peers_extra_bytes"]["xla"]):
    assert size >= 4 * 2 * 70 * 70
  assert "B beside" in capsys.readouterr().out


def test_sweeps_and_updates_of_a_tile_are_kept(pretended_timer, monkeypatch, tmp_path):
  monkeypatch.setattr(
    timing, "measure", lambda *_, **__: timing.Measurement(*[4.0] * 3, 1, "", False)
  )
  path = tmp_path / "kept.json"
  tiles = [f"--tile=block_q=32,block_kv={block}" for block in (16, 32)]
  arguments = [*ATTENTION[:3], *tiles, "--implementation=interpret", "--check=none"]
  assert main.main([*arguments, "--profile=h200_sxm", f"--results={path}"]) == 0
  details = [row["details"] for row in json.loads(path.read_text())["rows"]]
  # three blocks of 32 queries of two heads, and five or three of keys
  assert [one["sweeps"] for one in details] == [6, 6]
  assert [one["state_updates"] for one in details] == [30, 18]
  assert all(one["traffic_bytes"] > 0 for one in details)


def test_results_of_the_same_arguments_are_replaced_and_the_rest_stays(pretended_gpu, tmp_path):
  path = tmp_path / "kept.json"
  run_into(path)
  document = json.loads(path.read_text())
  document["note"] = "by hand"
  document["rows"][0]["measured_us"] = 99.0
  path.write_text(json.dumps(document))
  run_into(path, "--bias")
  run_into(path)
  after = json.loads(path.read_text())
  assert after["note"] == "by hand"
  assert [(row["options"], row["measured_us"]) for row in after["rows"]] == [
    ([], 4.0),
    (["--bias"], 4.0),
  ]


@pytest.mark.parametrize(
  ("text", "said"),
  [
    ("[", "not JSON"),
    ("[]", "holds no results"),
    ('{"schema": 1, "rows": [{"kernel": "matmul"}]}', "row 0: expected an object with"),
    ('{"schema": 1}', "row 0: expected an object with"),
  ],
)
def test_a_file_of_something_else_is_refused_and_left(pretended_gpu, tmp_path, capsys, text, said):
  path = tmp_path / "kept.json"
  path.write_text(text)
  assert run_into(path) == 2
  assert said in capsys.readouterr().err
  assert path.read_text() == text
  assert pretended_gpu == []


def test_nothing_is_kept_where_nothing_is_measured(tmp_path, capsys):
  path = tmp_path / "kept.json"
  assert run_into(path) == 2
  assert "--results: nothing is measured on cpu" in capsys.readouterr().err
  assert not path.exists()


def test_compare_runs_every_tile_on_all_of_c_and_times_the_device_that_is_there(
  pretended_gpu, capsys
):
  arguments = [SHAPE, TILE, "--tile=block_m=32,block_n=128,block_k=64"]
  status = main.main(
    [*arguments, "--profile=h200_sxm,h100_sxm", "--implementation=interpret", "--format=json"]
  )
  assert status == 0
  rows = json.loads(capsys.readouterr().out)["rows"]
  assert {row["checked"] for row in rows} == {"all"}
  assert len(pretended_gpu) == 2
  assert [row["measured_us"] for row in rows] == [4.0, None, 4.0, None]
  for row in rows:
    elsewhere = any("another profile" in note for note in row["notes"])
    assert elsewhere is (row["profile"] == "h100_sxm")
    assert ("measured_minimum_us" in row) is (row["profile"] == "h200_sxm")


def test_tile_that_no_kernel_runs_keeps_its_row_and_says_why(capsys):
  status = main.main(
    [SHAPE, TILE, "--profile=h200_sxm", "--implementation=triton", "--format=json"]
  )
  assert status == 0
  (row,) = json.loads(capsys.readouterr().out)["rows"]
  assert row["fits"] is True
  assert row["check"] == "not run"
  assert any(note.startswith("not run: ") and "triton" in note for note in row["notes"])


@pytest.mark.gpu
@pytest.mark.parametrize("flags", [[], ["--cold_l2"], ["--timer=wall"]])
def test_kernel_and_peer_are_measured(flags, capsys):
  arguments = ["--task=run", "--shape=m=1024,k=1024,n=1024", "--peers=xla", "--format=json"]
  assert main.main([*arguments, *flags]) == 0
  kernel, peer = json.loads(capsys.readouterr().out)["rows"]
  assert kernel["implementation"] in ("mosaic_gpu", "triton")
  for row in (kernel, peer):
    assert row["check"] == "passed"
    # 2 GFLOP: no device does it in a microsecond, none of these takes a second
    assert 1.0 < row["measured_us"] < 1e6


@pytest.mark.gpu
def test_compare_measures_the_tiles_that_fit(capsys):
  assert main.main(["--shape=m=512,k=512,n=512", "--format=json"]) == 0
  rows = json.loads(capsys.readouterr().out)["rows"]
  assert any(row["measured_us"] is not None and row["check"] == "passed" for row in rows)
