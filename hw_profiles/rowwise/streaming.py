"""The row-wise schedule on an SM: a grid of thread blocks, elements in registers.

    elementwise     load a block, compute, store
    kept            load whole rows, reduce, compute, store: the row is read once,
                    or by each of several programs that write a part of it
    walked twice    reduce a row block by block, then read it again and store
    split           the same in three launches, a program for each segment

Loads are as wide as the rows' alignment allows, up to 16 B a thread. A program
that walks several blocks has `num_stages` of them under way in shared memory.
"""

from hw_profiles.arguments import round_up
from hw_profiles.capacity.buffers import Buffer, Shortfall, larger_first
from hw_profiles.capacity.residency import residency
from hw_profiles.cost.in_flight import in_flight
from hw_profiles.cost.stream_time import sm_stream_time
from hw_profiles.cost.wave import wave
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.planner.op_model import Demand, Execution
from hw_profiles.profile import E4M3_COMPUTE_CAPABILITY, GpuProfile
from hw_profiles.rowwise.block_threads import (
  power_of_two_shortfalls,
  register_bytes,
  registers_per_thread,
  thread_shortfalls,
  threads,
  warps,
)
from hw_profiles.rowwise.cache import cache_notes
from hw_profiles.rowwise.config import RowConfig
from hw_profiles.rowwise.problem import RowProblem
from hw_profiles.rowwise.sm_passes import sm_passes
from hw_profiles.rowwise.stated import l2_assumption, sm_assumptions
from hw_profiles.rowwise.streams import STATISTIC_BYTES, RowOp, element_bytes, row_op
from hw_profiles.rowwise.tiling import RowTiling, row_tiling, split_shortfalls, writer_shortfalls
from hw_profiles.rowwise.traffic import row_traffic

NAME = "streaming"
_WIDEST_LOAD_BYTES = 16


def _is_staged(config: RowConfig, tiling: RowTiling) -> bool:
  """Whether blocks pass through shared memory: only a loop's loads are pipelined."""
  return tiling.steps > 1 and config.num_stages > 1


def _scratch_bytes(config: RowConfig, op: RowOp) -> int:
  """What warps exchange to reduce a row together."""
  count = warps(config)
  return count * config.block_rows * op.statistics * STATISTIC_BYTES if count > 1 else 0


def _stage_bytes(config: RowConfig, op: RowOp) -> int:
  block = config.block_rows * config.block_cols
  return block * element_bytes(op.inputs) + config.block_cols * element_bytes(op.weights)


def _shared_bytes(config: RowConfig, op: RowOp, tiling: RowTiling) -> int:
  staged = config.num_stages * _stage_bytes(config, op) if _is_staged(config, tiling) else 0
  return staged + _scratch_bytes(config, op)


def _buffers(
  config: RowConfig, op: RowOp, tiling: RowTiling, gpu: GpuProfile
) -> tuple[Buffer, ...]:
  """Everything one thread block keeps on its SM."""
  block = config.block_rows * config.block_cols
  registers, shared = register_bytes(config, gpu), gpu.max_shared_bytes_per_block
  staged = _is_staged(config, tiling)
  space, available = ("shared", shared) if staged else ("registers", registers)
  copies = config.num_stages if staged else 1
  held = [
    Buffer(stream.name, space, copies * block * stream.size_bytes, available, copies)
    for stream in op.inputs
  ]
  held += [
    Buffer(w.name, space, copies * config.block_cols * w.size_bytes, available, copies)
    for w in op.weights
  ]
  held.append(Buffer("float32 values", "registers", 4 * block, registers, 1))
  if scratch := _scratch_bytes(config, op):
    held.append(Buffer("reduction", "shared", scratch, shared, 1))
  return tuple(held)


def unsupported(problem: RowProblem, gpu: GpuProfile) -> tuple[Shortfall, ...]:
  """Codes that the device has no conversions for."""
  if problem.result_dtype != "float8_e4m3fn" or gpu.compute_capability >= E4M3_COMPUTE_CAPABILITY:
    return ()
  needed, has = (".".join(map(str, x)) for x in (E4M3_COMPUTE_CAPABILITY, gpu.compute_capability))
  statement = (
    f"out_dtype='float8_e4m3fn' needs compute capability {needed}, {gpu.name} has {has};"
    " 'int8' works"
  )
  return (Shortfall("unsupported", "dtype", (), statement),)


def shortfalls(problem: RowProblem, config: RowConfig, gpu: GpuProfile) -> tuple[Shortfall, ...]:
  """Triton's and the split's rules, then shared memory, threads and registers."""
  op = row_op(problem)
  tiling = row_tiling(problem, config, op)
  found = [
    *power_of_two_shortfalls(config, in_pieces=tiling.form == "kept"),
    *split_shortfalls(problem, config, op),
    *writer_shortfalls(config, tiling.form),
  ]
  needed = _shared_bytes(config, op, tiling)
  blocks = larger_first(block_cols=config.block_cols, block_rows=config.block_rows)
  if needed > gpu.max_shared_bytes_per_block:
    streams = ", ".join(stream.name for stream in (*op.inputs, *op.weights))
    found.append(
      Shortfall(
        "capacity",
        "shared_memory",
        ("num_stages", *blocks) if config.num_stages > 2 else (*blocks, "num_stages"),
        f"shared memory needs {needed} B for {config.num_stages} stage(s) of {streams}"
        f" ({config.block_rows}x{config.block_cols} {problem.dtype}) and the reduction,"
        f" {gpu.name} has {gpu.max_shared_bytes_per_block} B",
      )
    )
  block = f"the {config.block_rows}x{config.block_cols} block of {len(op.inputs)} operand(s)"
  found += thread_shortfalls(config, gpu, element_bytes=element_bytes(op.inputs), kept=block)
  return tuple(found)


def demand(problem: RowProblem, config: RowConfig, gpu: GpuProfile) -> Demand:
  """Blocks in registers or staged, and the reduction's scratch."""
  op = row_op(problem)
  tiling = row_tiling(problem, config, op)
  return Demand(
    buffers=_buffers(config, op, tiling, gpu),
    traffic=row_traffic(problem, config),
    tiles=tiling.programs,
    cores=gpu.sm_count,
    execution=lambda: _execution(problem, config, op, tiling, gpu),
    assumptions=(
      l2_assumption(warm=problem.warm_l2),
      "registers of the compiled kernel estimated from the tile, not read from a binary",
    ),
    time_assumptions=sm_assumptions(gpu),
  )


def _execution(
  problem: RowProblem, config: RowConfig, op: RowOp, tiling: RowTiling, gpu: GpuProfile
) -> Execution:
  shared_bytes = _shared_bytes(config, op, tiling)
  resident = residency(
    gpu,
    threads_per_block=threads(config),
    registers_per_thread=registers_per_thread(config, element_bytes=element_bytes(op.inputs)),
    shared_bytes_per_block=shared_bytes,
  )
  blocks = resident.resident_blocks
  passes = sm_passes(problem, config, op, tiling, gpu, resident_blocks=blocks)
  traffic = row_traffic(problem, config)
  staged = traffic.input_read_bytes + traffic.weight_read_bytes if shared_bytes else 0
  under_way = min(config.num_stages, tiling.steps) * _stage_bytes(config, op)
  flight = in_flight(
    gpu,
    resident_warps=resident.resident_warps,
    loads_per_warp=1,
    latency_ns=gpu.dram_latency_ns,
    bytes_per_load=max(under_way // warps(config), 1),
  )
  return Execution(
    work=sm_stream_time(gpu, passes.passes),
    resident_blocks=blocks,
    residency=resident,
    binding=resident.binding,
    waves=wave(programs=tiling.programs, cores=gpu.sm_count, programs_per_core=blocks),
    traffic_bytes=FrozenMap(
      dram=sum(one.dram_bytes for one in passes.passes),
      l2=traffic.total_bytes,
      shared=2 * staged if _is_staged(config, tiling) else 0,
    ),
    notes=(
      _form(problem, config, op, tiling),
      f"loads under way: {flight.available_bytes_per_sm / 1024:.1f} KiB an SM with every place"
      f" taken, {flight.required_bytes_per_sm / 1024:.1f} KiB keep DRAM busy",
      *cache_notes(tiling, "DRAM", warm=passes.warm, reread_from_l2=passes.reread_from_l2),
      *_lane_notes(problem, config, tiling),
    ),
  )


def _form(problem: RowProblem, config: RowConfig, op: RowOp, tiling: RowTiling) -> str:
  if tiling.form == "elementwise":
    return "each element stands alone: a program for each block, in one launch"
  if tiling.form == "kept" and tiling.column_blocks > 1:
    return (
      f"{tiling.column_blocks} programs for each {config.block_rows} row(s) of {problem.columns}:"
      f" each reads and reduces them whole and writes {tiling.segment_columns} columns, in one"
      " launch"
    )
  if tiling.form == "kept":
    return (
      f"a program keeps its {config.block_rows} row(s) of {problem.columns} in registers, so"
      " they are read once, in one launch"
    )
  if tiling.form == "walked_twice":
    return (
      f"a program walks its {config.block_rows} row(s) twice in {tiling.steps} blocks, in one"
      " launch: first the reduction, then the outputs"
    )
  return (
    f"{tiling.column_blocks} segments of {tiling.segment_columns} columns a row,"
    f" {tiling.launches} launches: {op.statistics} partial statistic(s) of each, their merge in"
    " order, the outputs"
  )


def _lane_notes(problem: RowProblem, config: RowConfig, tiling: RowTiling) -> tuple[str, ...]:
  """Lanes that are masked off, and loads that alignment narrows."""
  notes = []
  computed = tiling.steps * config.block_cols
  if tiling.form in ("elementwise", "split"):
    computed *= tiling.column_blocks
  padded = [
    f"{side}={size} is computed as {held}"
    for side, size, held in (
      ("rows", problem.rows, round_up(problem.rows, config.block_rows)),
      ("columns", problem.columns, computed),
    )
    if size and size != held
  ]
  if padded and problem.elements:
    lanes = round_up(problem.rows, config.block_rows) * computed
    share = 1 - problem.elements / lanes
    notes.append(f"{', '.join(padded)}: {100 * share:.1f} % of the lanes are masked off")
  pitch = problem.columns * element_bytes(row_op(problem).inputs[:1])
  aligned = pitch & -pitch
  if pitch and aligned < _WIDEST_LOAD_BYTES and problem.rows > 1:
    notes.append(f"rows of {pitch} B begin off {_WIDEST_LOAD_BYTES} B: loads of {aligned} B")
  return tuple(notes)
