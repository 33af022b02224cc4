"""Implementations compared over the calls that are really made."""

import dataclasses
from collections.abc import Mapping
from fractions import Fraction

from hw_profiles.arguments import collection, mapping, not_negative
from hw_profiles.frozen_map import FrozenMap

Amount = int | float | Fraction


@dataclasses.dataclass(frozen=True)
class CallMix:
  """What implementations cost over a mix of shapes.

  Attributes:
    total_us: Implementation to its time for all calls.
    mean_us: The same for one call.
    best: The implementation with the smallest total; the first of equals.
    choice: Shape to the fastest implementation for it.
    dispatched_total_us: All calls, each with the fastest for its shape and the
      price of choosing.
    dispatched_mean_us: The same for one call.
    dispatch_wins: Whether that is less than the best single implementation.
  """

  total_us: FrozenMap[str, Amount]
  mean_us: FrozenMap[str, Amount]
  best: str
  choice: FrozenMap[str, str]
  dispatched_total_us: Amount
  dispatched_mean_us: Amount
  dispatch_wins: bool

  def speedup(self, implementation: str, baseline: str) -> Amount:
    """The baseline's total over the implementation's.

    Raises:
      ValueError: there is no such implementation.
    """
    for name in (implementation, baseline):
      if name not in self.total_us:
        raise ValueError(f"implementation={name!r}: expected one of {', '.join(self.total_us)}")
    return self.total_us[baseline] / self.total_us[implementation]


def _check_number(name: str, value: Amount) -> None:
  not_negative(name, float(value) if isinstance(value, Fraction) else value)


def call_mix(
  *,
  times_us: Mapping[str, Mapping[str, Amount]],
  calls: Mapping[str, Amount],
  dispatch_us: Amount = 0,
) -> CallMix:
  """Weighs times by calls: total = Σ calls(shape)·time(shape).

  Numbers are used as given; Fractions give exact ties.

  Example: 10 and 10 us for shapes A and B against 5 and 20: one call of each
  takes 20 us against 25, 100 calls of A and one of B 1010 against 520.

  Args:
    times_us: Implementation to shape to microseconds.
    calls: Shape to number of calls, or to their share.
    dispatch_us: What choosing by shape adds to a call, microseconds.

  Raises:
    ValueError: nothing to compare or no calls, a time is missing, or a number is
      negative.
  """
  mapping("times_us", times_us)
  mapping("calls", calls)
  for name, times in times_us.items():
    mapping(f"times_us[{name!r}]", times)
  if not times_us or not any(calls.values()):
    raise ValueError(
      f"times_us has {len(times_us)} implementation(s), calls {len(calls)} shape(s) that are"
      " called; expected at least one of each"
    )
  _check_number("dispatch_us", dispatch_us)
  for shape, count in calls.items():
    _check_number(f"calls[{shape!r}]", count)
    for name, times in times_us.items():
      if shape not in times:
        raise ValueError(f"times_us[{name!r}] has no {shape!r}, which is called")
      _check_number(f"times_us[{name!r}][{shape!r}]", times[shape])
  number = sum(calls.values())
  total = {
    name: sum(count * times[shape] for shape, count in calls.items())
    for name, times in times_us.items()
  }
  choice = {shape: min(times_us, key=lambda name: times_us[name][shape]) for shape in calls}
  dispatched = sum(
    count * (times_us[choice[shape]][shape] + dispatch_us) for shape, count in calls.items()
  )
  best = min(total, key=total.__getitem__)
  return CallMix(
    total_us=FrozenMap(total),
    mean_us=FrozenMap({name: time / number for name, time in total.items()}),
    best=best,
    choice=FrozenMap(choice),
    dispatched_total_us=dispatched,
    dispatched_mean_us=dispatched / number,
    dispatch_wins=dispatched < total[best],
  )


@dataclasses.dataclass(frozen=True)
class ShareBreakEven:
  """From which share of one shape on an implementation is the faster one.

  Attributes:
    share: The share at which both take equally long; None where one is faster
      at every share, or they never differ.
    wins_above: Whether the new one wins above it; at `share` None, whether it
      wins everywhere.
  """

  share: Amount | None
  wins_above: bool


def break_even_share(
  *,
  base_us: tuple[Amount, Amount],
  new_us: tuple[Amount, Amount],
  dispatch_us: Amount = 0,
) -> ShareBreakEven:
  """The share p of the first of two shapes at which the mean times are equal.

      p·new₁ + (1-p)·new₂ + dispatch = p·base₁ + (1-p)·base₂

  Example: 10 and 10 us against 5 and 20: p = 2/3. Choosing by shape for 1 us,
  so 5 and 10, against 10 and 10: p = 1/5.

  Args:
    base_us: The base implementation's times of the two shapes, microseconds.
    new_us: The new one's.
    dispatch_us: What the new one adds to every call.

  Raises:
    ValueError: a number is negative.
  """
  for name, pair in (("base_us", base_us), ("new_us", new_us)):
    collection(name, pair)
    if len(pair) != 2:
      raise ValueError(f"{name}={pair!r}: expected two times, one a shape")
  for name, times in (("base_us", base_us), ("new_us", new_us), ("dispatch_us", (dispatch_us,))):
    for value in times:
      _check_number(name, value)
  first, second = (new + dispatch_us - base for new, base in zip(new_us, base_us, strict=True))
  # the difference is linear in p, from `second` at 0 to `first` at 1
  if first == second or (first > 0) == (second > 0) or 0 in (first, second):
    return ShareBreakEven(None, max(first, second) <= 0 and min(first, second) < 0)
  return ShareBreakEven(second / (second - first), first < 0)
