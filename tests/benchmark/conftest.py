"""Running the program as a person does."""

import os
import pathlib
import subprocess
import sys
import threading

import pytest

from pallas_kernels.benchmark import main
from pallas_kernels.lowering import compile_pool
from pallas_kernels.lowering.compile_task import compile_task

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(tmp_path):
  """Runs `python -m pallas_kernels.benchmark` with the given flags in an empty folder."""

  def run(*arguments, **environment):
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
      [sys.executable, "-m", "pallas_kernels.benchmark", *arguments],
      cwd=tmp_path,
      env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"}
      | environment,
      capture_output=True,
      text=True,
      timeout=240,
      check=False,
    )

  return run


@pytest.fixture
def bench_here(tmp_path, monkeypatch, capsys):
  """The same in this process, which has loaded JAX: where what is told matters and not how."""
  monkeypatch.chdir(tmp_path)

  def run(*arguments):
    capsys.readouterr()
    status = main.main(arguments)
    return subprocess.CompletedProcess(arguments, status, *capsys.readouterr())

  return run


@pytest.fixture
def compiles_here(monkeypatch):
  """Compiles in this process, one tile after another: a process of its own loads JAX, 4 s.

  `test_mlir_task` has some, and `test_compile_pool` is about them.
  """
  one_at_a_time = threading.Lock()

  def ask(worker, task):
    with one_at_a_time:
      return compile_task(task)

  monkeypatch.setattr(compile_pool._Worker, "ask", ask)
