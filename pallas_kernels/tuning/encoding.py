"""Problems and configs as JSON, the same on every run."""

import dataclasses
import enum
import functools
import json
from collections.abc import Hashable, Mapping
from typing import Any

import hw_profiles

_CLASS = "class"


def encode(value: Any) -> Any:
  """A frozen dataclass, and what its fields hold, in the types of JSON.

  Fields at their default are left out: a field that is added later, with the
  default that means "as before", leaves the encoding as it was.

  Raises:
    TypeError: a field holds what has no encoding.
  """
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    fields = {
      field.name: encode(getattr(value, field.name))
      for field in dataclasses.fields(value)
      if not _is_default(value, field)
    }
    return {_CLASS: type(value).__name__, **fields}
  if isinstance(value, enum.Enum):
    return value.name
  if isinstance(value, list | tuple):
    return [encode(item) for item in value]
  if value is None or isinstance(value, bool | int | float | str):
    return value
  raise TypeError(f"{value!r} is a {type(value).__name__}, which a tuning table cannot hold")


def _is_default(value: Any, field: Any) -> bool:
  own = getattr(value, field.name)
  # 1 == True == 1.0
  return type(own) is type(field.default) and own == field.default


def text_of(encoded: Any) -> str:
  """One line of JSON, keys sorted: equal for equal encodings."""
  return json.dumps(encoded, sort_keys=True, separators=(",", ":"))


@functools.lru_cache(maxsize=4096)
def key(problem_or_config: Hashable) -> str:
  """`text_of(encode(...))`: what a problem or a config is found by."""
  return text_of(encode(problem_or_config))


def decode_config(encoded: Any) -> Any:
  """The config that `encode` gave this.

  Raises:
    ValueError: there is no such config class, it has no such field, or a value
      is not one it takes; the message names it.
  """
  if not isinstance(encoded, Mapping):
    raise ValueError(f"config is {encoded!r}: expected an object of fields")
  fields = dict(encoded)
  name = fields.pop(_CLASS, None)
  config_class = _config_classes().get(name) if isinstance(name, str) else None
  if config_class is None:
    raise ValueError(
      f"config class {name!r}: expected one of {', '.join(sorted(_config_classes()))}"
    )
  known = [field.name for field in dataclasses.fields(config_class)]
  for field in fields:
    if field not in known:
      raise ValueError(f"{name} has no field {field!r}, only {', '.join(known)}")
  try:
    config = config_class(**fields)
  except TypeError as error:
    raise ValueError(f"{name}: {error}") from None
  hash(config)
  return config


@functools.cache
def _config_classes() -> Mapping[str, Any]:
  """The config classes of hw_profiles, by name."""
  found = {name: getattr(hw_profiles, name) for name in hw_profiles.__all__}
  return {
    name: one
    for name, one in found.items()
    if isinstance(one, type) and dataclasses.is_dataclass(one) and hasattr(one, "describe")
  }
