"""Which tiles a task looks at when the command line names none."""

import dataclasses
from collections.abc import Callable, Sequence

from pallas_kernels.benchmark.ops.op import Config
from pallas_kernels.benchmark.workload import Workload


@dataclasses.dataclass(frozen=True)
class TileChoice:
  """A tile and the profiles it is planned for.

  Attributes:
    tile: The tile.
    profiles: Names of profiles.
    best_on: Those of the profiles whose planner ranks this tile first.
  """

  tile: Config
  profiles: tuple[str, ...]
  best_on: tuple[str, ...] = ()


def planned_best(workload: Workload, profile: str) -> Config | None:
  """The tile the planner ranks first on a profile; None where none fits."""
  best: Config | None = workload.op.best(workload.problem(), profile)
  return best


def tiles_for(
  workload: Workload,
  profiles: Sequence[str],
  *,
  best: Callable[[Workload, str], Config | None] = planned_best,
  rank_given: bool = True,
) -> tuple[TileChoice, ...]:
  """The tiles given, each on every profile; else the op's default tiles and each profile's best.

  Args:
    workload: The problem.
    profiles: Names of profiles.
    best: The best tile of a workload on a profile.
    rank_given: Whether to find the best where tiles were given, too, only to
      know which of them it is: a ranking costs as much as 200 plans.
  """
  everywhere = tuple(profiles)
  best_on: dict[Config, list[str]] = {}
  for profile in profiles if rank_given or workload.tiles is None else ():
    tile = best(workload, profile)
    if tile is not None:
      best_on.setdefault(tile, []).append(profile)
  tiles = workload.op.default_tiles if workload.tiles is None else workload.tiles
  named = tuple(TileChoice(tile, everywhere, tuple(best_on.pop(tile, ()))) for tile in tiles)
  if workload.tiles is not None:
    return named
  return named + tuple(
    TileChoice(tile, tuple(where), tuple(where)) for tile, where in best_on.items()
  )
