"""Operations per byte of a tile, at block, warp and thread level, and the best splits."""

import dataclasses
import math
from typing import Literal

from hw_profiles.arguments import at_least, few_enough, not_negative
from hw_profiles.capacity.residency import LANES_PER_WARP


@dataclasses.dataclass(frozen=True)
class TileIntensity:
  """One step of K of a tile that is an outer product.

  Attributes:
    elements_read: Of A and B from the tier that feeds the tile.
    fmas: Multiply-adds.
    fmas_per_element: fmas / elements_read.
    intensity: FLOP per byte read, a multiply-add counting as 2.
  """

  elements_read: int
  fmas: int
  fmas_per_element: float
  intensity: float


def tile_intensity(*, tile_m: int, tile_n: int, element_bytes: int = 4) -> TileIntensity:
  """tile_m + tile_n elements read for tile_m · tile_n multiply-adds, each step of K.

      intensity = 2·m·n / (size·(m + n)) FLOP/B

  The depth of the step cancels, and so the formula is the same at each level:
  a block's tile read from global memory (128 x 128 of float32: 32 FLOP/B), a
  thread's from shared memory (8 x 8: 2 FLOP/B), a single output's (1 x 1, the
  inner product: 0.25 FLOP/B, half a multiply-add an element).

  Over the inner product an 8 x 8 outer product gains 8x in either unit; a
  gain of 4x holds for 4 x 4 only, or where one side is counted in FLOP and the
  other in multiply-adds.

  Args:
    tile_m: Rows of the tile; at least 1, as all.
    tile_n: Columns of the tile.
    element_bytes: Bytes of an element of A and B.

  Raises:
    ValueError: a size is below 1.
  """
  at_least("tile_m", tile_m, 1)
  at_least("tile_n", tile_n, 1)
  at_least("element_bytes", element_bytes, 1)
  elements_read, fmas = tile_m + tile_n, tile_m * tile_n
  return TileIntensity(
    elements_read=elements_read,
    fmas=fmas,
    fmas_per_element=fmas / elements_read,
    intensity=2 * fmas / (elements_read * element_bytes),
  )


def warp_intensity(
  *,
  lane_rows: int,
  lane_columns: int,
  thread_m: int,
  thread_n: int,
  element_bytes: int = 4,
) -> TileIntensity:
  """What a warp reads once broadcasts are done: the intensity of the warp's tile.

      intensity = 2·lanes·thread_m·thread_n
                  / (size·(lane_rows·thread_m + lane_columns·thread_n))

  Lanes of one row share their rows of A, lanes of one column their columns of
  B. For 32 lanes with T x T float32 outputs that is 16·T / (rows + columns):
  with T = 8 3.88 FLOP/B for 1 x 32, 10.67 for 4 x 8, which is 2.75 times it.

  Args:
    lane_rows: Lanes along M; at least 1, as all.
    lane_columns: Lanes along N.
    thread_m: Outputs of a lane along M.
    thread_n: Outputs of a lane along N.
    element_bytes: Bytes of an element of A and B.

  Raises:
    ValueError: a size is below 1.
  """
  for name, value in (
    ("lane_rows", lane_rows),
    ("lane_columns", lane_columns),
    ("thread_m", thread_m),
    ("thread_n", thread_n),
  ):
    at_least(name, value, 1)
  return tile_intensity(
    tile_m=lane_rows * thread_m, tile_n=lane_columns * thread_n, element_bytes=element_bytes
  )


@dataclasses.dataclass(frozen=True)
class BestWarpShape:
  """The lane grids that read least.

  Attributes:
    shapes: All (rows, columns) with the least elements, by rising rows.
    elements_read: What a warp of such a shape reads a step of K.
    elements_bound: What no grid can go below, were sizes not whole numbers.
  """

  shapes: tuple[tuple[int, int], ...]
  elements_read: int
  elements_bound: float


def best_warp_shape(
  *, thread_m: int = 1, thread_n: int = 1, lanes: int = LANES_PER_WARP
) -> BestWarpShape:
  """Searches rows x columns = lanes for the fewest distinct elements.

  By the inequality of the means

      rows·thread_m + columns·thread_n ≥ 2·√(lanes·thread_m·thread_n)

  For square patches that is rows + columns ≥ 2·√32 = 11.3, met best by 4 x 8
  and 8 x 4 with 12.

  Raises:
    ValueError: a size is below 1.
  """
  at_least("lanes", lanes, 1)
  few_enough("lanes", lanes, instead="a warp has 32 lanes")
  for name, value in (("thread_m", thread_m), ("thread_n", thread_n), ("lanes", lanes)):
    at_least(name, value, 1)
  read = {
    (rows, lanes // rows): rows * thread_m + lanes // rows * thread_n
    for rows in range(1, lanes + 1)
    if lanes % rows == 0
  }
  least = min(read.values())
  return BestWarpShape(
    shapes=tuple(shape for shape, count in read.items() if count == least),
    elements_read=least,
    elements_bound=2 * math.sqrt(lanes * thread_m * thread_n),
  )


def best_tiles(
  *, budget: int, fixed: Literal["sum", "product"], unit: int = 1
) -> tuple[tuple[int, int], ...]:
  """Tiles (m, n) of the greatest intensity under a budget, by rising m.

  "sum": m + n = budget, the operand elements of a step (shared memory).
  "product": m · n = budget, the accumulators (registers). Square is best for
  both; where it is not among the whole multiples of `unit`, what is nearest.

  Args:
    budget: Elements.
    fixed: What of the tile it limits.
    unit: m and n are multiples of it.

  Raises:
    ValueError: an unknown limit, a size below 1, or no tile meets the budget.
  """
  at_least("budget", budget, 1)
  few_enough("budget", budget, instead="the best is square, or as near to it as `unit` allows")
  if fixed not in ("sum", "product"):
    raise ValueError(f"fixed={fixed!r}: expected 'sum' or 'product'")
  at_least("budget", budget, 1)
  at_least("unit", unit, 1)
  if fixed == "sum":
    tiles = [(m, budget - m) for m in range(unit, budget, unit)]
  else:
    tiles = [(m, budget // m) for m in range(unit, budget + 1, unit) if budget % m == 0]
  # compared as fractions m·n : (m + n), without rounding
  tiles = [tile for tile in tiles if tile[1] % unit == 0]
  if not tiles:
    raise ValueError(f"budget={budget}: no tile in multiples of unit={unit} has that {fixed}")
  best = tiles[0]
  for m, n in tiles[1:]:
    if m * n * sum(best) > best[0] * best[1] * (m + n):
      best = (m, n)
  return tuple((m, n) for m, n in tiles if m * n * sum(best) == best[0] * best[1] * (m + n))


def operand_bandwidth_bytes_per_s(
  *, flops_per_s: float, operands: int = 3, element_bytes: int = 4
) -> float:
  """Register bandwidth that multiply-adds read at a rate: flops / 2 · operands · size.

  Example: 15.7 TFLOP/s of float32 read 94.2 TB/s, so a ceiling of 20 TB/s for
  the registers of a V100, as some tables have it, cannot be what the register
  file delivers.

  Raises:
    ValueError: an argument is out of range.
  """
  not_negative("flops_per_s", flops_per_s)
  at_least("operands", operands, 1)
  at_least("element_bytes", element_bytes, 1)
  return flops_per_s / 2 * operands * element_bytes
