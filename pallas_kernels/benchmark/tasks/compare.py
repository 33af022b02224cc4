"""`--task=compare`: each tile on every profile, and the kernel itself run and checked.

What fits, binds and costs is the planner's word on each profile. The check is
of the tile and the problem, not of a profile: the kernel runs here, on the
device that JAX has, once for each tile, and every row of that tile shows it. A
measured time is that device's alone, so it stands in the row of its profile.
"""

import dataclasses

import hw_profiles
from hw_profiles import MatmulConfig
from pallas_kernels.benchmark import commands, environment, jobs, kernels, planning
from pallas_kernels.benchmark.flags import DEFAULT_PROFILES, Options
from pallas_kernels.benchmark.operands import ALL, Part
from pallas_kernels.benchmark.parsing import Shape
from pallas_kernels.benchmark.rows import Block, Report, Row
from pallas_kernels.benchmark.tiles import TileChoice, tiles_for

# The part of C that stands for the rest where a tile is not run on all of it:
# rows and columns of several tiles, the whole of K, where the errors add up.
SLICE = Part(rows=128, columns=512)

# Interpreted, the tile with the least work is run on the whole problem. The
# others are too where that is quick, else on SLICE: at full size the default
# tiles would take 10 minutes.
_QUICK_S = 5.0

_RANKED_FIRST = "first of the planner's own candidates for that profile"
_MEASURED_ELSEWHERE = "measured_us is null: it was measured on a device of another profile"


@dataclasses.dataclass(frozen=True)
class _Case:
  """One problem with the tiles looked at, their plans and their jobs."""

  kernel: str
  shape: Shape
  dtype: str
  choices: tuple[TileChoice, ...]
  plans: dict[tuple[MatmulConfig, str], hw_profiles.TilePlan]
  jobs: dict[MatmulConfig, jobs.Job]


def run(options: Options) -> Report:
  """Plans every tile on every profile, runs and checks every tile once."""
  jobs.refuse_measuring_without_gpu(options)
  cases = [
    _case(options, kernel, shape, dtype)
    for kernel in options.kernels
    for shape in options.shapes
    for dtype in options.dtypes
  ]
  outcomes = _outcomes(options, cases)
  rows: list[Row] = []
  blocks: list[Block] = []
  for case in cases:
    done = {tile: outcomes.get(id(job)) for tile, job in case.jobs.items()}
    rows += _rows(options, case, done)
    blocks += _blocks(case, done)
  return Report(
    environment=environment.describe(with_device=True), rows=tuple(rows), blocks=tuple(blocks)
  )


def _case(options: Options, kernel: str, shape: Shape, dtype: str) -> _Case:
  what = planning.problem(options, shape, dtype)
  choices = tiles_for(options, what, options.profiles or DEFAULT_PROFILES)
  plans = {
    (choice.tile, profile): planning.plan(what, choice.tile, profile)
    for choice in choices
    for profile in choice.profiles
  }
  return _Case(kernel, shape, dtype, choices, plans, _jobs(options, kernel, shape, dtype, choices))


def _jobs(
  options: Options, kernel: str, shape: Shape, dtype: str, choices: tuple[TileChoice, ...]
) -> dict[MatmulConfig, jobs.Job]:
  """A job for each tile, the quickest first and what runs at full size last."""
  interpreted = kernels.platform() != "gpu"
  implementation = options.implementation or kernels.default_implementation()

  def full_s(tile: MatmulConfig) -> float:
    return jobs.kernel_s(shape, dtype, tile, implementation or "") + jobs.reference_s(shape)

  by_cost = sorted((choice.tile for choice in choices), key=full_s)
  made = {}
  for position, tile in enumerate(by_cost):
    whole = not interpreted or position == 0 or full_s(tile) < _QUICK_S
    part = ALL if whole else SLICE
    made[tile] = jobs.Job(
      shape=shape,
      dtype=dtype,
      part=part,
      tile=tile,
      label=f"{kernel} {planning.short(tile)}, {part.describe(shape)} of C",
      choice=kernels.choose(options, part.of(shape), dtype, tile, implementation),
    )
  order = sorted(by_cost, key=lambda tile: (made[tile].part == ALL, full_s(tile)))
  return {tile: made[tile] for tile in order}


def _outcomes(options: Options, cases: list[_Case]) -> dict[int, jobs.Outcome]:
  """Outcomes by job identity; none where nothing is to be learned from a run."""
  if options.check == "none" and kernels.platform() != "gpu":
    return {}
  queue = [job for case in cases for job in case.jobs.values()]
  return {
    id(job): outcome for job, outcome in zip(queue, jobs.execute(options, queue), strict=True)
  }


_Done = dict[MatmulConfig, jobs.Outcome | None]


def _rows(options: Options, case: _Case, done: _Done) -> list[Row]:
  return [
    _row(options, case, choice, profile, done[choice.tile])
    for choice in case.choices
    for profile in choice.profiles
  ]


def _row(
  options: Options,
  case: _Case,
  choice: TileChoice,
  profile: str,
  outcome: jobs.Outcome | None,
) -> Row:
  plan = case.plans[choice.tile, profile]
  fields = planning.fields(plan)
  notes = ((_RANKED_FIRST,) if profile in choice.best_on else ()) + plan.notes
  details = {}
  if outcome is not None:
    ran = dict(outcome.fields)
    # the planner's reason says why it does not fit; a refusal is another matter
    refused = ran.pop("reason", None)
    if refused is not None:
      notes += (f"not run: {refused}",)
    fields |= ran
    details = dict(outcome.details)
    if outcome.measured_us is not None:
      if profile == kernels.device_profile():
        fields["measured_us"] = outcome.measured_us
        details |= outcome.timing
      else:
        notes += (_MEASURED_ELSEWHERE,)
    elif kernels.platform() != "gpu":
      notes += (jobs.NOT_MEASURED,)
    notes += outcome.notes
  return Row(
    kernel=case.kernel,
    shape=str(case.shape),
    dtype=case.dtype,
    **fields,
    notes=notes,
    details=details,
    arguments=commands.rerun(
      options,
      kernel=case.kernel,
      shape=case.shape,
      dtype=case.dtype,
      tile=choice.tile,
      profile=profile,
      implementation=options.implementation,
    ),
  )


def _blocks(case: _Case, done: _Done) -> list[Block]:
  title = f"{case.kernel} {case.shape} {case.dtype}"
  return [
    _plan_block(case, title),
    _buffer_block(case, "What fills up: KiB needed / available"),
    _check_block(case, done, "The kernel itself, run here and compared with float64"),
  ]


def _plan_block(case: _Case, title: str) -> Block:
  header = (
    "tile",
    "profile",
    "fits",
    "binding",
    "set KiB",
    "traffic MiB",
    "FLOP/B",
    "resident",
    "predicted us",
    "bound",
  )
  cells, reasons = [], []
  for choice in case.choices:
    for profile in choice.profiles:
      plan = case.plans[choice.tile, profile]
      best = " *" if profile in choice.best_on else ""
      cells.append(
        (
          planning.short(choice.tile),
          profile + best,
          planning.yes_no(plan.fits),
          planning.names(plan.binding),
          planning.kib(plan.traffic.working_set_bytes),
          planning.mib(plan.traffic.total_bytes * plan.problem.batch),
          planning.number(plan.traffic.intensity),
          str(plan.resident_blocks),
          planning.number(plan.predicted_us),
          plan.bound or "-",
        )
      )
      if plan.reason:
        reasons.append(f"does not fit: {plan.reason}")
  lines = [
    f"{planning.SHORT_LEGEND}; set: operand tiles and accumulator of one program; "
    "predicted: an estimate",
  ]
  if any(choice.best_on for choice in case.choices):
    lines.append(f"* {_RANKED_FIRST}")
  return Block(
    title=title,
    header=header,
    cells=tuple(cells),
    numeric=frozenset({"set KiB", "traffic MiB", "FLOP/B", "resident", "predicted us"}),
    lines=(*lines, *reasons),
  )


def _buffer_block(case: _Case, title: str) -> Block:
  return Block(
    title=title,
    header=("tile", "profile", "buffers"),
    cells=tuple(
      (planning.short(choice.tile), profile, planning.fill(case.plans[choice.tile, profile]))
      for choice in case.choices
      for profile in choice.profiles
    ),
  )


def _check_block(case: _Case, done: _Done, title: str) -> Block:
  header = (
    "tile",
    "implementation",
    "part of C",
    "check",
    "error/bound",
    "max ULP",
    "relative error",
    "measured us",
  )
  cells = []
  lines = [
    planning.CHECK_LEGEND,
    "measured us: a device timer's median; - where there is no GPU, since an interpreter's time "
    "is not the kernel's",
  ]
  for choice in case.choices:
    outcome = done[choice.tile]
    fields = {} if outcome is None else outcome.fields
    details = {} if outcome is None else outcome.details
    cells.append(
      (
        planning.short(choice.tile),
        fields.get("implementation") or "-",
        fields.get("checked") or "-",
        fields.get("check", "not run"),
        planning.number(details.get("worst_bound_fraction"), 2),
        planning.ulps(fields.get("max_ulp")),
        planning.scientific(fields.get("relative_error")),
        planning.number(None if outcome is None else outcome.measured_us),
      )
    )
    if outcome is not None:
      if "reason" in fields:
        lines.append(f"{planning.short(choice.tile)} not run: {fields['reason']}")
      lines += [f"{planning.short(choice.tile)}: {note}" for note in outcome.notes]
  return Block(
    title=title,
    header=header,
    cells=tuple(cells),
    numeric=frozenset(header[4:]),
    lines=tuple(lines),
  )
