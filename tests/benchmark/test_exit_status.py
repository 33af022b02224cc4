"""A wrong result fails the program: status 1, in the row, in words."""

import json

import numpy as np
import pytest

from pallas_kernels.benchmark import main, runner

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


def test_interrupt_writes_nothing(tmp_path, monkeypatch, capsys):
  path = tmp_path / "rows.json"
  path.write_text("earlier")

  def interrupted(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(runner, "result", interrupted)
  assert main.main(["--task=run", *FLAGS, f"--output={path}"]) == 130
  assert path.read_text() == "earlier"
  assert "interrupted" in capsys.readouterr().err
