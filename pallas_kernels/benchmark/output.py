"""Where a result goes: stdout, or a file that is either the old one or the whole new one."""

import os
import pathlib
import sys
import tempfile

from pallas_kernels.benchmark.errors import UsageError


def check_path(path: str) -> None:
  """Refuses a path that cannot be written, before any work is done for it.

  Raises:
    UsageError: the path is a folder, or its folder is missing or read-only.
  """
  target = pathlib.Path(path)
  folder = target.parent
  if target.is_dir():
    raise UsageError(f"--output={path}: is a folder, expected a file")
  if not folder.is_dir():
    raise UsageError(f"--output={path}: folder {str(folder)!r} does not exist")
  if not os.access(folder, os.W_OK | os.X_OK):
    raise UsageError(f"--output={path}: folder {str(folder)!r} is not writable")


def write(text: str, path: str | None) -> None:
  """Writes `text` to stdout, or atomically to the file at `path`.

  The file is written beside its place, flushed to disk and renamed into it: a
  reader, or a crash at any moment, finds the earlier file or the new one.

  Raises:
    UsageError: the file could not be written; the earlier one is untouched.
  """
  if path is None:
    sys.stdout.write(text)
    sys.stdout.flush()
    return
  target = pathlib.Path(path)
  # a symbolic link stays one: what it points to is replaced
  target = target.resolve() if target.is_symlink() else target
  temporary: str | None = None
  try:
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
      file.write(text)
      file.flush()
      os.fsync(file.fileno())
    os.chmod(temporary, _mode(target))
    os.replace(temporary, target)
    temporary = None
  except OSError as error:
    raise UsageError(f"--output={path}: {error.strerror or error}") from error
  finally:
    if temporary is not None:
      os.unlink(temporary)


def _mode(target: pathlib.Path) -> int:
  """The earlier file's permissions, or those a plain open() would give a new one."""
  try:
    return target.stat().st_mode & 0o777
  except FileNotFoundError:
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
