"""Runs one compiler in a folder of its own, with a time limit."""

import contextlib
import os
import pathlib
import signal
import subprocess
from collections.abc import Sequence

from hw_profiles.ascend.errors import CompilerFailedError

# what LLVM programs print when they die of a signal or an assertion
_CRASH_SIGNS = ("Stack dump:", "PLEASE submit a bug report", "Assertion `")


def run_tool(
  command: Sequence[str | pathlib.Path],
  *,
  folder: pathlib.Path,
  stages: dict[str, str],
  time_limit_s: float,
) -> tuple[int, str]:
  """Run a compiler; its exit status and all that it printed.

  It sees no PATH: bishengir-compile looks there for code generators (hivmc), and
  what it does would depend on whether the machine has them. However this ends,
  neither the program nor one that it started is left running.

  Args:
    command: The program and its arguments.
    folder: Working and temporary folder.
    stages: For the error: the texts so far, the last of them the input.
    time_limit_s: Seconds it may take.

  Raises:
    CompilerFailedError: it crashed or took too long.
  """
  tool = pathlib.Path(command[0]).name
  log_path = folder / "printed.log"
  # to a file: a pipe would stay open for as long as any descendant has it
  with log_path.open("wb") as log_file:
    process = subprocess.Popen(
      [str(part) for part in command],
      cwd=folder,
      env={"PATH": str(folder / "no-programs"), "TMPDIR": str(folder), "HOME": str(folder)},
      stdin=subprocess.DEVNULL,
      stdout=log_file,
      stderr=subprocess.STDOUT,
      process_group=0,
    )
    timed_out = False
    try:
      process.wait(time_limit_s)
    except subprocess.TimeoutExpired:
      timed_out = True
    finally:
      _end_group(process)
  log = log_path.read_text(encoding="utf-8", errors="replace")
  if timed_out:
    raise CompilerFailedError(tool, "timed out", log, stages)
  if process.returncode < 0 or any(sign in log for sign in _CRASH_SIGNS):
    log = log or f"ended by signal {-process.returncode}"
    raise CompilerFailedError(tool, "crashed", log, stages)
  return process.returncode, log


def _end_group(process: subprocess.Popen[bytes]) -> None:
  """Kills the program, where it still runs, and all that it started."""
  with contextlib.suppress(ProcessLookupError):  # nothing of it may be left
    os.killpg(process.pid, signal.SIGKILL)
  process.wait()
