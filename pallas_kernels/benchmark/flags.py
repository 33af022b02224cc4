"""The command line: what each flag takes, which task reads it, and its help.

The flags live in a FlagValues of their own, not in absl's global one, so that
the program can run many times in one process and meets no other module's flags.
"""

import dataclasses
import functools
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from absl import flags as absl_flags

import hw_profiles
from pallas_kernels import names
from pallas_kernels.benchmark import lowered, ops, output, parsing, results
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.ops.op import AnyOp, Option, options_of
from pallas_kernels.benchmark.workload import Workload

_Item = TypeVar("_Item")

# absl's own addition to the help of a repeatable flag, which says so already
_HELP_TAIL = re.compile(r";\s+repeat this option.*", re.DOTALL)

# absl's words for what is wrong, and those of the other messages here
_REWORDED = {
  r"flag --": "--",
  r"Unknown command line flag '": "unknown flag '--",
  r"\('Non-boolean argument to boolean flag', .*\)": "expected true or false, or no value",
}

TASKS = ("compare", "run", "plan", "tune", "examples", "ladder", "fusion", *lowered.TASKS)
CHECKS = ("float64", "none")
CHECK_PARTS = ("all", "sample")
TIMERS = ("device", "wall")
FORMATS = ("table", "json", "csv", "markdown")

DEFAULT_PROFILES = ("h100_sxm", "h200_sxm", "rtx_pro_6000", "ascend_910b3", "ascend_950pr")

# 30 runs: the median of a kernel's device times moves by less than 1 % between
# repetitions of so many, and the longest default case stays within a second.
DEFAULT_ITERATIONS = 30

# Tiles that a search starts from, before it looks at what lies beside the best.
DEFAULT_TOP = 8

# A compiler takes 0.1 to 2 s for a tile; what takes longer has been seen to take for ever.
DEFAULT_TIME_LIMIT_S = 60

# Tasks that work on ops; the others read none of an op's flags.
_ON_OPS = ("compare", "run", "plan", "tune", "ladder", *lowered.TASKS)

# Tasks that read a flag, for those that not every task reads; an op's options
# say so themselves. A flag that the chosen task would ignore is refused.
_READ_BY = {
  "kernel": _ON_OPS,
  "shape": _ON_OPS,
  "dtype": _ON_OPS,
  "tile": ("compare", "run", "plan", "mlir", "ascend"),
  "profile": ("compare", "run", "plan", "fusion", *lowered.TASKS),
  "program": ("fusion",),
  "implementation": ("compare", "run", "tune", "mlir"),
  "peers": ("run",),
  "check": ("compare", "run", "tune", "fusion"),
  "check_part": ("compare",),
  "iterations": ("compare", "run", "tune", "ladder", "fusion"),
  "timer": ("compare", "run"),
  "cold_l2": ("compare", "run", "tune", "fusion"),
  "top": ("tune", "ascend", "port"),
  "resume": ("tune",),
  "table": ("tune",),
  "results": ("run", "fusion"),
  "stage": ("mlir",),
  "passes": ("mlir",),
  "folder": lowered.TASKS,
  "jobs": lowered.TASKS,
  "time_limit": lowered.TASKS,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """A command line, checked.

  Attributes:
    task: One of TASKS.
    workloads: What to work on: every op, size and dtype, sweeps written out;
      nothing for --task=examples and --task=fusion.
    programs: Those of the fusion study to run; None: all.
    profiles: Canonical profile names; None: not given.
    implementation: None: what dispatch picks on a GPU, "interpret" on a CPU.
    peers: Other programs to run beside.
    check: "float64" or "none".
    check_part: "all" or "sample" of the result, for every tile; None: `compare`
      chooses for each.
    iterations: Timed runs, of which the median is reported.
    timer: "device" or "wall".
    cold_l2: Whether operands are out of L2 when a timed run starts.
    measuring: The flags given that only a measurement reads, by name.
    format: One of FORMATS.
    output: A file, or None for stdout.
    top: Tiles of the planner that a search starts from.
    resume: The file that holds a search's state, or None for the usual place.
    table: The file that the tuned tiles go to, or None for the user's cache.
    results: The file that measured times are added to, or None.
    stages: The stages of a lowering to show, by name; empty: all.
    passes: Whether to show the module after each pass of a compiler.
    folder: Where the texts of the compilers go, or None.
    jobs: Compilers to run side by side; None: one a core.
    time_limit_s: What one compiler may take.
  """

  task: str
  workloads: tuple[Workload, ...]
  programs: tuple[str, ...] | None
  profiles: tuple[str, ...] | None
  implementation: str | None
  peers: tuple[str, ...]
  check: str
  check_part: str | None
  iterations: int
  timer: str
  cold_l2: bool
  measuring: tuple[str, ...]
  format: str
  output: str | None
  top: int
  resume: str | None
  table: str | None
  results: str | None
  stages: tuple[str, ...]
  passes: bool
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
  values = _define()
  try:
    rest = values(["pallas-bench", *arguments])[1:]
  except absl_flags.Error as error:
    raise UsageError(_plain(error)) from None
  if values.help:
    return None
  if rest:
    raise UsageError(f"{rest[0]!r} is not a flag; every option is --name=value")
  given = {name for name in values if values[name].present}
  task = _known("task", values.task, TASKS)
  for name, tasks in _READ_BY.items():
    if name in given:
      _check_read(name, task, tasks)
  for name in given & set(_op_flags()):
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
  return Options(
    task=task,
    workloads=tuple(
      workload
      for op in kernels
      for workload in _workloads(op, values, given, task, several=len(kernels) > 1)
    ),
    programs=_programs(values.program),
    profiles=_profiles(values.profile),
    implementation=_one_of("implementation", values.implementation, tuple(names.IMPLEMENTATIONS)),
    peers=_peers(kernels, values.peers if "peers" in given else None),
    check=_known("check", values.check, CHECKS),
    check_part=_one_of("check_part", values.check_part, CHECK_PARTS),
    iterations=parsing.positive("iterations", values.iterations, example=DEFAULT_ITERATIONS),
    timer=_known("timer", values.timer, TIMERS),
    cold_l2=values.cold_l2,
    measuring=tuple(
      name for name in ("iterations", "timer", "cold_l2", "results") if name in given
    ),
    format=_known("format", values.format, FORMATS),
    output=values.output,
    top=parsing.positive("top", values.top, example=DEFAULT_TOP),
    resume=values.resume,
    table=values.table,
    results=values.results,
    stages=tuple(values.stage),
    passes=values.passes,
    folder=values.folder,
    jobs=None if values.jobs is None else parsing.positive("jobs", values.jobs, example=2),
    time_limit_s=parsing.positive("time_limit", values.time_limit, example=DEFAULT_TIME_LIMIT_S),
  )


def _kernels(given: Sequence[str], task: str) -> list[AnyOp]:
  """The ops that --kernel names; all: those that the task does something with."""
  known = [ops.get(name) for name in ops.names()]
  if given == ["all"]:
    return [op for op in known if task in _tasks_of(op)]
  chosen = [ops.get(name) for name in parsing.choose("kernel", given, [op.name for op in known])]
  for op in chosen:
    if task not in _tasks_of(op):
      able = ", ".join(other.name for other in known if task in _tasks_of(other))
      raise UsageError(
        f"--kernel={op.name}: only --task={' or '.join(_tasks_of(op))} takes "
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
      for dtype in _dtypes(op, values.dtype)
    ]
    if task in lowered.TASKS:
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


def _dtypes(op: AnyOp, given: Sequence[str] | None) -> tuple[str, ...]:
  return op.dtypes[:1] if given is None else parsing.choose("dtype", given, op.dtypes)


def _op_options(op: AnyOp, values: absl_flags.FlagValues, given: set[str], task: str) -> Any:
  """The op's options as the flags give them."""
  own = options_of(op.options_class)
  for name, takers in _op_flags().items():
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


def _op_flags() -> dict[str, list[tuple[str, Option]]]:
  """The option flags of all ops, each with the ops that take it."""
  flags: dict[str, list[tuple[str, Option]]] = {}
  for kernel in ops.names():
    for name, option in options_of(ops.get(kernel).options_class).items():
      flags.setdefault(name, []).append((kernel, option))
  return flags


def _peers(kernels: Sequence[AnyOp], given: Sequence[str] | None) -> tuple[str, ...]:
  if given is None:
    return ()
  known = tuple(dict.fromkeys(peer for op in kernels for peer in op.peers))
  return parsing.choose("peers", given, known)


def _check_read(name: str, task: str, tasks: Sequence[str]) -> None:
  if task not in tasks:
    raise UsageError(
      f"--{name} is not read by --task={task}, only by --task={' and --task='.join(tasks)}"
    )


def help_text() -> str:
  """Every flag with its meaning and default."""
  values = _define()
  lines = [
    "pallas-bench: what a tile plan costs, whether it fits, and whether the kernel is right.",
    "",
    "usage: pallas-bench [--task=compare] [--flag=value ...]",
    "",
    "  --task=compare   fits, cost and float64 check of tiles on every profile; runs the kernel",
    "  --task=run       run one implementation at full size, check it; on a GPU, measure it",
    "  --task=plan      the planner's whole verdict; runs nothing and does not load JAX",
    "  --task=tune      measure tiles on the GPU here, and keep the fastest for later calls",
    "  --task=examples  the course texts' worked examples, recomputed beside what they print",
    "  --task=ladder    a matmul from one output a thread to the library's kernel, on a GPU",
    "  --task=fusion    a chain cut into kernels in every way, rows in segments, transposed blocks",
    "  --task=mlir      the MLIR of every stage, for either vendor, without its device",
    "  --task=ascend    a tile's budget beside what each vendor's compiler allocates for it",
    "  --task=port      what must change between the vendors for one op and size, and why",
    "",
  ]
  for name in sorted(values):
    flag = values[name]
    default = "" if flag.default in (None, False, [], "") else f" (default: {_text(flag.default)})"
    lines.append(f"  --{name}")
    lines.extend(
      textwrap.wrap(
        _HELP_TAIL.sub("", flag.help) + default,
        88,
        initial_indent=" " * 6,
        subsequent_indent=" " * 6,
      )
    )
  lines += [
    "",
    "exit status: 0 fine; 1 a check failed; 2 the flags are wrong, or there is no room for what",
    "  they ask in memory or where the output goes; 130 interrupted",
  ]
  return "\n".join(lines) + "\n"


def _define() -> absl_flags.FlagValues:
  values = absl_flags.FlagValues()
  string = functools.partial(absl_flags.DEFINE_string, flag_values=values)
  boolean = functools.partial(absl_flags.DEFINE_boolean, flag_values=values)
  listed = functools.partial(absl_flags.DEFINE_list, flag_values=values)
  many = functools.partial(absl_flags.DEFINE_multi_string, flag_values=values)
  kernels = [ops.get(name) for name in ops.names()]
  boolean("help", False, "Print this and stop.")
  string("task", "compare", f"One of {', '.join(TASKS)}.")
  listed("kernel", ["matmul"], f"Ops, of {', '.join(ops.names())}; or all.")
  many(
    "shape",
    None,
    "Sizes of the op. A value start:stop:step sweeps, both ends included. Repeatable. Left out: "
    f"{_each(kernels, lambda op: str(op.default_shape))}.",
  )
  listed(
    "dtype",
    None,
    f"Operand dtypes, of {_each(kernels, lambda op: ', '.join(op.dtypes))}. Left out: the first.",
  )
  many(
    "tile",
    None,
    "Fields of the op's config, sweeps as in --shape; for example "
    f"{_each(kernels, lambda op: op.default_tiles[0].describe())}. Repeatable. Left out: the task "
    f"chooses, and says what. Fields: {_each(kernels, _tile_fields)}.",
  )
  listed(
    "profile",
    None,
    f"Hardware profiles to plan for, of {', '.join(hw_profiles.list_profiles())}; or all. Left "
    f"out: {','.join(DEFAULT_PROFILES)}; with --task=run and --task=fusion the device it runs on; "
    f"with --task={', '.join(lowered.TASKS)} {','.join(lowered.DEFAULT_PROFILES)}.",
  )
  listed(
    "program",
    None,
    "Programs of the fusion study, for example chain:12|3 or rms_norm:8. Of --task=fusion. Left "
    "out: all.",
  )
  string(
    "implementation",
    None,
    f"One of {', '.join(names.IMPLEMENTATIONS)}. Left out: the best that the device has; on a CPU "
    "interpret.",
  )
  listed(
    "peers", [], f"Run these beside it: {_each(kernels, lambda op: ', '.join(op.peers) or 'none')}."
  )
  string(
    "check", "float64", "float64: compare with the NumPy reference and its error bound; or none."
  )
  string(
    "check_part",
    None,
    "all: run and compare the whole result of every tile; sample: a part of it, on a CPU. Left "
    "out: all for the tile with the least work and where that is quick, and on a GPU.",
  )
  string(
    "iterations",
    str(DEFAULT_ITERATIONS),
    "Timed runs, after warm-up; their median is reported. GPU only.",
  )
  string("timer", "device", "device: kernel time by CUPTI; wall: call to completion. GPU only.")
  boolean("cold_l2", False, "Keep operands out of L2 when a timed run starts. GPU only.")
  string(
    "top",
    str(DEFAULT_TOP),
    "Tiles of the planner to start a search from, with --task=tune; to compile for each device at "
    "most, with --task=ascend and --task=port.",
  )
  string(
    "resume",
    None,
    "Keep what a search has measured in this file, and go on from what it holds. Of --task=tune. "
    "Left out: a file in the cache folder, begun anew.",
  )
  string(
    "table",
    None,
    "Add the tuned tiles to this table instead of the user's cache. Of --task=tune.",
  )
  string(
    "results",
    None,
    "Add the measured times, each with its peers' and its environment, to this JSON file; a row "
    "of the same device and arguments is replaced. Of --task=run and --task=fusion, GPU only.",
  )
  listed(
    "stage",
    [],
    "Stages to show, by name, for example lowered (Mosaic GPU) or linalg,hivm (Ascend). Of "
    "--task=mlir. Left out: all.",
  )
  boolean("passes", False, "Ascend: the module after each compiler pass, too. Of --task=mlir.")
  string(
    "folder",
    None,
    "Of --task=mlir: write each stage to a file in this folder instead of printing it. Of "
    "--task=ascend and --task=port: keep the input of a compiler that failed there; left out: in "
    "a folder that is made for it and named.",
  )
  string("jobs", None, "Compilers to run side by side. Left out: one a core.")
  string(
    "time_limit", str(DEFAULT_TIME_LIMIT_S), "Seconds that one compiler may take for one tile."
  )
  string("format", "table", f"One of {', '.join(FORMATS)}.")
  string("output", None, "Write the result to this file, all of it or nothing; left out: stdout.")
  for name, takers in _op_flags().items():
    option = takers[0][1]
    (boolean if option.boolean else string)(name, None, _option_help(takers))
  return values


def _each(kernels: Sequence[AnyOp], text: Callable[[AnyOp], str]) -> str:
  """The text of every op, each after its op's name where there are several."""
  if len(kernels) == 1:
    return text(kernels[0])
  return "; ".join(f"{op.name} {text(op)}" for op in kernels)


def _tile_fields(op: AnyOp) -> str:
  """The fields of an op's config, with the defaults of those that may be left out."""
  return ", ".join(
    field.name
    if field.default is dataclasses.MISSING
    else f"{field.name}={'none' if field.default is None else field.default}"
    for field in dataclasses.fields(op.config_class)
  )


def _option_help(takers: Sequence[tuple[str, Option]]) -> str:
  option = takers[0][1]
  words = tuple(dict.fromkeys(word for _, other in takers for word in other.choices or ()))
  help = option.help.rstrip(".") + (f"; one of {', '.join(words)}" if words else "")
  return f"{help}. An option of {', '.join(kernel for kernel, _ in takers)}."


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
      raise UsageError(f"--profile={name}: {error}") from None
  return tuple(dict.fromkeys(canonical))


def _text(default: object) -> str:
  return ",".join(default) if isinstance(default, list) else str(default)


def _plain(error: Exception) -> str:
  """absl's message on one line, the flag spelt as it is typed."""
  text = " ".join(str(error).split())
  for theirs, ours in _REWORDED.items():
    text = re.sub(theirs, ours, text)
  return text
