"""Whether a rearranged nest still computes the same, and if not, on which input."""

import dataclasses
from typing import Literal

from hw_profiles.frozen_map import FrozenMap
from hw_profiles.loops.interpreter import Execution, run_on
from hw_profiles.loops.nest import LoopNest
from hw_profiles.loops.symbolic import Expression, Expressions, in_order, leaves, mathematics
from hw_profiles.loops.witness import Witness, find_witness

Effect = Literal["none", "cost", "order", "rounding", "mathematics"]
MAX_SYMBOLIC_STATEMENTS = 5_000  # run up to 200 times in search of a witness: seconds


@dataclasses.dataclass(frozen=True)
class Legality:
  """What a change of a nest changes.

  Attributes:
    legal: Whether the results are the same, bit by bit; with
      `allow_reordering`, but for the order in which sums add.
    effect: The gravest of: "none"; "cost": the same results from other
      amounts of work; "order": sums add the same terms in another order;
      "rounding": a value is rounded in another place; "mathematics": another
      function of the inputs.
    reason: What differs, on one element.
    witness: Inputs on which the results differ; None where they do not, or
      where none was found among the values tried.
    executions: Stage to how often its statement ran, before and after.
    element_reads: Array to elements read, before and after.
  """

  legal: bool
  effect: Effect
  reason: str
  witness: Witness | None
  executions: FrozenMap[str, tuple[int, int]]
  element_reads: FrozenMap[str, tuple[int, int]]


def check_legality(
  original: LoopNest, changed: LoopNest, *, allow_reordering: bool = False
) -> Legality:
  """Runs both nests on expressions and compares what each result is made of.

  Two rules follow from how they can differ. Dependences: every value read must
  be complete, all terms of its reduction included; silu of a sum is not the sum
  of silus, and a row's scale is not known before its maximum. Numbers: every
  rounding stays where it was, even if the value no longer leaves a register.

  Everything else costs, or saves, time only: a stage computed again for each
  block that reads it is legal.

  Sums are the only algebra it knows: an operation that distributes over them, as
  a doubling does, is reported as other mathematics, with no witness found.

  The proof is for these sizes. Give the same schedule a small instance, in
  which each split has at least two chunks and one is incomplete if the real
  one is.

  Args:
    original: The nest that is right.
    changed: The nest to judge; it must have the same results.
    allow_reordering: Whether sums may add their terms in another order, which
      is equal mathematics but not equal bits.

  Raises:
    ValueError: `changed` lacks a result of `original`, or a nest is too large.
  """
  before = run_on(original, Expressions(), max_statements=MAX_SYMBOLIC_STATEMENTS)
  after = run_on(changed, Expressions(), max_statements=MAX_SYMBOLIC_STATEMENTS)
  missing = [array for array in original.results if array not in after.arrays]
  if missing:
    raise ValueError(f"changed: it never writes {missing[0]!r}; expected all results of original")
  effect, reason = _difference(original, before, after)
  executions = _pairs(before.executions, after.executions)
  reads = _pairs(before.element_reads, after.element_reads)
  if effect == "none":
    worked = [(name, counts) for name, counts in executions.items() if counts[0] != counts[1]]
    worked += [(name, counts) for name, counts in reads.items() if counts[0] != counts[1]]
    if worked:
      name, (was, now) = worked[0]
      effect, reason = "cost", f"the same results; {name}: {was} becomes {now}"
  witness = None
  if effect not in ("none", "cost"):
    read = [
      leaf
      for execution in (before, after)
      for array in original.results
      for expression in execution.arrays[array].values()
      for leaf in leaves(expression)
    ]
    accumulator = "float32" if effect == "order" else None
    witness = find_witness(original, changed, read, accumulator=accumulator)
  legal = effect in ("none", "cost") or (effect == "order" and allow_reordering)
  return Legality(legal, effect, reason, witness, executions, reads)


def _pairs(before: dict[str, int], after: dict[str, int]) -> FrozenMap[str, tuple[int, int]]:
  names = dict.fromkeys((*before, *after))
  return FrozenMap({name: (before.get(name, 0), after.get(name, 0)) for name in names})


def _difference(original: LoopNest, before: Execution, after: Execution) -> tuple[Effect, str]:
  found: dict[Effect, str] = {}
  for array in original.results:
    for index, was in before.arrays[array].items():
      now = after.arrays[array].get(index)
      place = f"{array}[{', '.join(map(str, index))}]"
      if now is None:
        found.setdefault("mathematics", f"{place} is no longer computed")
        continue
      effect = _effect(was, now)
      if effect != "none":
        found.setdefault(effect, f"{place} was {was} and is now {now}")
  gravest: tuple[Effect, ...] = ("mathematics", "rounding", "order")
  for effect in gravest:
    if effect in found:
      return effect, found[effect]
  return "none", "every result is the same expression of the inputs"


def _effect(was: Expression, now: Expression) -> Effect:
  if in_order(was) == in_order(now):
    return "none"
  if mathematics(was, rounded=True) == mathematics(now, rounded=True):
    return "order"
  if mathematics(was, rounded=False) == mathematics(now, rounded=False):
    return "rounding"
  return "mathematics"
