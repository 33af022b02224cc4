"""flash_attention as the planner sees it."""

from collections.abc import Iterator

from hw_profiles.attention import compiled, cube_vector, multistage, warp_specialized
from hw_profiles.attention.candidates import candidates
from hw_profiles.attention.config import AttentionConfig
from hw_profiles.attention.passes import attention_passes
from hw_profiles.attention.problem import AttentionProblem
from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.tile_config import TileField, TileFields


class AttentionModel:
  """`OpModel` of attention, forward and backward; see there for the attributes."""

  name = "flash_attention"
  problem_class = AttentionProblem
  config_class = AttentionConfig
  gpu_schedules = (warp_specialized, multistage)
  npu_schedules = (compiled, cube_vector)

  def candidates(
    self, problem: AttentionProblem, device: GpuProfile | NpuProfile, schedule: str
  ) -> Iterator[AttentionConfig]:
    """See `attention_candidates`, which drops those that do not fit."""
    return candidates(problem, device, schedule)

  def tile_fields(self, problem: AttentionProblem, config: AttentionConfig) -> TileFields:
    """The blocks that the problem's kernels read, stages, and what one schedule each reads.

    What a remedy keeps large are the scores of a step. 16 rows are one wgmma's
    depth, a fractal's height and the least side of Triton's dot.
    """
    fields = {}
    for one in attention_passes(problem, config):
      fields[one.rows_field] = TileField(
        one.rows, 16, larger_needs_more=True, is_block=True, is_output=True
      )
      fields[one.columns_field] = TileField(
        one.columns, 16, larger_needs_more=True, is_block=True, is_output=True
      )
    fields["num_stages"] = TileField(
      config.num_stages, larger_needs_more=True, fallback=min(config.num_stages, 2)
    )
    first = attention_passes(problem, config)[0]
    fields["num_warps"] = TileField(multistage.warps(first))
    fields["num_consumer_warpgroups"] = TileField(warp_specialized.consumer_warpgroups(first))
    return fields


FLASH_ATTENTION = AttentionModel()
