"""What the figures of a task show: rooflines with points, and curves of what was swept.

A roofline has one point for each row of a product: FLOP over the bytes between
the working buffers and the next tier across, FLOP a second up. Those bytes come
from L2 where it holds them, so there is a roof for it beside the memory's.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

import hw_profiles
from hw_profiles import NpuProfile
from hw_profiles.cost.arithmetic import priced_as_float32
from pallas_kernels.benchmark import ops
from pallas_kernels.benchmark.ops.rowwise import RowsOp
from pallas_kernels.benchmark.rows import Record, Row

# Fewer values are no sweep.
_LEAST_SWEPT = 3

# The tiers that a working buffer is filled from: of a GPU, of an Ascend core.
_TIERS = {"nvidia": {"dram": "DRAM", "l2": "L2"}, "huawei": {"hbm": "HBM", "l1": "L2"}}

PREDICTED, MEASURED = "predicted", "measured"


@dataclasses.dataclass(frozen=True)
class Point:
  """A row under a roofline.

  Attributes:
    kernel: The op.
    tile: Blocks and stages.
    kind: "predicted" or "measured".
    intensity: FLOP per byte at the working buffers.
    flops_per_s: FLOP over the time.
  """

  kernel: str
  tile: str
  kind: str
  intensity: float
  flops_per_s: float


@dataclasses.dataclass(frozen=True)
class RooflineFigure:
  """A device's roofs for a dtype, and the rows under them.

  Attributes:
    name: Of the file.
    title: Device and dtype.
    peak_flops_per_s: Dense peak.
    bandwidth_bytes_per_s: Tier to its bandwidth.
    points: The rows.
  """

  name: str
  title: str
  peak_flops_per_s: float
  bandwidth_bytes_per_s: Mapping[str, float]
  points: tuple[Point, ...]


@dataclasses.dataclass(frozen=True)
class Curve:
  """Times over what was swept.

  Attributes:
    label: Profile, or the peer that was measured.
    kind: "predicted" or "measured".
    at: Values of what was swept, in order.
    time_us: The time at each, of the quickest tile shown there.
  """

  label: str
  kind: str
  at: tuple[int, ...]
  time_us: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class SweepFigure:
  """Curves over one size, or one field of a tile.

  Attributes:
    name: Of the file.
    title: What stays as it is.
    swept: The size or field.
    curves: One for each profile, and for each peer.
  """

  name: str
  title: str
  swept: str
  curves: tuple[Curve, ...]


Figure = RooflineFigure | SweepFigure


def figures(records: Iterable[Record]) -> tuple[Figure, ...]:
  """Every figure that the rows of a task give."""
  rows = [row for row in records if isinstance(row, Row)]
  return (*rooflines(rows), *sweeps(rows))


def rooflines(rows: Sequence[Row]) -> tuple[RooflineFigure, ...]:
  """One for each profile and dtype that has products with a time."""
  found: dict[tuple[str, str], list[Row]] = {}
  for row in rows:
    # row-wise arithmetic is not what the peak is of
    product = not isinstance(ops.get(row.kernel), RowsOp)
    if product and row.profile and row.intensity_flop_per_byte and row.traffic_bytes:
      found.setdefault((row.profile, row.dtype), []).append(row)
  made = []
  for (profile, dtype), own in found.items():
    priced = _priced_dtype(profile, dtype)
    points = tuple(point for row in own for point in _points(row))
    if priced is None or not points:
      continue
    device = hw_profiles.get_profile(profile)
    tiers = hw_profiles.memory_tiers(device)
    bandwidth = {
      told: rate
      for name, told in _TIERS[device.vendor].items()
      if (rate := tiers[name].bandwidth_bytes_per_s) is not None
    }
    as_float32 = "" if priced == dtype else f", priced as {priced}"
    made.append(
      RooflineFigure(
        name=f"roofline-{profile}-{dtype}",
        title=f"{profile}, {dtype}{as_float32}",
        peak_flops_per_s=device.peak_flops[priced],
        bandwidth_bytes_per_s=bandwidth,
        points=points,
      )
    )
  return tuple(made)


def _priced_dtype(profile: str, dtype: str) -> str | None:
  """The dtype whose peak bounds the products; None where the device has no rate for them."""
  device = hw_profiles.get_profile(profile)
  if dtype in device.peak_flops:
    return dtype
  if isinstance(device, NpuProfile) or priced_as_float32(dtype, device) is None:
    return None
  return "float32"


def _points(row: Row) -> list[Point]:
  assert row.intensity_flop_per_byte is not None
  assert row.traffic_bytes is not None
  flops = row.intensity_flop_per_byte * row.traffic_bytes
  # gradients run behind the result, which alone the plan's operations are of
  measured_us = None if "--backward" in row.arguments.split() else row.measured_us
  times = {PREDICTED: row.predicted_us, MEASURED: measured_us}
  return [
    Point(row.kernel, _short(row.tile), kind, row.intensity_flop_per_byte, flops / time_us * 1e6)
    for kind, time_us in times.items()
    if time_us
  ]


def _short(tile: str | None) -> str:
  """Blocks and stages of a tile as `--tile` takes it: 128x256x64/4."""
  blocks = re.findall(r"block_\w+=(\d+)", (tile or "").partition(",epilogue_block")[0])
  stages = re.search(r"num_stages=(\d+)", tile or "")
  return "x".join(blocks) + (f"/{stages[1]}" if stages else "")


def sweeps(rows: Sequence[Row]) -> tuple[SweepFigure, ...]:
  """Curves over the one size that differs between rows, or over the one field of their tiles."""
  found: dict[tuple[str, str], list[Row]] = {}
  for row in rows:
    found.setdefault((row.kernel, row.dtype), []).append(row)
  made: list[SweepFigure] = []
  for (kernel, dtype), own in found.items():
    swept = _swept([_numbers(row.shape) for row in own])
    if swept is not None:
      rest = _without(own[0].shape, swept)
      made.append(
        SweepFigure(
          name=f"sweep-{kernel}-{dtype}-{swept}",
          title=f"{kernel} {rest} {dtype}: the quickest tile shown",
          swept=swept,
          curves=_curves([(_numbers(row.shape)[swept], row) for row in own]),
        )
      )
    for shape in dict.fromkeys(row.shape for row in own):
      tiled = [row for row in own if row.shape == shape and row.tile is not None]
      swept = _swept([_numbers(row.tile or "") for row in tiled])
      if swept is not None:
        rest = _without(tiled[0].tile or "", swept)
        made.append(
          SweepFigure(
            name=f"sweep-{kernel}-{dtype}-{shape}-{swept}",
            title=f"{kernel} {shape} {dtype}\n{rest}",
            swept=swept,
            curves=_curves([(_numbers(row.tile or "")[swept], row) for row in tiled]),
          )
        )
  return tuple(figure for figure in made if figure.curves)


def _numbers(text: str) -> dict[str, int]:
  """The whole numbers of `name=value` lists."""
  return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)(?=,|$)", text)}


def _without(text: str, name: str) -> str:
  return ",".join(part for part in text.split(",") if part.partition("=")[0] != name)


def _swept(numbers: Sequence[Mapping[str, int]]) -> str | None:
  """The one name of which there are several values, at least three; None: there is no such."""
  values: dict[str, set[int | None]] = {}
  for name in {name for one in numbers for name in one}:
    values[name] = {one.get(name) for one in numbers}
  several = [name for name, found in values.items() if len(found) > 1]
  if len(several) != 1 or None in values[several[0]] or len(values[several[0]]) < _LEAST_SWEPT:
    return None
  return several[0]


def _curves(at: Sequence[tuple[int, Row]]) -> tuple[Curve, ...]:
  """The quickest row at each value: predicted by profile, measured by what ran."""
  best: dict[tuple[str, str], dict[int, float]] = {}

  def take(label: str, kind: str, value: int, time_us: float | None) -> None:
    if time_us:
      own = best.setdefault((label, kind), {})
      own[value] = min(time_us, own.get(value, time_us))

  for value, row in at:
    if row.profile is not None:
      take(row.profile, PREDICTED, value, row.predicted_us)
    take(row.implementation or row.profile or "?", MEASURED, value, row.measured_us)
  return tuple(
    Curve(label, kind, tuple(sorted(own)), tuple(own[value] for value in sorted(own)))
    for (label, kind), own in best.items()
  )
