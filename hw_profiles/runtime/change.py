"""A time, and bytes, before and after a change."""

import dataclasses
import math

from hw_profiles.arguments import not_negative, positive


@dataclasses.dataclass(frozen=True)
class TimeChange:
  """What a change saves.

  Attributes:
    saved_us: before - after; negative where it became slower.
    saved_fraction: Of the time before; 0 where there was none.
    speedup: before / after; infinite where nothing is left, 1 where there was
      nothing.
  """

  saved_us: float
  saved_fraction: float
  speedup: float


def time_change(*, before_us: float, after_us: float) -> TimeChange:
  """saved = before - after; speedup = before / after.

  Example: a kernel that falls from 20 to 5 us is 4 times as fast; the call
  around it that falls from 35 to 20 us is 1.75 times as fast.

  Args:
    before_us: Time before.
    after_us: Time after.

  Raises:
    ValueError: a time below 0.
  """
  not_negative("before_us", before_us)
  not_negative("after_us", after_us)
  saved_us = before_us - after_us
  without_rest = math.inf if before_us else 1.0
  return TimeChange(
    saved_us=saved_us,
    saved_fraction=saved_us / before_us if before_us else 0.0,
    speedup=before_us / after_us if after_us else without_rest,
  )


@dataclasses.dataclass(frozen=True)
class TrafficChange:
  """What a change moves or holds less.

  Attributes:
    saved_bytes: before - after; negative where it became more.
    saved_fraction: Of the bytes before.
    ratio: after / before.
  """

  saved_bytes: float
  saved_fraction: float
  ratio: float


def traffic_change(*, before_bytes: float, after_bytes: float) -> TrafficChange:
  """saved = before - after; ratio = after / before.

  Example: a chain that moves 156 MiB in three kernels and 60 in one moves 96 MiB
  less; quantising in every tile moves 620 MiB where 444 did, 1.396 times as much.

  Args:
    before_bytes: Bytes before, moved or held.
    after_bytes: Bytes after.

  Raises:
    ValueError: nothing before, or less than nothing after.
  """
  positive("before_bytes", before_bytes)
  not_negative("after_bytes", after_bytes)
  saved = before_bytes - after_bytes
  return TrafficChange(
    saved_bytes=saved, saved_fraction=saved / before_bytes, ratio=after_bytes / before_bytes
  )
