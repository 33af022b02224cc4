"""Time of one attention kernel on SMs, whose tiles differ in length."""

import dataclasses

from hw_profiles.arguments import ceil_div
from hw_profiles.attention.block_visits import CoreLoad
from hw_profiles.cost.device_time import DeviceTime, device_time, unknown_rates
from hw_profiles.cost.sm_time import Arithmetic, SmAmounts, resource_times_us
from hw_profiles.cost.time_term import Term, added, leaf, longest, repeated, shared
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
    warps: Of a program.
    exposed_chain: Share of the chain that is not hidden under loads, where all
      sub-partitions of an SM are without a warp; of fewer in proportion.
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
  warps: int = 0
  exposed_chain: float = 0.0


def sm_phases_time(
  gpu: GpuProfile,
  phases: tuple[SmPhase, ...],
  *,
  streamed_passes: tuple[int, ...] = (),
  serial_us: float = 0.0,
  plain_start: bool = False,
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
    serial_us: What follows and nothing else runs beside.
    plain_start: Whether the first kernel starts as one that only streams:
      without tensor maps, barriers or warps of different roles.

  Returns:
    `times_us` of "tensor_cores" or "cuda_cores", "special_functions",
    "cuda_cores", "shared_memory", "l2", "dram", "latency", "fill", "epilogue"
    and "launch", the sum of all kernels; `total` adds for each kernel fill,
    the longest of those that overlap, and epilogue.
  """
  kernels = len(phases) + len(streamed_passes)
  launch = added(
    "launch",
    leaf("start", gpu.stream_launch_us if plain_start else known(gpu.launch_overhead_us, 0.0)),
    repeated(
      "further starts",
      leaf("gap and start", gpu.launch_gap_us + gpu.stream_launch_us),
      (max(kernels - 1, 0), ""),
    ),
  )
  times_us = {"launch": launch.us}
  # what the total is the sum of, by the resource that sets each part
  set_by_us = {"launch": launch.us}
  terms: list[Term] = []
  for phase in phases:
    parts, setting, term = _phase_us(gpu, phase)
    terms.append(term)
    for totals, of_phase in ((times_us, parts), (set_by_us, setting)):
      for name, time_us in of_phase.items():
        totals[name] = totals.get(name, 0.0) + time_us
  if len(terms) == 1:
    terms = list(terms[0].parts)
  else:
    terms = [one.labelled(f"kernel {number}") for number, one in enumerate(terms, start=1)]
  for number, streamed_bytes in enumerate(streamed_passes, start=1):
    terms.append(leaf(f"streamed pass {number}", streamed_bytes / _dram_rate(gpu) * 1e6))
    for totals in (times_us, set_by_us):
      totals["dram"] = totals.get("dram", 0.0) + terms[-1].us
  if serial_us:
    terms.append(leaf("merge of parts", serial_us))
    for totals in (times_us, set_by_us):
      totals["latency"] = totals.get("latency", 0.0) + serial_us
  return device_time(
    times_us,
    added("predicted", launch, *terms),
    bound=max(set_by_us, key=lambda name: set_by_us[name]),
    # the launches of further kernels are known, and part of the total
    unknown=unknown_rates(gpu, l2="l2_bandwidth_bytes_per_s", launch="launch_overhead_us"),
  )


def _dram_rate(gpu: GpuProfile) -> float:
  return gpu.dram_bandwidth_bytes_per_s * known(gpu.sustained_dram_fraction, 1.0)


def _phase_us(gpu: GpuProfile, phase: SmPhase) -> tuple[dict[str, float], dict[str, float], Term]:
  """Busy time of each resource, the parts that add up by what sets each, and their sum."""
  step = resource_times_us(gpu, phase.per_step, phase.flops_per_s, phase.arithmetic)
  once = resource_times_us(gpu, phase.per_tile, phase.flops_per_s, phase.arithmetic)
  steps, tiles = phase.load.steps, phase.load.tiles
  blocks = max(1, min(phase.resident_blocks, tiles))
  slots = blocks * phase.num_stages
  compute = _compute(phase, step)
  waited, l2 = leaf("dram latency", gpu.dram_latency_ns / 1e3), leaf("l2", step["l2"])
  in_flight = min(phase.tiles, gpu.sm_count) * slots * phase.per_step.l2_bytes
  dram_rate = _dram_rate(gpu)
  if in_flight:
    dram_rate = min(dram_rate, in_flight / (gpu.dram_latency_ns / 1e9))

  chain = leaf("chain", phase.chain_us)
  at_work = longest("at work", compute, chain) if phase.chain_us else compute
  latency = _wait(phase, added("slot", waited, l2, at_work), chain, blocks)
  shared_memory = leaf("shared_memory", step["shared_memory"])
  each = longest("step", compute, shared_memory, l2, latency)
  dram = leaf("dram", phase.dram_bytes / dram_rate * 1e6)
  overlapped = longest("overlapped", repeated("steps", each, (steps, "steps")), dram)
  if idle := phase.exposed_chain * _without_warps(gpu, phase, blocks):
    exposed_chain = repeated("exposed chain", chain, (steps * idle, "steps"))
    overlapped = added("overlapped and exposed", overlapped, exposed_chain)
  exposed = ceil_div(tiles, blocks)
  fill = repeated(
    "fill", added("first block", waited, l2, chain), (exposed if steps else 0, "times")
  )
  of_tile = (leaf(f"{name} of a result", time) for name, time in once.items())
  epilogue = repeated("epilogue", added("result", *of_tile), (exposed, "results"))

  parts: dict[str, float] = {phase.arithmetic: steps * step["arithmetic"]}
  parts["special_functions"] = steps * step["special_functions"]
  parts["cuda_cores"] = parts.get("cuda_cores", 0.0) + steps * step["cuda_cores"]
  parts |= {one.name: steps * one.us for one in (shared_memory, l2)}
  parts |= {"dram": dram.us, "latency": steps * latency.us}
  computing = (phase.arithmetic, "special_functions", "cuda_cores")
  most_computing = max(computing, key=lambda name: parts[name])
  beside = {**parts, most_computing: max(parts[most_computing], steps * compute.us)}
  slowest = max(beside, key=lambda name: beside[name])
  parts |= {"fill": fill.us, "epilogue": epilogue.us}
  setting = {slowest: overlapped.us, "fill": fill.us, "epilogue": epilogue.us}
  return parts, setting, added("time", fill, overlapped, epilogue)


def _without_warps(gpu: GpuProfile, phase: SmPhase, blocks: int) -> float:
  """Share of an SM's sub-partitions that no warp of its programs is on."""
  return max(0.0, 1 - blocks * phase.warps / gpu.warp_granularity)


def _compute(phase: SmPhase, step: dict[str, float]) -> Term:
  """Products, softmax, and what a step costs whatever its size."""
  softmax = added(
    "softmax",
    leaf("special_functions", step["special_functions"]),
    leaf("cuda_cores", step["cuda_cores"]),
  )
  products = added(
    "products and exposed softmax",
    leaf(f"products on {phase.arithmetic}", step["arithmetic"]),
    repeated("exposed softmax", softmax, (phase.exposed_softmax, "")),
  )
  beside = longest("products beside softmax", products, softmax)
  return added("compute", beside, leaf("step overhead", phase.step_overhead_us))


def _wait(phase: SmPhase, slot: Term, chain: Term, blocks: int) -> Term:
  """The time a step takes if only its place counted: `slot` is one place's."""
  if not phase.chain_us:
    return shared("latency", slot, blocks * phase.num_stages, "slots")
  # the stage that is read is no load in flight
  loads = shared("loads", slot, max(phase.num_stages - 1, 1), "stages in flight")
  return shared("latency", longest("program", chain, loads), blocks, "blocks")
