"""The program: stdout, stderr, exit status, files; as a subprocess where that may matter."""

import csv
import io
import json
import os
import pathlib
import shlex
import subprocess
import sys

import pytest

import hw_profiles

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = "--shape=m=70,k=100,n=90"
TILE = "--tile=block_m=32,block_n=32,block_k=32"


def rows_of(result):
  document = json.loads(result.stdout)
  assert document["schema"] == 1
  return document["rows"]


def test_plan_says_what_fits_on_every_default_profile(bench_here):
  result = bench_here("--task=plan", "--tile=block_m=64,block_n=64,block_k=32", "--format=json")
  assert result.returncode == 0, result.stderr
  rows = rows_of(result)
  assert [row["profile"] for row in rows] == [
    "h100_sxm",
    "h200_sxm",
    "rtx_pro_6000",
    "ascend_910b3",
    "ascend_950pr",
  ]
  assert {row["vendor"] for row in rows} == {"nvidia", "huawei"}
  for row in rows:
    assert row["fits"] is True
    assert row["check"] == "not run"
    assert row["measured_us"] is None
    assert row["predicted_us"] > 0
    assert row["bound"] in row["times_us"]
    assert all(b["needed_bytes"] <= b["available_bytes"] for b in row["buffers"])
    assert row["assumptions"]


def test_plan_has_the_working_sets_and_traffic_of_the_two_default_tiles(bench_here):
  rows = rows_of(bench_here("--task=plan", "--profile=rtx_pro_6000", "--format=json"))
  numbers = [(row["working_set_bytes"] / 2**10, row["traffic_bytes"] / 2**20) for row in rows]
  # worked by hand: 4+4+16 KiB and 8+8+64 KiB; 1536+1536+24 and 768+768+24 MiB
  assert numbers[:2] == [(24.0, 3096.0), (80.0, 1560.0)]


def test_tile_that_does_not_fit_has_a_row_with_the_reason(bench_here):
  tile = "--tile=block_m=128,block_n=256,block_k=64,num_stages=4"
  result = bench_here("--task=plan", tile, "--profile=rtx_pro_6000,h100_sxm", "--format=json")
  assert result.returncode == 0
  small, large = rows_of(result)
  assert small["fits"] is False
  assert small["binding"]
  assert small["predicted_us"] is None
  assert "rtx_pro_6000" in small["reason"]
  assert large["fits"] is True
  assert large["reason"] is None


def test_plan_does_not_load_jax():
  code = (
    "import sys\n"
    "from pallas_kernels.benchmark import main\n"
    "status = main.main(['--task=plan', '--profile=h100_sxm'])\n"
    "loaded = [name for name in ('jax', 'jaxlib', 'numpy') if name in sys.modules]\n"
    "sys.exit(f'loaded {loaded}' if loaded or status else 0)\n"
  )
  result = subprocess.run(
    [sys.executable, "-c", code],
    env={**os.environ, "PYTHONPATH": str(ROOT)},
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 0, result.stderr


def test_run_checks_a_shape_that_no_block_divides(bench):
  result = bench("--task=run", SMALL, TILE, "--activation=silu", "--bias", "--format=json")
  assert result.returncode == 0, result.stderr
  (row,) = rows_of(result)
  assert row["implementation"] == "interpret"
  assert row["check"] == "passed"
  assert row["checked"] == "all"
  assert 0 <= row["relative_error"] <= row["error_bound"]
  assert row["measured_us"] is None
  assert any("no GPU" in note for note in row["notes"])
  assert "float64" in result.stderr
  assert "left" in result.stderr


def test_line_of_a_row_gives_the_row_again(bench_here):
  first = bench_here(
    "--task=run", SMALL, TILE, "--dtype=float32", "--activation=silu", "--format=json"
  )
  (row,) = rows_of(first)
  program, *arguments = shlex.split(row["arguments"])
  assert program == "pallas-bench"
  (again,) = rows_of(bench_here(*arguments, "--format=json"))
  assert again == row


def test_line_of_a_row_that_was_checked_in_part_gives_it_again(bench_here):
  first = bench_here(
    "--shape=m=300,k=64,n=600",
    "--tile=block_m=64,block_n=64,block_k=32",
    "--check_part=sample",
    "--profile=h100_sxm",
    "--format=json",
  )
  (row,) = rows_of(first)
  assert row["checked"] == "rows 0:128, columns 0:512"
  assert "--check_part=sample" in row["arguments"]
  (again,) = rows_of(bench_here(*shlex.split(row["arguments"])[1:], "--format=json"))
  assert again == row


def test_compare_says_which_part_it_chose_and_gives_each_row_again(bench_here):
  rows = rows_of(bench_here(SMALL, "--profile=h100_sxm", "--format=json"))
  assert all("--check_part=all" in row["arguments"] for row in rows)
  (best,) = [row for row in rows if any("first of the planner" in note for note in row["notes"])]
  (again,) = rows_of(bench_here(*shlex.split(best["arguments"])[1:], "--format=json"))
  assert again == best


def test_check_is_not_taken_for_one_of_the_kernel_that_is_priced(bench_here):
  for task in ("--task=compare", "--task=run"):
    (row,) = rows_of(bench_here(task, SMALL, TILE, "--profile=h100_sxm", "--format=json"))
    assert row["checked_with"] == "interpret on cpu"
    assert any(note.startswith("checked with: interpret on cpu, not") for note in row["notes"])


def test_run_puts_the_peer_beside_the_kernel(bench_here):
  result = bench_here("--task=run", SMALL, TILE, "--peers=xla", "--format=json")
  assert result.returncode == 0, result.stderr
  kernel, peer = rows_of(result)
  assert kernel["implementation"] == "interpret"
  assert peer["implementation"] == "peer:xla"
  assert peer["tile"] is None
  assert peer["check"] == "passed"


def test_compare_runs_each_tile_once_and_shows_it_on_each_profile(bench_here):
  result = bench_here(
    SMALL,
    TILE,
    "--tile=block_m=16,block_n=64,block_k=64,num_stages=1",
    "--profile=h100_sxm,ascend_910b3",
    "--format=json",
  )
  assert result.returncode == 0, result.stderr
  rows = rows_of(result)
  assert [row["profile"] for row in rows] == ["h100_sxm", "ascend_910b3"] * 2
  assert [row["check"] for row in rows] == ["passed"] * 4
  for first, second in (rows[:2], rows[2:]):
    for field in ("tile", "implementation", "max_ulp", "relative_error", "error_bound", "checked"):
      assert first[field] == second[field]
  assert result.stderr.count(": running") == 2


def test_compare_without_a_tile_shows_the_default_tiles_and_each_profile_s_best(bench_here):
  result = bench_here(SMALL, "--profile=ascend_910b3", "--check=none", "--format=json")
  assert result.returncode == 0, result.stderr
  rows = rows_of(result)
  assert rows[0]["tile"] == "block_m=64,block_n=64,block_k=32,num_stages=1"
  assert {row["check"] for row in rows} == {"not run"}
  (best,) = [row for row in rows if any("first of the planner" in note for note in row["notes"])]
  problem = hw_profiles.MatmulProblem(m=70, k=100, n=90)
  (ranked,) = hw_profiles.rank(problem, hw_profiles.get_profile("ascend_910b3"), top=1)
  assert best["tile"] == ranked.config.describe()
  assert best["predicted_us"] == ranked.predicted_us


def test_sweep_gives_a_row_for_each_size(bench_here):
  result = bench_here(
    "--task=plan", "--shape=m=64,k=64:256:64,n=64", TILE, "--profile=h100_sxm", "--format=csv"
  )
  read = list(csv.DictReader(io.StringIO(result.stdout)))
  assert [row["shape"] for row in read] == [f"m=64,k={k},n=64" for k in (64, 128, 192, 256)]


@pytest.mark.parametrize(
  ("arguments", "named"),
  [
    (["--shape=m=1,k=2"], "--shape=m=1,k=2"),
    (["--tile=block_m=x"], "--tile=block_m=x"),
    (["--profile=h300"], "--profile=h300"),
    (["--nonsense=1"], "--nonsense"),
    (["--task=run", "--iterations=5"], "--iterations"),
    (["--task=run", "--profile=h100_sxm,h200_sxm", SMALL], "--profile=h100_sxm,h200_sxm"),
    (["--task=run", SMALL, "--implementation=mosaic_gpu"], "mosaic_gpu"),
  ],
)
def test_wrong_flag_is_named_without_a_traceback(bench, bench_here, arguments, named):
  # both kinds as a program: one with JAX takes 4 s of two cores, one without 1.3
  alone = named in ("--nonsense", "mosaic_gpu")
  result = (bench if alone else bench_here)(*arguments)
  assert result.returncode == 2
  assert result.stdout == ""
  assert named in result.stderr
  assert "Traceback" not in result.stderr


def test_output_file_holds_the_result_and_stdout_nothing(bench, tmp_path):
  path = tmp_path / "plan.json"
  path.write_text("earlier")
  result = bench("--task=plan", TILE, "--format=json", f"--output={path}")
  assert result.returncode == 0
  assert result.stdout == ""
  assert json.loads(path.read_text())["schema"] == 1
  assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_wrong_flag_leaves_the_earlier_file(bench, tmp_path):
  path = tmp_path / "plan.json"
  path.write_text("earlier")
  assert bench("--task=plan", "--tile=block_m=1", f"--output={path}").returncode == 2
  assert path.read_text() == "earlier"


def test_closed_stderr_leaves_stdout_to_the_result(tmp_path):
  command = [sys.executable, "-m", "pallas_kernels.benchmark", "--task=run", SMALL, TILE]
  result = subprocess.run(
    f"{shlex.join([*command, '--format=json'])} 2>&-",
    shell=True,
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
    stdout=subprocess.PIPE,
    text=True,
    check=False,
  )
  assert result.returncode == 0
  assert [row["check"] for row in rows_of(result)] == ["passed"]


def test_reader_that_goes_away_is_no_error(bench):
  process = subprocess.Popen(
    [sys.executable, "-m", "pallas_kernels.benchmark", "--task=plan"],
    env={**os.environ, "PYTHONPATH": str(ROOT)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  process.stdout.close()
  stderr = process.stderr.read()
  process.stderr.close()
  assert process.wait(timeout=60) == 0
  assert stderr == ""
