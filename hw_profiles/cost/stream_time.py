"""Time of kernels that stream over their data, on SMs and on Ascend vector cores.

Nothing is reused here, so what counts is bandwidth, what keeps it busy, and the
fixed cost of each launch. `sm_time` and `npu_time` are for tiles that reuse
what they load.
"""

import dataclasses

from hw_profiles.arguments import ceil_div
from hw_profiles.cost.device_time import DeviceTime, device_time, unknown_rates
from hw_profiles.cost.sm_time import SmAmounts, resource_times_us
from hw_profiles.cost.time_term import Term, added, leaf, longest, repeated
from hw_profiles.profile import GpuProfile, NpuProfile, known

# A transfer between GM and UB reaches the full rate from 16 KiB on: a smaller
# one takes as long (A2/A3 practice guide, as `NpuProfile.gm_alignment_bytes`).
FULL_RATE_TRANSFER_BYTES = 16384
# Share of the rate that runs aligned to 32 B only reach (same guide).
UNALIGNED_RATE = 0.7
# Elements of a thread block of the elementwise kernels that XLA makes, 128 threads of 4 each; an
# SM's 2048 threads hold 16 such blocks.
XLA_BLOCK_ELEMENTS = 512
XLA_RESIDENT_BLOCKS = 16


@dataclasses.dataclass(frozen=True)
class SmPass:
  """One launch of a streaming kernel on SMs.

  Attributes:
    programs: Thread blocks.
    resident_blocks: Blocks an SM holds.
    per_program: Work of one, whole.
    round_trips: Times a program waits for its loads, one after another.
    dram_bytes: Of the whole launch.
  """

  programs: int
  resident_blocks: int
  per_program: SmAmounts
  round_trips: int
  dram_bytes: int


def sm_stream_time(gpu: GpuProfile, passes: tuple[SmPass, ...]) -> DeviceTime:
  """Estimates the device time of launches that follow one another.

  The busiest SM runs r = ⌈programs/SMs⌉ programs, b at a time. A program
  occupies its place for

      place    round trips · DRAM latency + L2 + max(arithmetic, special
               functions) + shared memory, at the rates of a whole SM

  and an SM's places turn over ⌈r/b⌉ times: Little's law, as places · bytes a
  program have to cover bandwidth · latency. Beside that, each SM moves its
  programs' bytes and does their arithmetic at its rates, and DRAM serves all.
  A hit in L2 is charged the latency of an idle DRAM, too: no source has that of
  a loaded L2, and the idle one's would make short rounds too quick (the text's
  transposes in blocks of 16 x 16 from a warm L2).

      launch   start + max(⌈r/b⌉ · place, latency + max(DRAM, L2, ...))
      total    launches one after another, with a gap between two

  Returns:
    `times_us` of "dram", "l2", "cuda_cores", "shared_memory" and
    "special_functions" where there are any, "latency" (if only places counted)
    and "launch" (starts and gaps), each over all launches.
  """
  totals: dict[str, float] = {"dram": 0.0, "l2": 0.0, "cuda_cores": 0.0}
  latency = leaf("dram latency", gpu.dram_latency_ns / 1e3)
  rate = gpu.dram_bandwidth_bytes_per_s * known(gpu.sustained_dram_fraction, 1.0)
  latency_total_us = 0.0
  launched: list[Term] = []
  for one in passes:
    rounds = ceil_div(one.programs, gpu.sm_count)
    blocks = max(1, min(one.resident_blocks, rounds))
    part = resource_times_us(gpu, one.per_program, gpu.peak_flops["float32"], "cuda_cores")
    program = {
      "l2": leaf("l2 of a program", part["l2"] / gpu.sustained_l2_fraction),
      "cuda_cores": leaf("cuda_cores of a program", part["arithmetic"] + part["cuda_cores"]),
      "special_functions": leaf("special_functions of a program", part["special_functions"]),
      "shared_memory": leaf("shared_memory of a program", part["shared_memory"]),
    }
    place = added(
      "place",
      repeated("waits", latency, (one.round_trips, "")),
      program["l2"],
      longest("arithmetic", program["cuda_cores"], program["special_functions"]),
      program["shared_memory"],
    )
    places = repeated("latency", place, (ceil_div(rounds, blocks), "turns"))
    busy = [leaf("dram", one.dram_bytes / rate * 1e6)]
    totals["dram"] += busy[0].us
    for name, of_program in program.items():
      if of_program.us or name in totals:
        busy.append(repeated(f"{name}", of_program, (rounds, "programs")))
        totals[name] = totals.get(name, 0.0) + busy[-1].us
    latency_total_us += places.us
    if one.programs:
      beside = added("after the first wait", latency, longest("busy", *busy))
      launched.append(longest("kernel", places, beside))
  launch = _launches(
    leaf("start", gpu.stream_launch_us), leaf("gap", gpu.launch_gap_us), len(passes)
  )
  times_us = {**totals, "latency": latency_total_us, "launch": launch.us}
  unknown = unknown_rates(gpu, l2="l2_bandwidth_bytes_per_s")
  return device_time(
    times_us, added("predicted", launch, *_numbered(launched, "kernel")), unknown=unknown
  )


def _numbered(terms: list[Term], what: str) -> list[Term]:
  """Told apart where there are several."""
  if len(terms) < 2:
    return terms
  return [one.labelled(f"{what} {number}") for number, one in enumerate(terms, start=1)]


def _launches(start: Term, gap: Term, launches: int) -> Term:
  """The starts of all kernels, and a gap between two."""
  starts = repeated("starts", start, (launches, ""))
  if launches < 2:
    return starts._replace(name="launch")
  return added("launch", starts, repeated("gaps", gap, (launches - 1, "")))


@dataclasses.dataclass(frozen=True)
class AivPhase:
  """Steps of one kind that every vector core repeats.

  Attributes:
    steps: Of the busiest core.
    load_bytes: GM to UB a step.
    vector_bytes: Operands of simple arithmetic a step.
    exp_elements: Elements of exp and its like a step.
    store_bytes: UB to GM a step.
  """

  steps: int
  load_bytes: int = 0
  vector_bytes: int = 0
  exp_elements: int = 0
  store_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class AivPass:
  """One launch on vector cores.

  Attributes:
    phases: One after another.
    slots: Buffers of each queue; 1: load, arithmetic and store take turns.
    hbm_bytes: Of the whole launch.
    aligned: Whether the runs in GM begin at multiples of its alignment.
  """

  phases: tuple[AivPhase, ...]
  slots: int
  hbm_bytes: int
  aligned: bool = True


def _transfer_us(npu: NpuProfile, size_bytes: int, rate_per_cycle: float, aligned: bool) -> float:
  """Time of one step's copy; nothing where there is none."""
  if not size_bytes:
    return 0.0
  rate = rate_per_cycle * npu.clock_hz * (1.0 if aligned else UNALIGNED_RATE)
  return max(size_bytes, FULL_RATE_TRANSFER_BYTES) / rate * 1e6


def aiv_stream_time(npu: NpuProfile, passes: tuple[AivPass, ...]) -> DeviceTime:
  """Estimates the device time of launches that follow one another.

  A step is loaded by MTE2, computed by the vector unit, stored by MTE3:

      phase   n·(MTE2 + vector + MTE3) with one slot a queue
              else the sum of one step + (n - 1)·max(MTE2, vector, MTE3)
      launch  overhead + max(phases, HBM), HBM serving all cores together

  With two slots the three overlap whatever their order (the closed form of a
  pipeline of three stages). Times of a copy: see `FULL_RATE_TRANSFER_BYTES`.

  Returns:
    `times_us` of the busiest core's "vector_mte2", "vector" and "mte3"; of all
    cores "hbm"; "launch"; each over all launches.
  """
  totals = {"vector_mte2": 0.0, "vector": 0.0, "mte3": 0.0, "hbm": 0.0}
  rate = npu.hbm_bandwidth_bytes_per_s * known(npu.sustained_hbm_fraction, 1.0)
  launched: list[Term] = []
  for one in passes:
    phases: list[Term] = []
    for phase in one.phases:
      parts = _step_parts(npu, phase, one.aligned)
      for pipe, time_us in parts.items():
        totals[pipe] += phase.steps * time_us
      if phase.steps:
        phases.append(_phase(parts, phase.steps, slots=one.slots))
    hbm = leaf("hbm", one.hbm_bytes / rate * 1e6)
    totals["hbm"] += hbm.us
    cores = added("busiest core", *_numbered(phases, "phase"))
    launched.append(longest("kernel", cores, hbm))
  launch = repeated("launch", leaf("start", npu.vector_launch_us), (len(passes), ""))
  return device_time(
    {**totals, "launch": launch.us}, added("predicted", launch, *_numbered(launched, "kernel"))
  )


def _step_parts(npu: NpuProfile, phase: AivPhase, aligned: bool) -> dict[str, float]:
  """Time of each pipe for one step."""
  vector_cycles = (
    phase.vector_bytes / npu.vector_bytes_per_cycle
    + phase.exp_elements / npu.exp_elements_per_cycle
  )
  return {
    "vector_mte2": _transfer_us(npu, phase.load_bytes, npu.gm_to_ub_bytes_per_cycle, aligned),
    "vector": vector_cycles / npu.clock_hz * 1e6,
    "mte3": _transfer_us(npu, phase.store_bytes, npu.ub_to_gm_bytes_per_cycle, aligned),
  }


def _phase(parts: dict[str, float], steps: int, *, slots: int) -> Term:
  """The first step, then the others as far as their pipes overlap."""
  pipes = [leaf(f"{pipe} of a step", time_us) for pipe, time_us in parts.items()]
  first = added("first step", *pipes)
  other = first if slots == 1 else longest("slowest pipe", *pipes)
  return added("phase", first, repeated("other steps", other, (steps - 1, "steps")))
