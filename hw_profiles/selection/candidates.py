"""From candidates to those worth measuring, step by step, and from measurements to one."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

from hw_profiles.arguments import at_least, ceil_div, collection, mapping, not_negative, positive
from hw_profiles.capacity.residency import Residency, residency
from hw_profiles.cost.roofline import peak_flops
from hw_profiles.errors import InfeasibleTileError
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.matmul.traffic import matmul_traffic
from hw_profiles.profile import GpuProfile, known
from hw_profiles.registry import resolve_gpu
from hw_profiles.selection.call_mix import CallMix, call_mix


@dataclasses.dataclass(frozen=True)
class Candidate:
  """One way to do a given piece of work, and what it needs.

  Attributes:
    name: For results.
    threads_per_block: At least 1.
    registers_per_thread: 32-bit registers, at least 1.
    shared_bytes_per_block: Shared memory of a block.
    flops: Arithmetic, padding included.
    bytes: Bytes between the chip and its memory.
    launches: Kernels, at least 1.
    layout_bytes: Bytes moved to bring operands into the layout it needs.
    obstacles: Why it is not allowed or not supported: broken dependences,
      changed roundings, alignment; empty if nothing stands against it.
  """

  name: str
  threads_per_block: int
  registers_per_thread: int
  shared_bytes_per_block: int
  flops: float
  bytes: float
  launches: int = 1
  layout_bytes: float = 0
  obstacles: tuple[str, ...] = ()

  def __post_init__(self) -> None:
    at_least(f"launches of {self.name}", self.launches, 1)
    for field in ("flops", "bytes", "layout_bytes"):
      not_negative(f"{field} of {self.name}", getattr(self, field))


@dataclasses.dataclass(frozen=True)
class Estimate:
  """What a feasible candidate would take.

  Attributes:
    candidate: The candidate.
    residency: Its blocks on an SM.
    compute_us: Arithmetic at the device's peak.
    memory_us: Its bytes at the memory's peak.
    layout_us: The layout conversion, which comes first.
    launch_us: Its launches; 0 where the profile does not know what one takes.
    time_us: layout + launch + the longer of compute and memory.
    bound: What that sum is most made of.
  """

  candidate: Candidate
  residency: Residency
  compute_us: float
  memory_us: float
  layout_us: float
  launch_us: float
  time_us: float
  bound: Literal["compute", "memory", "layout", "launch"]


@dataclasses.dataclass(frozen=True)
class Selection:
  """What is left after each step.

  Attributes:
    steps: What each step did, in words.
    rejected: Candidate to the reason it cannot run or may not.
    estimates: The rest, fastest first.
    to_measure: Names of those close enough to the fastest to need a measurement.
  """

  steps: tuple[str, ...]
  rejected: FrozenMap[str, str]
  estimates: tuple[Estimate, ...]
  to_measure: tuple[str, ...]


def matmul_tile_candidate(
  *,
  m: int,
  k: int,
  n: int,
  block_m: int,
  block_n: int,
  block_k: int,
  dtype: str,
  num_stages: int = 1,
  threads_per_block: int = 256,
  base_registers: int = 64,
  accumulator: Literal["shared", "registers"] = "shared",
) -> Candidate:
  """A tiled matmul: its buffers in shared memory, its accumulator there or in registers.

  The two capacities cannot borrow from each other: an accumulator in registers
  leaves shared memory to the operands and adds ⌈block_m·block_n / threads⌉
  registers to each thread.

  Intensity and residency are to be read on one device. A published comparison of
  these tiles holds their intensity against 295 FLOP/B, an H100's ridge, while it
  counts blocks on an RTX PRO 6000, whose ridge is 281; and it prints 31.7 for 64
  x 64, which is 31.75.

  Args:
    m: Rows of A and C; 0 or more, as k and n.
    k: Columns of A, rows of B.
    n: Columns of B and C.
    block_m: Rows of a tile of C; at least 1, as all blocks and stages.
    block_n: Columns of a tile of C.
    block_k: Depth of a step along K.
    dtype: Of A, B and C; sums are float32.
    num_stages: Pairs of operand tiles held at once.
    threads_per_block: Threads that work on a tile.
    base_registers: Registers of a thread without accumulators.
    accumulator: Where the tile of C is kept.

  Raises:
    ValueError: a size is out of range, or `accumulator` is neither place.
  """
  if accumulator not in ("shared", "registers"):
    raise ValueError(f"accumulator={accumulator!r}: expected 'shared' or 'registers'")
  at_least("threads_per_block", threads_per_block, 1)
  at_least("base_registers", base_registers, 1)
  traffic = matmul_traffic(
    m=m,
    k=k,
    n=n,
    block_m=block_m,
    block_n=block_n,
    block_k=block_k,
    in_dtype=dtype,
    num_stages=num_stages,
  )
  in_registers = accumulator == "registers"
  extra = ceil_div(block_m * block_n, threads_per_block) if in_registers else 0
  moved_out = traffic.accumulator_bytes if in_registers else 0
  return Candidate(
    name=f"{block_m}x{block_n}x{block_k}, {num_stages} stage(s), accumulator in {accumulator}",
    threads_per_block=threads_per_block,
    registers_per_thread=base_registers + extra,
    shared_bytes_per_block=traffic.working_set_bytes - moved_out,
    flops=2.0 * m * k * n,
    bytes=traffic.total_bytes,
  )


def select_candidates(
  gpu: str | GpuProfile,
  candidates: Sequence[Candidate],
  *,
  dtype: str,
  keep_within: float = 1.25,
) -> Selection:
  """Legal and supported, then what fits, then by estimated time; the close ones stay.

  Estimates use the peaks of arithmetic and memory, so they order candidates and
  do not predict times: fewer resident blocks can cost bandwidth, which the
  residency of each estimate shows and only a measurement settles.

  Args:
    gpu: The device or its name.
    candidates: Ways to do the same work.
    dtype: Whose arithmetic peak counts.
    keep_within: Candidates up to this factor above the fastest are measured.

  Raises:
    ValueError: no candidates, two of one name, a factor below 1, or no such
      device or rate.
  """
  collection("candidates", candidates, Candidate)
  gpu = resolve_gpu(gpu)
  names = [candidate.name for candidate in candidates]
  if not names or len(set(names)) != len(names):
    raise ValueError(f"candidates: {names}; expected at least one, with different names")
  positive("keep_within", keep_within)
  if keep_within < 1:
    raise ValueError(f"keep_within={keep_within}: expected at least 1")
  peak = peak_flops(gpu, dtype)
  illegal = {c.name: "; ".join(c.obstacles) for c in candidates if c.obstacles}
  too_large: dict[str, str] = {}
  estimates = []
  for candidate in candidates:
    if candidate.obstacles:
      continue
    try:
      held = residency(
        gpu,
        threads_per_block=candidate.threads_per_block,
        registers_per_thread=candidate.registers_per_thread,
        shared_bytes_per_block=candidate.shared_bytes_per_block,
      )
    except InfeasibleTileError as error:
      too_large[candidate.name] = str(error)
      continue
    estimates.append(_estimate(gpu, candidate, held, peak))
  estimates.sort(key=lambda estimate: estimate.time_us)
  limit = estimates[0].time_us * keep_within if estimates else 0.0
  close = tuple(e.candidate.name for e in estimates if e.time_us <= limit)
  return Selection(
    steps=(
      f"enumerate: {len(names)} candidate(s)",
      f"allowed and supported: {len(names) - len(illegal)} left",
      f"fits {gpu.name}: {len(estimates)} left",
      f"estimate: {len(close)} within a factor {keep_within:g} of the fastest",
      f"measure: {', '.join(close) or 'nothing'}",
    ),
    rejected=FrozenMap({**illegal, **too_large}),
    estimates=tuple(estimates),
    to_measure=close,
  )


def _estimate(gpu: GpuProfile, candidate: Candidate, held: Residency, peak: float) -> Estimate:
  bandwidth = gpu.memory_bandwidth_bytes_per_s
  parts: dict[Literal["compute", "memory", "layout", "launch"], float] = {
    "compute": candidate.flops / peak * 1e6,
    "memory": candidate.bytes / bandwidth * 1e6,
    "layout": candidate.layout_bytes / bandwidth * 1e6,
    "launch": candidate.launches * known(gpu.launch_overhead_us, 0.0),
  }
  return Estimate(
    candidate=candidate,
    residency=held,
    compute_us=parts["compute"],
    memory_us=parts["memory"],
    layout_us=parts["layout"],
    launch_us=parts["launch"],
    time_us=max(parts["compute"], parts["memory"]) + parts["layout"] + parts["launch"],
    bound=max(parts, key=parts.__getitem__),
  )


@dataclasses.dataclass(frozen=True)
class MeasuredChoice:
  """What measurements decide.

  Attributes:
    median_us: Implementation to shape to the median of its times.
    mix: The medians weighed by calls.
    close: Implementations whose total lies within the spread of the best's
      times, the best included: a measurement cannot tell them apart.
  """

  median_us: FrozenMap[str, FrozenMap[str, float]]
  mix: CallMix
  close: tuple[str, ...]


def choose_measured(
  samples_us: Mapping[str, Mapping[str, Sequence[float]]], calls: Mapping[str, float]
) -> MeasuredChoice:
  """The least median time over the calls, and all that are not clearly worse.

  The spread of an implementation is half the range between the quartiles of
  each shape's times, weighed by calls.

  Args:
    samples_us: Implementation to shape to measured times, microseconds.
    calls: Shape to number of calls.

  Raises:
    ValueError: a shape that is called has no times, or as `call_mix`.
  """
  mapping("samples_us", samples_us)
  mapping("calls", calls)
  for shape, count in calls.items():
    not_negative(f"calls[{shape!r}]", count)
  for name, shapes in samples_us.items():
    mapping(f"samples_us[{name!r}]", shapes)
  medians: dict[str, FrozenMap[str, float]] = {}
  spreads: dict[str, float] = {}
  for name, shapes in samples_us.items():
    for shape in calls:
      if not shapes.get(shape):
        raise ValueError(f"samples_us[{name!r}] has no times for {shape!r}, which is called")
    medians[name] = FrozenMap({shape: statistics.median(shapes[shape]) for shape in calls})
    spreads[name] = sum(count * _half_range(shapes[shape]) for shape, count in calls.items())
  mix = call_mix(times_us=medians, calls=calls)
  limit = mix.total_us[mix.best] + spreads.get(mix.best, 0.0)
  close = tuple(name for name, total in mix.total_us.items() if total - spreads[name] <= limit)
  return MeasuredChoice(FrozenMap(medians), mix, close)


def _half_range(times: Sequence[float]) -> float:
  if len(times) == 1:
    return 0.0
  low, _, high = statistics.quantiles(times, n=4, method="inclusive")
  return (high - low) / 2
