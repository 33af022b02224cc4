"""The tiles that a search may measure, of the problems that the GEMM family is held to."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import hw_profiles
from hw_profiles import MatmulConfig, MatmulProblem
from pallas_kernels import device, gated_matmul, matmul, quantized_matmul

# m, k, n: few rows, the feed-forward block of a model, squares, odd sizes, a K that is split
SIZES = [
  *((m, 4096, 12288) for m in (1, 16, 64, 256, 1024, 1536, 2048, 7239)),
  *((m, 12288, 4096) for m in (64, 256, 7239)),
  (4096, 4096, 4096),
  (8192, 8192, 8192),
  (113, 1023, 203),
  (333, 4096, 12289),
]
Case = tuple[MatmulProblem, MatmulConfig]
KERNELS = {"warp_specialized": "mosaic_gpu", "multistage": "triton"}


@functools.cache
def searched(schedule: str, **fields: Any) -> list[Case]:
  """Each candidate of any of the sizes, with the first problem that it is one of.

  The order of tiles is a number in the index arithmetic and no other program, so
  that of configs which differ in it alone there is one, and each order is there.
  """
  found: dict[Any, Case] = {}
  orders = set()
  for m, k, n in SIZES:
    problem = MatmulProblem(m, k, n, **fields)
    for config in hw_profiles.matmul_candidates("h200_sxm", problem, schedule=schedule):
      key = dataclasses.replace(config, group_m=1)
      if config.group_m not in orders:
        orders.add(config.group_m)
        key = config
      found.setdefault(key, (problem, config))
  return list(found.values())


def not_in(known: list[Case], found: list[Case]) -> list[Case]:
  """What another op's search does not lower; of the tiles that it does, one of each block.

  Each tile is lowered for one op, and the op has each of its blocks, whole and with K in parts,
  once. On two cores a tile of the Hopper kernel takes 0.6 s.
  """
  configs = {dataclasses.replace(config, group_m=1) for _, config in known}

  def block(case: Case) -> tuple[Any, ...]:
    _, config = case
    return config.block_m, config.block_n, config.block_k, config.split_k > 1

  left = [case for case in found if dataclasses.replace(case[1], group_m=1) not in configs]
  covered = {block(case) for case in left}
  for case in found:
    if block(case) not in covered:
      left.append(case)
      covered.add(block(case))
  return left


def name_of(case: Any) -> str:
  """A config's part of a test's name."""
  _, config = case
  return config.describe()


def lowered(case: Case, schedule: str) -> str:
  """StableHLO of a problem's call with a tile, lowered for an H200 without one."""
  problem, config = case
  m, k, n = problem.m, problem.k, problem.n
  options = {"config": config, "implementation": KERNELS[schedule]}
  call: Callable[..., Any]
  if problem.scaled:
    call = functools.partial(quantized_matmul, out_dtype="bfloat16", **options)
    shapes = [
      ((m, k), problem.dtype),
      ((k, n), problem.dtype),
      ((m, 1), "float32"),
      ((n,), "float32"),
    ]
  else:
    weights = [((k, n), problem.dtype)] * problem.products
    call = functools.partial(matmul if problem.products == 1 else gated_matmul, **options)
    shapes = [((m, k), problem.dtype), *weights]
  arrays = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in shapes]
  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    return jax.jit(call).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
