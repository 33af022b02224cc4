"""What the planner says, as fields of a row and as cells for people."""

from collections.abc import Sequence
from typing import Any

import hw_profiles
from hw_profiles import MatmulConfig
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.parsing import Shape

KIB = 1024
MIB = 1024 * 1024


def problem(options: Options, shape: Shape, dtype: str) -> hw_profiles.MatmulProblem:
  """The planner's description of one problem of the command line."""
  return hw_profiles.MatmulProblem(
    m=shape.m,
    k=shape.k,
    n=shape.n,
    dtype=dtype,
    out_dtype=options.out_dtype,
    bias=options.bias,
    activation=options.activation,
    batch=1 if shape.batch is None else shape.batch,
  )


def plan(what: hw_profiles.MatmulProblem, tile: MatmulConfig, profile: str) -> hw_profiles.TilePlan:
  """The planner's verdict on one tile; a tile that does not fit has its reason in it."""
  return hw_profiles.plan(what, tile, hw_profiles.get_profile(profile))


def best(what: hw_profiles.MatmulProblem, profile: str) -> MatmulConfig | None:
  """The tile the planner ranks first on a profile; None where none fits."""
  ranked = hw_profiles.rank(what, hw_profiles.get_profile(profile), top=1)
  return ranked[0].config if ranked and ranked[0].fits else None


def fields(verdict: hw_profiles.TilePlan) -> dict[str, Any]:
  """The fields of a row that a plan fills in; traffic is that of the whole batch."""
  return {
    "tile": verdict.config.describe(),
    "profile": verdict.profile,
    "vendor": verdict.vendor,
    "fits": verdict.fits,
    "binding": verdict.binding,
    "buffers": verdict.buffers,
    "working_set_bytes": verdict.traffic.working_set_bytes,
    "traffic_bytes": verdict.traffic.total_bytes * verdict.problem.batch,
    "intensity_flop_per_byte": verdict.traffic.intensity,
    "resident_blocks": verdict.resident_blocks,
    "predicted_us": verdict.predicted_us,
    "bound": verdict.bound or None,
    "reason": verdict.reason or None,
  }


def short(tile: MatmulConfig) -> str:
  """`block_m x block_n x block_k / num_stages`, and the other fields that are not default."""
  sizes = f"{tile.block_m}x{tile.block_n}x{tile.block_k}/{tile.num_stages}"
  rest = [
    part
    for part in tile.describe().split(",")
    if part.partition("=")[0] not in ("block_m", "block_n", "block_k", "num_stages")
  ]
  return " ".join([sizes, *rest])


SHORT_LEGEND = "tile: block_m x block_n x block_k / num_stages"

CHECK_LEGEND = (
  "error/bound: the largest error as a share of its element's bound, at most 1 to pass; max ULP "
  "counts in units of the exact value's last place, and is large where a sum cancels to little"
)


def fill(verdict: hw_profiles.TilePlan) -> str:
  """KiB needed of available in each memory space."""
  available = {buffer.space: buffer.available_bytes for buffer in verdict.buffers}
  return ", ".join(
    f"{space} {kib(verdict.needed_bytes(space))}/{kib(size)}" for space, size in available.items()
  )


def kib(size_bytes: int) -> str:
  """Bytes in KiB, a decimal only where there is one, two digits below 1."""
  value = size_bytes / KIB
  return f"{value:.1f}".removesuffix(".0") if value >= 1 else f"{value:.2g}"


def mib(size_bytes: int) -> str:
  """Bytes in MiB, whole ones from 10 on, three digits below."""
  value = size_bytes / MIB
  return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def number(value: float | None, digits: int = 1) -> str:
  """A number for a person, or a dash."""
  return "-" if value is None else f"{value:,.{digits}f}"


def ulps(value: float | None) -> str:
  """A distance in last places for a person, short where it is enormous, or a dash."""
  if value is None:
    return "-"
  return f"{value:.2f}" if value < 1000 else f"{value:.1e}"


def scientific(value: float | None) -> str:
  """A small number for a person, or a dash."""
  return "-" if value is None else f"{value:.1e}"


def yes_no(value: bool | None) -> str:
  """yes, no, or a dash."""
  return "-" if value is None else ("yes" if value else "no")


def names(values: Sequence[str] | None) -> str:
  """A list of names, or a dash."""
  return ", ".join(values) if values else "-"
