"""Amdahl's law: what speeding up part of a sequence does to all of it."""

import dataclasses
import math
from collections.abc import Mapping

from hw_profiles.arguments import not_negative, positive


@dataclasses.dataclass(frozen=True)
class Amdahl:
  """A whole of which some parts become faster.

  Attributes:
    fraction: Share of the time before that these parts take together.
    time_fraction: Time after, as a share of the time before.
    speedup: Of the whole; infinite where nothing is left.
    bound: Speedup of the whole if the parts took no time at all.
  """

  fraction: float
  time_fraction: float
  speedup: float
  bound: float


def _inverse(value: float) -> float:
  return 1 / value if value else math.inf


def amdahl(
  *,
  fraction: float | Mapping[str, float],
  speedup: float | Mapping[str, float] = math.inf,
) -> Amdahl:
  """S = 1 / ((1 - Σ f) + Σ f/s), over parts that follow one another.

  Example: a fifth of the time, twice as fast: 0.9 of the time, 1.11 times as
  fast; ten times as fast: 0.82; no more than 1.25 whatever happens.

  The law holds for one step of fixed content. A published case has 33 % API
  server and 29 % scheduling around 38 % on the device, 62 % host in all (printed
  as 60 %). Removing all of it gives at most 1/0.38 = 2.63, less than the 2.7
  reported: the measured gain changed more than a share of one step (several
  steps a scheduling round, output handled beside the next step).

  Args:
    fraction: Share of the time a part takes, or name to share for several parts.
    speedup: Of the part, or name to speedup; infinite removes it. One number
      serves all parts.

  Raises:
    ValueError: a share outside [0, 1], shares that exceed 1 together, a speedup
      not above 0, or one for a part that has no share.
  """
  shares = dict(fraction) if isinstance(fraction, Mapping) else {"part": fraction}
  if isinstance(speedup, Mapping):
    speedups = dict(speedup)
    if speedups.keys() != shares.keys():
      raise ValueError(
        f"speedup has parts {', '.join(speedups) or 'none'}: expected those of fraction,"
        f" {', '.join(shares) or 'none'}"
      )
  else:
    speedups = dict.fromkeys(shares, speedup)
  for name, share in shares.items():
    not_negative(f"fraction[{name!r}]", share)
    if speedups[name] != math.inf:
      positive(f"speedup[{name!r}]", speedups[name])
  total = math.fsum(shares.values())
  # each share may have been rounded up by half a unit of float64 below 1
  if total > 1 + len(shares) * 2**-53:
    raise ValueError(f"fraction: the shares add up to {total}; expected at most 1")
  rest = max(0.0, 1 - total)
  time_fraction = rest + math.fsum(share / speedups[name] for name, share in shares.items())
  return Amdahl(
    fraction=total,
    time_fraction=time_fraction,
    speedup=_inverse(time_fraction),
    bound=_inverse(rest),
  )
