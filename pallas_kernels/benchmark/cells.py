"""Numbers and tiles as text for people."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

KIB = 1024
MIB = 1024 * 1024

CHECK_LEGEND = (
  "error/bound: the largest error as a share of its element's bound, at most 1 to pass; near 1 is "
  "normal for a 16-bit result, whose bound is then mostly its final rounding; relative error: of "
  "the whole result, Frobenius norms"
)


def _size_fields(config_class: Any) -> tuple[list[str], bool]:
  """The block sizes that every tile of a config has, and whether it has stages."""
  fields = dataclasses.fields(config_class)
  blocks = [
    field.name for field in fields if field.name.startswith("block_") and field.default is not None
  ]
  return blocks, any(field.name == "num_stages" for field in fields)


def short_tile(tile: Any) -> str:
  """Block sizes / stages, and the other fields that are not default, of any op's config."""
  blocks, staged = _size_fields(tile)
  sizes = "x".join(str(getattr(tile, name)) for name in blocks)
  if staged:
    sizes += f"/{tile.num_stages}"
  rest = [
    part
    for part in tile.describe().split(",")
    if part.partition("=")[0] not in (*blocks, "num_stages")
  ]
  return " ".join([sizes, *rest])


def tile_legend(config_class: Any) -> str:
  """What the numbers of `short_tile` are."""
  blocks, staged = _size_fields(config_class)
  return f"tile: {' x '.join(blocks)}{' / num_stages' if staged else ''}"


def kib(size_bytes: int) -> str:
  """Bytes in KiB, a decimal only where there is one, two digits below 1."""
  value = size_bytes / KIB
  return f"{value:.1f}".removesuffix(".0") if value >= 1 else f"{value:.2g}"


def mib(size_bytes: int) -> str:
  """Bytes in MiB, whole ones from 10 on, three digits below."""
  value = size_bytes / MIB
  return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def mib_exact(size_bytes: int) -> str:
  """Bytes in MiB, to a tenth where they are not whole."""
  return f"{size_bytes / MIB:,.1f}".removesuffix(".0")


def optional_bytes(value: int | None) -> str:
  """Bytes for a person, or a dash."""
  return "-" if value is None else f"{value:,}"


def number(value: float | None, digits: int = 1) -> str:
  """A number for a person, or a dash."""
  return "-" if value is None else f"{value:,.{digits}f}"


def milliseconds(time_us: float | None, digits: int = 2) -> str:
  """Milliseconds with so many decimals, or two digits where those hold fewer; or a dash."""
  if time_us is None or not 0 < abs(time_us) < 1e3 * 10.0 ** (1 - digits):
    return number(None if time_us is None else time_us / 1e3, digits)
  return f"{time_us / 1e3:.2g}"


def scientific(value: float | None) -> str:
  """A small number for a person, or a dash."""
  return "-" if value is None else f"{value:.1e}"


def yes_no(value: bool | None) -> str:
  """yes, no, or a dash."""
  return "-" if value is None else ("yes" if value else "no")


def names(values: Sequence[str] | None) -> str:
  """A list of names, or a dash."""
  return ", ".join(values) if values else "-"


def pairs(values: Mapping[str, float], unit: int = 1) -> str:
  """`name number` of each, in units of `unit`."""
  return ", ".join(f"{name} {value / unit:,.1f}" for name, value in values.items()) or "none"
