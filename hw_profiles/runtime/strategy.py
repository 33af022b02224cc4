"""General, bucketed or specialised: least time over all repeats, not for one."""

import dataclasses
import fractions
import math
from collections.abc import Collection, Mapping, Sequence

from hw_profiles.arguments import at_least, collection, mapping, not_negative
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.runtime.amortisation import payback_runs


@dataclasses.dataclass(frozen=True)
class Strategy:
  """One way to serve a group of calls.

  Attributes:
    name: For example "general", "bucketed", "specialised".
    run_us: Time of one group once its programs are there.
    programs_us: Program name to the time it takes to prepare.
  """

  name: str
  run_us: float
  programs_us: Mapping[str, float]

  def __post_init__(self) -> None:
    mapping(f"Strategy({self.name!r}).programs_us", self.programs_us)
    not_negative(f"Strategy({self.name!r}).run_us", self.run_us)
    for program, time_us in self.programs_us.items():
      not_negative(f"Strategy({self.name!r}).programs_us[{program!r}]", time_us)
    object.__setattr__(self, "programs_us", FrozenMap(self.programs_us))

  def preparation_us(self, cached: Collection[str] = ()) -> float:
    """Time of the programs that are not among `cached`."""
    return sum(time_us for name, time_us in self.programs_us.items() if name not in cached)


@dataclasses.dataclass(frozen=True)
class StrategyRange:
  """Numbers of repeats for which one strategy takes least time.

  Attributes:
    name: The strategy.
    first: From this number on.
    last: To this number, included; None: for ever.
  """

  name: str
  first: int
  last: int | None


@dataclasses.dataclass(frozen=True)
class StrategyChoice:
  """Which strategy takes least time.

  Attributes:
    best: Name of the fastest over `repeats` groups, preparation included.
    total_us: Strategy to preparation plus all groups.
    fastest_run: Name of the fastest once all is prepared; not always the best.
    ranges: Which is best for 1, 2, 3 … groups.
    payback: (cheaper to prepare, faster to run) to the repeats at which both take
      equally long, for every pair that has such a point.
  """

  best: str
  total_us: FrozenMap[str, float]
  fastest_run: str
  ranges: tuple[StrategyRange, ...]
  payback: FrozenMap[tuple[str, str], float]


def _ranges(lines: Sequence[tuple[str, float, float]]) -> tuple[StrategyRange, ...]:
  """The lower envelope of preparation + repeats·run over whole repeats.

  Exact in rationals: a crossing at a whole number is a tie, and keeps the
  strategy at hand.
  """
  exact = [
    (name, fractions.Fraction(preparation), fractions.Fraction(run))
    for name, preparation, run in lines
  ]
  at = 1
  # of equal totals the cheaper to prepare, then the first given
  name, preparation, run = min(exact, key=lambda line: (line[1] + line[2], line[1]))
  ranges: list[StrategyRange] = []
  while True:
    crossings = []
    for other in exact:
      if other[2] < run:
        after = math.floor((other[1] - preparation) / (run - other[2])) + 1
        crossings.append((max(after, at + 1), other))
    if not crossings:
      return (*ranges, StrategyRange(name=name, first=at, last=None))
    first = min(crossing for crossing, _ in crossings)
    follower = min(
      (line for crossing, line in crossings if crossing == first),
      key=lambda line: (line[1] + first * line[2], line[1]),
    )
    ranges.append(StrategyRange(name=name, first=at, last=first - 1))
    at, (name, preparation, run) = first, follower


def choose_strategy(
  strategies: Sequence[Strategy], *, repeats: int, cached: Collection[str] = ()
) -> StrategyChoice:
  """Least preparation + repeats·run; programs in `cached` need no preparation.

  Example: 5632 rows of an FFN of 302 MFLOP a row, or 8192 padded, at 100, 200
  and 250 TFLOP/s: 17.0, 12.4 and 6.8 ms a group after 100, 400 and 900 ms. The
  general program is best for 1 to 64 groups, buckets from 65 to 89, one program
  a shape from 90 on; for 70 groups 1.29, 1.27 and 1.38 s, although the last is
  fastest once it runs. With all programs cached it is best at once.

  Those limits hold for the rounded rates. With 20, 40 and 50 % of 503.8 TFLOP/s,
  from which they were rounded, the choice changes at 66 and 91. With four small
  calls in the group instead of eight the first limit stays: 256 rows at 100 and
  512 padded ones at 200 TFLOP/s take equally long, so both lose the same.

  Args:
    strategies: The candidates; of equal totals the one cheaper to prepare, then
      the first given, is taken.
    repeats: Groups that will be run.
    cached: Names of programs that are already compiled.

  Raises:
    ValueError: no strategy, two of one name, or `repeats` below 1.
  """
  collection("strategies", strategies, Strategy)
  collection("cached", tuple(cached) if isinstance(cached, Mapping) else cached)
  at_least("number of strategies", len(strategies), 1)
  at_least("repeats", repeats, 1)
  names = [strategy.name for strategy in strategies]
  if len(set(names)) < len(names):
    raise ValueError(f"strategies: names must differ, got {', '.join(map(repr, names))}")
  cached = frozenset(cached)
  lines = [
    (strategy.name, strategy.preparation_us(cached), strategy.run_us) for strategy in strategies
  ]
  payback = {
    (cheap, fast): payback_runs(
      extra_preparation_us=fast_preparation - cheap_preparation,
      saved_us_per_run=cheap_run - fast_run,
    )
    for cheap, cheap_preparation, cheap_run in lines
    for fast, fast_preparation, fast_run in lines
    if cheap_preparation <= fast_preparation and fast_run < cheap_run
  }
  ranges = _ranges(lines)
  best = next(
    part.name
    for part in ranges
    if part.first <= repeats and (part.last is None or repeats <= part.last)
  )
  return StrategyChoice(
    best=best,
    total_us=FrozenMap({name: preparation + repeats * run for name, preparation, run in lines}),
    fastest_run=min(lines, key=lambda line: (line[2], line[1]))[0],
    ranges=ranges,
    payback=FrozenMap(payback),
  )
