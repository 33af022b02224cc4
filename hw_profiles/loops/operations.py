"""What a statement computes from its sources: named functions of numbers."""

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction

from hw_profiles.loops.rounding import Number, largest_number, round_number

QUANTIZED = "float8_e4m3fn"


@dataclasses.dataclass(frozen=True)
class ScalarOperation:
  """A function of numbers; exact where its result is rational.

  Attributes:
    name: What expressions call it: two operations of one name are the same.
    function: Takes one number for each source.
  """

  name: str
  function: Callable[..., Number] = dataclasses.field(compare=False)


def _silu(value: Number) -> Number:
  x = float(value)
  # exp of a positive number could overflow, so the sign decides the form
  if x >= 0:
    return x / (1 + math.exp(-x))
  if x == -math.inf:
    return 0.0
  return x * math.exp(x) / (1 + math.exp(x))


def _exact(value: Number) -> Number:
  return value if isinstance(value, float) and not math.isfinite(value) else Fraction(value)


def _e4m3_scale(row_maximum: Number) -> Fraction:
  # a row of zeros has scale 1
  return Fraction(row_maximum) / largest_number(QUANTIZED) if row_maximum else Fraction(1)


def _quantize(value: Number, row_maximum: Number) -> Number:
  return _exact(value) / _e4m3_scale(row_maximum)


def _through_e4m3(value: Number, row_maximum: Number) -> Number:
  return round_number(_quantize(value, row_maximum), QUANTIZED) * _e4m3_scale(row_maximum)


COPY = ScalarOperation("copy", lambda value: value)
ABSOLUTE = ScalarOperation("abs", abs)
MULTIPLY = ScalarOperation("multiply", lambda left, right: left * right)
SILU = ScalarOperation("silu", _silu)
QUANTIZE = ScalarOperation("quantize", _quantize)
THROUGH_E4M3 = ScalarOperation("through_e4m3", _through_e4m3)
