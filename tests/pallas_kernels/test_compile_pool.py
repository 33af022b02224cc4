"""Many tiles side by side: in order, with a time limit, and nothing left behind."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from hw_profiles import MatmulConfig
from hw_profiles.frozen_map import FrozenMap
from pallas_kernels.lowering import compile_pool
from pallas_kernels.lowering.compile_task import Compiled, CompileTask, compile_task

_TASK = CompileTask(
  op="matmul",
  shapes=FrozenMap(m=256, k=256, n=256),
  dtype="bfloat16",
  config=MatmulConfig(64, 64, 64, 2),
  profile="h200_sxm",
)


def _workload(connection, folder):
  """A process that does what the time limit of a task says: answer, die, or stay."""
  tempfile.tempdir = folder
  try:
    connection.send(None)
    while True:
      task = connection.recv()
      pathlib.Path(folder, f"left-{os.getpid()}").write_text("")
      if task.time_limit_s == 1:
        os.kill(os.getpid(), 9)
      if task.time_limit_s == 2:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        child = subprocess.Popen(["/bin/sleep", "60"])
        pathlib.Path(task.op).write_text(str(child.pid))
        try:
          child.wait()
        finally:
          child.kill()
      connection.send(Compiled(task, str(os.getpid()), "accepted"))
  except EOFError:
    pass


def _all(tasks, *, jobs=1, run=_workload, **options):
  with compile_pool.CompilePool(jobs, run=run) as pool:
    return pool.compile(tasks, **options)


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> pathlib.Path:
  """Where temporary files go for the test."""
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  return tmp_path


def test_answers_come_in_the_order_of_the_tasks(temporary):
  tasks = [dataclasses.replace(_TASK, time_limit_s=10.0 + i) for i in range(6)]
  told = []
  answers = _all(tasks, jobs=2, on_done=told.append)
  assert [answer.task for answer in answers] == tasks
  assert sorted(answer.task.time_limit_s for answer in told) == [10.0 + i for i in range(6)]
  assert len({answer.compiler for answer in answers}) <= 2
  assert list(temporary.iterdir()) == []


def test_process_that_dies_fails_its_task_only(temporary):
  tasks = [dataclasses.replace(_TASK, time_limit_s=limit) for limit in (20.0, 1, 21.0)]
  answers = _all(tasks)
  assert [answer.outcome for answer in answers] == ["accepted", "failed", "accepted"]
  assert "exit status -9" in answers[1].reason
  assert list(temporary.iterdir()) == []


def test_task_that_lasts_is_ended(temporary, monkeypatch):
  monkeypatch.setattr(compile_pool, "_GRACE_S", 1.0)
  task = dataclasses.replace(_TASK, op=str(temporary / "child"), time_limit_s=2)
  (answer,) = _all([task])
  assert answer.outcome == "failed"
  assert answer.reason == "took longer than 2 s"
  # what it started is ended with it
  assert [path.name for path in temporary.iterdir()] == ["child"]
  _wait_for_end(int((temporary / "child").read_text()))


def test_interrupt_ends_every_process(temporary):
  def interrupted(answer):
    raise KeyboardInterrupt

  tasks = [dataclasses.replace(_TASK, time_limit_s=10.0 + i) for i in range(4)]
  with compile_pool.CompilePool(1, run=_workload) as pool:
    with pytest.raises(KeyboardInterrupt):
      pool.compile(tasks, on_done=interrupted)
    (process,) = [worker._process.pid for worker in pool._workers]
  _wait_for_end(process)
  assert list(temporary.iterdir()) == []


def _wait_for_end(process: int) -> None:
  """Returns once there is no such process, or it waits for its parent alone."""
  state = pathlib.Path(f"/proc/{process}/stat")
  for _ in range(200):
    if not state.exists() or ") Z" in state.read_text():
      return
    time.sleep(0.05)
  raise AssertionError(f"process {process} still runs")


def test_no_tasks_no_answers(temporary):
  assert _all([]) == []


def test_real_task_in_a_process_gives_what_it_gives_here(temporary):
  here = compile_task(_TASK)
  assert here.accepted, here.reason
  (there,) = _all([_TASK], run=compile_pool._work)
  assert there == here
  assert list(temporary.iterdir()) == []


def test_what_cannot_be_compiled_is_an_outcome():
  def outcome(**changes):
    answer = compile_task(dataclasses.replace(_TASK, **changes))
    return answer.outcome, answer.reason

  assert outcome(config=MatmulConfig(128, 256, 64, 8))[0] == "too large"
  # nothing is too large where a rule of wgmma is broken
  kind, reason = outcome(config=MatmulConfig(100, 64, 64))
  assert kind == "refused"
  assert reason.startswith("block_m=100: wgmma computes multiples of 64 rows")
  assert outcome(dtype="float32")[0] == "refused"
  kind, reason = outcome(options=FrozenMap(activation="swish"))
  assert kind == "refused"
  assert "swish" in reason


def test_missing_compilers_are_one_sentence_with_the_way_to_install_them(monkeypatch):
  from hw_profiles.ascend import install

  why = 'ascendnpu-ir is not installed: pip install "pallas-kernels[ascend]" on Python 3.11'
  monkeypatch.setattr(install, "_find", lambda: (None, why))
  answer = compile_task(dataclasses.replace(_TASK, profile="ascend_910b3"))
  assert (answer.outcome, answer.reason) == ("not available", why)
