"""From a call to the implementation, tile and plan that serve it: the same for every op family."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hw_profiles import InfeasibleTileError, TilePlan
from pallas_kernels import dispatch, planning
from pallas_kernels.device import TargetDevice
from pallas_kernels.dispatch import Implementation, Refusal


@dataclasses.dataclass(frozen=True)
class Choice:
  """What serves a call.

  Attributes:
    implementation: The one chosen.
    config: Its tile; None where it has none, or nothing to do.
    plan: The planner's view of the tile, where a time would mean something.
    refused: Reason for each implementation that was not chosen.
    notes: What else happens, a sentence each.
  """

  implementation: Implementation
  config: Any | None
  plan: TilePlan | None
  refused: Mapping[str, str]
  notes: tuple[str, ...] = ()

  def explanation(
    self, op: str, call: str, device: TargetDevice, *notes: str
  ) -> dispatch.Explanation:
    """What `pallas_kernels.explain` says of a call of `op`, with further notes."""
    return dispatch.Explanation(
      op=op,
      call=call,
      device=device.kind,
      implementation=self.implementation.name,
      config=self.config,
      plan=self.plan,
      refused=self.refused,
      notes=(*self.notes, *notes),
    )


def choose(
  op: str,
  table: Sequence[Implementation],
  *,
  requested: str | None,
  config: Any | None,
  problem: Any | None,
  device: TargetDevice,
  refusal: Callable[[Implementation], Refusal | None],
  notes: Callable[[Implementation, Any], tuple[str, ...]] = lambda *_: (),
  plan_as: Any | None = None,
  is_empty: bool = False,
) -> Choice:
  """Which implementation serves a call, and with which tile.

  Args:
    op: Name of the public function.
    table: Its implementations, the best first.
    requested: The caller's choice, or None.
    config: The caller's tile, or None.
    problem: The planner's problem; None: nothing is planned.
    device: Where it will run.
    refusal: Why an implementation cannot run the call, or None.
    notes: What else happens with a tile.
    plan_as: Choose the tile as if for this problem.
    is_empty: Whether there is nothing to compute.

  Raises:
    hw_profiles.InfeasibleTileError, NotImplementedError: see `dispatch.decide`.
  """
  decision = dispatch.decide(op, table, requested, refusal=refusal)
  one = decision.implementation
  if one.schedule is None or is_empty or problem is None:
    return Choice(one, None, None, decision.refused)
  tile, plan = planning.resolve(one, problem, config, device, plan_as=plan_as)
  said = notes(one, tile) + planning.interpreted_note(one, problem, config, device)
  if config is None:
    said += planning.choice_notes(one, problem, device, plan_as=plan_as)
  return Choice(one, tile, plan, decision.refused, said)


def gradient_note(choose_gradient: Callable[[], Choice], *of: str) -> str:
  """What `explain` says of a call's gradients, which are no reason to refuse the call itself.

  Args:
    choose_gradient: What serves them.
    *of: The arguments whose gradients they are, where others are served apart.
  """
  one = len(of) == 1
  whose = f"the gradient{'' if one else 's'} of {' and '.join(of)}" if of else "its gradients"
  try:
    found = choose_gradient()
  except (InfeasibleTileError, NotImplementedError) as error:
    return f"{whose} raise{'s' if one else ''} {type(error).__name__}: {error}"
  tile = "" if found.config is None else f" with {found.config.describe()}"
  return f"{whose} run{'s' if one else ''}: {found.implementation.name}{tile}"
