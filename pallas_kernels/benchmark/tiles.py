"""Which tiles a task looks at when the command line names none."""

import dataclasses
from collections.abc import Sequence

import hw_profiles
from hw_profiles import MatmulConfig
from pallas_kernels.benchmark import planning
from pallas_kernels.benchmark.flags import Options

# The two tiles whose trade between reuse and room the project starts from, as
# they were stated: one operand pair at a time, accumulator in shared memory
# (24 KiB and 80 KiB for 16-bit operands). Then one that suits each family:
# four stages of a wgmma-sized tile on Hopper, and one whose accumulator fills
# the 128 KiB of L0C on Ascend 910B with operands double-buffered in L1.
DEFAULT_TILES = (
  MatmulConfig(64, 64, 32, 1, accumulator="shared"),
  MatmulConfig(128, 128, 32, 1, accumulator="shared"),
  MatmulConfig(128, 256, 64, 4),
  MatmulConfig(128, 256, 256, 2),
)


@dataclasses.dataclass(frozen=True)
class TileChoice:
  """A tile and the profiles it is planned for.

  Attributes:
    tile: The tile.
    profiles: Names of profiles.
    best_on: Those of the profiles whose planner ranks this tile first; empty
      where tiles were given, which are not ranked.
  """

  tile: MatmulConfig
  profiles: tuple[str, ...]
  best_on: tuple[str, ...] = ()


def tiles_for(
  options: Options, what: hw_profiles.MatmulProblem, profiles: Sequence[str]
) -> tuple[TileChoice, ...]:
  """The tiles given, each on every profile; else the default tiles and each profile's best."""
  everywhere = tuple(profiles)
  if options.tiles is not None:
    return tuple(TileChoice(tile, everywhere) for tile in options.tiles)
  best_on: dict[MatmulConfig, list[str]] = {}
  for profile in profiles:
    tile = planning.best(what, profile)
    if tile is not None:
      best_on.setdefault(tile, []).append(profile)
  default = tuple(
    TileChoice(tile, everywhere, tuple(best_on.pop(tile, ()))) for tile in DEFAULT_TILES
  )
  return default + tuple(
    TileChoice(tile, tuple(where), tuple(where)) for tile, where in best_on.items()
  )
