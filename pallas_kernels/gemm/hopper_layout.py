"""How matrices lie in shared memory for TMA and wgmma, and what global arrays must be for it.

TMA copies boxes of up to five dimensions from global memory; wgmma reads
operands in 8-row tiles one swizzle span wide. Mosaic describes an operand to TMA
in such tiles, so the global array must be made of whole ones (or be smaller
than one); its rows must be a multiple of 16 B apart in any case. An array that
is not is padded with zeros first.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from hw_profiles import MatmulConfig, MatmulProblem
from hw_profiles.capacity.warp_specialized import staging_columns
from pallas_kernels import compat

# TMA: global strides are multiples of 16 B (CUDA driver API, cuTensorMapEncodeTiled)
TMA_PITCH_BYTES = 16


def _operand_swizzle(config: MatmulConfig, dtype: Any) -> int:
  """Bytes of the swizzle both operands use: wgmma wants one mode for the two.

  The widest of 128, 64 and 32 whose span divides a row of both tiles.
  """
  bits = jnp.dtype(dtype).itemsize * 8
  return min(plgpu.find_swizzle(columns * bits) for columns in (config.block_k, config.block_n))


def _tiled(swizzle: int, dtype: Any) -> tuple[Any, Any]:
  """The shared-memory layout wgmma reads: 8 rows by one swizzle span, swizzled."""
  return (
    plgpu.TilingTransform((8, swizzle // jnp.dtype(dtype).itemsize)),
    plgpu.SwizzleTransform(swizzle),
  )


def padded(array: jax.Array, *multiples: int) -> jax.Array:
  """`array` with its last dimensions padded with zeros to the given multiples."""
  sizes = array.shape[-len(multiples) :]
  wanted = rounded_up(sizes, multiples)
  if wanted == sizes:
    return array
  missing = [(0, want - have) for want, have in zip(wanted, sizes, strict=True)]
  return jnp.pad(array, [(0, 0)] * (array.ndim - len(multiples)) + missing)


def _tma_multiples(rows: int, columns: int, swizzle_columns: int) -> tuple[int, int]:
  """What the rows and columns of an operand must be multiples of.

  Mosaic describes an operand to TMA as 8-row, one-swizzle-span tiles, which
  must divide it, except that a dimension of at most one tile is taken whole.
  The row pitch must be 16 B even then.
  """
  return (8 if rows > 8 else 1, swizzle_columns if columns > swizzle_columns else 8)


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
  swizzle = _operand_swizzle(config, dtype)
  a_rows, a_columns = _tma_multiples(m, k, swizzle // size)
  if m < config.block_m and a_batch == 1:
    # TMA fills rows past the edge slowly: with M=1 in 64-row tiles the whole
    # product took 62 us against 32 us for M=64 (4096 x 12288, H200). A single A
    # is cheap to pad; many would be copied many times over.
    a_rows = config.block_m
  columns = staging_columns(config, out_dtype=jnp.dtype(out_dtype).name)
  staging: tuple[Any, ...] = _tiled(columns * out_size, out_dtype)
  if compat.SWIZZLES_UNTILED:
    staging, out_multiples = staging[1:], (1, TMA_PITCH_BYTES // out_size)
  else:
    out_multiples = _tma_multiples(m, n, columns)
  return HopperLayout(
    operand=_tiled(swizzle, dtype),
    staging=staging,
    staging_columns=columns,
    a_multiples=(a_rows, a_columns),
    b_multiples=_tma_multiples(k, n, swizzle // size),
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


def rounded_up(sizes: tuple[int, ...], multiples: tuple[int, ...]) -> tuple[int, ...]:
  """Each size, up to the next multiple."""
  return tuple(size + -size % multiple for size, multiple in zip(sizes, multiples, strict=True))
