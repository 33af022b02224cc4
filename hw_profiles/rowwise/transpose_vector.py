"""The transpose's schedule on Ascend: blocks in UB of a vector core.

GM ─MTE2→ UB ─vector, 16 rows x 32 B at a time→ UB ─MTE3→ GM
"""

from hw_profiles import dtypes
from hw_profiles.arguments import ceil_div, round_up
from hw_profiles.capacity.buffers import Buffer, Shortfall, fullest, larger_first
from hw_profiles.cost.stream_time import AivPass, AivPhase, aiv_stream_time
from hw_profiles.cost.wave import wave
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.planner.op_model import Demand, Execution
from hw_profiles.profile import NpuProfile
from hw_profiles.rowwise.cache import is_warm, warm_note
from hw_profiles.rowwise.config import RowConfig
from hw_profiles.rowwise.problem import TransposeProblem
from hw_profiles.rowwise.stated import aiv_assumptions, l2_assumption
from hw_profiles.rowwise.traffic import transpose_traffic
from hw_profiles.rowwise.transpose_tile import no_splits
from hw_profiles.rowwise.vector import row_bytes, vector_core_notes

NAME = "vector"


def _sides(problem: TransposeProblem, config: RowConfig, npu: NpuProfile) -> tuple[int, int]:
  """Bytes of the block as it comes in and as it goes out: whole blocks of 16 rows x 32 B."""
  size = dtypes.size_bytes(problem.dtype)
  rows = round_up(config.block_rows, npu.fractal_rows)
  columns = round_up(config.block_cols, npu.fractal_rows)
  return rows * row_bytes(npu, columns, size), columns * row_bytes(npu, rows, size)


def _buffers(problem: TransposeProblem, config: RowConfig, npu: NpuProfile) -> tuple[Buffer, ...]:
  stages = config.num_stages
  come_in, go_out = _sides(problem, config, npu)
  return (
    Buffer("x", "UB", stages * come_in, npu.ub_bytes, stages),
    Buffer("y", "UB", stages * go_out, npu.ub_bytes, stages),
  )


def unsupported(problem: TransposeProblem, npu: NpuProfile) -> tuple[Shortfall, ...]:
  """Nothing: elements are only moved."""
  return ()


def shortfalls(
  problem: TransposeProblem, config: RowConfig, npu: NpuProfile
) -> tuple[Shortfall, ...]:
  """UB."""
  found = list(no_splits(config))
  needed = sum(buffer.needed_bytes for buffer in _buffers(problem, config, npu))
  if needed > npu.ub_bytes:
    blocks = larger_first(block_cols=config.block_cols, block_rows=config.block_rows)
    found.append(
      Shortfall(
        "capacity",
        "UB",
        ("num_stages", *blocks) if config.num_stages > 2 else (*blocks, "num_stages"),
        f"UB needs {needed} B for {config.num_stages} {config.block_rows}x{config.block_cols}"
        f" {problem.dtype} block(s) and as many transposed, a vector core of {npu.name} has"
        f" {npu.ub_bytes} B",
      )
    )
  return tuple(found)


def demand(problem: TransposeProblem, config: RowConfig, npu: NpuProfile) -> Demand:
  """Blocks before and after."""
  traffic = transpose_traffic(problem, config)
  held = _buffers(problem, config, npu)
  return Demand(
    buffers=held,
    traffic=traffic,
    tiles=problem.batch * traffic.grid[0] * traffic.grid[1],
    cores=npu.aiv_count,
    execution=lambda: _execution(problem, config, npu, held),
    notes=vector_core_notes(config),
    assumptions=(
      l2_assumption(warm=problem.warm_l2),
      "a vector core transposes as fast as it reads and writes: no source gives a rate",
    ),
    time_assumptions=aiv_assumptions(npu),
  )


def _execution(
  problem: TransposeProblem, config: RowConfig, npu: NpuProfile, held: tuple[Buffer, ...]
) -> Execution:
  size = dtypes.size_bytes(problem.dtype)
  traffic = transpose_traffic(problem, config)
  tiles = problem.batch * traffic.grid[0] * traffic.grid[1]
  come_in, go_out = _sides(problem, config, npu)
  rows, columns = min(config.block_rows, problem.rows), min(config.block_cols, problem.columns)
  in_run, out_run = columns * size, rows * size
  aligned = not (in_run % npu.gm_alignment_bytes or out_run % npu.gm_alignment_bytes)
  warm = is_warm(
    asked=problem.warm_l2,
    input_bytes=traffic.input_read_bytes,
    output_bytes=traffic.output_write_bytes,
    l2_bytes=npu.l2_bytes,
  )
  one = AivPass(
    phases=(
      AivPhase(
        steps=ceil_div(tiles, npu.aiv_count),
        load_bytes=rows * columns * size,
        vector_bytes=come_in + go_out,
        store_bytes=rows * columns * size,
      ),
    ),
    slots=config.num_stages,
    hbm_bytes=0 if warm else traffic.total_bytes,
    aligned=aligned,
  )
  return Execution(
    work=aiv_stream_time(npu, (one,)),
    resident_blocks=config.num_stages,
    residency=None,
    binding=fullest(held, ("UB",)),
    waves=wave(programs=tiles, cores=npu.aiv_count),
    traffic_bytes=FrozenMap(hbm=one.hbm_bytes, ub=traffic.total_bytes),
    notes=(
      f"runs in GM: {in_run} B in, {out_run} B out; whole {npu.gm_alignment_bytes} B reach the"
      " full rate",
      *((warm_note("HBM"),) if warm else ()),
    ),
  )
