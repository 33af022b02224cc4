"""What files of rows and of results hold: values that JSON has, and the number of their layout."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

SCHEMA = 1


def plain(value: Any) -> Any:
  """`value` in the types of JSON.

  JSON has no infinity and no NaN, and null means an empty field, so those
  become the texts "Infinity", "-Infinity" and "NaN", which float() reads.
  """
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
  if isinstance(value, Mapping):
    return {str(key): plain(item) for key, item in value.items()}
  if isinstance(value, list | tuple | set | frozenset):
    items = [plain(item) for item in value]
    return sorted(items) if isinstance(value, set | frozenset) else items
  if value is None or isinstance(value, bool | str):
    return value
  if hasattr(value, "item"):  # a NumPy scalar
    return plain(value.item())
  if isinstance(value, float) and not math.isfinite(value):
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
  if isinstance(value, int | float):
    return value
  return str(value)
