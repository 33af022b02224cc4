"""`plan`: one problem, one tile configuration, one device."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from hw_profiles.capacity.buffers import Shortfall
from hw_profiles.capacity.compiled import NAME as COMPILED
from hw_profiles.cost.device_time import DeviceTime
from hw_profiles.cost.npu_time import NpuWork, npu_time
from hw_profiles.cost.sm_time import SmWork, sm_time
from hw_profiles.cost.wave import wave
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.planner import remedy
from hw_profiles.planner.assumptions import assumptions, beyond_measured
from hw_profiles.planner.op_model import (
  ConfigT,
  Demand,
  Execution,
  OpModel,
  ProblemT,
  ScheduleModel,
)
from hw_profiles.planner.op_registry import model_of, op_name
from hw_profiles.planner.tile_plan import TilePlan
from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.registry import resolve
from hw_profiles.validation.recorded import known_limit, recorded_error

Schedule: TypeAlias = str
"""The name of a way of running an op ("warp_specialized"), or "auto"."""

Device: TypeAlias = GpuProfile | NpuProfile

# Predicted times whose ratio is below this count as equal.
TIE = 1.02


@dataclasses.dataclass(frozen=True)
class Choice:
  """The schedule a tile is planned with.

  Attributes:
    schedule: The op's model of it.
    shortfalls: Why the tile does not run so; empty if it does.
    refusals: Why the others do not run it, a sentence each, where the planner chose.
  """

  schedule: ScheduleModel[Any, Any, Any]
  shortfalls: tuple[Shortfall, ...]
  refusals: tuple[str, ...] = ()


def schedules(
  model: OpModel[Any, Any], device: Device, requested: Schedule = "auto"
) -> Sequence[ScheduleModel[Any, Any, Any]]:
  """The schedules to choose among on a device: one where it is requested by name.

  Raises:
    ValueError: the op has no such schedule there, or none at all.
  """
  known: Sequence[ScheduleModel[Any, Any, Any]] = (
    model.gpu_schedules if isinstance(device, GpuProfile) else model.npu_schedules
  )
  if not known:
    raise ValueError(f"profile={device.name!r}: {model.name} is not planned for {device.vendor}")
  if not isinstance(requested, str):
    raise ValueError(f"schedule={requested!r}: expected the name of a schedule or 'auto'")
  if requested == "auto":
    return known
  for schedule in known:
    if requested == schedule.NAME:
      return (schedule,)
  names = [repr(name) for name in ("auto", *(schedule.NAME for schedule in known))]
  raise ValueError(
    f"schedule={requested!r}: {model.name} on {device.name} is planned as"
    f" {', '.join(names[:-1])} or {names[-1]}"
  )


def choose(
  model: OpModel[Any, Any], problem: Any, config: Any, device: Device, requested: Schedule
) -> tuple[Choice, ...]:
  """Every schedule that runs the tile; where none does, the one that is nearest to it.

  The nearest is the first whose dtypes and shapes allow the tile, so that only
  memory is short, else the last that the device has. A compiled kernel comes
  before one that would have to be written by hand, which counts only where there
  is none.

  Raises:
    ValueError: see `schedules`.
  """
  possible = schedules(model, device, requested)
  asked = tuple(
    Choice(schedule, _shortfalls(schedule, problem, config, device)) for schedule in possible
  )
  first = asked[0]
  if first.schedule.NAME == COMPILED and _lacks_at_most_memory(first):
    asked = (first,)
  running = tuple(choice for choice in asked if not choice.shortfalls)
  if running:
    return tuple(
      dataclasses.replace(choice, refusals=_refusals(asked, before=choice)) for choice in running
    )
  only_memory = (x for x in asked if _lacks_at_most_memory(x))
  nearest = next(only_memory, None) or on_device(asked)[-1]
  return (dataclasses.replace(nearest, refusals=_refusals(asked, before=nearest)),)


def _lacks_at_most_memory(choice: Choice) -> bool:
  return all(found.kind == "capacity" for found in choice.shortfalls)


def on_device(asked: Sequence[Choice]) -> Sequence[Choice]:
  """Those whose schedule the device has at all; all where it has none."""
  return [x for x in asked if all(found.resource != "device" for found in x.shortfalls)] or asked


def _refusals(asked: Iterable[Choice], *, before: Choice) -> tuple[str, ...]:
  """Why those that the op prefers do not run the tile, the first obstacle of each."""
  preferred = itertools.takewhile(lambda choice: choice is not before, asked)
  return tuple(
    f"{choice.schedule.NAME} does not: {choice.shortfalls[0].statement}"
    for choice in preferred
    if choice.shortfalls
  )


def _shortfalls(
  schedule: ScheduleModel[Any, Any, Any], problem: Any, config: Any, device: Device
) -> tuple[Shortfall, ...]:
  # what a schedule cannot do with any tile it need not be asked of this one
  return tuple(schedule.unsupported(problem, device)) or tuple(
    schedule.shortfalls(problem, config, device)
  )


def plan(
  problem: ProblemT,
  config: ConfigT,
  profile: str | Device,
  *,
  schedule: Schedule = "auto",
) -> TilePlan[ProblemT, ConfigT]:
  """What the tile needs on the device, whether it fits, and what it would cost.

  A tile that does not fit is an answer, not an error: the plan says why, and
  names the nearest config that fits; `TilePlan.check` raises it.

  Args:
    problem: What is computed, for example a `MatmulProblem`.
    config: The tile, of the problem's config class.
    profile: A profile or its name.
    schedule: How the kernel works. A matmul on NVIDIA: "warp_specialized" (a
      TMA producer and wgmma consumers, compute capability 9.0 and 16-bit
      operands), "tcgen05" (accumulators in tensor memory, compute capability 10.0;
      no kernel here does so) or "multistage" (all warps copy and compute; any
      GPU); on Ascend
      "compiled" (the portable kernel as Huawei's compiler gives it memory) or "cube"
      (one written by hand). Attention has "warp_specialized" and
      "multistage" on NVIDIA, on Ascend
      "compiled" and "cube_vector"; what works on rows "compiled" and "vector".
      "auto" plans what is compiled wherever the compiler takes the problem and
      the shape of the tile, fit or not. Otherwise it takes the fastest of those
      that run the tile, the earlier of any within 2 %, and says in the notes what the
      others take or why they do not run it. Where none does, the plan is of the
      first that only lacks memory.

  Raises:
    ValueError: an argument is of the wrong kind, or the device has no such
      profile or schedule.
  """
  model = model_of(problem)
  if not isinstance(config, model.config_class):
    raise ValueError(f"config={config!r}: expected a {model.config_class.__name__}")
  device = resolve(profile)
  choices = choose(model, problem, config, device, schedule)
  return plan_choices(model, problem, config, device, choices, requested=schedule)


def plan_choices(
  model: OpModel[ProblemT, ConfigT],
  problem: ProblemT,
  config: ConfigT,
  device: Device,
  choices: tuple[Choice, ...],
  *,
  requested: Schedule,
) -> TilePlan[ProblemT, ConfigT]:
  """`plan` from `choose` on: the fastest of the choices, or the one that does not run."""
  if choices[0].shortfalls:
    (choice,) = choices
    return _refused(model, problem, config, device, choice, requested)
  runs = [_run(choice, problem, config, device) for choice in choices]
  # of those that the model cannot tell apart the first, which the op prefers
  limit_us = TIE * min(run.time.total_us for run in runs)
  fastest = next(run for run in runs if run.time.total_us <= limit_us)
  time, execution = fastest.time, fastest.execution
  op = op_name(problem)
  error = recorded_error(op, device)
  return TilePlan(
    **_common(problem, config, device, fastest.choice, fastest.demand, requested),
    fits=True,
    reason="",
    binding=execution.binding,
    resident_blocks=execution.resident_blocks,
    residency=execution.residency,
    traffic_bytes=execution.traffic_bytes,
    waves=execution.waves.waves,
    tail_efficiency=execution.waves.tail_efficiency,
    times_us=time.times_us,
    unknown_us=time.unknown,
    predicted_us=time.total_us,
    breakdown=time.total,
    bound=time.bound,
    notes=(
      *_why(fastest, runs),
      *fastest.demand.notes,
      *execution.notes,
      *beyond_measured(device, op=op, error=error, time_us=time.total_us),
    ),
  )


@dataclasses.dataclass(frozen=True)
class _Run:
  """A tile as one schedule runs it."""

  choice: Choice
  demand: Demand
  execution: Execution
  time: DeviceTime


def _run(choice: Choice, problem: Any, config: Any, device: Device) -> _Run:
  demand = choice.schedule.demand(problem, config, device)
  execution = demand.execution()
  return _Run(choice, demand, execution, _time(device, execution.work))


def _why(fastest: _Run, runs: list[_Run]) -> tuple[str, ...]:
  """Which schedule is priced, and what the others take or lack; nothing where there is one."""
  name, refusals = fastest.choice.schedule.NAME, fastest.choice.refusals
  slower = [
    f"{run.choice.schedule.NAME} takes {run.time.total_us:,.1f} us"
    for run in runs
    if run is not fastest
  ]
  if slower:
    said = "; ".join((*slower, *refusals))
    is_fastest = fastest.time.total_us <= min(run.time.total_us for run in runs)
    how = "the fastest" if is_fastest else "within 2 % of the fastest"
    return (f"schedule: {name}, {how} that runs the tile; {said}",)
  return (f"schedule: {name}, as {'; '.join(refusals)}",) if refusals else ()


def _common(
  problem: Any, config: Any, device: Device, choice: Choice, demand: Demand, requested: Schedule
) -> dict[str, Any]:
  """What is said of a tile whether it fits or not."""
  op = op_name(problem)
  error = recorded_error(op, device)
  return {
    "problem": problem,
    "config": config,
    "profile": device.name,
    "vendor": device.vendor,
    "schedule": choice.schedule.NAME,
    "requested_schedule": requested,
    "shortfall_kinds": tuple(dict.fromkeys(x.kind for x in choice.shortfalls)),
    "buffers": demand.buffers,
    "traffic": demand.traffic,
    "grid": demand.traffic.grid,
    "assumptions": assumptions(
      device,
      op=op,
      op_assumptions=demand.assumptions,
      error=error,
      limit=known_limit(op, device),
      time_assumptions=demand.time_assumptions,
    ),
    "model_error": None if error is None else error.median_absolute_relative_error,
  }


def _refused(
  model: OpModel[ProblemT, ConfigT],
  problem: ProblemT,
  config: ConfigT,
  device: Device,
  choice: Choice,
  requested: Schedule,
) -> TilePlan[ProblemT, ConfigT]:
  """The plan of a tile that does not run."""
  demand = choice.schedule.demand(problem, config, device)
  waves = wave(programs=demand.tiles, cores=demand.cores)
  # where memory is what is short, the largest that fits is that of the needs stated
  checked = choice.schedule.NAME if _lacks_at_most_memory(choice) else requested
  nearest = f"schedule: {choice.schedule.NAME}, the nearest to running the tile"
  chosen = (f"{nearest}; {'; '.join(choice.refusals)}",) if choice.refusals else ()
  return TilePlan(
    **_common(problem, config, device, choice, demand, requested),
    fits=False,
    reason=remedy.reason(
      config,
      choice.shortfalls,
      model.tile_fields(problem, config),
      lambda other: choose(model, problem, other, device, checked)[0].shortfalls,
    ),
    binding=tuple(dict.fromkeys(x.resource for x in choice.shortfalls)),
    resident_blocks=0,
    residency=None,
    traffic_bytes=FrozenMap(),
    waves=waves.waves,
    tail_efficiency=waves.tail_efficiency,
    times_us=FrozenMap(),
    unknown_us=FrozenMap(),
    predicted_us=None,
    breakdown=None,
    bound="",
    notes=(
      *chosen,
      *demand.notes,
      *_other_schedules(model, problem, config, device, choice),
    ),
  )


def _time(device: Device, work: SmWork | NpuWork | DeviceTime) -> DeviceTime:
  if isinstance(work, DeviceTime):
    return work
  if isinstance(device, GpuProfile):
    assert isinstance(work, SmWork)
    return sm_time(device, work)
  assert isinstance(work, NpuWork)
  return npu_time(device, work)


def _other_schedules(
  model: OpModel[Any, Any], problem: Any, config: Any, device: Device, choice: Choice
) -> tuple[str, ...]:
  """Which other schedules would do, where the chosen one does not."""
  notes = []
  for schedule in schedules(model, device):
    if schedule is choice.schedule:
      continue
    if not _shortfalls(schedule, problem, config, device):
      notes.append(f"schedule={schedule.NAME!r} would fit this tile")
    elif choice.schedule.unsupported(problem, device) and not schedule.unsupported(problem, device):
      notes.append(f"schedule={schedule.NAME!r} takes the problem, in another tile")
  return tuple(notes)
