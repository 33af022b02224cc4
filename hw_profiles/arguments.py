"""Checks of keyword arguments that several models share."""

import math
import operator
from collections.abc import Collection, Iterable, Mapping
from typing import SupportsIndex


def at_least(name: str, value: object, lowest: int) -> None:
  """Raises ValueError unless `value` is an int of at least `lowest`."""
  if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
    raise ValueError(f"{name}={value!r}: expected an integer of at least {lowest}")


def as_int(value: object) -> object:
  """A whole number of another library as Python's int; anything else, and a bool, as it is.

  NumPy's integers wrap around: a product of sizes must not be one of theirs.
  """
  # an int first: planning makes thousands of configs, and a protocol is slow to ask
  if isinstance(value, int) or not isinstance(value, SupportsIndex):
    return value
  try:
    return operator.index(value)
  except TypeError:  # an array of several, or one that is only traced
    return value


def whole_field(instance: object, name: str, lowest: int) -> None:
  """Makes a field of a frozen dataclass an int.

  Raises:
    ValueError: it is no integer, or below `lowest`.
  """
  given = getattr(instance, name)
  value = as_int(given)
  at_least(f"{type(instance).__name__}.{name}", value, lowest)
  if value is not given:
    object.__setattr__(instance, name, value)


# Steps that the event simulations walk one by one: a second or so, and some 100 MB.
MOST_STEPS = 1_000_000


def few_enough(name: str, value: int, *, instead: str) -> None:
  """Raises ValueError where a simulation would have to walk more than `MOST_STEPS` steps.

  Args:
    name: The argument that says how many.
    value: How many.
    instead: What has the answer without walking, for the message.
  """
  if value > MOST_STEPS:
    raise ValueError(f"{name}={value}: every one is simulated, at most {MOST_STEPS}; {instead}")


def not_negative(name: str, value: object) -> None:
  """Raises ValueError unless `value` is a finite number of at least 0."""
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  if not is_number or not math.isfinite(value) or value < 0:  # type: ignore[arg-type,operator]
    raise ValueError(f"{name}={value!r}: expected a finite number of at least 0")


def positive(name: str, value: object) -> None:
  """Raises ValueError unless `value` is a finite number above 0."""
  not_negative(name, value)
  if value == 0:
    raise ValueError(f"{name}=0: expected a number above 0")


def ceil_div(numerator: int, denominator: int) -> int:
  """The smallest integer of at least numerator / denominator."""
  return -(-numerator // denominator)


def round_up(value: int, unit: int) -> int:
  """The smallest multiple of `unit` of at least `value`."""
  return ceil_div(value, unit) * unit


def collection(name: str, value: object, kind: type[object] | None = None) -> None:
  """Raises ValueError unless `value` has items, each a `kind` where one is given.

  Text has none, nor has a mapping. An iterator is not walked: its items are not
  checked.
  """
  if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
    of = "values" if kind is None else f"{kind.__name__}s"
    raise ValueError(f"{name}={value!r}: expected a sequence of {of}")
  if kind is not None and isinstance(value, Collection):
    for position, item in enumerate(value):
      instance(f"{name}[{position}]", item, kind)


def mapping(name: str, value: object) -> None:
  """Raises ValueError unless `value` maps keys to values."""
  if not isinstance(value, Mapping):
    raise ValueError(f"{name}={value!r}: expected a mapping")


def instance(name: str, value: object, kind: type[object]) -> None:
  """Raises ValueError unless `value` is a `kind`."""
  if not isinstance(value, kind):
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    raise ValueError(f"{name}={value!r}: expected {article} {kind.__name__}")
