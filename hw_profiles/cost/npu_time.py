"""Time of a tiled kernel on Ascend cores, pipe by pipe."""

import dataclasses
from typing import Literal

from hw_profiles.arguments import ceil_div
from hw_profiles.cost.device_time import DeviceTime, device_time
from hw_profiles.cost.time_term import Term, added, leaf, longest, repeated
from hw_profiles.profile import NpuProfile, known

CoreKind = Literal["AIC", "AIV", "mixed"]

_CUBE_PIPES = ("mte2", "mte1", "cube", "fixpipe")
_VECTOR_PIPES = ("vector_mte2", "vector", "mte3")


@dataclasses.dataclass(frozen=True)
class NpuAmounts:
  """Work of one core (a cube core with its vector cores, where both work), by pipe.

  Attributes:
    l1_bytes: GM to L1: MTE2 of a cube core.
    l0a_bytes: L1 to L0A: MTE1.
    l0b_bytes: L1 to L0B: MTE1.
    bt_bytes: L1 to BT: MTE1.
    macs: Padded multiply-accumulates of the cube.
    l0c_to_gm_bytes: FixPipe, counted in bytes written.
    l0c_to_ub_bytes: FixPipe.
    gm_to_ub_bytes: MTE2 of the vector cores.
    vector_bytes: Operands of simple vector arithmetic.
    exp_elements: Elements of exp and its like.
    ub_to_gm_bytes: MTE3 of the vector cores.
    ub_to_l1_bytes: MTE3 of the vector cores, where they reach L1.
  """

  l1_bytes: int = 0
  l0a_bytes: int = 0
  l0b_bytes: int = 0
  bt_bytes: int = 0
  macs: int = 0
  l0c_to_gm_bytes: int = 0
  l0c_to_ub_bytes: int = 0
  gm_to_ub_bytes: int = 0
  vector_bytes: int = 0
  exp_elements: int = 0
  ub_to_gm_bytes: int = 0
  ub_to_l1_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class NpuWork:
  """What the cores have to do.

  A tile is what one program computes, in steps whose copies and arithmetic
  overlap, and a part done once: the epilogue.

  Attributes:
    core: Who works: "AIC": cube cores; "AIV": vector cores, each on tiles of its
      own; "mixed": cube cores, each with its vector cores, on the same tile.
    tiles: Tiles of the whole problem.
    steps: Steps of a tile.
    per_step: Of one step of a full tile.
    per_tile: Done once a tile.
    hbm_bytes: Of the whole problem.
    cold_fraction: Share of what `per_step` loads into L1 that is not in L2 before
      the kernel starts.
    load_efficiency: Share of the rates of MTE2 and HBM that loads reach.
    num_stages: Steps whose operands L1 holds; the vector pipes always have two
      slots in UB.
    accumulators: Tiles that L0C holds; 0 for "AIV".
    macs_per_cycle: Of one cube, for the dtype; 0 for "AIV".
  """

  core: CoreKind
  tiles: int
  steps: int
  per_step: NpuAmounts
  per_tile: NpuAmounts
  hbm_bytes: int
  num_stages: int
  accumulators: int = 0
  macs_per_cycle: int = 0
  cold_fraction: float = 0.0
  load_efficiency: float = 1.0


def npu_cores(npu: NpuProfile, core: CoreKind) -> int:
  """Cores that the tiles are dealt out to."""
  return npu.aiv_count if core == "AIV" else npu.aic_count


def npu_time(npu: NpuProfile, work: NpuWork) -> DeviceTime:
  """Estimates the device time of `work`.

  Every pipe has its own queue, so pipes overlap across steps and tiles as far
  as their buffers allow:

      step   max(MTE2, MTE1, cube, ...) with two stages in L1,
             MTE2 + max(MTE1, cube, ...) with one
      tile   max(steps, FixPipe, vector pipes) with two accumulators in L0C,
             max(steps + FixPipe, vector pipes) with one

  While at most half of the cube cores have a tile, FixPipe writes and MTE2 loads
  what was not in L2 at `few_cores_gm_bytes_per_cycle`. A line that another core of
  that only round has asked for is not there sooner. With more cores FixPipe is
  slower, and HBM the limit of the loads. MTE1 loads L0A and L0B one after the
  other; what a tile loads or multiplies once comes on top of its steps. HBM serves
  all cores together, at its peak where the profile does not know what is sustained.

  Returns:
    `times_us` of the busiest core's "mte2" (L2 to L1), "mte1" (L1 to L0),
    "cube" and "fixpipe" (out of L0C) where cube cores work, of those of
    "vector_mte2" (GM to UB), "vector" and "mte3" (UB to GM) that have work; of
    all cores "hbm"; "launch". `total` is launch + fill + the tiles' rounds +
    the last tile's drain.
  """
  rounds = ceil_div(work.tiles, npu_cores(npu, work.core))
  cores = CoresAtWork(work.core, work.tiles, work.macs_per_cycle, work.cold_fraction)
  step = pipe_times_us(npu, work.per_step, cores)
  once = pipe_times_us(npu, work.per_tile, cores)
  step["mte2"] /= work.load_efficiency

  tile = _tile(work, step, once)
  filled = rounds and work.steps and work.num_stages > 1
  fill = [leaf("fill", step["mte2"] + step["mte1"])] if filled else []
  hbm_rate = npu.hbm_bandwidth_bytes_per_s * known(npu.sustained_hbm_fraction, 1.0)
  hbm = leaf("hbm", work.hbm_bytes / (hbm_rate * work.load_efficiency) * 1e6)

  busy = {pipe: rounds * (work.steps * step[pipe] + once[pipe]) for pipe in step}
  listed = [pipe for pipe in _CUBE_PIPES if work.core != "AIV"]
  listed += [pipe for pipe in _VECTOR_PIPES if step[pipe] or once[pipe]]
  launch = leaf(
    "launch", npu.launch_overhead_us + (npu.mixed_launch_us if work.core == "mixed" else 0.0)
  )
  times_us = {**{pipe: busy[pipe] for pipe in listed}, "hbm": hbm.us, "launch": launch.us}
  total = added(
    "predicted",
    launch,
    *fill,
    longest("overlapped", repeated("rounds", tile, (rounds, "tiles")), hbm),
    *([_drain(work, once)] if rounds else []),
  )
  return device_time(times_us, total)


def _tile(work: NpuWork, step: dict[str, float], once: dict[str, float]) -> Term:
  """One tile, as far as its pipes overlap."""
  mte2 = leaf("mte2", step["mte2"])
  rest = [leaf(pipe, time) for pipe, time in step.items() if pipe != "mte2"]
  each = (
    longest("step", mte2, *rest)
    if work.num_stages > 1
    else added("step", mte2, longest("after the load", *rest))
  )
  steps = added(
    "steps and what is once",
    repeated("steps", each, (work.steps, "steps")),
    *(leaf(f"{pipe} once", once[pipe]) for pipe in ("mte2", "mte1", "cube")),
  )
  fixpipe = leaf("fixpipe out", once["fixpipe"])
  vectors = [leaf(f"{pipe} of the tile", once[pipe]) for pipe in _VECTOR_PIPES]
  if work.accumulators > 1:
    return longest("tile", steps, fixpipe, *vectors)
  return longest("tile", added("tile on the cube core", steps, fixpipe), *vectors)


def _drain(work: NpuWork, once: dict[str, float]) -> Term:
  """What of the last tile nothing hides.

  Behind a cube core the vector cores' share of it is all exposed; on their own,
  their slowest pipe is in the rounds already.
  """
  vectors = [leaf(f"{pipe} of the tile", once[pipe]) for pipe in _VECTOR_PIPES]
  if work.core == "AIV":
    vectors.remove(max(vectors, key=lambda one: one.us))
  fixpipe = [leaf("fixpipe out", once["fixpipe"])] if work.accumulators > 1 else []
  return added("drain", *fixpipe, *vectors)


@dataclasses.dataclass(frozen=True)
class CoresAtWork:
  """What the rates of a core's pipes depend on.

  Attributes:
    core: As in `NpuWork`.
    tiles: Tiles there are for all cores.
    macs_per_cycle: Of one cube, for the dtype.
    cold_fraction: Share of the loads into L1 that was not in L2 before.
  """

  core: CoreKind
  tiles: int
  macs_per_cycle: int
  cold_fraction: float = 0.0


def pipe_times_us(npu: NpuProfile, amounts: NpuAmounts, cores: CoresAtWork) -> dict[str, float]:
  """Time of each pipe of one core for `amounts`; vector cores of a cube core share them."""
  vectors = npu.vector_cores_per_cube_core if cores.core == "mixed" else 1
  few = npu.few_cores_gm_bytes_per_cycle if 2 * cores.tiles <= npu.aic_count else None
  cold_bytes = amounts.l1_bytes * cores.cold_fraction if few else 0.0

  def cycles_us(amount: float, rate_per_cycle: float) -> float:
    # a path that does not exist has rate 0 and nothing to move
    return amount / (rate_per_cycle * npu.clock_hz) * 1e6 if amount else 0.0

  return {
    "mte2": cycles_us(amounts.l1_bytes - cold_bytes, npu.l2_to_core_bytes_per_cycle)
    + cycles_us(cold_bytes, few or npu.l2_to_core_bytes_per_cycle),
    "mte1": cycles_us(amounts.l0a_bytes, npu.l1_to_l0a_bytes_per_cycle)
    + cycles_us(amounts.l0b_bytes, npu.l1_to_l0b_bytes_per_cycle)
    + cycles_us(amounts.bt_bytes, npu.bt_load_bytes_per_cycle),
    "cube": cycles_us(amounts.macs, cores.macs_per_cycle * npu.sustained_cube_fraction),
    "fixpipe": cycles_us(amounts.l0c_to_gm_bytes, few or npu.l0c_to_gm_bytes_per_cycle)
    + cycles_us(amounts.l0c_to_ub_bytes, npu.l0c_to_ub_bytes_per_cycle),
    "vector_mte2": cycles_us(amounts.gm_to_ub_bytes / vectors, npu.gm_to_ub_bytes_per_cycle),
    "vector": cycles_us(amounts.vector_bytes / vectors, npu.vector_bytes_per_cycle)
    + cycles_us(amounts.exp_elements / vectors, npu.exp_elements_per_cycle),
    "mte3": cycles_us(amounts.ub_to_gm_bytes / vectors, npu.ub_to_gm_bytes_per_cycle)
    + cycles_us(amounts.ub_to_l1_bytes / vectors, npu.ub_to_l1_bytes_per_cycle),
  }
