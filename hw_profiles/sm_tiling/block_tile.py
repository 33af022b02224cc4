"""The buffers of one block's step, as `matmul_traffic` counts them."""

from hw_profiles.arguments import at_least
from hw_profiles.matmul.traffic import MatmulTraffic, matmul_traffic


def block_tile(
  *,
  block_m: int,
  block_n: int,
  block_k: int,
  in_dtype: str,
  acc_dtype: str = "float32",
  num_stages: int = 1,
) -> MatmulTraffic:
  """`matmul_traffic` of a product that is a single step of a single tile.

  Raises:
    ValueError: a size is below 1 or a dtype is unknown.
  """
  for name, size in (("block_m", block_m), ("block_n", block_n), ("block_k", block_k)):
    at_least(name, size, 1)
  return matmul_traffic(
    m=block_m,
    k=block_k,
    n=block_n,
    block_m=block_m,
    block_n=block_n,
    block_k=block_k,
    in_dtype=in_dtype,
    acc_dtype=acc_dtype,
    num_stages=num_stages,
  )


def operand_bytes(tile: MatmulTraffic) -> int:
  """Bytes of all operand stages, without the accumulator."""
  return tile.working_set_bytes - tile.accumulator_bytes
