"""Time of one attention kernel on SMs, whose tiles differ in length."""

import dataclasses

from hw_profiles.arguments import ceil_div
from hw_profiles.attention.block_visits import CoreLoad
from hw_profiles.cost.device_time import DeviceTime, device_time, unknown_rates
from hw_profiles.cost.sm_time import Arithmetic, SmAmounts, resource_times_us
from hw_profiles.profile import GpuProfile, known


@dataclasses.dataclass(frozen=True)
class SmPhase:
  """What the SMs do in one kernel.

  Attributes:
    tiles: Programs of the whole problem.
    load: Of the busiest SM.
    per_step: Of one step of one program.
    per_tile: What a program does once: loads what it keeps, stores its result.
    flops_per_s: What the arithmetic that does `flops` reaches at best, all SMs together.
    arithmetic: What that is.
    exposed_softmax: Share of a step's exponentials and instructions that no
      product runs beside.
    step_overhead_us: What a step costs whatever its size.
    dram_bytes: Of the whole kernel.
    resident_blocks: Programs an SM holds.
    num_stages: Steps whose loads a program keeps in flight.
    chain_us: What a step takes at least from its loads' arrival to its end, where
      products are so small that waiting for one another is all they take; the
      stage that it reads is no load in flight. 0: nothing is charged.
  """

  tiles: int
  load: CoreLoad
  per_step: SmAmounts
  per_tile: SmAmounts
  flops_per_s: float
  arithmetic: Arithmetic
  exposed_softmax: float
  step_overhead_us: float
  dram_bytes: int
  resident_blocks: int
  num_stages: int
  chain_us: float = 0.0


def sm_phases_time(
  gpu: GpuProfile,
  phases: tuple[SmPhase, ...],
  *,
  streamed_passes: tuple[int, ...] = (),
  serial_us: float = 0.0,
) -> DeviceTime:
  """Estimates the device time of kernels that follow one another.

  A step of the busiest SM takes

      max(products + exposed·softmax, softmax) + overhead

  with softmax = special functions + CUDA cores; its steps overlap with shared
  memory, L2, DRAM and the wait for each slot as in `sm_time`. Each program then
  loads and stores what it does once, and waits for its first block; programs
  that share an SM hide each other's but for the last.

  Args:
    gpu: The device.
    phases: The kernels.
    streamed_passes: Bytes of each further pass that only streams them from and
      to device memory.

  Returns:
    `times_us` of "tensor_cores" or "cuda_cores", "special_functions",
    "cuda_cores", "shared_memory", "l2", "dram", "latency", "fill", "epilogue"
    and "launch", the sum of all kernels; `total_us` adds for each kernel fill,
    the longest of those that overlap, and epilogue.
  """
  kernels = len(phases) + len(streamed_passes)
  following_us = gpu.launch_gap_us + gpu.stream_launch_us
  launch_us = known(gpu.launch_overhead_us, 0.0) + max(kernels - 1, 0) * following_us
  times_us = {"launch": launch_us}
  # what the total is the sum of, by the resource that sets each part
  set_by_us = {"launch": launch_us}
  for phase in phases:
    parts, setting = _phase_us(gpu, phase)
    for totals, of_phase in ((times_us, parts), (set_by_us, setting)):
      for name, time_us in of_phase.items():
        totals[name] = totals.get(name, 0.0) + time_us
  for streamed_bytes in streamed_passes:
    for totals in (times_us, set_by_us):
      totals["dram"] = totals.get("dram", 0.0) + streamed_bytes / _dram_rate(gpu) * 1e6
  if serial_us:
    for totals in (times_us, set_by_us):
      totals["latency"] = totals.get("latency", 0.0) + serial_us
  return device_time(
    times_us,
    sum(set_by_us.values()),
    bound=max(set_by_us, key=lambda name: set_by_us[name]),
    # the launches of further kernels are known, and part of the total
    unknown=unknown_rates(gpu, l2="l2_bandwidth_bytes_per_s", launch="launch_overhead_us"),
  )


def _dram_rate(gpu: GpuProfile) -> float:
  return gpu.dram_bandwidth_bytes_per_s * known(gpu.sustained_dram_fraction, 1.0)


def _phase_us(gpu: GpuProfile, phase: SmPhase) -> tuple[dict[str, float], dict[str, float]]:
  """Busy time of each resource, and the parts that add up, by what sets each."""
  step = resource_times_us(gpu, phase.per_step, phase.flops_per_s, phase.arithmetic)
  once = resource_times_us(gpu, phase.per_tile, phase.flops_per_s, phase.arithmetic)
  steps, tiles = phase.load.steps, phase.load.tiles
  blocks = max(1, min(phase.resident_blocks, tiles))
  slots = blocks * phase.num_stages

  softmax_us = step["special_functions"] + step["cuda_cores"]
  compute_us = phase.step_overhead_us + max(
    step["arithmetic"] + phase.exposed_softmax * softmax_us, softmax_us
  )
  latency_us = gpu.dram_latency_ns / 1e3
  in_flight = min(phase.tiles, gpu.sm_count) * slots * phase.per_step.l2_bytes
  dram_rate = _dram_rate(gpu)
  if in_flight:
    dram_rate = min(dram_rate, in_flight / (gpu.dram_latency_ns / 1e9))

  parts: dict[str, float] = {phase.arithmetic: steps * step["arithmetic"]}
  parts["special_functions"] = steps * step["special_functions"]
  parts["cuda_cores"] = parts.get("cuda_cores", 0.0) + steps * step["cuda_cores"]
  parts["shared_memory"] = steps * step["shared_memory"]
  parts["l2"] = steps * step["l2"]
  parts["dram"] = phase.dram_bytes / dram_rate * 1e6
  waited_us = latency_us + step["l2"] + max(compute_us, phase.chain_us)
  parts["latency"] = steps * waited_us / slots
  if phase.chain_us:
    per_program_us = max(phase.chain_us, waited_us / max(phase.num_stages - 1, 1))
    parts["latency"] = steps * per_program_us / blocks
  compute = max((phase.arithmetic, "special_functions", "cuda_cores"), key=lambda name: parts[name])
  overlapped = {**parts, compute: max(parts[compute], steps * compute_us)}
  slowest = max(overlapped, key=lambda name: overlapped[name])
  exposed = ceil_div(tiles, blocks)
  parts["fill"] = exposed * (latency_us + step["l2"] + phase.chain_us) if steps else 0.0
  parts["epilogue"] = exposed * sum(once.values())
  return parts, {
    slowest: overlapped[slowest],
    "fill": parts["fill"],
    "epilogue": parts["epilogue"],
  }
