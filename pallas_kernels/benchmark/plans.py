"""What the planner says of the kernel that runs, as fields of a row and as cells."""

from typing import Any

import hw_profiles
from pallas_kernels.benchmark import cells
from pallas_kernels.benchmark.ops.op import Config
from pallas_kernels.benchmark.workload import Workload


def plan(
  workload: Workload,
  tile: Config,
  profile: str,
  *,
  running: hw_profiles.TilePlan | None = None,
) -> hw_profiles.TilePlan:
  """The plan of a tile on a profile.

  Args:
    workload: The whole problem.
    tile: The tile.
    profile: A profile's name.
    running: The plan of the kernel that runs here, if any. It stands where
      `profile` is the device's own, so that what is priced is what is measured;
      on any other profile the planner takes the schedule that suits it.
  """
  if running is not None and running.profile == profile:
    return running
  return workload.op.plan(workload.problem(), tile, profile)


def fields(workload: Workload, verdict: hw_profiles.TilePlan, tile: Config) -> dict[str, Any]:
  """The fields of a row that a plan fills in."""
  return {
    "tile": tile.describe(),
    "profile": verdict.profile,
    "vendor": verdict.vendor,
    "fits": verdict.fits,
    "binding": verdict.binding,
    "buffers": verdict.buffers,
    "working_set_bytes": verdict.traffic.working_set_bytes,
    "traffic_bytes": workload.op.traffic_bytes(verdict),
    "intensity_flop_per_byte": verdict.traffic.intensity,
    "resident_blocks": verdict.resident_blocks,
    "predicted_us": verdict.predicted_us,
    "bound": verdict.bound or None,
    "reason": verdict.reason or None,
  }


def fill(verdict: hw_profiles.TilePlan) -> str:
  """KiB needed of available in each memory space."""
  available = {buffer.space: buffer.available_bytes for buffer in verdict.buffers}
  return ", ".join(
    f"{space} {cells.kib(verdict.needed_bytes(space))}/{cells.kib(size)}"
    for space, size in available.items()
  )
