"""A transpose's block in shared memory: its bytes and the bank conflicts of its columns."""

import functools

from hw_profiles.arguments import ceil_div
from hw_profiles.capacity.residency import LANES_PER_WARP
from hw_profiles.rowwise.config import RowConfig
from hw_profiles.sm_tiling.banks import BANK_BYTES, bank_conflicts
from hw_profiles.sm_tiling.shared_layout import LAYER_BYTES, PitchedLayout, SharedLayout, XorLayout

# Warp accesses looked at: a layout repeats long before.
_MOST_REQUESTS = 64


def swizzle_divides(config: RowConfig, *, size_bytes: int) -> bool:
  """Whether a row of the block is whole 128 B, within which the swizzle permutes."""
  return config.block_cols * size_bytes % LAYER_BYTES == 0


def block_layout(config: RowConfig, *, size_bytes: int) -> SharedLayout:
  """Where an element of the block lies; "padded" adds one bank to each row."""
  if config.layout == "swizzled":
    return XorLayout(rows=config.block_rows, columns=config.block_cols, element_bytes=size_bytes)
  padding = max(BANK_BYTES // size_bytes, 1) if config.layout == "padded" else 0
  return PitchedLayout(
    rows=config.block_rows,
    columns=config.block_cols,
    element_bytes=size_bytes,
    pad_columns=padding,
  )


@functools.lru_cache(maxsize=256)
def column_read_ways(config: RowConfig, *, size_bytes: int) -> float:
  """Passes of a warp that reads the block by columns, over those without conflicts.

  Lane i of a warp takes element i of the block in the order of the result, down
  one column and on to the next.
  """
  layout = block_layout(config, size_bytes=size_bytes)
  elements = config.block_rows * config.block_cols
  requests = min(ceil_div(elements, LANES_PER_WARP), _MOST_REQUESTS)
  passes = 0
  for request in range(requests):
    first = request * LANES_PER_WARP
    lanes = range(first, min(first + LANES_PER_WARP, elements))
    addresses = [
      layout.address(index % config.block_rows, index // config.block_rows) for index in lanes
    ]
    passes += bank_conflicts(addresses, width_bytes=size_bytes).transactions
  least = ceil_div(size_bytes, BANK_BYTES)
  return passes / (requests * least)
