"""The command line: what each flag takes, which task reads it, and its help.

The flags live in a FlagValues of their own, not in absl's global one, so that
the program can run many times in one process and meets no other module's flags.
"""

import dataclasses
import functools
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar, cast

from absl import flags as absl_flags

import hw_profiles
from hw_profiles import config as configs
from pallas_kernels.benchmark import output, parsing
from pallas_kernels.benchmark.errors import UsageError

_Item = TypeVar("_Item")

# absl's own addition to the help of a repeatable flag, which says so already
_HELP_TAIL = re.compile(r";\s+repeat this option.*", re.DOTALL)

TASKS = ("compare", "run", "plan")
KERNELS = ("matmul",)
DTYPES = ("bfloat16", "float16", "float32")
IMPLEMENTATIONS = ("mosaic_gpu", "triton", "interpret", "mosaic_gpu_interpret", "xla")
PEERS = ("xla",)
CHECKS = ("float64", "none")
TIMERS = ("device", "wall")
FORMATS = ("table", "json", "csv", "markdown")
ACTIVATIONS = ("silu",)

DEFAULT_PROFILES = ("h100_sxm", "h200_sxm", "rtx_pro_6000", "ascend_910b3", "ascend_950pr")
# The up-projection of Qwen3-8B's feed-forward block for 1024 tokens.
DEFAULT_SHAPE = parsing.Shape(m=1024, k=4096, n=12288)

# 30 runs: the median of a kernel's device times moves by less than 1 % between
# repetitions of so many, and the longest default case stays within a second.
DEFAULT_ITERATIONS = 30

# Tasks that read a flag, for those that not every task reads. A flag that the
# chosen task would ignore is refused.
_READ_BY = {
  "implementation": ("compare", "run"),
  "peers": ("run",),
  "check": ("compare", "run"),
  "intermediate_dtype": ("compare", "run"),
  "batch_invariant": ("compare", "run"),
  "iterations": ("compare", "run"),
  "timer": ("compare", "run"),
  "cold_l2": ("compare", "run"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """A command line, checked.

  Attributes:
    task: One of TASKS.
    kernels: Ops to work on.
    shapes: Problems, sweeps written out.
    dtypes: Operand dtypes by name.
    tiles: Tiles, sweeps written out; None: the task's own choice.
    profiles: Canonical profile names; None: not given.
    implementation: None: what dispatch picks on a GPU, "interpret" on a CPU.
    peers: Other programs to run beside.
    check: "float64" or "none".
    iterations: Timed runs, of which the median is reported.
    timer: "device" or "wall".
    cold_l2: Whether operands are out of L2 when a timed run starts.
    measuring: The flags given that only a measurement reads, by name.
    activation: None or an activation's name.
    bias: Whether a bias row is added.
    out_dtype: Result dtype; None: the operands'.
    intermediate_dtype: What the accumulator is rounded to before the activation.
    batch_invariant: Whether a row's bits may not depend on other rows.
    format: One of FORMATS.
    output: A file, or None for stdout.
  """

  task: str
  kernels: tuple[str, ...]
  shapes: tuple[parsing.Shape, ...]
  dtypes: tuple[str, ...]
  tiles: tuple[configs.MatmulConfig, ...] | None
  profiles: tuple[str, ...] | None
  implementation: str | None
  peers: tuple[str, ...]
  check: str
  iterations: int
  timer: str
  cold_l2: bool
  measuring: tuple[str, ...]
  activation: Literal["silu"] | None
  bias: bool
  out_dtype: str | None
  intermediate_dtype: str | None
  batch_invariant: bool
  format: str
  output: str | None

  def operation_flags(self) -> list[str]:
    """The flags that say what is computed beside the sizes, as they were meant."""
    parts = []
    if self.bias:
      parts.append("--bias")
    for name in ("activation", "intermediate_dtype", "out_dtype"):
      value = getattr(self, name)
      if value is not None:
        parts.append(f"--{name}={value}")
    if self.batch_invariant:
      parts.append("--batch_invariant")
    return parts


def parse(arguments: Sequence[str]) -> Options | None:
  """The options that `arguments` (without the program's name) ask for.

  Returns:
    None where they ask for help.

  Raises:
    UsageError: a flag is unknown, wrong, or not read by the task.
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
  task = _task(values.task)
  for name, tasks in _READ_BY.items():
    if name in given and task not in tasks:
      raise UsageError(
        f"--{name} is not read by --task={task}, only by --task={' and --task='.join(tasks)}"
      )
  kernels = (
    KERNELS if values.kernel == ["all"] else parsing.choose("kernel", values.kernel, KERNELS)
  )
  if values.output is not None:
    output.check_path(values.output)
  return Options(
    task=task,
    kernels=kernels,
    shapes=_all(parsing.shapes, values.shape) or (DEFAULT_SHAPE,),
    dtypes=parsing.choose("dtype", values.dtype, DTYPES),
    tiles=_all(parsing.tiles, values.tile),
    profiles=_profiles(values.profile),
    implementation=_one_of("implementation", values.implementation, IMPLEMENTATIONS),
    peers=parsing.choose("peers", values.peers, PEERS) if values.peers else (),
    check=_known("check", values.check, CHECKS),
    iterations=values.iterations,
    timer=_known("timer", values.timer, TIMERS),
    cold_l2=values.cold_l2,
    measuring=tuple(name for name in ("iterations", "timer", "cold_l2") if name in given),
    activation=cast(Literal["silu"] | None, _one_of("activation", values.activation, ACTIVATIONS)),
    bias=values.bias,
    out_dtype=_one_of("out_dtype", values.out_dtype, DTYPES),
    intermediate_dtype=_one_of("intermediate_dtype", values.intermediate_dtype, DTYPES),
    batch_invariant=values.batch_invariant,
    format=_known("format", values.format, FORMATS),
    output=values.output,
  )


def help_text() -> str:
  """Every flag with its meaning and default."""
  values = _define()
  lines = [
    "pallas-bench: what a tile plan costs, whether it fits, and whether the kernel is right.",
    "",
    "usage: pallas-bench [--task=compare] [--flag=value ...]",
    "",
    "  --task=compare  fits, cost and float64 check of tiles on every profile; runs the kernel",
    "  --task=run      run one implementation at full size, check it; on a GPU, measure it",
    "  --task=plan     the planner's whole verdict; runs nothing and does not load JAX",
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
  lines += ["", "exit status: 0 fine, 1 a check failed, 2 the flags are wrong"]
  return "\n".join(lines) + "\n"


def _define() -> absl_flags.FlagValues:
  values = absl_flags.FlagValues()
  string = functools.partial(absl_flags.DEFINE_string, flag_values=values)
  boolean = functools.partial(absl_flags.DEFINE_boolean, flag_values=values)
  names = functools.partial(absl_flags.DEFINE_list, flag_values=values)
  many = functools.partial(absl_flags.DEFINE_multi_string, flag_values=values)
  boolean("help", False, "Print this and stop.")
  string("task", "compare", f"One of {', '.join(TASKS)}.")
  names("kernel", ["matmul"], f"Ops, of {', '.join(KERNELS)}; or all.")
  many(
    "shape",
    None,
    "Sizes, for example m=1024,k=4096,n=12288 (the default), with batch= for several products. "
    "k=1024:8192:1024 sweeps, both ends included. Repeatable.",
  )
  names("dtype", ["bfloat16"], f"Operand dtypes, of {', '.join(DTYPES)}.")
  many(
    "tile",
    None,
    "Fields of MatmulConfig, for example block_m=128,block_n=128,block_k=32,num_stages=1; sweeps "
    "as --shape does. Repeatable. Left out: the task chooses, and says what.",
  )
  names(
    "profile",
    None,
    "Hardware profiles to plan for. Left out: "
    f"{','.join(DEFAULT_PROFILES)}; with --task=run the device it runs on.",
  )
  string(
    "implementation",
    None,
    f"One of {', '.join(IMPLEMENTATIONS)}. Left out: the best that the device has; on a CPU "
    "interpret.",
  )
  names("peers", [], f"Run these beside it, of {', '.join(PEERS)}.")
  string(
    "check", "float64", "float64: compare with the NumPy reference and its error bound; or none."
  )
  absl_flags.DEFINE_integer(
    "iterations",
    DEFAULT_ITERATIONS,
    "Timed runs, after warm-up; their median is reported. GPU only.",
    lower_bound=1,
    flag_values=values,
  )
  string("timer", "device", "device: kernel time by CUPTI; wall: call to completion. GPU only.")
  boolean("cold_l2", False, "Keep operands out of L2 when a timed run starts. GPU only.")
  string("activation", None, f"Applied after the reduction, one of {', '.join(ACTIVATIONS)}.")
  boolean("bias", False, "Add a bias row before the activation.")
  string("out_dtype", None, "Result dtype; left out: the operands'.")
  string("intermediate_dtype", None, "Rounding of the product before the activation.")
  boolean("batch_invariant", False, "A row's bits may not depend on the other rows.")
  string("format", "table", f"One of {', '.join(FORMATS)}.")
  string("output", None, "Write the result to this file, all of it or nothing; left out: stdout.")
  return values


def _task(task: str) -> str:
  if task not in TASKS:
    raise UsageError(
      f"--task={task}: expected one of {', '.join(TASKS)}{parsing.closest(task, TASKS)}"
    )
  return task


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


def _profiles(names: Sequence[str] | None) -> tuple[str, ...] | None:
  if names is None:
    return None
  canonical = []
  for name in names:
    try:
      canonical.append(hw_profiles.get_profile(name).name)
    except ValueError as error:
      raise UsageError(f"--profile={name}: {error}") from None
  return tuple(dict.fromkeys(canonical))


def _text(default: object) -> str:
  return ",".join(default) if isinstance(default, list) else str(default)


def _plain(error: Exception) -> str:
  """absl's message on one line, the flag spelt as it is typed."""
  return (
    str(error).replace("flag --", "--").replace("Unknown command line flag '", "unknown flag '--")
  )
