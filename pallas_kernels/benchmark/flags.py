"""The command line, read and checked: which task reads which flag, and what they come to."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from absl import flags as absl_flags

import hw_profiles
from pallas_kernels import names
from pallas_kernels.benchmark import lowered, operand_data, ops, output, parsing, results
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.flag_definitions import (
  CHECK_PARTS,
  CHECKS,
  DEFAULT_ITERATIONS,
  DEFAULT_PROFILES,
  DEFAULT_TIME_LIMIT_S,
  DEFAULT_TOP,
  FORMATS,
  PLANNING_TASKS,
  TASKS,
  TIMERS,
  define,
  help_text,
  op_flags,
)
from pallas_kernels.benchmark.ops.op import AnyOp, Option, options_of
from pallas_kernels.benchmark.request import flag_values
from pallas_kernels.benchmark.saved import read as saved
from pallas_kernels.benchmark.workload import Workload

__all__ = ["DEFAULT_ITERATIONS", "DEFAULT_PROFILES", "TASKS", "Options", "help_text", "parse"]

_Item = TypeVar("_Item")

# absl's words for what is wrong, and those of the other messages here
_REWORDED = {
  r"flag --": "--",
  r"Unknown command line flag '": "unknown flag '--",
  r"\. Did you mean: (\w+) \?": r"; did you mean --\1?",
  r"\('Non-boolean argument to boolean flag', .*\)": "expected true or false, or no value",
}

# Tasks that work on ops; the others read none of an op's flags.
_ON_OPS = ("compare", "run", "plan", "tune", "numerics", "ladder", *lowered.TASKS)

# Tasks that read a flag, for those that not every task reads; an op's options
# say so themselves. A flag that the chosen task would ignore is refused.
_READ_BY = {
  "kernel": _ON_OPS,
  "shape": _ON_OPS,
  "dtype": (*_ON_OPS, "request"),
  "tile": ("compare", "run", "plan", "numerics", "mlir", "ascend"),
  "profile": ("compare", "run", "plan", "fusion", "request", *lowered.TASKS),
  "model": ("request",),
  "request": ("request",),
  "host": ("request",),
  "buckets": ("request",),
  "input": ("report",),
  "plot": ("compare", "run", "plan"),
  "program": ("fusion",),
  "implementation": ("compare", "run", "tune", "numerics", "mlir"),
  "peers": ("run",),
  "planned": ("run",),
  "memory": ("run",),
  "data": ("numerics",),
  "check": ("compare", "run", "tune", "fusion"),
  "check_part": ("compare",),
  "iterations": ("compare", "run", "tune", "ladder", "fusion"),
  "timer": ("compare", "run"),
  "cold_l2": ("compare", "run", "tune", "fusion"),
  "top": ("tune", "ascend", "port"),
  "resume": ("tune",),
  "table": ("tune",),
  "results": ("run", "ladder", "fusion"),
  "stage": ("mlir",),
  "passes": ("mlir",),
  "compilers": ("compare",),
  "folder": lowered.TASKS,
  "jobs": (*lowered.TASKS, "compare"),
  "time_limit": (*lowered.TASKS, "compare"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """A command line, checked.

  Attributes:
    task: One of TASKS.
    workloads: What to work on: every op, size and dtype, sweeps written out;
      nothing for the tasks that work on no op.
    request: What --task=request is about.
    inputs: Files that --task=report reads.
    programs: Those of the fusion study to run; None: all.
    profiles: Canonical profile names; None: not given.
    implementation: None: what dispatch picks on a GPU, "interpret" on a CPU.
    peers: Other programs to run beside.
    planned: Whether the planner's tile runs, too, where another is the default.
    memory: Whether the bytes that each call needs beside operands and results are told.
    data: Kinds of operand data, of `operand_data.KINDS`.
    check: "float64" or "none".
    check_part: "all" or "sample" of the result, for every tile; None: `compare`
      chooses for each.
    iterations: Timed runs, of which the median is reported.
    timer: "device" or "wall".
    cold_l2: Whether operands are out of L2 when a timed run starts.
    measuring: The flags given that only a measurement reads, by name.
    format: One of FORMATS; None, of --task=report alone: what suits where it goes.
    output: A file, or None for stdout.
    plot: The folder that figures go to, or None.
    top: Tiles of the planner that a search starts from.
    resume: The file that holds a search's state, or None for the usual place.
    table: The file that the tuned tiles go to, or None for the user's cache.
    results: The file that measured times are added to, or None.
    stages: The stages of a lowering to show, by name; empty: all.
    passes: Whether to show the module after each pass of a compiler.
    compilers: Whether `compare` shows what the compilers allocate.
    folder: Where the texts of the compilers go, or None.
    jobs: Compilers to run side by side; None: one a core.
    time_limit_s: What one compiler may take.
  """

  task: str
  workloads: tuple[Workload, ...]
  request: flag_values.RequestOptions
  inputs: tuple[saved.Input, ...]
  programs: tuple[str, ...] | None
  profiles: tuple[str, ...] | None
  implementation: str | None
  peers: tuple[str, ...]
  planned: bool
  memory: bool
  data: tuple[str, ...]
  check: str
  check_part: str | None
  iterations: int
  timer: str
  cold_l2: bool
  measuring: tuple[str, ...]
  format: str | None
  output: str | None
  plot: str | None
  top: int
  resume: str | None
  table: str | None
  results: str | None
  stages: tuple[str, ...]
  passes: bool
  compilers: bool
  folder: str | None
  jobs: int | None
  time_limit_s: float


def parse(arguments: Sequence[str]) -> Options | None:
  """The options that `arguments` (without the program's name) ask for.

  Returns:
    None where they ask for help.

  Raises:
    UsageError: a flag is unknown, wrong, or not read by the task or the op.
  """
  values = define()
  try:
    rest = values(["pallas-bench", *arguments])[1:]
  except absl_flags.Error as error:
    raise UsageError(_plain(error)) from None
  if values.help:
    return None
  if rest:
    raise UsageError(
      f"{rest[0]!r} is not a flag; every option is --name=value "
      "(or --name value), or --name and --noname for yes and no"
    )
  given = {name for name in values if values[name].present}
  task = _known("task", values.task, TASKS)
  for name, tasks in _READ_BY.items():
    if name in given:
      _check_read(name, task, tasks)
  for name in given & set(op_flags()):
    _check_read(name, task, _ON_OPS)
  kernels = _kernels(values.kernel, task) if task in _ON_OPS else []
  if values.output is not None:
    output.check_path(values.output)
  if values.resume is not None:
    output.check_path(values.resume, flag="resume", elsewhere="the cache folder")
  if values.table is not None:
    output.check_path(values.table, flag="table", elsewhere="the user's cache")
  if values.results is not None:
    results.check(values.results)
  if values.folder is not None:
    output.check_folder(values.folder)
  if values.plot is not None:
    output.check_folder(values.plot, flag="plot")
  return Options(
    task=task,
    workloads=tuple(
      workload
      for op in kernels
      for workload in _workloads(op, values, given, task, several=len(kernels) > 1)
    ),
    request=flag_values.read(
      model=values.model,
      request=values.request,
      dtype=values.dtype if task == "request" else None,
      host=values.host,
      buckets=values.buckets,
    ),
    inputs=saved.inputs(values.input or ()) if task == "report" else (),
    programs=_programs(values.program),
    profiles=_profiles(values.profile),
    implementation=_one_of("implementation", values.implementation, tuple(names.IMPLEMENTATIONS)),
    peers=_peers(kernels, values.peers if "peers" in given else None),
    planned=values.planned,
    memory=values.memory,
    data=parsing.choose("data", values.data, tuple(operand_data.KINDS)),
    check=_known("check", values.check, CHECKS),
    check_part=_one_of("check_part", values.check_part, CHECK_PARTS),
    iterations=parsing.positive("iterations", values.iterations, example=DEFAULT_ITERATIONS),
    timer=_known("timer", values.timer, TIMERS),
    cold_l2=values.cold_l2,
    measuring=tuple(
      name for name in ("iterations", "timer", "cold_l2", "results") if name in given
    ),
    format=None
    if task == "report" and "format" not in given
    else _known("format", values.format, FORMATS),
    output=values.output,
    plot=values.plot,
    top=parsing.positive("top", values.top, example=DEFAULT_TOP),
    resume=values.resume,
    table=values.table,
    results=values.results,
    stages=tuple(values.stage),
    passes=values.passes,
    compilers=values.compilers,
    folder=values.folder,
    jobs=None if values.jobs is None else parsing.positive("jobs", values.jobs, example=2),
    time_limit_s=parsing.positive("time_limit", values.time_limit, example=DEFAULT_TIME_LIMIT_S),
  )


def _kernels(given: Sequence[str], task: str) -> list[AnyOp]:
  """The ops that --kernel names; all: those that the task does something with."""
  known = [ops.get(name) for name in ops.names()]
  if given == ["all"]:
    return [op for op in known if task in _tasks_of(op)]
  for name in given:
    if name in ops.COMPOSED and task not in ops.get(name).tasks:
      raise UsageError(
        f"--kernel={name}: the planner takes it as {' followed by '.join(ops.COMPOSED[name])}; "
        f"as one it is of --task={parsing.joined(ops.get(name).tasks, 'or')} alone"
      )
  chosen = [ops.get(name) for name in parsing.choose("kernel", given, [op.name for op in known])]
  for op in chosen:
    if task not in _tasks_of(op):
      able = ", ".join(other.name for other in known if task in _tasks_of(other))
      raise UsageError(
        f"--kernel={op.name}: only --task={parsing.joined(_tasks_of(op), 'or')} takes "
        f"it; --task={task} has {able}"
      )
  return chosen


def _tasks_of(op: AnyOp) -> tuple[str, ...]:
  """The tasks that do something with an op, those of the compilers among them."""
  return op.tasks + (lowered.TASKS if op.name in lowered.OPS else ())


def _workloads(
  op: AnyOp, values: absl_flags.FlagValues, given: set[str], task: str, *, several: bool
) -> list[Workload]:
  """What the flags mean to one op.

  Raises:
    UsageError: --shape, --tile, --dtype or an option is not one that the op takes.
  """
  try:
    tile_example = op.default_tiles[0].describe()
    tiles = _all(
      lambda text: parsing.tiles(text, op.config_class, example=tile_example), values.tile
    )
    shapes = _all(
      lambda text: parsing.shapes(text, op.shape_class, example=str(op.default_shape)),
      values.shape,
    )
    options = _op_options(op, values, given, task)
    found = [
      _checked(Workload(op=op, shape=shape, dtype=dtype, options=options, tiles=tiles))
      for shape in shapes or (op.default_shape,)
      for dtype in _dtypes(op, values.dtype, task)
    ]
    if task in lowered.TASKS or values.compilers:
      for workload in found:
        lowered.arguments(workload)
    return found
  except UsageError as error:
    raise UsageError(f"{error} (--kernel={op.name})" if several else str(error)) from None


def _checked(workload: Workload) -> Workload:
  """The workload, once its sizes and options are known to make a problem."""
  try:
    workload.problem()
  except ValueError as error:
    raise UsageError(f"--shape={workload.shape}: {error}") from None
  return workload


def _dtypes(op: AnyOp, given: Sequence[str] | None, task: str) -> tuple[str, ...]:
  if given is None:
    return op.dtypes[:1]
  chosen = parsing.choose("dtype", given, op.dtypes)
  for dtype in chosen:
    if dtype in op.planned_dtypes and task not in PLANNING_TASKS:
      raise UsageError(
        f"--dtype={dtype}: {op.name} is planned with it, no kernel takes it; "
        f"--task={parsing.joined(PLANNING_TASKS, 'and')} do, --task={task} has "
        f"{', '.join(op.run_dtypes)}"
      )
  return chosen


def _op_options(op: AnyOp, values: absl_flags.FlagValues, given: set[str], task: str) -> Any:
  """The op's options as the flags give them."""
  own = options_of(op.options_class)
  for name, takers in op_flags().items():
    if name in given and name not in own:
      raise UsageError(
        f"--{name} is not an option of {op.name}, only of {', '.join(other for other, _ in takers)}"
      )
  chosen = {}
  for name, option in own.items():
    if name not in given:
      continue
    if option.tasks is not None:
      _check_read(name, task, option.tasks)
    chosen[name] = _option_value(name, option, getattr(values, name))
  try:
    return op.options_class(**chosen)
  except ValueError as error:
    raise UsageError(str(error)) from None


def _option_value(name: str, option: Option, value: Any) -> Any:
  if option.boolean:
    return value
  if option.choices is not None:
    return _known(name, value, option.choices)
  assert option.read is not None
  try:
    return option.read(value)
  except ValueError as error:
    raise UsageError(f"--{name}={value}: {error}") from None


def _peers(kernels: Sequence[AnyOp], given: Sequence[str] | None) -> tuple[str, ...]:
  if given is None:
    return ()
  known = tuple(dict.fromkeys(peer for op in kernels for peer in op.peers))
  return parsing.choose("peers", given, known)


def _check_read(name: str, task: str, tasks: Sequence[str]) -> None:
  if task not in tasks:
    raise UsageError(
      f"--{name} is not read by --task={task}, only by --task={parsing.joined(tasks, 'and')}"
    )


def _known(flag: str, value: str, known: Sequence[str]) -> str:
  return parsing.choose(flag, [value], known)[0]


def _one_of(flag: str, value: str | None, known: Sequence[str]) -> str | None:
  return None if value is None else _known(flag, value, known)


def _all(
  read: Callable[[str], tuple[_Item, ...]], texts: Sequence[str] | None
) -> tuple[_Item, ...] | None:
  """What every text of a repeatable flag stands for, without repeats."""
  if not texts:
    return None
  return tuple(dict.fromkeys(item for text in texts for item in read(text)))


def _programs(given: Sequence[str] | None) -> tuple[str, ...] | None:
  if given is None:
    return None
  # here: the others' parsing needs no program
  from pallas_kernels.benchmark.fusion.programs import PROGRAMS

  return parsing.choose("program", given, tuple(PROGRAMS))


def _profiles(given: Sequence[str] | None) -> tuple[str, ...] | None:
  if given is None:
    return None
  if not given:
    raise UsageError(
      f"--profile: expected at least one of {', '.join(hw_profiles.list_profiles())}"
    )
  if given == ["all"]:
    return hw_profiles.list_profiles()
  canonical = []
  for name in given:
    try:
      canonical.append(hw_profiles.get_profile(name).name)
    except ValueError as error:
      said = str(error).removeprefix(f"name={name!r}: ")
      raise UsageError(f"--profile={name}: {said}") from None
  return tuple(dict.fromkeys(canonical))


def _plain(error: Exception) -> str:
  """absl's message on one line, the flag spelt as it is typed."""
  text = " ".join(str(error).split())
  for theirs, ours in _REWORDED.items():
    text = re.sub(theirs, ours, text)
  return text
