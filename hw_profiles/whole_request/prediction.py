"""`plan_request`: a request's stages, each with the planner's best tile, and their sum."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from hw_profiles import dtypes
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.planner.ranking import rank
from hw_profiles.planner.tile_plan import TilePlan
from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.registry import resolve
from hw_profiles.runtime.graph_replay import GraphReplay, graph_replay_break_even
from hw_profiles.whole_request.launches import LaunchedStep, launched_step
from hw_profiles.whole_request.sizes import HostTimes, ModelSizes, RequestSizes
from hw_profiles.whole_request.stages import Phase, Stage, Step, step

Device = GpuProfile | NpuProfile


@functools.lru_cache(maxsize=1024)
def _best(problem: Any, device: Device) -> TilePlan[Any, Any]:
  """The planner's best tile; programs and requests share most of their problems."""
  return rank(problem, device, top=1)[0]


@dataclasses.dataclass(frozen=True)
class PlannedStage:
  """A stage with the planner's best tile.

  Attributes:
    phase: "prefill" or "decode".
    stage: The kernel; of decode that of the first step.
    plan: Its best tile; of decode attention at the first step.
    last_plan: The same at the last decode step, where that differs; else `plan`.
    calls: In the request.
  """

  phase: Phase
  stage: Stage
  plan: TilePlan[Any, Any]
  last_plan: TilePlan[Any, Any]
  calls: int

  @property
  def call_us(self) -> float | None:
    """Time of a call: the mean of the first and the last step; None where no tile fits.

    Only decode attention differs between steps: its time grows with the keys,
    nearly in proportion.
    """
    first, last = self.plan.predicted_us, self.last_plan.predicted_us
    return None if first is None or last is None else (first + last) / 2

  @property
  def total_us(self) -> float | None:
    """Time of all calls of the request."""
    call_us = self.call_us
    return None if call_us is None else self.calls * call_us


@dataclasses.dataclass(frozen=True)
class RequestPlan:
  """A request on one device: device times of its stages, and the host beside them.

  Times are sums of the planner's predictions, with what those assume.

  Attributes:
    model: Sizes of the model.
    request: Tokens in and out, sequences.
    dtype: Of weights, activations, keys and values.
    profile: Name of the device's profile.
    fused: Whether products that read one operand are one kernel.
    host: What the host takes.
    stages: Those of the prompt's pass, then those of decoding (none for one token).
    prefill: The prompt's pass launched kernel by kernel; None where a stage has no
      tile that fits.
    decode: A decode step of mean length likewise; None also where there is none.
    replay: That step as the replay of a graph against its launches.
    decode_bytes: What a decode step reads at least: every matrix once, and keys
      and values at mean length.
    resident_bytes: Matrices, keys and values at the end.
    memory_bytes: What the device has.
    bandwidth_bytes_per_s: Of the device's memory, its peak.
  """

  model: ModelSizes
  request: RequestSizes
  dtype: str
  profile: str
  fused: bool
  host: HostTimes
  stages: tuple[PlannedStage, ...]
  prefill: LaunchedStep | None
  decode: LaunchedStep | None
  replay: GraphReplay | None
  decode_bytes: int
  resident_bytes: int
  memory_bytes: int
  bandwidth_bytes_per_s: float
  _steps: Mapping[Phase, Step] = dataclasses.field(repr=False)

  @property
  def reason(self) -> str:
    """Why there is no time: the first stage without a tile that fits; empty if all have one."""
    for planned in self.stages:
      for plan in (planned.plan, planned.last_plan):
        if not plan.fits:
          return f"{planned.phase} {planned.stage.name}: {plan.reason}"
    return ""

  @property
  def device_us(self) -> float | None:
    """Work of the device for the whole request."""
    times = [planned.total_us for planned in self.stages]
    known = [time for time in times if time is not None]
    return sum(known) if len(known) == len(times) else None

  def share(self, planned: PlannedStage) -> float | None:
    """Of the device's work, what a stage takes."""
    total_us, device_us = planned.total_us, self.device_us
    return None if total_us is None or not device_us else total_us / device_us

  @property
  def first_token_us(self) -> float | None:
    """From the request to its first token: the prompt's pass, launched kernel by kernel."""
    return None if self.prefill is None else self.prefill.ready_us

  def token_us(self, *, graph: bool) -> float | None:
    """Time of each further token.

    Args:
      graph: Whether a decode step is one replay of a graph.
    """
    if self.decode is None or self.replay is None:
      return None
    return self.replay.graph_us if graph else self.decode.ready_us

  def total_us(self, *, graph: bool) -> float | None:
    """The first token, and each further one after the one before it.

    Args:
      graph: Whether decode steps are replayed; the prompt's pass never is, since
        its shapes are the prompt's.
    """
    if self.first_token_us is None:
      return None
    if not self.request.decode_steps:
      return self.first_token_us
    token_us = self.token_us(graph=graph)
    assert token_us is not None
    return self.first_token_us + self.request.decode_steps * token_us

  def submissions(self, *, graph: bool) -> int:
    """What the host issues for the whole request."""
    steps = self.request.decode_steps
    return len(self._steps["prefill"].order) + steps * (
      1 if graph else len(self._steps["decode"].order)
    )

  @property
  def kernels(self) -> int:
    """What the device runs for the whole request."""
    return self.submissions(graph=False)

  def total_with_us(self, phase: Phase, name: str, speedup: float, *, graph: bool) -> float | None:
    """`total_us` if the calls of a stage were `speedup` times as fast.

    The timelines are run again: what the host takes anyway is not saved.
    """
    return _timed(self, {(phase, name): speedup}).total_us(graph=graph)


def _timed(plan: RequestPlan, speedups: Mapping[tuple[Phase, str], float]) -> RequestPlan:
  """The plan with its timelines, some stages faster than planned."""
  launched: dict[Phase, LaunchedStep | None] = {"prefill": None, "decode": None}
  for phase in launched if not plan.reason else ():
    times_us = {
      planned.stage.name: (planned.call_us or 0.0) / speedups.get((phase, planned.stage.name), 1.0)
      for planned in plan.stages
      if planned.phase == phase
    }
    if times_us:
      launched[phase] = launched_step(
        [times_us[name] for name in plan._steps[phase].order], launch_us=plan.host.launch_us
      )
  decode = launched["decode"]
  replay = None
  if decode is not None:
    replay = graph_replay_break_even(
      compute_us=decode.device_us,
      eager_wait_us=decode.wait_us,
      replay_us=plan.host.replay_us,
      # what a step is given: a row of `hidden` for each sequence
      input_bytes=plan.request.batch * plan.model.hidden * dtypes.size_bytes(plan.dtype),
      bandwidth_bytes_per_s=plan.bandwidth_bytes_per_s,
    )
  return dataclasses.replace(plan, prefill=launched["prefill"], decode=decode, replay=replay)


def _planned(
  phase: Phase, first: Step, last: Step, device: Device, steps: int
) -> tuple[PlannedStage, ...]:
  return tuple(
    PlannedStage(
      phase=phase,
      stage=stage,
      plan=_best(stage.problem, device),
      last_plan=_best(last_stage.problem, device),
      calls=steps * stage.calls,
    )
    for stage, last_stage in zip(first.stages, last.stages, strict=True)
  )


def plan_request(
  model: ModelSizes,
  request: RequestSizes,
  profile: str | Device,
  *,
  dtype: str = "bfloat16",
  fused: bool = True,
  host: HostTimes | None = None,
) -> RequestPlan:
  """Every kernel of a request at the time of the planner's best tile, and the whole.

      first token = the prompt's pass, its kernels submitted one by one
      next token  = a decode step: submitted so, or replayed as one graph
      total       = first token + (output - 1)·next token

  A step starts when the token before it is there. Not priced: looking up
  embeddings, rotating positions, norms inside a head, writing keys and values into
  the cache, choosing the token, and what a server does between steps.

  Args:
    model: Sizes of the model.
    request: Tokens in and out, sequences.
    profile: A profile or its name.
    dtype: Of weights, activations, keys and values.
    fused: See `stages.step`.
    host: What the host takes; None: `HostTimes()`.

  Raises:
    ValueError: there is no such profile, or an op that does not do the dtype.
  """
  device = resolve(profile)
  prefill = step(model, request, "prefill", dtype=dtype, fused=fused)
  seen = request.prompt + 1, request.prompt + max(1, request.decode_steps)
  first, last = (
    step(model, request, "decode", dtype=dtype, fused=fused, cached=cached) for cached in seen
  )
  size_bytes = dtypes.size_bytes(dtype)
  weight_bytes = model.projection_weights * size_bytes
  mean_tokens = request.batch * sum(seen) // 2
  plan = RequestPlan(
    model=model,
    request=request,
    dtype=dtype,
    profile=device.name,
    fused=fused,
    host=HostTimes() if host is None else host,
    stages=(
      *_planned("prefill", prefill, prefill, device, 1),
      *(
        _planned("decode", first, last, device, request.decode_steps) if request.output > 1 else ()
      ),
    ),
    prefill=None,
    decode=None,
    replay=None,
    decode_bytes=weight_bytes + model.cache_bytes(mean_tokens, dtype),
    resident_bytes=weight_bytes + model.cache_bytes(request.cached_tokens, dtype),
    memory_bytes=device.dram_bytes if isinstance(device, GpuProfile) else device.hbm_bytes,
    bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
    _steps=FrozenMap({"prefill": prefill, "decode": first}),
  )
  return _timed(plan, {})
