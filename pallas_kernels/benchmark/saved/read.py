"""Files of rows: what --format=json wrote to `--output`, what `--results` keeps. Loads no JAX."""

import dataclasses
import functools
import glob
import json
import os
import pathlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pallas_kernels.benchmark import flag_definitions
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.plain_values import SCHEMA
from pallas_kernels.benchmark.rows import DIFFERS, FAILED, NOT_RUN, PASSED

_FLAG = "input"
_CHECKS = (PASSED, FAILED, NOT_RUN, DIFFERS)

# What a peer's rows of --task=run have before its name in `implementation`.
_PEER = "peer:"

# The rows of --task=request that are of a whole request, and their times.
PROGRAM = "program"
REQUEST_TIMES = ("first_token_us", "token_us", "total_us")

_BACKWARD = " --backward"

# Characters of a wrong value that a message shows.
_SHOWN = 60


class OtherFileError(UsageError):
  """A file that is no set of rows, nor says that it is one."""


@dataclasses.dataclass(frozen=True)
class Input:
  """A file to report on.

  Attributes:
    path: As it was named.
    by_pattern: Whether a pattern met it, which may meet what holds no rows, too.
  """

  path: str
  by_pattern: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedRow:
  """A row of a file, in the fields that a report reads.

  Attributes:
    file: As it was named.
    kernel: The op, and whether its gradients ran behind it; of tasks that have none the task.
    problem: Sizes, dtype and options, for people.
    tile: As `--tile` takes it; None: none.
    profile: That it was planned for, or the device that it ran on.
    implementation: What ran.
    predicted_us: The planner's time.
    measured_us: The median time.
    peers: Times of peers on the same operands in the same process.
    check: "passed", "failed", "not run" or "differs".
    why: What the row says of itself: its reason, or its notes.
    error: Of a check: error/bound, relative error.
    arguments: The line that gives the row again.
    environment: The facts that it depends on.
    fields: Everything the file has of it.
  """

  file: str
  kernel: str
  problem: str
  tile: str | None
  profile: str | None
  implementation: str | None
  predicted_us: float | None
  measured_us: float | None
  peers: Mapping[str, float]
  check: str
  why: str
  error: str
  arguments: str
  environment: Mapping[str, Any]
  fields: Mapping[str, Any]

  @property
  def ratios(self) -> dict[str, float]:
    """Each peer's time over this one's."""
    if self.measured_us is None:
      return {}
    return {name: us / self.measured_us for name, us in self.peers.items()}

  @property
  def measured_to_predicted(self) -> float | None:
    """Measured time over the planner's; None with gradients, of which the plan is a part."""
    if self.measured_us is None or not self.predicted_us or self.kernel.endswith(_BACKWARD):
      return None
    return self.measured_us / self.predicted_us


def inputs(texts: Sequence[str]) -> tuple[Input, ...]:
  """The files that `--input` names, patterns written out, each once.

  Raises:
    UsageError: none is named, or a pattern meets no file.
  """
  found: dict[str, Input] = {}
  for text in texts:
    if not text:
      raise UsageError(f"--{_FLAG}=: expected the name of a file")
    by_pattern = glob.has_magic(text) and not os.path.exists(text)
    names = sorted(glob.glob(text)) if by_pattern else [text]
    if not names:
      raise UsageError(f"--{_FLAG}={text}: no file is so called")
    for name in names:
      real = os.path.realpath(name)
      # named by itself, too, it has to hold rows
      if real not in found or not by_pattern:
        found[real] = Input(found[real].path if real in found else name, by_pattern)
  if not found:
    raise UsageError(
      f"--{_FLAG}: --task=report reads files; name at least one, for example"
      f" --{_FLAG}=compare.json, which --format=json --output=compare.json writes"
    )
  return tuple(found.values())


def rows(path: str) -> tuple[SavedRow, ...]:
  """The rows of a file, those of peers joined to the rows that they stand beside.

  Raises:
    OtherFileError: it is a folder, or JSON of something else.
    UsageError: it cannot be read, or a row is wrong; says what and where.
  """
  document = _document(path)
  found = [
    _saved(path, index, row, document.get("environment"))
    for index, row in enumerate(document["rows"])
  ]
  return tuple(_with_peers(found))


def _document(path: str) -> dict[str, Any]:
  try:
    text = pathlib.Path(path).read_text(encoding="utf-8")
  except IsADirectoryError:
    raise _wrong(path, "is a folder, expected a file", OtherFileError) from None
  except (OSError, UnicodeDecodeError) as error:
    raise _wrong(path, getattr(error, "strerror", None) or str(error)) from None
  try:
    document = json.loads(text)
  except json.JSONDecodeError as error:
    raise _wrong(
      path, f"line {error.lineno} column {error.colno}: not JSON ({error.msg}); --format=json is"
    ) from None
  except RecursionError:
    raise _wrong(path, "nests deeper than any output of --format=json") from None
  except ValueError as error:  # an integer of thousands of digits
    raise _wrong(path, str(error)) from None
  if not isinstance(document, dict):
    what = f"holds {_kind(document)}, expected an object with schema and rows"
    raise _wrong(path, what, OtherFileError)
  if "schema" not in document:
    what = f"has no schema, expected {SCHEMA}: is it an output of --format=json?"
    raise _wrong(path, what, OtherFileError)
  if document["schema"] != SCHEMA or isinstance(document["schema"], bool):
    raise _wrong(path, f"schema {document['schema']!r}: this program reads {SCHEMA}")
  if not isinstance(document.get("rows"), list):
    raise _wrong(path, f"rows: expected a list, got {_kind(document.get('rows'))}")
  return document


def _wrong(path: str, what: str, kind: type[UsageError] = UsageError) -> UsageError:
  return kind(f"--{_FLAG}={path}: {what}")


def _kind(value: object) -> str:
  """What JSON calls a value."""
  if value is None:
    return "nothing"
  kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
  return kinds.get(type(value), "a number")


def _saved(path: str, index: int, row: Any, environment: Any) -> SavedRow:
  def fail(what: str) -> UsageError:
    return _wrong(path, f"row {index}: {what}")

  def time(name: str, value: Any) -> float | None:
    if value is None:
      return None
    number = not isinstance(value, bool) and isinstance(value, int | float)
    # the largest first: an integer beyond it is no float, and math.isfinite would fail
    if not number or not 0 < value <= sys.float_info.max:
      raise fail(f"{name}={value!r:.{_SHOWN}}: expected a time above 0, or null")
    return float(value)

  def text(name: str) -> str | None:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
      raise fail(f"{name}={value!r:.{_SHOWN}}: expected a text, or null")
    return value

  if not isinstance(row, dict):
    raise fail(f"expected an object, got {_kind(row)}")
  facts = row.get("environment", environment)
  if not isinstance(facts, dict):
    raise fail("environment: neither the row nor the file has one, expected an object")
  check = row.get("check", NOT_RUN)
  if check not in _CHECKS:
    raise fail(f"check={check!r}: expected one of {', '.join(_CHECKS)}")
  peers = row.get("peers") or {}
  if not isinstance(peers, dict):
    raise fail(f"peers: expected an object, got {_kind(peers)}")
  times = {name: time(f"peers.{name}", us) for name, us in peers.items()}
  # --task=fusion has its one peer so
  times |= {"xla": time("xla_us", row.get("xla_us"))} if row.get("xla_us") else {}
  for name in REQUEST_TIMES if row.get("kind") == PROGRAM else ():
    time(name, row.get(name))
  arguments = text("arguments") or ""
  text("kernel")
  flags = _flags(arguments)
  return SavedRow(
    file=path,
    kernel=_kernel(row, flags),
    problem=_problem(row, flags),
    tile=text("tile"),
    profile=text("profile") or _or_none(facts.get("device_kind")),
    implementation=text("implementation"),
    predicted_us=time("predicted_us", row.get("predicted_us")),
    measured_us=time("measured_us", row.get("measured_us")),
    peers={name: us for name, us in times.items() if us is not None},
    check=check,
    why=_why(row),
    error=_error(row),
    arguments=arguments,
    environment=facts,
    fields=row,
  )


def _or_none(value: object) -> str | None:
  return str(value) if value else None


def _flags(arguments: str) -> list[str]:
  try:
    return [part for part in shlex.split(arguments)[1:] if part.startswith("--")]
  except ValueError:  # a line written by hand, with an open quote
    return []


def _kernel(row: Mapping[str, Any], flags: Sequence[str]) -> str:
  task = next((flag.partition("=")[2] for flag in flags if flag.startswith("--task=")), None)
  name = str(row.get("kernel") or task or "other")
  return name + (_BACKWARD if _BACKWARD.strip() in _options(row, flags) else "")


def _options(row: Mapping[str, Any], flags: Sequence[str]) -> list[str]:
  """The op's flags: a result has them, of an output the line that gives the row again."""
  given = row.get("options")
  if isinstance(given, list):
    return [str(option) for option in given]
  return [flag for flag in flags if flag[2:].partition("=")[0] not in _no_options()]


@functools.cache
def _no_options() -> frozenset[str]:
  """Flags that say where and how a row came about; what is left, or is unknown, is an option."""
  return frozenset(flag_definitions.define()) - frozenset(flag_definitions.op_flags())


def _problem(row: Mapping[str, Any], flags: Sequence[str]) -> str:
  """Sizes, dtype and options, or what else names the row."""
  named = [row.get(name) for name in ("id", "phase", "step", "stage", "program", "launch", "data")]
  parts = [row.get("shape"), row.get("dtype"), *_options(row, flags)]
  # a step of the ladder has its name among the details
  details = row.get("details")
  step = details.get("step") if isinstance(details, dict) else None
  cold = "cold L2" if row.get("cold_l2") or "--cold_l2" in flags else None
  said = [str(part) for part in (*named, step, *parts, cold) if part]
  return " ".join(dict.fromkeys(said))


def _why(row: Mapping[str, Any]) -> str:
  notes = row.get("notes")
  texts = [row.get("reason"), *(notes if isinstance(notes, list) else ()), row.get("note")]
  return "; ".join(str(text) for text in texts if text)


def _error(row: Mapping[str, Any]) -> str:
  """What a check found, in the words of its row."""
  named = {
    "worst_bound_fraction": "error/bound",
    "relative_error": "relative error",
    "max_ulp": "ulp",
    "printed": "printed",
    "ours": "ours",
  }
  found = [(said, row[name]) for name, said in named.items() if row.get(name) is not None]
  return ", ".join(
    f"{said} {value:.3g}" if isinstance(value, float) else f"{said} {value}"
    for said, value in found
  )


def _with_peers(found: Sequence[SavedRow]) -> list[SavedRow]:
  """Rows of peers that --task=run writes become times beside the kernels'; their checks stay.

  A peer that was checked and did not pass, or that has no time, keeps its row.
  """
  beside: dict[tuple[str, str], dict[str, float]] = {}
  for row in found:
    name = _peer(row)
    if name is not None and row.measured_us is not None:
      beside.setdefault((row.kernel, row.problem), {})[name] = row.measured_us
  kept = []
  for row in found:
    if _peer(row) is None:
      peers = {**beside.get((row.kernel, row.problem), {}), **row.peers}
      kept.append(dataclasses.replace(row, peers=peers))
    elif row.measured_us is None or row.check in (FAILED, DIFFERS):
      kept.append(row)
  return kept


def _peer(row: SavedRow) -> str | None:
  """The peer whose row it is."""
  name = row.implementation or ""
  return name.removeprefix(_PEER) if name.startswith(_PEER) else None
