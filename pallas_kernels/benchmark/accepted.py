"""Tiles that the compilers of several devices all take: the nearest to a tile, the best of all."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

from hw_profiles import TilePlan
from pallas_kernels.benchmark import compiling
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.ops.op import Config
from pallas_kernels.benchmark.workload import Workload
from pallas_kernels.lowering.compile_pool import CompilePool
from pallas_kernels.lowering.compile_task import Compiled

# Blocks beside a tile's own: up to a factor of 8, in the range that kernels are made for.
_OCTAVES = 3
_SMALLEST, _LARGEST = 1, 16384
# A stage more or less is a smaller step than a block of twice the size.
_STAGE_STEP = 0.5
_MOST_STAGES = 4


@dataclasses.dataclass(frozen=True)
class Found:
  """What a search found.

  Attributes:
    tile: The tile; None where none was found.
    told: How it was searched.
    answers: Of the compilers, all of them.
  """

  tile: Config | None
  told: str
  answers: tuple[Compiled, ...]


def blocks(tile: Any) -> list[str]:
  """The sizes that every tile of the class has."""
  return [
    field.name
    for field in dataclasses.fields(tile)
    if field.name.startswith("block_") and field.default is not None
  ]


def neighbours(tile: Any) -> Iterator[Any]:
  """Tiles around one, nearest first: blocks that are powers of two, one to four stages.

  The distance counts halvings and doublings; a stage is half a step. Fields that
  only one vendor's kernel reads stay, unless a block of another size forbids them.
  """
  names = blocks(tile)
  choices = []
  for name in names:
    size = getattr(tile, name)
    nearest = round(math.log2(size))
    choices.append(
      [
        1 << power
        for power in range(nearest - _OCTAVES, nearest + _OCTAVES + 1)
        if power >= 0 and _SMALLEST <= 1 << power <= _LARGEST
      ]
    )
  stages = range(1, max(_MOST_STAGES, tile.num_stages) + 1)
  found = []
  for *sizes, count in itertools.product(*choices, stages):
    distance = _STAGE_STEP * abs(count - tile.num_stages) + sum(
      abs(math.log2(size / getattr(tile, name))) for name, size in zip(names, sizes, strict=True)
    )
    found.append((distance, dict(zip(names, sizes, strict=True)) | {"num_stages": count}))
  # of those as far away the one with larger blocks: it moves fewer bytes
  found.sort(key=lambda one: (one[0], -math.prod(one[1][name] for name in names)))
  for distance, changes in found:
    if distance > 0:
      yield dataclasses.replace(tile, **changes)


def model_accepts(workload: Workload, tile: Any, profile: str) -> TilePlan[Any, Any] | None:
  """The plan of a tile that the planner lets through, or None; nothing is compiled."""
  plan = compiling.planned(workload, tile, profile)
  return plan if plan.fits else None


def first_accepted(
  options: Options,
  pool: CompilePool,
  workload: Workload,
  tiles: Iterable[Any],
  profiles: tuple[str, ...],
  *,
  what: str,
) -> Found:
  """The first of the tiles that every device's compiler takes, of at most `--top` compiled.

  As many are compiled at a time as run side by side: a later one may be compiled
  for nothing, the first still is the first.
  """
  waiting = iter(tiles)
  tried = 0
  answers: list[Compiled] = []
  at_once = max(1, pool.jobs // len(profiles))
  while tried < options.top:
    batch = list(itertools.islice(waiting, min(at_once, options.top - tried)))
    if not batch:
      break
    tried += len(batch)
    tasks = [
      compiling.task(options, workload, tile, profile) for tile in batch for profile in profiles
    ]
    got = compiling.compiled(pool, tasks, what)
    answers += got
    missing = [one.reason for one in got if one.outcome == "not available"]
    if missing:
      return Found(None, missing[0], tuple(answers))
    for index, tile in enumerate(batch):
      own = got[index * len(profiles) : (index + 1) * len(profiles)]
      if all(one.accepted for one in own):
        return Found(tile, f"found after compiling {tried}", tuple(answers))
  return Found(None, f"{tried} were compiled (--top={options.top})", tuple(answers))


def nearest(
  options: Options, pool: CompilePool, workload: Workload, tile: Any, profiles: tuple[str, ...]
) -> Found:
  """The nearest tile that the planner lets through and all compilers take."""
  passed = (
    other
    for other in neighbours(tile)
    if all(model_accepts(workload, other, profile) is not None for profile in profiles)
  )
  return first_accepted(options, pool, workload, passed, profiles, what="tiles nearby to compile")
