"""The steps of the ladder: what each changes, how it runs, what the model predicts."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

import hw_profiles
from hw_profiles import GpuProfile, MatmulConfig, MatmulProblem
from pallas_kernels.benchmark.ladder import cuda_cores
from pallas_kernels.gemm import matmul

_COLUMNS = 128
_SIDE = 64


@dataclasses.dataclass(frozen=True)
class Step:
  """One step.

  Attributes:
    name: What it is.
    change: What is new against the step below.
    run: A, B -> C.
    predict: Problem, profile -> (time in microseconds or None, what sets it).
    config: The tile, where the step is a kernel of the library.
    implementation: Which of its kernels, by name.
  """

  name: str
  change: str
  run: Callable[[jax.Array, jax.Array], jax.Array]
  predict: Callable[[MatmulProblem, GpuProfile], tuple[float | None, str]]
  config: MatmulConfig | None = None
  implementation: str | None = None


def _on_cuda_cores(
  problem: MatmulProblem, profile: GpuProfile, *, rows: int, columns: int
) -> tuple[float | None, str]:
  """The roofline of L2 and the CUDA cores, for outputs that share nothing but their tile."""
  traffic = hw_profiles.matmul_traffic(
    m=problem.m,
    k=problem.k,
    n=problem.n,
    block_m=rows,
    block_n=columns,
    block_k=1,
    in_dtype=problem.dtype,
  )
  line = hw_profiles.roofline(
    profile, flops=problem.flops, bytes=traffic.total_bytes, dtype="float32", tier="l2"
  )
  return line.time_us, "cuda_cores" if line.bound == "compute" else "l2"


def _planned(
  problem: MatmulProblem, profile: GpuProfile, *, config: MatmulConfig, schedule: Any
) -> tuple[float | None, str]:
  plan = hw_profiles.plan(problem, config, profile, schedule=schedule)
  return plan.predicted_us, plan.bound or "-"


def _kernel(change: str, config: MatmulConfig, *, implementation: str, schedule: str) -> Step:
  return Step(
    name=f"{implementation} {config.describe()}",
    change=change,
    run=functools.partial(matmul, config=config, implementation=implementation),
    predict=functools.partial(_planned, config=config, schedule=schedule),
    config=config,
    implementation=implementation,
  )


def steps(*, interpret: bool = False) -> tuple[Step, ...]:
  """All steps, lowest first.

  Args:
    interpret: Run the two lowest in the Pallas interpreter.
  """
  triton = functools.partial(_kernel, implementation="triton", schedule="multistage")
  hopper = functools.partial(_kernel, implementation="mosaic_gpu", schedule="warp_specialized")
  return (
    Step(
      name=f"one output a thread, {_COLUMNS} a block",
      change="CUDA cores; every operand element is loaded for every output",
      run=functools.partial(cuda_cores.one_output_a_thread, columns=_COLUMNS, interpret=interpret),
      predict=functools.partial(_on_cuda_cores, rows=1, columns=_COLUMNS),
    ),
    Step(
      name=f"{_SIDE} x {_SIDE} outputs in registers",
      change="outer products: an element loaded serves a row or a column of the tile",
      run=functools.partial(cuda_cores.register_tiles, side=_SIDE, interpret=interpret),
      predict=functools.partial(_on_cuda_cores, rows=_SIDE, columns=_SIDE),
    ),
    triton("tensor cores, tiles in shared memory", MatmulConfig(64, 64, 32, 1, group_m=1)),
    triton("larger tiles: half the traffic", MatmulConfig(128, 128, 32, 1, group_m=1)),
    triton("deeper K steps", MatmulConfig(128, 128, 64, 1, group_m=1)),
    triton("three stages: copies under products", MatmulConfig(128, 128, 64, 3, group_m=1)),
    triton("bands of 8 tile rows: operands shared in L2", MatmulConfig(128, 128, 64, 3)),
    hopper("TMA copies by a warpgroup of their own, wgmma", MatmulConfig(128, 128, 64, 2)),
    hopper("four stages", MatmulConfig(128, 128, 64, 4)),
    hopper(
      "two consumers with 128 accumulators a thread",
      MatmulConfig(128, 256, 64, 4, overlap_epilogue=False),
    ),
    hopper("a tile is stored under the products of the next", MatmulConfig(128, 256, 64, 4)),
  )
