"""`plan`: one problem, one tile configuration, one device."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

from hw_profiles.capacity.buffers import Shortfall
from hw_profiles.cost.device_time import DeviceTime
from hw_profiles.cost.npu_time import NpuWork, npu_time
from hw_profiles.cost.sm_time import SmWork, sm_time
from hw_profiles.cost.wave import wave
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.planner import remedy
from hw_profiles.planner.assumptions import assumptions, beyond_measured
from hw_profiles.planner.op_model import ConfigT, OpModel, ProblemT, ScheduleModel
from hw_profiles.planner.op_registry import model_of, op_name
from hw_profiles.planner.tile_plan import TilePlan
from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.registry import resolve
from hw_profiles.validation.recorded import known_limit, recorded_error

Schedule: TypeAlias = str
"""The name of a way of running an op ("warp_specialized"), or "auto"."""

Device: TypeAlias = GpuProfile | NpuProfile


@dataclasses.dataclass(frozen=True)
class Choice:
  """The schedule a tile is planned with.

  Attributes:
    schedule: The op's model of it.
    shortfalls: Why the tile does not run so; empty if it does.
    notes: Why this one, where the planner chose.
  """

  schedule: ScheduleModel[Any, Any, Any]
  shortfalls: tuple[Shortfall, ...]
  notes: tuple[str, ...] = ()


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
) -> Choice:
  """The first schedule that takes the problem and the shape of the tile, else the last.

  Raises:
    ValueError: see `schedules`.
  """
  *preferred, last = schedules(model, device, requested)
  refused: list[str] = []
  for schedule in preferred:
    found = schedule.unsupported(problem, device) or schedule.shortfalls(problem, config, device)
    obstacle = next((x.statement for x in found if x.kind != "capacity"), None)
    if obstacle is None:
      why = "the first that takes the dtype and the shape of the tile"
      return Choice(schedule, found, (f"schedule: {schedule.NAME}, as {why}",))
    refused.append(f"{schedule.NAME} does not: {obstacle}")
  notes = (f"schedule: {last.NAME}, as {'; '.join(refused)}",) if preferred else ()
  return Choice(last, _shortfalls(last, problem, config, device), notes)


def _shortfalls(
  schedule: ScheduleModel[Any, Any, Any], problem: Any, config: Any, device: Device
) -> tuple[Shortfall, ...]:
  return (
    *schedule.unsupported(problem, device),
    *schedule.shortfalls(problem, config, device),
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
      operands) or "multistage" (all warps copy and compute; any GPU); on Ascend
      "cube". Attention has the same two on NVIDIA, on Ascend "cube_vector".
      "auto" takes the first that the device, the dtype and the shape of
      the tile allow, and says so in the notes.

  Raises:
    ValueError: an argument is of the wrong kind, or the device has no such
      profile or schedule.
  """
  model = model_of(problem)
  if not isinstance(config, model.config_class):
    raise ValueError(f"config={config!r}: expected a {model.config_class.__name__}")
  device = resolve(profile)
  choice = choose(model, problem, config, device, schedule)
  return plan_choice(model, problem, config, device, choice, requested=schedule)


def plan_choice(
  model: OpModel[ProblemT, ConfigT],
  problem: ProblemT,
  config: ConfigT,
  device: Device,
  choice: Choice,
  *,
  requested: Schedule,
) -> TilePlan[ProblemT, ConfigT]:
  """`plan` from the schedule chosen on; `requested` is what a remedy is checked with."""
  demand = choice.schedule.demand(problem, config, device)
  op = op_name(problem)
  error = recorded_error(op, device)
  # what is said of a tile whether it fits or not
  common: dict[str, Any] = {
    "problem": problem,
    "config": config,
    "profile": device.name,
    "vendor": device.vendor,
    "schedule": choice.schedule.NAME,
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
  if choice.shortfalls:
    waves = wave(programs=demand.tiles, cores=demand.cores)
    return TilePlan(
      **common,
      fits=False,
      reason=remedy.reason(
        config,
        choice.shortfalls,
        model.tile_fields(problem, config),
        lambda other: choose(model, problem, other, device, requested).shortfalls,
      ),
      binding=tuple(dict.fromkeys(x.resource for x in choice.shortfalls)),
      resident_blocks=0,
      residency=None,
      traffic_bytes=FrozenMap(),
      waves=waves.waves,
      tail_efficiency=waves.tail_efficiency,
      times_us=FrozenMap(),
      predicted_us=None,
      bound="",
      notes=(
        *choice.notes,
        *demand.notes,
        *_other_schedules(model, problem, config, device, choice),
      ),
    )
  execution = demand.execution()
  time = _time(device, execution.work)
  return TilePlan(
    **common,
    fits=True,
    reason="",
    binding=execution.binding,
    resident_blocks=execution.resident_blocks,
    residency=execution.residency,
    traffic_bytes=execution.traffic_bytes,
    waves=execution.waves.waves,
    tail_efficiency=execution.waves.tail_efficiency,
    times_us=time.times_us,
    predicted_us=time.total_us,
    bound=time.bound,
    notes=(
      *choice.notes,
      *demand.notes,
      *execution.notes,
      *beyond_measured(device, op=op, error=error, time_us=time.total_us),
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
