"""`--task=tune`: measures tiles on the GPU here, and keeps the fastest for later calls.

A search writes what it has measured after every tile, and the tuned tiles after
every problem, so that it can be stopped at any moment and gone on with.
"""

import contextlib
import dataclasses
import io
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from pallas_kernels import device
from pallas_kernels.benchmark import cells, commands, environment, output, rows, runner
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.progress import Progress, Step
from pallas_kernels.benchmark.rows import Block, Report, Row
from pallas_kernels.benchmark.workbench import Workbench
from pallas_kernels.benchmark.workload import Workload
from pallas_kernels.tuning import lookup, search
from pallas_kernels.tuning.state import State, StateError
from pallas_kernels.tuning.table import Environment, TableError, dump, merged

# A first guess: two dozen tiles compiled in parallel and measured.
_PROBLEM_S = 10.0
# The planner's choice counts as right within this share of the best time.
CLOSE = 0.05

MakeWorkbench = Callable[[Options, Workload, str], search.Workbench]


@dataclasses.dataclass(frozen=True)
class _Case:
  """A problem to tune."""

  workload: Workload
  target: search.Target


class Interrupted(KeyboardInterrupt):
  """Stopped, with all that was measured kept."""


def run(options: Options, *, make_workbench: MakeWorkbench = Workbench) -> Report:
  """Tunes every workload, and writes the table.

  Raises:
    UsageError: there is no GPU, or it has no profile; a workload has no tile
      here; the state or the table is damaged, or of another machine.
    Interrupted: by the user; the message says how to go on.
  """
  facts = environment.describe(with_device=True)
  here = _environment(facts)
  table_path = _table_path(options)
  _entries(table_path)  # a damaged one is refused before anything is measured
  cases = [_case(options, workload) for workload in options.workloads]
  state_path = _state_path(options)
  state = _state(options, state_path, here)
  steps = [Step("problem", case.workload.name, 1.0) for case in cases]
  # None where the program was started with stderr closed: print() would take stdout then
  progress = Progress(steps, rates={"problem": _PROBLEM_S}, stream=sys.stderr or io.StringIO())

  def save() -> None:
    output.write(state.dump(), str(state_path), flag="resume")

  results = []
  with _kept(state, state_path):
    for case in cases:
      with progress.next():
        result = search.search(
          case.target,
          make_workbench(options, case.workload, case.target.implementation),
          state.trials(case.target.key),
          top=options.top,
          save=save,
          say=lambda text: progress.say(f"  {text}"),
        )
      results.append(result)
      _add(table_path, result, here)
      progress.say(f"  {_verdict(result)}")
  lookup.reload()
  report_rows = tuple(
    row for case, result in zip(cases, results, strict=True) for row in _rows(options, case, result)
  )
  return Report(
    environment=facts,
    rows=report_rows,
    blocks=(_block(cases, results, table_path),),
  )


def _environment(facts: dict[str, Any]) -> Environment:
  """What entries record; raises UsageError where nothing can be measured."""
  if facts["platform"] != "gpu":
    raise UsageError(
      f"--task=tune measures tiles on a GPU, and JAX runs on {facts['platform']} here; "
      "--task=plan ranks them without one"
    )
  commit = facts["git_commit"]
  return Environment(
    device_kind=facts["device_kind"],
    driver=facts["driver"],
    jax=jax.__version__,
    commit=f"{commit} with changes" if commit and facts["git_modified"] else commit,
    date=facts["date"],
  )


def _case(options: Options, workload: Workload) -> _Case:
  if runner.device_profile() is None:
    raise UsageError(
      f"--task=tune: there is no profile of {device.target_device().kind!r} to rank tiles with"
    )
  selection = runner.select(workload, workload.shape, None, options.implementation)
  if selection.reason is not None:
    raise UsageError(f"{workload.name}: {selection.reason}")
  if selection.plan is None:
    raise UsageError(
      f"{workload.name}: {selection.implementation} has no tile to tune; --implementation names "
      "another"
    )
  assert selection.implementation is not None
  return _Case(
    workload,
    search.Target(
      problem=selection.plan.problem,
      implementation=selection.implementation,
      schedule=selection.plan.schedule,
      profile=selection.plan.profile,
    ),
  )


def _table_path(options: Options) -> pathlib.Path:
  if options.table is not None:
    return pathlib.Path(options.table)
  path = lookup.user_cache_path()
  if path is None:
    raise UsageError(
      f"there is no user cache ({lookup.CACHE_VARIABLE} is empty, or there is no home): "
      "--table=FILE says where the tuned tiles go"
    )
  return _in_new_folder(path)


def _state_path(options: Options) -> pathlib.Path:
  if options.resume is not None:
    return pathlib.Path(options.resume)
  beside = lookup.user_cache_path() or _table_path(options)
  return _in_new_folder(beside.with_name("tuning-state.json"))


def _in_new_folder(path: pathlib.Path) -> pathlib.Path:
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise UsageError(f"{path.parent}: {error.strerror or error}") from None
  return path


def _state(options: Options, path: pathlib.Path, here: Environment) -> State:
  """The state that --resume names, or an empty one."""
  settings = {
    "iterations": options.iterations,
    "cold_l2": options.cold_l2,
    "check": options.check,
  }
  if options.resume is None or not path.exists():
    return State(here, settings)
  try:
    text = path.read_text(encoding="utf-8")
    return State.load(text, str(path), environment=here, settings=settings)
  except (StateError, OSError, UnicodeDecodeError) as error:
    raise UsageError(f"--resume={path}: {error}") from None


def _entries(path: pathlib.Path) -> Sequence[Any]:
  try:
    return lookup.read(path, strict=True).entries
  except TableError as error:
    raise UsageError(str(error)) from None


def _add(path: pathlib.Path, result: search.Result, here: Environment) -> None:
  """Writes the result into the table, read again: another search may have added to it."""
  entry = result.entry(here)
  if entry is not None:
    output.write(dump(merged(_entries(path), [entry])), str(path), flag="table")


@contextlib.contextmanager
def _kept(state: State, path: pathlib.Path) -> Iterator[None]:
  try:
    yield
  except KeyboardInterrupt:
    raise Interrupted(
      f"interrupted; {len(state)} tiles tried, kept in {path}: the same flags with "
      f"--resume={path} go on from there"
    ) from None
  except search.DeviceLostError as error:
    raise UsageError(
      f"a tile {error}; the GPU runs nothing more in this process: the same flags with "
      f"--resume={path} go on without that tile"
    ) from error


def _verdict(result: search.Result) -> str:
  """The outcome of one problem, in one line."""
  if result.best is None or result.best.measured_us is None:
    failures = {x.trial.failure for x in result.candidates if x.trial.failure is not None}
    return f"nothing runs: {'; '.join(sorted(failures)) or 'no tile fits'}"
  regret = "" if result.regret is None else f"; the planner's choice takes {result.regret:.3f} x"
  return f"best {result.best.measured_us:.1f} us, {result.best.config.describe()}{regret}"


def _rows(options: Options, case: _Case, result: search.Result) -> Iterator[Row]:
  workload = case.workload
  best_us = None if result.best is None else result.best.measured_us
  for rank, one in enumerate(result.candidates, start=1):
    us = one.measured_us
    check = rows.NOT_RUN
    if one.trial.check not in (None, rows.NOT_RUN):
      check = rows.PASSED if one.trial.failure is None else rows.FAILED
    yield Row(
      kernel=workload.op.name,
      shape=str(workload.shape),
      dtype=workload.dtype,
      tile=one.config.describe(),
      profile=case.target.profile,
      fits=True,
      predicted_us=one.predicted_us,
      measured_us=us,
      implementation=case.target.implementation,
      check=check,
      checked_with=None if check == rows.NOT_RUN else one.trial.check,
      reason=one.trial.failure,
      arguments=commands.rerun(
        dataclasses.replace(options, task="run"),
        workload,
        tile=one.config,
        implementation=case.target.implementation,
      ),
      details={
        "rank": rank,
        "time_over_best": None if us is None or best_us is None else us / best_us,
        "planner_choice": one is result.planner,
        "regret": result.regret if one is result.planner else None,
        "rounds_us": one.trial.rounds_us,
      },
    )


def _block(cases: Sequence[_Case], results: Sequence[search.Result], path: pathlib.Path) -> Block:
  header = ("rank", "tile", "predicted us", "measured us", "over best", "note")
  table: list[tuple[str, ...]] = []
  groups: dict[int, str] = {}
  for case, result in zip(cases, results, strict=True):
    groups[len(table)] = f"{case.workload.name}, {case.target.implementation}"
    best_us = None if result.best is None else result.best.measured_us
    for rank, one in enumerate(result.candidates, start=1):
      us = one.measured_us
      note = "planner's choice" if one is result.planner else ""
      table.append(
        (
          str(rank),
          cells.short_tile(one.config),
          cells.number(one.predicted_us),
          cells.number(us, 2),
          cells.number(None if us is None or best_us is None else us / best_us, 3),
          one.trial.failure or note,
        )
      )
  return Block(
    title="tune",
    header=header,
    cells=tuple(table),
    numeric=frozenset(header[2:5]),
    groups=groups,
    lines=(*_summary(results), f"tuned tiles: {path}"),
  )


def _summary(results: Sequence[search.Result]) -> tuple[str, ...]:
  """How good the planner's own choices are."""
  regrets = [result.regret for result in results if result.regret is not None]
  if not regrets:
    return ("the planner's choice was measured for no problem",)
  close = sum(regret <= 1 + CLOSE for regret in regrets)
  return (
    f"the planner's choice is within {CLOSE:.0%} of the best for {close} of {len(regrets)} "
    f"problems ({close / len(regrets):.0%}); worst {max(regrets):.3f} x".replace("%", " %"),
  )
