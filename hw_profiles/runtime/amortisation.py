"""Preparation paid once, and how many runs pay it back."""

import dataclasses
import math

from hw_profiles.arguments import at_least, not_negative, positive


@dataclasses.dataclass(frozen=True)
class Amortisation:
  """Time of a number of runs with one preparation.

  Attributes:
    total_us: Preparation and all runs.
    mean_us: `total_us` for each run; infinite for none.
    preparation_fraction: Share of `total_us` the preparation takes; 0 of nothing.
  """

  total_us: float
  mean_us: float
  preparation_fraction: float


def amortisation(*, preparation_us: float, run_us: float, runs: int) -> Amortisation:
  """total = preparation + runs·run.

  Example: compilation of 100 ms and runs of 1 ms: 101 ms for one call, 200 ms
  for a hundred, 2 ms each; the 1 ms never goes away.

  Args:
    preparation_us: Compilation, allocation, planning: before the first run.
    run_us: Each run.
    runs: How many.

  Raises:
    ValueError: an argument is out of range.
  """
  not_negative("preparation_us", preparation_us)
  not_negative("run_us", run_us)
  at_least("runs", runs, 0)
  total_us = preparation_us + runs * run_us
  return Amortisation(
    total_us=total_us,
    mean_us=total_us / runs if runs else math.inf,
    preparation_fraction=preparation_us / total_us if total_us else 0.0,
  )


def payback_runs(*, extra_preparation_us: float, saved_us_per_run: float) -> float:
  """Runs after which savings equal an extra preparation: extra / saved.

  Not rounded: the change pays from the next whole run on. Infinite where a run
  saves nothing, 0 where nothing extra is prepared.

  Args:
    extra_preparation_us: What the change costs once.
    saved_us_per_run: What it saves each time; negative where it loses.

  Raises:
    ValueError: a preparation below 0, or a saving that is not finite.
  """
  not_negative("extra_preparation_us", extra_preparation_us)
  is_number = isinstance(saved_us_per_run, int | float) and not isinstance(saved_us_per_run, bool)
  if not is_number or not math.isfinite(saved_us_per_run):
    raise ValueError(f"saved_us_per_run={saved_us_per_run!r}: expected a finite number")
  if extra_preparation_us == 0:
    return 0.0
  return extra_preparation_us / saved_us_per_run if saved_us_per_run > 0 else math.inf


@dataclasses.dataclass(frozen=True)
class TuningPayback:
  """How much use pays a search back.

  Attributes:
    calls: Calls whose savings equal the search.
    seconds: How long that takes at the rate of calls.
  """

  calls: float
  seconds: float


def tuning_payback(
  *, search_s: float, saved_us_per_call: float, calls_per_s: float
) -> TuningPayback:
  """calls = search / saved; seconds = calls / rate.

  Example: ten minutes of search that save 5 us a call need 1.2e8 calls: 3.3
  hours at 10^4 calls a second, 14 days at 100. Search first for what is called
  often and for long.

  Args:
    search_s: Time of the search.
    saved_us_per_call: Old time minus new time of one call.
    calls_per_s: How often it is called.

  Raises:
    ValueError: an argument is out of range.
  """
  not_negative("search_s", search_s)
  positive("calls_per_s", calls_per_s)
  calls = payback_runs(extra_preparation_us=search_s * 1e6, saved_us_per_run=saved_us_per_call)
  return TuningPayback(calls=calls, seconds=calls / calls_per_s)
