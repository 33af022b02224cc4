"""Memory by memory: what the planner counts, and what the compiler takes."""

import dataclasses
from typing import Any

import hw_profiles
from hw_profiles import NpuProfile, TilePlan
from pallas_kernels.lowering.compile_task import Compiled

# Memories that a compiler allocates in, by vendor; the planner has more.
_COMPILED_SPACES = {"nvidia": ("shared",), "huawei": ("L1", "L0C", "UB")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
  """One memory of one device.

  Attributes:
    space: Its name.
    model_bytes: What the planner counts; None where it does not use it.
    compiler_bytes: What the compiler takes; None where it does not say.
    available_bytes: What there is.
  """

  space: str
  model_bytes: int | None
  compiler_bytes: int | None
  available_bytes: int | None

  @property
  def difference_bytes(self) -> int | None:
    """The compiler's less the planner's; None where one is missing."""
    if self.model_bytes is None or self.compiler_bytes is None:
      return None
    return self.compiler_bytes - self.model_bytes


def memories(answer: Compiled, plan: TilePlan[Any, Any]) -> tuple[Memory, ...]:
  """Budget and allocation of every memory that either has something in."""
  device = hw_profiles.get_profile(answer.task.profile)
  available = {buffer.space: buffer.available_bytes for buffer in plan.buffers}
  if isinstance(device, NpuProfile):
    available |= {"L1": device.l1_bytes, "L0C": device.l0c_bytes, "UB": device.ub_bytes}
  spaces = dict.fromkeys((*_COMPILED_SPACES[plan.vendor], *available))
  found = []
  for space in spaces:
    model = plan.needed_bytes(space) if any(b.space == space for b in plan.buffers) else None
    taken = None
    if space in _COMPILED_SPACES[plan.vendor]:
      taken = _taken(answer, space)
    if model is not None or taken:
      found.append(
        Memory(
          space=space,
          model_bytes=model,
          compiler_bytes=taken,
          available_bytes=available.get(space),
        )
      )
  return tuple(found)


def _taken(answer: Compiled, space: str) -> int | None:
  if answer.mosaic is not None:
    return answer.mosaic.shared_bytes
  if answer.ascend is None:
    return None
  if answer.ascend.overflow is not None:
    wanted = answer.ascend.overflow
    return wanted.needed_bits // 8 if wanted.space == space else None
  return answer.ascend.peak_bytes(space)
