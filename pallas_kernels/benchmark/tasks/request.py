"""`--task=request`: a whole request, stage by stage, and what a change is worth. Loads no JAX.

Every time is the planner's, of its best tile for a stage; the host beside it is
simulated, and Amdahl's law, the critical path, graph replay and bucketing are
those of `hw_profiles`.
"""

import io
import itertools
import sys

import hw_profiles
from hw_profiles import ModelSizes, RequestSizes
from pallas_kernels.benchmark import environment
from pallas_kernels.benchmark.flags import DEFAULT_PROFILES, Options
from pallas_kernels.benchmark.progress import Progress, Step
from pallas_kernels.benchmark.request import blocks
from pallas_kernels.benchmark.request.rows import (
  BucketRow,
  ProgramRow,
  StageRow,
  bucket_row,
  program_row,
  stage_row,
)
from pallas_kernels.benchmark.rows import Block, Report

# Seconds of a request on a profile, a first guess: some thirty rankings of about 50 ms.
_EXPECTED_S = 1.5


def run(options: Options) -> Report:
  """Plans every request of every model on every profile."""
  asked = options.request
  profiles = options.profiles or DEFAULT_PROFILES
  groups = list(itertools.product(asked.models, asked.dtypes))
  steps = [
    Step("request", f"{request.describe()} on {profile}", 1.0)
    for _ in groups
    for request in asked.requests
    for profile in profiles
  ]
  progress = Progress(steps, rates={"request": _EXPECTED_S}, stream=sys.stderr or io.StringIO())
  stages: list[StageRow] = []
  programs: list[ProgramRow] = []
  buckets: list[BucketRow] = []
  shown: list[Block] = []
  for model, dtype in groups:
    for request in asked.requests:
      summarised: list[ProgramRow] = []
      details: list[Block] = []
      for profile in profiles:
        with progress.next():
          own_stages, own_programs = _rows(options, model, request, dtype, profile)
        stages += own_stages
        summarised += own_programs
        details += [blocks.stages(profile, own_stages), blocks.programs(profile, own_programs)]
      programs += summarised
      shown += [blocks.summary(model.describe(), request.describe(), dtype, summarised), *details]
    padded = [row for profile in profiles for row in _padded(options, model, dtype, profile)]
    buckets += padded
    if padded:
      shown.append(blocks.buckets(padded))
  return Report(
    environment=environment.describe(with_device=False),
    rows=(*programs, *stages, *buckets),
    blocks=(*shown, blocks.assumptions(asked.host, stages)),
  )


def _rows(
  options: Options, model: ModelSizes, request: RequestSizes, dtype: str, profile: str
) -> tuple[list[StageRow], list[ProgramRow]]:
  """Stages and programs of a request on a profile, the separate program first."""
  asked = options.request
  separate, fused = (
    hw_profiles.plan_request(model, request, profile, dtype=dtype, fused=one, host=asked.host)
    for one in (False, True)
  )
  timed = separate.device_us is not None and fused.device_us is not None
  saving = hw_profiles.fusion_saving(separate, fused) if timed else None
  stages = [
    stage_row(options, plan, planned) for plan in (fused, separate) for planned in plan.stages
  ]
  programs = [
    program_row(plan, graph=graph, saving=saving if plan.fused else None, buckets=asked.buckets)
    for graph in (False, True)
    for plan in (separate, fused)
  ]
  return stages, programs


def _padded(options: Options, model: ModelSizes, dtype: str, profile: str) -> list[BucketRow]:
  """What padding the prompts costs; nothing where a pass has no time."""
  asked = options.request
  found = hw_profiles.bucket_choice(
    model, asked.requests, profile, buckets=asked.buckets, dtype=dtype, host=asked.host
  )
  if found is None:
    return []
  return [bucket_row(model, asked.requests, dtype, profile, asked.host, asked.buckets, found)]
