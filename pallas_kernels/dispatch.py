"""Which implementation of an op runs, and why the others do not.

An op is a sequence of `Implementation`s, in order of preference. Each says why
it cannot run a call (or that it can), with which schedule the planner prices
it, and how to run it. `decide` applies the user's wish; `explain` shows the
decision without running anything.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn

from hw_profiles import InfeasibleTileError, TilePlan, TileShapeError
from pallas_kernels.device import TargetDevice
from pallas_kernels.names import IMPLEMENTATIONS, INTERPRETERS

# Kernels count rows, columns and steps in int32, with room for the end of a block beyond the last.
LARGEST_SIZE = 2**30
# So they do programs, of which the smallest planned has 16 x 32 elements; no device has a result
# of as many bytes.
LARGEST_PRODUCT = 2**40

RefusalKind = Literal["device", "dtype", "option", "tile", "shape"]


@dataclasses.dataclass(frozen=True)
class Refusal:
  """Why an implementation cannot run a call.

  Attributes:
    kind: What is in the way: the "device", a "dtype", an "option" of the call,
      a "tile" for which the device has too little of something, or the "shape"
      of one, which breaks a rule of the matrix unit or of the kernel.
    reason: A clause for people, for example "float32 operands: ...".
  """

  kind: RefusalKind
  reason: str

  @property
  def of_tile(self) -> bool:
    """Whether another tile may run."""
    return self.kind in ("tile", "shape")


@dataclasses.dataclass(frozen=True)
class Implementation:
  """One implementation of an op.

  The callables take the implementation itself, the op's own request (arguments
  after checking) and problem (sizes); see the op family's `implementations`
  module for their types.

  Attributes:
    name: A key of `names.IMPLEMENTATIONS`.
    schedule: What the planner calls this kernel; None where it has no tile.
    refusal: (self, request, problem, device) -> why it cannot run, or None.
    run: (self, request, operands, config, device) -> the result.
    notes: (request, problem, config) -> what else happens, a sentence each.
    only_by_name: Whether it runs only when asked for, though it could run the call.
  """

  name: str
  schedule: Any | None
  refusal: Callable[..., Refusal | None]
  run: Callable[..., Any]
  notes: Callable[..., tuple[str, ...]] = lambda *_: ()
  only_by_name: bool = False

  @property
  def interpreted(self) -> bool:
    """Whether it runs in an interpreter: on any device, and only on request."""
    return self.name in INTERPRETERS

  @property
  def unasked(self) -> bool:
    """Whether a call that names no implementation may get it."""
    return not (self.interpreted or self.only_by_name)


def accumulation(
  implementation: str, dtype: str, platform: str
) -> Literal["ieee", "tensor_core", "tensor_core_fp8"]:
  """How an implementation adds up products: what `reference` bounds its error with.

  Tensor cores align and cut, and of float8 products Hopper's keep 13 fraction
  bits; interpreters and CPUs add in IEEE float32, and so do GPUs for float32
  operands, which never go through TF32 by default. Sums of int8 products are
  exact anywhere.

  Args:
    implementation: A key of `names.IMPLEMENTATIONS`.
    dtype: Of the operands.
    platform: "cpu" or "gpu", where it runs.
  """
  on_tensor_cores = platform == "gpu" and implementation not in INTERPRETERS
  if not on_tensor_cores or dtype in ("float32", "float64", "int8"):
    return "ieee"
  return "tensor_core_fp8" if dtype == "float8_e4m3fn" else "tensor_core"


@dataclasses.dataclass(frozen=True)
class Decision:
  """The implementation chosen, and the reason against each other name of one."""

  implementation: Implementation
  refused: Mapping[str, str]


def needs_gpu(device: TargetDevice) -> Refusal | None:
  """The refusal of an implementation that compiles for NVIDIA GPUs."""
  if device.platform == "gpu":
    return None
  return Refusal(
    "device", f"compiles for NVIDIA GPUs only, and this runs on {device.kind!r} ({device.platform})"
  )


def count_refusal(**sizes: int) -> Refusal | None:
  """The refusal of sizes, by name, that are more than a kernel counts to.

  Where one of them is 0 there is nothing to count.
  """
  if 0 in sizes.values():
    return None
  for name, size in sizes.items():
    if size > LARGEST_SIZE:
      return Refusal("option", f"{name}={size}: kernels count to {LARGEST_SIZE} in int32")
  if math.prod(sizes.values()) > LARGEST_PRODUCT:
    shown = " x ".join(f"{name}={size}" for name, size in sizes.items())
    return Refusal("option", f"{shown}: the blocks of more than {LARGEST_PRODUCT} are too many")
  return None


def decide(
  op: str,
  implementations: Sequence[Implementation],
  requested: str | None,
  *,
  refusal: Callable[[Implementation], Refusal | None],
) -> Decision:
  """Choose an implementation.

  Args:
    op: Name of the function, for messages.
    implementations: In order of preference.
    requested: The implementation asked for, or None for the first that can.
    refusal: An implementation's refusal of this call.

  Raises:
    InfeasibleTileError: the tile is what stops the one requested, or all.
    NotImplementedError: something else does; the message has the reasons and
      names those that can.
  """
  refusals = {one.name: refusal(one) for one in implementations}
  able = [one for one in implementations if refusals[one.name] is None]
  by_preference = [one for one in able if one.unasked]
  if requested is not None:
    chosen = next((one for one in able if one.name == requested), None)
    if chosen is None:
      _refuse_requested(op, requested, refusals, able)
  elif by_preference:
    chosen = by_preference[0]
  else:
    _refuse_all(op, implementations, refusals, able)

  def why_not(one: Implementation) -> str:
    found = refusals[one.name]
    if found is not None:
      return found.reason
    if requested is not None:
      return "not asked for"
    return f"{chosen.name} is preferred" if one.unasked else "runs only when asked for by name"

  refused = {one.name: why_not(one) for one in implementations if one is not chosen}
  missing = {name: _no_such(op) for name in IMPLEMENTATIONS if name not in refusals}
  return Decision(implementation=chosen, refused={**refused, **missing})


def _no_such(op: str) -> str:
  return f"{op} has no such implementation"


def _names(able: Sequence[Implementation]) -> str:
  return ", ".join(one.name for one in able) or "none"


def _tile_error(refusals: Iterable[Refusal], told: str) -> InfeasibleTileError:
  """The error of tiles that are refused: TileShapeError where no resource is short."""
  shape = all(one.kind == "shape" for one in refusals)
  return TileShapeError(told) if shape else InfeasibleTileError(told)


def _refuse_requested(
  op: str,
  requested: str,
  refusals: Mapping[str, Refusal | None],
  able: Sequence[Implementation],
) -> NoReturn:
  found = refusals.get(requested)
  if found is not None and found.of_tile:
    raise _tile_error([found], found.reason)
  reason = _no_such(op) if found is None else found.reason
  raise NotImplementedError(
    f"{op}: implementation={requested!r} cannot run this call: {reason}. These can: {_names(able)}"
  )


def _refuse_all(
  op: str,
  implementations: Sequence[Implementation],
  refusals: Mapping[str, Refusal | None],
  able: Sequence[Implementation],
) -> NoReturn:
  found = {name: one for name, one in refusals.items() if one is not None}
  tiles = {name: one for name, one in found.items() if one.of_tile}
  if tiles:
    # an interpreter lacks what the kernel does that it stands for
    unasked = [one.name for one in implementations if one.unasked]
    tiles = {name: one for name, one in tiles.items() if name in unasked} or tiles
    told = "; ".join(f"{name}: {one.reason}" for name, one in tiles.items())
    raise _tile_error(tiles.values(), told)
  listing = "; ".join(f"{name}: {one.reason}" for name, one in found.items())
  raise NotImplementedError(
    f"{op}: no implementation runs this call unasked: {listing}. "
    f"These can if asked for by name (implementation=...): {_names(able)}"
  )


@dataclasses.dataclass(frozen=True)
class Explanation:
  """What `explain` returns; `print` it to read it.

  Attributes:
    op: Name of the function.
    call: Shapes, dtypes and options in one line.
    device: Kind of the device the call would run on.
    implementation: The implementation that would run.
    config: Its config, or None where the implementation has none.
    plan: The planner's view of the config on that device; None where there is
      no config, no profile of the device, or only an interpreter.
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
    if self.plan is not None and self.plan.predicted_us is not None:
      lines.append(
        f"  predicted: {self.plan.predicted_us:.1f} us, bound by {self.plan.bound}"
        f" ({self.plan.profile})"
      )
    lines += [f"  note: {note}" for note in self.notes]
    lines += [f"  not {name}: {reason}" for name, reason in self.refused.items()]
    return "\n".join(lines)


def explained_by(explainer: Callable[..., Explanation]) -> Callable[[Any], Any]:
  """Decorates a public op with the function that explains a call of it.

  The explainer gets the op's own arguments, defaults filled in.
  """

  def decorate(function: Any) -> Any:
    @functools.wraps(explainer)
    def bound(*args: Any, **kwargs: Any) -> Explanation:
      call = inspect.signature(function).bind(*args, **kwargs)
      call.apply_defaults()
      return explainer(*call.args, **call.kwargs)

    function.explain = bound
    _OPS.append(function.__name__)
    return function

  return decorate


_OPS: list[str] = []


def _all_ops() -> list[str]:
  """Names of all public ops, those that were not imported yet among them."""
  import pallas_kernels

  return [
    name for name in pallas_kernels.__all__ if hasattr(getattr(pallas_kernels, name), "explain")
  ]


def _shown(function: Any) -> str:
  """A function with its module: others have ops of the same names."""
  module, name = getattr(function, "__module__", None), getattr(function, "__name__", None)
  return f"{module}.{name}" if module and name else repr(function)


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
    ValueError: `function` is not an op of this library; or, like TypeError and
      NotImplementedError, what the call itself would raise.
  """
  explainer = getattr(function, "explain", None)
  if explainer is None or getattr(function, "__name__", None) not in _OPS:
    raise ValueError(
      f"function={_shown(function)}: expected an op of pallas_kernels ({', '.join(_all_ops())}) "
      "itself: not its name, nor one that is jitted or wrapped"
    )
  return explainer(*args, **kwargs)
