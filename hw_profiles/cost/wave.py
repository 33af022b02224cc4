"""How a grid of programs fills a device round by round."""

import dataclasses

from hw_profiles.arguments import at_least, ceil_div


@dataclasses.dataclass(frozen=True)
class Wave:
  """How a grid of programs fills a device round by round.

  Attributes:
    programs_per_wave: Programs that run at once.
    waves: Rounds, the last of which may be part filled.
    tail_efficiency: programs / (waves x programs_per_wave); 0 for an empty grid.
  """

  programs_per_wave: int
  waves: int
  tail_efficiency: float


def wave(*, programs: int, cores: int, programs_per_core: int = 1) -> Wave:
  """waves = ⌈programs / (cores·programs_per_core)⌉.

  Example: 384 tiles on 132 SMs take 3 waves and use 97 % of them.

  Args:
    programs: Programs to run.
    cores: SMs or AIC cores.
    programs_per_core: Programs resident on each.

  Raises:
    ValueError: an argument is out of range.
  """
  at_least("programs", programs, 0)
  at_least("cores", cores, 1)
  at_least("programs_per_core", programs_per_core, 1)
  capacity = cores * programs_per_core
  waves = ceil_div(programs, capacity)
  return Wave(
    programs_per_wave=capacity,
    waves=waves,
    tail_efficiency=programs / (waves * capacity) if waves else 0.0,
  )
