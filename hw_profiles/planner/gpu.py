"""Plans a matmul tile on an NVIDIA SM."""

from collections.abc import Mapping
from typing import Protocol

from hw_profiles import dtypes
from hw_profiles.capacity import multistage, warp_specialized
from hw_profiles.capacity.buffers import Buffer, Shortfall
from hw_profiles.capacity.residency import Residency, residency
from hw_profiles.config import MatmulConfig
from hw_profiles.cost.l2_reuse import wave
from hw_profiles.cost.sm_time import SmWork, sm_time
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.planner import remedy
from hw_profiles.planner.assumptions import gpu_assumptions
from hw_profiles.planner.tile_counts import TileCounts, padding_note, reuse_note, tile_counts
from hw_profiles.planner.tile_plan import TilePlan, infeasible_plan, median_error
from hw_profiles.problem import MatmulProblem
from hw_profiles.profile import GpuProfile


class _Schedule(Protocol):
  """What each schedule's capacity module answers."""

  def block_threads(self, config: MatmulConfig) -> int: ...

  def buffers(
    self, problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile
  ) -> tuple[Buffer, ...]: ...

  def structural_shortfalls(
    self, problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile
  ) -> tuple[Shortfall, ...]: ...

  def capacity_shortfalls(
    self, problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile
  ) -> tuple[Shortfall, ...]: ...

  def shared_bytes_per_step(self, problem: MatmulProblem, config: MatmulConfig) -> int: ...


_SCHEDULES: Mapping[str, _Schedule] = {
  "warp_specialized": warp_specialized,
  "multistage": multistage,
}


def _choose(
  problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile, requested: str
) -> tuple[str, tuple[str, ...]]:
  """The schedule to plan, and a note where the choice was the planner's."""
  if requested != "auto":
    if requested not in _SCHEDULES:
      raise ValueError(
        f"schedule={requested!r}: {gpu.name} is planned as 'auto', 'warp_specialized' or"
        " 'multistage'"
      )
    return requested, ()
  refused = warp_specialized.structural_shortfalls(problem, config, gpu)
  if refused:
    return "multistage", (f"schedule: multistage, as {refused[0].statement}",)
  return "warp_specialized", (
    "schedule: warp_specialized, as the device has wgmma and the operands are 16 bits wide",
  )


def _rate(problem: MatmulProblem, gpu: GpuProfile) -> tuple[float | None, tuple[str, ...]]:
  """Arithmetic peak in FLOP/s for the operands, and a note where it is a fallback."""
  if problem.dtype == "float32":
    return gpu.peak_flops["float32"], ("float32 is priced on the CUDA cores, never as TF32",)
  if problem.dtype in gpu.peak_flops:
    return gpu.peak_flops[problem.dtype], ()
  if dtypes.size_bytes(problem.dtype) == 2:
    return gpu.peak_flops["float32"], (
      f"{gpu.name} has no {problem.dtype} tensor cores: priced as float32 on the CUDA cores",
    )
  return None, ()


def _shortfalls(
  problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile, schedule: str
) -> tuple[Shortfall, ...]:
  module = _SCHEDULES[schedule]
  rate_missing: tuple[Shortfall, ...] = ()
  if _rate(problem, gpu)[0] is None:
    rates = ", ".join(gpu.peak_flops)
    rate_missing = (
      Shortfall("dtype", (), f"dtype={problem.dtype!r}: {gpu.name} multiplies {rates}"),
    )
  return (
    *rate_missing,
    *module.structural_shortfalls(problem, config, gpu),
    *module.capacity_shortfalls(problem, config, gpu),
  )


def fits_gpu(
  problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile, *, schedule: str = "auto"
) -> bool:
  """Whether the tile runs, without planning it in full."""
  chosen, _ = _choose(problem, config, gpu, schedule)
  return not _shortfalls(problem, config, gpu, chosen)


def _residency(
  problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile, schedule: str
) -> tuple[Residency, int, tuple[str, ...]]:
  """The SM's residency, the blocks that run there, and notes."""
  if schedule == "multistage":
    resident = residency(
      gpu,
      threads_per_block=multistage.block_threads(config),
      registers_per_thread=multistage.registers_per_thread(config),
      shared_bytes_per_block=multistage.shared_bytes(problem, config),
    )
    return resident, resident.resident_blocks, ()
  threads = warp_specialized.block_threads(config)
  resident = residency(
    gpu,
    threads_per_block=threads,
    registers_per_thread=warp_specialized.launch_registers(gpu, threads),
    shared_bytes_per_block=warp_specialized.warp_specialized_shared_bytes(
      config, in_dtype=problem.dtype, out_dtype=problem.result_dtype
    ),
  )
  # launched with one block an SM, whatever would fit beside it
  tile = warp_specialized.consumer_tile(config)
  note = (
    f"{config.consumer_warpgroups} consumer warpgroup(s) split {tile.axis.upper()}:"
    f" {tile.rows}x{tile.columns} each, up to"
    f" {warp_specialized.consumer_registers(gpu, config.consumer_warpgroups)} registers a thread"
  )
  return resident, 1, (note,)


def _work(
  problem: MatmulProblem,
  config: MatmulConfig,
  schedule: str,
  counts: TileCounts,
  resident_blocks: int,
) -> SmWork:
  outputs = config.block_m * config.block_n
  warp_specialised = schedule == "warp_specialized"
  return SmWork(
    tiles=counts.tiles,
    k_steps=counts.traffic.k_steps,
    flops_per_step=2 * outputs * config.block_k,
    operand_bytes_per_step=counts.traffic.a_tile_bytes + counts.traffic.b_tile_bytes,
    shared_bytes_per_step=_SCHEDULES[schedule].shared_bytes_per_step(problem, config),
    result_bytes_per_tile=outputs * dtypes.size_bytes(problem.result_dtype),
    outputs_per_tile=outputs,
    activation=problem.activation is not None,
    staged_epilogue=warp_specialised,
    dram_bytes=counts.dram_bytes,
    resident_blocks=resident_blocks,
    num_stages=config.num_stages,
    persistent=warp_specialised,
  )


def plan_gpu(
  problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile, *, schedule: str = "auto"
) -> TilePlan:
  """Plans one tile on one GPU; see `hw_profiles.plan`."""
  chosen, notes = _choose(problem, config, gpu, schedule)
  buffers = _SCHEDULES[chosen].buffers(problem, config, gpu)
  shortfalls = _shortfalls(problem, config, gpu, chosen)
  peak, rate_notes = _rate(problem, gpu)
  if shortfalls or peak is None:
    counts = tile_counts(problem, config, wave_programs=gpu.sm_count, l2_bytes=gpu.l2_bytes)
    if chosen == "warp_specialized" and not _shortfalls(problem, config, gpu, "multistage"):
      notes = (*notes, "schedule='multistage' would fit this tile")
    return infeasible_plan(
      problem=problem,
      config=config,
      profile=gpu,
      schedule=chosen,
      reason=remedy.reason(
        config, shortfalls, lambda other: fits_gpu(problem, other, gpu, schedule=schedule)
      ),
      binding=tuple(dict.fromkeys(shortfall.resource for shortfall in shortfalls)),
      buffers=buffers,
      traffic=counts.traffic,
      waves=wave(programs=counts.tiles, cores=gpu.sm_count),
      notes=notes,
      assumptions=gpu_assumptions(gpu, chosen),
    )
  resident, blocks, residency_notes = _residency(problem, config, gpu, chosen)
  counts = tile_counts(problem, config, wave_programs=gpu.sm_count * blocks, l2_bytes=gpu.l2_bytes)
  waves = wave(programs=counts.tiles, cores=gpu.sm_count, programs_per_core=blocks)
  work = _work(problem, config, chosen, counts, blocks)
  time = sm_time(gpu, work, peak_flops=peak)
  return TilePlan(
    problem=problem,
    config=config,
    profile=gpu.name,
    vendor=gpu.vendor,
    schedule=chosen,
    fits=True,
    reason="",
    binding=resident.binding,
    buffers=buffers,
    resident_blocks=blocks,
    residency=resident,
    traffic=counts.traffic,
    traffic_bytes=FrozenMap(
      dram=counts.dram_bytes,
      l2=counts.l2_bytes,
      shared=counts.tiles * work.k_steps * work.shared_bytes_per_step,
    ),
    grid=counts.traffic.grid,
    waves=waves.waves,
    tail_efficiency=waves.tail_efficiency,
    times_us=time.times_us,
    predicted_us=time.total_us,
    bound=time.bound,
    notes=(
      *notes,
      *residency_notes,
      *rate_notes,
      reuse_note(config, counts),
      *padding_note(problem, config, counts.padding_fraction),
    ),
    assumptions=gpu_assumptions(gpu, chosen),
    model_error=median_error(gpu),
  )
