"""Measures the candidates of a problem, and finds the fastest.

First the tiles that the planner ranks first; then what lies beside the best of
all that are known, again and again; then the best once more, in turn, so that a
clock that drifts meets them all.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import hw_profiles
from pallas_kernels.tuning import candidates, encoding
from pallas_kernels.tuning.state import Trial
from pallas_kernels.tuning.table import Entry, Environment, RunnerUp

# Configs measured for each tile of the planner, itself among them.
CONFIGS_A_TILE = 3
# What a trial says from before it runs until it is done: a kernel that hangs, or
# takes the process with it, is not run again.
_STOPPED = "was running when the search was killed"
# Configs that are measured again.
_FINALISTS = 4
# Rounds of a finalist; the median of an odd number is one of them.
_ROUNDS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
  """What is tuned.

  Attributes:
    problem: As dispatch sees it: it is found by all of its fields.
    implementation: The kernel.
    schedule: What the planner calls it.
    profile: Name of the device's profile.
  """

  problem: Any
  implementation: str
  schedule: str
  profile: str

  @property
  def key(self) -> str:
    """What its trials are kept under."""
    return f"{self.implementation} {encoding.key(self.problem)}"


class CandidateError(Exception):
  """A config does not run; the message says why."""


class DeviceLostError(CandidateError):
  """A config does not run, and nothing runs after it in this process."""


class Workbench(Protocol):
  """Compiles and measures the configs of one target.

  `verify` and `measure` may raise CandidateError, which stops that config, or
  DeviceLostError, which stops the search.
  """

  def prepare(self, configs: Sequence[Any]) -> dict[Any, str]:
    """Compiles them; the reason of each that does not compile."""
    ...

  def verify(self, config: Any) -> tuple[str | None, str]:
    """Why the result of a prepared config is wrong, or None; and how that was found out."""
    ...

  def measure(self, config: Any) -> float:
    """Median device time of a prepared config, microseconds."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
  """One config and what came of it.

  Attributes:
    config: The config.
    predicted_us: The planner's time.
    trial: What was measured.
  """

  config: Any
  predicted_us: float | None
  trial: Trial

  @property
  def measured_us(self) -> float | None:
    """Median over the rounds; None where it failed."""
    if self.trial.failure is not None or not self.trial.rounds_us:
      return None
    return statistics.median(self.trial.rounds_us)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """What a search found.

  Attributes:
    target: What was tuned.
    candidates: Fastest first; those that failed last.
    planner: The planner's first choice; None where no tile fits.
  """

  target: Target
  candidates: tuple[Candidate, ...]
  planner: Candidate | None

  @property
  def best(self) -> Candidate | None:
    """The fastest; None where all failed."""
    found = self.candidates[0] if self.candidates else None
    return None if found is None or found.measured_us is None else found

  @property
  def regret(self) -> float | None:
    """Time of the planner's first choice over the best time; None: not measured."""
    if self.best is None or self.planner is None or self.planner.measured_us is None:
      return None
    assert self.best.measured_us is not None
    return self.planner.measured_us / self.best.measured_us

  def entry(self, environment: Environment) -> Entry | None:
    """The line of a table; None where nothing was measured."""
    if self.best is None:
      return None
    measured = [one for one in self.candidates if one.measured_us is not None]
    second = measured[1] if len(measured) > 1 else None
    assert self.best.measured_us is not None
    return Entry(
      problem=encoding.encode(self.target.problem),
      implementation=self.target.implementation,
      config=self.best.config,
      measured_us=round(self.best.measured_us, 3),
      environment=environment,
      planner_us=None
      if self.planner is None or self.planner.measured_us is None
      else round(self.planner.measured_us, 3),
      runner_up=None
      if second is None or second.measured_us is None
      else RunnerUp(config=second.config, measured_us=round(second.measured_us, 3)),
      candidates=len(measured),
    )


def search(
  target: Target,
  workbench: Workbench,
  trials: dict[str, Trial],
  *,
  top: int,
  save: Callable[[], None],
  say: Callable[[str], None],
) -> Result:
  """Find the fastest config of a target.

  Args:
    target: What to tune.
    workbench: Compiles and measures.
    trials: What is measured already, by encoded config; added to. A config in
      it is not measured again.
    top: Tiles of the planner to start from; in all `CONFIGS_A_TILE` times as
      many configs are measured, where there are so many.
    save: Called whenever `trials` has changed.
    say: Takes lines for people.

  Returns:
    Every candidate, and what it took. The same trials give the same result.
  """
  one = _Search(target, workbench, trials, save)
  first = candidates.first(target.problem, target.profile, schedule=target.schedule, top=top)
  one.try_all(first)
  say(one.standing())
  explored: set[Any] = set()
  while (room := CONFIGS_A_TILE * top - len(one)) > 0:
    config = next((x for x in one.running() if x not in explored), None)
    if config is None:
      break
    explored.add(config)
    beside = candidates.beside(
      target.problem, target.profile, schedule=target.schedule, config=config
    )
    one.try_all([x for x in beside if x.config not in one][:room])
  say(one.standing())
  planner = first[0].config if first else None
  one.repeat(one.running()[:_FINALISTS], planner)
  ordered = one.ordered()
  return Result(
    target=target,
    candidates=ordered,
    planner=next((x for x in ordered if x.config == planner), None),
  )


class _Search:
  """The candidates of a target so far."""

  def __init__(
    self,
    target: Target,
    workbench: Workbench,
    trials: dict[str, Trial],
    save: Callable[[], None],
  ) -> None:
    self._target = target
    self._workbench = workbench
    self._trials = trials
    self._save = save
    self._candidates: dict[Any, Candidate] = {}
    self._prepared: set[Any] = set()
    self._finalists: tuple[Any, ...] = ()

  def __len__(self) -> int:
    """Configs tried."""
    return len(self._candidates)

  def __contains__(self, config: Any) -> bool:
    """Whether it was tried."""
    return config in self._candidates

  def try_all(self, plans: Sequence[hw_profiles.TilePlan]) -> None:
    """One round of each that was not tried."""
    todo = [x.config for x in plans if encoding.key(x.config) not in self._trials]
    reasons = self._prepare(todo)
    for plan in plans:
      name = encoding.key(plan.config)
      if name not in self._trials:
        self._try(name, plan.config, reasons.get(plan.config))
      self._candidates[plan.config] = Candidate(
        config=plan.config, predicted_us=plan.predicted_us, trial=self._trials[name]
      )

  def repeat(self, best: Sequence[Any], planner: Any | None) -> None:
    """The rounds that are missing of the best, and of the planner's choice."""
    self._finalists = tuple(best)
    again = [
      config
      for config in dict.fromkeys((*best, *([] if planner is None else [planner])))
      if self._candidates[config].measured_us is not None
    ]
    missing = [x for x in again if len(self._candidates[x].trial.rounds_us) < _ROUNDS]
    self._prepare([x for x in missing if x not in self._prepared])
    for done in range(1, _ROUNDS):
      for config in missing:
        trial = self._candidates[config].trial
        if len(trial.rounds_us) == done:
          trial.rounds_us.append(self._workbench.measure(config))
          self._save()

  def running(self) -> list[Any]:
    """Configs with a time, fastest in the first round first: the same, whatever rounds followed."""
    times = {
      config: x.trial.rounds_us[0]
      for config, x in self._candidates.items()
      if x.measured_us is not None
    }
    return sorted(times, key=times.__getitem__)

  def ordered(self) -> tuple[Candidate, ...]:
    """Fastest first, the finalists before all that had only one chance to be lucky."""

    def order(x: Candidate) -> tuple[bool, float]:
      if x.measured_us is None:
        return True, math.inf
      return x.config not in self._finalists, x.measured_us

    return tuple(sorted(self._candidates.values(), key=order))

  def standing(self) -> str:
    """How far it is, in one line."""
    running = self.running()
    if not running:
      return f"{len(self)} tiles, none runs"
    best = self._candidates[running[0]]
    return f"{len(self)} tiles, best {best.trial.rounds_us[0]:.1f} us, {best.config.describe()}"

  def _prepare(self, configs: Sequence[Any]) -> dict[Any, str]:
    reasons = self._workbench.prepare(configs) if configs else {}
    self._prepared.update(configs)
    return reasons

  def _try(self, name: str, config: Any, reason: str | None) -> None:
    """Sets the trial of a config, and saves."""
    self._trials[name] = Trial(failure=_STOPPED)
    self._save()
    try:
      self._trials[name] = self._tried(config, reason)
    except CandidateError as error:
      self._trials[name] = Trial(failure=str(error))
      if isinstance(error, DeviceLostError):
        raise
    except BaseException:  # an interrupt says nothing about the config
      del self._trials[name]
      raise
    finally:
      self._save()

  def _tried(self, config: Any, reason: str | None) -> Trial:
    if reason is not None:
      return Trial(failure=reason)
    failure, check = self._workbench.verify(config)
    if failure is not None:
      return Trial(failure=failure, check=check)
    return Trial(rounds_us=[self._workbench.measure(config)], check=check)
