"""The Hopper matmul's shared-memory layouts, and what its operands are padded to for them."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from hw_profiles import MatmulConfig, MatmulProblem
from hw_profiles.matmul.warp_specialized import operand_swizzle_bytes, staging_columns
from pallas_kernels import compat
from pallas_kernels.hopper.tma import TMA_PITCH_BYTES, rounded_up, tiled, tma_multiples


@dataclasses.dataclass(frozen=True)
class HopperLayout:
  """Shared-memory layouts, and the multiples that global arrays must have for them.

  Attributes:
    operand: Transforms of an A or B stage.
    staging: Transforms of an output slot.
    staging_columns: Columns of an output slot.
    a_multiples, b_multiples, out_multiples: Of (rows, columns).
  """

  operand: tuple[Any, ...]
  staging: tuple[Any, ...]
  staging_columns: int
  a_multiples: tuple[int, int]
  b_multiples: tuple[int, int]
  out_multiples: tuple[int, int]


def hopper_layout(
  config: MatmulConfig, *, m: int, k: int, n: int, a_batch: int, dtype: Any, out_dtype: Any
) -> HopperLayout:
  """The layouts of one kernel instance.

  Args:
    config: The tile.
    m, k, n: Sizes of one product.
    a_batch: How many A there are.
    dtype: Of A and B.
    out_dtype: Of C.
  """
  size, out_size = jnp.dtype(dtype).itemsize, jnp.dtype(out_dtype).itemsize
  swizzle = operand_swizzle_bytes(config, in_dtype=jnp.dtype(dtype).name)
  if swizzle is None:
    raise ValueError(f"config={config.describe()}: no swizzle divides rows of both operands' tiles")
  a_rows, a_columns = tma_multiples(m, k, swizzle // size)
  if m < config.block_m and a_batch == 1:
    # TMA fills rows past the edge slowly: with M=1 in 64-row tiles the whole
    # product took 62 us against 32 us for M=64 (4096 x 12288, H200). A single A
    # is cheap to pad; many would be copied many times over.
    a_rows = config.block_m
  columns = staging_columns(config, out_dtype=jnp.dtype(out_dtype).name)
  staging: tuple[Any, ...] = tiled(columns * out_size, out_dtype)
  if compat.SWIZZLES_UNTILED:
    staging, out_multiples = staging[1:], (1, TMA_PITCH_BYTES // out_size)
  else:
    out_multiples = tma_multiples(m, n, columns)
  return HopperLayout(
    operand=tiled(swizzle, dtype),
    staging=staging,
    staging_columns=columns,
    a_multiples=(a_rows, a_columns),
    b_multiples=tma_multiples(k, n, swizzle // size),
    out_multiples=out_multiples,
  )


def padding_notes(
  problem: MatmulProblem, *, config: MatmulConfig, out_dtype: Any
) -> tuple[str, ...]:
  """What the Hopper matmul would copy to a padded array first, a sentence each."""
  m, k, n = problem.m, problem.k, problem.n
  layout = hopper_layout(
    config, m=m, k=k, n=n, a_batch=problem.batch, dtype=problem.dtype, out_dtype=out_dtype
  )
  notes = []
  for name, shape, multiples in (
    ("a", (m, k), layout.a_multiples),
    ("b", (k, n), layout.b_multiples),
    ("the result", (m, n), layout.out_multiples),
  ):
    wanted = rounded_up(shape, multiples)
    if wanted != shape:
      notes.append(
        f"{name} is {shape[0]} x {shape[1]}, copied by way of {wanted[0]} x {wanted[1]}: "
        f"the kernel's TMA copies take multiples of {multiples[0]} x {multiples[1]}"
      )
  return tuple(notes)
