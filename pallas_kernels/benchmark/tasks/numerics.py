"""`--task=numerics`: how far from float64 each implementation is, by the data it is given."""

from pallas_kernels import names
from pallas_kernels.benchmark import cells, commands, environment, jobs, operand_data, runner
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.ops.op import Config
from pallas_kernels.benchmark.rows import Block, Report, Row
from pallas_kernels.benchmark.workload import Workload

# Where kernel and float64 are thought to take longer, the op's sample of the result is compared.
_QUICK_S = 3.0


def run(options: Options) -> Report:
  """Runs every workload on every kind of data with every implementation that is here.

  Raises:
    UsageError: nothing that was asked for could run, or a problem has no room in memory.
  """
  jobs.refuse_too_large(options)
  todo = [
    job
    for workload in options.workloads
    for tile in workload.tiles or (None,)
    for job in _jobs(options, workload, tile)
  ]
  outcomes = jobs.execute(options, todo)
  rows = tuple(_row(options, job, outcome) for job, outcome in zip(todo, outcomes, strict=True))
  return Report(
    environment=environment.describe(with_device=True), rows=rows, blocks=(_block(options, rows),)
  )


def _jobs(options: Options, workload: Workload, tile: Config | None) -> list[jobs.Job]:
  """The kinds of data, each with the implementations beside one another."""
  known = operand_data.kinds_of(workload.dtype)
  kinds = [kind for kind in options.data if kind in known]
  if not kinds:
    raise UsageError(
      f"--data={','.join(options.data)}: {workload.dtype} operands have {', '.join(known)}"
    )
  refusals = {}
  chosen = []
  for implementation in _implementations(options):
    selection = runner.select(workload, workload.shape, tile, implementation)
    if selection.reason is None:
      chosen.append((implementation, selection))
    else:
      refusals[implementation] = selection.reason
  if not chosen:
    raise UsageError(f"nothing to run: {next(iter(refusals.values()))}")

  def quick(implementation: str, selection: runner.Selection) -> bool:
    seconds = jobs.kernel_s(workload, workload.shape, selection.config, implementation)
    return seconds + jobs.reference_s(workload, workload.shape) < _QUICK_S

  # one part for all, so that their errors are those of the same elements
  whole = all(quick(*one) for one in chosen)
  part = workload.shape if whole else workload.sample()
  return [
    jobs.Job(
      workload=workload,
      part=part,
      tile=tile,
      label=f"{workload.name}, {kind} data, {implementation}",
      selection=selection if whole else runner.select(workload, part, tile, implementation),
      data=kind,
      timed=False,
    )
    for kind in kinds
    for implementation, selection in chosen
  ]


def _implementations(options: Options) -> tuple[str, ...]:
  """The one asked for, or all that run on the device here and are no slow interpreter there."""
  if options.implementation is not None:
    return (options.implementation,)
  if runner.platform() == "gpu":
    return tuple(name for name in names.IMPLEMENTATIONS if name not in names.INTERPRETERS)
  return ("interpret", "xla")


def _row(options: Options, job: jobs.Job, outcome: jobs.Outcome) -> Row:
  workload = job.workload
  config = job.tile or job.selection.config
  return Row(
    kernel=workload.op.name,
    shape=str(workload.shape),
    dtype=workload.dtype,
    tile=None if config is None else config.describe(),
    **outcome.fields,
    notes=outcome.notes,
    arguments=commands.rerun(
      options,
      workload,
      tile=job.tile,
      implementation=job.selection.implementation,
      data=job.data,
    ),
    details={"data": job.data, **outcome.details},
  )


def _block(options: Options, rows: tuple[Row, ...]) -> Block:
  header = (
    "problem",
    "data",
    "computed with",
    "tile",
    "part of the result",
    "check",
    "error/bound",
    "largest error, ulp",
    "relative error",
  )
  table = tuple(
    (
      f"{row.kernel} {row.shape} {row.dtype}",
      row.details["data"],
      row.checked_with or row.implementation or "-",
      "-" if row.tile is None else row.tile,
      row.checked or "-",
      row.check,
      cells.number(row.details.get("worst_bound_fraction"), 3),
      cells.number(row.max_ulp, 2),
      cells.scientific(row.relative_error),
    )
    for row in rows
  )
  told = [f"{kind}: {operand_data.KINDS[kind]}" for kind in options.data]
  lines = (
    cells.CHECK_LEGEND,
    "largest error, ulp: in last places of the exact value, as the result's dtype has them; large"
    " where terms cancel and little is left of them",
    *told,
    # a note that many rows share is said once
    *dict.fromkeys(note for row in rows for note in row.notes),
  )
  return Block(
    title="Errors against float64, by implementation and data",
    header=header,
    cells=table,
    numeric=frozenset(header[6:]),
    lines=lines,
    commands=tuple(f"again: {row.arguments}" for row in rows),
  )
