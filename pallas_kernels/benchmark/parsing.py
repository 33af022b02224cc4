"""Flag texts to an op's shapes and tiles: `name=value` lists with inclusive sweeps.

    assignments = name "=" value ("," name "=" value)*
    value       = integer | start ":" stop ":" step | word | "true" | "false" | "none"

A sweep counts from start to stop in steps, stop included where a step meets it.
Several sweeps in one text give every combination, the last name fastest.
"""

import dataclasses
import difflib
import itertools
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pallas_kernels.benchmark.errors import UsageError

_Item = TypeVar("_Item")

# More combinations than anyone reads: a typing slip in a sweep, caught before
# hours of work.
MAX_COMBINATIONS = 10_000

# re.ASCII: \d also matches the digits of other scripts, which int() would take
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)

# A slip of the fingers (`comparr`) is at least so like the word it was meant to
# be; `gelu` and `silu`, which are 0.5 alike, are two things.
_ALIKE = 0.75


def joined(words: Sequence[str], last: str) -> str:
  """The words as a sentence lists them: a, b and c, with `last` before the last."""
  *first, final = words
  return f"{', '.join(first)} {last} {final}" if first else final


def closest(name: str, known: Iterable[str]) -> str:
  """`; did you mean X?` for the known name most like `name`, or nothing."""
  matches = difflib.get_close_matches(name, list(known), n=1, cutoff=_ALIKE)
  return f"; did you mean {matches[0]!r}?" if matches else ""


def choose(flag: str, names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
  """`names` without repeats, each one of `known`.

  Raises:
    UsageError: a name is not known, or there is none.
  """
  if not names:
    raise UsageError(f"--{flag}: expected at least one of {', '.join(known)}")
  for name in names:
    if name not in known:
      raise UsageError(f"--{flag}={name}: expected one of {', '.join(known)}{closest(name, known)}")
  return tuple(dict.fromkeys(names))


def positive(flag: str, text: str, *, example: int) -> int:
  """The integer of at least 1 that `text` is.

  Raises:
    UsageError: it is none.
  """
  try:
    if _INTEGER.fullmatch(text) and (value := int(text)) >= 1:
      return value
  except ValueError:  # more digits than int() reads
    pass
  raise UsageError(f"--{flag}={text}: expected an integer of at least 1, for example {example}")


def shapes(
  text: str, shape_class: type[_Item], *, example: str, flag: str = "shape"
) -> tuple[_Item, ...]:
  """The shapes of one `--shape` text, for example `m=1024,k=1024:8192:1024,n=12288`.

  Args:
    text: What was given.
    shape_class: A dataclass with a size in each field.
    example: A text that would do, for messages.
    flag: The flag it was given to.

  Raises:
    UsageError: the text is not of that form, a size is missing, unknown,
      repeated or negative.
  """
  fields = {field.name: _size for field in dataclasses.fields(_as_dataclass(shape_class))}
  return _instances(flag, text, shape_class, fields, example)


def tiles(
  text: str, config_class: type[_Item], *, example: str, flag: str = "tile"
) -> tuple[_Item, ...]:
  """The tiles of one `--tile` text: any fields of the op's config, sweeps included.

  Args:
    text: What was given.
    config_class: A dataclass of integers, numbers, words, and yes or no, each of
      which may also be None.
    example: A text that would do, for messages.
    flag: The flag it was given to.

  Raises:
    UsageError: the text is not of that form, a field is missing, unknown or
      repeated, or the config refuses its value.
  """
  return _instances(flag, text, config_class, _config_fields(config_class), example)


# A reader takes the text of one value and returns every value it stands for;
# it raises ValueError with what it expected.
_ReadValue = Callable[[str], Sequence[object]]


def _instances(
  flag: str, text: str, made: type[_Item], fields: Mapping[str, _ReadValue], example: str
) -> tuple[_Item, ...]:
  """An instance of the dataclass `made` for each combination that `text` stands for."""
  required = [
    field.name
    for field in dataclasses.fields(_as_dataclass(made))
    if field.default is dataclasses.MISSING
  ]
  swept = _assignments(flag, text, fields, required=required, example=example)
  result = []
  for combination in _combinations(flag, text, swept):
    try:
      result.append(made(**combination))
    except ValueError as error:
      raise UsageError(f"--{flag}={text}: {error}") from None
  return tuple(result)


def _as_dataclass(made: type[_Item]) -> Any:
  """The class, which its callers know to be a dataclass."""
  return made


def _assignments(
  flag: str, text: str, fields: Mapping[str, _ReadValue], *, required: Sequence[str], example: str
) -> dict[str, Sequence[object]]:
  """Each name of `text` with the values it sweeps."""
  swept: dict[str, Sequence[object]] = {}
  for part in text.split(","):
    name, equals, value = (piece.strip() for piece in part.partition("="))
    if not equals or not name or not value:
      raise UsageError(f"--{flag}={text}: {part!r} is not name=value; for example {example}")
    if name not in fields:
      raise UsageError(
        f"--{flag}={text}: unknown name {name!r}, expected one of {', '.join(fields)}"
        f"{closest(name, fields)}"
      )
    if name in swept:
      raise UsageError(f"--{flag}={text}: {name} is given twice")
    try:
      swept[name] = fields[name](value)
    except ValueError as error:
      raise UsageError(f"--{flag}={text}: {name}={value}: {error}") from None
  missing = [name for name in required if name not in swept]
  if missing:
    raise UsageError(f"--{flag}={text}: {', '.join(missing)} missing; for example {example}")
  return swept


def _combinations(flag: str, text: str, swept: dict[str, Sequence[object]]) -> list[dict[str, Any]]:
  count = 1
  for values in swept.values():
    count *= len(values)
  if count > MAX_COMBINATIONS:
    raise UsageError(
      f"--{flag}={text}: {count} combinations, expected at most {MAX_COMBINATIONS}; "
      "use a larger step"
    )
  return [dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())]


def _integers(text: str) -> Sequence[int]:
  """One integer, or the members of `start:stop:step`."""
  parts = text.split(":")
  if len(parts) not in (1, 3) or not all(_INTEGER.fullmatch(part) for part in parts):
    raise ValueError("expected an integer or a sweep start:stop:step, for example 1024:8192:1024")
  if len(parts) == 1:
    return [int(text)]
  start, stop, step = (int(part) for part in parts)
  if step < 1:
    raise ValueError(f"the step is {step}, expected at least 1")
  if stop < start:
    raise ValueError(f"the sweep stops at {stop}, before it starts at {start}")
  return range(start, stop + 1, step)


def _size(text: str) -> Sequence[int]:
  values = _integers(text)
  if values[0] < 0:
    raise ValueError("expected a size of at least 0")
  return values


def _config_fields(config_class: Any) -> dict[str, _ReadValue]:
  """A reader for each field of a config dataclass, by its annotation."""
  hints = typing.get_type_hints(config_class)
  return {field.name: _reader(hints[field.name]) for field in dataclasses.fields(config_class)}


def _reader(hint: object) -> _ReadValue:
  if hint is int:
    return _integers
  if typing.get_origin(hint) is typing.Literal:
    words = typing.get_args(hint)

    def read_word(text: str) -> Sequence[object]:
      if text not in words:
        raise ValueError(f"expected one of {', '.join(words)}{closest(text, words)}")
      return [text]

    return read_word
  if hint is bool:
    return _yes_or_no
  if hint is float:
    return _number
  if typing.get_origin(hint) is types.UnionType and type(None) in typing.get_args(hint):
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    if len(kinds) == 1:
      read = _reader(kinds[0])
      return lambda text: [None] if text.lower() == "none" else _or_none(read, text)
  raise TypeError(f"no reader for a config field of type {hint}")


def _number(text: str) -> Sequence[float]:
  """One number, which the config may find too small."""
  if not _NUMBER.fullmatch(text):
    raise ValueError("expected a number, for example 2.5")
  return [float(text)]


def _yes_or_no(text: str) -> Sequence[object]:
  """True or False, in the spelling of Python, of JSON or of a flag."""
  if text.lower() not in ("true", "false"):
    raise ValueError("expected true or false")
  return [text.lower() == "true"]


def _or_none(read: _ReadValue, text: str) -> Sequence[object]:
  """`read(text)`, whose message also names none."""
  try:
    return read(text)
  except ValueError as error:
    raise ValueError(f"{error}; or none") from None
