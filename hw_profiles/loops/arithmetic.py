"""What a nest can be run on: numbers here, expressions in `symbolic`."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Protocol

from hw_profiles.loops.nest import Combine
from hw_profiles.loops.operations import ScalarOperation
from hw_profiles.loops.rounding import Number, check_format, round_number

Index = tuple[int, ...]


class Arithmetic(Protocol):
  """Operations on the values of one run."""

  def initial(self, array: str, index: Index) -> Any:
    """The value of an element that no stage has written."""
    ...

  def apply(self, operation: ScalarOperation, values: Sequence[Any]) -> Any:
    """The operation's result."""
    ...

  def combine(self, kind: Combine, accumulated: Any, value: Any) -> Any:
    """One more term of a reduction."""
    ...

  def round(self, name: str, value: Any) -> Any:
    """The value in a number format."""
    ...


def flatten(array: str, values: object) -> dict[Index, Number]:
  """Element values by index, from a mapping or nested sequences.

  Raises:
    ValueError: a leaf is no number.
  """
  if isinstance(values, Mapping):
    return dict(values)
  if isinstance(values, Sequence) and not isinstance(values, str):
    return {
      (place, *index): value
      for place, inner in enumerate(values)
      for index, value in flatten(array, inner).items()
    }
  if isinstance(values, int | float | Fraction) and not isinstance(values, bool):
    return {(): values}
  raise ValueError(f"inputs[{array!r}]: got {values!r}; expected numbers in nested sequences")


class Numbers:
  """Exact rational arithmetic, until an operation yields a float.

  A sum is exact unless `accumulator` names a format that every partial sum is
  rounded to; only then does the order of its terms matter.
  """

  def __init__(self, inputs: Mapping[str, object], accumulator: str | None = None) -> None:
    """Takes the values of the arrays that a nest reads."""
    check_format("accumulator", accumulator)
    self._values = {array: flatten(array, values) for array, values in inputs.items()}
    self._accumulator = accumulator

  def initial(self, array: str, index: Index) -> Number:
    """The input's value; ValueError where there is none."""
    try:
      value = self._values[array][index]
    except KeyError:
      place = ", ".join(map(str, index))
      raise ValueError(f"inputs: {array}[{place}] is read and has no value") from None
    return Fraction(value) if isinstance(value, int) else value

  def apply(self, operation: ScalarOperation, values: Sequence[Number]) -> Number:
    """The function's value."""
    return operation.function(*values)

  def combine(self, kind: Combine, accumulated: Number, value: Number) -> Number:
    """The sum, rounded if there is an accumulator format, or the larger."""
    combined = _COMBINE[kind](accumulated, value)
    if kind == "sum" and self._accumulator is not None:
      return round_number(combined, self._accumulator)
    return combined

  def round(self, name: str, value: Number) -> Number:
    """The nearest number of the format."""
    return round_number(value, name)


_COMBINE: dict[Combine, Callable[[Number, Number], Number]] = {
  "sum": lambda left, right: left + right,
  "max": max,
}
