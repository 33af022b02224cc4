"""Runs one compiler in a folder of its own, with a time limit."""

import pathlib
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
  what it does would depend on whether the machine has them.

  Args:
    command: The program and its arguments.
    folder: Working and temporary folder.
    stages: For the error: the texts so far, the last of them the input.
    time_limit_s: Seconds it may take.

  Raises:
    CompilerFailedError: it crashed or took too long.
  """
  tool = pathlib.Path(command[0]).name
  try:
    done = subprocess.run(
      [str(part) for part in command],
      cwd=folder,
      env={"PATH": str(folder / "no-programs"), "TMPDIR": str(folder), "HOME": str(folder)},
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      errors="replace",
      timeout=time_limit_s,
      check=False,
    )
  except subprocess.TimeoutExpired as expired:
    printed = expired.stdout or b""
    log = printed.decode(errors="replace") if isinstance(printed, bytes) else printed
    raise CompilerFailedError(tool, "timed out", log, stages) from None
  if done.returncode < 0 or any(sign in done.stdout for sign in _CRASH_SIGNS):
    log = done.stdout or f"ended by signal {-done.returncode}"
    raise CompilerFailedError(tool, "crashed", log, stages)
  return done.returncode, done.stdout
