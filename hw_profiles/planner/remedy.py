"""Turns shortfalls into a sentence that names the nearest config that works."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from hw_profiles.capacity.buffers import Shortfall
from hw_profiles.tile_config import TileConfig, TileFields

Feasible = Callable[[Any], bool]

# How far upwards a shape that is too small is searched.
_GROWTH = 4


def _with(config: Any, values: dict[str, Any]) -> Any:
  return dataclasses.replace(config, **values)


def _below(value: int, step: int) -> Iterator[int]:
  yield from range((value - 1) // step * step, 0, -step)


def _above(value: int, step: int) -> Iterator[int]:
  yield from range((value // step + 1) * step, max(value, step) * _GROWTH + 1, step)


def reason(
  config: TileConfig, shortfalls: tuple[Shortfall, ...], fields: TileFields, feasible: Feasible
) -> str:
  """`field=value: statement; largest field that fits is ...`.

  The config suggested passes every check, not only the one that failed first.

  Args:
    config: The config that does not run.
    shortfalls: Why, the first one first; at least one.
    fields: What may be changed.
    feasible: Whether another config runs.
  """
  first = shortfalls[0]
  if not first.fields:
    return first.statement
  for name in first.fields:
    field = fields[name]
    directions = [("largest", _below)]
    if first.kind == "shape" or not field.larger_needs_more:
      directions.append(("smallest", _above))
    for direction, candidates in directions:
      for candidate in candidates(field.value, field.step):
        if feasible(_with(config, {name: candidate})):
          return (
            f"{name}={field.value}: {first.statement}; {direction} {name} that fits is {candidate}"
          )
  name = first.fields[0]
  head = f"{name}={fields[name].value}: {first.statement}"
  smaller = _shrunk(config, fields, feasible)
  if smaller is None:
    return head
  return f"{head}; no single field mends it, {smaller.describe()} fits"


def _shrunk(config: TileConfig, fields: TileFields, feasible: Feasible) -> TileConfig | None:
  """The config after halving its largest block until it runs; None if it never does."""
  # start from powers of two, which every shape rule allows
  sizes = {
    name: 1 << (field.value - 1).bit_length() for name, field in fields.items() if field.is_block
  }
  defaults: dict[str, Any] = {x.name: x.default for x in dataclasses.fields(config)}  # type: ignore[arg-type]
  base = _with(
    config,
    {
      name: defaults[name] if field.fallback is None else field.fallback
      for name, field in fields.items()
      if not field.is_block
    },
  )
  while sizes and max(sizes.values()) > 1:
    candidate: TileConfig = _with(base, sizes)
    if feasible(candidate):
      return candidate
    largest = max(sizes, key=lambda name: sizes[name])
    sizes[largest] //= 2
  return None
