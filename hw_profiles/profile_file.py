"""Reads a profile's data file, and refuses one that is malformed.

A file is an object of `name`, `title`, `vendor`, `aliases`, for NVIDIA
`device_kinds`, and `facts`: one entry for each field of the profile class,
`{"value", "source", "confidence"[, "note"]}`, or one such entry a key (a dtype,
a memory tier) where the field is a mapping.

A number that no source gives is not left out: where the class allows None its
value is null, its confidence "unknown", and `source` says why there is none.
"""

import dataclasses
import json
import math
import pathlib
import types
from collections.abc import Mapping
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from hw_profiles.frozen_map import FrozenMap
from hw_profiles.profile import Confidence, GpuProfile, NpuProfile, Profile, Source

_CLASSES: Mapping[str, type[GpuProfile] | type[NpuProfile]] = {
  "nvidia": GpuProfile,
  "huawei": NpuProfile,
}
_MAY_BE_ZERO = frozenset(
  {
    "l0c_to_ub_bytes_per_cycle",
    "nvlink_bandwidth_bytes_per_s",
    "reserved_shared_bytes_per_block",
    "tensor_memory_bytes_per_sm",
    "ub_to_l1_bytes_per_cycle",
  }
)
_UNKNOWN = "unknown"
_TYPE_NAMES: Mapping[Any, str] = {
  int: "an integer",
  float: "a number",
  bool: "true or false",
  tuple[int, int]: "two integers",
}
_HEADER = ("name", "title", "vendor", "aliases", "facts")


def read_profile(path: pathlib.Path) -> GpuProfile | NpuProfile:
  """The profile in the JSON file at `path`.

  Raises:
    ValueError: the file is not JSON, or a field is missing, unknown, of the
      wrong type, not positive, or without source or confidence. The message
      names the file and the field.
  """
  try:
    document = json.loads(path.read_text(encoding="utf-8"))
  except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
    raise ValueError(f"{path.name}: not JSON: {error}") from None
  return _Reader(path.name).profile(document)


class _Reader:
  """One file being read; carries its name into every message."""

  def __init__(self, file_name: str) -> None:
    self._file_name = file_name

  def _fail(self, field: str, problem: str) -> NoReturn:
    raise ValueError(f"{self._file_name}: {field}: {problem}")

  def profile(self, document: Any) -> GpuProfile | NpuProfile:
    if not isinstance(document, dict):
      self._fail("(top level)", f"expected an object, got {type(document).__name__}")
    for field in _HEADER:
      if field not in document:
        self._fail(field, "missing")
    if not isinstance(document["vendor"], str) or document["vendor"] not in _CLASSES:
      self._fail("vendor", f"{document['vendor']!r}: expected one of {', '.join(_CLASSES)}")
    profile_class = _CLASSES[document["vendor"]]
    known = {*_HEADER}
    values: dict[str, Any] = {
      "name": self._text(document["name"], "name"),
      "title": self._text(document["title"], "title"),
      "aliases": self._texts(document["aliases"], "aliases"),
    }
    if profile_class is GpuProfile:
      known.add("device_kinds")
      values["device_kinds"] = self._texts(document.get("device_kinds"), "device_kinds")
    for field in document:
      if field not in known:
        self._fail(field, f"unknown field; expected {', '.join(sorted(known))}")
    facts, sources = self._facts(document["facts"], profile_class)
    return profile_class(**values, **facts, sources=sources)

  def _text(self, value: Any, field: str) -> str:
    if not isinstance(value, str) or not value.strip():
      self._fail(field, f"{value!r}: expected a non-empty string")
    return value

  def _texts(self, value: Any, field: str) -> tuple[str, ...]:
    if not isinstance(value, list):
      self._fail(field, f"{value!r}: expected a list of strings")
    return tuple(self._text(item, field) for item in value)

  def _facts(
    self, facts: Any, profile_class: type[Profile]
  ) -> tuple[dict[str, Any], FrozenMap[str, Source]]:
    if not isinstance(facts, dict):
      self._fail("facts", f"expected an object, got {type(facts).__name__}")
    header = {field.name for field in dataclasses.fields(Profile)} | {"device_kinds"}
    hints = get_type_hints(profile_class)
    expected = [f.name for f in dataclasses.fields(profile_class) if f.name not in header]
    for field in facts:
      if field not in expected:
        self._fail(field, f"{profile_class.__name__} has no such field")
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    for field in expected:
      if field not in facts:
        self._fail(field, "missing")
      if get_origin(hints[field]) is not FrozenMap:
        sources[field] = self._source(facts[field], field, hints[field])
        values[field] = sources[field].value
        continue
      entries = facts[field]
      may_be_empty = field == "latency_cycles"
      if not isinstance(entries, dict) or not (entries or may_be_empty):
        self._fail(field, f"{entries!r}: expected an object with one entry a key")
      number = get_args(hints[field])[1]
      for dtype, entry in entries.items():
        sources[f"{field}.{dtype}"] = self._source(entry, f"{field}.{dtype}", number)
      values[field] = FrozenMap({dtype: sources[f"{field}.{dtype}"].value for dtype in entries})
    return values, FrozenMap(sources)

  def _source(self, entry: Any, field: str, expected: Any) -> Source:
    if not isinstance(entry, dict):
      self._fail(field, f"{entry!r}: expected value, source and confidence")
    unknown = set(entry) - {"value", "source", "confidence", "note"}
    if unknown:
      self._fail(field, f"unknown key {sorted(unknown)[0]!r}")
    for key in ("value", "source", "confidence"):
      if key not in entry:
        self._fail(field, f"{key} missing")
    self._text(entry["source"], f"{field}.source")
    if entry["confidence"] not in get_args(Confidence):
      levels = ", ".join(get_args(Confidence))
      self._fail(f"{field}.confidence", f"{entry['confidence']!r}: expected one of {levels}")
    value = entry["value"]
    optional = isinstance(expected, types.UnionType)
    if value is None and optional:
      if entry["confidence"] != _UNKNOWN:
        self._fail(f"{field}.confidence", f"{entry['confidence']!r}: expected 'unknown' of null")
      return Source(None, entry["source"], _UNKNOWN, entry.get("note", ""))
    if entry["confidence"] == _UNKNOWN:
      self._fail(field, f"value {value!r}: expected null where the confidence is 'unknown'")
    if optional:
      expected = get_args(expected)[0]
    if isinstance(value, list):
      value = tuple(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    accepted = {
      int: isinstance(value, int) and not isinstance(value, bool),
      float: is_number,
      bool: isinstance(value, bool),
      tuple[int, int]: isinstance(value, tuple) and list(map(type, value)) == [int, int],
    }
    if not accepted[expected]:
      self._fail(field, f"value {entry['value']!r}: expected {_TYPE_NAMES[expected]}")
    if is_number and (
      not math.isfinite(value) or value < 0 or (value == 0 and field not in _MAY_BE_ZERO)
    ):
      self._fail(field, f"value {value!r}: expected a positive number")
    if field.endswith("_fraction") and value > 1:
      self._fail(field, f"value {value!r}: expected a fraction of at most 1")
    return Source(value, entry["source"], entry["confidence"], entry.get("note", ""))
