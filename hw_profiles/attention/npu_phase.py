"""Time of one attention kernel on Ascend cores, cube and vector cores a step apart."""

import dataclasses

from hw_profiles.attention.block_visits import CoreLoad
from hw_profiles.cost.device_time import DeviceTime, device_time
from hw_profiles.cost.npu_time import CoresAtWork, NpuAmounts, pipe_times_us
from hw_profiles.cost.time_term import Term, added, leaf, longest, repeated, shared
from hw_profiles.profile import NpuProfile, known


@dataclasses.dataclass(frozen=True)
class NpuPhase:
  """What the cores do in one kernel.

  Attributes:
    tiles: Of the whole problem.
    load: Of the busiest cube core with its vector cores.
    per_step: Of one step of one tile.
    per_tile: What a tile loads and stores once.
    sub_steps: Parts that a step is computed in, one behind the other.
    macs_per_cycle: Of one cube, for the dtype.
    num_stages: Sub-steps whose operands L1 holds.
    hbm_bytes: Of the whole kernel.
    cold_fraction: Share of what steps load into L1 that was not in L2 before.
  """

  tiles: int
  load: CoreLoad
  per_step: NpuAmounts
  per_tile: NpuAmounts
  sub_steps: int
  macs_per_cycle: int
  num_stages: int
  hbm_bytes: int
  cold_fraction: float = 0.0


def npu_phases_time(
  npu: NpuProfile, phases: tuple[NpuPhase, ...], *, streamed_passes: tuple[int, ...] = ()
) -> DeviceTime:
  """Estimates the device time of kernels that follow one another.

  Every pipe has its own queue and cube and vector cores work on different
  steps, so a step takes as long as its slowest pipe:

      step   max(MTE2, MTE1, cube, FixPipe, vector pipes)

  with one stage in L1 MTE2 + the rest. One tile of scores in L0C is enough: with
  UnitFlag FixPipe follows the cube at 512 B grain. The first sub-step passes
  through all pipes before they overlap, and what a tile loads and stores once
  does not overlap at all. HBM serves all cores together.

  Args:
    npu: The device.
    phases: The kernels.
    streamed_passes: Bytes of each further pass that only streams them from and
      to HBM.

  Returns:
    `times_us` of "mte2", "mte1", "cube", "fixpipe", "vector_mte2", "vector",
    "mte3", "hbm" and "launch", the sum of all kernels.
  """
  kernels = len(phases) + len(streamed_passes)
  hbm_rate = npu.hbm_bandwidth_bytes_per_s * known(npu.sustained_hbm_fraction, 1.0)
  times_us: dict[str, float] = {}
  terms: list[Term] = []
  for phase in phases:
    cores = CoresAtWork("mixed", phase.tiles, phase.macs_per_cycle, phase.cold_fraction)
    step = pipe_times_us(npu, phase.per_step, cores)
    once = pipe_times_us(npu, phase.per_tile, cores)
    hbm = leaf("hbm", phase.hbm_bytes / hbm_rate * 1e6)
    terms.append(_kernel(phase, step, once, hbm))
    for pipe in step:
      busy_us = phase.load.steps * step[pipe] + phase.load.tiles * once[pipe]
      times_us[pipe] = times_us.get(pipe, 0.0) + busy_us
    times_us["hbm"] = times_us.get("hbm", 0.0) + hbm.us
  if len(terms) == 1:
    terms = list(terms[0].parts)
  else:
    terms = [one.labelled(f"kernel {number}") for number, one in enumerate(terms, start=1)]
  for number, streamed_bytes in enumerate(streamed_passes, start=1):
    terms.append(leaf(f"streamed pass {number}", streamed_bytes / hbm_rate * 1e6))
    times_us["hbm"] = times_us.get("hbm", 0.0) + terms[-1].us
  start = leaf("start", npu.launch_overhead_us + npu.mixed_launch_us)
  launch = repeated("launch", start, (kernels, ""))
  times_us["launch"] = launch.us
  return device_time(times_us, added("predicted", launch, *terms))


def _kernel(phase: NpuPhase, step: dict[str, float], once: dict[str, float], hbm: Term) -> Term:
  """Of the busiest core and HBM: the first sub-step, then what overlaps."""
  pipes = [leaf(pipe, time) for pipe, time in step.items()]
  others = [one for one in pipes if one.name != "mte2"]
  each = (
    longest("step", *pipes)
    if phase.num_stages > 1
    else added("step", leaf("mte2", step["mte2"]), longest("after the load", *others))
  )
  of_tile = added("tile", *(leaf(f"{pipe} once", time) for pipe, time in once.items()))
  whole = added(
    "busiest core",
    repeated("steps", each, (phase.load.steps, "steps")),
    repeated("tiles", of_tile, (phase.load.tiles, "tiles")),
  )
  filled = phase.load.steps > 0
  first = shared("fill", added("all pipes of a step", *pipes), phase.sub_steps, "sub-steps")
  return added("time", *([first] if filled else []), longest("overlapped", whole, hbm))
