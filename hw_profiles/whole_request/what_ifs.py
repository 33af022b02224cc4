"""What one change is worth to a whole request: a stage, fusion, the host, buckets."""

import dataclasses
from collections.abc import Sequence

from hw_profiles.runtime.amdahl import Amdahl, amdahl
from hw_profiles.runtime.bucketing import Bucketing, bucketing
from hw_profiles.runtime.critical_path import CriticalPath, RequestStage, critical_path
from hw_profiles.runtime.request import CallClass, RequestSaving, request_saving
from hw_profiles.runtime.strategy import Strategy, StrategyChoice, choose_strategy
from hw_profiles.whole_request.launches import LaunchedStep
from hw_profiles.whole_request.prediction import Device, PlannedStage, RequestPlan, plan_request
from hw_profiles.whole_request.sizes import HostTimes, ModelSizes, RequestSizes
from hw_profiles.whole_request.stages import PHASES


@dataclasses.dataclass(frozen=True)
class StageGain:
  """What a request gains of one stage becoming faster.

  Attributes:
    law: Amdahl's, with the stage's share of the request launched kernel by kernel.
    own_saved_us: What the stage's calls save by themselves.
    request_saved_us: What the request does, by the timelines: less where a step
      waits for the host.
  """

  law: Amdahl
  own_saved_us: float
  request_saved_us: float


def stage_gain(plan: RequestPlan, planned: PlannedStage, *, speedup: float = 2.0) -> StageGain:
  """The gain of one stage that becomes `speedup` times as fast; everything launched.

  Raises:
    ValueError: the plan has no time, see `RequestPlan.reason`.
  """
  whole_us, total_us = plan.total_us(graph=False), planned.total_us
  if whole_us is None or total_us is None:
    raise ValueError(f"plan: it has no time: {plan.reason}")
  after_us = plan.total_with_us(planned.phase, planned.stage.name, speedup, graph=False)
  assert after_us is not None
  return StageGain(
    law=amdahl(fraction=total_us / whole_us, speedup=speedup),
    own_saved_us=total_us * (1 - 1 / speedup),
    # a stage that the host hides may come out a rounding error above 0
    request_saved_us=max(0.0, whole_us - after_us),
  )


def fusion_saving(separate: RequestPlan, fused: RequestPlan) -> RequestSaving:
  """What fused products save of the device's work, part by part of both phases.

  Raises:
    ValueError: the plans are of different requests, or one has no time.
  """
  if (separate.model, separate.request, separate.profile) != (
    fused.model,
    fused.request,
    fused.profile,
  ):
    raise ValueError("separate and fused: expected plans of one model, request and profile")
  device_us = separate.device_us
  if device_us is None or fused.device_us is None:
    raise ValueError(f"plan: it has no time: {separate.reason or fused.reason}")
  classes = []
  for phase in PHASES:
    parts = dict.fromkeys(one.stage.part for one in separate.stages if one.phase == phase)
    for part in parts:
      before_us, after_us = (
        sum(
          one.total_us or 0.0 for one in plan.stages if (one.phase, one.stage.part) == (phase, part)
        )
        for plan in (separate, fused)
      )
      if before_us != after_us:
        classes.append(
          CallClass(
            f"{phase} {part}", 1, before_us, after_us, before_first_token=phase == "prefill"
          )
        )
  return request_saving(classes, request_us=device_us)


def host_path(launched: LaunchedStep, *, launch_us: float) -> CriticalPath:
  """A step as three stages: the first launch, then the other launches beside the device.

  `saturation_us["launches"]` is what the other launches may take before the step
  waits for them, `saturation_us["device"]` what the kernels may.
  """
  return critical_path(
    [
      RequestStage("first launch", launch_us),
      RequestStage("launches", max(0.0, launched.host_us - launch_us), ("first launch",)),
      RequestStage("device", launched.device_us, ("first launch",)),
    ]
  )


@dataclasses.dataclass(frozen=True)
class BucketChoice:
  """Prompts at their own lengths, or padded to buckets that other prompts use, too.

  Attributes:
    rows: Tokens of a group, as they are and padded.
    choice: Over groups of these prompts: "bucketed" or "exact". The buckets'
      programs are there, those of the lengths have to be compiled.
    bucketed_us: Prompts' passes of a group, padded.
    exact_us: The same at their own lengths.
  """

  rows: Bucketing
  choice: StrategyChoice
  bucketed_us: float
  exact_us: float


def next_power_of_two(tokens: int) -> int:
  """The bucket of a length where none are given."""
  return 1 << (tokens - 1).bit_length()


def bucket_choice(
  model: ModelSizes,
  requests: Sequence[RequestSizes],
  profile: str | Device,
  *,
  buckets: Sequence[int] | None = None,
  dtype: str = "bfloat16",
  host: HostTimes | None = None,
  repeats: int = 1,
) -> BucketChoice | None:
  """Whether to compile a prompt's own length or to pad it; None where a plan has no time.

  Padding costs a longer pass over each prompt; decode steps take lengths as an
  operand and stay as they are.

  Args:
    model: Sizes of the model.
    requests: A group; only their prompts count, each a pass of its own.
    profile: A profile or its name.
    buckets: Lengths to pad to; None: powers of two.
    dtype: See `plan_request`.
    host: See `plan_request`; `compile_ms` is what a length costs once.
    repeats: Groups that will come.

  Raises:
    ValueError: a prompt longer than every bucket, or see `plan_request`.
  """
  host = HostTimes() if host is None else host
  if buckets is None:
    buckets = sorted({next_power_of_two(request.prompt) for request in requests})
  rows = bucketing([(request.batch, request.prompt) for request in requests], buckets=buckets)
  programs: dict[str, dict[str, float]] = {"bucketed": {}, "exact": {}}
  totals = {"bucketed": 0.0, "exact": 0.0}
  for request, (_, prompt, bucket) in zip(requests, rows.assigned, strict=True):
    for name, tokens in (("bucketed", bucket), ("exact", prompt)):
      plan = plan_request(
        model, RequestSizes(tokens, 1, request.batch), profile, dtype=dtype, host=host
      )
      if plan.first_token_us is None:
        return None
      totals[name] += plan.first_token_us
      programs[name][f"{request.batch} x {tokens}"] = host.compile_ms * 1e3
  strategies = [Strategy(name, totals[name], programs[name]) for name in totals]
  return BucketChoice(
    rows=rows,
    choice=choose_strategy(strategies, repeats=repeats, cached=tuple(programs["bucketed"])),
    bucketed_us=totals["bucketed"],
    exact_us=totals["exact"],
  )
