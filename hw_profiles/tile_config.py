"""What every op's tile configuration has in common."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol


class TileConfig(Protocol):
  """A tile configuration: a frozen dataclass of integers, one class an op.

  Fields that only one schedule reads are None by default, and the schedule
  derives them.
  """

  @property
  def num_stages(self) -> int:
    """Operand tiles held at once; 1: copies and compute take turns."""
    ...

  def describe(self) -> str:
    """The config as `name=value` pairs, defaults left out: what `--tile` takes."""
    ...


@dataclasses.dataclass(frozen=True)
class TileField:
  """How one field of a config may be changed so that the tile fits.

  Attributes:
    value: The field, or what it means where it is None.
    step: Only multiples of this are worth suggesting.
    larger_needs_more: Whether a larger value needs more of every memory; if
      not, larger values are suggested, too.
    is_block: Whether it is a side of the tile. Where no single field mends a
      config, the sides are halved, largest first, until it fits.
    is_output: Whether the outputs of a tile are a multiple of it; remedies keep
      the product of such fields large.
    fallback: Value of a field that is no side in that search; None: its default.
    most: A rule of the op refuses every value above this, whatever the memories
      hold, so none is tried; None: there is no such rule.
  """

  value: int
  step: int = 1
  larger_needs_more: bool = False
  is_block: bool = False
  is_output: bool = False
  fallback: int | None = None
  most: int | None = None


TileFields = Mapping[str, TileField]


def describe(config: Any) -> str:
  """`name=value` pairs of a config dataclass; defaults but that of num_stages left out."""
  parts = []
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    if field.name == "num_stages" or value != field.default:
      parts.append(f"{field.name}={value}")
  return ",".join(parts)
