"""Each compiled tile beside what the planner says of it."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

from hw_profiles.ascend.agreement.problems import planned_as
from hw_profiles.ascend.agreement.rows import PlanRow
from hw_profiles.ascend.needs import role_bytes
from hw_profiles.ascend.targets import AscendTarget, get_target
from hw_profiles.capacity.compiled import NAME
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.planner.plan import plan
from hw_profiles.planner.tile_plan import TilePlan
from hw_profiles.profile import NpuProfile
from hw_profiles.registry import get_profile

_SPACES = ("L1", "L0C", "UB")
# The first lines of a file: tiles that the rules of the `compiled` schedules were read off, or
# adjusted to. What follows was recorded when they stood, and is what agreement is judged by.
_READ_OFF = FrozenMap(
  attention=1460,
  attention_causal=272,
  gated_matmul=752,
  matmul=1728,
  matmul_ragged=64,
  matmul_silu=616,
  quantize=119,
  rowwise=822,
)


@dataclasses.dataclass(frozen=True)
class Comparison:
  """One row, judged.

  Attributes:
    row: The case and what the compiler made of it.
    compiler_fits: Whether it fits as it was asked for: with double buffering
      of everything where that was asked for, not given up in silence.
    partly_buffered: Whether the compiler kept one copy of some operand, where
      two were asked for, without a note.
    planner: The planner's plan, of a device whose vector cores are to share
      tiles or not as the compiler was told.
    binding: The memory that the compiler ran out of, else the one it fills most.
    held_out: Whether the planner's rules were settled when the tile was compiled.
    bytes_agree: Whether the compiler's bytes of operands and accumulators are
      the planner's, each; None without a plan as asked for, or where the op has none.
  """

  row: PlanRow
  compiler_fits: bool
  partly_buffered: bool
  planner: TilePlan[Any, Any]
  binding: str
  bytes_agree: bool | None
  held_out: bool = False

  @property
  def needs_agree(self) -> bool | None:
    """Whether what the compiler lacked is what the planner says it needs there, to the byte.

    None where it lacked nothing, and for L1 of a 910, which it names as needed
    after it has given up double buffering.
    """
    outcome = self.row.outcome
    if not outcome.overflow_space or outcome.double_buffering == "does not fit":
      return None
    return 8 * self.planner.needed_bytes(outcome.overflow_space) == outcome.needed_bits

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


@functools.cache
def _device(target: AscendTarget, *, sub_block: bool) -> NpuProfile:
  """The target's profile, with one vector core a cube core where tiles are not to be shared."""
  found = None if target.profile is None else get_profile(target.profile)
  if not isinstance(found, NpuProfile):
    raise ValueError(f"target={target.name!r} has no profile to plan with")
  return found if sub_block else dataclasses.replace(found, aiv_count=found.aic_count)


@functools.lru_cache(maxsize=8192)
def compare(row: PlanRow) -> Comparison:
  """Judge a row that has a verdict."""
  case, outcome = row.case, row.outcome
  target = get_target(case.target)
  problem, config = planned_as(case)
  planned = plan(problem, config, _device(target, sub_block=case.sub_block))
  roles = role_bytes(planned.buffers) if planned.schedule == NAME else FrozenMap()
  partly = case.multi_buffer and any(
    2 * outcome.role_bytes.get(role, 0) == wanted
    for role, wanted in roles.items()
    if role.startswith(("A", "B"))
  )
  kept = outcome.double_buffering != "dropped" and not partly
  fits = outcome.outcome == "fits" and kept
  agree = None
  if fits and (roles or outcome.role_bytes):
    agree = outcome.role_bytes == roles
  return Comparison(
    row=row,
    compiler_fits=fits,
    partly_buffered=partly and outcome.double_buffering == "kept",
    planner=planned,
    binding=_binding(row, target),
    bytes_agree=agree,
  )


def compare_all(rows: Iterable[PlanRow]) -> list[Comparison]:
  """Judge every row of a file that has a verdict."""
  found = []
  for number, row in enumerate(rows):
    if has_verdict(row):
      held_out = number >= _READ_OFF.get(row.case.family, 0)
      found.append(dataclasses.replace(compare(row), held_out=held_out))
  return found
