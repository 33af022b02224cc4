"""The matmul as the planner sees it."""

from collections.abc import Iterator

from hw_profiles.matmul import compiled, cube, multistage, tcgen05, warp_specialized
from hw_profiles.matmul.candidates import candidates
from hw_profiles.matmul.config import MatmulConfig
from hw_profiles.matmul.problem import MatmulProblem
from hw_profiles.matmul.split_k import parts_of
from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.tile_config import TileField, TileFields


class MatmulModel:
  """`OpModel` of the matmul; see there for the attributes."""

  name = "matmul"
  problem_class = MatmulProblem
  config_class = MatmulConfig
  gpu_schedules = (warp_specialized, multistage, tcgen05)
  npu_schedules = (compiled, cube)

  def candidates(
    self, problem: MatmulProblem, device: GpuProfile | NpuProfile, schedule: str
  ) -> Iterator[MatmulConfig]:
    """See `matmul_candidates`, which drops those that do not fit."""
    return candidates(problem, device, schedule)

  def tile_fields(self, problem: MatmulProblem, config: MatmulConfig) -> TileFields:
    """Blocks, stages, and the fields that one schedule each reads.

    The steps of the blocks are the least worth trying: 8 columns are one
    wgmma's granule, 16 a fractal's and the least side of Triton's dot.
    """
    part, _ = parts_of(problem, config)
    return {
      "block_m": TileField(
        config.block_m, 16, larger_needs_more=True, is_block=True, is_output=True
      ),
      "block_n": TileField(
        config.block_n, 8, larger_needs_more=True, is_block=True, is_output=True
      ),
      "block_k": TileField(config.block_k, 8, larger_needs_more=True, is_block=True),
      "num_stages": TileField(
        config.num_stages, larger_needs_more=True, fallback=min(config.num_stages, 2)
      ),
      # more warps need fewer registers each
      "num_warps": TileField(multistage.warps(config, products=problem.products)),
      "num_consumer_warpgroups": TileField(warp_specialized.consumer_warpgroups(config)),
      "epilogue_block_n": TileField(
        warp_specialized.staging_columns(config, out_dtype=part.result_dtype)
      ),
      "cluster_m": TileField(config.cluster_m),
      "cluster_n": TileField(config.cluster_n),
      "split_k": TileField(config.split_k, larger_needs_more=True, fallback=1),
    }


MATMUL = MatmulModel()
