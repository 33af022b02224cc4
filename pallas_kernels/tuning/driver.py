"""The version of the NVIDIA driver."""

import functools
import pathlib
import shutil
import subprocess

# the module's own file: no process to start
_VERSION_FILE = pathlib.Path("/sys/module/nvidia/version")
# nvidia-smi answers in well under a second; a machine where it hangs must not
# hold up a trace
_TIMEOUT_S = 10


@functools.cache
def version() -> str | None:
  """For example "580.95.05"; None where there is no driver, or nothing that says so."""
  try:
    return _VERSION_FILE.read_text(encoding="ascii").strip() or None
  except (OSError, UnicodeDecodeError):
    return _asked()


def _asked() -> str | None:
  command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
  if shutil.which(command[0]) is None:
    return None
  try:
    answer = subprocess.run(
      command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
    ).stdout.strip()
  except (OSError, subprocess.SubprocessError):
    return None
  return answer.splitlines()[0].strip() if answer else None
