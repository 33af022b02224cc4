"""What the README shows works as it is written there."""

import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from pallas_kernels.benchmark import flags, main

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^pallas-bench.*$", README, re.MULTILINE)


def test_examples_run_one_after_the_other():
  blocks = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
  code = "".join(blocks)
  result = subprocess.run(
    [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
  )
  assert result.returncode == 0, result.stderr
  assert "runs: " in result.stdout
  assert "\nTrue 0." in result.stdout
  assert "\nSource(value=" in result.stdout
  assert "\nh200_sxm block_q=" in result.stdout
  assert "\nascend_910b3 block_q=" in result.stdout
  assert "\nmost help: schedule=multistage" in result.stdout
  assert "\n32\n1\n" in result.stdout
  assert "\nFalse mathematics 1.7" in result.stdout


def test_there_are_commands():
  assert len(COMMANDS) >= 5


@pytest.mark.parametrize("command", COMMANDS)
def test_command_has_the_flags_of_the_program(command, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert flags.parse(shlex.split(command, comments=True)[1:]) is not None


def test_the_comparison_is_the_program_s(capsys):
  (shown,) = re.findall(r"^```\n(matmul m=1024.*?)^```$", README, re.MULTILINE | re.DOTALL)
  planned, checked = shown.split("The kernel itself, run here and compared with float64\n")
  assert main.main(["--check=none"]) == 0
  printed = capsys.readouterr().out.splitlines()
  for line in planned.splitlines():
    assert line == "..." or line in printed
  # run for half a minute by `make compare`; here the tiles alone
  tiles = re.findall(r"^(\S+x\S+/\d+)", checked, re.MULTILINE)
  assert tiles
  assert {f"{tile}:" for tile in tiles} == {
    line.split()[0] for line in printed if re.match(r"\d+x\d+x\d+/\d+: working set", line)
  }
