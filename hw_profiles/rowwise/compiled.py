"""The row-wise ops and the transpose as Huawei's compiler gives their kernels UB.

Vector cores alone work, each on blocks of its own. Copies of what is loaded overlap
with arithmetic only where a program walks a row in a loop.
"""

import dataclasses
from typing import Any

from hw_profiles import dtypes
from hw_profiles.capacity.buffers import Buffer, Shortfall, larger_first
from hw_profiles.capacity.compiled import (
  NAME,
  TIME_ASSUMPTION,
  Memories,
  not_lowered,
  overfull,
  shape_shortfalls,
  ub_buffers,
)
from hw_profiles.planner.op_model import Demand
from hw_profiles.profile import NpuProfile
from hw_profiles.rowwise import transpose_vector, vector
from hw_profiles.rowwise.compiled_temporaries import has_temporaries, temporaries
from hw_profiles.rowwise.config import RowConfig
from hw_profiles.rowwise.problem import RmsNormProblem, RowProblem, TransposeProblem
from hw_profiles.rowwise.tiling import num_splits, split_shortfalls, writer_shortfalls

__all__ = ["NAME", "compiled_buffers", "demand", "shortfalls", "unsupported"]

_Problem = RowProblem | TransposeProblem


def compiled_buffers(
  problem: _Problem, config: RowConfig, memories: Memories
) -> tuple[Buffer, ...]:
  """What the compiled kernel keeps in UB of a vector core.

  Args:
    problem: One that `unsupported` has nothing against.
    config: The tile.
    memories: The device.
  """
  return ub_buffers(*temporaries(problem, config, memories), memories)


def _result_differs(problem: Any) -> bool:
  """Whether a plain result is stored in another size than the operands have."""
  if isinstance(problem, TransposeProblem) or problem.result_dtype == "int8":
    return False
  return dtypes.size_bytes(problem.result_dtype) != dtypes.size_bytes(problem.dtype)


def unsupported(problem: _Problem, npu: NpuProfile) -> tuple[Shortfall, ...]:
  """What the route has no kernel for, or this model no constants."""
  dtype, result = problem.dtype, getattr(problem, "result_dtype", problem.dtype)
  is_norm = isinstance(problem, RmsNormProblem)
  return not_lowered(
    problem,
    (
      (not has_temporaries(problem), "the compiled kernel's memory is not known"),
      (
        _result_differs(problem) or (is_norm and result == "int8"),
        f"out_dtype={result!r}: the compiled kernel's memory is known for int8 codes"
        f" and results in {dtype}",
      ),
      (
        is_norm and getattr(problem, "residual", False),
        "residual=True: the compiled kernel's memory is known without one",
      ),
      (
        not getattr(problem, "row_scales", True),
        "row_scales=False: the compiled kernel's memory is known with a scale a row",
      ),
    ),
  )


def shortfalls(problem: _Problem, config: RowConfig, npu: NpuProfile) -> tuple[Shortfall, ...]:
  """Blocks that Triton does not take and splits, which are several kernels; then UB."""
  found = list(shape_shortfalls(config, ("block_cols", "block_rows"), smallest=1))
  if isinstance(problem, RowProblem):
    found += split_shortfalls(problem, config)
    splits = num_splits(problem, config)
  else:
    splits = config.num_splits or 1
  found += writer_shortfalls(config, "a vector core")
  if splits > 1:
    statement = f"{splits} segments a row are several kernels, which are compiled one by one"
    found.append(Shortfall("shape", "tile shape", ("num_splits",), statement))
  if found:
    return tuple(found)
  blocks = larger_first(block_cols=config.block_cols, block_rows=config.block_rows)
  return overfull(compiled_buffers(problem, config, npu), {"UB": (*blocks, "num_stages")}, npu.name)


def demand(problem: _Problem, config: RowConfig, npu: NpuProfile) -> Demand:
  """The compiled buffers, and the times of a kernel written by hand."""
  found = (
    transpose_vector.demand(problem, config, npu)
    if isinstance(problem, TransposeProblem)
    else vector.demand(problem, config, npu)
  )
  return dataclasses.replace(
    found,
    buffers=compiled_buffers(problem, config, npu),
    assumptions=(*found.assumptions, TIME_ASSUMPTION),
  )
