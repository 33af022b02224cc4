"""What the program is doing, on stderr, with an estimate of the time left.

A job is a list of steps known beforehand. Each step has a kind and an amount of
work; the seconds that finished steps of a kind took per unit of work predict
those still to come. Steps that last are reported while they run.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TextIO

# A line every 5 s: frequent enough to see life, seldom enough for a log.
HEARTBEAT_S = 5.0


@dataclasses.dataclass(frozen=True)
class Step:
  """One piece of a job: `work` is in any unit that is the same within its `kind`."""

  kind: str
  label: str
  work: float


class Progress:
  """Reports a job's steps as they start, last and end."""

  def __init__(
    self,
    steps: Sequence[Step],
    *,
    rates: Mapping[str, float],
    stream: TextIO,
    clock: Callable[[], float] = time.monotonic,
    heartbeat_s: float = HEARTBEAT_S,
  ) -> None:
    """A job that has not started.

    Args:
      steps: The whole job, in order.
      rates: Seconds a unit of work, by kind, until a step of the kind has
        finished. Guesses: only the first estimates depend on them.
      stream: Where lines go.
      clock: Seconds, monotonic.
      heartbeat_s: Seconds between the lines of a step that lasts.
    """
    self._steps = list(steps)
    self._guesses = dict(rates)
    self._spent: dict[str, tuple[float, float]] = {}
    self._position = 0
    self._stream = stream
    self._clock = clock
    self._heartbeat_s = heartbeat_s

  def say(self, text: str) -> None:
    """One line."""
    print(f"pallas-bench: {text}", file=self._stream, flush=True)

  def left_s(self, elapsed_s: float = 0.0) -> float:
    """Seconds left, `elapsed_s` into the step that runs now."""
    left = 0.0
    for index, step in enumerate(self._steps[self._position :]):
      expected = step.work * self._rate(step.kind)
      left += max(0.0, expected - elapsed_s) if index == 0 else expected
    return left

  @contextlib.contextmanager
  def next(self) -> Iterator[Step]:
    """Runs the next step of the job inside the `with`."""
    step = self._steps[self._position]
    number = f"[{self._position + 1}/{len(self._steps)}]"
    self.say(f"{number} {step.label}; about {_seconds(self.left_s())} left")
    start = self._clock()
    stopped = threading.Event()

    def beat() -> None:
      while not stopped.wait(self._heartbeat_s):
        elapsed = self._clock() - start
        self.say(
          f"{number} {step.label}: {_seconds(elapsed)} so far; "
          f"about {_seconds(self.left_s(elapsed))} left"
        )

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
      yield step
    finally:
      stopped.set()
      thread.join()
      self._finish(step, self._clock() - start)

  def skip(self) -> None:
    """Leaves out the next step of the job."""
    self._position += 1

  def _rate(self, kind: str) -> float:
    seconds, work = self._spent.get(kind, (0.0, 0.0))
    return seconds / work if work > 0 else self._guesses[kind]

  def _finish(self, step: Step, seconds: float) -> None:
    spent_s, spent_work = self._spent.get(step.kind, (0.0, 0.0))
    self._spent[step.kind] = (spent_s + seconds, spent_work + step.work)
    self._position += 1


def _seconds(value: float) -> str:
  if value < 90:
    return f"{value:.0f} s"
  return f"{value / 60:.0f} min"


class Tally:
  """Reports how many of a number of like things are done, which may run side by side."""

  def __init__(
    self,
    total: int,
    what: str,
    *,
    stream: TextIO,
    clock: Callable[[], float] = time.monotonic,
    heartbeat_s: float = HEARTBEAT_S,
  ) -> None:
    """Says that it starts.

    Args:
      total: How many there are.
      what: What they are, in the plural.
      stream: Where lines go.
      clock: Seconds, monotonic.
      heartbeat_s: Seconds between two lines, at least.
    """
    self._total = total
    self._what = what
    self._stream = stream
    self._clock = clock
    self._heartbeat_s = heartbeat_s
    self._start = self._said = clock()
    self._done = 0
    self._say(f"{total} {what}")

  def one(self) -> None:
    """One more is done."""
    self._done += 1
    now = self._clock()
    if now - self._said < self._heartbeat_s and self._done < self._total:
      return
    self._said = now
    spent_s = now - self._start
    left_s = spent_s / self._done * (self._total - self._done)
    self._say(
      f"[{self._done}/{self._total}] {self._what}: {_seconds(spent_s)} so far; "
      f"about {_seconds(left_s)} left"
    )

  def _say(self, text: str) -> None:
    print(f"pallas-bench: {text}", file=self._stream, flush=True)
