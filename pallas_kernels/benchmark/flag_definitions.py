"""What each flag of the command line takes, and its help.

The flags live in a FlagValues of their own, not in absl's global one, so that
the program can run many times in one process and meets no other module's flags.
"""

import dataclasses
import functools
import re
import textwrap
import typing
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags as absl_flags

import hw_profiles
from pallas_kernels import names
from pallas_kernels.benchmark import lowered, operand_data, ops
from pallas_kernels.benchmark.ops.op import AnyOp, Option, options_of
from pallas_kernels.benchmark.request import flag_values

# absl's own addition to the help of a repeatable flag, which says so already
_HELP_TAIL = re.compile(r";\s+repeat this option.*", re.DOTALL)

TASKS = (
  "compare",
  "run",
  "plan",
  "tune",
  "examples",
  "numerics",
  "ladder",
  "fusion",
  "request",
  "report",
  *lowered.TASKS,
)
# Tasks that have rows of what no kernel runs.
PLANNING_TASKS = ("compare", "plan")
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


def define() -> absl_flags.FlagValues:
  """Every flag, with its default, not read yet."""
  values = absl_flags.FlagValues()
  string = functools.partial(absl_flags.DEFINE_string, flag_values=values)
  boolean = functools.partial(absl_flags.DEFINE_boolean, flag_values=values)
  listed = functools.partial(absl_flags.DEFINE_list, flag_values=values)
  many = functools.partial(absl_flags.DEFINE_multi_string, flag_values=values)
  kernels = [ops.get(name) for name in ops.names()]
  boolean("help", False, "Print this and stop.")
  string("task", "compare", f"One of {', '.join(TASKS)}.")
  composed = "; ".join(f"{name} is {' and '.join(steps)}" for name, steps in ops.COMPOSED.items())
  listed("kernel", ["matmul"], f"Ops, of {', '.join(ops.names())}; or all. To plan, {composed}.")
  many(
    "shape",
    None,
    "Sizes of the op. A value start:stop:step sweeps, both ends included. Repeatable. Left out: "
    f"{_each(kernels, lambda op: str(op.default_shape))}. Names, [those that may be left out]: "
    f"{_each(kernels, _shape_names)}.",
  )
  listed(
    "dtype",
    None,
    f"Operand dtypes, of {_each(kernels, _dtypes)}. With --task=request those of a whole model, of "
    f"{', '.join(flag_values.DTYPES)}. Left out: the first.",
  )
  many(
    "tile",
    None,
    "Fields of the op's config, sweeps as in --shape; for example "
    f"{_each(kernels, lambda op: op.default_tiles[0].describe())}. Repeatable. Left out: the task "
    f"chooses, and says what. Fields, =default where there is one, a|b for words to choose from: "
    f"{_each(kernels, _tile_fields)}.",
  )
  listed(
    "profile",
    None,
    f"Hardware profiles to plan for, of {', '.join(hw_profiles.list_profiles())}; or all. Left "
    f"out: {','.join(DEFAULT_PROFILES)}; with --task=run and --task=fusion the device it runs on; "
    f"with --task={', '.join(lowered.TASKS)} {','.join(lowered.DEFAULT_PROFILES)}.",
  )
  many(
    "model",
    None,
    "Sizes of a decoder: layers, hidden, ffn, heads, [kv_heads], [head_dim], [vocab]; without "
    "vocab the product that scores the words is left out. Sweeps as in --shape. Repeatable. Of "
    f"--task=request. Left out: {flag_values.DEFAULT_MODEL.describe()}.",
  )
  many(
    "request",
    None,
    "Tokens of a request: prompt, output, [batch=1]. Sweeps as in --shape. Repeatable. Of "
    f"--task=request. Left out: {flag_values.DEFAULT_REQUEST.describe()}.",
  )
  string(
    "host",
    None,
    "What the host takes to submit a kernel, to replay a graph, and to compile a prompt length; "
    "those left out as in "
    f"{flag_values.DEFAULT_HOST.describe()}, which are assumptions. Of --task=request.",
  )
  listed(
    "buckets",
    None,
    "Prompt lengths to pad to, for example 512,2048,8192. Of --task=request. Left out: powers of "
    "two.",
  )
  many(
    "input",
    None,
    "A file to report on: what --format=json --output=FILE or --results=FILE wrote; * and ? stand "
    "for parts of names, and of what they meet files without rows are skipped. Repeatable. Of "
    "--task=report.",
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
  boolean(
    "planned",
    False,
    "Run the tile that the planner would choose, too, where one was tuned. Of --task=run.",
  )
  listed(
    "data",
    list(operand_data.KINDS),
    "Operand data, of "
    f"{'; '.join(f'{name} ({said})' for name, said in operand_data.KINDS.items())}. Of "
    "--task=numerics.",
  )
  string(
    "check", "float64", "float64: compare with the NumPy reference and its error bound; or none."
  )
  string(
    "check_part",
    None,
    "all: run and compare the whole result of every tile; sample: a part of it, on a CPU. Left "
    "out: all where that is quick, within a minute for the tile with the least work, and on a GPU.",
  )
  string(
    "iterations",
    str(DEFAULT_ITERATIONS),
    "Timed runs, after warm-up; their median is reported. GPU only.",
  )
  string("timer", "device", "device: kernel time by CUPTI; wall: call to completion. GPU only.")
  boolean(
    "memory",
    False,
    "Ask XLA what each call needs beside its operands and results, and keep it. Of --task=run.",
  )
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
    "of the same device and arguments is replaced. Of --task=run, ladder and fusion, GPU only.",
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
  boolean(
    "compilers",
    False,
    "Put what each vendor's compiler allocates beside the planner's budget, as --task=ascend does, "
    "where there is one. Of --task=compare.",
  )
  string("jobs", None, "Compilers to run side by side. Left out: one a core.")
  string(
    "time_limit", str(DEFAULT_TIME_LIMIT_S), "Seconds that one compiler may take for one tile."
  )
  string(
    "format",
    "table",
    f"One of {', '.join(FORMATS)}. --task=report without it: markdown, or on a terminal tables of "
    "rich where that is installed.",
  )
  string("output", None, "Write the result to this file, all of it or nothing; left out: stdout.")
  string(
    "plot",
    None,
    "Draw what --task=compare, run or plan shows into this folder, as SVG and PNG: products under "
    "each device's roofline, times over a sweep. Needs matplotlib, of the [report] extra.",
  )
  for name, takers in op_flags().items():
    option = takers[0][1]
    (boolean if option.boolean else string)(name, None, _option_help(takers))
  return values


def help_text() -> str:
  """Every flag with its meaning and default."""
  values = define()
  lines = [
    "pallas-bench: what a tile plan costs, whether it fits, and whether the kernel is right.",
    "",
    "usage: pallas-bench [--task=compare] [--flag=value ...]",
    "       --flag or --noflag where a flag is yes or no",
    "",
    "  --task=compare   fits, cost and float64 check of tiles on every profile; runs the kernel",
    "  --task=run       run one implementation at full size, check it; on a GPU, measure it",
    "  --task=plan      the planner's whole verdict; runs nothing and does not load JAX",
    "  --task=tune      measure tiles on the GPU here, and keep the fastest for later calls",
    "  --task=examples  the course texts' worked examples, recomputed beside what they print",
    "  --task=numerics  errors against float64 of each implementation, by the data it is given",
    "  --task=ladder    a matmul from one output a thread to the library's kernel, on a GPU",
    "  --task=fusion    a chain cut into kernels in every way, rows in segments, transposed blocks",
    "  --task=request   a whole request, stage by stage: what fusing, graphs and buckets are worth",
    "  --task=report    saved outputs and results as one report: failed checks, ratios, every row",
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
    "exit status: 0 fine; 1 a check failed; 2 the flags are wrong, --task=run found no kernel that",
    "  runs what they ask, or there is no room for it in memory or where the output goes; 130",
    "  interrupted. A compiler that is not installed is an answer of --task=mlir, ascend and port:",
    '  a row with outcome "not available" and the way to install it, status 0.',
  ]
  return "\n".join(lines) + "\n"


def op_flags() -> dict[str, list[tuple[str, Option]]]:
  """The option flags of all ops, each with the ops that take it."""
  flags: dict[str, list[tuple[str, Option]]] = {}
  for kernel in ops.names():
    for name, option in options_of(ops.get(kernel).options_class).items():
      flags.setdefault(name, []).append((kernel, option))
  return flags


def _each(kernels: Sequence[AnyOp], text: Callable[[AnyOp], str]) -> str:
  """The text of every op, after the names of the ops that have it where there are several."""
  if len(kernels) == 1:
    return text(kernels[0])
  having: dict[str, list[str]] = {}
  for op in kernels:
    having.setdefault(text(op), []).append(op.name)
  return "; ".join(f"{', '.join(takers)}: {said}" for said, takers in having.items())


def _dtypes(op: AnyOp) -> str:
  """The dtypes of an op, with those that no kernel takes called so."""
  return ", ".join(
    f"{dtype} (planned only, no kernel takes it)" if dtype in op.planned_dtypes else dtype
    for dtype in op.dtypes
  )


def _tile_fields(op: AnyOp) -> str:
  """The fields of an op's config, with the defaults of those that may be left out.

  Of a field that takes words all of them, the default first.
  """
  hints = typing.get_type_hints(op.config_class)

  def described(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
      return field.name
    values = ["none" if field.default is None else str(field.default)]
    if typing.get_origin(hints[field.name]) is typing.Literal:
      values += [word for word in typing.get_args(hints[field.name]) if word not in values]
    return f"{field.name}={'|'.join(values)}"

  return ", ".join(map(described, dataclasses.fields(op.config_class)))


def _shape_names(op: AnyOp) -> str:
  """The sizes of an op, those that may be left out in brackets with their default."""

  def described(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
      return field.name
    return f"[{field.name}{'' if field.default is None else f'={field.default}'}]"

  return ", ".join(map(described, dataclasses.fields(op.shape_class)))


def _option_help(takers: Sequence[tuple[str, Option]]) -> str:
  option = takers[0][1]
  words = tuple(dict.fromkeys(word for _, other in takers for word in other.choices or ()))
  help = option.help.rstrip(".") + (f"; one of {', '.join(words)}" if words else "")
  return f"{help}. An option of {', '.join(kernel for kernel, _ in takers)}."


def _text(default: object) -> str:
  return ",".join(default) if isinstance(default, list) else str(default)
