"""Each compiled tile beside what the planner and the model of the compiler say of it."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

from hw_profiles.ascend.agreement.problems import planned_as
from hw_profiles.ascend.agreement.rows import PlanRow
from hw_profiles.ascend.compiler_needs import CompilerNeeds
from hw_profiles.ascend.needs import compiler_needs
from hw_profiles.ascend.targets import AscendTarget, get_target
from hw_profiles.planner.plan import plan
from hw_profiles.planner.tile_plan import TilePlan

_SPACES = ("L1", "L0C", "UB")


@dataclasses.dataclass(frozen=True)
class Comparison:
  """One row, judged.

  Attributes:
    row: The case and what the compiler made of it.
    compiler_fits: Whether it fits as it was asked for: with double buffering
      of everything where that was asked for, not given up in silence.
    partly_buffered: Whether the compiler kept one copy of some operand, where
      two were asked for, without a note.
    planner: The planner's plan.
    needs: What the model of the compiler says it wants.
    model_fits: Whether that fits.
    binding: The memory that the compiler ran out of, else the one it fills most.
    bytes_agree: Whether the compiler's bytes of operands and accumulators are
      the model's, each; None without a plan as asked for, or where the op has none.
  """

  row: PlanRow
  compiler_fits: bool
  partly_buffered: bool
  planner: TilePlan[Any, Any]
  needs: CompilerNeeds
  model_fits: bool
  binding: str
  bytes_agree: bool | None

  @property
  def model_agrees(self) -> bool:
    """Whether the model's verdict is the compiler's."""
    return self.model_fits == self.compiler_fits

  @property
  def planner_agrees(self) -> bool:
    """Whether the planner's verdict is the compiler's."""
    return self.planner.fits == self.compiler_fits


def has_verdict(row: PlanRow) -> bool:
  """Whether the compiler said that the tile fits or that it does not."""
  return row.outcome.outcome in ("fits", "overflow")


def _binding(row: PlanRow, target: AscendTarget) -> str:
  if row.outcome.overflow_space:
    return row.outcome.overflow_space
  filled = {
    space: row.outcome.peak_bytes.get(space, 0) / target.capacity_bytes(space) for space in _SPACES
  }
  if row.outcome.double_buffering == "dropped":
    # it dropped double buffering for the memory that two copies would overfill
    filled["L1"] = 1.0
  return max(filled, key=lambda space: filled[space])


@functools.lru_cache(maxsize=4096)
def compare(row: PlanRow) -> Comparison:
  """Judge a row that has a verdict."""
  case, outcome = row.case, row.outcome
  target = get_target(case.target)
  problem, config = planned_as(case)
  if target.profile is None:
    raise ValueError(f"target={target.name!r} has no profile to plan with")
  needs = compiler_needs(problem, config, target, sub_block=case.sub_block)
  partly = case.multi_buffer and any(
    2 * outcome.role_bytes.get(role, 0) == wanted
    for role, wanted in needs.role_bytes.items()
    if role.startswith(("A", "B"))
  )
  kept = outcome.double_buffering != "dropped" and not partly
  fits = outcome.outcome == "fits" and kept
  agree = None
  if fits and needs.role_bytes:
    agree = dict(outcome.role_bytes) == dict(needs.role_bytes)
  return Comparison(
    row=row,
    compiler_fits=fits,
    partly_buffered=partly and outcome.double_buffering == "kept",
    planner=plan(problem, config, target.profile),
    needs=needs,
    model_fits=not needs.exceeded(target),
    binding=_binding(row, target),
    bytes_agree=agree,
  )


def compare_all(rows: Iterable[PlanRow]) -> list[Comparison]:
  """Judge every row that has a verdict."""
  return [compare(row) for row in rows if has_verdict(row)]
