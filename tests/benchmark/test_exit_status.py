"""A wrong result fails the program: status 1, in the row, in words."""

import json
import os
import pathlib
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from pallas_kernels.benchmark import main, runner

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAGS = [
  "--shape=m=33,k=40,n=50",
  "--tile=block_m=32,block_n=32,block_k=32",
  "--format=json",
]


@pytest.fixture
def broken_kernel(monkeypatch):
  """Every kernel's result, with one element of it one per cent off."""
  right = runner.result

  def wrong(function, operands):
    result = np.array(right(function, operands))
    result[32, 49] = 1.01 * np.abs(result).max()
    return result

  monkeypatch.setattr(runner, "result", wrong)


@pytest.mark.parametrize("task", ["--task=run", "--task=compare"])
def test_right_result_is_status_0(task, capsys):
  assert main.main([task, *FLAGS]) == 0
  assert {row["check"] for row in json.loads(capsys.readouterr().out)["rows"]} == {"passed"}


@pytest.mark.parametrize("task", ["--task=run", "--task=compare"])
def test_wrong_element_is_status_1_and_is_located(task, broken_kernel, capsys):
  assert main.main([task, *FLAGS]) == 1
  for row in json.loads(capsys.readouterr().out)["rows"]:
    assert row["check"] == "failed"
    assert any("[32, 49]" in note for note in row["notes"])


def test_wrong_element_is_told_to_a_reader_of_the_table(broken_kernel, capsys):
  assert main.main(["--task=compare", *FLAGS[:2]]) == 1
  text = capsys.readouterr().out
  assert "failed" in text
  assert "1 of 1650 elements are past their bound; worst at [32, 49]" in text


def test_unchecked_wrong_element_is_not_called_passed(broken_kernel, capsys):
  assert main.main(["--task=run", "--check=none", *FLAGS]) == 0
  (row,) = json.loads(capsys.readouterr().out)["rows"]
  assert row["check"] == "not run"


def test_run_of_refused_tiles_alone_shows_their_rows_and_is_status_2(capsys):
  # XLA takes no tile
  assert main.main(["--task=run", "--implementation=xla", *FLAGS]) == 2
  captured = capsys.readouterr()
  (row,) = json.loads(captured.out)["rows"]
  assert row["check"] == "not run"
  assert "xla" in row["reason"]
  assert "nothing ran: every kernel asked for is refused" in captured.err


def test_run_of_which_one_tile_runs_is_status_0(capsys):
  refused = "--tile=block_m=32,block_n=32,block_k=32,accumulator=shared"
  assert main.main(["--task=run", refused, *FLAGS]) == 0
  found = json.loads(capsys.readouterr().out)["rows"]
  assert [row["check"] for row in found] == ["not run", "passed"]


def test_run_that_nothing_takes_with_any_tile_is_status_2_before_any_work(capsys):
  assert main.main(["--task=run", "--implementation=triton", *FLAGS]) == 2
  captured = capsys.readouterr()
  assert captured.out == ""
  assert "nothing to run: " in captured.err


def test_interrupt_during_imports_is_status_130():
  code = (
    "import sys\n"
    "from pallas_kernels.benchmark import main\n"
    "class Interrupting:\n"
    "  def find_spec(self, name, *_):\n"
    "    if name.partition('.')[0] == 'absl':\n"
    "      raise KeyboardInterrupt\n"
    "sys.meta_path.insert(0, Interrupting())\n"
    "sys.exit(main.main(['--task=plan']))\n"
  )
  result = subprocess.run(
    [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
  )
  assert result.returncode == 130
  assert result.stderr == "pallas-bench: interrupted, nothing written\n"


@pytest.mark.parametrize("told", ["", "Unable to allocate\n3 GiB"])
def test_no_memory_is_one_line_and_status_2(monkeypatch, capsys, told):
  def exhausted(*_):
    raise MemoryError(told)

  monkeypatch.setattr(runner, "result", exhausted)
  assert main.main(["--task=run", *FLAGS]) == 2
  captured = capsys.readouterr()
  assert captured.out == ""
  last = captured.err.splitlines()[-1]
  assert last.startswith("pallas-bench: out of memory")
  assert " ".join(told.split()) in last


def test_exhausted_device_is_a_memory_error():
  def exhausted():
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")

  with pytest.raises(MemoryError, match="allocating 9 bytes"):
    runner.result(exhausted, ())


def test_interrupt_writes_nothing(tmp_path, monkeypatch, capsys):
  path = tmp_path / "rows.json"
  path.write_text("earlier")

  def interrupted(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(runner, "result", interrupted)
  assert main.main(["--task=run", *FLAGS, f"--output={path}"]) == 130
  assert path.read_text() == "earlier"
  assert "interrupted" in capsys.readouterr().err


def test_told_to_end_it_leaves_nothing_behind(tmp_path):
  """While kernels are being compiled in processes of their own."""
  command = [sys.executable, "-m", "pallas_kernels.benchmark", "--task=mlir", "--jobs=1"]
  process = subprocess.Popen(
    [*command, "--profile=h200_sxm", "--tile=block_m=64,block_n=64,block_k=64"],
    cwd=ROOT,
    env={**os.environ, "TMPDIR": str(tmp_path)},
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
  )
  for _ in range(1200):
    if any(tmp_path.iterdir()) or process.poll() is not None:
      break
    time.sleep(0.05)
  assert process.poll() is None
  process.terminate()
  _, said = process.communicate(timeout=60)
  assert process.returncode == main.EXIT_INTERRUPTED
  assert "terminated, nothing written" in said
  assert list(tmp_path.iterdir()) == []
