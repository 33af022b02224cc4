"""Inputs on which two nests give different results, found by trying and made small."""

import dataclasses
import math
import random
from collections.abc import Iterable, Mapping
from fractions import Fraction

from hw_profiles.frozen_map import FrozenMap
from hw_profiles.loops.arithmetic import Index, flatten
from hw_profiles.loops.interpreter import run
from hw_profiles.loops.nest import LoopNest
from hw_profiles.loops.rounding import Number

# all of them bfloat16 numbers: products of 1 + 2^-7 need more bits than bfloat16 has,
# 10 and 1 are far enough apart for a shared 8-bit scale to matter, and 2^-24 is half
# the spacing of float32 at 1
TRIED_VALUES: tuple[Fraction, ...] = (
  *map(Fraction, (1, -1, 0, 2, 10)),
  1 + Fraction(1, 2**7),
  Fraction(1, 2**24),
)
ATTEMPTS = 100


@dataclasses.dataclass(frozen=True)
class Witness:
  """Inputs, and one element that two nests then compute differently.

  Attributes:
    inputs: Array to index to value; `run` takes it as it is.
    array: The result.
    index: The element.
    original: What the original nest gives.
    changed: What the changed one gives.
    accumulator: Format of partial sums in both runs; None: exact.
  """

  inputs: FrozenMap[str, FrozenMap[Index, Number]]
  array: str
  index: Index
  original: Number
  changed: Number
  accumulator: str | None = None

  def __str__(self) -> str:
    values = ", ".join(
      f"{array}[{', '.join(map(str, index))}]={float(value):g}"
      for array, elements in self.inputs.items()
      for index, value in sorted(elements.items())
      if value
    )
    place = ", ".join(map(str, self.index))
    return (
      f"with {values or 'zeros'}{', all else 0' if values else ''},"
      f" {self.array}[{place}] is {float(self.original):.10g}"
      f" and becomes {float(self.changed):.10g}"
    )


def compare_on(
  original: LoopNest,
  changed: LoopNest,
  inputs: Mapping[str, object],
  *,
  accumulator: str | None = None,
) -> Witness | None:
  """Runs both nests; the first differing element of a result, or None.

  Args:
    original: Its results are compared.
    changed: The nest held against it.
    inputs: As `run` takes them.
    accumulator: Format of partial sums; None: exact.

  Raises:
    ValueError: an input is missing or a nest too large to run.
  """
  before = run(original, inputs, accumulator=accumulator).arrays
  after = run(changed, inputs, accumulator=accumulator).arrays
  for array in original.results:
    for index, value in sorted(before[array].items()):
      other = after.get(array, {}).get(index, math.nan)
      both_nan = value != value and other != other
      if value != other and not both_nan:
        frozen = FrozenMap(
          {name: FrozenMap(flatten(name, values)) for name, values in inputs.items()}
        )
        return Witness(frozen, array, index, value, other, accumulator)
  return None


def find_witness(
  original: LoopNest,
  changed: LoopNest,
  elements: Iterable[tuple[str, Index]],
  *,
  accumulator: str | None = None,
) -> Witness | None:
  """Tries values until the nests differ, then as many zeros and ones as still do.

  Deterministic: the same nests give the same witness.

  Args:
    original: The nest that is right.
    changed: The nest held against it.
    elements: Every element that either reads and does not write.
    accumulator: Format of partial sums; None: exact.
  """
  places = sorted(set(elements))
  for attempt in range(ATTEMPTS):
    chooser = random.Random(attempt)
    chosen = {place: chooser.choice(TRIED_VALUES) for place in places}
    found = compare_on(original, changed, _nested(chosen), accumulator=accumulator)
    if found is not None:
      return _simplified(original, changed, chosen, found)
  return None


def _nested(chosen: Mapping[tuple[str, Index], Fraction]) -> dict[str, dict[Index, Fraction]]:
  inputs: dict[str, dict[Index, Fraction]] = {}
  for (array, index), value in chosen.items():
    inputs.setdefault(array, {})[index] = value
  return inputs


def _simplified(
  original: LoopNest,
  changed: LoopNest,
  chosen: dict[tuple[str, Index], Fraction],
  found: Witness,
) -> Witness:
  for place in chosen:
    for simple in (Fraction(0), Fraction(1)):
      if chosen[place] == simple:
        break
      simpler = {**chosen, place: simple}
      witness = compare_on(original, changed, _nested(simpler), accumulator=found.accumulator)
      if witness is not None:
        chosen, found = simpler, witness
        break
  return found
