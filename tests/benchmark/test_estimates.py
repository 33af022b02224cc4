"""What the tables say of predicted times and of checks."""

import pytest

import hw_profiles
from hw_profiles.validation import recorded
from pallas_kernels.benchmark import main

SMALL = "--shape=m=70,k=100,n=90"
TILE = "--tile=block_m=32,block_n=32,block_k=32"


def table_of(capsys, *arguments):
  assert main.main(arguments) == 0
  return capsys.readouterr().out


def sentence(profile):
  error = recorded.recorded_error("matmul", hw_profiles.get_profile(profile))
  libraries, tiles = error.best_tiles, error.named_tiles
  best = (
    "were not compared with libraries"
    if libraries is None
    else f"against measured libraries: {spread(libraries)}"
  )
  single = "single tiles were not measured"
  if tiles is not None:
    single = f"single measured tiles: {spread(tiles)}"
  return f"{profile}: estimate; the model's best tiles {best}; {single}"


def spread(errors):
  return (
    f"median {100 * errors.median:.0f} %, worst {100 * errors.largest:.0f} % over "
    f"{errors.row_count} rows"
  )


@pytest.mark.parametrize("task", ["plan", "compare"])
def test_worth_of_an_estimate_is_said_once_a_profile(capsys, task):
  text = table_of(capsys, f"--task={task}", SMALL, TILE, "--profile=h100_sxm,h200_sxm,ascend_910b3")
  words = " ".join(text.split())
  for profile in ("h100_sxm", "h200_sxm", "ascend_910b3"):
    assert words.count(sentence(profile)) == 1
  assert words.count("the time of a well-tuned kernel") == 1


@pytest.mark.parametrize("task", ["plan", "compare"])
def test_a_dtype_without_tensor_cores_is_marked_in_the_table(capsys, task):
  """A V100 multiplies bfloat16 as float32: that is no ordinary fit of its tensor cores."""
  text = table_of(capsys, f"--task={task}", SMALL, TILE, "--profile=v100_sxm2,h100_sxm")
  rows = [line.split() for line in text.splitlines() if "cuda_cores" in line or "launch" in line]
  marked = [line for line in rows if "!" in line]
  assert marked
  assert all("v100_sxm2" in line for line in marked)
  legend = "! v100_sxm2 has no bfloat16 tensor cores: priced as float32 on the CUDA cores"
  assert " ".join(text.split()).count(legend) == 1
  options = (f"--task={task}", SMALL, TILE, "--profile=v100_sxm2")
  # float16 it has, and float32 is nowhere multiplied by tensor cores
  for dtype in ("float16", "float32"):
    assert " !" not in table_of(capsys, *options, f"--dtype={dtype}")
  norm = table_of(capsys, f"--task={task}", "--kernel=rms_norm", "--profile=v100_sxm2")
  assert " !" not in norm


def test_run_says_it_too(capsys):
  text = table_of(capsys, "--task=run", SMALL, TILE, "--profile=h100_sxm")
  assert sentence("h100_sxm") in " ".join(text.split())


def test_plan_starts_with_every_tile_the_best_of_a_profile_first(capsys):
  text = table_of(capsys, "--task=plan", "--profile=h100_sxm,ascend_910b3")
  _, first, *blocks = text.split("\n\n")
  summary = first.splitlines()
  assert summary[0] == "matmul m=1024,k=4096,n=12288 bfloat16"
  cells = [
    line.replace(" *", "").split() for line in summary[3:] if line.startswith(("h100", "asc"))
  ]
  profiles = [line[0] for line in cells]
  assert profiles == sorted(profiles, reverse=True)
  for profile in ("h100_sxm", "ascend_910b3"):
    times = [line[3].replace(",", "") for line in cells if line[0] == profile]
    fitting = [float(time) for time in times if time != "-"]
    assert fitting == sorted(fitting)
    assert times[len(fitting) :] == ["-"] * (len(times) - len(fitting))
    lines = [line for line in summary if line.startswith(profile)]
    assert [" * " in line for line in lines] == [True] + [False] * (len(lines) - 1)
  # each tile follows in the same order
  details = [block.splitlines()[0] for block in blocks if "needed KiB" in block]
  assert [title.rpartition(", ")[2] for title in details] == [
    f"{line[1]} on {line[0]}" for line in cells
  ]
  # 103.1 GFLOP at 989.4 TFLOP/s, 128 MiB at 3.35 TB/s
  assert "at the peaks of h100_sxm: 103.1 GFLOP take 104.2 us (989.4 TFLOP/s), 128 MiB" in first


def test_plan_says_an_assumption_once_a_profile_in_lines_that_fit_a_terminal(capsys):
  text = table_of(capsys, "--task=plan")
  assert max(map(len, text.splitlines())) < 140
  for block in text.split("\n\n"):
    if "assumes: " in block:
      assert block.startswith("Times on ")
  assert text.count("Times on h100_sxm") == 1


def test_planner_s_pick_is_marked_among_given_tiles(capsys):
  problem = hw_profiles.MatmulProblem(m=70, k=100, n=90)
  (best,) = hw_profiles.rank(problem, hw_profiles.get_profile("h100_sxm"), top=1)
  flags = ["--task=plan", SMALL, "--profile=h100_sxm", TILE, f"--tile={best.config.describe()}"]
  text = table_of(capsys, *flags)
  assert text.count(" * ") == 1
  assert "* first of the planner's own candidates" in text


def test_table_of_checks_has_three_digits_and_no_ulps(capsys):
  text = table_of(capsys, SMALL, TILE, "--profile=h100_sxm")
  (line,) = [line for line in text.splitlines() if line.startswith("32x32x32/2  interpret on cpu")]
  assert line.split()[6].startswith("0.")
  assert len(line.split()[6]) == len("0.123")
  assert "ULP" not in text
  assert "near 1 is normal for a 16-bit" in text
