"""Figures by matplotlib, as SVG and PNG; the same rows give the same bytes."""

import importlib.util
import io
from collections.abc import Sequence
from typing import Any

from pallas_kernels.benchmark import output
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.figures.data import (
  MEASURED,
  Figure,
  Point,
  RooflineFigure,
  SweepFigure,
)

_SIZE_INCHES = (8.0, 5.0)
_DOTS_PER_INCH = 120
# More names beside points are a blot.
_MOST_NAMED = 14
# More values are not all written below the axis.
_MOST_TICKS = 10
# From such a range on an axis counts factors.
_FACTORS = 8.0
# What matplotlib derives names of elements from, by chance unless it is given.
_SALT = "pallas-bench"


def check_installed(folder: str) -> None:
  """Refuses figures that cannot be drawn, before any work is done for them.

  Raises:
    UsageError: there is no matplotlib; says which extra has it.
  """
  if importlib.util.find_spec("matplotlib") is None:
    raise UsageError(
      f"--plot={folder}: figures are drawn by matplotlib, which is not installed;"
      ' pip install "pallas-kernels[report]"'
    )


def write(figures: Sequence[Figure], folder: str) -> list[str]:
  """Writes each figure as SVG and PNG into the folder, which is made; the paths.

  Raises:
    UsageError: a file could not be written.
  """
  paths = []
  for figure in figures:
    for kind in ("svg", "png"):
      content = drawn(figure, kind)
      paths.append(output.write_into(content, f"{figure.name}.{kind}", folder, flag="plot"))
  return paths


def drawn(figure: Figure, kind: str) -> bytes:
  """The bytes of a figure: "svg" or "png"."""
  import matplotlib
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure as Canvas

  with matplotlib.rc_context({"svg.hashsalt": _SALT, "svg.fonttype": "none"}):
    canvas = Canvas(figsize=_SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    if isinstance(figure, RooflineFigure):
      _roofline(axes, figure)
    else:
      _sweep(axes, figure)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize=8)
    file = io.BytesIO()
    canvas.savefig(
      file, format=kind, dpi=_DOTS_PER_INCH, metadata={"Date": None} if kind == "svg" else None
    )
  return file.getvalue()


def _roofline(axes: Any, figure: RooflineFigure) -> None:
  intensities = [point.intensity for point in figure.points]
  ridges = [figure.peak_flops_per_s / rate for rate in figure.bandwidth_bytes_per_s.values()]
  left = min(intensities + ridges) / 4
  right = max(intensities + ridges) * 4
  peak = figure.peak_flops_per_s
  for (tier, rate), style in zip(figure.bandwidth_bytes_per_s.items(), ("-", "--"), strict=False):
    ridge = peak / rate
    # a roof is two straight lines where both axes count factors
    corners = sorted({left, min(max(ridge, left), right), right})
    axes.plot(
      corners,
      [min(peak, rate * at) / 1e12 for at in corners],
      style,
      color="black",
      linewidth=1,
      label=f"{tier} {rate / 1e12:.2f} TB/s, ridge {ridge:,.0f} FLOP/B",
    )
  for (kernel, kind), points in _by_series(figure.points).items():
    axes.plot(
      [point.intensity for point in points],
      [point.flops_per_s / 1e12 for point in points],
      "o" if kind == MEASURED else "x",
      label=f"{kernel}, {kind}",
    )
  named = dict.fromkeys((p.tile, p.intensity, p.flops_per_s) for p in figure.points if p.tile)
  for tile, intensity, rate in named if len(named) <= _MOST_NAMED else ():
    axes.annotate(
      tile,
      (intensity, rate / 1e12),
      textcoords="offset points",
      xytext=(5, -8),
      fontsize=7,
    )
  axes.set_xscale("log")
  axes.set_yscale("log")
  axes.set_xlabel("FLOP per byte between the working buffers and the next tier")
  axes.set_ylabel("TFLOP/s")
  axes.set_title(f"{figure.title}: peak {peak / 1e12:,.1f} TFLOP/s")


def _by_series(points: Sequence[Point]) -> dict[tuple[str, str], list[Point]]:
  series: dict[tuple[str, str], list[Point]] = {}
  for point in points:
    series.setdefault((point.kernel, point.kind), []).append(point)
  return series


def _sweep(axes: Any, figure: SweepFigure) -> None:
  for curve in figure.curves:
    axes.plot(
      curve.at,
      curve.time_us,
      "o-" if curve.kind == MEASURED else "x--",
      label=f"{curve.label}, {curve.kind}",
    )
  swept = [value for curve in figure.curves for value in curve.at]
  times = [time for curve in figure.curves for time in curve.time_us]
  if min(swept) > 0 and max(swept) / min(swept) >= _FACTORS:
    axes.set_xscale("log", base=2)
  if len(set(swept)) <= _MOST_TICKS:
    axes.set_xticks(sorted(set(swept)), [str(value) for value in sorted(set(swept))])
    axes.minorticks_off()
  if max(times) / min(times) >= _FACTORS:
    axes.set_yscale("log")
  else:
    axes.set_ylim(bottom=0)
  axes.set_xlabel(figure.swept)
  axes.set_ylabel("us")
  axes.set_title(figure.title, fontsize=10)
