"""Counts both vendors' planners start from: tiles, traffic, what DRAM sees, padding."""

import dataclasses

from hw_profiles import dtypes
from hw_profiles.arguments import round_up
from hw_profiles.config import MatmulConfig
from hw_profiles.cost.l2_reuse import dram_operand_reads
from hw_profiles.cost.traffic import MatmulTraffic, matmul_traffic
from hw_profiles.problem import MatmulProblem

# Half of L2 is left to outputs, to operands in flight and to imperfect
# replacement; no source measures it for a matmul.
L2_OPERAND_FRACTION = 0.5
BIAS_BYTES = 4  # float32 at most


@dataclasses.dataclass(frozen=True)
class TileCounts:
  """What a tiling comes to, before any device rate is applied.

  Attributes:
    traffic: Of one product.
    tiles: Tiles of C over the whole batch.
    dram_bytes: Bytes to and from device memory, L2 hits taken off.
    l2_bytes: Bytes between L2 and the working buffers.
    l2_hit_fraction: Share of the operand reads that L2 serves.
    padding_fraction: Share of the multiplications that work on padding.
  """

  traffic: MatmulTraffic
  tiles: int
  dram_bytes: int
  l2_bytes: int
  l2_hit_fraction: float
  padding_fraction: float


def tile_counts(
  problem: MatmulProblem, config: MatmulConfig, *, wave_programs: int, l2_bytes: int
) -> TileCounts:
  """Counts tiles and bytes for `wave_programs` tiles running at once."""
  traffic = matmul_traffic(
    m=problem.m,
    k=problem.k,
    n=problem.n,
    block_m=config.block_m,
    block_n=config.block_n,
    block_k=config.block_k,
    in_dtype=problem.dtype,
    out_dtype=problem.result_dtype,
    num_stages=config.num_stages,
  )
  # a shared B serves the batch as if its products were stacked along M
  stacked = problem.batch if problem.shared_b else 1
  reads = dram_operand_reads(
    m=problem.m * stacked,
    k=problem.k,
    n=problem.n,
    block_m=config.block_m,
    block_n=config.block_n,
    size_bytes=dtypes.size_bytes(problem.dtype),
    group_m=config.group_m,
    wave_programs=max(wave_programs, 1),
    l2_bytes=l2_bytes * L2_OPERAND_FRACTION,
  )
  products = 1 if problem.shared_b else problem.batch
  missed = products * (reads.a_bytes + reads.b_bytes)
  requested = problem.batch * (traffic.a_read_bytes + traffic.b_read_bytes)
  bias = problem.n * BIAS_BYTES if problem.bias else 0
  tiles = traffic.grid[0] * traffic.grid[1] * problem.batch
  padded = (
    round_up(problem.m, config.block_m)
    * round_up(problem.n, config.block_n)
    * round_up(problem.k, config.block_k)
  )
  useful = problem.m * problem.n * problem.k
  return TileCounts(
    traffic=traffic,
    tiles=tiles,
    dram_bytes=missed + problem.batch * (traffic.c_write_bytes + bias),
    l2_bytes=problem.batch * (traffic.total_bytes + bias * traffic.grid[0]),
    l2_hit_fraction=1 - missed / requested if requested else 0.0,
    padding_fraction=1 - useful / padded if useful else 0.0,
  )


def reuse_note(config: MatmulConfig, counts: TileCounts) -> str:
  """Says what the launch order saves device memory."""
  return (
    f"L2 serves {100 * counts.l2_hit_fraction:.0f} % of the operand reads, walking bands of"
    f" {config.group_m} tile row(s)"
  )


def padding_note(problem: MatmulProblem, config: MatmulConfig, fraction: float) -> tuple[str, ...]:
  """Says what is padded where a block does not divide its side."""
  padded = [
    f"{side}={size} is computed as {round_up(size, block)}"
    for side, size, block in (
      ("m", problem.m, config.block_m),
      ("n", problem.n, config.block_n),
      ("k", problem.k, config.block_k),
    )
    if size and size % block
  ]
  if not padded:
    return ()
  return (f"{', '.join(padded)}: {100 * fraction:.1f} % of the multiplications are padding",)
