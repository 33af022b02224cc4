"""The measured tile of a problem: from the user's cache, else from a packaged table.

The user's cache is trusted only on the device, driver and JAX it was measured
with. A packaged table serves its device kind whatever the versions are.
"""

import dataclasses
import functools
import importlib.resources
import os
import pathlib
import warnings
from collections.abc import Hashable, Iterator, Mapping

import jax

from pallas_kernels.tuning import driver, encoding
from pallas_kernels.tuning.table import Entry, Table, TableError, parse

CACHE_VARIABLE = "PALLAS_KERNELS_TUNING_CACHE"
_USER_CACHE = "user cache"

_Index = Mapping[tuple[str, str, str], Entry]


@dataclasses.dataclass(frozen=True)
class Hit:
  """A measured tile and where it is from: "user cache", or "table" and its name."""

  entry: Entry
  source: str

  def note(self, of: str = "") -> str:
    """What to tell of it in one line, `of` what it was measured where that is not the call."""
    environment = self.entry.environment
    return (
      f"tuned: measured {self.entry.measured_us:.1f} us{of} on {environment.device_kind}, "
      f"jax {environment.jax} ({self.source})"
    )


@dataclasses.dataclass(frozen=True)
class Found:
  """Measured tiles of a problem, the first to be preferred; and why others are not used."""

  hits: tuple[Hit, ...] = ()
  refused: tuple[str, ...] = ()


def find(problem: Hashable, *, implementation: str, device_kind: str) -> Found:
  """The measured tiles of exactly this problem, kernel and device kind."""
  index = (device_kind, implementation, encoding.key(problem))
  hits, refused = [], []
  if (entry := _user_index().get(index)) is not None:
    mismatch = entry.environment.mismatch(
      device_kind=device_kind, driver=driver.version(), jax=jax.__version__
    )
    if mismatch is None:
      hits.append(Hit(entry, _USER_CACHE))
    else:
      refused.append(f"not tuned by the {_USER_CACHE} ({user_cache_path()}): {mismatch}")
  if (packaged := _packaged_index().get(index)) is not None:
    hits.append(packaged)
  return Found(tuple(hits), tuple(refused))


def user_cache_path() -> pathlib.Path | None:
  """The user's cache; None where the environment variable is empty, or there is no home."""
  given = os.environ.get(CACHE_VARIABLE)
  if given is not None:
    return pathlib.Path(given) if given else None
  folder = os.environ.get("XDG_CACHE_HOME")
  try:
    root = pathlib.Path(folder) if folder else pathlib.Path.home() / ".cache"
  except RuntimeError:
    return None
  return root / "pallas_kernels" / "tuning.json"


def reload() -> None:
  """Forget what was read, so that the next call reads the files again."""
  _user_index.cache_clear()
  _packaged_index.cache_clear()


def read(path: pathlib.Path, *, strict: bool) -> Table:
  """A file's entries; none where there is no file.

  Raises:
    TableError: see `table.parse`; or the file cannot be read.
  """
  try:
    text = path.read_text(encoding="utf-8")
  except FileNotFoundError:
    return Table(())
  except (OSError, UnicodeDecodeError) as error:
    raise TableError(f"{path}: {error}") from None
  return parse(text, str(path), strict=strict)


@functools.cache
def _user_index() -> _Index:
  path = user_cache_path()
  if path is None:
    return {}
  return {entry.key: entry for entry in _warned(path)}


@functools.cache
def _packaged_index() -> Mapping[tuple[str, str, str], Hit]:
  return {
    entry.key: Hit(entry, f"table {path.stem}")
    for path in packaged_tables()
    for entry in _warned(path)
  }


def packaged_tables() -> Iterator[pathlib.Path]:
  """The tables of this package."""
  with importlib.resources.as_file(importlib.resources.files(__package__) / "tables") as folder:
    yield from sorted(folder.glob("*.json"))


def _warned(path: pathlib.Path) -> tuple[Entry, ...]:
  """The entries of a file; what is wrong with it is a warning: a trace must go on."""
  try:
    table = read(path, strict=False)
  except TableError as error:
    table = Table((), (str(error),))
  for fault in table.faults:
    warnings.warn(f"tuning: {fault}; left out", RuntimeWarning, stacklevel=2)
  return table.entries
