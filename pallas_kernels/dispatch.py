"""Which implementation of an op runs, and why the others do not.

An op brings a `Candidate` for each implementation: a function that says why
the implementation cannot run the call (or that it can). `decide` applies the
order of preference and the user's wish; `explain` shows the decision.
"""

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hw_profiles import TilePlan
from pallas_kernels import compat

# What the names mean, in the order in which they are preferred on a GPU.
IMPLEMENTATIONS: Mapping[str, str] = {
  "mosaic_gpu": "Pallas Mosaic GPU kernel for Hopper: TMA, wgmma, warp-specialised",
  "triton": "portable Pallas kernel compiled through the Triton lowering",
  "xla": "plain JAX, compiled by XLA (cuBLAS on a GPU)",
  "interpret": "portable Pallas kernel in the Pallas interpreter; slow, for testing",
  "mosaic_gpu_interpret": "Hopper kernel in the Mosaic GPU interpreter; very slow, for testing",
}
# never chosen unless asked for by name
_ONLY_ON_REQUEST = {
  "interpret": "runs only when asked for by name",
  "mosaic_gpu_interpret": "runs only when asked for by name",
}


@dataclasses.dataclass(frozen=True)
class Candidate:
  """One implementation of an op, applied to one call.

  Attributes:
    name: A key of `IMPLEMENTATIONS`.
    refusal: Returns None where the implementation can run the call on the
      device, else the reason why not, as a clause ("float32 operands would be
      rounded to TF32").
  """

  name: str
  refusal: Callable[[], str | None]


@dataclasses.dataclass(frozen=True)
class Decision:
  """The implementation chosen, and the reasons against each other one."""

  implementation: str
  refused: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Explanation:
  """What `explain` returns; `print` it to read it.

  Attributes:
    op: Name of the function.
    call: Shapes, dtypes and options in one line.
    device: Kind of the device the call would run on.
    implementation: The implementation that would run.
    config: Its config, or None where the implementation has none.
    plan: The planner's view of the config on that device, or None.
    refused: Reason for each implementation that would not run.
    notes: What else happens, for example an operand copied to a padded pitch.
  """

  op: str
  call: str
  device: str
  implementation: str
  config: Any | None
  plan: TilePlan | None
  refused: Mapping[str, str]
  notes: tuple[str, ...] = ()

  def __str__(self) -> str:
    lines = [
      f"{self.op}({self.call}) on {self.device}",
      f"  runs: {self.implementation} ({IMPLEMENTATIONS[self.implementation]})",
    ]
    if self.config is not None:
      lines.append(f"  config: {self.config.describe()}")
    if self.plan is not None:
      lines.append(
        f"  predicted: {self.plan.predicted_us:.1f} us, bound by {self.plan.bound}"
        f" ({self.plan.profile})"
      )
    lines += [f"  note: {note}" for note in self.notes]
    lines += [f"  not {name}: {reason}" for name, reason in self.refused.items()]
    return "\n".join(lines)


def check_name(implementation: object) -> None:
  """Raise ValueError unless `implementation` is None or a known name."""
  if implementation is None or implementation in IMPLEMENTATIONS:
    return
  close = difflib.get_close_matches(str(implementation), IMPLEMENTATIONS, n=1)
  hint = f"; did you mean {close[0]!r}?" if close else ""
  raise ValueError(
    f"implementation={implementation!r}: expected None or one of "
    f"{', '.join(map(repr, IMPLEMENTATIONS))}{hint}"
  )


def decide(op: str, candidates: Sequence[Candidate], requested: str | None) -> Decision:
  """Choose an implementation.

  Args:
    op: Name of the function, for messages.
    candidates: In order of preference.
    requested: The implementation asked for, or None for the first that can.

  Raises:
    ValueError: `requested` is not a known name.
    NotImplementedError: the one requested, or every one, refuses the call; the
      message has the reasons.
  """
  check_name(requested)
  reasons = {candidate.name: candidate.refusal() for candidate in candidates}
  able = [name for name, reason in reasons.items() if reason is None]
  if requested is not None:
    reason = reasons.get(requested, f"{op} has no such implementation")
    if reason is not None:
      raise NotImplementedError(
        f"{op}: implementation={requested!r} cannot run this call: {reason}. "
        f"These can: {', '.join(able) or 'none'}"
      )
    refused = {name: why or "not asked for" for name, why in reasons.items() if name != requested}
    return Decision(implementation=requested, refused=refused)
  for candidate in candidates:
    if candidate.name in able and candidate.name not in _ONLY_ON_REQUEST:
      refused = {
        name: why or _ONLY_ON_REQUEST.get(name, f"{candidate.name} is preferred")
        for name, why in reasons.items()
        if name != candidate.name
      }
      return Decision(implementation=candidate.name, refused=refused)
  listing = "; ".join(f"{name}: {why}" for name, why in reasons.items() if why is not None)
  raise NotImplementedError(f"{op}: no implementation can run this call: {listing}")


def needs_gpu(device: compat.TargetDevice) -> str | None:
  """The refusal of an implementation that compiles for NVIDIA GPUs."""
  if device.platform == "gpu":
    return None
  return f"compiles for NVIDIA GPUs only, and this runs on {device.kind!r} ({device.platform})"


_EXPLAINERS: dict[Any, Callable[..., Explanation]] = {}


def register_explainer(function: Any, explainer: Callable[..., Explanation]) -> None:
  """Make `explain(function, ...)` answer with `explainer(...)`."""
  _EXPLAINERS[function] = explainer


def explain(function: Any, *args: Any, **kwargs: Any) -> Explanation:
  """Say which implementation and config a call would use, without running it.

  Args:
    function: A public op of this library, for example `pallas_kernels.matmul`.
    *args: The arguments of the call; `jax.ShapeDtypeStruct` will do for arrays.
    **kwargs: The options of the call.

  Returns:
    An `Explanation`: the implementation, the config, why every other one was
    refused. `str()` of it is for people.

  Raises:
    ValueError: `function` is not an op of this library, or its arguments are
      wrong (as the call itself would raise).
    NotImplementedError: no implementation can run the call.
  """
  explainer = _EXPLAINERS.get(function)
  if explainer is None:
    known = ", ".join(sorted(f.__name__ for f in _EXPLAINERS))
    raise ValueError(
      f"function={getattr(function, '__name__', function)!r}: expected an op of pallas_kernels "
      f"({known}), not a jitted or wrapped one"
    )
  return explainer(*args, **kwargs)
