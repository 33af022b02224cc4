"""The stages that `--stage` names, by route: known before anything is lowered."""

from collections.abc import Mapping, Sequence

import hw_profiles
from hw_profiles import GpuProfile
from hw_profiles.ascend import why_missing
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.parsing import closest
from pallas_kernels.lowering.compile_task import Compiled, CompileTask, nvidia_implementation

_ASCEND = "the Ascend route"
_NVIDIA = {"mosaic_gpu": "Mosaic GPU", "triton": "Triton IR"}
ROUTES: Mapping[str, tuple[str, ...]] = {
  "Mosaic GPU": ("mosaic_gpu", "layouts", "lowered"),
  "Triton IR": ("triton",),
  _ASCEND: ("triton", "simplified", "linalg", "hivm"),
}
"""Stages in order; `--passes` adds one to the Ascend route for each pass of its compiler."""


def route(task: CompileTask) -> str:
  """The one of ROUTES that a task takes."""
  profile = hw_profiles.get_profile(task.profile)
  if isinstance(profile, GpuProfile):
    return _NVIDIA[nvidia_implementation(task, profile)]
  return _ASCEND


def matches(stage: str, wanted: Sequence[str]) -> bool:
  """Whether a stage is one of those wanted; of several Triton kernels "triton" is all."""
  return stage in wanted or (stage.startswith("triton ") and "triton" in wanted)


def check(wanted: Sequence[str], tasks: Sequence[CompileTask], *, passes: bool) -> None:
  """Whether every stage wanted is one that these tasks may have.

  Args:
    wanted: Names of stages.
    tasks: What will be lowered.
    passes: Whether passes are stages, too, whose names the compiler knows.

  Raises:
    UsageError: a stage of no route, or of one that no task takes.
  """
  routes = tuple(dict.fromkeys(map(route, tasks)))
  known = tuple(dict.fromkeys(name for one in routes for name in ROUTES[one]))
  for name in wanted:
    if _static(name) in known or (passes and _ASCEND in routes):
      continue
    elsewhere = [one for one, names in ROUTES.items() if _static(name) in names]
    if not elsewhere:
      every = dict.fromkeys(stage for names in ROUTES.values() for stage in names)
      raise UsageError(f"--stage={name}: expected one of {', '.join(known)}{closest(name, every)}")
    profiles = ",".join(dict.fromkeys(task.profile for task in tasks))
    raise UsageError(
      f"--stage={name}: a stage of {' and '.join(elsewhere)}; --profile={profiles} is lowered "
      f"through {' and '.join(routes)}, with {', '.join(known)}{_what_would_do(elsewhere)}"
    )


def not_made(wanted: Sequence[str], answers: Sequence[Compiled]) -> list[str]:
  """A sentence for each stage wanted that no answer has, with the first reason why.

  Raises:
    UsageError: every answer that could have it came through: there is no such pass.
  """
  made = tuple(dict.fromkeys(name for answer in answers for name in answer.stages))
  lines = []
  for name in wanted:
    if any(matches(stage, (name,)) for stage in made):
      continue
    # what is no stage of a route is taken for a pass
    able = [one for one, names in ROUTES.items() if _static(name) in names] or [_ASCEND]
    reasons = [
      answer.reason for answer in answers if route(answer.task) in able and not answer.accepted
    ]
    if not reasons:
      raise UsageError(f"--stage={name}: expected one of {', '.join(made)}{closest(name, made)}")
    lines.append(f"--stage={name}: of {' and '.join(able)}, not made here: {reasons[0]}")
  return lines


def _static(name: str) -> str:
  """The name in ROUTES: Triton kernels are numbered where there are several."""
  return "triton" if name.startswith("triton ") else name


def _what_would_do(elsewhere: Sequence[str]) -> str:
  if elsewhere != [_ASCEND]:
    return ""
  missing = why_missing()
  return "; expected an Ascend profile, for example --profile=ascend_910b3" + (
    f", and its compilers: {missing}" if missing else ""
  )
