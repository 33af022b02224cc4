"""All values that the library recomputes without NumPy, by topic."""

from collections.abc import Mapping

from hw_profiles.examples import (
  attention,
  fusion_and_splits,
  loops_and_selection,
  runtime_and_requests,
  shared_memory,
  sm_tiling,
  tiles_and_residency,
  transfers_and_timelines,
)
from hw_profiles.examples.computed import Computed

TOPICS: Mapping[str, Computed] = {
  "tiles and residency": tiles_and_residency.COMPUTED,
  "tiling inside an SM": sm_tiling.COMPUTED,
  "shared memory": shared_memory.COMPUTED,
  "attention": attention.COMPUTED,
  "fusion and splits": fusion_and_splits.COMPUTED,
  "loops and selection": loops_and_selection.COMPUTED,
  "transfers and timelines": transfers_and_timelines.COMPUTED,
  "runtime and requests": runtime_and_requests.COMPUTED,
}
