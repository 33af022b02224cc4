"""Counts that every matmul schedule starts from: tiles, traffic, what DRAM sees, padding."""

import dataclasses

from hw_profiles import dtypes
from hw_profiles.arguments import round_up
from hw_profiles.cost.l2_reuse import L2_OPERAND_FRACTION
from hw_profiles.matmul.config import MatmulConfig
from hw_profiles.matmul.dram_reads import dram_operand_reads
from hw_profiles.matmul.problem import MatmulProblem
from hw_profiles.matmul.traffic import MatmulTraffic, matmul_traffic

BIAS_BYTES = 4  # float32 at most, and a scale is float32

L2_ASSUMPTION = (
  f"operands may keep {100 * L2_OPERAND_FRACTION:.0f} % of L2; programs that run at once walk K in"
  " step; L2 starts cold"
)


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


def tile_traffic(problem: MatmulProblem, config: MatmulConfig) -> MatmulTraffic:
  """`matmul_traffic` of one product."""
  return matmul_traffic(
    m=problem.m,
    k=problem.k,
    n=problem.n,
    block_m=config.block_m,
    block_n=config.block_n,
    block_k=config.block_k,
    in_dtype=problem.dtype,
    out_dtype=problem.result_dtype,
    num_stages=config.num_stages,
    products=problem.products,
    split_k=config.split_k,
  )


def tile_count(problem: MatmulProblem, traffic: MatmulTraffic) -> int:
  """Tiles of C over the whole batch."""
  return traffic.grid[0] * traffic.grid[1] * problem.batch


def tile_counts(
  problem: MatmulProblem,
  config: MatmulConfig,
  traffic: MatmulTraffic,
  *,
  wave_programs: int,
  l2_bytes: int,
) -> TileCounts:
  """Counts tiles and bytes, from the traffic of one product.

  Args:
    problem: What is computed.
    config: The tile.
    traffic: `tile_traffic` of the two.
    wave_programs: Tiles that run at once.
    l2_bytes: L2 capacity.
  """
  missed = _missed_operand_bytes(
    problem, config, wave_programs=wave_programs, l2_bytes=l2_bytes * L2_OPERAND_FRACTION
  )
  requested = problem.batch * (traffic.a_read_bytes + traffic.b_read_bytes)
  vectors = int(problem.bias) + int(problem.scaled)
  bias = vectors * problem.n * BIAS_BYTES if problem.m else 0
  if problem.scaled and problem.n:
    bias += problem.m * BIAS_BYTES
  padded = (
    round_up(problem.m, config.block_m)
    * round_up(problem.n, config.block_n)
    * round_up(problem.k, config.block_k)
  )
  useful = problem.m * problem.n * problem.k
  return TileCounts(
    traffic=traffic,
    tiles=tile_count(problem, traffic),
    dram_bytes=missed + problem.batch * (traffic.c_write_bytes + bias),
    l2_bytes=problem.batch * (traffic.total_bytes + bias * traffic.grid[0]),
    l2_hit_fraction=1 - missed / requested if requested else 0.0,
    padding_fraction=1 - useful / padded if useful else 0.0,
  )


def _missed_operand_bytes(
  problem: MatmulProblem, config: MatmulConfig, *, wave_programs: int, l2_bytes: float
) -> int:
  """Operand bytes that come from device memory for the whole batch.

  Products follow one another. A shared B serves the batch as if its products
  were stacked along M, the bands of one continuing those of the last. Before a
  shared A is used again, all of A and one B have passed: it is read once if L2
  keeps both, else once a product as if it were not shared.
  """
  size = dtypes.size_bytes(problem.dtype)
  stacked = problem.shared_b and not problem.shared_a
  reads = dram_operand_reads(
    m=problem.m * (problem.batch if stacked else 1),
    k=problem.k,
    # the products' columns stand side by side
    n=problem.n * problem.products,
    block_m=config.block_m,
    block_n=config.block_n * problem.products,
    size_bytes=size,
    group_m=config.group_m,
    wave_programs=max(wave_programs, 1),
    l2_bytes=l2_bytes,
  )
  if stacked:
    return reads.a_bytes + reads.b_bytes
  kept = (problem.m + problem.products * problem.n) * problem.k * size <= l2_bytes
  a_reads = min(problem.batch, 1) if problem.shared_a and kept else problem.batch
  b_reads = min(problem.batch, 1) if problem.shared_b and kept else problem.batch
  return a_reads * reads.a_bytes + b_reads * reads.b_bytes


def tile_notes(problem: MatmulProblem, config: MatmulConfig, counts: TileCounts) -> tuple[str, ...]:
  """What the launch order saves device memory, and what is padded, if anything."""
  reuse = (
    f"L2 serves {100 * counts.l2_hit_fraction:.0f} % of the operand reads, walking bands of"
    f" {config.group_m} tile row(s)"
  )
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
    return (reuse,)
  share = f"{100 * counts.padding_fraction:.1f} % of the multiplications are padding"
  return (reuse, f"{', '.join(padded)}: {share}")
