"""Plans a matmul tile on an Ascend cube core and its vector cores."""

from hw_profiles import dtypes
from hw_profiles.capacity import cube_core
from hw_profiles.capacity.buffers import Buffer, Shortfall
from hw_profiles.config import MatmulConfig
from hw_profiles.cost.cube_time import CubeWork, cube_time
from hw_profiles.cost.l2_reuse import wave
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.planner import remedy
from hw_profiles.planner.assumptions import npu_assumptions
from hw_profiles.planner.tile_counts import TileCounts, padding_note, reuse_note, tile_counts
from hw_profiles.planner.tile_plan import TilePlan, infeasible_plan, median_error
from hw_profiles.problem import MatmulProblem
from hw_profiles.profile import NpuProfile

SCHEDULE = "cube"


def _shortfalls(
  problem: MatmulProblem, config: MatmulConfig, npu: NpuProfile
) -> tuple[Shortfall, ...]:
  return (
    *cube_core.structural_shortfalls(problem, config, npu),
    *cube_core.capacity_shortfalls(problem, config, npu),
  )


def _check_schedule(npu: NpuProfile, schedule: str) -> None:
  if schedule not in ("auto", SCHEDULE):
    raise ValueError(f"schedule={schedule!r}: {npu.name} is planned as 'auto' or '{SCHEDULE}'")


def fits_npu(
  problem: MatmulProblem, config: MatmulConfig, npu: NpuProfile, *, schedule: str = "auto"
) -> bool:
  """Whether the tile runs, without planning it in full."""
  _check_schedule(npu, schedule)
  return not _shortfalls(problem, config, npu)


def _placement_notes(
  problem: MatmulProblem, npu: NpuProfile, tile: cube_core.CubeTile
) -> tuple[str, ...]:
  notes = [
    f"L0 K step {tile.l0_depth}: the deepest slices of which L0A and L0B hold two",
    f"L0C holds {tile.accumulators} accumulator(s):"
    + (
      " FixPipe drains one while the cube fills the other"
      if tile.accumulators > 1
      else " the cube waits for FixPipe at the end of a tile"
    ),
  ]
  if problem.activation is None:
    notes.append("epilogue: FixPipe rounds and writes L0C to GM")
    return tuple(notes)
  path = "L0C -> UB" if npu.has_l0c_to_ub else "L0C -> GM workspace -> UB"
  notes.append(
    f"{problem.activation}: {path} -> GM on {npu.vector_cores_per_cube_core} vector cores,"
    f" {tile.vector_rows} rows each in slabs of {tile.slab_rows}"
  )
  return tuple(notes)


def _padding_to_fractals(config: MatmulConfig, tile: cube_core.CubeTile) -> tuple[str, ...]:
  padded = [
    f"{name}={size} is held as {held}"
    for name, size, held in (
      ("block_m", config.block_m, tile.rows),
      ("block_n", config.block_n, tile.columns),
      ("block_k", config.block_k, tile.depth),
    )
    if size != held
  ]
  return (f"{', '.join(padded)}: whole fractals",) if padded else ()


def _work(
  problem: MatmulProblem,
  config: MatmulConfig,
  npu: NpuProfile,
  tile: cube_core.CubeTile,
  counts: TileCounts,
) -> CubeWork:
  size = dtypes.size_bytes(problem.dtype)
  outputs = tile.rows * tile.columns
  return CubeWork(
    tiles=counts.tiles,
    k_steps=counts.traffic.k_steps,
    macs_per_step=outputs * tile.depth,
    a_bytes_per_step=tile.rows * tile.depth * size,
    b_bytes_per_step=tile.depth * tile.columns * size,
    bias_bytes_per_tile=tile.columns * cube_core.ACCUMULATOR_BYTES if problem.bias else 0,
    outputs_per_tile=outputs,
    result_bytes_per_tile=outputs * dtypes.size_bytes(problem.result_dtype),
    activation=problem.activation is not None,
    hbm_bytes=counts.dram_bytes,
    num_stages=config.num_stages,
    accumulators=tile.accumulators,
    macs_per_cycle=npu.cube_macs_per_cycle[problem.dtype],
  )


def plan_npu(
  problem: MatmulProblem, config: MatmulConfig, npu: NpuProfile, *, schedule: str = "auto"
) -> TilePlan:
  """Plans one tile on one NPU; see `hw_profiles.plan`."""
  _check_schedule(npu, schedule)
  notes: tuple[str, ...] = ()
  if config.accumulator != "registers":
    notes = (f"accumulator={config.accumulator!r} is not read here: L0C holds it",)
  buffers = cube_core.buffers(problem, config, npu)
  counts = tile_counts(problem, config, wave_programs=npu.aic_count, l2_bytes=npu.l2_bytes)
  waves = wave(programs=counts.tiles, cores=npu.aic_count)
  shortfalls = _shortfalls(problem, config, npu)
  if shortfalls:
    return infeasible_plan(
      problem=problem,
      config=config,
      profile=npu,
      schedule=SCHEDULE,
      reason=remedy.reason(config, shortfalls, lambda other: not _shortfalls(problem, other, npu)),
      binding=tuple(dict.fromkeys(shortfall.resource for shortfall in shortfalls)),
      buffers=buffers,
      traffic=counts.traffic,
      waves=waves,
      notes=notes,
      assumptions=npu_assumptions(npu),
    )
  tile = cube_core.cube_tile(problem, config, npu)
  work = _work(problem, config, npu, tile, counts)
  time = cube_time(npu, work)
  steps = work.tiles * work.k_steps
  accumulator_bytes = work.outputs_per_tile * cube_core.ACCUMULATOR_BYTES
  tiers = {
    "hbm": work.hbm_bytes,
    "l1": counts.l2_bytes - problem.batch * counts.traffic.c_write_bytes,
    "l0": steps * (work.a_bytes_per_step + work.b_bytes_per_step),
    "l0c": work.tiles * accumulator_bytes,
  }
  if work.activation:
    tiers["ub"] = work.tiles * accumulator_bytes
  return TilePlan(
    problem=problem,
    config=config,
    profile=npu.name,
    vendor=npu.vendor,
    schedule=SCHEDULE,
    fits=True,
    reason="",
    binding=_binding(buffers),
    buffers=buffers,
    resident_blocks=tile.accumulators,
    residency=None,
    traffic=counts.traffic,
    traffic_bytes=FrozenMap(tiers),
    grid=counts.traffic.grid,
    waves=waves.waves,
    tail_efficiency=waves.tail_efficiency,
    times_us=time.times_us,
    predicted_us=time.total_us,
    bound=time.bound,
    notes=(
      *notes,
      *_placement_notes(problem, npu, tile),
      *_padding_to_fractals(config, tile),
      reuse_note(config, counts),
      *padding_note(problem, config, counts.padding_fraction),
    ),
    assumptions=npu_assumptions(npu),
    model_error=median_error(npu),
  )


def _binding(buffers: tuple[Buffer, ...]) -> tuple[str, ...]:
  """The fullest of the memories that the config's sizes fill.

  L0A, L0B and UB are left out: their slices are derived to fill them.
  """
  filled: dict[str, float] = {}
  for buffer in buffers:
    if buffer.space in ("L1", "L0C", "BT"):
      share = buffer.needed_bytes / buffer.available_bytes
      filled[buffer.space] = filled.get(buffer.space, 0.0) + share
  fullest = max(filled.values())
  return tuple(space for space, share in filled.items() if share == fullest)
