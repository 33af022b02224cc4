"""K cut into parts, each a product of its own, and the second kernel that adds them in order.

part s   P_s = A[:, K_s]·B[K_s, :] in float32, all parts in one launch
merge    C = epilogue(((P_0 + P_1) + P_2) + ...), elementwise
"""

import dataclasses

from hw_profiles import dtypes
from hw_profiles.activations import activation_cost
from hw_profiles.arguments import ceil_div
from hw_profiles.capacity.buffers import Shortfall
from hw_profiles.cost.device_time import DeviceTime, device_time
from hw_profiles.cost.l2_reuse import L2_OPERAND_FRACTION
from hw_profiles.cost.sm_time import SmAmounts, SmWork, sm_time
from hw_profiles.cost.stream_time import (
  XLA_BLOCK_ELEMENTS,
  XLA_RESIDENT_BLOCKS,
  SmPass,
  sm_stream_time,
)
from hw_profiles.cost.time_term import added, leaf
from hw_profiles.matmul.config import MatmulConfig
from hw_profiles.matmul.problem import MatmulProblem
from hw_profiles.profile import GpuProfile

MERGE_ASSUMPTION = (
  "parts of K are added in order by a second kernel, elementwise, which starts after a launch gap"
)


def sum_dtype(dtype: str) -> str:
  """What products of `dtype` are added up in: int32 of int8, exact, else float32."""
  return "int32" if dtype == "int8" else "float32"


def parts_of(problem: MatmulProblem, config: MatmulConfig) -> tuple[MatmulProblem, MatmulConfig]:
  """The first launch as a problem and a tile without a split; the two given where there is none.

  The parts follow one another like the products of a batch. They read other
  columns of A and rows of B each, and store plain sums.
  """
  if config.split_k == 1:
    return problem, config
  steps = ceil_div(problem.k, config.block_k * config.split_k)
  part = dataclasses.replace(
    problem,
    k=min(problem.k, steps * config.block_k),
    out_dtype=sum_dtype(problem.dtype),
    bias=False,
    scaled=False,
    activation=None,
    batch=problem.batch * config.split_k,
    shared_a=False,
    shared_b=False,
  )
  return part, dataclasses.replace(config, split_k=1)


def split_shortfalls(problem: MatmulProblem, config: MatmulConfig) -> tuple[Shortfall, ...]:
  """What the kernels' split of K does not do."""
  split = config.split_k
  if split == 1 or problem.is_empty:
    return ()
  if problem.products > 1:
    statement = f"split_k={split}: the parts of {problem.products} products are not stored"
    return (Shortfall("shape", "tile shape", ("split_k",), statement),)
  steps = ceil_div(problem.k, config.block_k)
  if (split - 1) * ceil_div(steps, split) < steps:
    return ()
  return (
    Shortfall(
      "shape",
      "tile shape",
      ("split_k", "block_k"),
      f"split_k={split}: {steps} steps of block_k={config.block_k} in parts of"
      f" {ceil_div(steps, split)} leave the last part empty",
    ),
  )


def workspace_bytes(problem: MatmulProblem, config: MatmulConfig) -> int:
  """Bytes of the parts' sums; 0 where K is not split."""
  if config.split_k == 1:
    return 0
  outputs = problem.batch * problem.m * problem.n
  return config.split_k * outputs * dtypes.size_bytes(sum_dtype(problem.dtype))


def evicted_bytes(problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile) -> int:
  """Bytes of the parts' sums that L2 does not keep until the second kernel reads them.

  All of them or none: they were written last, and nothing else is read in between.
  """
  parts = workspace_bytes(problem, config)
  return parts if parts > gpu.l2_bytes * L2_OPERAND_FRACTION else 0


def merge_dram_bytes(problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile) -> int:
  """Bytes that the second kernel moves to and from device memory: the result, evicted sums."""
  result = problem.batch * problem.m * problem.n * dtypes.size_bytes(problem.result_dtype)
  return result + evicted_bytes(problem, config, gpu)


def split_time(
  problem: MatmulProblem, config: MatmulConfig, gpu: GpuProfile, work: SmWork
) -> DeviceTime:
  """The time of the parts, `work`, of a gap between launches and of the merge.

  Returns:
    `times_us` of the parts, and "merge": the gap and the second kernel.
  """
  parts = sm_time(gpu, work)
  result_bytes = dtypes.size_bytes(problem.result_dtype)
  sum_bytes = dtypes.size_bytes(sum_dtype(problem.dtype))
  merge = sm_stream_time(
    gpu,
    (
      SmPass(
        programs=ceil_div(problem.batch * problem.m * problem.n, XLA_BLOCK_ELEMENTS),
        resident_blocks=XLA_RESIDENT_BLOCKS,
        per_program=SmAmounts(
          l2_bytes=XLA_BLOCK_ELEMENTS * (config.split_k * sum_bytes + result_bytes),
          special_functions=XLA_BLOCK_ELEMENTS
          * activation_cost(problem.activation).special_functions,
          cuda_core_operations=XLA_BLOCK_ELEMENTS * config.split_k,
        ),
        round_trips=1,
        dram_bytes=merge_dram_bytes(problem, config, gpu),
      ),
    ),
  )
  following = added(
    "merge", leaf("launch gap", gpu.launch_gap_us), merge.total.labelled("second kernel")
  )
  total = added("predicted", parts.total._replace(name="parts of K"), following)
  return device_time({**parts.times_us, "merge": following.us}, total, unknown=parts.unknown)
