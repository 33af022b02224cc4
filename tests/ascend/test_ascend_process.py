"""A compiler as a process: its time, its end, and nothing of it left."""

import pathlib
import time

import pytest

from hw_profiles.ascend import CompilerFailedError
from hw_profiles.ascend.process import run_tool


def _run(command, folder, time_limit_s=20.0):
  return run_tool(command, folder=folder, stages={"linalg": "kept"}, time_limit_s=time_limit_s)


def test_status_and_all_that_it_printed(tmp_path):
  command = ["/bin/sh", "-c", "echo one; echo two >&2; exit 3"]
  assert _run(command, tmp_path) == (3, "one\ntwo\n")


def test_compiler_that_takes_too_long(tmp_path):
  with pytest.raises(CompilerFailedError, match=r"sleep timed out .* 'linalg'"):
    _run(["/bin/sleep", "60"], tmp_path, time_limit_s=0.05)


def test_compiler_that_dies_of_a_signal(tmp_path):
  with pytest.raises(CompilerFailedError) as caught:
    _run(["/bin/sh", "-c", "kill -SEGV $$"], tmp_path)
  assert caught.value.kind == "crashed"
  assert caught.value.stages == {"linalg": "kept"}


def test_crash_that_a_parent_of_it_reports(tmp_path):
  with pytest.raises(CompilerFailedError) as caught:
    _run(["/bin/sh", "-c", "echo 'Stack dump:'; exit 1"], tmp_path)
  assert caught.value.kind == "crashed"


@pytest.mark.parametrize("then", ["/bin/sleep 60", "exit 0"])
def test_what_it_started_ends_with_it(then, tmp_path):
  """Whether it is stopped or ends by itself; and waiting for it does not wait for them."""
  child = tmp_path / "child"
  command = [
    "/bin/sh",
    "-c",
    f"/bin/sleep 60 & echo $! > {child}; {then}",
  ]
  start = time.monotonic()
  if then == "exit 0":
    _run(command, tmp_path)
  else:
    with pytest.raises(CompilerFailedError, match="timed out"):
      _run(command, tmp_path, time_limit_s=2.0)
  assert time.monotonic() - start < 50
  state = pathlib.Path(f"/proc/{int(child.read_text())}/stat")
  for _ in range(200):
    # gone, or a zombie that init has not looked at yet
    if not state.exists() or ") Z" in state.read_text():
      return
    time.sleep(0.05)
  raise AssertionError("what the compiler started still runs")
