"""Checks of keyword arguments that several models share."""

import math


def at_least(name: str, value: object, lowest: int) -> None:
  """Raises ValueError unless `value` is an int of at least `lowest`."""
  if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
    raise ValueError(f"{name}={value!r}: expected an integer of at least {lowest}")


def not_negative(name: str, value: object) -> None:
  """Raises ValueError unless `value` is a finite number of at least 0."""
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  if not is_number or not math.isfinite(value) or value < 0:  # type: ignore[arg-type,operator]
    raise ValueError(f"{name}={value!r}: expected a finite number of at least 0")


def positive(name: str, value: object) -> None:
  """Raises ValueError unless `value` is a finite number above 0."""
  not_negative(name, value)
  if value == 0:
    raise ValueError(f"{name}=0: expected a number above 0")


def ceil_div(numerator: int, denominator: int) -> int:
  """The smallest integer of at least numerator / denominator."""
  return -(-numerator // denominator)


def round_up(value: int, unit: int) -> int:
  """The smallest multiple of `unit` of at least `value`."""
  return ceil_div(value, unit) * unit
