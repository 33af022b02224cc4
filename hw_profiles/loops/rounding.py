"""Rounding to a number format, to nearest even, of exact numbers."""

import dataclasses
import math
from fractions import Fraction

Number = int | float | Fraction


@dataclasses.dataclass(frozen=True)
class _Format:
  precision: int  # significant bits, the hidden one included
  min_exponent: int  # of the smallest normal number
  largest: Fraction
  saturates: bool


def _ieee(precision: int, max_exponent: int) -> _Format:
  largest = (2 - Fraction(1, 2 ** (precision - 1))) * Fraction(2) ** max_exponent
  return _Format(precision, 1 - max_exponent, largest, saturates=False)


_FORMATS = {
  "float32": _ieee(24, 127),
  "bfloat16": _ieee(8, 127),
  "float16": _ieee(11, 15),
  # no infinity: beyond 448 a quantiser saturates
  "float8_e4m3fn": _Format(4, -6, Fraction(448), saturates=True),
}
FORMATS: tuple[str, ...] = tuple(_FORMATS)


def check_format(argument: str, name: object) -> None:
  """Raises ValueError unless `name` is None or one of `FORMATS`."""
  if name is not None and name not in FORMATS:
    raise ValueError(f"{argument}={name!r}: expected None or one of {', '.join(FORMATS)}")


def largest_number(name: str) -> Fraction:
  """The largest finite number of format `name`.

  Raises:
    ValueError: `name` is not one of `FORMATS`.
  """
  check_format("name", name)
  return _FORMATS[name].largest


def round_number(value: Number, name: str) -> Number:
  """The number of format `name` nearest to `value`; ties go to the even one.

  Beyond the largest finite number: an infinity, in e4m3 the largest. NaN and
  infinities stay.

  Raises:
    ValueError: `name` is not one of `FORMATS`.
  """
  check_format("name", name)
  number_format = _FORMATS[name]
  if isinstance(value, float) and not math.isfinite(value):
    saturates = number_format.saturates and not math.isnan(value)
    return math.copysign(1, value) * number_format.largest if saturates else value
  exact = Fraction(value)
  if exact == 0:
    return exact
  # floor(log2 |value|), from the bit lengths and at most one correction
  exponent = abs(exact.numerator).bit_length() - exact.denominator.bit_length()
  if abs(exact) < Fraction(2) ** exponent:
    exponent -= 1
  spacing = Fraction(2) ** (max(exponent, number_format.min_exponent) - number_format.precision + 1)
  rounded = round(exact / spacing) * spacing
  if abs(rounded) <= number_format.largest:
    return rounded
  sign = 1 if exact > 0 else -1
  return sign * (number_format.largest if number_format.saturates else math.inf)
