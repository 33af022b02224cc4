"""The facts that a result depends on: versions, device, commit, date."""

import datetime
import importlib.metadata
import os
import pathlib
import platform
import shutil
import subprocess
from typing import Any

from pallas_kernels.tuning import driver

# git answers in well under a second; a machine where it hangs must not hold up a
# result that is there already.
_TOOL_TIMEOUT_S = 10


def describe(*, with_device: bool) -> dict[str, Any]:
  """The environment object of a result; a fact that is not known is None.

  Args:
    with_device: Whether to name the device JAX runs on, which loads JAX.
  """
  commit, modified = _commit()
  facts: dict[str, Any] = {
    "pallas_kernels": _version("pallas-kernels"),
    "python": platform.python_version(),
    "jax": _version("jax"),
    "jaxlib": _version("jaxlib"),
    "numpy": _version("numpy"),
    "machine": platform.machine(),
    "system": platform.system(),
    "cpu_count": len(os.sched_getaffinity(0))
    if hasattr(os, "sched_getaffinity")
    else os.cpu_count(),
    "platform": None,
    "device_kind": None,
    "device_count": None,
    "driver": None,
    "git_commit": commit,
    "git_modified": modified,
    "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
  }
  if with_device:
    facts.update(_device())
  return facts


def _device() -> dict[str, Any]:
  import jax  # here, so that a task that runs nothing starts without it

  device = jax.devices()[0]
  return {
    "platform": device.platform,
    "device_kind": device.device_kind,
    "device_count": jax.device_count(),
    "driver": driver.version() if device.platform == "gpu" else None,
  }


def _commit() -> tuple[str | None, bool | None]:
  """The checked-out commit this file belongs to, and whether tracked files differ from it."""
  folder = pathlib.Path(__file__).parent
  git = ["git", "-C", str(folder)]
  # An installed copy may lie inside some other project's repository.
  if not _answer([*git, "ls-files", "--", pathlib.Path(__file__).name]):
    return None, None
  commit = _answer([*git, "rev-parse", "--verify", "HEAD"])
  status = _answer([*git, "status", "--porcelain", "--untracked-files=no"])
  return commit or None, None if status is None else bool(status)


def _answer(command: list[str]) -> str | None:
  """What a tool prints, stripped; None where it is missing or fails."""
  if shutil.which(command[0]) is None:
    return None
  try:
    result = subprocess.run(
      command, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=True
    )
  except (OSError, subprocess.SubprocessError):
    return None
  return result.stdout.strip()


def _version(distribution: str) -> str | None:
  try:
    return importlib.metadata.version(distribution)
  except importlib.metadata.PackageNotFoundError:
    return None
