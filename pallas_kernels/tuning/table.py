"""Files of measured tiles: one format for the packaged tables and the user's cache.

    {"schema": 1, "entries": [{
      "problem": {"class": "MatmulProblem", "m": 1024, ...},
      "implementation": "mosaic_gpu",
      "config": {"class": "MatmulConfig", "block_m": 128, ...},
      "measured_us": 131.2,
      "planner_us": 135.0,           the planner's first choice, or null
      "runner_up": {"config": {...}, "measured_us": 131.9},    or null
      "candidates": 21,
      "environment": {"device_kind": "NVIDIA H200", "driver": ..., "jax": ...,
                      "commit": ..., "date": ...}}]}

An entry has an environment of its own, so that a file can be added to.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from pallas_kernels.tuning import encoding

SCHEMA = 1


class TableError(ValueError):
  """A file is no table of measured tiles; the message names the file and what is wrong."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Environment:
  """What a measured time depends on, beside problem and config.

  Attributes:
    device_kind: As JAX names it.
    driver: Version of the NVIDIA driver; None: not known.
    jax: Version of JAX.
    commit: Commit of this library; None: not known.
    date: When it was measured, ISO 8601; None: not known.
  """

  device_kind: str
  driver: str | None
  jax: str
  commit: str | None = None
  date: str | None = None

  def mismatch(self, *, device_kind: str, driver: str | None, jax: str) -> str | None:
    """What is another device, driver or JAX here, as a clause; None: nothing is."""
    here = {"device_kind": device_kind, "driver": driver, "jax": jax}
    for name, value in here.items():
      if (own := getattr(self, name)) != value:
        title = {"device_kind": "on", "driver": "with driver", "jax": "with jax"}[name]
        return f"measured {title} {own or 'unknown'}, and this is {value or 'unknown'}"
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunnerUp:
  """The second-best config, and its time."""

  config: Any
  measured_us: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
  """The fastest config measured for a problem.

  Attributes:
    problem: The encoded problem.
    implementation: The kernel, a key of `names.IMPLEMENTATIONS`.
    config: The config.
    measured_us: Its median device time, microseconds.
    environment: What it was measured with.
    planner_us: The same of the planner's first choice; None: not measured.
    runner_up: The second best; None: there was none.
    candidates: Configs that were measured.
  """

  problem: Mapping[str, Any]
  implementation: str
  config: Any
  measured_us: float
  environment: Environment
  planner_us: float | None = None
  runner_up: RunnerUp | None = None
  candidates: int | None = None

  @property
  def key(self) -> tuple[str, str, str]:
    """What it is found by: device kind, implementation, problem."""
    return self.environment.device_kind, self.implementation, encoding.text_of(self.problem)


@dataclasses.dataclass(frozen=True)
class Table:
  """The entries of a file, and what is wrong with those that are left out."""

  entries: tuple[Entry, ...]
  faults: tuple[str, ...] = ()


def parse(text: str, source: str, *, strict: bool) -> Table:
  """Read a file's text.

  Args:
    text: JSON.
    source: The file, for messages.
    strict: Raise for a wrong entry, too, instead of leaving it out.

  Raises:
    TableError: it is no table; or `strict`, and an entry is wrong.
  """
  try:
    document = json.loads(text)
  except ValueError as error:
    raise TableError(f"{source}: not JSON ({error})") from None
  if not isinstance(document, dict) or not isinstance(document.get("entries"), list):
    raise TableError(f'{source}: no tuning table, expected {{"schema": {SCHEMA}, "entries": []}}')
  if document.get("schema") != SCHEMA:
    raise TableError(
      f"{source}: schema {document.get('schema')!r}, and this version reads {SCHEMA}; "
      "delete the file, or measure again"
    )
  entries, faults = [], []
  for index, item in enumerate(document["entries"]):
    try:
      entries.append(_entry(item))
    except ValueError as error:
      fault = f"{source}: entry {index}: {error}"
      if strict:
        raise TableError(fault) from None
      faults.append(fault)
  return Table(tuple(entries), tuple(faults))


def dump(entries: Iterable[Entry]) -> str:
  """The text of a file: sorted by problem, one entry a line, so that changes are readable."""
  lines = [
    json.dumps(_plain(entry), sort_keys=False) for entry in sorted(entries, key=lambda x: _order(x))
  ]
  body = ",\n".join(f"    {line}" for line in lines)
  return f'{{\n  "schema": {SCHEMA},\n  "entries": [\n{body}\n  ]\n}}\n'


def merged(old: Iterable[Entry], new: Iterable[Entry]) -> tuple[Entry, ...]:
  """Both, the new one where both have a problem."""
  return tuple(({entry.key: entry for entry in old} | {entry.key: entry for entry in new}).values())


def _order(entry: Entry) -> tuple[Any, ...]:
  # sizes in numerical order: 64 before 1024
  sizes = [x for x in entry.problem.values() if isinstance(x, int) and not isinstance(x, bool)]
  return entry.environment.device_kind, entry.implementation, sizes, entry.key


def _plain(entry: Entry) -> dict[str, Any]:
  runner_up = entry.runner_up
  return {
    "problem": dict(entry.problem),
    "implementation": entry.implementation,
    "config": encoding.encode(entry.config),
    "measured_us": entry.measured_us,
    "planner_us": entry.planner_us,
    "runner_up": None
    if runner_up is None
    else {
      "config": encoding.encode(runner_up.config),
      "measured_us": runner_up.measured_us,
    },
    "candidates": entry.candidates,
    "environment": dataclasses.asdict(entry.environment),
  }


def _entry(item: Any) -> Entry:
  """An entry of a file; raises ValueError with what is wrong."""
  if not isinstance(item, dict):
    raise ValueError(f"{item!r}: expected an object")
  for name in ("problem", "implementation", "config", "measured_us", "environment"):
    if name not in item:
      raise ValueError(f"no {name!r}")
  problem, implementation = item["problem"], item["implementation"]
  if not isinstance(problem, dict) or not isinstance(problem.get("class"), str):
    raise ValueError(f"problem is {problem!r}: expected an object with a class")
  if not isinstance(implementation, str):
    raise ValueError(f"implementation is {implementation!r}: expected a name")
  runner_up = item.get("runner_up")
  planner_us = item.get("planner_us")
  return Entry(
    problem=problem,
    implementation=implementation,
    config=encoding.decode_config(item["config"]),
    measured_us=_time("measured_us", item["measured_us"]),
    environment=environment_of(item["environment"]),
    planner_us=None if planner_us is None else _time("planner_us", planner_us),
    runner_up=None if runner_up is None else _runner_up(runner_up),
    candidates=item.get("candidates"),
  )


def _runner_up(item: Any) -> RunnerUp:
  if not isinstance(item, dict) or set(item) != {"config", "measured_us"}:
    raise ValueError(f"runner_up is {item!r}: expected config and measured_us")
  return RunnerUp(
    config=encoding.decode_config(item["config"]),
    measured_us=_time("measured_us", item["measured_us"]),
  )


def environment_of(item: Any) -> Environment:
  """The environment in a file; raises ValueError with what is wrong."""
  names = [field.name for field in dataclasses.fields(Environment)]
  if not isinstance(item, dict) or not {"device_kind", "driver", "jax"} <= set(item) <= set(names):
    raise ValueError(f"environment is {item!r}: expected the fields {', '.join(names)}")
  return Environment(**item)


def _time(name: str, value: Any) -> float:
  number = isinstance(value, int | float) and not isinstance(value, bool)
  if not number or not math.isfinite(value) or value <= 0:
    raise ValueError(f"{name} is {value!r}: expected microseconds above 0")
  return float(value)
