"""The transpose's schedule on an SM: a block in by rows, through shared memory, out by rows.

A block is written to shared memory as it is read and read back by columns, so
that both sides of device memory see whole runs; banks are what its layout is for.
"""

from hw_profiles import dtypes
from hw_profiles.arguments import ceil_div, round_up
from hw_profiles.capacity.buffers import Buffer, Shortfall, larger_first
from hw_profiles.capacity.residency import residency
from hw_profiles.cost.sm_time import SmAmounts
from hw_profiles.cost.stream_time import SmPass, sm_stream_time
from hw_profiles.cost.wave import wave
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.planner.op_model import Demand, Execution
from hw_profiles.profile import GpuProfile
from hw_profiles.rowwise.block_threads import (
  power_of_two_shortfalls,
  register_bytes,
  registers_per_thread,
  thread_shortfalls,
  threads,
)
from hw_profiles.rowwise.cache import is_warm, warm_note
from hw_profiles.rowwise.config import RowConfig
from hw_profiles.rowwise.problem import TransposeProblem
from hw_profiles.rowwise.stated import l2_assumption, sm_assumptions
from hw_profiles.rowwise.tiling import writer_shortfalls
from hw_profiles.rowwise.traffic import RowTraffic, transpose_traffic
from hw_profiles.rowwise.transpose_shared import block_layout, column_read_ways, swizzle_divides
from hw_profiles.sm_tiling.shared_layout import LAYER_BYTES

NAME = "shared_tile"
# What L2 and DRAM move at least (NVIDIA devices since compute capability 5.0).
SECTOR_BYTES = 32
# What a run costs DRAM beside its bytes. Calibrated: 65536 x 4096 in 16 bits takes
# an H200 277 us in runs of 256 B both ways, 293 with one of 128 B, 300 with both,
# 358 with runs of 64 B.
RUN_BYTES = 11


def _size(problem: TransposeProblem) -> int:
  return dtypes.size_bytes(problem.dtype)


def _shared_bytes(problem: TransposeProblem, config: RowConfig) -> int:
  """The block with its padding; a swizzle that does not fit the row is counted without."""
  size = _size(problem)
  if config.layout == "swizzled":
    return config.block_rows * config.block_cols * size
  return block_layout(config, size_bytes=size).size_bytes


def unsupported(problem: TransposeProblem, gpu: GpuProfile) -> tuple[Shortfall, ...]:
  """Nothing: elements are only moved."""
  return ()


def shortfalls(
  problem: TransposeProblem, config: RowConfig, gpu: GpuProfile
) -> tuple[Shortfall, ...]:
  """Triton's rules and the swizzle's, then shared memory, threads and registers."""
  size = _size(problem)
  found = [*power_of_two_shortfalls(config), *no_splits(config)]
  if config.layout == "swizzled" and not swizzle_divides(config, size_bytes=size):
    found.append(
      Shortfall(
        "shape",
        "tile shape",
        ("block_cols",),
        f"the swizzle permutes whole {LAYER_BYTES} B, a row of the block has"
        f" {config.block_cols * size} B; layout='padded' takes any",
      )
    )
  needed = _shared_bytes(problem, config)
  if needed > gpu.max_shared_bytes_per_block:
    found.append(
      Shortfall(
        "capacity",
        "shared_memory",
        larger_first(block_cols=config.block_cols, block_rows=config.block_rows),
        f"shared memory needs {needed} B for a {config.block_rows}x{config.block_cols}"
        f" {problem.dtype} block, {gpu.name} has {gpu.max_shared_bytes_per_block} B",
      )
    )
  block = f"the {config.block_rows}x{config.block_cols} block"
  found += thread_shortfalls(config, gpu, element_bytes=size, kept=block)
  return tuple(found)


def no_splits(config: RowConfig) -> tuple[Shortfall, ...]:
  """Refuses a split, and several writers: there is no reduction."""
  writers = writer_shortfalls(config, "a transpose")
  if config.num_splits in (None, 1):
    return writers
  statement = "a transpose reduces nothing, so there is nothing to split"
  return (Shortfall("shape", "tile shape", ("num_splits",), statement), *writers)


def demand(problem: TransposeProblem, config: RowConfig, gpu: GpuProfile) -> Demand:
  """The block in shared memory and on its way in registers."""
  size = _size(problem)
  block_bytes = config.block_rows * config.block_cols * size
  traffic = transpose_traffic(problem, config)
  shared = _shared_bytes(problem, config)
  return Demand(
    buffers=(
      Buffer("block", "shared", shared, gpu.max_shared_bytes_per_block, 1),
      Buffer("elements", "registers", block_bytes, register_bytes(config, gpu), 1),
    ),
    traffic=traffic,
    tiles=problem.batch * traffic.grid[0] * traffic.grid[1],
    cores=gpu.sm_count,
    execution=lambda: _execution(problem, config, gpu, shared),
    assumptions=(
      l2_assumption(warm=problem.warm_l2),
      "registers of the compiled kernel estimated from the tile, not read from a binary",
    ),
    time_assumptions=sm_assumptions(gpu),
  )


def _execution(
  problem: TransposeProblem, config: RowConfig, gpu: GpuProfile, shared_bytes: int
) -> Execution:
  size = _size(problem)
  traffic = transpose_traffic(problem, config)
  tiles = problem.batch * traffic.grid[0] * traffic.grid[1]
  resident = residency(
    gpu,
    threads_per_block=threads(config),
    registers_per_thread=registers_per_thread(config, element_bytes=size),
    shared_bytes_per_block=shared_bytes,
  )
  ways = column_read_ways(config, size_bytes=size)
  block_bytes = config.block_rows * config.block_cols * size
  warm = is_warm(
    asked=problem.warm_l2,
    input_bytes=traffic.input_read_bytes,
    output_bytes=traffic.output_write_bytes,
    l2_bytes=gpu.l2_bytes,
  )
  # runs shorter than a sector move the rest of it, too
  in_run, out_run = config.block_cols * size, config.block_rows * size
  moved = config.block_rows * round_up(in_run, SECTOR_BYTES) + config.block_cols * round_up(
    out_run, SECTOR_BYTES
  )
  one = SmPass(
    programs=tiles,
    resident_blocks=resident.resident_blocks,
    per_program=SmAmounts(l2_bytes=moved, shared_bytes=round(block_bytes * (1 + ways))),
    round_trips=1,
    dram_bytes=0 if warm else traffic.total_bytes + _run_bytes(traffic, in_run, out_run),
  )
  return Execution(
    work=sm_stream_time(gpu, (one,)),
    resident_blocks=resident.resident_blocks,
    residency=resident,
    binding=resident.binding,
    waves=wave(programs=tiles, cores=gpu.sm_count, programs_per_core=resident.resident_blocks),
    traffic_bytes=FrozenMap(dram=one.dram_bytes, l2=tiles * moved, shared=2 * tiles * block_bytes),
    notes=(
      f"{config.layout} block of {shared_bytes} B: a warp that reads it by columns takes"
      f" {ways:g} time(s) the passes of one without conflicts",
      f"runs in device memory: {in_run} B in, {out_run} B out",
      *((warm_note("DRAM"),) if warm else ()),
      *_masked(problem, config),
    ),
  )


def _run_bytes(traffic: RowTraffic, in_run: int, out_run: int) -> int:
  """What the beginnings of runs cost DRAM."""
  runs = traffic.input_read_bytes / in_run + traffic.output_write_bytes / out_run
  return round(RUN_BYTES * runs)


def _masked(problem: TransposeProblem, config: RowConfig) -> tuple[str, ...]:
  rows = ceil_div(problem.rows, config.block_rows) * config.block_rows
  columns = ceil_div(problem.columns, config.block_cols) * config.block_cols
  if not problem.elements or (rows, columns) == (problem.rows, problem.columns):
    return ()
  share = 1 - problem.rows * problem.columns / (rows * columns)
  return (
    f"{problem.rows}x{problem.columns} is covered as {rows}x{columns}:"
    f" {100 * share:.1f} % of the lanes are masked off",
  )
