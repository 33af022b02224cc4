"""Turns shortfalls into a sentence that names the nearest config that works."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

from hw_profiles.capacity.buffers import Shortfall
from hw_profiles.tile_config import TileConfig, TileField, TileFields

ShortfallsOf = Callable[[Any], tuple[Shortfall, ...]]

# How far upwards a shape that is too small is searched.
_GROWTH = 4
# Values looked at one by one: above the largest that the memories seem to hold,
# as staging that shrinks with odd widths makes room for a few more, and below.
_SLACK_STEPS = 64
_MOST_STEPS = 256
# No memory holds this many elements: larger fields are not tried.
_MOST = 1 << 48
_CLEARLY_MORE = 1.25
# Blocks that are too small for every rule grow to the first of these that works.
_FLOORS = (1, 8, 16, 32, 64, 128)


def _with(config: Any, values: dict[str, Any]) -> Any:
  return dataclasses.replace(config, **values)


def _powers_below(value: int) -> Iterator[int]:
  """Powers of two below `value`, largest first."""
  for exponent in range((value - 1).bit_length(), -1, -1):
    if 1 << exponent < value:
      yield 1 << exponent


@dataclasses.dataclass(frozen=True)
class _Option:
  """Values of one field that mend a config; None where there is none on that side."""

  name: str
  below: int | None
  above: int | None

  def sentence(self) -> str:
    if self.below is None:
      return f"smallest {self.name} that fits is {self.above}"
    if self.above is None:
      return f"largest {self.name} that fits is {self.below}"
    return f"nearest {self.name} that fit are {self.below} and {self.above}"

  def nearly_kept(self) -> int:
    """The larger of the two values."""
    return max(self.below or 0, self.above or 0)


class _Search:
  """Values of one field that make a config run, in a bounded number of trials."""

  def __init__(
    self, config: TileConfig, name: str, field: TileField, shortfalls_of: ShortfallsOf
  ) -> None:
    self._config, self._name, self._field = config, name, field
    self._shortfalls_of = shortfalls_of
    self._most = _MOST if field.most is None else field.most

  def _shortfalls(self, value: int) -> tuple[Shortfall, ...]:
    return self._shortfalls_of(_with(self._config, {self._name: value}))

  def _first(self, values: Iterator[int]) -> int | None:
    return next((value for value in values if not self._shortfalls(value)), None)

  def _is_held(self, value: int) -> bool:
    return all(x.kind != "capacity" for x in self._shortfalls(value))

  def _ceiling(self, limit: int) -> int:
    """Below `limit`, a little more than the largest value that the memories hold.

    Bisects what is monotone, the capacity; shape rules are not. 0 where no value
    is held and smaller ones need no more.
    """
    step = self._field.step
    limit = min(limit, _MOST, self._most + 1)
    held = next((x for x in _powers_below(limit) if x >= step and self._is_held(x)), None)
    if held is None:
      return 0 if self._field.larger_needs_more else min(limit - 1, _MOST_STEPS * step)
    low, high = held // step, min(2 * held, limit) // step + 1
    while high - low > 1:
      middle = (low + high) // 2
      low, high = (middle, high) if self._is_held(middle * step) else (low, middle)
    return min(limit - 1, (low + _SLACK_STEPS) * step)

  def below(self) -> int | None:
    """The largest smaller multiple of the step that runs."""
    step = self._field.step
    start = self._ceiling(self._field.value) // step * step
    stop = max(start - (_SLACK_STEPS + _MOST_STEPS) * step, 0)
    return self._first(
      itertools.chain(
        range(start, stop, -step), (x for x in _powers_below(stop + 1) if x % step == 0)
      )
    )

  def above(self) -> int | None:
    """The smallest larger multiple of the step that runs."""
    step, value = self._field.step, self._field.value
    if value >= self._most:
      return None
    start = (value // step + 1) * step
    limit = max(value, step) * _GROWTH
    ceiling = min(limit, self._ceiling(limit + 1))
    stop = min(ceiling, start + _MOST_STEPS * step)
    powers = (1 << exponent for exponent in range(stop.bit_length(), ceiling.bit_length()))
    return self._first(
      itertools.chain(
        range(start, stop + 1, step), (x for x in powers if x % step == 0 and x <= ceiling)
      )
    )


def reason(
  config: TileConfig,
  shortfalls: tuple[Shortfall, ...],
  fields: TileFields,
  shortfalls_of: ShortfallsOf,
) -> str:
  """`field=value: statement; largest field that fits is ...`.

  The config suggested passes every check, not only the one that failed first.
  Of the fields that could mend it, the one that keeps the most outputs in a
  tile is named; where even that keeps less than half, also a config that
  changes several fields and keeps more.

  Args:
    config: The config that does not run.
    shortfalls: Why, the first one first; at least one.
    fields: What may be changed.
    shortfalls_of: What another config falls short of; nothing if it runs.
  """
  first = shortfalls[0]
  if not first.fields:
    return first.statement
  outputs = _outputs(fields, {})
  best: _Option | None = None
  kept = 0
  for name in first.fields:
    field = fields[name]
    search = _Search(config, name, field, shortfalls_of)
    upwards = first.kind == "shape" or not field.larger_needs_more
    option = _Option(name, search.below(), search.above() if upwards else None)
    if option.below is None and option.above is None:
      continue
    of_option = min(_outputs(fields, {name: option.nearly_kept()}), outputs)
    # a field listed later must keep clearly more than a likelier one
    if of_option > kept * _CLEARLY_MORE:
      best, kept = option, of_option
    if kept == outputs:
      break
  if best is not None and 2 * kept >= outputs:
    return f"{best.name}={fields[best.name].value}: {first.statement}; {best.sentence()}"
  smaller = _resized(config, fields, shortfalls_of)
  if best is not None:
    head = f"{best.name}={fields[best.name].value}: {first.statement}; {best.sentence()}"
    if smaller is None or _outputs(fields, vars(smaller)) <= kept:
      return head
    return f"{head}; {smaller.describe()} fits and keeps more outputs"
  name = first.fields[0]
  head = f"{name}={fields[name].value}: {first.statement}"
  if smaller is None:
    return head
  return f"{head}; no single field mends it, {smaller.describe()} fits"


def _outputs(fields: TileFields, changed: dict[str, Any]) -> int:
  """Outputs of a tile after some fields are changed."""
  return math.prod(
    changed.get(name, field.value) for name, field in fields.items() if field.is_output
  )


def _resized(
  config: TileConfig, fields: TileFields, shortfalls_of: ShortfallsOf
) -> TileConfig | None:
  """A config of other blocks that runs; None if none is found.

  Blocks are rounded up to powers of two, which every shape rule allows, and the
  largest halved until the tile runs. Where it never does, the smallest grow.
  """
  defaults: dict[str, Any] = {x.name: x.default for x in dataclasses.fields(config)}  # type: ignore[arg-type]
  base = _with(
    config,
    {
      name: defaults[name] if field.fallback is None else field.fallback
      for name, field in fields.items()
      if not field.is_block
    },
  )
  blocks = {
    name: 1 << (min(field.value, _MOST) - 1).bit_length()
    for name, field in fields.items()
    if field.is_block
  }
  for floor in _FLOORS if blocks else ():
    sizes = {name: max(size, floor) for name, size in blocks.items()}
    while True:
      candidate: TileConfig = _with(base, sizes)
      if not shortfalls_of(candidate):
        return candidate
      largest = max(sizes, key=lambda name: sizes[name])
      if sizes[largest] <= floor:
        break
      sizes[largest] //= 2
  return None
