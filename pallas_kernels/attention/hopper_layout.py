"""The Hopper attention's shared-memory layouts, and what its operands are padded to for them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from hw_profiles import AttentionConfig, AttentionProblem
from hw_profiles.attention.warp_specialized import padded_dim
from pallas_kernels.attention.operands import AttentionOperands
from pallas_kernels.hopper.tma import padded, tiled

# Mosaic describes an operand to TMA in tiles of 8 rows, which must divide it.
ROWS = 8
_SWIZZLES = (128, 64, 32)


def swizzle_bytes(columns: int, dtype: Any, *, depth: int = 0) -> int:
  """The widest swizzle that [rows, columns] can have.

  Args:
    columns: A padded head size.
    dtype: Of the elements.
    depth: Rows where a product sums over them: Mosaic issues wgmmas in groups as
      deep as a swizzle span is wide. 0: it does not.
  """
  size = jnp.dtype(dtype).itemsize
  return next(one for one in _SWIZZLES if columns * size % one == 0 and depth * size % one == 0)


def transforms(columns: int, dtype: Any, *, depth: int = 0) -> tuple[Any, ...]:
  """The layout of [rows, columns] that wgmma and TMA take; see `swizzle_bytes`."""
  return tiled(swizzle_bytes(columns, dtype, depth=depth), dtype)


@dataclasses.dataclass(frozen=True)
class PanelLayout:
  """How [rows, columns] lies in shared memory.

  Tiles of several swizzle spans need a global array made of whole tiles of 8
  rows. A panel one span wide lies in memory the same whether it is described in
  tiles or row by row, and row by row its array may have any number of rows.

  Attributes:
    panels: Panels that the columns are cut into.
    columns: Of a panel.
    tiles: Transforms as wgmma reads a panel.
    landing: Transforms as TMA copies it; None: the same.
  """

  panels: int
  columns: int
  tiles: tuple[Any, ...]
  landing: tuple[Any, ...] | None

  @classmethod
  def create(cls, columns: int, dtype: Any, *, by_rows: bool, depth: int = 0) -> "PanelLayout":
    """The layout with the widest swizzle that fits.

    Args:
      columns: A padded head size.
      dtype: Of the elements.
      by_rows: Whether the global array's rows are no whole tiles.
      depth: See `swizzle_bytes`.
    """
    swizzle = swizzle_bytes(columns, dtype, depth=depth)
    tiles = tiled(swizzle, dtype)
    if not by_rows:
      return cls(1, columns, tiles, None)
    panels = columns * jnp.dtype(dtype).itemsize // swizzle
    return cls(panels, columns // panels, tiles, tiles[1:])

  def scratch(self, count: int, rows: int, dtype: Any, *, interpreted: bool = False) -> Any:
    """`count` blocks of `rows`, as `landing` and as `tiles`."""
    shape = (count, self.panels, rows, self.columns)
    tiles = plgpu.SMEM(shape, dtype, transforms=self.tiles)
    if self.landing is None or interpreted:
      return tiles
    return plgpu.RefUnion(plgpu.SMEM(shape, dtype, transforms=self.landing), tiles)


def needs_rows(seq_q: int, seq_kv: int) -> bool:
  """Whether some operand is not made of whole tiles of rows."""
  return bool(seq_q % ROWS or seq_kv % ROWS)


def pad_operands(operands: AttentionOperands, *, rows: int = 1) -> AttentionOperands:
  """Query, key and value with a head size that wgmma takes, and whole `rows`."""

  def pad(array: jax.Array) -> jax.Array:
    return padded(array, rows, 1, padded_dim(1))

  return operands._replace(
    query=pad(operands.query), key=pad(operands.key), value=pad(operands.value)
  )


def padding_notes(problem: AttentionProblem, config: AttentionConfig) -> tuple[str, ...]:
  """What would be copied to a padded array first, a sentence each."""
  del config
  notes = []
  for name, columns in (
    ("query and key", problem.head_dim),
    ("value and the result", problem.output_dim),
  ):
    if columns != padded_dim(columns):
      notes.append(
        f"{name} have rows of {columns}, copied by way of {padded_dim(columns)}: wgmma multiplies"
        f" whole steps of {padded_dim(1)}"
      )
  return tuple(notes)
