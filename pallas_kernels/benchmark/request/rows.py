"""The rows of `--task=request`: stages, programs, and what padding prompts costs."""

import dataclasses
import shlex
from collections.abc import Mapping

import hw_profiles
from hw_profiles import BucketChoice, HostTimes, PlannedStage, RequestPlan, RequestSaving
from pallas_kernels.benchmark import commands
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.request.workloads import workload_of
from pallas_kernels.benchmark.rows import NOT_RUN, Written

FUSED, SEPARATE = "fused", "separate"
LAUNCHED, GRAPH = "launched", "graph"
TWICE = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Of(Written):
  """What every row says first.

  Attributes:
    kind: "stage", "program" or "buckets".
    model: Sizes as `--model` takes them.
    request: Sizes as `--request` takes them; of several prompts all, with spaces.
    dtype: Of weights and activations.
    profile: Hardware profile.
  """

  kind: str
  model: str
  request: str
  dtype: str
  profile: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageRow(_Of):
  """One kernel of a program in one phase, with all its calls.

  Attributes:
    program: "fused" or "separate".
    phase: "prefill" or "decode".
    stage: What it is for.
    part: What it is a part of: fusing replaces the stages of a part.
    kernel: The op.
    shape: Sizes as `--shape` takes them; of decode attention at the first step.
    tile: The planner's best.
    calls: In the request.
    call_us: One call, predicted; of decode attention the mean of the first and the
      last step. None where no tile fits.
    total_us: All calls.
    share: Of the device's work for the request.
    bound: The resource whose time a call is.
    request_bound: How many times as fast the request is, launched kernel by kernel,
      if the stage takes no time (Amdahl).
    own_saved_us: What the stage's calls save if they are twice as fast.
    request_saved_us: What the request then saves, the host's part run again.
    model_error: Median error of the op's model on that device; None: never compared.
    reason: Why no tile fits.
    check: "not run": nothing is.
    arguments: A command line whose row has this time of a call; of decode attention
      that of the first step.
  """

  program: str
  phase: str
  stage: str
  part: str
  kernel: str
  shape: str
  tile: str
  calls: int
  call_us: float | None
  total_us: float | None
  share: float | None
  bound: str | None
  request_bound: float | None
  own_saved_us: float | None
  request_saved_us: float | None
  model_error: float | None
  reason: str | None
  check: str = NOT_RUN
  arguments: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramRow(_Of):
  """The whole request, its products fused or not, its steps launched or replayed.

  Attributes:
    program: "fused" or "separate".
    launch: "launched", kernel by kernel, or "graph": decode steps replayed.
    submissions: Of the host.
    kernels: Of the device.
    device_us: The device's work.
    first_token_us: Time to the first token.
    token_us: Time of each further token; None for an output of one.
    total_us: Time of the request.
    token_floor_us: What reading a step's matrices, keys and values takes at the
      peak of memory.
    decode_bytes: Those bytes.
    resident_bytes: Matrices, keys and values at the end.
    memory_bytes: What the device has.
    fits: Whether that is enough; None where a stage has no tile that fits.
    host_step_us: The host's work for a decode step launched kernel by kernel; None for
      an output of one.
    device_step_us: The device's work for it.
    largest_launch_us: What a launch may take before a decode step waits for the
      host; None for an output of one.
    graph_saved_us: What replay saves of a step; negative where it costs.
    saved_by_part_us: Of the fused program: phase and part to what fusing saves of
      the device's work; of the separate one empty.
    reason: Why there is no time.
    check: "not run": nothing is.
    arguments: A command line that gives this row again.
  """

  program: str
  launch: str
  submissions: int
  kernels: int
  device_us: float | None
  first_token_us: float | None
  token_us: float | None
  total_us: float | None
  token_floor_us: float
  decode_bytes: int
  resident_bytes: int
  memory_bytes: int
  fits: bool | None
  host_step_us: float | None
  device_step_us: float | None
  largest_launch_us: float | None
  graph_saved_us: float | None
  saved_by_part_us: Mapping[str, float]
  reason: str | None
  check: str = NOT_RUN
  arguments: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class BucketRow(_Of):
  """Prompts at their own lengths against prompts padded to buckets.

  Attributes:
    buckets: Those used.
    tokens: Of the prompts.
    padded_tokens: The same in buckets.
    bucketed_us: The prompts' passes, padded.
    exact_us: The same at their own lengths.
    compile_us: What the programs of the lengths cost once; those of the buckets are there.
    payback_repeats: How often the prompts have to come for that to be even; None:
      nothing is saved.
    exact_from: The first number of repeats at which own lengths take less time; None: never.
    check: "not run": nothing is.
    arguments: A command line that gives this row again.
  """

  buckets: tuple[int, ...]
  tokens: int
  padded_tokens: int
  bucketed_us: float
  exact_us: float
  compile_us: float
  payback_repeats: float | None
  exact_from: int | None
  check: str = NOT_RUN
  arguments: str


def program_name(plan: RequestPlan) -> str:
  """Of its products."""
  return FUSED if plan.fused else SEPARATE


def stage_row(options: Options, plan: RequestPlan, planned: PlannedStage) -> StageRow:
  """A stage's row, with what its speed is worth."""
  workload = workload_of(planned.stage.problem)
  timed = plan.total_us(graph=False) is not None
  gain = hw_profiles.stage_gain(plan, planned, speedup=TWICE) if timed else None
  return StageRow(
    kind="stage",
    model=plan.model.describe(),
    request=plan.request.describe(),
    dtype=plan.dtype,
    profile=plan.profile,
    program=program_name(plan),
    phase=planned.phase,
    stage=planned.stage.name,
    part=planned.stage.part,
    kernel=workload.op.name,
    shape=str(workload.shape),
    tile=planned.plan.config.describe(),
    calls=planned.calls,
    call_us=planned.call_us,
    total_us=planned.total_us,
    share=plan.share(planned),
    bound=planned.plan.bound or None,
    request_bound=None if gain is None else gain.law.bound,
    own_saved_us=None if gain is None else gain.own_saved_us,
    request_saved_us=None if gain is None else gain.request_saved_us,
    model_error=planned.plan.model_error,
    reason=planned.plan.reason or planned.last_plan.reason or None,
    arguments=commands.rerun(
      dataclasses.replace(options, task="plan"),
      workload,
      tile=planned.plan.config,
      profile=plan.profile,
    ),
  )


def program_row(
  plan: RequestPlan, *, graph: bool, saving: RequestSaving | None, buckets: tuple[int, ...] | None
) -> ProgramRow:
  """The whole request's row.

  Args:
    plan: The request.
    graph: Whether decode steps are replayed.
    saving: What fusing saves; None of the separate program.
    buckets: As given, for the command line.
  """
  first_token_us = plan.first_token_us
  return ProgramRow(
    kind="program",
    model=plan.model.describe(),
    request=plan.request.describe(),
    dtype=plan.dtype,
    profile=plan.profile,
    program=program_name(plan),
    launch=GRAPH if graph else LAUNCHED,
    submissions=plan.submissions(graph=graph),
    kernels=plan.kernels,
    device_us=plan.device_us,
    first_token_us=first_token_us,
    token_us=plan.token_us(graph=graph),
    total_us=plan.total_us(graph=graph),
    token_floor_us=plan.decode_bytes / plan.bandwidth_bytes_per_s * 1e6,
    decode_bytes=plan.decode_bytes,
    resident_bytes=plan.resident_bytes,
    memory_bytes=plan.memory_bytes,
    fits=None if first_token_us is None else plan.resident_bytes <= plan.memory_bytes,
    host_step_us=None if plan.decode is None else plan.decode.host_us,
    device_step_us=None if plan.decode is None else plan.decode.device_us,
    largest_launch_us=largest_launch_us(plan),
    graph_saved_us=None if plan.replay is None else plan.replay.saved_us,
    saved_by_part_us={} if saving is None else saving.saved_by,
    reason=plan.reason or None,
    arguments=_arguments(
      plan.model.describe(),
      (plan.request.describe(),),
      plan.dtype,
      plan.profile,
      plan.host,
      buckets,
    ),
  )


def largest_launch_us(plan: RequestPlan) -> float | None:
  """What one launch may take before a decode step waits for the host."""
  if plan.decode is None:
    return None
  path = hw_profiles.host_path(plan.decode, launch_us=plan.host.launch_us)
  return path.saturation_us["launches"] / max(1, plan.decode.kernels - 1)


def bucket_row(
  model: hw_profiles.ModelSizes,
  requests: tuple[hw_profiles.RequestSizes, ...],
  dtype: str,
  profile: str,
  host: HostTimes,
  buckets: tuple[int, ...] | None,
  found: BucketChoice,
) -> BucketRow:
  """The row of a group of prompts."""
  exact = [part.first for part in found.choice.ranges if part.name == "exact"]
  texts = tuple(request.describe() for request in requests)
  lengths = {(request.batch, request.prompt) for request in requests}
  padded = {(batch, bucket) for batch, _, bucket in found.rows.assigned}
  return BucketRow(
    kind="buckets",
    model=model.describe(),
    request=" ".join(texts),
    dtype=dtype,
    profile=profile,
    buckets=found.rows.programs,
    tokens=found.rows.rows,
    padded_tokens=found.rows.padded_rows,
    bucketed_us=found.bucketed_us,
    exact_us=found.exact_us,
    compile_us=host.compile_ms * 1e3 * len(lengths - padded),
    payback_repeats=found.choice.payback.get(("bucketed", "exact")),
    exact_from=exact[0] if exact else None,
    arguments=_arguments(model.describe(), texts, dtype, profile, host, buckets),
  )


def _arguments(
  model: str,
  requests: tuple[str, ...],
  dtype: str,
  profile: str,
  host: HostTimes,
  buckets: tuple[int, ...] | None,
) -> str:
  parts = ["pallas-bench", "--task=request", f"--model={model}"]
  parts += [f"--request={request}" for request in requests]
  parts += [f"--dtype={dtype}", f"--profile={profile}", f"--host={host.describe()}"]
  if buckets is not None:
    parts.append(f"--buckets={','.join(map(str, buckets))}")
  return shlex.join(parts)
