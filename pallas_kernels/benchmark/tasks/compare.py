"""`--task=compare`: each tile on every profile, and the kernel itself run and checked.

What fits, binds and costs is the planner's word on each profile: of the kernel
that runs, on the device that is here; elsewhere of the schedule that suits the
profile. The check is of the tile and the problem, not of a profile: the kernel
runs here, on the device that JAX has, once for each tile, and every row of that
tile shows it. A measured time is that device's alone, so it stands in the row
of its profile.
"""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import hw_profiles
from pallas_kernels.benchmark import cells, commands, environment, jobs, plans, runner
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.flags import DEFAULT_PROFILES, Options
from pallas_kernels.benchmark.ops.op import Config
from pallas_kernels.benchmark.rows import NOT_RUN, Block, Report, Row
from pallas_kernels.benchmark.tiles import TileChoice, planned_best, tiles_for
from pallas_kernels.benchmark.workload import Workload

if TYPE_CHECKING:
  from pallas_kernels.benchmark import sides

# Interpreted, the tile with the least work is run on the whole problem. The
# others are too where that is quick, else on the op's sample of it: at full
# size the default tiles of a matmul would take 10 minutes.
_QUICK_S = 5.0
# ... and that tile only where it takes no longer than this: a layer's attention
# would take two minutes.
_PATIENT_S = 60.0

_MEASURED_ELSEWHERE = "measured_us is null: it was measured on a device of another profile"


@dataclasses.dataclass(frozen=True)
class _Case:
  """One workload with the tiles looked at, their jobs and their plans."""

  workload: Workload
  choices: tuple[TileChoice, ...]
  jobs: dict[Config, jobs.Job]
  plans: dict[tuple[Config, str], hw_profiles.TilePlan]

  def planned(self) -> Iterator[tuple[TileChoice, str, hw_profiles.TilePlan]]:
    """Tile, profile and plan of every row."""
    for choice in self.choices:
      for profile in choice.profiles:
        yield choice, profile, self.plans[choice.tile, profile]


_Done = dict[Config, jobs.Outcome]


def run(options: Options) -> Report:
  """Plans every tile on every profile, runs and checks every tile once.

  Raises:
    UsageError: a flag needs a GPU, or none, or a problem has no room in memory.
  """
  jobs.refuse_measuring_without_gpu(options)
  if options.check_part == "sample" and runner.platform() == "gpu":
    raise UsageError(
      "--check_part=sample: a GPU runs and measures the whole problem; expected all, or "
      "JAX_PLATFORMS=cpu"
    )
  if _runs(options):
    jobs.refuse_too_large(options)
  cases = [_case(options, workload) for workload in options.workloads]
  rows: list[Row] = []
  blocks: list[Block] = []
  for case, done in zip(cases, _outcomes(options, cases), strict=True):
    compiled = _compiled(options, case) if options.compilers else {}
    rows += [
      _row(options, case, choice, profile, plan, done.get(choice.tile), compiled.get(choice.tile))
      for choice, profile, plan in case.planned()
    ]
    blocks += [_plan_block(case), *_compiler_blocks(options, compiled), _check_block(case, done)]
  return Report(
    environment=environment.describe(with_device=True), rows=tuple(rows), blocks=tuple(blocks)
  )


def _case(options: Options, workload: Workload) -> _Case:
  implementation = options.implementation or runner.default_implementation()
  here = runner.device_profile()

  def best(workload: Workload, profile: str) -> Config | None:
    """Of the kernel that would run, where the device here is of that profile."""
    if profile == here:
      chosen = runner.select(workload, workload.shape, None, implementation)
      if chosen.plan is not None:
        return chosen.config
    return planned_best(workload, profile)

  choices = tiles_for(workload, options.profiles or DEFAULT_PROFILES, best=best)
  by_tile = _jobs(options, workload, implementation, choices)
  tile_plans = {
    (choice.tile, profile): plans.plan(
      workload, choice.tile, profile, running=by_tile[choice.tile].selection.plan
    )
    for choice in choices
    for profile in choice.profiles
  }
  return _Case(workload, choices, by_tile, tile_plans)


def _compiled(options: Options, case: _Case) -> dict[Config, "sides.Sides"]:
  """What the compilers allocate for each tile, on the profiles that one plans memory for."""
  from pallas_kernels.benchmark import sides
  from pallas_kernels.lowering.compile_pool import CompilePool

  asked = {
    choice.tile: tuple(name for name in choice.profiles if sides.allocates(case.workload, name))
    for choice in case.choices
  }
  compilable = [(case.workload, tile, profiles) for tile, profiles in asked.items() if profiles]
  with CompilePool(options.jobs) as pool:
    return {one.tile: one for one in sides.compile_sides(options, pool, compilable)}


def _compiler_blocks(options: Options, compiled: dict[Config, "sides.Sides"]) -> list[Block]:
  """The budget of each tile beside what the compilers allocate; inputs of failures kept."""
  if not compiled:
    return []
  from pallas_kernels.benchmark import compiling, sides

  failures = compiling.Failures(options)
  return [sides.budget_block(one, failures.keep(one.answers.values())) for one in compiled.values()]


def _jobs(
  options: Options, workload: Workload, implementation: str | None, choices: tuple[TileChoice, ...]
) -> dict[Config, jobs.Job]:
  """A job for each tile, the quickest first and what runs at full size last."""
  interpreted = runner.platform() != "gpu"
  shape = workload.shape

  def full_s(tile: Config) -> float:
    kernel_s = jobs.kernel_s(workload, shape, tile, implementation)
    return kernel_s + jobs.reference_s(workload, shape)

  by_cost = sorted((choice.tile for choice in choices), key=full_s)
  made = {}
  for position, tile in enumerate(by_cost):
    limit_s = _PATIENT_S if position == 0 else _QUICK_S
    whole = not interpreted or full_s(tile) < limit_s
    if options.check_part is not None:
      whole = options.check_part == "all"
    part = shape if whole else workload.sample()
    made[tile] = jobs.Job(
      workload=workload,
      part=part,
      tile=tile,
      label=f"{workload.op.name} {cells.short_tile(tile)}, "
      f"{workload.describe_part(part)} of the result",
      selection=runner.select(workload, part, tile, implementation),
    )
  order = sorted(by_cost, key=lambda tile: (made[tile].part == shape, full_s(tile)))
  return {tile: made[tile] for tile in order}


def _runs(options: Options) -> bool:
  """Whether a run would tell something: a check's verdict, or a time."""
  return options.check != "none" or runner.platform() == "gpu"


def _outcomes(options: Options, cases: list[_Case]) -> list[_Done]:
  """Of each case, outcomes by tile; none where nothing is to be learned from a run."""
  if not _runs(options):
    return [{} for _ in cases]
  done = iter(jobs.execute(options, [job for case in cases for job in case.jobs.values()]))
  return [{tile: next(done) for tile in case.jobs} for case in cases]


def _row(
  options: Options,
  case: _Case,
  choice: TileChoice,
  profile: str,
  plan: hw_profiles.TilePlan,
  outcome: jobs.Outcome | None,
  compiled: "sides.Sides | None",
) -> Row:
  workload, job = case.workload, case.jobs[choice.tile]
  check_part = None
  fields = plans.fields(workload, plan, choice.tile)
  details: dict[str, Any] = {"schedule": plan.schedule}
  notes = ((plans.RANKED_FIRST,) if profile in choice.best_on else ()) + plan.notes
  if outcome is not None:
    check_part = "all" if job.part == workload.shape else "sample"
    ran = dict(outcome.fields)
    # the planner's reason says why it does not fit; a refusal is another matter
    refused = ran.pop("reason", None)
    if refused is not None:
      notes += (f"not run: {refused}",)
    fields |= ran
    notes += plans.checked_with_another(ran.get("checked_with"), plan, job.selection.plan)
    details |= outcome.details
    if outcome.measured_us is not None:
      if profile == runner.device_profile():
        fields["measured_us"] = outcome.measured_us
        details |= outcome.timing
      else:
        notes += (_MEASURED_ELSEWHERE,)
    elif runner.platform() != "gpu":
      notes += (jobs.NOT_MEASURED,)
    notes += outcome.notes
  if compiled is not None and profile in compiled.answers:
    details |= compiled.fields(profile)
  return Row(
    kernel=workload.op.name,
    shape=str(workload.shape),
    dtype=workload.dtype,
    **fields,
    notes=notes,
    details=details,
    arguments=commands.rerun(
      options,
      workload,
      tile=choice.tile,
      profile=profile,
      implementation=options.implementation,
      check_part=check_part,
    ),
  )


def _plan_block(case: _Case) -> Block:
  """A line for each profile, below a line for each tile with what is the same on all."""
  header = (
    "profile",
    "schedule",
    "fits",
    "binding",
    "resident",
    "predicted us",
    "bound",
    "on chip, KiB needed/available",
  )
  table: list[tuple[str, ...]] = []
  reasons: list[str] = []
  groups: dict[int, str] = {}
  for choice, profile, plan in case.planned():
    if profile == choice.profiles[0]:
      traffic = plan.traffic
      groups[len(table)] = (
        f"{cells.short_tile(choice.tile)}: working set "
        f"{cells.kib(traffic.working_set_bytes)} KiB, traffic "
        f"{cells.mib(case.workload.op.traffic_bytes(plan))} MiB, "
        f"{cells.number(traffic.intensity)} FLOP/B"
      )
    best = " *" if profile in choice.best_on else ""
    table.append(
      (
        f"  {profile}{best}",
        plan.schedule,
        cells.yes_no(plan.fits),
        cells.names(plan.binding),
        str(plan.resident_blocks),
        cells.number(plan.predicted_us),
        plans.bound(plan),
        plans.fill(plan),
      )
    )
    if plan.reason:
      reasons.append(f"{cells.short_tile(choice.tile)} does not fit: {plan.reason}")
  lines = [
    f"{cells.tile_legend(case.workload.op.config_class)}; working set: operand tiles and "
    "accumulator of one program, wherever they live",
  ]
  if any(choice.best_on for choice in case.choices):
    lines.append(plans.RANKED_FIRST_LEGEND)
  lines += plans.bound_legend(plan for *_, plan in case.planned())
  shown = dict.fromkeys(profile for _, profile, _ in case.planned())
  lines.append(plans.WELL_TUNED)
  lines += [plans.trust(case.workload, profile) for profile in shown]
  return Block(
    title=case.workload.name,
    header=header,
    cells=tuple(table),
    numeric=frozenset({"resident", "predicted us"}),
    groups=groups,
    lines=(*lines, *reasons),
  )


def _check_block(case: _Case, done: _Done) -> Block:
  header = (
    "tile",
    "checked with",
    "part of the result",
    "check",
    "error/bound",
    "relative error",
    "measured us",
  )
  table: list[tuple[str, ...]] = []
  lines = [
    cells.CHECK_LEGEND,
    "measured us: a device timer's median; - where there is no GPU, since an interpreter's time "
    "is not the kernel's",
  ]
  for choice in case.choices:
    outcome = done.get(choice.tile)
    fields = {} if outcome is None else outcome.fields
    details = {} if outcome is None else outcome.details
    tile = cells.short_tile(choice.tile)
    table.append(
      (
        tile,
        fields.get("checked_with") or fields.get("implementation") or "-",
        fields.get("checked") or "-",
        fields.get("check", NOT_RUN),
        cells.number(details.get("worst_bound_fraction"), 3),
        cells.scientific(fields.get("relative_error")),
        cells.number(None if outcome is None else outcome.measured_us),
      )
    )
    if outcome is not None:
      if "reason" in fields:
        lines.append(f"{tile} not run: {fields['reason']}")
      lines += [f"{tile}: {note}" for note in outcome.notes]
  return Block(
    title="The kernel itself, run here and compared with float64",
    header=header,
    cells=tuple(table),
    numeric=frozenset(header[4:]),
    lines=tuple(lines),
  )
