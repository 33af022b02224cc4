"""The matmul's schedule on Ascend: one cube core (AIC) and its vector cores (AIV).

    GM ─MTE2→ L1 ─MTE1→ L0A, L0B ─cube→ L0C ─FixPipe→ GM              no activation
    L0C ─FixPipe→ GM ─MTE2→ UB ─vector, MTE3→ GM                      silu on 910B
    L0C ─FixPipe→ UB ─vector, MTE3→ GM                                silu on 950

Operands lie in fractals of 16 rows x 32 B, so M and N are padded to 16 and K to
32 B. The bias enters through BT as the accumulator's first value.
"""

import dataclasses

from hw_profiles import dtypes
from hw_profiles.activations import activation_cost
from hw_profiles.arguments import ceil_div, round_up
from hw_profiles.capacity.buffers import Buffer, Shortfall, fullest, larger_first
from hw_profiles.cost.arithmetic import missing_cube_rate
from hw_profiles.cost.l2_reuse import L2_OPERAND_FRACTION
from hw_profiles.cost.npu_time import NpuAmounts, NpuWork
from hw_profiles.cost.stream_time import UNALIGNED_RATE
from hw_profiles.cost.wave import wave
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.matmul.config import MatmulConfig
from hw_profiles.matmul.problem import MatmulProblem
from hw_profiles.matmul.tile_counts import (
  L2_ASSUMPTION,
  TileCounts,
  tile_count,
  tile_counts,
  tile_notes,
  tile_traffic,
)
from hw_profiles.matmul.traffic import MatmulTraffic
from hw_profiles.planner.op_model import Demand, Execution
from hw_profiles.profile import NpuProfile

NAME = "cube"
# L0A, L0B and the UB queues hold two of everything, so that the next slice
# arrives while this one is used (the vendor's libraries all do).
PING_PONG = 2
ACCUMULATOR_BYTES = 4  # float32, or int32 for int8 operands


@dataclasses.dataclass(frozen=True)
class CubeTile:
  """A tile as the cube core holds it: sizes padded to fractals.

  Attributes:
    rows: Rows of A and C.
    columns: Columns of B and C.
    depth: Depth of the L1 tiles.
    fractal_depth: Elements of K in one fractal.
    l0_depth: Depth of the slices in L0A and L0B: the largest multiple of
      `fractal_depth`, up to `depth`, of which two fit in each; 0 where not even
      one fractal does.
    accumulators: Tiles of C that L0C holds: 2 lets FixPipe drain one while the
      cube fills the other.
    slab_rows: Rows that a vector core activates at a time; 0 where there is no
      activation, or not even one fractal's rows fit.
    vector_rows: Rows of the tile that one vector core activates.
  """

  rows: int
  columns: int
  depth: int
  fractal_depth: int
  l0_depth: int
  accumulators: int
  slab_rows: int
  vector_rows: int


def _activation_bytes_per_element(problem: MatmulProblem) -> int:
  """UB bytes an element of the slab takes.

  Float32 in from each product and the result out, two of each, and one float32
  temporary for exp(-x): 16 B for a 16-bit result of one product.
  """
  result = dtypes.size_bytes(problem.result_dtype)
  return PING_PONG * (problem.products * ACCUMULATOR_BYTES + result) + ACCUMULATOR_BYTES


def cube_tile(problem: MatmulProblem, config: MatmulConfig, npu: NpuProfile) -> CubeTile:
  """Pads the tile and derives what the config leaves open."""
  size = dtypes.size_bytes(problem.dtype)
  fractal_depth = npu.c0_bytes // size
  rows = round_up(config.block_m, npu.fractal_rows)
  columns = round_up(config.block_n, npu.fractal_rows)
  depth = round_up(config.block_k, fractal_depth)
  deepest = min(
    npu.l0a_bytes // (PING_PONG * rows * size), npu.l0b_bytes // (PING_PONG * columns * size)
  )
  accumulator = problem.products * rows * columns * ACCUMULATOR_BYTES
  slab_rows = vector_rows = 0
  if problem.activation is not None:
    vector_rows = ceil_div(rows, npu.vector_cores_per_cube_core)
    row_bytes = columns * _activation_bytes_per_element(problem)
    fitting = npu.ub_bytes // row_bytes // npu.fractal_rows * npu.fractal_rows
    slab_rows = min(round_up(vector_rows, npu.fractal_rows), fitting)
  return CubeTile(
    rows=rows,
    columns=columns,
    depth=depth,
    fractal_depth=fractal_depth,
    l0_depth=min(depth, deepest // fractal_depth * fractal_depth),
    accumulators=2 if 2 * accumulator <= npu.l0c_bytes else 1,
    slab_rows=slab_rows,
    vector_rows=vector_rows,
  )


def _l1_bias_bytes(problem: MatmulProblem, tile: CubeTile) -> int:
  return tile.columns * ACCUMULATOR_BYTES if problem.bias else 0


def _buffers(problem: MatmulProblem, config: MatmulConfig, npu: NpuProfile) -> tuple[Buffer, ...]:
  """Everything one cube core and one of its vector cores keep."""
  tile = cube_tile(problem, config, npu)
  size = dtypes.size_bytes(problem.dtype)
  stages = config.num_stages
  slice_depth = max(tile.l0_depth, tile.fractal_depth)
  accumulator = problem.products * tile.rows * tile.columns * ACCUMULATOR_BYTES
  held = [
    Buffer("A", "L1", stages * tile.rows * tile.depth * size, npu.l1_bytes, stages),
    Buffer(
      "B",
      "L1",
      stages * problem.products * tile.depth * tile.columns * size,
      npu.l1_bytes,
      stages,
    ),
    Buffer("A slice", "L0A", PING_PONG * tile.rows * slice_depth * size, npu.l0a_bytes, PING_PONG),
    Buffer(
      "B slice", "L0B", PING_PONG * slice_depth * tile.columns * size, npu.l0b_bytes, PING_PONG
    ),
    Buffer("accumulator", "L0C", tile.accumulators * accumulator, npu.l0c_bytes, tile.accumulators),
  ]
  if problem.bias:
    bias = _l1_bias_bytes(problem, tile)
    held.append(Buffer("bias", "L1", bias, npu.l1_bytes, 1))
    held.append(Buffer("bias", "BT", bias, npu.bt_bytes, 1))
  if problem.activation is not None:
    slab = max(tile.slab_rows, npu.fractal_rows) * tile.columns
    needed = slab * _activation_bytes_per_element(problem)
    held.append(Buffer("activation slab", "UB", needed, npu.ub_bytes, PING_PONG))
    if not npu.has_l0c_to_ub:
      workspace = PING_PONG * npu.aic_count * accumulator
      held.append(Buffer("workspace", "GM", workspace, npu.hbm_bytes, PING_PONG))
  return tuple(held)


def unsupported(problem: MatmulProblem, npu: NpuProfile) -> tuple[Shortfall, ...]:
  """A dtype the cube does not multiply."""
  return missing_cube_rate(problem.dtype, npu)


def shortfalls(
  problem: MatmulProblem, config: MatmulConfig, npu: NpuProfile
) -> tuple[Shortfall, ...]:
  """L1, L0A, L0B, L0C, BT and UB against what the tile needs."""
  tile = cube_tile(problem, config, npu)
  size = dtypes.size_bytes(problem.dtype)
  stages = config.num_stages
  sides = larger_first(block_n=config.block_n, block_m=config.block_m)
  found = []

  bias = _l1_bias_bytes(problem, tile)
  needed = stages * (tile.rows + problem.products * tile.columns) * tile.depth * size + bias
  if needed > npu.l1_bytes:
    fields = ("block_k", *sides)
    found.append(
      Shortfall(
        "capacity",
        "L1",
        ("num_stages", *fields) if stages > 2 else (*fields, "num_stages"),
        f"L1 needs {needed} B for {stages} stage(s) of A"
        f" ({tile.rows}x{tile.depth} {problem.dtype}) and B ({tile.depth}x{tile.columns})"
        f"{' and a bias row' if bias else ''}, {npu.name} has {npu.l1_bytes} B",
      )
    )
  for space, field, side, capacity in (
    ("L0A", "block_m", tile.rows, npu.l0a_bytes),
    ("L0B", "block_n", tile.columns, npu.l0b_bytes),
  ):
    needed = PING_PONG * side * tile.fractal_depth * size
    if needed > capacity:
      found.append(
        Shortfall(
          "capacity",
          space,
          (field,),
          f"{space} needs {needed} B for {PING_PONG} slices one fractal deep"
          f" ({side}x{tile.fractal_depth} {problem.dtype}), {npu.name} has {capacity} B",
        )
      )
  needed = problem.products * tile.rows * tile.columns * ACCUMULATOR_BYTES
  if needed > npu.l0c_bytes:
    found.append(
      Shortfall(
        "capacity",
        "L0C",
        sides,
        f"L0C needs {needed} B for {'a' if problem.products == 1 else problem.products}"
        f" {tile.rows}x{tile.columns} float32 accumulator{'s' if problem.products > 1 else ''},"
        f" {npu.name} has {npu.l0c_bytes} B",
      )
    )
  if bias > npu.bt_bytes:
    found.append(
      Shortfall(
        "capacity",
        "BT",
        ("block_n",),
        f"BT needs {bias} B for {tile.columns} float32 biases, {npu.name} has {npu.bt_bytes} B",
      )
    )
  if problem.activation is not None and tile.slab_rows == 0:
    needed = npu.fractal_rows * tile.columns * _activation_bytes_per_element(problem)
    found.append(
      Shortfall(
        "capacity",
        "UB",
        ("block_n",),
        f"UB needs {needed} B to activate {npu.fractal_rows} rows of {tile.columns} columns,"
        f" {npu.name} has {npu.ub_bytes} B",
      )
    )
  return tuple(found)


def demand(problem: MatmulProblem, config: MatmulConfig, npu: NpuProfile) -> Demand:
  """Operand tiles, slices, accumulators, bias, activation slab and workspace."""
  tile = cube_tile(problem, config, npu)
  # L0A, L0B and UB bind nothing: their slices are derived to fill them
  return demand_of(
    problem, config, npu, tile, _buffers(problem, config, npu), binding=("L1", "L0C", "BT")
  )


def demand_of(
  problem: MatmulProblem,
  config: MatmulConfig,
  npu: NpuProfile,
  tile: CubeTile,
  held: tuple[Buffer, ...],
  *,
  binding: tuple[str, ...],
) -> Demand:
  """`demand` of a tile that is held so; of the spaces `binding` the fullest binds."""
  notes: tuple[str, ...] = ()
  if config.accumulator != "registers":
    notes += (f"accumulator={config.accumulator!r} is not read here: L0C holds it",)
  if config.split_k > 1:
    notes += (f"split_k={config.split_k} is not read here: a core walks all of K",)
    config = dataclasses.replace(config, split_k=1)
  traffic = tile_traffic(problem, config)
  return Demand(
    buffers=held,
    traffic=traffic,
    tiles=tile_count(problem, traffic),
    cores=npu.aic_count,
    execution=lambda: _execution(problem, config, npu, traffic, tile, fullest(held, binding)),
    notes=notes,
    assumptions=(
      L2_ASSUMPTION,
      f"when the kernel ends L2 still has C, up to {100 * (1 - L2_OPERAND_FRACTION):.0f} % of L2",
      f"operands whose rows begin off {npu.gm_alignment_bytes} B load at"
      f" {100 * UNALIGNED_RATE:.0f} % of the rate",
      "L0A/L0B slices are this planner's: Huawei's compiler reports no L0A or L0B use",
    ),
  )


def _execution(
  problem: MatmulProblem,
  config: MatmulConfig,
  npu: NpuProfile,
  traffic: MatmulTraffic,
  tile: CubeTile,
  binding: tuple[str, ...],
) -> Execution:
  counts = tile_counts(problem, config, traffic, wave_programs=npu.aic_count, l2_bytes=npu.l2_bytes)
  work = _work(problem, config, npu, tile, counts)
  accumulator_bytes = problem.products * tile.rows * tile.columns * ACCUMULATOR_BYTES
  tiers = {
    "hbm": work.hbm_bytes,
    "l1": counts.l2_bytes - problem.batch * traffic.c_write_bytes,
    "l0": work.tiles * work.steps * work.per_step.l1_bytes,
    "l0c": work.tiles * accumulator_bytes,
  }
  if problem.activation is not None:
    tiers["ub"] = work.tiles * accumulator_bytes
  return Execution(
    work=work,
    resident_blocks=tile.accumulators,
    residency=None,
    binding=binding,
    waves=wave(programs=counts.tiles, cores=npu.aic_count),
    traffic_bytes=FrozenMap(tiers),
    notes=(
      *_placement_notes(problem, npu, tile),
      *_padding_to_fractals(config, tile),
      *tile_notes(problem, config, counts),
    ),
  )


def _work(
  problem: MatmulProblem,
  config: MatmulConfig,
  npu: NpuProfile,
  tile: CubeTile,
  counts: TileCounts,
) -> NpuWork:
  size = dtypes.size_bytes(problem.dtype)
  steps = counts.traffic.k_steps
  # the last step is as deep as what is left of K, in whole fractals
  depth = round_up(problem.k, tile.fractal_depth) / max(steps, 1)
  a_bytes = round(tile.rows * depth * size)
  b_bytes = round(problem.products * depth * tile.columns * size)
  return NpuWork(
    core="AIC" if problem.activation is None else "mixed",
    tiles=counts.tiles,
    steps=steps,
    per_step=NpuAmounts(
      l1_bytes=a_bytes + b_bytes,
      l0a_bytes=a_bytes,
      l0b_bytes=b_bytes,
      macs=round(problem.products * tile.rows * tile.columns * depth),
    ),
    per_tile=_epilogue(problem, npu, tile),
    hbm_bytes=counts.dram_bytes - _kept_results(problem, npu, counts),
    cold_fraction=1.0,
    load_efficiency=_load_efficiency(problem, npu, a_bytes=a_bytes, b_bytes=b_bytes),
    num_stages=config.num_stages,
    accumulators=tile.accumulators,
    macs_per_cycle=npu.cube_macs_per_cycle[problem.dtype],
  )


def _load_efficiency(
  problem: MatmulProblem, npu: NpuProfile, *, a_bytes: int, b_bytes: int
) -> float:
  """Share of the load rate that a step's operands reach, as their rows lie in GM."""
  size = dtypes.size_bytes(problem.dtype)
  needed = 0.0
  for loaded, row in ((a_bytes, problem.k), (b_bytes, problem.n)):
    needed += loaded / (UNALIGNED_RATE if row * size % npu.gm_alignment_bytes else 1.0)
  return (a_bytes + b_bytes) / needed if needed else 1.0


def _kept_results(problem: MatmulProblem, npu: NpuProfile, counts: TileCounts) -> int:
  """Bytes of C that L2 still holds when the kernel ends: they go to HBM later, if ever."""
  room = int(npu.l2_bytes * (1 - L2_OPERAND_FRACTION))
  return min(problem.batch * counts.traffic.c_write_bytes, room)


def _epilogue(problem: MatmulProblem, npu: NpuProfile, tile: CubeTile) -> NpuAmounts:
  """The bias into BT; C out through FixPipe, with an activation by way of UB."""
  outputs = tile.rows * tile.columns
  result_bytes = outputs * dtypes.size_bytes(problem.result_dtype)
  bt_bytes = _l1_bias_bytes(problem, tile)
  if problem.activation is None:
    return NpuAmounts(bt_bytes=bt_bytes, l0c_to_gm_bytes=result_bytes)
  accumulator_bytes = problem.products * outputs * ACCUMULATOR_BYTES
  cost = activation_cost(problem.activation)
  direct = npu.has_l0c_to_ub
  return NpuAmounts(
    bt_bytes=bt_bytes,
    l0c_to_ub_bytes=accumulator_bytes if direct else 0,
    l0c_to_gm_bytes=0 if direct else accumulator_bytes,
    gm_to_ub_bytes=0 if direct else accumulator_bytes,
    vector_bytes=cost.vector_operations * accumulator_bytes,
    exp_elements=cost.exp_operations * outputs,
    ub_to_gm_bytes=result_bytes,
  )


def _placement_notes(problem: MatmulProblem, npu: NpuProfile, tile: CubeTile) -> tuple[str, ...]:
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


def _padding_to_fractals(config: MatmulConfig, tile: CubeTile) -> tuple[str, ...]:
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
