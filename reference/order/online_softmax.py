"""The online softmax: states of blocks of scores, and their merge, in any number system.

A state stands for scores s_j with values v_j as

    m = max s_j,    l = Σ exp(s_j - m),    u = Σ exp(s_j - m)·v_j

and its output is u / l. Two states merge to one of all their scores:

    m = max(m_1, m_2),    r_i = exp(m_i - m),    l = r_1·l_1 + r_2·l_2,    u = r_1·u_1 + r_2·u_2

so that splits and blocks of any size give the same output but for roundings.
Outputs u / l alone cannot be merged: 1 and 3 make 5/3 with weights 2:1 and 7/3
with 1:2.

Here exp(s) is the datum, in place of s: w = exp(s) and M = exp(m), with which
exp(s - m) is the quotient w / M. For rational w everything stays rational, and
the algebra can be checked without a rounding.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from fractions import Fraction

Rational = int | Fraction


@dataclasses.dataclass(frozen=True)
class SoftmaxState:
  """A block of scores, or several merged.

  Attributes:
    peak: M = exp(m), of the largest score; 0 where there are no scores.
    total: l, the sum of weights relative to the peak.
    weighted: u, the sum of weighted values relative to the peak.
  """

  peak: Fraction
  total: Fraction
  weighted: Fraction

  @property
  def output(self) -> Fraction:
    """u / l; 0 where there are no scores, as for a fully masked row."""
    return self.weighted / self.total if self.total else Fraction(0)

  @property
  def exp_residual(self) -> Fraction:
    """exp of the log-sum-exp, M·l; 0 where there are no scores."""
    return self.peak * self.total


EMPTY = SoftmaxState(Fraction(0), Fraction(0), Fraction(0))


def softmax_state(exp_scores: Sequence[Rational], values: Sequence[Rational]) -> SoftmaxState:
  """The state of one block, given exp(s_j) and v_j; exp(s_j) = 0 is a masked score.

  Raises:
    ValueError: the lengths differ, or an exp(s_j) is negative.
  """
  if len(exp_scores) != len(values):
    raise ValueError(f"values: {len(values)} of them, expected {len(exp_scores)}")
  weights = [Fraction(weight) for weight in exp_scores]
  if any(weight < 0 for weight in weights):
    raise ValueError(f"exp_scores={exp_scores!r}: expected numbers of at least 0")
  peak = max(weights, default=Fraction(0))
  if not peak:
    return EMPTY
  relative = [weight / peak for weight in weights]
  weighted = sum((r * value for r, value in zip(relative, values, strict=True)), Fraction(0))
  return SoftmaxState(peak, sum(relative, Fraction(0)), weighted)


def rescale(state: SoftmaxState, peak: Fraction) -> Fraction:
  """r = exp(m_i - m): what the sums of `state` are multiplied by under a new peak."""
  return state.peak / peak if peak else Fraction(0)


def merge_states(states: Iterable[SoftmaxState]) -> SoftmaxState:
  """The state of all the scores of `states`, merged from left to right."""
  merged = EMPTY
  for state in states:
    peak = max(merged.peak, state.peak)
    r_1, r_2 = rescale(merged, peak), rescale(state, peak)
    merged = SoftmaxState(
      peak,
      r_1 * merged.total + r_2 * state.total,
      r_1 * merged.weighted + r_2 * state.weighted,
    )
  return merged


def online_softmax(
  exp_scores: Sequence[Rational], values: Sequence[Rational], *, block: int = 1
) -> SoftmaxState:
  """The state after taking in the scores `block` at a time.

  Raises:
    ValueError: `block` is below 1, or as `softmax_state`.
  """
  if block < 1:
    raise ValueError(f"block={block}: expected at least 1")
  if len(exp_scores) != len(values):
    raise ValueError(f"values: {len(values)} of them, expected {len(exp_scores)}")
  return merge_states(
    softmax_state(exp_scores[start : start + block], values[start : start + block])
    for start in range(0, len(exp_scores), block)
  )
