"""The Hopper matmul's shared-memory layouts, and what its operands are padded to for them."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from hw_profiles import MatmulConfig, MatmulProblem
from hw_profiles.matmul.warp_specialized import operand_swizzle_bytes, staging_columns
from pallas_kernels import compat
from pallas_kernels.gemm.operands import Transposes
from pallas_kernels.hopper.tile_copy import TileCopy
from pallas_kernels.hopper.tma import TMA_PITCH_BYTES, rounded_up, tiled, tma_multiples


@dataclasses.dataclass(frozen=True)
class HopperLayout:
  """Shared-memory layouts, and the multiples that global arrays must have for them.

  Attributes:
    operand: Transforms of an A or B stage, as wgmma reads it.
    a, b: How stages are filled.
    staging: Transforms of an output slot.
    staging_columns: Columns of an output slot.
    a_rows: Rows, as stored, of A to load for a tile.
    last_a_rows: The same for a tile that reaches past the last row of C.
    out_multiples: What rows and columns of the result must be multiples of.
  """

  operand: tuple[Any, ...]
  a: TileCopy
  b: TileCopy
  staging: tuple[Any, ...]
  staging_columns: int
  a_rows: int
  last_a_rows: int
  out_multiples: tuple[int, int]


def hopper_layout(
  config: MatmulConfig,
  *,
  m: int,
  k: int,
  n: int,
  dtype: Any,
  out_dtype: Any,
  transposes: Transposes,
  interpreted: bool = False,
) -> HopperLayout:
  """The layouts of one kernel instance.

  Args:
    config: The tile.
    m, k, n: Sizes of one product.
    dtype: Of A and B.
    out_dtype: Of C.
    transposes: How A and B are stored.
    interpreted: Whether it is for the interpreter.
  """
  out_size = jnp.dtype(out_dtype).itemsize
  swizzle = operand_swizzle_bytes(
    config,
    in_dtype=jnp.dtype(dtype).name,
    a_transposed=transposes.a,
    b_transposed=transposes.b,
  )
  if swizzle is None:
    raise ValueError(f"config={config.describe()}: no swizzle divides rows of both operands' tiles")
  a_shape, b_shape = (k, m) if transposes.a else (m, k), (n, k) if transposes.b else (k, n)
  a_tile, b_tile = (config.block_m, config.block_k), (config.block_k, config.block_n)
  a, b = (
    TileCopy.of(
      shape,
      rows=rows,
      columns=columns,
      swizzle_bytes=swizzle,
      dtype=dtype,
      blocks=blocks,
      interpreted=interpreted,
    )
    for shape, (rows, columns), blocks in (
      (a_shape, a_tile[::-1] if transposes.a else a_tile, config.cluster_n),
      (b_shape, b_tile[::-1] if transposes.b else b_tile, config.cluster_m),
    )
  )
  # TMA fills rows past the edge slowly (with M=1 in 64-row tiles the whole product
  # took 62 us against 32 us for M=64, 4096 x 12288, H200), so only the rows that
  # exist are loaded, in eights.
  a_rows = last_a_rows = a.rows
  if not transposes.a and config.cluster_m == 1:
    a_rows = last_a_rows = min(a_rows, rounded_up((m,), (8,))[0])
  left = rounded_up((m % config.block_m,), (8,))[0]
  # the blocks of a cluster share whole tiles; so many arrivals are waited for at every tile
  if left and not transposes.a and config.cluster_n == 1 and a.count(left) == a.count(a.rows):
    last_a_rows = left
  columns = staging_columns(config, out_dtype=jnp.dtype(out_dtype).name)
  staging: tuple[Any, ...] = tiled(columns * out_size, out_dtype)
  if compat.SWIZZLES_UNTILED:
    staging, out_multiples = staging[1:], (1, TMA_PITCH_BYTES // out_size)
  else:
    out_multiples = tma_multiples(m, n, columns, itemsize=out_size)
  return HopperLayout(
    operand=tiled(swizzle, dtype),
    a=a,
    b=b,
    staging=staging,
    staging_columns=columns,
    a_rows=a_rows,
    last_a_rows=last_a_rows,
    out_multiples=out_multiples,
  )


@dataclasses.dataclass(frozen=True)
class PaddingCopy:
  """An array that the Hopper matmul takes or gives by way of a padded copy.

  Attributes:
    name: What the array is.
    shape: Its rows and columns, as stored.
    padded: Those of the copy.
    multiples: What the kernel's TMA copies take multiples of.
    count: Matrices of this shape.
    itemsize: Bytes of an element.
  """

  name: str
  shape: tuple[int, int]
  padded: tuple[int, int]
  multiples: tuple[int, int]
  count: int
  itemsize: int

  @property
  def note(self) -> str:
    """The copy in a sentence."""
    return (
      f"{self.name} is {self.shape[0]} x {self.shape[1]}, copied by way of"
      f" {self.padded[0]} x {self.padded[1]}: the kernel's TMA copies take multiples of"
      f" {self.multiples[0]} x {self.multiples[1]}"
    )


def padding_copies(
  problem: MatmulProblem, *, config: MatmulConfig, out_dtype: Any, transposes: Transposes
) -> tuple[PaddingCopy, ...]:
  """What the Hopper matmul copies to or from a padded array.

  Args:
    problem: What is computed.
    config: The tile.
    out_dtype: What the kernel stores: sums, where K is split.
    transposes: How A and B are stored.
  """
  m, k, n = problem.m, problem.k, problem.n
  layout = hopper_layout(
    config,
    m=m,
    k=k,
    n=n,
    dtype=problem.dtype,
    out_dtype=out_dtype,
    transposes=transposes,
  )
  a_shape, b_shape = (k, m) if transposes.a else (m, k), (n, k) if transposes.b else (k, n)
  a_count = 1 if problem.shared_a else problem.batch
  b_count = problem.products * (1 if problem.shared_b else problem.batch)
  size, out_size = jnp.dtype(problem.dtype).itemsize, jnp.dtype(out_dtype).itemsize
  found = []
  for name, shape, multiples, count, itemsize in (
    ("a", a_shape, layout.a.multiples, a_count, size),
    ("b", b_shape, layout.b.multiples, b_count, size),
    ("the result", (m, n), layout.out_multiples, problem.batch * config.split_k, out_size),
  ):
    rows, columns = rounded_up(shape, multiples)
    if (rows, columns) != shape:
      found.append(PaddingCopy(name, shape, (rows, columns), multiples, count, itemsize))
  return tuple(found)
