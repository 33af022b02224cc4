"""What the planner says of the kernel that runs, as fields of a row and as cells."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import hw_profiles
from hw_profiles.cost.arithmetic import multiply_rate, priced_as_float32
from hw_profiles.planner.op_registry import op_name
from hw_profiles.validation import recorded
from pallas_kernels.benchmark import cells
from pallas_kernels.benchmark.ops.op import Config
from pallas_kernels.benchmark.workload import Workload

WELL_TUNED = (
  "predicted us: the time of a well-tuned kernel with that tile; the kernels here may be slower"
)
RANKED_FIRST = "first of the planner's own candidates for that profile"
RANKED_FIRST_LEGEND = f"* {RANKED_FIRST}; of predictions too close to tell apart, the fewest bytes"


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


@dataclasses.dataclass(frozen=True)
class Floor:
  """What no kernel is faster than on a device.

  Attributes:
    time_us: The longer of arithmetic and memory at their data-sheet peaks.
    flops: Of the problem's matrix products; 0 where it has none.
    sentence: The two times, and what they are of.
  """

  time_us: float
  flops: int
  sentence: str


@functools.lru_cache(maxsize=256)
def floor(workload: Workload, profile: str) -> Floor:
  """Each operand read once, each result written once, each product at the peak of its dtype."""
  device, problem = hw_profiles.get_profile(profile), workload.problem()
  moved = workload.op.once_through_bytes(workload.shape, workload.dtype, workload.options)
  memory_us = moved / device.memory_bandwidth_bytes_per_s * 1e6
  memory = (
    f"{cells.mib(moved)} MiB moved once {memory_us:,.1f} us"
    f" ({device.memory_bandwidth_bytes_per_s / 1e12:.2f} TB/s)"
  )
  flops: int = getattr(problem, "flops", 0)
  peak = _peak_flops(problem, device) if flops else None
  if peak is None:
    return Floor(memory_us, 0, memory)
  arithmetic_us = flops / peak * 1e6
  arithmetic = f"{flops / 1e9:,.1f} GFLOP take {arithmetic_us:,.1f} us ({peak / 1e12:,.1f} TFLOP/s)"
  return Floor(max(arithmetic_us, memory_us), flops, f"{arithmetic}, {memory}")


def _peak_flops(
  problem: Any, device: hw_profiles.GpuProfile | hw_profiles.NpuProfile
) -> float | None:
  """Of what multiplies the problem's operands; None where the device has nothing that does."""
  if isinstance(device, hw_profiles.NpuProfile):
    return device.peak_flops.get(problem.dtype)
  rate = multiply_rate(problem.dtype, device)
  return None if rate is None else rate.flops_per_s


def _as_float32(verdict: hw_profiles.TilePlan) -> str | None:
  """The plan's note that its dtype is multiplied as float32; None where it is not."""
  device = hw_profiles.get_profile(verdict.profile)
  if not verdict.fits or isinstance(device, hw_profiles.NpuProfile):
    return None
  note = priced_as_float32(verdict.problem.dtype, device)
  return note if note in verdict.notes else None


def bound(verdict: hw_profiles.TilePlan) -> str:
  """What binds the time, marked where the device has no tensor cores for the dtype."""
  return (verdict.bound or "-") + ("" if _as_float32(verdict) is None else " !")


def bound_legend(verdicts: Iterable[hw_profiles.TilePlan]) -> list[str]:
  """What the mark of `bound` means, a line a profile."""
  notes = dict.fromkeys(map(_as_float32, verdicts))
  return [f"! {note}" for note in notes if note is not None]


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


def checked_with_another(
  checked_with: str | None, priced: hw_profiles.TilePlan, running: hw_profiles.TilePlan | None
) -> tuple[str, ...]:
  """A note where a row's check is of another kernel than its plan."""
  if checked_with is None or priced is running:
    return ()
  return (f"checked with: {checked_with}, not the kernel that is priced on {priced.profile}",)


def model_error(workload: Workload, profile: str) -> hw_profiles.ModelError | None:
  """How far the op's time model was from measurements; None where there were none."""
  return recorded.recorded_error(op_name(workload.problem()), hw_profiles.get_profile(profile))


def trust(workload: Workload, profile: str) -> str:
  """What a predicted time of the op on a profile is worth, in one sentence.

  A library picks its own tile, and the model its best: that comparison says how
  good this one time is, and nothing of a tile that somebody names. Of named tiles
  the rows that say which tile ran tell, where there are any.
  """
  error = model_error(workload, profile)
  if error is None:
    return f"{profile}: estimate; never compared with a measured {workload.op.name}"
  return f"{profile}: estimate; {compared(error)}"


def compared(error: hw_profiles.ModelError) -> str:
  """What the model was held against, and how far it was from it."""
  best = "the model's best tiles "
  if error.best_tiles is None:
    best += "were not compared with libraries"
  else:
    best += f"against measured libraries: {_spread(error.best_tiles)}"
  if error.named_tiles is None:
    return f"{best}; single tiles were not measured"
  return f"{best}; single measured tiles: {_spread(error.named_tiles)}"


def _spread(errors: recorded.RelativeErrors) -> str:
  return (
    f"median {100 * errors.median:.0f} %, worst {100 * errors.largest:.0f} % over"
    f" {errors.row_count} rows"
  )


def fill(verdict: hw_profiles.TilePlan) -> str:
  """KiB needed of available in each memory space."""
  available = {buffer.space: buffer.available_bytes for buffer in verdict.buffers}
  return ", ".join(
    f"{space} {cells.kib(verdict.needed_bytes(space))}/{cells.kib(size)}"
    for space, size in available.items()
  )
