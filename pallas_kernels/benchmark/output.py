"""Where a result goes: stdout, or a file that is either the old one or the whole new one."""

import io
import os
import pathlib
import re
import stat
import sys
import tempfile

from pallas_kernels.benchmark.errors import UsageError

# Beside the target until it is whole. Short, and without the target's name:
# that may have all the 255 bytes a name can have.
_TEMPORARY_PREFIX = ".part-"

_KINDS = (
  (stat.S_ISFIFO, "FIFO"),
  (stat.S_ISCHR, "character device"),
  (stat.S_ISBLK, "block device"),
  (stat.S_ISSOCK, "socket"),
)


def check_path(path: str, *, flag: str = "output", elsewhere: str = "stdout") -> None:
  """Refuses a path that cannot be written, before any work is done for it.

  Args:
    path: The file.
    flag: The flag that named it, for messages.
    elsewhere: Where it goes without the flag.

  Raises:
    UsageError: the path is empty, or "-", or a folder, or anything else that is
      no regular file, or its folder is missing or read-only.
  """
  if not path:
    raise UsageError(f"--{flag}=: expected a file; leave the flag out to write to {elsewhere}")
  if path == "-":
    raise UsageError(f"--{flag}=-: {elsewhere} is the default, leave the flag out; for a file: ./-")
  try:
    target = _target(path)
    _refuse_unless_regular(path, target, flag)
    folder = target.parent
    if not folder.is_dir():
      raise UsageError(f"--{flag}={path}: folder {str(folder)!r} does not exist")
    if not os.access(folder, os.W_OK | os.X_OK):
      raise UsageError(f"--{flag}={path}: folder {str(folder)!r} is not writable")
  except (OSError, RuntimeError) as error:  # RuntimeError: links that go round in a circle
    raise _failed(path, error, flag) from None


def check_folder(path: str, *, flag: str = "folder") -> None:
  """Refuses a folder that files cannot be written to; one that is missing can be made.

  Raises:
    UsageError: it is something else, or cannot be written, or its parent is missing.
  """
  folder = pathlib.Path(path)
  try:
    if folder.exists() and not folder.is_dir():
      raise UsageError(f"--{flag}={path}: is no folder")
    place = folder if folder.exists() else folder.parent
    if not place.is_dir():
      raise UsageError(f"--{flag}={path}: folder {str(place)!r} does not exist")
    if not os.access(place, os.W_OK | os.X_OK):
      raise UsageError(f"--{flag}={path}: folder {str(place)!r} is not writable")
  except OSError as error:
    raise _failed(path, error, flag) from None


def write_into(content: str | bytes, name: str, folder: str, *, flag: str = "folder") -> str:
  """Writes a file of that name into a folder, which is made where it is missing; its path.

  Characters that are not for file names become dashes.

  Raises:
    UsageError: it could not be written.
  """
  try:
    os.makedirs(folder, exist_ok=True)
  except OSError as error:
    raise _failed(folder, error, flag) from error
  safe = re.sub(r"[^\w.=-]+", "-", name, flags=re.ASCII)
  path = str(pathlib.Path(folder) / safe)
  _write_file(content, path, flag)
  return path


def write(text: str, path: str | None, *, flag: str = "output") -> None:
  """Writes `text` to stdout, or atomically to the file at `path`.

  The file is written beside its place, flushed to disk and renamed into it: a
  reader, or a crash at any moment, finds the earlier file or the new one. What
  is no regular file is never renamed over: it is looked at again here, since it
  may have appeared after `check_path`.

  Raises:
    UsageError: the result could not be written; an earlier file is untouched.
    BrokenPipeError: the reader of stdout has gone.
  """
  if path is None:
    _write_to_stdout(text)
  else:
    _write_file(text, path, flag)


def _write_file(content: str | bytes, path: str, flag: str) -> None:
  """The part of `write` that is about a file."""
  whole = content.encode() if isinstance(content, str) else content
  temporary: str | None = None
  try:
    target = _target(path)
    _refuse_unless_regular(path, target, flag)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=_TEMPORARY_PREFIX)
    with os.fdopen(handle, "wb") as file:
      file.write(whole)
      file.flush()
      os.fsync(file.fileno())
    os.chmod(temporary, _mode(target))
    _refuse_unless_regular(path, target, flag)
    os.replace(temporary, target)
    temporary = None
  except (OSError, RuntimeError) as error:
    raise _failed(path, error, flag) from error
  finally:
    if temporary is not None:
      pathlib.Path(temporary).unlink(missing_ok=True)


def _write_to_stdout(text: str) -> None:
  if sys.stdout is None:  # the program was started with stdout closed
    raise UsageError("stdout is closed; --output=FILE writes to a file")
  try:
    sys.stdout.write(text)
    sys.stdout.flush()
  except OSError as error:
    # The interpreter flushes stdout once more at exit, and would complain there
    # of what still is in its buffer.
    sys.stdout = io.StringIO()
    if isinstance(error, BrokenPipeError):
      raise
    raise UsageError(f"stdout: {error.strerror or error}") from error


def _target(path: str) -> pathlib.Path:
  """The place to write: a symbolic link stays one, what it points to is replaced."""
  given = pathlib.Path(path)
  return given.resolve() if given.is_symlink() else given


def _refuse_unless_regular(path: str, target: pathlib.Path, flag: str) -> None:
  """Raises UsageError where something is at `target` that is no regular file."""
  try:
    mode = target.stat().st_mode
  except FileNotFoundError:
    return
  if stat.S_ISDIR(mode):
    raise UsageError(f"--{flag}={path}: is a folder, expected a file")
  if not stat.S_ISREG(mode):
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "special file")
    raise UsageError(
      f"--{flag}={path}: is a {kind}, expected a regular file or a new name; for a {kind} leave "
      "the flag out and redirect stdout"
    )


def _failed(path: str, error: Exception, flag: str) -> UsageError:
  return UsageError(f"--{flag}={path}: {getattr(error, 'strerror', None) or error}")


def _mode(target: pathlib.Path) -> int:
  """The earlier file's permissions, or those a plain open() would give a new one."""
  try:
    return target.stat().st_mode & 0o777
  except FileNotFoundError:
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
