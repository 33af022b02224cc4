"""The row-wise schedule on Ascend: vector cores (AIV), each with blocks of its own.

    GM ─MTE2→ UB ─vector→ UB ─MTE3→ GM

Cube cores take no part: with two vector cores to each, all of them work. UB
holds `num_stages` blocks of every operand and result, so that copies and
arithmetic overlap, and float32 copies to compute in. Rows lie in UB at
multiples of 32 B; arithmetic on them fills whole repeats of 256 B.
"""

import dataclasses

from hw_profiles.arguments import ceil_div, round_up
from hw_profiles.capacity.buffers import Buffer, Shortfall, fullest, larger_first
from hw_profiles.cost.stream_time import AivPass, AivPhase, aiv_stream_time
from hw_profiles.cost.wave import wave
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.planner.op_model import Demand, Execution
from hw_profiles.profile import NpuProfile
from hw_profiles.rowwise.cache import cache_notes, is_reread_from_l2, is_warm
from hw_profiles.rowwise.config import RowConfig
from hw_profiles.rowwise.problem import RowProblem
from hw_profiles.rowwise.stated import aiv_assumptions, l2_assumption
from hw_profiles.rowwise.streams import (
  STATISTIC_BYTES,
  ElementCost,
  RowOp,
  element_bytes,
  row_op,
)
from hw_profiles.rowwise.tiling import RowTiling, row_tiling, split_shortfalls, writer_shortfalls
from hw_profiles.rowwise.traffic import once_through_bytes, row_traffic

NAME = "vector"
FLOAT_BYTES = 4
# The operand as float32 and one temporary: exp(-x), x² or |x|.
WORK_COPIES = 2


def row_bytes(npu: NpuProfile, columns: int, size_bytes: int) -> int:
  """A row in UB: a copy from GM begins each at the alignment."""
  return round_up(columns * size_bytes, npu.ub_alignment_bytes)


def _buffers(
  config: RowConfig, op: RowOp, tiling: RowTiling, npu: NpuProfile
) -> tuple[Buffer, ...]:
  """Everything one vector core keeps in UB."""
  rows, columns, stages = config.block_rows, config.block_cols, config.num_stages
  held = [
    Buffer(
      stream.name,
      "UB",
      stages * rows * row_bytes(npu, columns, stream.size_bytes),
      npu.ub_bytes,
      stages,
    )
    for stream in (*op.inputs, *op.sum_outputs, *op.outputs)
  ]
  # the whole row of weights stays, a block of it passes with the operands'
  copies = stages if tiling.steps > 1 else 1
  held += [
    Buffer(
      weight.name,
      "UB",
      copies * row_bytes(npu, columns, weight.size_bytes),
      npu.ub_bytes,
      copies,
    )
    for weight in op.weights
  ]
  work = WORK_COPIES * rows * row_bytes(npu, columns, FLOAT_BYTES)
  held.append(Buffer("float32 values", "UB", work, npu.ub_bytes, WORK_COPIES))
  if op.statistics:
    # a reduction leaves one number in a block of its own
    needed = op.statistics * rows * npu.ub_alignment_bytes
    held.append(Buffer("statistics", "UB", needed, npu.ub_bytes, op.statistics))
  return tuple(held)


def unsupported(problem: RowProblem, npu: NpuProfile) -> tuple[Shortfall, ...]:
  """Codes that the cores have no conversions for."""
  if problem.result_dtype != "float8_e4m3fn" or problem.result_dtype in npu.cube_macs_per_cycle:
    return ()
  statement = f"out_dtype='float8_e4m3fn': {npu.name} has no float8; 'int8' works"
  return (Shortfall("unsupported", "dtype", (), statement),)


def shortfalls(problem: RowProblem, config: RowConfig, npu: NpuProfile) -> tuple[Shortfall, ...]:
  """The split's rules, then UB."""
  op = row_op(problem)
  tiling = row_tiling(problem, config, op)
  found = [*split_shortfalls(problem, config), *writer_shortfalls(config, "a vector core")]
  held = _buffers(config, op, tiling, npu)
  needed = sum(buffer.needed_bytes for buffer in held)
  if needed > npu.ub_bytes:
    blocks = larger_first(block_cols=config.block_cols, block_rows=config.block_rows)
    streams = ", ".join(stream.name for stream in (*op.inputs, *op.sum_outputs, *op.outputs))
    found.append(
      Shortfall(
        "capacity",
        "UB",
        ("num_stages", *blocks) if config.num_stages > 2 else (*blocks, "num_stages"),
        f"UB needs {needed} B for {config.num_stages} block(s) of {streams}"
        f" ({config.block_rows}x{config.block_cols} {problem.dtype}) and {WORK_COPIES} float32"
        f" copies, a vector core of {npu.name} has {npu.ub_bytes} B",
      )
    )
  return tuple(found)


def demand(problem: RowProblem, config: RowConfig, npu: NpuProfile) -> Demand:
  """Queues, weights, float32 copies and statistics in UB."""
  op = row_op(problem)
  tiling = row_tiling(problem, config, op)
  held = _buffers(config, op, tiling, npu)
  return Demand(
    buffers=held,
    traffic=row_traffic(problem, config),
    tiles=tiling.programs,
    cores=npu.aiv_count,
    execution=lambda: _execution(problem, config, op, tiling, npu, held),
    notes=vector_core_notes(config),
    assumptions=(l2_assumption(warm=problem.warm_l2),),
    time_assumptions=aiv_assumptions(npu),
  )


def vector_core_notes(config: RowConfig) -> tuple[str, ...]:
  """Fields of the config that vector cores do not read."""
  if config.num_warps is None:
    return ()
  return (f"num_warps={config.num_warps} is not read here: a vector core has no warps",)


def _execution(
  problem: RowProblem,
  config: RowConfig,
  op: RowOp,
  tiling: RowTiling,
  npu: NpuProfile,
  held: tuple[Buffer, ...],
) -> Execution:
  launched = _passes(problem, config, op, tiling, npu)
  traffic = row_traffic(problem, config)
  return Execution(
    work=aiv_stream_time(npu, launched.passes),
    resident_blocks=config.num_stages,
    residency=None,
    binding=fullest(held, ("UB",)),
    waves=wave(programs=tiling.programs, cores=npu.aiv_count),
    traffic_bytes=FrozenMap(
      hbm=sum(one.hbm_bytes for one in launched.passes), ub=traffic.total_bytes
    ),
    notes=(
      _form(problem, config, npu, tiling),
      *cache_notes(tiling, "HBM", warm=launched.warm, reread_from_l2=launched.reread_from_l2),
      *_alignment_notes(problem, npu),
    ),
  )


@dataclasses.dataclass(frozen=True)
class _Launched:
  """The launches, whether L2 serves everything, and whether it serves a second read."""

  passes: tuple[AivPass, ...]
  warm: bool
  reread_from_l2: bool


class _Steps:
  """Phases of the busiest core: the tiles it gets, each in steps."""

  def __init__(
    self, problem: RowProblem, config: RowConfig, tiling: RowTiling, npu: NpuProfile
  ) -> None:
    self.rows = min(config.block_rows, max(problem.rows, 1))
    self.columns = min(config.block_cols, max(tiling.segment_columns, 1), max(problem.columns, 1))
    self.count = ceil_div(tiling.programs, npu.aiv_count) * tiling.steps
    repeat = round_up(self.columns * FLOAT_BYTES, npu.vector_bytes_per_cycle)
    self._computed = self.rows * repeat // FLOAT_BYTES

  def phase(self, cost: ElementCost, *, load: int, store: int, column_load: int = 0) -> AivPhase:
    """A phase in which each element loads and stores that many bytes, weights beside."""
    elements = self.rows * self.columns
    return AivPhase(
      steps=self.count,
      load_bytes=elements * load + self.columns * column_load,
      vector_bytes=self._computed * cost.operations * FLOAT_BYTES,
      exp_elements=self._computed * cost.exp_operations,
      store_bytes=elements * store,
    )


def _passes(
  problem: RowProblem, config: RowConfig, op: RowOp, tiling: RowTiling, npu: NpuProfile
) -> _Launched:
  steps = _Steps(problem, config, tiling, npu)
  read, written = element_bytes(op.inputs), element_bytes(op.outputs)
  summed, again = element_bytes(op.sum_outputs), element_bytes(op.reread)
  weight = element_bytes(op.weights)
  elements = problem.elements
  weights = problem.columns * weight if problem.rows else 0
  warm = is_warm(
    asked=problem.warm_l2,
    input_bytes=elements * read + weights,
    output_bytes=elements * (summed + written),
    l2_bytes=npu.l2_bytes,
  )

  def launch(*phases: AivPhase, hbm_bytes: int) -> AivPass:
    return AivPass(
      phases=phases,
      slots=config.num_stages,
      hbm_bytes=0 if warm else hbm_bytes,
      aligned=not _misaligned(problem, npu),
    )

  once_bytes = once_through_bytes(problem)
  if tiling.form in ("elementwise", "kept"):
    # kept weights stay in UB for all of a core's rows
    phase = steps.phase(op.once, load=read, store=summed + written)
    return _Launched((launch(phase, hbm_bytes=once_bytes),), warm, reread_from_l2=True)

  reduce = steps.phase(
    op.reduce, load=read, store=summed, column_load=weight if op.reduce_reads_weights else 0
  )
  outputs = steps.phase(op.recompute + op.apply, load=again, store=written, column_load=weight)
  if tiling.form == "walked_twice":
    between = min(npu.aiv_count * steps.rows, problem.rows) * problem.columns * (read + summed)
    hit = is_reread_from_l2(between_bytes=between, l2_bytes=npu.l2_bytes)
    missed_bytes = 0 if hit else elements * again
    one = launch(reduce, outputs, hbm_bytes=once_bytes + missed_bytes)
    return _Launched((one,), warm, reread_from_l2=hit)

  statistic = op.statistics * STATISTIC_BYTES
  hit = is_reread_from_l2(between_bytes=elements * (read + summed), l2_bytes=npu.l2_bytes)
  merge = AivPhase(
    steps=ceil_div(tiling.row_blocks, npu.aiv_count),
    load_bytes=steps.rows * tiling.column_blocks * statistic,
    vector_bytes=steps.rows * tiling.column_blocks * statistic,
    store_bytes=steps.rows * statistic,
  )
  passes = (
    launch(
      reduce,
      hbm_bytes=elements * (read + summed)
      + (weights if op.reduce_reads_weights else 0)
      + problem.rows * tiling.column_blocks * statistic,
    ),
    launch(merge, hbm_bytes=problem.rows * statistic),
    launch(outputs, hbm_bytes=elements * (written + (0 if hit else again)) + weights),
  )
  return _Launched(passes, warm, reread_from_l2=hit)


def _misaligned(problem: RowProblem, npu: NpuProfile) -> bool:
  """Whether rows of the operands begin off the boundary that GM serves at full rate."""
  pitch = problem.columns * element_bytes(row_op(problem).inputs[:1])
  return problem.rows > 1 and pitch % npu.gm_alignment_bytes != 0


def _form(problem: RowProblem, config: RowConfig, npu: NpuProfile, tiling: RowTiling) -> str:
  cores = f"{npu.aiv_count} vector cores"
  held = f"{config.num_stages} block(s) of {config.block_rows}x{config.block_cols} in flight each"
  if tiling.form == "elementwise":
    return f"each element stands alone: {cores}, {held}"
  if tiling.form == "kept":
    return f"whole rows of {problem.columns} stay in UB and are read once: {cores}, {held}"
  if tiling.form == "walked_twice":
    return f"rows are walked twice in {tiling.steps} blocks: {cores}, {held}"
  return (
    f"{tiling.column_blocks} segments of {tiling.segment_columns} columns a row,"
    f" {tiling.launches} launches: partial statistics, their merge in order, the outputs"
  )


def _alignment_notes(problem: RowProblem, npu: NpuProfile) -> tuple[str, ...]:
  if not _misaligned(problem, npu):
    return ()
  pitch = problem.columns * element_bytes(row_op(problem).inputs[:1])
  return (
    f"rows of {pitch} B begin off the {npu.gm_alignment_bytes} B that GM serves at full rate",
  )
