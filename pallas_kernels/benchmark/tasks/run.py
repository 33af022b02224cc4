"""`--task=run`: one implementation on the whole problem, checked, and measured on a GPU."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import hw_profiles
from pallas_kernels.benchmark import (
  cells,
  commands,
  environment,
  jobs,
  measured_only,
  plans,
  runner,
)
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.ops.op import Config, option_flags
from pallas_kernels.benchmark.results import Result
from pallas_kernels.benchmark.rows import Block, Report, Row
from pallas_kernels.benchmark.workload import Workload

# Fields of a row's details that --memory adds.
_MEMORY = ("extra_bytes", "result_bytes")


@dataclasses.dataclass(frozen=True)
class _Case:
  """One row to be: what runs, and the plan where there is a profile."""

  job: jobs.Job
  plan: hw_profiles.TilePlan | None

  @property
  def tile(self) -> Config | None:
    """The tile of the row."""
    return self.job.tile or self.job.selection.config


def run(options: Options) -> Report:
  """Runs every workload with every tile, and each peer once a workload.

  A tile that its kernel refuses has a row that says why, where all are refused, too;
  then the report says that nothing ran.

  Raises:
    UsageError: nothing that was asked for could run, whatever the tile; a problem
      has no room in memory.
  """
  jobs.refuse_measuring_without_gpu(options)
  jobs.refuse_too_large(options)
  profile = _profile(options)
  cases: list[_Case] = []
  for workload in options.workloads:
    own = [_kernel_case(options, workload, tile, profile) for tile in workload.tiles or (None,)]
    cases += own
    if options.planned:
      cases += _planned_cases(options, workload, profile, own)
    cases += [_peer_case(workload, peer) for peer in options.peers if peer in workload.op.peers]
  kernels = [case.job for case in cases if case.job.peer is None]
  _refuse_if_nothing_runs(options, kernels)
  work = [case.job for case in cases]
  execute = measured_only.execute if measured_only.applies(options, work) else jobs.execute
  outcomes = execute(options, work)
  rows = tuple(_row(options, case, outcome) for case, outcome in zip(cases, outcomes, strict=True))
  results = _results(options, cases, rows)
  return Report(
    environment=environment.describe(with_device=True),
    rows=rows,
    blocks=(_block(rows, results, _trust(cases)),),
    results=tuple(result for result in results if result is not None),
    nothing_ran=all(job.selection.reason is not None for job in kernels),
  )


def _results(
  options: Options, cases: Sequence[_Case], rows: Sequence[Row]
) -> tuple[Result | None, ...]:
  """Each kernel's measured time beside its workload's peers; None where there is no time."""
  peers: dict[Workload, dict[str, float]] = {}
  extra: dict[Workload, dict[str, int]] = {}
  for case, row in zip(cases, rows, strict=True):
    if case.job.peer is not None and row.measured_us is not None:
      peers.setdefault(case.job.workload, {})[case.job.peer] = row.measured_us
      if (size := row.details.get("extra_bytes")) is not None:
        extra.setdefault(case.job.workload, {})[case.job.peer] = size

  def result(case: _Case, row: Row) -> Result | None:
    workload = case.job.workload
    if case.job.peer is not None or row.measured_us is None:
      return None
    beside = peers.get(workload, {})
    return Result(
      kernel=row.kernel,
      shape=row.shape,
      dtype=row.dtype,
      options=tuple(option_flags(workload.options)),
      tile=row.tile,
      implementation=row.implementation,
      measured_us=row.measured_us,
      peers=beside,
      predicted_us=row.predicted_us,
      check=row.check,
      worst_bound_fraction=row.details.get("worst_bound_fraction"),
      timer=options.timer,
      iterations=options.iterations,
      cold_l2=options.cold_l2,
      arguments=commands.rerun(
        options,
        workload,
        tile=case.job.tile,
        implementation=options.implementation,
        peer=",".join(beside) or None,
      ),
      details=_kept(case, row, extra.get(workload, {})),
    )

  return tuple(map(result, cases, rows))


def _kept(case: _Case, row: Row, peers_extra: Mapping[str, int]) -> dict[str, Any]:
  """What a result keeps beside times: launches, the plan's traffic, memory if it was asked for."""
  planned: dict[str, Any] = (
    {} if case.plan is None else dict(case.job.workload.op.plan_details(case.plan))
  )
  if planned:
    planned["traffic_bytes"] = row.traffic_bytes
  launches = row.details.get("measured_launches")
  counted = {} if launches is None else {"launches": launches}
  asked = {name: row.details[name] for name in _MEMORY if name in row.details}
  return {
    **counted,
    **planned,
    **asked,
    **({"peers_extra_bytes": dict(peers_extra)} if peers_extra else {}),
  }


def _refuse_if_nothing_runs(options: Options, kernels: list[jobs.Job]) -> None:
  """Raises UsageError where every kernel is refused, and not for its tile."""
  if any(job.selection.reason is None for job in kernels):
    return
  implementation = options.implementation or runner.default_implementation()
  for job in kernels:
    workload = job.workload
    untiled = runner.select(workload, workload.shape, None, implementation)
    if job.tile is not None and untiled.reason is None:
      return
  raise UsageError(f"nothing to run: {kernels[0].selection.reason}")


def _profile(options: Options) -> str | None:
  """The profile to plan for: the one given, or that of the GPU that JAX runs on."""
  if options.profiles is not None:
    if len(options.profiles) > 1:
      raise UsageError(
        f"--profile={','.join(options.profiles)}: --task=run runs on one device; "
        "expected one profile"
      )
    return options.profiles[0]
  return runner.device_profile()


def _kernel_case(
  options: Options, workload: Workload, tile: Config | None, profile: str | None
) -> _Case:
  implementation = options.implementation or runner.default_implementation()
  selection = runner.select(workload, workload.shape, tile, implementation)
  config = tile or selection.config
  job = jobs.Job(
    workload=workload,
    part=workload.shape,
    tile=tile,
    label=f"{workload.name}, {'-' if config is None else cells.short_tile(config)}",
    selection=selection,
  )
  plan = None
  if config is not None and profile is not None:
    plan = plans.plan(workload, config, profile, running=selection.plan)
  return _Case(job, plan)


def _planned_cases(
  options: Options, workload: Workload, profile: str | None, own: Sequence[_Case]
) -> list[_Case]:
  """The planner's tile for the kernel that would run; none where that runs already."""
  plan = own[0].job.selection.plan
  if plan is None:
    return []
  ranked = hw_profiles.rank(plan.problem, plan.profile, top=1, schedule=plan.schedule)
  tile = ranked[0].config if ranked and ranked[0].fits else None
  if tile is None or tile in [case.tile for case in own]:
    return []
  return [_kernel_case(options, workload, tile, profile)]


def _peer_case(workload: Workload, peer: str) -> _Case:
  # no implementation of ours has such a name
  selection = runner.Selection(implementation=f"peer:{peer}")
  job = jobs.Job(
    workload=workload,
    part=workload.shape,
    tile=None,
    label=f"{workload.name}, peer {peer}",
    selection=selection,
    peer=peer,
  )
  return _Case(job, None)


def _row(options: Options, case: _Case, outcome: jobs.Outcome) -> Row:
  job, workload = case.job, case.job.workload
  fields: dict[str, Any] = {"tile": None if case.tile is None else case.tile.describe()}
  details: dict[str, Any] = {}
  notes: tuple[str, ...] = ()
  if case.plan is not None and case.tile is not None:
    fields |= plans.fields(workload, case.plan, case.tile)
    details["schedule"] = case.plan.schedule
    details |= workload.op.plan_details(case.plan)
    notes += case.plan.notes
  ran = dict(outcome.fields)
  if (refused := ran.pop("reason", None)) is not None:
    # where the plan has a reason of its own, both are told
    notes += (f"not run: {refused}",)
    fields["reason"] = fields.get("reason") or refused
  elif runner.platform() != "gpu":
    notes += (jobs.NOT_MEASURED,)
  if case.plan is not None:
    notes += plans.checked_with_another(ran.get("checked_with"), case.plan, job.selection.plan)
  return Row(
    kernel=workload.op.name,
    shape=str(workload.shape),
    dtype=workload.dtype,
    **(fields | ran),
    notes=notes + outcome.notes,
    arguments=commands.rerun(
      options,
      workload,
      tile=job.tile,
      profile=None if case.plan is None else case.plan.profile,
      implementation=options.implementation,
      peer=job.peer,
    ),
    measured_us=outcome.measured_us,
    details=details | outcome.details | outcome.timing,
  )


def _trust(cases: list[_Case]) -> tuple[str, ...]:
  """What the predicted times are worth, once for each profile and op."""
  told = dict.fromkeys(
    plans.trust(case.job.workload, case.plan.profile) for case in cases if case.plan is not None
  )
  return (plans.WELL_TUNED, *told) if told else ()


def _summaries(results: tuple[Result | None, ...]) -> list[str]:
  """The ratios of each kernel to each peer together, where there are several."""
  ratios: dict[tuple[str, str], list[float]] = {}
  best: dict[str, list[float]] = {}
  for result in results:
    if result is None:
      continue
    for peer, ratio in result.ratios.items():
      ratios.setdefault((result.kernel, peer), []).append(ratio)
    if result.ratios:
      best.setdefault(result.kernel, []).append(min(result.ratios.values()))
  for kernel, found in best.items():
    if sum(of == kernel for of, _ in ratios) > 1:
      ratios[kernel, "the best of them"] = found
  return [
    f"{kernel} against {peer}: geometric mean {statistics.geometric_mean(found):.3f} of"
    f" {len(found)} rows, least {min(found):.3f}"
    for (kernel, peer), found in ratios.items()
    if len(found) > 1
  ]


def _memory_lines(rows: Sequence[Row]) -> list[str]:
  """What --memory asked for, a line a row."""
  return [
    f"{row.kernel} {row.shape} {row.implementation}: {row.details['extra_bytes']:,} B beside"
    f" operands and {row.details['result_bytes']:,} B of results"
    for row in rows
    if "extra_bytes" in row.details
  ]


def _block(
  rows: tuple[Row, ...], results: tuple[Result | None, ...], trust: tuple[str, ...]
) -> Block:
  header = (
    "problem",
    "checked with",
    "tile",
    "check",
    "error/bound",
    "relative error",
    "measured us",
    "TFLOP/s",
    "GB/s",
    "against peers",
    "predicted us",
  )
  table = tuple(
    (
      f"{row.kernel} {row.shape} {row.dtype}",
      row.checked_with or row.implementation or "-",
      "-" if row.tile is None else row.tile,
      row.check,
      cells.number(row.details.get("worst_bound_fraction"), 3),
      cells.scientific(row.relative_error),
      cells.number(row.measured_us),
      cells.number(row.details.get("measured_tflop_per_s")),
      cells.number(row.details.get("measured_once_through_gbyte_per_s"), 0),
      "-"
      if result is None or not result.peers
      else ", ".join(f"{name} {ratio:.3f}" for name, ratio in result.ratios.items()),
      cells.number(row.predicted_us),
    )
    for row, result in zip(rows, results, strict=True)
  )
  lines = [cells.CHECK_LEGEND]
  if any(row.measured_us is not None for row in rows):
    lines.append("GB/s: operands read once and the result written once, in the measured time")
  if any(result is not None and result.peers for result in results):
    lines.append("against peers: a peer's time over this one, above 1 where this one is faster")
    lines += _summaries(results)
  lines += _memory_lines(rows)
  lines += trust
  # a note that many rows share is said once
  lines += dict.fromkeys(note for row in rows for note in row.notes)
  return Block(
    title="run",
    header=header,
    cells=table,
    numeric=frozenset(header[4:]),
    lines=tuple(lines),
    commands=tuple(f"again: {row.arguments}" for row in rows),
  )
