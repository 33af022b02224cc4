"""`--task=run`: one implementation on the whole problem, checked, and measured on a GPU."""

import dataclasses
from typing import Any

import hw_profiles
from hw_profiles import MatmulConfig
from pallas_kernels.benchmark import commands, environment, jobs, kernels, peers, planning
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.operands import ALL
from pallas_kernels.benchmark.parsing import Shape
from pallas_kernels.benchmark.rows import Block, Report, Row


@dataclasses.dataclass(frozen=True)
class _Case:
  """One row to be: a problem, what runs on it, and the plan where there is a profile."""

  kernel: str
  job: jobs.Job
  plan: hw_profiles.TilePlan | None


def run(options: Options) -> Report:
  """Runs every kernel, shape, dtype and tile, and each peer once a problem.

  Raises:
    UsageError: nothing that was asked for could run.
  """
  jobs.refuse_measuring_without_gpu(options)
  profile = _profile(options)
  cases: list[_Case] = []
  for kernel in options.kernels:
    for shape in options.shapes:
      for dtype in options.dtypes:
        cases += [
          _kernel_case(options, kernel, shape, dtype, tile, profile)
          for tile in options.tiles or (None,)
        ]
        cases += [_peer_case(kernel, shape, dtype, peer) for peer in options.peers]
  refusals = [case.job.choice.reason for case in cases if case.job.peer is None]
  if all(refusals):
    raise UsageError(f"nothing to run: {refusals[0]}")
  outcomes = jobs.execute(options, [case.job for case in cases])
  rows = tuple(_row(options, case, outcome) for case, outcome in zip(cases, outcomes, strict=True))
  return Report(
    environment=environment.describe(with_device=True), rows=rows, blocks=(_block(rows),)
  )


def _profile(options: Options) -> str | None:
  """The profile to plan for: the one given, or that of the GPU that JAX runs on."""
  if options.profiles is not None:
    if len(options.profiles) > 1:
      raise UsageError(
        f"--profile={','.join(options.profiles)}: --task=run runs on one device; "
        "expected one profile"
      )
    return options.profiles[0]
  return kernels.device_profile()


def _kernel_case(
  options: Options,
  kernel: str,
  shape: Shape,
  dtype: str,
  tile: MatmulConfig | None,
  profile: str | None,
) -> _Case:
  implementation = options.implementation or kernels.default_implementation()
  choice = kernels.choose(options, shape, dtype, tile, implementation)
  config = tile or choice.config
  job = jobs.Job(
    shape=shape,
    dtype=dtype,
    part=ALL,
    tile=tile,
    label=f"{kernel} {shape} {dtype}, {'-' if config is None else planning.short(config)}",
    choice=choice,
  )
  plan = None
  if config is not None and profile is not None:
    plan = planning.plan(planning.problem(options, shape, dtype), config, profile)
  return _Case(kernel, job, plan)


def _peer_case(kernel: str, shape: Shape, dtype: str, peer: str) -> _Case:
  job = jobs.Job(
    shape=shape,
    dtype=dtype,
    part=ALL,
    tile=None,
    label=f"{kernel} {shape} {dtype}, peer {peer}",
    choice=kernels.Choice(implementation=peers.row_name(peer), config=None, reason=None),
    peer=peer,
  )
  return _Case(kernel, job, None)


def _row(options: Options, case: _Case, outcome: jobs.Outcome) -> Row:
  job = case.job
  config = job.tile or job.choice.config
  fields: dict[str, Any] = {"tile": None if config is None else config.describe()}
  notes: tuple[str, ...] = ()
  if case.plan is not None:
    fields |= planning.fields(case.plan)
    notes += case.plan.notes
  ran = dict(outcome.fields)
  if (refused := ran.pop("reason", None)) is not None:
    # where the plan has a reason of its own, both are told
    notes += (f"not run: {refused}",)
    fields.setdefault("reason", refused)
  elif kernels.platform() != "gpu":
    notes += (jobs.NOT_MEASURED,)
  return Row(
    kernel=case.kernel,
    shape=str(job.shape),
    dtype=job.dtype,
    **(fields | ran),
    notes=notes + outcome.notes,
    arguments=commands.rerun(
      options,
      kernel=case.kernel,
      shape=job.shape,
      dtype=job.dtype,
      tile=job.tile,
      profile=None if case.plan is None else case.plan.profile,
      implementation=options.implementation,
      peer=job.peer,
    ),
    measured_us=outcome.measured_us,
    details=outcome.details | outcome.timing,
  )


def _block(rows: tuple[Row, ...]) -> Block:
  header = (
    "problem",
    "implementation",
    "tile",
    "check",
    "error/bound",
    "max ULP",
    "relative error",
    "measured us",
    "TFLOP/s",
    "predicted us",
  )
  cells = tuple(
    (
      f"{row.kernel} {row.shape} {row.dtype}",
      row.implementation or "-",
      "-" if row.tile is None else row.tile,
      row.check,
      planning.number(row.details.get("worst_bound_fraction"), 2),
      planning.ulps(row.max_ulp),
      planning.scientific(row.relative_error),
      planning.number(row.measured_us),
      planning.number(row.details.get("measured_tflop_per_s")),
      planning.number(row.predicted_us),
    )
    for row in rows
  )
  # a note that many rows share is said once
  lines = list(dict.fromkeys(note for row in rows for note in row.notes))
  lines.append(planning.CHECK_LEGEND)
  lines += [f"again: {row.arguments}" for row in rows]
  return Block(
    title="run",
    header=header,
    cells=cells,
    numeric=frozenset(header[4:]),
    lines=tuple(lines),
  )
