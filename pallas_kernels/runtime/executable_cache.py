"""A cache of compiled programs: the least recently used goes first, every use is counted."""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from hw_profiles import ProgramCacheUse
from hw_profiles.frozen_map import FrozenMap

_Program = TypeVar("_Program")


class ExecutableCache(Generic[_Program]):
  """Programs by key. Threads may share it: who asks for a program that another makes waits for it.

  Other programs are found, and made, meanwhile.
  """

  def __init__(
    self, *, capacity: int | None = None, clock: Callable[[], float] = time.perf_counter
  ) -> None:
    """An empty cache.

    Args:
      capacity: Programs held at once; None: all of them.
      clock: Seconds, monotonic.

    Raises:
      ValueError: a capacity below 1.
    """
    whole = isinstance(capacity, int) and not isinstance(capacity, bool)
    if capacity is not None and (not whole or capacity < 1):
      raise ValueError(f"capacity={capacity!r}: expected an integer of at least 1, or None")
    self._capacity = capacity
    self._clock = clock
    self._held: collections.OrderedDict[Hashable, _Program] = collections.OrderedDict()
    self._use = ProgramCacheUse(
      hits=0,
      misses=0,
      evictions=0,
      recompilations=0,
      compile_us=0.0,
      hits_by=FrozenMap(),
      resident=(),
    )
    # keys of programs that are being made, by the thread that makes them
    self._making: dict[Hashable, int] = {}
    self._lock = threading.Condition()

  @property
  def use(self) -> ProgramCacheUse:
    """What has happened so far, in the terms of `hw_profiles.program_cache`."""
    with self._lock:
      return dataclasses.replace(self._use, resident=tuple(self._held))

  @property
  def keys(self) -> tuple[Hashable, ...]:
    """Those of the programs held, the least recently used first."""
    with self._lock:
      return tuple(self._held)

  def get(self, key: Hashable, make: Callable[[], _Program]) -> _Program:
    """The program of `key`, made by `make` where it is not there.

    A program that cannot be made changes nothing but the time that was spent.

    Raises:
      RuntimeError: `make` asks for the program that it makes.
    """
    with self._lock:
      while key in self._making:
        if self._making[key] == threading.get_ident():
          raise RuntimeError(f"key={key!r}: making this program asks for itself")
        self._lock.wait()
      if key in self._held:
        return self._hit(key)
      self._making[key] = threading.get_ident()
    start = self._clock()
    try:
      program = make()
    except BaseException:
      self._made(key, start)
      raise
    self._made(key, start, program)
    return program

  def _hit(self, key: Hashable) -> _Program:
    use = self._use
    self._held.move_to_end(key)
    counts = FrozenMap({**use.hits_by, key: use.hits_by[key] + 1})
    self._use = dataclasses.replace(use, hits=use.hits + 1, hits_by=counts)
    return self._held[key]

  def _made(self, key: Hashable, start_s: float, *programs: _Program) -> None:
    """Counts the time since `start_s`, holds the program if there is one, wakes who waits."""
    with self._lock:
      spent_us = (self._clock() - start_s) * 1e6
      use = dataclasses.replace(self._use, compile_us=self._use.compile_us + spent_us)
      for program in programs:
        evictions = int(self._capacity is not None and len(self._held) == self._capacity)
        if evictions:
          self._held.popitem(last=False)
        self._held[key] = program
        use = dataclasses.replace(
          use,
          misses=use.misses + 1,
          evictions=use.evictions + evictions,
          recompilations=use.recompilations + (key in use.hits_by),
          hits_by=FrozenMap({**use.hits_by, key: use.hits_by.get(key, 0)}),
        )
      self._use = use
      del self._making[key]
      self._lock.notify_all()

  def clear(self) -> None:
    """Drops every program; the counts stay, and none of these counts as evicted."""
    with self._lock:
      self._held.clear()
