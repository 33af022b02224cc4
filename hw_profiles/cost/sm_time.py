"""Time of a tiled kernel on SMs, from the rates of one device."""

import dataclasses
import math
from typing import Literal

from hw_profiles.arguments import ceil_div
from hw_profiles.cost.device_time import DeviceTime, device_time, unknown_rates
from hw_profiles.cost.time_term import Term, added, leaf, longest, repeated, shared
from hw_profiles.profile import GpuProfile, known

Arithmetic = Literal["tensor_cores", "cuda_cores"]
"""What does the operations that a kernel is there for."""


@dataclasses.dataclass(frozen=True)
class SmAmounts:
  """Work of one thread block, by the resource that does it.

  Attributes:
    flops: Padded operations, at `SmWork.flops_per_s`.
    l2_bytes: Between L2 and the SM.
    shared_bytes: In and out of shared memory.
    special_functions: Results of exp2, reciprocal and their like.
    cuda_core_operations: Float32 instructions beside `flops`; a multiply-add is one.
    narrow_copies: Copies by a warp of less than 16 bytes a lane into shared memory.
  """

  flops: int = 0
  l2_bytes: int = 0
  shared_bytes: int = 0
  special_functions: int = 0
  cuda_core_operations: int = 0
  narrow_copies: int = 0


@dataclasses.dataclass(frozen=True)
class SmWork:
  """What the SMs have to do.

  A tile is what one program computes, in steps whose copies and arithmetic
  overlap, and a part that follows them: the epilogue.

  Attributes:
    tiles: Tiles of the whole problem.
    steps: Steps of a tile.
    per_step: Of one step of a full tile; its `l2_bytes` are loads.
    per_tile: Of the epilogue.
    flops_per_s: Peak of the arithmetic that does `flops`, all SMs together.
    dram_bytes: Of the whole problem.
    resident_blocks: Blocks an SM holds.
    num_stages: Steps whose loads a block keeps in flight.
    persistent: Whether a block goes on to the next tile, its copies running
      ahead through the epilogue.
    arithmetic: What does `flops`: "tensor_cores" or "cuda_cores".
    held_stages: Stages of a block whose step is done and which are let go of only
      once the next step's operands have arrived: no load is on its way to them.
  """

  tiles: int
  steps: int
  per_step: SmAmounts
  per_tile: SmAmounts
  flops_per_s: float
  dram_bytes: int
  resident_blocks: int
  num_stages: int
  persistent: bool
  arithmetic: Arithmetic = "tensor_cores"
  held_stages: int = 0


def sm_time(gpu: GpuProfile, work: SmWork) -> DeviceTime:
  """Estimates the device time of `work`.

  The busiest SM runs r = ⌈tiles/SMs⌉ tiles of s steps. Each step takes at least

      arithmetic         flops / (peak/SMs · sustained fraction)
      L2                 loads / (L2 bandwidth/SMs)
      shared memory      shared bytes / (bytes a cycle · highest clock)
      special functions  results / (results a cycle · clock)
      narrow copies      copies · cycles of one / clock
      latency            (DRAM latency + L2 + arithmetic) / slots

  where slots = stages x resident blocks: a slot is occupied from the request
  until the arithmetic is done with it (Little's law; one slot is the serial
  pipeline, cf. `pipeline`). Where a block holds h of its stages until the next
  step's operands are there, the others take turns at waiting for memory alone:

      latency            ≥ (DRAM latency + L2) / ((stages - h) x resident blocks)

  DRAM serves all SMs together, at its sustained bandwidth or at bytes in flight
  / latency if that is less.

  Nothing is charged for a number that the profile does not know (None): its
  resource is among `unknown` and not in `times_us`.

  An epilogue's parts follow one another. Epilogues delay the next tile of a
  block; blocks that share an SM hide each other's but for the last.

  Returns:
    `times_us` of "tensor_cores" or "cuda_cores", "shared_memory", "l2", "dram",
    "latency", where a step has some "special_functions" and "narrow_copies", "epilogue" and
    "launch"; all but the last two overlap, and "latency" is the time if only the wait for each
    slot counted. `total` is launch + fill + the longest of those that
    overlap + exposed epilogues.
  """
  rounds = ceil_div(work.tiles, gpu.sm_count)
  blocks = max(1, min(work.resident_blocks, rounds))
  slots = blocks * work.num_stages
  steps = rounds * work.steps

  step = resource_times_us(gpu, work.per_step, work.flops_per_s, work.arithmetic)
  latency_us = gpu.dram_latency_ns / 1e3
  arithmetic = leaf(work.arithmetic, step["arithmetic"])
  l2 = leaf("l2", step["l2"])
  special_functions = leaf("special_functions", step["special_functions"])
  waited = leaf("dram latency", latency_us)
  busy = (
    longest("arithmetic", arithmetic, special_functions)
    if step["special_functions"]
    else arithmetic
  )
  latency = shared("latency", added("slot", waited, l2, busy), slots, "slots")
  loading = blocks * (work.num_stages - work.held_stages)
  if work.held_stages:
    free = shared("latency of a load", added("load", waited, l2), loading, "free slots")
    latency = longest("latency", latency._replace(name="latency of a slot"), free)

  bytes_in_flight = (
    min(work.tiles, gpu.sm_count) * slots * work.per_step.l2_bytes if work.steps else 0
  )
  dram_rate = gpu.dram_bandwidth_bytes_per_s * known(gpu.sustained_dram_fraction, 1.0)
  if bytes_in_flight:
    dram_rate = min(dram_rate, bytes_in_flight / (gpu.dram_latency_ns / 1e9))

  # what every step of the busiest SM takes, and DRAM for all of them
  each = [arithmetic, leaf("shared_memory", step["shared_memory"]), l2, latency]
  if work.per_step.special_functions:
    each.append(special_functions)
  if work.per_step.narrow_copies:
    each.append(leaf("narrow_copies", step["narrow_copies"]))
  dram = leaf("dram", work.dram_bytes / dram_rate * 1e6)
  once = resource_times_us(gpu, work.per_tile, work.flops_per_s, work.arithmetic)
  exposed = ceil_div(rounds, blocks)
  launch = leaf("launch", known(gpu.launch_overhead_us, 0.0))
  fill = added("fill", waited, l2) if steps else leaf("fill", 0.0)
  total = added(
    "predicted",
    launch,
    repeated("fills", fill, (1 if work.persistent else exposed, "times")),
    longest(
      "overlapped",
      repeated("steps", longest("step", *each), (rounds, "tiles"), (work.steps, "steps")),
      dram,
    ),
    repeated("epilogues", _epilogue(once, work.arithmetic), (exposed, "times")),
  )
  times_us = {
    **{part.name: steps * part.us for part in each},
    "dram": dram.us,
    "epilogue": total.parts[-1].us,
    "launch": launch.us,
  }
  unknown = unknown_rates(gpu, l2="l2_bandwidth_bytes_per_s", launch="launch_overhead_us")
  return device_time(times_us, total, unknown=unknown)


def _epilogue(once: dict[str, float], arithmetic: Arithmetic) -> Term:
  """The parts of an epilogue, named apart from those of a step."""
  names = {**{name: name for name in once}, "arithmetic": arithmetic}
  return added(
    "epilogue", *(leaf(f"{names[name]} of the epilogue", time) for name, time in once.items())
  )


def resource_times_us(
  gpu: GpuProfile,
  amounts: SmAmounts,
  flops_per_s: float,
  arithmetic: Arithmetic = "tensor_cores",
) -> dict[str, float]:
  """Time of each resource of one SM for `amounts`.

  `flops_per_s` is the peak of what does `amounts.flops`, the `arithmetic`, all SMs
  together; the keys are "arithmetic", "l2", "shared_memory", "special_functions",
  "narrow_copies" and "cuda_cores", whose peak counts a multiply-add as two.
  """
  sustained = (
    gpu.sustained_cuda_core_fraction
    if arithmetic == "cuda_cores"
    else gpu.sustained_tensor_fraction
  )
  flops_rate = flops_per_s / gpu.sm_count * sustained
  l2_rate = known(gpu.l2_bandwidth_bytes_per_s, math.inf) / gpu.sm_count
  # steps that wait for the banks leave the tensor cores idle and the power limit unreached
  shared_rate = gpu.shared_bytes_per_cycle_per_sm * gpu.max_clock_hz
  special_rate = gpu.special_functions_per_cycle_per_sm * gpu.clock_hz
  cuda_core_rate = gpu.peak_flops["float32"] / 2 / gpu.sm_count
  return {
    "arithmetic": amounts.flops / flops_rate * 1e6,
    "l2": amounts.l2_bytes / l2_rate * 1e6,
    "shared_memory": amounts.shared_bytes / shared_rate * 1e6,
    "special_functions": amounts.special_functions / special_rate * 1e6,
    "cuda_cores": amounts.cuda_core_operations / cuda_core_rate * 1e6,
    "narrow_copies": amounts.narrow_copies * gpu.narrow_copy_cycles / gpu.clock_hz * 1e6,
  }
